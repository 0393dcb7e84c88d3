/* test_arguments.c - every wrong argument: the right status, and a sentence that names function,
 * argument and value; and the group goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/imx.h"
#include "ranks.h"
#include "reference.h"

/* Calls, and wants the status, the function's name before the sentence, and part in it. */
#define EXPECT(want, part, function, ...)                                                        \
    do {                                                                                         \
        imbrex_status status_ = function(__VA_ARGS__);                                           \
        RANK_CHECK(status_ == (want), "%s(%s): %s, want %s: '%s'", #function, #__VA_ARGS__,      \
                   imbrex_status_name(status_), imbrex_status_name(want), imbrex_error());       \
        RANK_CHECK(strncmp(imbrex_error(), #function ": ", sizeof #function + 1) == 0 &&         \
                       strstr(imbrex_error(), part),                                             \
                   "%s(%s): '%s', want '%s: ...%s...'", #function, #__VA_ARGS__, imbrex_error(), \
                   #function, part);                                                             \
    } while (0)

#define INVALID(...)     EXPECT(IMBREX_INVALID, __VA_ARGS__)
#define UNSUPPORTED(...) EXPECT(IMBREX_UNSUPPORTED, __VA_ARGS__)

static void on_all(rank_main run)
{
    for (int size = 1; size <= 3; size++) {
        for (int processes = 0; processes < 2; processes++) {
            ranks_desc desc = { .size = size, .processes = processes };
            assert_int_equal(ranks_run(&desc, run, NULL), 0);
        }
    }
}

/* ---- plans ----------------------------------------------------------------------------------- */

static imbrex_gemm_desc gemm(void)
{
    return (imbrex_gemm_desc){ .m = 12, .n = 8, .k = 4, .dtype = IMBREX_F32 };
}

/* The desc above with one field set. */
#define GEMM(field, value) (&(imbrex_gemm_desc){ .m = 12, .n = 8, .k = 4, .field = value })
#define COLL(field, value) (&(imbrex_coll_desc){ .m = 12, .n = 8, .field = value })

static int plans(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *p = NULL;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
    INVALID("desc.m is -1", imbrex_plan_ag_gemm, group, GEMM(m, -1), &p);
    INVALID("desc.n is -2", imbrex_plan_gemm_rs, group, GEMM(n, -2), &p);
    INVALID("desc.k is -3", imbrex_plan_ag_gemm, group, GEMM(k, -3), &p);
    INVALID("desc.m is 4294967296", imbrex_plan_gemm_rs, group, GEMM(m, (int64_t)1 << 32), &p);
    INVALID("desc.m is 2147479552: want from 0 to 2147479551", imbrex_plan_ag_gemm, group,
            GEMM(m, IMX_SIZE_MOST + 1), &p);
    INVALID("desc.n is 2147479552", imbrex_plan_all_gather, group, COLL(n, IMX_SIZE_MOST + 1), &p);
    INVALID("desc.k is 2147483647", imbrex_plan_gemm_rs, group, GEMM(k, INT32_MAX), &p);
    INVALID("desc.chunk_rows is -4", imbrex_plan_ag_gemm, group, GEMM(chunk_rows, -4), &p);
    INVALID("desc.sms is -5: want from 0", imbrex_plan_gemm_rs, group, GEMM(sms, -5), &p);
    INVALID("desc.dtype is 6", imbrex_plan_ag_gemm, group, GEMM(dtype, (imbrex_dtype)6), &p);
    INVALID("desc.layout is 2", imbrex_plan_ag_gemm, group, GEMM(layout, (imbrex_layout)2), &p);
    INVALID("desc.m is -1", imbrex_plan_all_gather, group, COLL(m, -1), &p);
    INVALID("desc.n is -1", imbrex_plan_reduce_scatter, group, COLL(n, -1), &p);
    INVALID("desc.dtype is 9", imbrex_plan_all_gather, group, COLL(dtype, (imbrex_dtype)9), &p);
    INVALID("desc.algorithm is \"magic\"", imbrex_plan_ag_gemm, group, GEMM(algorithm, "magic"),
            &p);
    INVALID("desc.algorithm is \"\"", imbrex_plan_reduce_scatter, group, COLL(algorithm, ""), &p);
    UNSUPPORTED(
        "desc.algorithm is \"store\": gemm_rs has \"copy\", \"sequential\", \"scatter_push\", "
        "\"reduce_push\", \"reduce_pull\", \"ll\" here",
        imbrex_plan_gemm_rs, group, GEMM(algorithm, "store"), &p);
    if (imbrex_group_size(group) > 1)
        UNSUPPORTED(
            "which is for tiles of several ranks' rows, of which a GPU makes all at once, or in "
            "turns: choose \"reduce_pull\"",
            imbrex_plan_gemm_rs, group, GEMM(algorithm, "reduce_push"), &p);
    UNSUPPORTED("desc.sms is 1025: cpu:0 has at most 1024", imbrex_plan_ag_gemm, group,
                GEMM(sms, 1025), &p);
    UNSUPPORTED("desc.sms is 2147483647", imbrex_plan_all_gather, group, COLL(sms, INT32_MAX), &p);
    INVALID("desc.m is 9223372036854775807", imbrex_plan_ag_gemm, group, GEMM(m, INT64_MAX), &p);
    INVALID("desc.m_least is 13: want from 0 to desc.m, 12", imbrex_plan_ag_gemm, group,
            GEMM(m_least, 13), &p);
    INVALID("desc.m_least is -1", imbrex_plan_gemm_rs, group, GEMM(m_least, -1), &p);
    UNSUPPORTED("desc.reserved", imbrex_plan_ag_gemm, group, GEMM(reserved[4], 1), &p);
    UNSUPPORTED("desc.reserved", imbrex_plan_all_gather, group, COLL(reserved[0], 1), &p);
#pragma GCC diagnostic pop
    imbrex_gemm_desc huge = { .m = IMX_SIZE_MOST, .n = IMX_SIZE_MOST, .k = 1 };
    UNSUPPORTED("desc.m x n is 2147479551 x 2147479551", imbrex_plan_gemm_rs, group, &huge, &p);
    imbrex_coll_desc wide = { .m = IMX_SIZE_MOST, .n = IMX_SIZE_MOST };
    UNSUPPORTED("desc.m x n is 2147479551 x 2147479551", imbrex_plan_reduce_scatter, group, &wide,
                &p);
    RANK_CHECK(p == NULL, "the output was written");
    return 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct matrices {
    float a[12 * 8], b[8 * 4], bias[8], c[12 * 8], gathered[12 * 4];
} matrices;

static int gemm_runs(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_gemm_desc desc = gemm();
    imbrex_plan *ag, *rs;
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &ag));
    RANK_OK(imbrex_plan_gemm_rs(group, &desc, &rs));
    matrices x = { .a = { 1 }, .b = { 1 } };
    const imbrex_args good = { .a = x.a, .b = x.b, .bias = x.bias, .c = x.c };
    imbrex_args bad;
#define BAD(field, value) (bad = good, bad.field = value, &bad)
    INVALID("args.a is NULL", imbrex_plan_run, ag, BAD(a, NULL), NULL);
    INVALID("args.b is NULL", imbrex_plan_run, ag, BAD(b, NULL), NULL);
    INVALID("args.c is NULL", imbrex_plan_run, rs, BAD(c, NULL), NULL);
    INVALID("args.m is 13: want at most desc.m, 12, 0 for all", imbrex_plan_run, ag, BAD(m, 13),
            NULL);
    INVALID("args.m is -2", imbrex_plan_run, rs, BAD(m, -2), NULL);
    UNSUPPORTED("args.reserved", imbrex_plan_run, ag, BAD(reserved[5], 1), NULL);
    INVALID("args.gathered must be NULL for gemm_rs", imbrex_plan_run, rs,
            BAD(gathered, x.gathered), NULL);
    INVALID("args.c overlaps args.a", imbrex_plan_run, ag, BAD(c, x.a), NULL);
    INVALID("args.c overlaps args.b", imbrex_plan_run, rs, BAD(c, x.b + 31), NULL);
    INVALID("args.c overlaps args.bias", imbrex_plan_run, ag, BAD(bias, x.c + 95), NULL);
    INVALID("args.gathered overlaps args.c", imbrex_plan_run, ag, BAD(gathered, x.c + 95), NULL);
    INVALID("args.gathered overlaps args.a", imbrex_plan_run, ag, BAD(gathered, x.a), NULL);
    INVALID("is not 4-byte aligned", imbrex_plan_run, ag, BAD(a, (char *)x.a + 2), NULL);
    INVALID("args.b, ", imbrex_plan_run, rs, BAD(b, (char *)x.b + 1), NULL);
    INVALID("args.bias, ", imbrex_plan_run, ag, BAD(bias, (char *)x.b + 3), NULL);
    INVALID("args.c, ", imbrex_plan_run, rs, BAD(c, (char *)x.c + 2), NULL);
    INVALID("args.gathered, ", imbrex_plan_run, ag, BAD(gathered, (char *)x.gathered + 2), NULL);
    x.c[0] = -1;
    for (int i = 0; i < 3; i++) {
        RANK_OK(imbrex_plan_run(ag, BAD(gathered, x.gathered), NULL));
        RANK_OK(imbrex_plan_run(rs, &good, NULL));
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(imbrex_group_rank(group) || x.c[0] == (float)imbrex_group_size(group),
               "c[0] is %g, want %d", (double)x.c[0], imbrex_group_size(group));
    return 0;
}

static int coll_runs(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_coll_desc desc = { .m = 12, .n = 8, .dtype = IMBREX_F32 };
    imbrex_plan *ag, *rs;
    RANK_OK(imbrex_plan_all_gather(group, &desc, &ag));
    RANK_OK(imbrex_plan_reduce_scatter(group, &desc, &rs));
    matrices x = { .a = { 1 } };
    const imbrex_args good = { .a = x.a, .c = x.c };
    imbrex_args bad;
    INVALID("args.bias must be NULL for all_gather", imbrex_plan_run, ag, BAD(bias, x.bias), NULL);
    INVALID("args.b must be NULL for all_gather", imbrex_plan_run, ag, BAD(b, x.b), NULL);
    INVALID("args.b must be NULL for reduce_scatter", imbrex_plan_run, rs, BAD(b, x.b), NULL);
    INVALID("args.gamma must be NULL: norm.rms is 0", imbrex_plan_run, rs, BAD(gamma, x.bias),
            NULL);
    INVALID("args.residual must be NULL for all_gather", imbrex_plan_run, ag, BAD(residual, x.bias),
            NULL);
    INVALID("args.gathered must be NULL for all_gather", imbrex_plan_run, ag,
            BAD(gathered, x.gathered), NULL);
    INVALID("args.a is NULL", imbrex_plan_run, rs, BAD(a, NULL), NULL);
    INVALID("args.c is NULL", imbrex_plan_run, ag, BAD(c, NULL), NULL);
    INVALID("args.c overlaps args.a", imbrex_plan_run, ag, BAD(c, x.a + 1), NULL);
    INVALID("args.a, ", imbrex_plan_run, ag, BAD(a, (char *)x.a + 2), NULL);
    INVALID("is not 4-byte aligned", imbrex_plan_run, rs, BAD(c, (char *)x.c + 1), NULL);
    RANK_OK(imbrex_plan_run(ag, &good, NULL));
    RANK_OK(imbrex_plan_run(rs, &good, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(imbrex_group_rank(group) || x.c[0] == (float)imbrex_group_size(group),
               "c[0] is %g, want %d", (double)x.c[0], imbrex_group_size(group));
    return 0;
}

/* ---- memory and one-sided operations --------------------------------------------------------- */

static int one_sided(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int ranks = imbrex_group_size(group);
    char text[64], own[100] = "";
    void *p, *peer = NULL;
    INVALID("bytes is 0", imbrex_mem_alloc, group, 0, &p);
    INVALID("bytes is 18446744073709551615", imbrex_mem_alloc, group, SIZE_MAX, &p);
    RANK_OK(imbrex_mem_alloc(group, 100, &p));
    char *at = p;
    uint64_t *word = p, *odd = (void *)(at + 4), *last = (void *)(at + 96);
    snprintf(text, sizeof text, "rank is %d: the group has ranks 0 to %d", ranks, ranks - 1);

    INVALID("ptr, ", imbrex_mem_peer, group, own, 0, &peer);
    INVALID("is not symmetric memory", imbrex_mem_peer, group, at + 100, 0, &peer);
    INVALID("rank is -1", imbrex_mem_peer, group, at, -1, &peer);
    INVALID(text, imbrex_mem_peer, group, at, ranks, &peer);
    RANK_CHECK(peer == NULL, "the output was written");

    INVALID("dst and 101 bytes from there", imbrex_put, group, at, own, 101, 0, NULL);
    INVALID("of which 1 bytes are left", imbrex_put, group, at + 99, own, 2, 0, NULL);
    INVALID("dst and 18446744073709551615 bytes", imbrex_put, group, at, own, SIZE_MAX, 0, NULL);
    INVALID("dst, ", imbrex_put, group, own, own + 50, 1, 0, NULL);
    INVALID("src is NULL", imbrex_put, group, at, NULL, 1, 0, NULL);
    INVALID(text, imbrex_put, group, at, own, 1, ranks, NULL);
    int rank = imbrex_group_rank(group);
    RANK_OK(imbrex_mem_peer(group, at, ranks - 1, &peer));
    INVALID("overlaps src, ", imbrex_put, group, at, at, 1, rank, NULL);
    INVALID("overlaps src, ", imbrex_put, group, at, at + 49, 50, rank, NULL);
    INVALID("and 50 bytes, overlaps src, ", imbrex_put, group, at + 49, at, 50, rank, NULL);
    INVALID("overlaps src, ", imbrex_put, group, at, (char *)peer + 7, 50, ranks - 1, NULL);

    INVALID("src is NULL", imbrex_copy, group, own, NULL, 1, NULL);
    INVALID("dst is NULL", imbrex_copy, group, NULL, own, 1, NULL);
    INVALID("bytes is 9223372036854775808", imbrex_copy, group, own, at, (size_t)1 << 63, NULL);
    INVALID("overlaps src, ", imbrex_copy, group, own, own, 1, NULL);
    INVALID("overlaps src, ", imbrex_copy, group, own, own + 49, 50, NULL);
    INVALID("and 50 bytes, overlaps src, ", imbrex_copy, group, own + 49, own, 50, NULL);
    RANK_OK(imbrex_copy(group, own, own + 50, 50, NULL));
    RANK_OK(imbrex_copy(group, own + 50, own, 50, NULL));

    UNSUPPORTED("which is on this rank's node (", imbrex_exchange, group,
                &(imbrex_transfer){ .send = own, .bytes = 1 }, 1, NULL);
    RANK_OK(imbrex_exchange(group, NULL, 0, NULL));

    INVALID("is not 8-byte aligned", imbrex_signal_post, group, odd, 1, 0, NULL);
    INVALID("is not 8-byte aligned", imbrex_signal_wait, group, odd, 1, NULL);
    INVALID("signal and 8 bytes from there", imbrex_signal_post, group, last, 1, 0, NULL);
    INVALID("rank is -3", imbrex_signal_post, group, word, 1, -3, NULL);
    uint64_t not_symmetric = 0;
    INVALID("signal, ", imbrex_signal_wait, group, &not_symmetric, 1, NULL);

    RANK_OK(imbrex_copy(group, NULL, NULL, 0, NULL));
    if (rank == 0) /* one writer; a peer's `at` lies elsewhere */
        RANK_OK(imbrex_put(group, at, ranks > 1 ? at : own, 100, ranks - 1, NULL));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_OK(imbrex_group_status(group));
    RANK_CHECK(imbrex_error()[0] == '\0', "after success: '%s'", imbrex_error());
    return 0;
}

/* Of all shared memory of this process, a plan's and the group's own too, only what was asked for
 * is there for the caller. */
static int internals(imbrex_group *group, void *ctx)
{
    (void)ctx;
    const imbrex_gemm_desc desc = gemm();
    imbrex_plan *plan;
    void *asked, *peer;
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plan));
    RANK_OK(imbrex_mem_alloc(group, 100, &asked));
    char line[512];
    int mine = 0, others = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    RANK_CHECK(maps, "no /proc/self/maps");
    while (fgets(line, sizeof line, maps)) {
        void *at = NULL;
        if (!strstr(line, "memfd:imbrex") || sscanf(line, "%p", &at) != 1)
            continue;
        imbrex_status status = imbrex_mem_peer(group, at, 0, &peer);
        imbrex_status want = at == asked ? IMBREX_OK : IMBREX_INVALID;
        RANK_CHECK(status == want, "%p of %p: %s: '%s'", at, asked, imbrex_status_name(status),
                   imbrex_error());
        mine += at == asked;
        others += at != asked;
    }
    fclose(maps);
    RANK_CHECK(mine == 1 && others >= 2, "%d pieces of mine, %d others", mine, others);
    return 0;
}

static int silu_mul(imbrex_group *group, void *ctx)
{
    (void)ctx;
    float own[96] = { 0 };
    float *in = own, *out = own + 64; /* [8, 8] and [8, 4], which touch */
    RANK_OK(imbrex_silu_mul(group, IMBREX_F32, 8, 4, in, out, NULL));
    RANK_OK(imbrex_silu_mul(group, IMBREX_F32, 8, 4, own + 32, own, NULL));
    RANK_OK(imbrex_silu_mul(group, IMBREX_F32, 0, 4, in, in, NULL));
    INVALID("dtype is 4", imbrex_silu_mul, group, (imbrex_dtype)4, 1, 1, in, out, NULL);
    INVALID("rows is -1, cols is 1", imbrex_silu_mul, group, IMBREX_F32, -1, 1, in, out, NULL);
    INVALID("rows is 1, cols is -1", imbrex_silu_mul, group, IMBREX_F32, 1, -1, in, out, NULL);
    UNSUPPORTED("rows x cols is 4294967296 x 4294967296: want at most 2^56", imbrex_silu_mul, group,
                IMBREX_BF16, (int64_t)1 << 32, (int64_t)1 << 32, in, out, NULL);
    UNSUPPORTED("rows x cols is 0 x 9223372036854775807", imbrex_silu_mul, group, IMBREX_F16, 0,
                INT64_MAX, in, out, NULL);
    INVALID("in is NULL", imbrex_silu_mul, group, IMBREX_F32, 1, 1, NULL, out, NULL);
    INVALID("out is NULL", imbrex_silu_mul, group, IMBREX_F32, 1, 1, in, NULL, NULL);
    INVALID("in, ", imbrex_silu_mul, group, IMBREX_F32, 1, 1, (char *)in + 2, out, NULL);
    INVALID("is not 2-byte aligned", imbrex_silu_mul, group, IMBREX_BF16, 1, 1, in, (char *)out + 1,
            NULL);
    INVALID("and 128 bytes, overlaps in, ", imbrex_silu_mul, group, IMBREX_F32, 8, 4, in, out - 1,
            NULL);
    INVALID("overlaps in, ", imbrex_silu_mul, group, IMBREX_F32, 8, 4, own + 31, own, NULL);
    INVALID("overlaps in, ", imbrex_silu_mul, group, IMBREX_F32, 8, 4, in, in, NULL);
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

/* What imbrex_silu_mul cannot get wrong. */
static int activate(imbrex_group *group, void *ctx)
{
    (void)ctx;
    const imbrex_activation desc = { .kind = IMBREX_GELU, .dtype = IMBREX_F32 };
    imbrex_activation bad = desc;
    float own[96] = { 0 };
    float *in = own, *out = own + 32; /* [8, 4] and [8, 4], which touch; a gate would overlap */
    int32_t rows[2] = { 8, 8 };
    RANK_OK(imbrex_activate(group, &desc, 8, 4, in, out, NULL, NULL, NULL));
    RANK_OK(imbrex_activate(group, &desc, 8, 4, in, out, NULL, rows, NULL));
    bad.gated = 1;
    INVALID("and 128 bytes, overlaps in, ", imbrex_activate, group, &bad, 8, 4, in, out, NULL, NULL,
            NULL);
    bad.gated = 2;
    INVALID("desc.gated is 2", imbrex_activate, group, &bad, 8, 4, in, out, NULL, NULL, NULL);
    bad = desc;
    bad.kind = (imbrex_activation_kind)5;
    INVALID("desc.kind is 5: want IMBREX_SILU,", imbrex_activate, group, &bad, 8, 4, in, out, NULL,
            NULL, NULL);
    bad.kind = (imbrex_activation_kind)-1;
    INVALID("desc.kind is -1", imbrex_activate, group, &bad, 8, 4, in, out, NULL, NULL, NULL);
    bad = desc;
    bad.dtype = (imbrex_dtype)4;
    INVALID("dtype is 4", imbrex_activate, group, &bad, 8, 4, in, out, NULL, NULL, NULL);
    bad = desc;
    bad.reserved[3] = 1;
    UNSUPPORTED("desc.reserved is not 0", imbrex_activate, group, &bad, 8, 4, in, out, NULL, NULL,
                NULL);
    bad = desc;
    bad.quant = (imbrex_scaling)4;
    INVALID("desc.quant is 4", imbrex_activate, group, &bad, 8, 4, in, out, own, NULL, NULL);
    bad.quant = IMBREX_PER_TENSOR;
    bad.power_of_two = 1;
    INVALID("desc.quant computes no scales", imbrex_activate, group, &bad, 8, 4, in, out, own, NULL,
            NULL);
    bad.quant = IMBREX_PER_ROW;
    INVALID("scales is NULL: want 8", imbrex_activate, group, &bad, 8, 4, in, out, NULL, NULL,
            NULL);
    INVALID("scales, ", imbrex_activate, group, &bad, 8, 4, in, out, out + 7, NULL, NULL);
    INVALID("overlaps in", imbrex_activate, group, &bad, 8, 4, in, out, in + 25, NULL, NULL);
    INVALID("rows_here, ", imbrex_activate, group, &bad, 8, 4, in, out, out + 8,
            (int32_t *)(void *)(out + 15), NULL);
    RANK_OK(imbrex_activate(group, &bad, 8, 4, in, out, out + 8, NULL, NULL));
    INVALID("desc is NULL", imbrex_activate, group, NULL, 8, 4, in, out, NULL, NULL, NULL);
    INVALID("scales is ", imbrex_activate, group, &desc, 8, 4, in, out, own, NULL, NULL);
    INVALID("rows is -1", imbrex_activate, group, &desc, -1, 4, in, out, NULL, NULL, NULL);
    INVALID("is not 4-byte aligned", imbrex_activate, group, &desc, 8, 4, in, out, NULL,
            (int32_t *)((char *)rows + 2), NULL);
    INVALID("rows_here, ", imbrex_activate, group, &desc, 8, 4, in, out, NULL,
            (int32_t *)(void *)(out + 31), NULL);
    INVALID("in is NULL", imbrex_activate, group, &desc, 1, 1, NULL, out, NULL, NULL, NULL);
    INVALID("overlaps in, ", imbrex_activate, group, &desc, 8, 4, in, in, NULL, NULL, NULL);
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

/* ---- NULL ------------------------------------------------------------------------------------ */

static int nulls(imbrex_group *group, void *ctx)
{
    (void)ctx;
    const char *no_group = "group is NULL: did imbrex_group_create fail?";
    const imbrex_gemm_desc desc = gemm();
    const imbrex_coll_desc coll = { .m = 12, .n = 8 };
    imbrex_plan *plan = NULL;
    INVALID(no_group, imbrex_plan_ag_gemm, NULL, &desc, &plan);
    INVALID(no_group, imbrex_plan_gemm_rs, NULL, &desc, &plan);
    INVALID(no_group, imbrex_plan_all_gather, NULL, &coll, &plan);
    INVALID(no_group, imbrex_plan_reduce_scatter, NULL, &coll, &plan);
    INVALID("desc is NULL", imbrex_plan_ag_gemm, group, NULL, &plan);
    INVALID("desc is NULL", imbrex_plan_all_gather, group, NULL, &plan);
    INVALID("plan is NULL", imbrex_plan_gemm_rs, group, &desc, NULL);
    INVALID("plan is NULL", imbrex_plan_reduce_scatter, group, &coll, NULL);
    RANK_CHECK(plan == NULL, "the output was written");
    INVALID("plan is NULL: did the call that makes it fail?", imbrex_plan_run, NULL,
            &(imbrex_args){ 0 }, NULL);
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plan));
    INVALID("args is NULL", imbrex_plan_run, plan, NULL, NULL);
    char text[40];
    RANK_CHECK(imbrex_plan_describe(NULL, text, sizeof text) == 7 && !strcmp(text, "no plan"),
               "'%s'", text);
    RANK_CHECK(imbrex_plan_facts(NULL, text, sizeof text) == 2 && !strcmp(text, "{}"), "'%s'",
               text);
    RANK_CHECK(imbrex_group_rank(NULL) == -1 && imbrex_group_size(NULL) == 0 &&
                   imbrex_group_node(NULL, 0) == -1 && !*imbrex_group_device(NULL),
               "no group has ranks, or a device");

    imbrex_stream stream = NULL;
    void *p = NULL;
    uint64_t word = 0;
    INVALID(no_group, imbrex_stream_create, NULL, &stream);
    INVALID("stream is NULL", imbrex_stream_create, group, NULL);
    INVALID(no_group, imbrex_stream_sync, NULL, NULL);
    INVALID(no_group, imbrex_mem_alloc, NULL, 8, &p);
    INVALID("ptr is NULL", imbrex_mem_alloc, group, 8, NULL);
    INVALID(no_group, imbrex_mem_peer, NULL, &word, 0, &p);
    INVALID("peer is NULL", imbrex_mem_peer, group, &word, 0, NULL);
    INVALID(no_group, imbrex_copy, NULL, text, text + 8, 1, NULL);
    INVALID(no_group, imbrex_put, NULL, &word, text, 1, 0, NULL);
    INVALID(no_group, imbrex_signal_post, NULL, &word, 1, 0, NULL);
    INVALID(no_group, imbrex_signal_wait, NULL, &word, 1, NULL);
    INVALID("signal, ", imbrex_signal_wait, group, NULL, 1, NULL);
    INVALID(no_group, imbrex_barrier, NULL, NULL);
    INVALID(no_group, imbrex_exchange, NULL, NULL, 0, NULL);
    INVALID(no_group, imbrex_activate, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL);
    INVALID(no_group, imbrex_silu_mul, NULL, IMBREX_F32, 0, 0, NULL, NULL, NULL);
    INVALID(no_group, imbrex_group_status, NULL);
    INVALID(no_group, imbrex_trace, NULL, 1);
    RANK_CHECK(imbrex_trace_spans(NULL, NULL, 0) == 0, "spans of no group");
    RANK_CHECK(stream == NULL && p == NULL, "the output was written");

    imbrex_group_abort(NULL);
    imbrex_stream_destroy(NULL, NULL);
    INVALID("ptr is NULL", imbrex_mem_alloc, group, 8, NULL);
    imbrex_stream_destroy(group, (imbrex_stream)&word); /* nobody's */
    RANK_CHECK(strstr(imbrex_error(), "ptr is NULL"), "'%s' is said after a destroy",
               imbrex_error());
    imbrex_mem_free(NULL, NULL);
    imbrex_plan_destroy(NULL);
    imbrex_group_destroy(NULL);
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static int bare_nulls(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)rank, (void)ctx;
    imbrex_group *group = NULL;
    const imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu" };
    INVALID("desc is NULL", imbrex_group_create, NULL, &group);
    INVALID("group is NULL: want where to put it", imbrex_group_create, &desc, NULL);
    RANK_CHECK(group == NULL, "the output was written");
    return 0;
}

/* ---- what nobody has initialised ------------------------------------------------------------- */

/* On all ranks, then on the last one alone: the others hear of it. */
static int not_initialised(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int last = imbrex_group_size(group) - 1;
    imbrex_gemm_desc product = gemm();
    imbrex_coll_desc coll = { .m = 12, .n = 8 };
    imbrex_plan *plan = NULL;
    for (int alone = 0; alone < 2; alone++) {
        bool bad = !alone || imbrex_group_rank(group) == last;
        product = gemm(), coll = (imbrex_coll_desc){ .m = 12, .n = 8 };
        if (bad) {
            memset(&product, 0xff, sizeof product);
            memset(&coll, 0xff, sizeof coll);
        }
        const imbrex_status statuses[] = {
            imbrex_plan_ag_gemm(group, &product, &plan),
            imbrex_plan_gemm_rs(group, &product, &plan),
            imbrex_plan_all_gather(group, &coll, &plan),
            imbrex_plan_reduce_scatter(group, &coll, &plan),
        };
        for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
            RANK_CHECK(statuses[i] == (bad ? IMBREX_INVALID : IMBREX_PEER), "call %zu: %s: %s", i,
                       imbrex_status_name(statuses[i]), imbrex_error());
    }
    imbrex_kernel_desc desc = { .name = "none", .source = "int x;", .gemm = &product };
    imbrex_kernel *kernel = NULL;
    memset(&product, 0xff, sizeof product);
    INVALID("desc.m is -1", imbrex_tune, group, "gemm_rs", &product, sizeof product, NULL, NULL);
    INVALID("desc.gemm", imbrex_kernel_create, group, &desc, &kernel);
    memset(&desc, 0xff, sizeof desc);
    UNSUPPORTED("desc.reserved is not 0", imbrex_kernel_create, group, &desc, &kernel);
    RANK_CHECK(!plan && !kernel, "an output was written");
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void of_what_nobody_initialised(void **state)
{
    (void)state;
    on_all(not_initialised);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void of_plans(void **state)
{
    (void)state;
    on_all(plans);
}

static void of_gemm_runs(void **state)
{
    (void)state;
    on_all(gemm_runs);
}

static void of_collective_runs(void **state)
{
    (void)state;
    on_all(coll_runs);
}

static void of_memory(void **state)
{
    (void)state;
    on_all(one_sided);
    on_all(internals);
}

static void of_silu_mul(void **state)
{
    (void)state;
    on_all(silu_mul);
    on_all(activate);
}

static void of_null(void **state)
{
    (void)state;
    on_all(nulls);
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run_bare(&desc, bare_nulls, NULL), 0);
}

/* ---- tuning ---------------------------------------------------------------------------------- */

/* Of three ranks, and of one, which has nothing to tune. */
static int tuning(imbrex_group *group, void *ctx)
{
    const imbrex_gemm_desc good = { .m = 96, .n = 16, .k = 8 };
    imbrex_gemm_desc negative = good, empty = good, named = good, reserved = good;
    (void)ctx;
    if (imbrex_group_size(group) == 1) {
        UNSUPPORTED("one rank", imbrex_tune, group, "ag_gemm", &good, sizeof good, NULL, NULL);
        return 0;
    }
    negative.m = -1;
    empty.k = 0;
    named.algorithm = "copy";
    reserved.reserved[0] = 1;
    INVALID("op is \"matmul\": there are ag_gemm, ", imbrex_tune, group, "matmul", &good,
            sizeof good, NULL, NULL);
    INVALID("desc.m is -1", imbrex_tune, group, "ag_gemm", &negative, sizeof negative, NULL, NULL);
    INVALID("desc.k is 0: there is nothing to time", imbrex_tune, group, "ag_gemm", &empty,
            sizeof empty, NULL, NULL);
    INVALID("all_gather's desc has ", imbrex_tune, group, "all_gather", &good, sizeof good, NULL,
            NULL);
    INVALID("desc.algorithm is \"copy\"", imbrex_tune, group, "ag_gemm", &named, sizeof named, NULL,
            NULL);
    UNSUPPORTED("desc.reserved", imbrex_tune, group, "ag_gemm", &reserved, sizeof reserved, NULL,
                NULL);
    INVALID("op is NULL", imbrex_tune, group, NULL, &good, sizeof good, NULL, NULL);
    INVALID("desc is NULL", imbrex_tune, group, "ag_gemm", NULL, sizeof good, NULL, NULL);
    EXPECT(IMBREX_PEER, "op differs between ranks: ag_gemm on rank 0, gemm_rs", imbrex_tune, group,
           imbrex_group_rank(group) == 1 ? "gemm_rs" : "ag_gemm", &good, sizeof good, NULL, NULL);
    return 0;
}

static void of_tuning(void **state)
{
    (void)state;
    on_all(tuning);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_what_nobody_initialised),
        cmocka_unit_test(of_plans),
        cmocka_unit_test(of_gemm_runs),
        cmocka_unit_test(of_collective_runs),
        cmocka_unit_test(of_memory),
        cmocka_unit_test(of_silu_mul),
        cmocka_unit_test(of_null),
        cmocka_unit_test(of_tuning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
