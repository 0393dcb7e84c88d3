/* test_gpu_dispatch.c - dispatch and combine on real GPUs, bit for bit: on one, and on several
 * where there are as many.  `sanitized`: a few cases on one. */
#include <string.h>

#include "dispatch_cases.h"
#include "gpu.h"

enum { STEP_FAKE = 7, STEP_SANITIZED = 23 }; /* of all cases one is taken */

static bool sanitized;

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group;
    int step = sanitized ? STEP_SANITIZED : gpu_is_fake() ? STEP_FAKE : 1;
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
    sanitized = argc > 1 && strcmp(argv[1], "sanitized") == 0;
    gpu_begin(sanitized ? 1 : argc, argv);
    for (int ranks = 1; ranks <= gpu_count() && ranks <= (sanitized ? 1 : 4); ranks++)
        if (gpu_wanted("exchange on %d", ranks))
            gpu_report(gpu_isolated(on_ranks, &ranks, 120));
    return gpu_end();
}
