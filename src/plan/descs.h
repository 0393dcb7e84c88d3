/* descs.h - the rows of the descs that several operators have. */
#ifndef IMX_DESCS_H
#define IMX_DESCS_H

#include "plan.h"

#define IMX_DESC_TAIL(of)                                                                   \
    IMX_FIELD(of, algorithm, IMX_NAME, "string", 0, "how; none: chosen"),                   \
        IMX_FIELD(of, chunk_rows, IMX_COUNT, "int", 0, "rows under one signal; 0: chosen"), \
        IMX_FIELD(of, sms, IMX_COUNT, "int", 0, "SMs or threads that a run may hold; 0: all")

#define IMX_GEMM_DESC                                                                            \
    IMX_FIELD(imbrex_gemm_desc, m, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED | IMBREX_FIELD_RUN,  \
              "rows of one rank's product"),                                                     \
        IMX_FIELD(imbrex_gemm_desc, n, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED, "its columns"), \
        IMX_FIELD(imbrex_gemm_desc, k, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED,                 \
                  "what is summed over"),                                                        \
        IMX_FIELD(imbrex_gemm_desc, dtype, IMX_DTYPE, "dtype", 0, "of all matrices"),            \
        IMX_FIELD(imbrex_gemm_desc, layout, IMX_LAYOUT, "layout", 0, "how b lies"),              \
        IMX_DESC_TAIL(imbrex_gemm_desc),                                                         \
        IMX_FIELD(imbrex_gemm_desc, m_least, IMX_SIZE, "int64", 0,                               \
                  "the fewest rows of a run that is to be fast"),                                \
        IMX_FIELD(imbrex_gemm_desc, batch_invariant, IMX_FLAG, "int", 0,                         \
                  "1: a row's bits do not depend on m")

static const imbrex_field imx_gemm_desc[] = { IMX_GEMM_DESC };

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
