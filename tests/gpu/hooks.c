/* hooks.c - the cases of hooks.h: inputs are small whole numbers, so that sums are exact. */
#include "hooks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hooks_kernel.h"

const imbrexd_entry *const hooks_entry = IMBREXD_ENTRY(hooked);

const char *hooks_file(void)
{
    static _Thread_local char path[1024];
    const char *source = getenv("IMBREX_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/gpu/hooks_kernel.h", source ? source : ".");
    return path;
}

typedef struct matrices {
    imbrex_group *group;
    int rank, ranks, rows;
    size_t m, n, k, element, chunks, slot_bytes;
    char *a, *own, *b, *gathered, *slots, *c, *want;
    void *counters, *to[64];
} matrices;

/* -2 ... 2, whose bits are known in every dtype. */
static void put_value(imbrex_dtype dtype, char *at, size_t i, unsigned value)
{
    static const float floats[] = { -2, -1, 0, 1, 2 };
    static const uint16_t f16[] = { 0xc000, 0xbc00, 0, 0x3c00, 0x4000 };
    uint32_t bits;
    memcpy(&bits, &floats[value % 5], sizeof bits);
    uint16_t half = dtype == IMBREX_F16 ? f16[value % 5] : (uint16_t)(bits >> 16);
    if (dtype == IMBREX_F32)
        memcpy(at + 4 * i, &bits, 4);
    else
        memcpy(at + 2 * i, &half, 2);
}

static int fill(matrices *x, imbrex_dtype dtype, unsigned round)
{
    char *host = malloc(x->element * (x->m + x->n) * x->k);
    size_t a = x->m * x->k, b = x->n * x->k;
    for (size_t i = 0; i < a; i++)
        put_value(dtype, host, i, (unsigned)(i * 7 + i / x->k * 3 + round));
    for (size_t i = 0; i < b; i++)
        put_value(dtype, host, a + i, (unsigned)(i * 3 + i / 11 + (size_t)x->rank + round));
    size_t row = (size_t)x->rank * x->m / (size_t)x->ranks * x->k * x->element;
    RANK_OK(imbrex_copy(x->group, x->a, host, a * x->element, NULL));
    if (x->rows)
        RANK_OK(
            imbrex_copy(x->group, x->own, host + row, (size_t)x->rows * x->k * x->element, NULL));
    RANK_OK(imbrex_copy(x->group, x->b, host + a * x->element, b * x->element, NULL));
    RANK_OK(imbrex_stream_sync(x->group, NULL));
    free(host);
    return 0;
}

static int take(matrices *x, size_t bytes, void *at)
{
    RANK_OK(imbrex_mem_alloc(x->group, bytes ? bytes : 1, at));
    return 0;
}

static int take_all(matrices *x)
{
    size_t rows = (x->m + (size_t)x->ranks - 1) / (size_t)x->ranks;
    x->slot_bytes = (rows * x->n * x->element + 255) / 256 * 256;
    int failed =
        take(x, x->m * x->k * x->element, &x->a) || take(x, rows * x->k * x->element, &x->own) ||
        take(x, x->n * x->k * x->element, &x->b) ||
        take(x, x->m * x->k * x->element, &x->gathered) ||
        take(x, x->slot_bytes * (size_t)x->ranks, &x->slots) || take(x, x->slot_bytes, &x->c) ||
        take(x, x->slot_bytes, &x->want) || take(x, 4 * (size_t)x->ranks * x->chunks, &x->counters);
    for (int r = 0; r < x->ranks && !failed; r++)
        RANK_OK(
            imbrex_mem_peer(x->group, x->slots + (size_t)x->rank * x->slot_bytes, r, &x->to[r]));
    return failed;
}

static imbrex_status meet(imbrex_group *group)
{
    imbrex_status status = imbrex_barrier(group, NULL);
    return status == IMBREX_OK ? imbrex_stream_sync(group, NULL) : status;
}

/* Until the group has failed, with these words. */
static int fails(imbrex_group *group, const char *says)
{
    imbrex_status status = imbrex_stream_sync(group, NULL);
    for (int i = 0; i < 10000 && status == IMBREX_OK; i++) {
        usleep(1000);
        status = imbrex_group_status(group);
    }
    RANK_CHECK(status != IMBREX_OK && strstr(imbrex_error(), says), "%s: %s; want \"%s\"",
               imbrex_status_name(status), imbrex_error(), says);
    return 0;
}

static int compare(const matrices *x, int round)
{
    size_t bytes = (size_t)x->rows * x->n * x->element;
    char *have = malloc(2 * bytes + 1), *want = have + bytes;
    if (bytes) {
        RANK_OK(imbrex_copy(x->group, have, x->c, bytes, NULL));
        RANK_OK(imbrex_copy(x->group, want, x->want, bytes, NULL));
    }
    RANK_OK(imbrex_stream_sync(x->group, NULL));
    for (size_t i = 0; i < bytes; i++)
        RANK_CHECK(have[i] == want[i],
                   "run %d of %zu x %zu x %zu: byte %zu of c is %02x, the library's is %02x", round,
                   x->m, x->n, x->k, i, have[i] & 0xff, want[i] & 0xff);
    free(have);
    return 0;
}

int hooks_run(imbrex_group *group, const hooks_case *c)
{
    const imbrex_gemm_desc *d = &c->gemm;
    matrices x = { .group = group,
                   .rank = imbrex_group_rank(group),
                   .ranks = imbrex_group_size(group),
                   .m = (size_t)d->m,
                   .n = (size_t)d->n,
                   .k = (size_t)d->k,
                   .element = d->dtype == IMBREX_F32 ? 4 : 2 };
    x.rows = (int)((x.rank + 1) * d->m / x.ranks - x.rank * d->m / x.ranks);
    x.chunks = (size_t)(d->m / x.ranks / d->chunk_rows + 1);
    if (take_all(&x))
        return 1;
    imbrex_kernel_desc desc = { .name = "hooked",
                                .memory = x.gathered,
                                .signals = (2 + 2 * (int)x.chunks) * x.ranks,
                                .gemm = d };
    if (c->text)
        desc.file = hooks_file(), desc.options = c->options;
    else
        desc.entry = hooks_entry, desc.source = "/* the fake compiler wants a text */";
    imbrex_kernel *kernel;
    imbrex_plan *plan;
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    RANK_OK(imbrex_plan_gemm_rs(group, d, &plan));
    hooks_args args = { x.own,      x.gathered,   x.slots,   x.c,
                        x.counters, x.slot_bytes, x.element, c->backwards };
    imbrex_gemm_operands operands = {
        .a = x.gathered, .own = x.own, .b = x.b, .c = x.to, .first = (x.rank + 1) % x.ranks
    };
    imbrex_args plan_args = { .a = x.a, .b = x.b, .c = x.want };
    for (int round = 0; round < c->runs; round++) {
        operands.m = plan_args.m = round % 2 ? d->m - round : d->m;
        x.m = (size_t)operands.m;
        x.rows = (int)((x.rank + 1) * operands.m / x.ranks - x.rank * operands.m / x.ranks);
        if ((!c->says || round == 0) && fill(&x, d->dtype, (unsigned)round))
            return 1;
        if (c->says && round == 0 && meet(group) != IMBREX_OK) /* of others, which are ahead */
            return fails(group, c->says);
        imbrex_status status;
        if (c->foreign) {
            status = imbrex_launch_gemm(kernel, &operands, &args, sizeof args, c->foreign);
            RANK_CHECK(status == IMBREX_INVALID, "launch %d on a foreign stream: %s", round,
                       imbrex_status_name(status));
        }
        status = imbrex_launch_gemm(kernel, &operands, &args, sizeof args, NULL);
        if (c->says) {
            if (status != IMBREX_OK || round == c->runs - 1)
                return fails(group, c->says);
            continue;
        }
        RANK_OK(status);
        RANK_OK(imbrex_plan_run(plan, &plan_args, NULL));
        if (compare(&x, round))
            return 1;
    }
    imbrex_kernel_destroy(kernel);
    imbrex_plan_destroy(plan);
    return 0;
}
