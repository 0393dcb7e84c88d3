/* test_gpu_scaled.c - products of 8-bit numbers on real GPUs, against float64. */
#include "gpu.h"
#include "scaled_cases.h"

typedef struct scaled_ranks {
    int size;
    scaled_where where;
} scaled_ranks;

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = gpu_of(rank, true) };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = scaled_cases(group, ctx);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int ranks(void *untyped)
{
    scaled_ranks *of = untyped;
    ranks_desc desc = { .size = of->size };
    return ranks_run_bare(&desc, on_gpu, &of->where);
}

/* An operator at a time, since every kernel is compiled; to a sanitizer of one rank or of two, in
 * turns: the other is threads' to show. */
int main(int argc, char **argv)
{
    static const char *const ops[] = { "gemm", "ag_gemm", "gemm_rs", "gemm_ar" };
    gpu_begin(argc, argv);
    for (int i = 0; i < 8; i++) {
        if (SANITIZED && i % 2 != i / 2 % 2)
            continue;
        scaled_ranks of = { i % 2 + 1,
                            { .op = ops[i / 2],
                              .gpu = !gpu_is_fake(),
                              .hopper = !gpu_is_fake() && gpu_arch() == 90 } };
        if (gpu_wanted("scaled %s of %d ranks", of.where.op, of.size))
            gpu_report(gpu_isolated(ranks, &of, 300));
    }
    return gpu_end();
}
