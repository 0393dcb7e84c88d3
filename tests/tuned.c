/* tuned.c - asks the choice as a plan does. */
#include "tuned.h"

imx_config tuned_on(int64_t m, int64_t n, int64_t k, int scatters, int ranks, int arch, int sms)
{
    imx_tune_input input = {
        .shape = { m, n, k, IMBREX_BF16, IMBREX_NK },
        .product = k > 0,
        .scatters = scatters,
        .ranks = ranks,
        .nodes = 1,
        .arch = arch,
        .shared_bytes = 166912,
        .units = sms,
        .sharers = 1,
        .alike = true,
    };
    return imx_tune_config(&input);
}
