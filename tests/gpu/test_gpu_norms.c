/* test_gpu_norms.c - sums over ranks with a residual and RMSNorm on real GPUs: long rows by every
 * algorithm against the contract's steps, and rows alone, of odd values too, against rows among
 * others. */
#include "alone_cases.h"
#include "gpu.h"
#include "kept_cases.h"
#include "op_cases.h"

enum { LIMIT_S = 240, MEETING_S = 60, TIMEOUT_MS = 60000 }; /* kernels are compiled on the way */

typedef struct show {
    rank_main cases;
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
    int failed = s->cases(group, group);
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

static void run(const char *name, rank_main cases, int size, bool spread)
{
    show s = { cases, size, spread };
    if (gpu_wanted("%s, %d ranks%s", name, size, spread ? ", a GPU each" : ""))
        gpu_report(gpu_isolated(all_ranks, &s, LIMIT_S));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        rank_main cases;
    } all[] = { { "rows alone", alone_cases },
                { "sums that nobody wants", kept_cases },
                { "long rows", op_cases_normed } };
    gpu_begin(argc, argv);
    for (int i = 0; i < 3; i++) {
        for (int size = 2; size <= gpu_count() && size <= 8; size++)
            run(all[i].name, all[i].cases, size, true);
        for (int size = 1; size <= 4; size++)
            run(all[i].name, all[i].cases, size, false);
    }
    return gpu_end();
}
