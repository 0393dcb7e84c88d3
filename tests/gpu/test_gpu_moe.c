/* test_gpu_moe.c - ag_moe and moe_rs on real GPUs, bit for bit: on one, and on several where there
 * are as many.  `sanitized`: a few cases on one. */
#include <string.h>

#include "gpu.h"
#include "moe_cases.h"
#include "moe_scaled_cases.h"

enum { EXPERTS, WIDE, SCALED, SCALED_WIDE, TABLES };

enum { STEP_FAKE = 7, STEP_SANITIZED = 23 }; /* of a table's cases one is taken */

static bool sanitized;

typedef struct ranks_of {
    int ranks, table;
} ranks_of;

static int through(int table, imbrex_group *group)
{
    moe_walk walk = { .step = sanitized ? STEP_SANITIZED : gpu_is_fake() ? STEP_FAKE : 1 };
    moe_scaled_walk scaled = { .step = walk.step };
    switch (table) {
    case EXPERTS:
        return moe_cases_device(group, &walk);
    case WIDE:
        return moe_cases_wide(group, &walk);
    case SCALED:
        return moe_scaled_cases_device(group, &scaled);
    default:
        return moe_scaled_cases_wide(group, &scaled);
    }
}

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = gpu_of(rank, true) };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = through(((const ranks_of *)ctx)->table, group);
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
    sanitized = argc > 1 && strcmp(argv[1], "sanitized") == 0;
    gpu_begin(sanitized ? 1 : argc, argv);
    static const char *const names[TABLES] = { "experts on %d", "wide tiles on %d",
                                               "experts of 8 bits on %d",
                                               "wide tiles of 8 bits on %d" };
    for (int i = 0; i < TABLES * gpu_count() && i < TABLES * 4; i++) {
        ranks_of of = { .ranks = i / TABLES + 1, .table = i % TABLES };
        char name[80];
        snprintf(name, sizeof name, names[of.table], of.ranks);
        if ((!sanitized || of.ranks == 1) && gpu_wanted("%s", name))
            gpu_report(gpu_isolated(on_ranks, &of, 120));
    }
    return gpu_end();
}
