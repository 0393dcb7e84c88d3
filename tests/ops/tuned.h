/* tuned.h - what a plan chooses on a GPU. */
#ifndef TUNED_H
#define TUNED_H

#include "plan/plan.h"

/* Those of an H200, which all choices of tests are made by that say no others. */
const imx_rates *tuned_rates(void);

/* Of a product in bf16, b as [n, k], that scatters or gathers, by ranks of one node with so many
 * multiprocessors each. */
imx_config tuned_on(int64_t m, int64_t n, int64_t k, int scatters, int ranks, int arch, int sms);

/* And by which algorithm; k = 0: of all_gather or reduce_scatter. */
imx_choice tuned_choice(int64_t m, int64_t n, int64_t k, int scatters, int ranks, int arch,
                        int sms);
imx_choice tuned_choice_of(const imx_op *op, int64_t m, int64_t n, int64_t k, int ranks, int arch,
                           int sms);

/* Whether it is chosen on Hopper; else it says what was. */
bool tuned_takes(const imx_op *op, int64_t m, int64_t n, int64_t k, int ranks, bool norms,
                 const char *algorithm);

#endif /* TUNED_H */
