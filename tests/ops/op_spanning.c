/* op_spanning.c - cases of ag_gemm by tiles with rows of several ranks. */
#include "op_cases.h"

#include "plan/plan.h"
#include "ranks.h"

enum { SMS = 132 };

/* On so many multiprocessors tiles have rows of several ranks, which come chunk by chunk: of two
 * ranks all but the second, of four all but the last. */
static const op_case spanning_ones[] = {
    { .op = "ag_gemm", .m = 2096, .n = 6144, .k = 3080, .gathered = 1, .whole = 1 },
    { .op = "ag_gemm",
      .m = 1032,
      .n = 8184,
      .k = 2056,
      .dtype = IMBREX_F16,
      .bias = 1,
      .whole = 1 },
    { .op = "ag_gemm",
      .m = 2096,
      .n = 6144,
      .k = 3080,
      .dtype = IMBREX_F16,
      .layout = IMBREX_KN,
      .whole = 1 },
    { .op = "ag_gemm", .m = 1540, .n = 8184, .k = 2056, .bias = 1, .whole = 1 },
};

bool op_cases_get_spanning(int number, op_case *c)
{
    if (number >= (int)(sizeof spanning_ones / sizeof spanning_ones[0]))
        return false;
    *c = spanning_ones[number];
    return true;
}

int op_cases_check_spanning(imbrex_group *group)
{
    int ranks = imbrex_group_size(group), spans = 0;
    op_case c;
    for (int i = 0; op_cases_get_spanning(i, &c); i++) {
        imbrex_plan *plan;
        RANK_OK(case_plan(group, &c, &plan));
        spans += imx_describe_facts(plan).spans_chunks;
        imbrex_plan_destroy(plan);
    }
    bool known = group->target->arch == 90 && group->workers == SMS && (ranks == 2 || ranks == 4);
    RANK_CHECK(!known || spans == 3, "%d plans have tiles with rows of several ranks, not 3",
               spans);
    return 0;
}
