/* sum_all.h - sums that every rank gets whole: every rank's blocks go to their owners, who add
 * them up, and the sums to everybody.
 */
#ifndef IMX_SUM_ALL_H
#define IMX_SUM_ALL_H

#include "transfer.h"

/* This rank's rows of args.c[m, n]. */
void *imx_sum_all_own_rows(const imx_run *run);

/* The run of the scatter, whose output is own rows; args: where its own may lie. */
imx_run imx_sum_all_first(const imx_run *run, imbrex_args *args);

/* args.c[m, n] = the sum of all ranks' matrix[m, n], in rank order, bias and residual; all on the
 * caller's stream, by the scatter's kernel. */
void imx_sum_all_needs(const imx_variant *variant, imx_needs *needs);
double imx_sum_all_cost(const imx_rates *rates, double sent);
imbrex_status imx_sum_all(const imx_run *run, int kernel, const void *matrix) IMX_MUST_CHECK;

/* The same on a second stream, chunk by chunk as done[owner * chunks + q] is posted (done[0], where
 * tiles span ranks), what is here already being added and sent while the next chunk is made:
 *
 *     stream   | chunk 0 to its owners | chunk 1 | add up own chunk 0, to all | chunk 2 | ...
 *     caller   | wait 0 | copy 0 | ...                                put together in args.c
 *
 * Kernels: one that is prepared to run beside others, and one for the last chunk. */
imbrex_status imx_sum_all_chunks(const imx_run *run, imbrex_stream stream, int beside, int last,
                                 const void *matrix, uint64_t *done) IMX_MUST_CHECK;

/* Of a matrix that is there, which may be args.c:
 *
 *     beside   | chunk 0 to its owners | chunk 1 | ... | wait 0 | copy 0 | ... into args.c
 *     caller   | add up own chunk 0, to all | chunk 1 | ...
 *
 * What comes is copied out only behind all that goes to owners, so that it overwrites no part that
 * has yet to be sent. */
imbrex_status imx_sum_all_copies(const imx_run *run, imbrex_stream beside, int kernel,
                                 const void *matrix) IMX_MUST_CHECK;

/* args.c = the sum of all ranks' matrix[m, n] by the ll kernel, in one shot or two, and with it the
 * rows' norm where that is in the kernel (norm.h). */
void imx_sum_all_ll_needs(const imx_variant *variant, imx_ll_how how, imx_needs *needs);
imbrex_status imx_sum_all_ll_prepare(imx_variant *variant, int kernel,
                                     imx_ll_how how) IMX_MUST_CHECK;
imbrex_status imx_sum_all_ll(const imx_run *run, int kernel, imx_ll_how how,
                             const void *matrix) IMX_MUST_CHECK;

/* Of sums by the ll kernel: whether it can, and its cost, NEVER beyond what was measured. */
bool imx_sum_all_can_ll(const imx_problem *p, imx_text *why_not);
double imx_sum_all_ll_cost(const imx_problem *p, const imx_rates *rates);
double imx_sum_all_ll2_cost(const imx_problem *p, const imx_rates *rates); /* in two shots */

#endif /* IMX_SUM_ALL_H */
