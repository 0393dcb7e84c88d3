/* test_gpu_scaled.c - products of 8-bit numbers on real GPUs, against float64. */
#include "gpu.h"
#include "scaled_cases.h"

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

static int ranks(void *size)
{
    ranks_desc desc = { .size = *(int *)size };
    return ranks_run_bare(&desc, on_gpu, NULL);
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    for (int size = 1; size <= 2; size++)
        if (gpu_wanted("scaled products of %d ranks", size))
            gpu_report(gpu_isolated(ranks, &size, 300));
    return gpu_end();
}
