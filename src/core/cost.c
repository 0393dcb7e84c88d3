/* cost.c - expected times of algorithms, from constants that were measured on H200s with NVLink.
 *
 *     a product takes      its multiplications at the rate of large ones, or the reading of its
 *                          operands, whichever is longer
 *     an algorithm adds    what it starts with, and what of its sending is not hidden
 */
#include "cost.h"

#include "../kernels/team.h"

/* In microseconds, and bytes or operations in one of them. */
static const double PRODUCT_RATE = 700e6, PRODUCT_RATE_F32 = 60e6; /* operations */
static const double MEMORY_RATE = 4.0e6;
static const double COPY_RATE = 280e3;        /* copy engine, to all peers in turn */
static const double STORE_RATE = 350e3;       /* stores of a kernel that does nothing else */
static const double PUSH_MARGIN = 1.25;       /* of the pace that just suffices */
static const double PUSH_MARGIN_FIRST = 1.5;  /* to the first peer, where that is not fast */
static const double PUSH_FAST = 0.65;         /* of STORE_RATE: a product feels it */
static const double PUSH_ALL = 0.85;          /* and from here on a pace has no sense */
static const double SLICE_RATE = 250e3;       /* at which slices follow each other, */
static const double SLICE_MARGIN = 0.65;      /* or in so much of a tile's time, if that is less, */
static const double SLICE_MARGIN_WAVES = 0.9; /* or of one that is not the only one */
static const double SLICES_BEGIN = 8;         /* until the first one is here */
static const double SLICES_SHARE = 0.35;      /* and of the time by STORE_RATE of them all */
static const double PUSH_BEGINS = 12;         /* and skew between ranks */
static const double CLOCK = 1600;             /* cycles: 1300 to 1980 */
static const double MEET = 10;                /* all ranks tell all, and wait */
static const double SUM_BEGINS = 1.8;         /* what tells itself that it came, out of registers */
static const double SUM_SHARE = 1.2;          /* and its bytes, of those by STORE_RATE */
static const double LL_BEGINS = 2.2;          /* between two */
static const double LL_BYTES_MOST = 64 << 10; /* of a share: measured up to there */
static const double LL_SENT_MOST = 2 << 20;   /* of a rank, before a product */

typedef struct sizes {
    double product;  /* of one rank */
    double sent;     /* bytes that a rank sends */
    double covering; /* of the product, beside which sending may go on */
} sizes;

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
    double m = (double)s->m, n = (double)s->n, k = (double)s->k;
    double element = (double)imx_dtype_bytes(s->dtype);
    double rate = s->dtype == IMBREX_F32 ? PRODUCT_RATE_F32 : PRODUCT_RATE;
    return most(2 * m * n * k / rate, (m * k + n * k + m * n) * element / MEMORY_RATE);
}

static sizes sizes_of(const imx_tune_input *in)
{
    const imx_shape *s = &in->shape;
    double width = (double)(in->product && !in->scatters ? s->k : s->n), ranks = in->ranks;
    double element = (double)imx_dtype_bytes(s->dtype);
    sizes z = { .sent = (double)s->m / ranks * width * element * (ranks - 1) };
    if (in->product) {
        z.product = imx_cost_product(in);
        z.covering = z.product * (ranks - 1) / ranks;
    }
    return z;
}

/* Beyond the product, in microseconds.  Copies and flags take ten and two to start; what a second
 * stream hides still takes memory and links from the product. */
static double sequential(const imx_tune_input *in, const sizes *z)
{
    if (!in->product)
        return 50 + z->sent / COPY_RATE;
    return in->scatters ? 45 + 1.05 * z->sent / COPY_RATE : 55 + 0.8 * z->sent / COPY_RATE;
}

static double copy(const imx_tune_input *in, const sizes *z, const imx_config *config)
{
    double sending = z->sent / COPY_RATE;
    if (!in->product)
        return 35 + sending;
    if (config->merged)
        return 45 + sending;
    return 30 + (in->scatters ? 0.35 * sending : 0.06 * sending) + most(sending - z->covering, 0);
}

/* Stores of a product's blocks hold up its loads.  A merged product waits for the first slices of a
 * only, but sends c at its end. */
static double store(const imx_tune_input *in, const sizes *z, const imx_config *config)
{
    double sending = z->sent / STORE_RATE;
    if (!in->product)
        return 6 + sending;
    if (!config->pushes_beside && !(in->scatters && config->merged)) /* those that multiply send */
        return 12 + (in->scatters ? 3.3 : 1) * sending;
    if (config->merged && in->scatters) { /* all parts but the last go beneath the next */
        double beneath = z->product * (1 - 1.0 / config->parts);
        double left = most(sending / config->parts, sending - beneath);
        return config->sums ? SUM_BEGINS + SUM_SHARE * left : 10 + left;
    }
    if (config->merged)
        return SLICES_BEGIN + most(sending - z->product, SLICES_SHARE * sending);
    return (in->scatters ? 10 + 0.2 * sending : 5 + 0.1 * sending) + most(sending - z->covering, 0);
}

/* Tiles that pass rows on hold their stages a little longer, and the steps' seams show.  On two
 * H200s it took 0.01 to 0.04 more than store, so it is not among those to choose from. */
static double ring(const imx_tune_input *in, const sizes *z)
{
    double sending = z->sent / STORE_RATE;
    return 4 * (in->ranks - 1) + 0.35 * sending + most(sending - z->covering, 0);
}

/* As words, the longer ones of its two forms.  Nothing hides it. */
static double ll(const sizes *z)
{
    return LL_BEGINS + 2 * z->sent / STORE_RATE;
}

static bool may_ll(const imx_tune_input *in, const sizes *z)
{
    if (in->product && !in->scatters)
        return z->sent <= LL_SENT_MOST;
    return (in->product || !in->scatters) && z->sent <= LL_BYTES_MOST * (in->ranks - 1);
}

/* Clock cycles for 64 KB at a rate; 0: they can hardly come too fast. */
static int pace(double rate)
{
    return rate < PUSH_ALL * STORE_RATE ? (int)(65536 / most(rate, 1e3) * CLOCK) : 0;
}

/* A slice is to be there when the first tiles have come so far, and not much sooner: its stores
 * would stand in the way of the loads, and of the slice before, which the tiles wait for. */
static void set_slices_pace(const imx_tune_input *in, const sizes *z, imx_config *config)
{
    int64_t tiles =
        imx_ceil_div(in->shape.m, config->tile_rows) * imx_ceil_div(in->shape.n, config->tile_cols);
    double waves = most((double)imx_ceil_div(tiles, config->tiles_at_once), 1);
    double margin = waves > 1 ? SLICE_MARGIN_WAVES : SLICE_MARGIN;
    double most_late = margin * z->product / waves, gently = z->sent / SLICE_RATE;
    double sending = most(z->sent / STORE_RATE, gently < most_late ? gently : most_late);
    config->push_pace[0] = (int)(sending / config->slices * CLOCK);
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
static void set_pace(const imx_tune_input *in, const sizes *z, imx_config *config)
{
    if (!in->product || in->scatters || !config->pushes_beside)
        return;
    if (config->merged) {
        set_slices_pace(in, z, config);
        return;
    }
    double ranks = in->ranks, at_once = config->tiles_at_once;
    double rows = (double)imx_ceil_div(imx_ceil_div(in->shape.m, in->ranks), config->tile_rows);
    double own = rows * (double)imx_ceil_div(in->shape.n, config->tile_cols);
    double wave = z->product * at_once / (own * ranks), share = z->sent / (ranks - 1);
    double need = share / most(wave * whole_waves(own / at_once) - PUSH_BEGINS, 1);
    double sooner = least(PUSH_MARGIN_FIRST * need, PUSH_FAST * STORE_RATE);
    double rest = z->sent / most(z->covering, 1);
    if (config->band > 1 && in->ranks > 3) /* three ranks' rows are wanted when the second's are */
        rest = most(rest, 3 * share / most(wave * whole_waves(2 * own / at_once) - PUSH_BEGINS, 1));
    config->push_pace[0] = pace(most(PUSH_MARGIN * need, sooner));
    config->push_pace[1] = pace(PUSH_MARGIN * rest);
}

void imx_cost_choose(const imx_tune_input *in, imx_config *config)
{
    sizes z = sizes_of(in);
    set_pace(in, &z, config);
    bool ag_gemm = in->product && !in->scatters, by_kernel = in->ranks <= IMX_TEAM_MOST;
    struct {
        const char *name;
        double us;
        bool may;
    } expected[] = {
        { "copy", z.product + copy(in, &z, config), true },
        { "sequential", z.product + sequential(in, &z), true },
        { "store", z.product + store(in, &z, config), by_kernel },
        { "pull", z.product + copy(in, &z, config) + MEET, ag_gemm },
        { "ll", z.product + ll(&z), by_kernel && may_ll(in, &z) },
    };
    int count = sizeof expected / sizeof expected[0], best = 0;
    imx_text why = { .at = config->why, .size = sizeof config->why };
    imx_text_add(&why, "expected us:");
    for (int i = 0; i < count; i++) {
        if (!expected[i].may)
            continue;
        imx_text_add(&why, " %s %.0f", expected[i].name, expected[i].us);
        if (expected[i].us < expected[best].us)
            best = i;
    }
    if (ag_gemm && !config->merged && by_kernel && (!in->arch || config->pushes_beside))
        imx_text_add(&why, "; if asked for, ring %.0f", z.product + ring(in, &z));
    config->algorithm = expected[best].name;
}
