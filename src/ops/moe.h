/* moe.h - what ag_moe and moe_rs have in common: their desc, where pairs lie, and the product of
 * each expert's rows. */
#ifndef IMX_MOE_H
#define IMX_MOE_H

#include "kernels/combine/args.h"
#include "kernels/grouped/args.h"
#include "kernels/route/args.h"
#include "routing.h"
#include "transfer.h"

enum { IMX_MOE_FIELDS = 16 };
extern const imbrex_field imx_moe_desc[IMX_MOE_FIELDS];

enum {
    IMX_MOE_TOKENS = IMX_ROUTING_OTHERS, /* own ones, or, where all are everywhere, all */
    IMX_MOE_SCALE_COLS,                  /* along k; one a row: none */
    IMX_MOE_SCALE_B_ROWS                 /* along n */
};

/* b, and what scales a, whose rows are of so many letters, and b. */
#define IMX_MOE_B                                                                     \
    IMX_OPERAND(b, IMX_WEIGHTS, "weights", IMBREX_FIELD_INPUT, true, IMX_APART,       \
                "[experts here, n, k] or [experts here, k, n]", "weights of experts", \
                IMX_ROUTING_HERE, IMX_B_ROWS, IMX_B_COLS)
#define IMX_MOE_SCALES(rows, letters)                                                              \
    IMX_OPERAND(scale_a, IMX_FLOATS, "float32", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false, \
                IMX_APART, letters, "of a, as desc.scaling says", rows, IMX_MOE_SCALE_COLS),       \
        IMX_OPERAND(scale_b, IMX_FLOATS, "float32", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL,    \
                    false, IMX_APART, "[experts here, n/128, k/128]",                              \
                    "of b, as desc.scaling says", IMX_ROUTING_HERE, IMX_MOE_SCALE_B_ROWS,          \
                    IMX_MOE_SCALE_COLS)

imbrex_status imx_moe_check(const imbrex_group *group, const imx_request *request) IMX_MUST_CHECK;
int64_t imx_moe_extent(const imx_asked *asked, int64_t m, int which);
int64_t imx_moe_capacity(const imx_asked *asked);

static inline const imbrex_moe_desc *imx_moe_desc_of(const imbrex_plan *plan)
{
    return (const imbrex_moe_desc *)(const void *)plan->desc;
}

/* Floats that scale a row of a. */
int64_t imx_moe_scales(const imbrex_moe_desc *desc);

/* Of all rows that a plan of this rank may have. */
int64_t imx_moe_rows(const imbrex_plan *plan);

void imx_moe_spread(const imx_asked *asked, imx_tune_input *input);

void imx_moe_timed_integers(const imx_asked *asked, const imbrex_field *operand, int64_t count,
                            int32_t *to);

/* What follows from the plan, for a run of m tokens; operands are the caller's to add. */
imx_route_args imx_moe_route_args(const imbrex_plan *plan, int64_t m);
imx_grouped_args imx_moe_grouped_args(const imx_run *run);
imx_grouped_args imx_moe_grouped_largest(const imx_variant *variant);

#endif /* IMX_MOE_H */
