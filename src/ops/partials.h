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

/* Where that is if nothing leaves before all of it is made: local data, or c itself where it is all
 * of the sum. */
void *imx_partials_place(const imx_run *run);

/* The product lies in local data, and is counted by chunks. */
void imx_partials_needs(const imx_variant *variant, imx_needs *needs);

/* The chunks' signals: without rows or columns there are no tiles, nobody would post them, and this
 * is NULL. */
uint64_t *imx_partials_done(const imx_run *run);

/* What of so long a sending comes behind the product, where all parts but the last go beneath the
 * next one's. */
double imx_partials_left(const imx_problem *p, double sending);

/* ---- where the kernel is the whole run ------------------------------------------------------- */

/* Of one that sends what it makes, and makes c of what comes. */
imbrex_status imx_partials_run(const imx_run *run, int kernel, imx_gemm_args args,
                               int64_t slot_bytes) IMX_MUST_CHECK;

/* The same by IMX_GEMM_REDUCE_PUSH. */
typedef enum imx_push_way {
    IMX_PUSH_OWNERS, /* rows to their owners, for whom c is */
    IMX_PUSH_ALL,    /* all rows to all, whose c has all rows: one way between ranks */
    IMX_PUSH_FANS    /* rows to their owners, and sums to all: two ways, and fewer bytes */
} imx_push_way;

imx_gemm_args imx_partials_push_args(const imx_variant *variant, int64_t m, imx_push_way way);
void imx_partials_push_needs(const imx_variant *variant, imx_push_way way, imx_needs *needs);
imbrex_status imx_partials_push(const imx_run *run, int kernel, imx_push_way way) IMX_MUST_CHECK;

#endif /* IMX_PARTIALS_H */
