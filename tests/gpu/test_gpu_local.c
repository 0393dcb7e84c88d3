/* test_gpu_local.c - what a rank does alone, on a real GPU, against float64: activations, norms,
 * quantised results, a router's choice. */
#include "activate_cases.h"
#include "gate_cases.h"
#include "gpu.h"
#include "norm_cases.h"

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    rank_main *cases = ctx;
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = gpu_of(rank, false) };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = (*cases)(group, NULL);
    imbrex_group_destroy(group);
    return failed;
}

static int one_rank(void *ctx)
{
    ranks_desc desc = { .size = 1 };
    return ranks_run_bare(&desc, on_gpu, ctx);
}

static void run(const char *name, rank_main cases)
{
    if (gpu_wanted("%s", name))
        gpu_report(gpu_isolated(one_rank, &cases, 120));
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    run("activations", activate_cases);
    run("norms", norm_cases);
    run("gates", gate_cases);
    return gpu_end();
}
