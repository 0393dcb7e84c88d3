/* gemm_alone.h - one rank's product as if there were no others: what gemm is, and behind which
 * operators may add up. */
#ifndef IMX_GEMM_ALONE_H
#define IMX_GEMM_ALONE_H

#include "plan/plan.h"

/* Of m rows, which are one chunk of one rank, whatever the group's ranks are; without operands. */
imx_gemm_args imx_gemm_alone_args(const imx_variant *variant, int64_t m);

#endif /* IMX_GEMM_ALONE_H */
