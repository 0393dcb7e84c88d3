/* token_lines.c - sums of few tokens by one kernel. */
#include "token_lines.h"

static int64_t row_bytes_of(const imx_variant *variant)
{
    return variant->shape.n * (int64_t)imx_dtype_bytes(variant->shape.out);
}

void imx_token_lines_needs(const imx_variant *variant, int64_t most, int64_t tokens,
                           imx_needs *needs)
{
    int64_t row_bytes = row_bytes_of(variant), ranks = variant->plan->group->size;
    needs->data_bytes = 2 * (size_t)(ranks * imx_combine_ll_part_bytes(most, row_bytes));
    needs->lines_bytes = needs->data_bytes;
    needs->local_bytes = (size_t)((tokens + ranks * most) * row_bytes);
    needs->done = (size_t)variant->config.blocks;
}

imbrex_status imx_token_lines_prepare(imx_variant *variant, int kernel)
{
    const imx_combine_ll_args any = { .combine.dtype = (int)variant->shape.out };
    return imx_variant_prepare(variant, kernel, &imx_kernel_combine_ll, &any);
}

imbrex_status imx_token_lines_add(const imx_run *run, int kernel, const imx_combine_args *own,
                                  int64_t own_tokens, int64_t most, void *local)
{
    const imx_combine_ll_args args = {
        .combine = *own,
        .own = own_tokens,
        .most = most,
        .plan = imx_variant_point(run->variant),
        .part_bytes = imx_combine_ll_part_bytes(most, row_bytes_of(run->variant)),
        .local = local,
        .uses = imx_run_done(run),
        .team = imx_run_team(run),
    };
    return imx_run_launch(run, run->stream, kernel, &args, sizeof args);
}

double imx_token_lines_cost(const imx_rates *rates, double sent)
{
    return imx_cost_of_signals(rates, 3.5) + 1.15 * sent / rates->store; /* behind a product */
}
