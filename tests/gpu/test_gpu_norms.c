/* test_gpu_norms.c - sums over ranks with a residual and RMSNorm on real GPUs: long rows by every
 * algorithm against the contract's steps, and rows alone, of odd values too, against rows among
 * others. */
#include "alone_cases.h"
#include "gpu.h"
#include "op_cases.h"

enum { LIMIT_S = 240, MEETING_S = 60, TIMEOUT_MS = 60000 }; /* kernels are compiled on the way */

typedef struct show {
    int size;
    bool spread;
} show;

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const show *s = ctx;
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap,
                               .device = gpu_of(rank, s->spread),
                               .timeout_ms = TIMEOUT_MS };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = alone_cases(group, NULL) || op_cases_normed(group, group);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int all_ranks(void *ctx)
{
    show *s = ctx;
    ranks_desc desc = { .size = s->size, .meeting_s = MEETING_S };
    return ranks_run_bare(&desc, on_gpu, s);
}

static void run(int size, bool spread)
{
    show s = { size, spread };
    if (gpu_wanted("normed sums of %d ranks%s", size, spread ? ", a GPU each" : ""))
        gpu_report(gpu_isolated(all_ranks, &s, LIMIT_S));
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    for (int size = gpu_count() > 1 ? 2 : 1; size <= gpu_count() && size <= 8; size++)
        run(size, true);
    for (int size = 1; size <= 4; size++)
        run(size, false);
    return gpu_end();
}
