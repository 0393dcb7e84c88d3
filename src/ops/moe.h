/* moe.h - what ag_moe and moe_rs have in common: their desc, where pairs lie, and the product of
 * each expert's rows. */
#ifndef IMX_MOE_H
#define IMX_MOE_H

#include "kernels/combine/args.h"
#include "kernels/grouped/args.h"
#include "kernels/route/args.h"
#include "routing.h"
#include "transfer.h"

enum { IMX_MOE_FIELDS = 14 };
extern const imbrex_field imx_moe_desc[IMX_MOE_FIELDS];

enum { IMX_MOE_TOKENS = IMX_ROUTING_OTHERS }; /* own ones, or, where all are everywhere, all */

imbrex_status imx_moe_check(const imbrex_group *group, const imx_request *request) IMX_MUST_CHECK;
int64_t imx_moe_extent(const imx_asked *asked, int64_t m, int which);
int64_t imx_moe_capacity(const imx_asked *asked);

static inline const imbrex_moe_desc *imx_moe_desc_of(const imbrex_plan *plan)
{
    return (const imbrex_moe_desc *)(const void *)plan->desc;
}

/* Of all rows that a plan of this rank may have. */
int64_t imx_moe_rows(const imbrex_plan *plan);

void imx_moe_timed_integers(const imx_asked *asked, const imbrex_field *operand, int64_t count,
                            int32_t *to);

/* What follows from the plan, for a run of m tokens; operands are the caller's to add. */
imx_route_args imx_moe_route_args(const imbrex_plan *plan, int64_t m);
imx_grouped_args imx_moe_grouped_args(const imx_run *run);
imx_grouped_args imx_moe_grouped_largest(const imx_variant *variant);

#endif /* IMX_MOE_H */
