/* cost.h - what a way to do an operator is expected to take on a GPU: terms that operators' own
 * formulas are made of (imx_algorithm.cost).  Pure functions.
 *
 * They are made of the device's rates, and of constants that were fitted to 2 and 4 H200s with
 * NVLink; docs/results.md has the figures.  Other links move the numbers, seldom the order.
 */
#ifndef IMX_COST_H
#define IMX_COST_H

#include <math.h>

#include "config.h"

/* An algorithm of this cost runs where it is named, and is not chosen. */
#define IMX_COST_NEVER HUGE_VAL

/* What a movement by copies begins with, and data with flags, took so many microseconds where it
 * was fitted: where copy_us is 35, and signal_us 2.2.  Elsewhere it takes as much more as these. */
static inline double imx_cost_of_copies(const imx_rates *rates, double us)
{
    return us * (rates->copy_us / 35);
}

static inline double imx_cost_of_signals(const imx_rates *rates, double us)
{
    return us * (rates->signal_us / 2.2);
}

/* Likewise what was stored to peers, at 350 GB/s. */
static inline double imx_cost_of_stores(const imx_rates *rates, double us)
{
    return us * (350e3 / rates->store);
}

/* What is to be done, how it is cut, and what that comes to.  Times are in microseconds. */
typedef struct imx_problem {
    const imx_tune_input *in;
    const imx_config *config;
    double product;  /* of one rank, by itself */
    double sent;     /* bytes that a rank sends */
    double covering; /* of the product, beside which sending may go on */
} imx_problem;

imx_problem imx_cost_problem(const imx_tune_input *input, const imx_config *config);

/* What a rank's product takes by itself. */
double imx_cost_product(const imx_tune_input *input);

/* A product that scatters, by tiles of one rank's rows, which go to their owner's slot; and by
 * tiles of several ranks' rows, which warps that take turns make and add up.  made: what the
 * product takes in such tiles. */
double imx_cost_stored(const imx_tune_input *input, double made);
double imx_cost_summed(const imx_tune_input *input, double made);

/* The same of other tiles of several ranks' rows, which peers read while the next ones are made;
 * and of a product made alone, which a kernel behind it adds up. */
double imx_cost_read(const imx_tune_input *input, double made);
double imx_cost_behind(const imx_tune_input *input, double made);

/* A product that gathers, by tiles of several ranks' rows, which come by slices of k beneath the
 * first ones, but for a part that these wait for. */
double imx_cost_sliced(const imx_tune_input *input, double made);

/* What a block takes for so many elements of c. */
double imx_cost_made(const imx_tune_input *input, double elements);

/* Sets config->push_pace. */
void imx_cost_set_pace(const imx_tune_input *input, imx_config *config);

/* How long it takes to send all, and what of that does not go on beneath `covered`. */
static inline double imx_cost_left(double sending, double covered)
{
    return sending > covered ? sending - covered : 0;
}

#endif /* IMX_COST_H */
