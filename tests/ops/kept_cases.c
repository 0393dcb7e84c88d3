/* kept_cases.c - as the header says: each run fills memory of the device, and reads it back. */
#include "kept_cases.h"

#include <stdbool.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"

enum { M = 11, N = 70, K = 16 };

/* What lies in memory of the device; what a run reads comes first. */
typedef struct operands {
    _Alignas(64) float a[M * N]; /* of a product [M, K] */
    _Alignas(64) float b[N * K];
    _Alignas(64) float h[M * N];
    _Alignas(64) float normed[M * N];
    _Alignas(64) float gamma[N];
    _Alignas(64) float scale[M];
    _Alignas(64) float c[M * N]; /* or E4M3 */
} operands;

typedef struct kept {
    imbrex_group *group;
    const char *op, *algorithm;
    bool product;
    imbrex_norm norm;
    operands *device;
} kept;

static int run(const kept *k, imbrex_plan *plan, bool wanted, operands *have)
{
    operands *x = k->device;
    int rank = imbrex_group_rank(k->group), quant = k->norm.quant;
    memset(have, 0, sizeof *have);
    input_fill(IMBREX_F32, rank, 0, have->a, M * N);
    input_fill(IMBREX_F32, 100 + rank, 0, have->b, (int64_t)N * K);
    input_fill(IMBREX_F32, 200, 0, have->gamma, N);
    const imbrex_args args = { .a = x->a,
                               .b = k->product ? x->b : NULL,
                               .c = x->c,
                               .gamma = k->norm.rms ? x->gamma : NULL,
                               .scale_c = quant ? x->scale : NULL,
                               .h = wanted ? x->h : NULL,
                               .normed = wanted && quant ? x->normed : NULL };
    RANK_OK(imbrex_copy(k->group, x, have, sizeof *x, NULL));
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_copy(k->group, have, x, sizeof *x, NULL));
    RANK_OK(imbrex_stream_sync(k->group, NULL));
    return 0;
}

static int check(const kept *k)
{
    const imbrex_coll_desc sum = {
        .m = M, .n = N, .dtype = IMBREX_F32, .algorithm = k->algorithm, .norm = k->norm
    };
    const imbrex_gemm_desc product = {
        .m = M, .n = N, .k = K, .dtype = IMBREX_F32, .algorithm = k->algorithm, .norm = k->norm
    };
    operands have[2];
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_create(k->group, k->op, k->product ? (const void *)&product : &sum,
                               k->product ? sizeof product : sizeof sum, &plan));
    if (run(k, plan, false, &have[0]) || run(k, plan, true, &have[1]))
        return 1;
    imbrex_plan_destroy(plan);
    RANK_CHECK(!memcmp(have[0].c, have[1].c, sizeof have->c) &&
                   !memcmp(have[0].scale, have[1].scale, sizeof have->scale),
               "%s by %s: other bits without h and normed", k->op,
               k->algorithm ? k->algorithm : "choice");
    int rank = imbrex_group_rank(k->group), ranks = imbrex_group_size(k->group);
    bool all = !strcmp(k->op, "all_reduce") || !strcmp(k->op, "gemm_ar");
    RANK_CHECK((!all && M * (rank + 1) / ranks == M * rank / ranks) ||
                   (have[1].h[N - 1] != 0 && (!k->norm.quant || have[1].scale[0] > 0)),
               "%s by %s: nothing is written", k->op, k->algorithm ? k->algorithm : "choice");
    return 0;
}

int kept_cases(imbrex_group *group, void *ctx)
{
    static const char *const ops[] = { "all_reduce", "gemm_ar", "reduce_scatter", "gemm_rs" };
    static const char *const algorithms[] = { NULL, "sequential", "copy", "store", "ll", "ll2" };
    void *device;
    (void)ctx;
    RANK_OK(imbrex_mem_alloc(group, sizeof(operands), &device));
    for (int i = 0; i < 4; i++) {
        /* Those that every rank owns rows of have fewer. */
        for (int j = 0; j < (i < 2 ? 6 : 3); j++) {
            kept k = { group, ops[i], algorithms[j], !strncmp(ops[i], "gemm", 4), { 0 }, device };
            for (int rms = 0; rms < 2; rms++) { /* quantised, or normed alone */
                k.norm = (imbrex_norm){ .rms = rms, .quant = rms ? 0 : IMBREX_PER_ROW };
                if (check(&k))
                    return 1;
            }
        }
    }
    imbrex_mem_free(group, device);
    return 0;
}
