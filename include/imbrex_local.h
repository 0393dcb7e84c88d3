/* imbrex_local.h - what a layer does between its operators, on this rank alone: activations, norms,
 * and quantised results.  Part of imbrex.h, which includes it and whose rules hold.
 */
#ifndef IMBREX_LOCAL_H
#define IMBREX_LOCAL_H

#ifndef IMBREX_H
#error "include imbrex.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Activations ----------------------------------------------------------------------------- */

/* What an MLP does between its products; f(0) is 0 in all. */
typedef enum imbrex_activation_kind {
    IMBREX_SILU,      /* x / (1 + e^-x), also called swish */
    IMBREX_GELU,      /* x / 2 * (1 + erf(x / sqrt(2))) */
    IMBREX_GELU_TANH, /* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
    IMBREX_RELU,      /* max(x, 0) */
    IMBREX_RELU2      /* max(x, 0)^2 */
} imbrex_activation_kind;

typedef struct imbrex_activation {
    imbrex_activation_kind kind;
    int gated;            /* 1: f(gate) * up, where both lie side by side in a row; 0: f alone */
    imbrex_dtype dtype;   /* of in, and of out unless that is quantised */
    imbrex_scaling quant; /* out is E4M3, by `scales`: PER_TENSOR reads one, PER_ROW and PER_BLOCK
                             write them, as imbrex_norm's */
    int power_of_two;     /* 1: written scales are rounded up to powers of two */
    uint32_t reserved[4];
} imbrex_activation;

/* gated: out[rows, cols] = f(in[:, :cols]) * in[:, cols:], in[rows, 2*cols]: the gate of a
 * transformer's MLP, whose gate and up products lie side by side.  Else out[rows, cols] = f(in),
 * in[rows, cols].  Computed in float32, rounded once; docs/numerics.md says how exact it is.  in
 * and out must not overlap, and need the alignment of their element.
 *
 * With quant, out has the bits of imbrex_quantize behind it, and cols is at most 2^24, else
 * UNSUPPORTED; without, scales must be NULL.  rows_here, in memory of the device: how many of the
 * rows there are, read when the stream comes to it; more than `rows` counts as that, less than 0 as
 * none, and of out and scales no other rows are written.  NULL: all.  Local. */
IMBREX_TRY imbrex_activate(imbrex_group *group, const imbrex_activation *desc, int64_t rows,
                           int64_t cols, const void *in, void *out, float *scales,
                           const int32_t *rows_here, imbrex_stream stream);

/* imbrex_activate with { IMBREX_SILU, .gated = 1 } of all rows. */
IMBREX_TRY imbrex_silu_mul(imbrex_group *group, imbrex_dtype dtype, int64_t rows, int64_t cols,
                           const void *in, void *out, imbrex_stream stream);

/* ---- Norms ----------------------------------------------------------------------------------- */

/* What imbrex_norm says of args.a[rows, cols] (x), dtype's (BF16, F16 or F32) as all operands but
 * scale_c and a quantised c are.  args: a, c, and bias, residual, gamma (with rms, else NULL), h,
 * normed (with quant, else NULL), scale_c (with quant, else NULL); m and all else 0.  c may be a
 * where it is not quantised, h may be residual; nothing else overlaps.  norm: NULL is INVALID.
 * cols: at most 32768, else UNSUPPORTED.  Any alignment of the elements will do; 16 bytes are
 * fastest.  Local. */
IMBREX_TRY imbrex_rms_norm(imbrex_group *group, imbrex_dtype dtype, int64_t rows, int64_t cols,
                           const imbrex_norm *norm, const imbrex_args *args, imbrex_stream stream);

/* out[rows, cols] = in / scale as E4M3.  scales: as norm.quant; UNSCALED is INVALID.  Sizes as
 * above.  Local. */
IMBREX_TRY imbrex_quantize(imbrex_group *group, imbrex_dtype dtype, imbrex_scaling scaling,
                           int64_t rows, int64_t cols, const void *in, void *out, float *scales,
                           imbrex_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* IMBREX_LOCAL_H */
