/* sm80_sums.cuh - what the forms of the ll kernel on NVIDIA GPUs have in common: units as they
 * come, and sums of them.  A form says what it calls a unit, `at`:
 *
 *     unit_of(at)      its number in its shard, or in its piece of a row
 *     comes, arrival   of number p of what is looked at: whether its unit is sent; where it comes
 */
#ifndef IMX_LL_SM80_SUMS_CUH
#define IMX_LL_SM80_SUMS_CUH

#include "../trace.cuh"
#include "sm80_units.cuh"

#ifdef IMX_FANS
#define IMX_TWO_SHOTS 1
#else
#define IMX_TWO_SHOTS 0
#endif

enum {
    /* Peers, or ranks, whose units are looked at. */
    AT_ONCE = IMX_TWO_SHOTS && IMX_RANKS > 4 ? 4
              : IMX_RANKS <= 6               ? (IMX_REDUCES ? IMX_RANKS : IMX_RANKS - 1)
                                             : 5,
    TO_AT_ONCE = IMX_RANKS <= (IMX_TWO_SHOTS ? 4 : 8) ? IMX_RANKS : 3, /* peers that are sent to */
    SHORT = 256 << 10, /* bytes of a shard, up to which the kernel after had best come at once */
};

/* i = 1, 2, ...: each rank begins with another one. */
LL_FN int peer(const imx_ll_args &args, int i)
{
    int r = args.team.rank + i;
    return r < IMX_RANKS ? r : r - IMX_RANKS;
}

/* ---- what comes ------------------------------------------------------------------------------ */

/* In lines a warp's threads go on together: what one of them saw of a line's epoch is true of what
 * all of them read with the same instruction. */
LL_FN int together(int mine)
{
    return IMX_LINES ? __all_sync(0xffffffffu, mine) : mine;
}

/* What is looked at: the peers' rows; parts of all ranks, to be added in order; or peers' sums. */
enum stage { ROWS, PARTS, SUMS };

template <stage S> LL_FN int sender(const imx_ll_args &args, int p)
{
    return S == PARTS ? p : peer(args, p);
}

LL_FN int64_t unit_of(int64_t i)
{
    return i;
}

/* A form's own. */
template <stage S, typename At> LL_FN bool comes(const imx_ll_args &args, int p, At at);
template <stage S, typename At>
LL_FN const imx_ll_unit *arrival(const imx_ll_args &args, int p, At at, uint64_t epoch);

/* The units of AT_ONCE numbers from `first` on; 0: not all that come are there yet. */
template <stage S, typename At>
LL_FN int look(const imx_ll_args &args, At at, uint64_t epoch, int first, imx_ll_unit *unit)
{
    int there = 1;
    if (IMX_LINES)
        __syncwarp(); /* the same instruction for all */
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        if (comes<S>(args, first + j, at))
            unit[j] = load_unit(arrival<S>(args, first + j, at, epoch));
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        if (comes<S>(args, first + j, at))
            there &= is_here(unit_of(at), unit[j], epoch);
    }
    return together(there);
}

/* Until they are, with an eye on the clock; 0: give up. */
template <stage S, typename At>
LL_FN int wait_units(const imx_ll_args &args, const imbrexd_watch &watch, At at, uint64_t epoch,
                     int first)
{
    int there = 1;
#pragma unroll 1
    for (int p = first; p < first + AT_ONCE && there; p++) {
        imbrexd_wait_point point = { args.plan, S == ROWS ? IMX_POINT_CHUNK : IMX_POINT_PART,
                                     p < IMX_RANKS ? sender<S>(args, p) : -1, -1 };
        uint32_t data;
        if (!comes<S>(args, p, at))
            continue;
        const imx_ll_unit *unit = arrival<S>(args, p, at, epoch);
        if (is_flag(unit_of(at)))
            there = imbrexd_signal_wait(&watch, &unit->second, epoch, point);
        else if (!IMX_LINES)
            there = imbrexd_ll_wait(&watch, &unit->first, (uint32_t)epoch, point, &data) &&
                    imbrexd_ll_wait(&watch, &unit->second, (uint32_t)epoch, point, &data);
    }
    return together(there);
}

/* The same as look, until all are there. */
template <stage S, typename At>
LL_FN int take(const imx_ll_args &args, const imbrexd_watch &watch, At at, uint64_t epoch,
               int first, imx_ll_unit *unit)
{
#pragma unroll 1
    for (int looks = 0; !look<S>(args, at, epoch, first, unit); looks++) {
        if (looks >= IMX_TEAM_LOOKS && !wait_units<S>(args, watch, at, epoch, first))
            return 0;
    }
    return 1;
}

#if IMX_REDUCES

/* ---- sums ------------------------------------------------------------------------------------ */

enum { ELEMENTS = 8 }; /* of a unit, at most: f32 takes every other place */

/* sum = or += the elements of a unit. */
LL_FN void add_unit(float *sum, imx_ll_unit data, bool first)
{
    imx_vector_add_word(IMX_DTYPE, sum, data.first, first);
    if (IMX_LINES)
        imx_vector_add_word(IMX_DTYPE, sum + ELEMENTS / 2, data.second, first);
}

/* sum += the bias of the elements from `column` of `columns` on, and from 0 behind the last. */
LL_FN void add_bias(const void *bias, int64_t column, int64_t columns, float *sum)
{
    const int apart = IMX_IS_F32 ? 2 : 1;
#pragma unroll
    for (int j = 0; j < (IMX_LINES ? ELEMENTS : ELEMENTS / 2); j += apart) {
        sum[j] += imx_vector_get(IMX_DTYPE, bias, column);
        column = column + 1 < columns ? column + 1 : 0;
    }
}

LL_FN imx_ll_unit rounded(const float *sum)
{
    return imx_ll_unit{ imx_vector_round_word(IMX_DTYPE, sum),
                        IMX_LINES ? imx_vector_round_word(IMX_DTYPE, sum + ELEMENTS / 2) : 0 };
}

/* *to = the sum of a unit of all ranks, in their order; 0: gave up.  own, residual: where they
 * begin here, of so many bytes; residual may be NULL.  column: the unit's first.  What is here is
 * loaded before what comes. */
template <typename At>
LL_FN int sum_up(const imx_ll_args &args, const imbrexd_watch &watch, At at, uint64_t epoch,
                 const char *own_from, const char *residual_from, int64_t bytes, int64_t column,
                 imx_ll_unit *to)
{
    imx_ll_unit unit[AT_ONCE], own = load_data(own_from, bytes, unit_of(at));
    imx_ll_unit residual = { 0, 0 };
    float sum[ELEMENTS];
    if (residual_from)
        residual = load_data(residual_from, bytes, unit_of(at));
#pragma unroll 1
    for (int r = 0; r < IMX_RANKS; r += AT_ONCE) {
        if (!take<PARTS>(args, watch, at, epoch, r, unit))
            return 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (r + j < IMX_RANKS)
                add_unit(sum, r + j == args.team.rank ? own : unpack(unit[j]), r + j == 0);
        }
    }
    if (args.bias)
        add_bias(args.bias, column, args.row_bytes / (IMX_IS_F32 ? 4 : 2), sum);
    if (residual_from)
        add_unit(sum, residual, false);
    *to = rounded(sum);
    return 1;
}

#endif

#endif /* IMX_LL_SM80_SUMS_CUH */
