/* norm.h - what happens to rows after their sum, of every operator whose desc has an imbrex_norm:
 * the rows of its desc and args, what is checked of them, and the step itself.
 */
#ifndef IMX_OPS_NORM_H
#define IMX_OPS_NORM_H

#include "kernels/norm/args.h"
#include "plan/descs.h"

/* ---- what an operator declares --------------------------------------------------------------- */

#define IMX_NORM_DESC(of)                                                                       \
    IMX_FIELD(of, norm.rms, IMX_FLAG, "int", 0, "1: c is normed"),                              \
        IMX_FIELD(of, norm.shard_residual, IMX_FLAG, "int", 0,                                  \
                  "1: residual and h are this rank's rows alone"),                              \
        IMX_FIELD(of, norm.eps, IMX_REAL, "float", 0, "added to the mean of squares; 0: 1e-6"), \
        IMX_FIELD(of, norm.gamma_offset, IMX_REAL, "float", 0, "added to gamma"),               \
        IMX_FIELD(of, norm.quant, IMX_SCALES, "scaling", 0, "of c as e4m3"),                    \
        IMX_FIELD(of, norm.power_of_two, IMX_FLAG, "int", 0, "1: scales are powers of two")

/* Of reduce_scatter and all_reduce; of gemm_rs and gemm_ar. */
static const imbrex_field imx_norm_coll_desc[] = { IMX_COLL_DESC, IMX_NORM_DESC(imbrex_coll_desc) };
static const imbrex_field imx_norm_gemm_desc[] = { IMX_GEMM_DESC, IMX_NORM_DESC(imbrex_gemm_desc) };

/* Dimensions beyond imx_extent. */
enum {
    IMX_NORM_RESIDUAL_ROWS = IMX_OF_OP, /* all, or own ones with shard_residual */
    IMX_NORM_SCALES,                    /* of all rows */
    IMX_NORM_SCALES_OWN,                /* of own rows */
    IMX_NORM_SCALE_COLS
};

/* The operands beside a and c, where c has `rows`, and residual and h `residual_rows`; wide: as in
 * IMX_OPERAND, where c is. */
#define IMX_NORM_ARGS(wide, residual_rows, scales, rows, letters, scale_letters)               \
    IMX_OPERAND(residual, IMX_OUT, "out", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, wide,    \
                IMX_APART, letters, "added to the sum", residual_rows, IMX_N),                 \
        IMX_OPERAND(gamma, IMX_OUT, "out", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false,  \
                    IMX_APART, "[n]", "the norm's weights", IMX_N),                            \
        IMX_OPERAND(h, IMX_OUT, "out", IMBREX_FIELD_OUTPUT | IMBREX_FIELD_OPTIONAL, wide,      \
                    IMX_MAY_BE_RESIDUAL, letters, "the sum before the norm", residual_rows,    \
                    IMX_N),                                                                    \
        IMX_OPERAND(normed, IMX_OUT, "out", IMBREX_FIELD_OUTPUT | IMBREX_FIELD_OPTIONAL, wide, \
                    IMX_APART, letters, "c before it was quantised", rows, IMX_N),             \
        IMX_OPERAND(scale_c, IMX_FLOATS, "float32",                                            \
                    IMBREX_FIELD_INPUT | IMBREX_FIELD_OUTPUT | IMBREX_FIELD_OPTIONAL, false,   \
                    IMX_APART, scale_letters, "of a quantised c", scales, IMX_NORM_SCALE_COLS)

/* In an imx_op whose desc has a `norm`. */
#define IMX_NORM(of)                                                                   \
    .norm_at = offsetof(of, norm), .blanks[1] = IMX_BLANK(of, norm.reserved),          \
    .check = imx_norm_check_request, .extent = imx_norm_extent, .part = imx_norm_part, \
    .result = imx_norm_result

/* In that of one whose runs end with it: an algorithm's run is then of the sum alone, whose args
 * have bias and residual, and c where the sum goes.  One rank alone runs its product at most, and
 * the norm adds these. */
#define IMX_NORM_RUNS(of) IMX_NORM(of), .around = &imx_norm_around

extern const imx_around imx_norm_around;

/* Whether the variant's algorithm norms rows where it adds or brings them, so that its run does all
 * of it: on GPUs. */
bool imx_norm_in_kernel(const imx_variant *variant);

/* For that: where a run's sum of all rows is kept meanwhile (else c); the norm kernel's args of up
 * to so many rows, without pointers; and of a run, of the sum that is kept in x.in.  norm.h is that
 * too, or NULL. */
void *imx_norm_kept(const imx_run *run);
imx_norm_args imx_norm_largest(const imx_variant *variant, int64_t m);
imx_norm_args imx_norm_of_run(const imx_run *run);

/* Whether residual and h are of own rows where c is of all. */
bool imx_norm_shards(const imx_run *run);

imbrex_status imx_norm_check_request(const imbrex_group *group,
                                     const imx_request *request) IMX_MUST_CHECK;
int64_t imx_norm_extent(const imx_asked *asked, int64_t m, int which);
imx_part imx_norm_part(const imx_op *op, const void *desc, const imbrex_field *operand,
                       const char **because);
imbrex_dtype imx_norm_result(const imx_asked *asked);

/* Local: what is wrong with a norm of rows of n, which the caller knows as `of`. */
imbrex_status imx_norm_check(const imbrex_norm *norm, const char *of, int64_t n) IMX_MUST_CHECK;

/* The kernel's args but for where rows lie. */
imx_norm_args imx_norm_args_of(const imbrex_norm *norm, int64_t rows, int64_t n,
                               imbrex_dtype dtype);

#endif /* IMX_OPS_NORM_H */
