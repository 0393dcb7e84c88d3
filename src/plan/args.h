/* args.h - the operands of a run, by the rows of its operator. */
#ifndef IMX_ARGS_H
#define IMX_ARGS_H

#include "op.h"

static inline bool imx_args_is_operand(const imbrex_field *field)
{
    return field->own[IMX_FIELD_KIND] >= IMX_MATRIX;
}

/* Of an element of an operand: its type (of int32: the plan's), and its bytes. */
imbrex_dtype imx_args_dtype(const imx_asked *asked, const imbrex_field *operand);
size_t imx_args_element_bytes(const imx_asked *asked, const imbrex_field *operand);

/* Whether runs have an operand: never AS_DECLARED. */
imx_part imx_args_part(const imx_asked *asked, const imbrex_field *operand, const char **because);

/* The shape that an operand has on this rank in a run of m rows: returns how many dimensions. */
int imx_args_dims(const imx_asked *asked, const imbrex_field *operand, int64_t m,
                  int64_t dims[IMX_DIMS]);

/* How many elements those are. */
int64_t imx_args_elements(const imx_asked *asked, const imbrex_field *operand, int64_t m);

/* How many rows a run is to have, as imx_count takes it. */
int64_t imx_args_rows(const imx_op *op, const void *args);

/* Local: what is wrong with what a run of m rows is given, asked->args. */
imbrex_status imx_args_check(const imx_asked *asked, int64_t m) IMX_MUST_CHECK;

/* The struct that runs of an operator are given. */
static inline const imx_args_type *imx_args_type_of(const imx_op *op)
{
    return op->takes ? op->takes : &imx_args_usual;
}

#endif /* IMX_ARGS_H */
