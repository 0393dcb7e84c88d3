/* partials.h - the product of an operator that adds up over ranks: this rank's a[m, k] * b[n, k],
 * the rows that the next rank owns first, one's own last.
 */
#ifndef IMX_PARTIALS_H
#define IMX_PARTIALS_H

#include "transfer.h"

/* reserved_sms: of the device, for what runs beside the product. */
imx_gemm_args imx_partials_args(const imx_variant *variant, int64_t m, int reserved_sms);

/* Of a run: its operands, and c, where the product goes. */
void imx_partials_bind(const imx_run *run, void *c, imx_gemm_args *args);

/* The product lies in local data, and is counted by chunks. */
void imx_partials_needs(const imx_variant *variant, imx_needs *needs);

/* The chunks' signals: without rows or columns there are no tiles, nobody would post them, and this
 * is NULL. */
uint64_t *imx_partials_done(const imx_run *run);

#endif /* IMX_PARTIALS_H */
