/* test_gpu_moe.c - ag_moe and moe_rs on real GPUs, bit for bit: on one, and on several where there
 * are as many. */
#include "gpu.h"
#include "moe_cases.h"

typedef struct ranks_of {
    int ranks, wide;
} ranks_of;

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group;
    moe_walk walk = { .step = gpu_is_fake() ? 7 : 1 };
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = gpu_of(rank, true) };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = ((const ranks_of *)ctx)->wide ? moe_cases_wide(group, &walk)
                                               : moe_cases_device(group, &walk);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int on_ranks(void *ctx)
{
    ranks_desc desc = { .size = ((const ranks_of *)ctx)->ranks };
    return ranks_run_bare(&desc, on_gpu, ctx);
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    for (int i = 0; i < 2 * gpu_count() && i < 2 * 4; i++) {
        ranks_of of = { .ranks = i / 2 + 1, .wide = i % 2 };
        if (gpu_wanted(of.wide ? "wide tiles on %d" : "experts on %d", of.ranks))
            gpu_report(gpu_isolated(on_ranks, &of, 120));
    }
    return gpu_end();
}
