/* dispatch.h - what dispatch and combine have in common: their desc, and how tokens are counted. */
#ifndef IMX_DISPATCH_H
#define IMX_DISPATCH_H

#include "kernels/dispatch/args.h"
#include "plan/descs.h"
#include "routing.h"

enum { IMX_DISPATCH_FIELDS = 11 };
extern const imbrex_field imx_dispatch_desc[IMX_DISPATCH_FIELDS];

enum { IMX_DISPATCH_BLOCKS = IMX_ROUTING_OTHERS }; /* scales of a row */

imbrex_status imx_dispatch_check(const imbrex_group *group,
                                 const imx_request *request) IMX_MUST_CHECK;
int64_t imx_dispatch_extent(const imx_asked *asked, int64_t m, int which);
int64_t imx_dispatch_capacity(const imx_asked *asked);
void imx_dispatch_timed_integers(const imx_asked *asked, const imbrex_field *operand, int64_t count,
                                 int32_t *to);

static inline const imbrex_dispatch_desc *imx_dispatch_desc_of(const imbrex_plan *plan)
{
    return (const imbrex_dispatch_desc *)(const void *)plan->desc;
}

/* By kernels/dispatch_ll and combine_ll: few tokens. */
bool imx_dispatch_can_ll(const imx_problem *p, imx_text *why_not);

/* As two H200s took it, of 7168 columns, top 8 of 256 experts: so much, and a byte that a rank has
 * for a peer so much more.  A gather sends `sent` where ranks share m rows; here each has m. */
static inline double imx_dispatch_us(const imx_problem *p, const imx_rates *rates, double begins,
                                     double us_a_mb)
{
    return begins + imx_cost_of_stores(rates, us_a_mb * 1e-6 * p->sent * p->in->ranks);
}

/* Of this rank: rows that there is room for. */
int64_t imx_dispatch_rows(const imbrex_plan *plan);

/* Of a buffer: a place for each token of all ranks. */
static inline int64_t imx_dispatch_slots(const imbrex_plan *plan)
{
    return plan->group->size * plan->shape.m;
}

static inline int64_t imx_dispatch_align(const imbrex_dispatch_desc *desc)
{
    return desc->align ? desc->align : 16;
}

#endif /* IMX_DISPATCH_H */
