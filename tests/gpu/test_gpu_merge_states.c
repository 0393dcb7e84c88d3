/* test_gpu_merge_states.c - merge_states on real GPUs, against float64. */
#include "gpu.h"
#include "merge_cases.h"

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = gpu_of(rank, true) };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = merge_cases(group, ctx);
    imbrex_group_destroy(group);
    return failed;
}

static int ranks_of(void *ctx)
{
    ranks_desc desc = { .size = *(const int *)ctx, .processes = true };
    return ranks_run_bare(&desc, on_gpu, NULL);
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    for (int ranks = 1; ranks <= 4; ranks++) {
        if (gpu_wanted("states of %d ranks", ranks))
            gpu_report(gpu_isolated(ranks_of, &ranks, 240));
    }
    return gpu_end();
}
