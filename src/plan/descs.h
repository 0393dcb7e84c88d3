/* descs.h - the rows of the descs that several operators have. */
#ifndef IMX_DESCS_H
#define IMX_DESCS_H

#include "plan.h"

#define IMX_DESC_TAIL(of)                                                                   \
    IMX_FIELD(of, algorithm, IMX_NAME, "string", 0, "how; none: chosen"),                   \
        IMX_FIELD(of, chunk_rows, IMX_COUNT, "int", 0, "rows under one signal; 0: chosen"), \
        IMX_FIELD(of, sms, IMX_COUNT, "int", 0, "SMs or threads that a run may hold; 0: all")

#define IMX_GEMM_DESC                                                                             \
    IMX_FIELD(imbrex_gemm_desc, m, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED | IMBREX_FIELD_RUN,   \
              "rows of one rank's product"),                                                      \
        IMX_FIELD(imbrex_gemm_desc, n, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED, "its columns"),  \
        IMX_FIELD(imbrex_gemm_desc, k, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED,                  \
                  "what is summed over"),                                                         \
        IMX_FIELD(imbrex_gemm_desc, dtype, IMX_DTYPE, "dtype", 0, "of a and b"),                  \
        IMX_FIELD(imbrex_gemm_desc, layout, IMX_LAYOUT, "layout", 0, "how b lies"),               \
        IMX_DESC_TAIL(imbrex_gemm_desc),                                                          \
        IMX_FIELD(imbrex_gemm_desc, m_least, IMX_SIZE, "int64", 0,                                \
                  "the fewest rows of a run that is to be fast"),                                 \
        IMX_FIELD(imbrex_gemm_desc, batch_invariant, IMX_FLAG, "int", 0,                          \
                  "1: a row's bits do not depend on m"),                                          \
        IMX_FIELD(imbrex_gemm_desc, out, IMX_DTYPE, "dtype", 0, "of c and bias; default: dtype"), \
        IMX_FIELD(imbrex_gemm_desc, scaling, IMX_SCALES, "scaling", 0, "of a and b"),             \
        IMX_FIELD(imbrex_gemm_desc, fast_accumulation, IMX_FLAG, "int", 0,                        \
                  "1: sums of 8-bit products stay in the device's own accumulator")

static const imbrex_field imx_gemm_desc[] = { IMX_GEMM_DESC };

/* The operands of a product that have them. */
#define IMX_GEMM_B                                                              \
    IMX_OPERAND(b, IMX_WEIGHTS, "weights", IMBREX_FIELD_INPUT, true, IMX_APART, \
                "[n, k] or [k, n]", "weights", IMX_B_ROWS, IMX_B_COLS)
#define IMX_GEMM_BIAS                                                                    \
    IMX_OPERAND(bias, IMX_OUT, "out", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false, \
                IMX_APART, "[n]", "of the columns of c", IMX_N)
/* rows: of a's scales; letters: their shape. */
#define IMX_GEMM_SCALES(rows, letters)                                                             \
    IMX_OPERAND(scale_a, IMX_FLOATS, "float32", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false, \
                IMX_APART, letters, "of a, as desc.scaling says", rows, IMX_SCALE_COLS),           \
        IMX_OPERAND(scale_b, IMX_FLOATS, "float32", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL,    \
                    false, IMX_APART, "[n/128, k/128]", "of b, as desc.scaling says",              \
                    IMX_SCALE_B_ROWS, IMX_SCALE_COLS)

#define IMX_COLL_DESC                                                                            \
    IMX_FIELD(imbrex_coll_desc, m, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED | IMBREX_FIELD_RUN,  \
              "rows of the whole matrix"),                                                       \
        IMX_FIELD(imbrex_coll_desc, n, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED, "its columns"), \
        IMX_FIELD(imbrex_coll_desc, dtype, IMX_DTYPE, "dtype", 0, "of both matrices"),           \
        IMX_DESC_TAIL(imbrex_coll_desc)

static const imbrex_field imx_coll_desc[] = { IMX_COLL_DESC };

/* The rows of a run, last in the args of all of them. */
#define IMX_ARGS_M                                                 \
    IMX_FIELD(imbrex_args, m, IMX_SIZE, "int64", IMBREX_FIELD_RUN, \
              "rows of this run; 0: all of the plan's")

#endif /* IMX_DESCS_H */
