/* tuned.c - asks the choice as a plan does. */
#include "tuned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const imx_rates *tuned_rates(void)
{
    static imx_rates rates;
    if (!rates.store && !imx_rates_built_in("NVIDIA H200", &rates))
        abort();
    return &rates;
}

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
        .rates = tuned_rates(),
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

static imx_choice choice_of(const imx_op *op, imx_tune_input input)
{
    input.whole_lines = input.arch != 0;
    imx_choose_offers(op, NULL, &input);
    const imx_config config = imx_tune_config(&input);
    return imx_choose(op, &input, &config);
}

imx_choice tuned_choice_of(const imx_op *op, int64_t m, int64_t n, int64_t k, int ranks, int arch,
                           int sms)
{
    return choice_of(op, input_of(m, n, k, op->scatters, ranks, arch, sms));
}

bool tuned_takes(const imx_op *op, int64_t m, int64_t n, int64_t k, int ranks, bool norms,
                 const char *algorithm)
{
    imx_tune_input input = input_of(m, n, k, op->scatters, ranks, 90, 132);
    input.norms = norms;
    imx_choice choice = choice_of(op, input);
    bool is = !strcmp(choice.algorithm, algorithm);
    if (!is)
        fprintf(stderr, "%d rows by %d ranks%s: %s, want %s (%s)\n", (int)m, ranks,
                norms ? " with a norm" : "", choice.algorithm, algorithm, choice.why);
    return is;
}

imx_choice tuned_choice(int64_t m, int64_t n, int64_t k, int scatters, int ranks, int arch, int sms)
{
    const imx_op *op = !k         ? scatters ? &imx_op_reduce_scatter : &imx_op_all_gather
                       : scatters ? &imx_op_gemm_rs
                                  : &imx_op_ag_gemm;
    return tuned_choice_of(op, m, n, k, ranks, arch, sms);
}
