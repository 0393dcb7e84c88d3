/* cost.c - expected times, from a device's rates.
 *
 *     a product takes      its multiplications at the rate of large ones, or the reading of its
 *                          operands, whichever is longer
 *     an algorithm adds    what it starts with, and what of its sending is not hidden: its operator
 *                          says how much
 */
#include "cost.h"

/* Fitted to H200s, for want of others; in microseconds, or of what is named. */
static const double PUSH_MARGIN = 1.25;       /* of the pace that just suffices */
static const double PUSH_MARGIN_FIRST = 1.5;  /* to the first peer, where that is not fast */
static const double PUSH_FAST = 0.65;         /* of the rate of stores: a product feels it */
static const double PUSH_ALL = 0.85;          /* and from here on a pace has no sense */
static const double SLICE_MARGIN = 0.65;      /* of a tile's time, in which slices follow, */
static const double SLICE_MARGIN_WAVES = 0.9; /* or of one that is not the only one */
static const double PUSH_BEGINS = 12;         /* and skew between ranks */
static const double PACE_MOST = 1 << 24;      /* clock cycles: 10 ms, and a kernel counts in ints */

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

double imx_cost_product(const imx_tune_input *in)
{
    const imx_shape *s = &in->shape;
    double m = in->experts ? in->expert_rows : (double)s->m, n = (double)s->n, k = (double)s->k;
    double element = (double)imx_dtype_bytes(s->dtype), out = (double)imx_dtype_bytes(s->out);
    double b = n * k * (in->experts ? least(in->experts, m) : 1);
    double rate = s->dtype == IMBREX_F32        ? in->rates->f32
                  : imx_dtype_is_8bit(s->dtype) ? in->rates->fp8
                                                : in->rates->bf16;
    return most(2 * m * n * k / rate, ((m * k + b) * element + m * n * out) / in->rates->memory);
}

imx_problem imx_cost_problem(const imx_tune_input *in, const imx_config *config)
{
    const imx_shape *s = &in->shape;
    bool multiplies = in->product || in->experts;
    double width = (double)(multiplies && !in->scatters ? s->k : s->n), ranks = in->ranks;
    double element = (double)imx_dtype_bytes(in->scatters ? s->out : s->dtype);
    imx_problem p = { .in = in,
                      .config = config,
                      .sent = (double)s->m / ranks * width * element * (ranks - 1) };
    if (multiplies && in->arch) {
        p.product = imx_cost_product(in);
        p.covering = p.product * (ranks - 1) / ranks;
    }
    return p;
}

double imx_cost_made(const imx_tune_input *in, double elements)
{
    const imx_rates *rates = in->rates;
    double rate = imx_dtype_is_8bit(in->shape.dtype) ? rates->block_fp8 : rates->block;
    return elements * (double)in->shape.k / rate;
}

/* What is stored leaves beneath other ranks' tiles, but for a part; the last ones are added behind
 * all products. */
double imx_cost_stored(const imx_tune_input *in, double made)
{
    static const double ends = 10, share = 0.2;
    double sending = imx_cost_problem(in, NULL).sent / in->rates->store;
    double covering = made * (in->ranks - 1) / in->ranks;
    return made + ends + share * sending + imx_cost_left(sending, covering);
}

/* Each tile leaves at once, so that nothing is left over where products are short. */
double imx_cost_summed(const imx_tune_input *in, double made)
{
    static const double ends = 4, share = 0.35;
    return made + ends + share * imx_cost_problem(in, NULL).sent / in->rates->store;
}

double imx_cost_read(const imx_tune_input *in, double made)
{
    static const double ends = 10, share = 0.2, slower = 1.14;
    return slower * made + ends + share * imx_cost_problem(in, NULL).sent / in->rates->store;
}

/* A fit to sums alone of 1.3 to 3.8 MB that each of two H200s sent. */
double imx_cost_behind(const imx_tune_input *in, double made)
{
    static const double begins = 7, share = 1.28;
    return made + begins + share * imx_cost_problem(in, NULL).sent / in->rates->store;
}

/* The share is a guess between what two measured choices leave open. */
double imx_cost_sliced(const imx_tune_input *in, double made)
{
    static const double share = 0.67;
    return made + share * imx_cost_problem(in, NULL).sent / in->rates->slices;
}

/* Clock cycles for 64 KB at a rate; 0: they can hardly come too fast. */
static int pace(const imx_rates *rates, double rate)
{
    return rate < PUSH_ALL * rates->store
               ? (int)least(65536 / most(rate, 1e3) * rates->clock, PACE_MOST)
               : 0;
}

/* A slice is to be there when the first tiles have come so far, and not much sooner: its stores
 * would stand in the way of the loads, and of the slice before, which the tiles wait for. */
static void set_slices_pace(const imx_problem *z, imx_config *config)
{
    const imx_tune_input *in = z->in;
    int64_t tiles =
        imx_ceil_div(in->shape.m, config->tile_rows) * imx_ceil_div(in->shape.n, config->tile_cols);
    double waves = most((double)imx_ceil_div(tiles, config->tiles_at_once), 1);
    double margin = waves > 1 ? SLICE_MARGIN_WAVES : SLICE_MARGIN;
    double most_late = margin * z->product / waves, gently = z->sent / in->rates->slices;
    double sending = most(z->sent / in->rates->store, gently < most_late ? gently : most_late);
    config->push_pace[0] = (int)least(sending / config->slices * in->rates->clock, PACE_MOST);
}

/* Behind so many waves' tiles the next one is made in this wave, if not with the last few of it. */
static double whole_waves(double waves)
{
    return (double)(int64_t)(waves + 0.1);
}

/* Each rank's rows are to be there when the product comes to them, and no sooner: the slower the
 * stores, the less they stand in the way of the product's loads.  It comes to the first peer's with
 * the first wave of tiles that is not its own rows' (or hardly so).  Where its own warps push, the
 * product waits for them: they are to be done soon. */
void imx_cost_set_pace(const imx_tune_input *in, imx_config *config)
{
    const imx_problem problem = imx_cost_problem(in, config), *z = &problem;
    if (!in->product || in->scatters || !config->pushes_beside)
        return;
    if (config->spanning && !config->passes)
        return;
    if (config->spanning) {
        set_slices_pace(z, config);
        return;
    }
    double ranks = in->ranks, at_once = config->tiles_at_once;
    double rows = (double)imx_ceil_div(imx_ceil_div(in->shape.m, in->ranks), config->tile_rows);
    double own = rows * (double)imx_ceil_div(in->shape.n, config->tile_cols);
    double wave = z->product * at_once / (own * ranks), share = z->sent / (ranks - 1);
    double need = share / most(wave * whole_waves(own / at_once) - PUSH_BEGINS, 1);
    double sooner = least(PUSH_MARGIN_FIRST * need, PUSH_FAST * in->rates->store);
    double rest = z->sent / most(z->covering, 1);
    if (config->band > 1 && in->ranks > 3) /* three ranks' rows are wanted when the second's are */
        rest = most(rest, 3 * share / most(wave * whole_waves(2 * own / at_once) - PUSH_BEGINS, 1));
    config->push_pace[0] = pace(in->rates, most(PUSH_MARGIN * need, sooner));
    config->push_pace[1] = pace(in->rates, PUSH_MARGIN * rest);
}
