/* tuned.c - asks the choice as a plan does. */
#include "tuned.h"

static imx_tune_input input_of(int64_t m, int64_t n, int64_t k, int scatters, int ranks, int arch,
                               int sms)
{
    return (imx_tune_input){
        .shape = { m, n, k, IMBREX_BF16, IMBREX_BF16, IMBREX_NK, IMBREX_UNSCALED, false },
        .product = k > 0,
        .scatters = scatters,
        .ranks = ranks,
        .nodes = 1,
        .arch = arch,
        .shared_bytes = 166912,
        .workers = sms,
        .sharers = 1,
        .alike = true,
    };
}

imx_config tuned_on(int64_t m, int64_t n, int64_t k, int scatters, int ranks, int arch, int sms)
{
    const imx_tune_input input = input_of(m, n, k, scatters, ranks, arch, sms);
    return imx_tune_config(&input);
}

imx_choice tuned_choice_of(const imx_op *op, int64_t m, int64_t n, int64_t k, int ranks, int arch,
                           int sms)
{
    imx_tune_input input = input_of(m, n, k, op->scatters, ranks, arch, sms);
    input.whole_lines = arch != 0;
    const imx_config config = imx_tune_config(&input);
    return imx_choose(op, &input, &config);
}

imx_choice tuned_choice(int64_t m, int64_t n, int64_t k, int scatters, int ranks, int arch, int sms)
{
    const imx_op *op = !k         ? scatters ? &imx_op_reduce_scatter : &imx_op_all_gather
                       : scatters ? &imx_op_gemm_rs
                                  : &imx_op_ag_gemm;
    return tuned_choice_of(op, m, n, k, ranks, arch, sms);
}
