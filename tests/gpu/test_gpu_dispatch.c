/* test_gpu_dispatch.c - dispatch and combine on real GPUs, bit for bit: on one, and on several
 * where there are as many. */
#include "dispatch_cases.h"
#include "gpu.h"

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group;
    int step = gpu_is_fake() ? 7 : 1;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = gpu_of(rank, true) };
    (void)ctx;
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = exchange_on_device(group, &step);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int on_ranks(void *ctx)
{
    ranks_desc desc = { .size = *(int *)ctx };
    return ranks_run_bare(&desc, on_gpu, NULL);
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    for (int ranks = 1; ranks <= gpu_count() && ranks <= 4; ranks++)
        if (gpu_wanted("exchange on %d", ranks))
            gpu_report(gpu_isolated(on_ranks, &ranks, 120));
    return gpu_end();
}
