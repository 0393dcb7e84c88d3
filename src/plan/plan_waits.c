/* plan_waits.c - a plan's waits in words, for whoever says why its group has failed. */
#include "kernels/wait_points.h"
#include "plan.h"

void imx_plan_waits_name(const imbrex_group *group, int point, imx_text *text)
{
    const imx_variant *variant = imx_variant_by_point(group, point);
    imx_text_add(text, "%s (plan %d", variant ? variant->plan->op->info.name : "a destroyed plan",
                 imx_variant_plan_number(point));
    if (variant && variant != variant->plan->variants)
        imx_text_add(text, ", of up to %lld rows", (long long)variant->shape.m);
    imx_text_add(text, ")");
}

void imx_plan_waits_describe(const imbrexd_wait_point *point, imx_text *text)
{
    switch (point->what) {
    case IMX_POINT_CREDIT:
        imx_text_add(text, "rank %d to be done with an earlier run", point->rank);
        return;
    case IMX_POINT_CHUNK:
        if (point->index >= 0)
            imx_text_add(text, "chunk %d of rank %d", point->index, point->rank);
        else
            imx_text_add(text, "the rows of rank %d", point->rank);
        return;
    case IMX_POINT_PART:
        imx_text_add(text, "rank %d's part of ", point->rank);
        imx_text_add(text, point->index >= 0 ? "chunk %d" : "the sum", point->index);
        return;
    case IMX_POINT_PASS:
        imx_text_add(text, "row %d of a by way of rank %d", point->index, point->rank);
        return;
    default:
        imx_text_add(text, "its own product of chunk %d", point->index);
    }
}

/* What imx_agree_run found. */
void imx_plan_waits_mismatch(const imbrex_group *group, const imbrexd_fault *fault, imx_text *text)
{
    int plan = fault->point.plan, other = imx_agree_run_plan(fault->have, plan);
    if (other == plan) {
        const imx_variant *variant = imx_variant_by_point(group, plan);
        imx_text_add(text, "args.%s differs between ranks in a run of ",
                     variant ? imx_args_of_run(variant->plan->op)->name : "m");
        imx_plan_waits_name(group, plan, text);
        imx_agree_describe_rows(fault, text);
        return;
    }
    imx_text_add(text, "ranks run different plans: ");
    imx_plan_waits_name(group, other, text);
    imx_text_add(text, " on rank %d, ", fault->point.rank);
    imx_plan_waits_name(group, plan, text);
    imx_text_add(text, " on rank %d; all ranks must run the same plans in the same order",
                 fault->rank);
}
