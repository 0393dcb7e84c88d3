/* test_gpu_gate.c - imbrex_topk_gate on a real GPU, against float64. */
#include "gate_cases.h"
#include "gpu.h"

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = gpu_of(rank, false) };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = gate_cases(group, ctx);
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
    if (gpu_wanted("gates"))
        gpu_report(gpu_isolated(one_rank, NULL, 120));
    return gpu_end();
}
