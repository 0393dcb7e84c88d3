/* token_lines.h - on one node, of few tokens: what each rank has of every token, weighed and added
 * by place, becomes the sums of their owners, by one kernel (kernels/combine_ll/args.h). */
#ifndef IMX_TOKEN_LINES_H
#define IMX_TOKEN_LINES_H

#include "kernels/combine_ll/args.h"
#include "plan/op.h"
#include "plan/plan.h"

/* Of one buffer: most, tokens: of a rank, of all, in any run. */
void imx_token_lines_needs(const imx_variant *variant, int64_t most, int64_t tokens,
                           imx_needs *needs);
imbrex_status imx_token_lines_prepare(imx_variant *variant, int kernel) IMX_MUST_CHECK;

/* own: IMX_COMBINE_PLACES of all tokens and IMX_COMBINE_RANKS of own ones, of which there are
 * own_tokens; local: where the room that it needs begins. */
imbrex_status imx_token_lines_add(const imx_run *run, int kernel, const imx_combine_args *own,
                                  int64_t own_tokens, int64_t most, void *local) IMX_MUST_CHECK;

/* sent: bytes of a rank. */
double imx_token_lines_cost(const imx_rates *rates, double sent);

#endif /* IMX_TOKEN_LINES_H */
