/* test_gpu_norm.c - imbrex_rms_norm on a real GPU, against float64 and bit by bit. */
#include "gpu.h"
#include "norm_cases.h"

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = gpu_of(rank, false) };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = norm_cases(group, ctx);
    imbrex_group_destroy(group);
    return failed;
}

static int one_rank(void *ctx)
{
    ranks_desc desc = { .size = 1 };
    return ranks_run_bare(&desc, on_gpu, ctx);
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    if (gpu_wanted("norms"))
        gpu_report(gpu_isolated(one_rank, NULL, 120));
    return gpu_end();
}
