/* moe.h - what ag_moe and moe_rs have in common: their desc, where pairs lie, and the product of
 * each expert's rows. */
#ifndef IMX_MOE_H
#define IMX_MOE_H

#include "kernels/combine/args.h"
#include "kernels/grouped/args.h"
#include "kernels/route/args.h"
#include "transfer.h"

enum { IMX_MOE_FIELDS = 14, IMX_MOE_ROUTING = 6 };
extern const imbrex_field imx_moe_desc[IMX_MOE_FIELDS];

/* Dimensions of operands. */
enum {
    IMX_MOE_TOP_K = IMX_OF_OP,
    IMX_MOE_HERE,     /* experts here */
    IMX_MOE_BEGINS,   /* one more */
    IMX_MOE_CAPACITY, /* rows */
    IMX_MOE_PAIRS,    /* of all ranks' tokens */
    IMX_MOE_TOKENS    /* own tokens, or, where they are on every rank, all */
};

/* Rows of imbrex_routing in an operator's args: what it writes, or reads. */
#define IMX_MOE_ROUTING_ROWS(flags)                                                         \
    IMX_FIELD(imbrex_args, routing, IMX_STRUCT, "struct", 0, "where pairs lie"),            \
        IMX_OPERAND_IN_ROUTING(expert_begin, IMX_I32, "int32", flags, "[experts here + 1]", \
                               "first row of each expert, and behind all", IMX_MOE_BEGINS), \
        IMX_OPERAND_IN_ROUTING(expert_rows, IMX_I32, "int32", flags, "[experts here]",      \
                               "rows of each expert", IMX_MOE_HERE),                        \
        IMX_OPERAND_IN_ROUTING(row_pair, IMX_I32, "int32", flags, "[capacity]",             \
                               "pair of each row; -1: none", IMX_MOE_CAPACITY),             \
        IMX_OPERAND_IN_ROUTING(pair_row, IMX_I32, "int32", flags, "[m * top_k]",            \
                               "row of each pair; -1: not here", IMX_MOE_PAIRS),            \
        IMX_OPERAND_IN_ROUTING(pair_expert, IMX_I32, "int32", flags, "[m * top_k]",         \
                               "expert of each pair; -1: none", IMX_MOE_PAIRS),             \
        IMX_OPERAND_IN_ROUTING(weights, IMX_FLOATS, "float32", flags, "[m * top_k]",        \
                               "weight of each pair", IMX_MOE_PAIRS)

imbrex_status imx_moe_check(const imbrex_group *group, const imx_request *request) IMX_MUST_CHECK;
int64_t imx_moe_extent(const imx_asked *asked, int64_t m, int which);
int64_t imx_moe_capacity(const imx_asked *asked);

static inline const imbrex_moe_desc *imx_moe_desc_of(const imbrex_plan *plan)
{
    return (const imbrex_moe_desc *)(const void *)plan->desc;
}

/* Of all rows that a plan of this rank may have. */
int64_t imx_moe_rows(const imbrex_plan *plan);

/* What follows from the plan, for a run of m tokens; operands are the caller's to add. */
imx_route_args imx_moe_route_args(const imbrex_plan *plan, int64_t m);
imx_grouped_args imx_moe_grouped_args(const imx_run *run);
imx_grouped_args imx_moe_grouped_largest(const imx_variant *variant);

#endif /* IMX_MOE_H */
