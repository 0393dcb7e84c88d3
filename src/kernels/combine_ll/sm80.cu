/* sm80.cu - the combine_ll kernel on NVIDIA GPUs.
 *
 *     IMX_DTYPE   imbrex_dtype of rows and sums
 *
 * A warp has 32 units of one token's sum at a time, its lanes one each, and between them the list
 * of the token's places.  First all peers' tokens are added up and sent, then own ones: what this
 * rank has of them is added up while the peers' is on its way.
 *
 * A block waits for any blocks of the peers: all of a grid are there at once.
 */
#include "../combine/sm80_places.cuh"
#include "../grid.cuh"
#include "../ll/sm80_lines.cuh"
#include "../wait_points.h"
#include "args.h"

enum { THREADS = 512, WARPS = THREADS / LANES, RANKS_AT_ONCE = 4 };
enum { ELEMENT = IMX_IS_F32 ? 4 : 2, ELEMENTS = 8 }; /* of a unit; f32 takes every other place */

/* ---- a token's ranks ------------------------------------------------------------------------- */

/* Those that have an expert of a token, if that is one of it. */
LL_FN unsigned ranks_of(const imx_combine_args &x, int32_t expert)
{
    if (expert < 0 || expert >= x.experts)
        return 0;
    if (!x.whole)
        return (1u << x.ranks) - 1;
    return 1u << imx_team_owner(x.experts, x.ranks, expert);
}

/* A lane's part of those that have a row of a token, a bit each. */
LL_FN unsigned some_ranks(const imx_combine_args &x, int64_t token)
{
    unsigned ranks = 0;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        int place = lane_of() + h * LANES;
        ranks |= place < x.top_k ? ranks_of(x, x.pair_expert[token * x.top_k + place]) : 0;
    }
    return ranks;
}

/* ---- sums ------------------------------------------------------------------------------------ */

LL_FN void add_unit(float *sum, imx_ll_unit data, bool first)
{
    imx_vector_add_word(IMX_DTYPE, sum, data.first, first);
    imx_vector_add_word(IMX_DTYPE, sum + ELEMENTS / 2, data.second, first);
}

LL_FN imx_ll_unit rounded(const float *sum)
{
    return imx_ll_unit{ imx_vector_round_word(IMX_DTYPE, sum),
                        imx_vector_round_word(IMX_DTYPE, sum + ELEMENTS / 2) };
}

/* Unit i of a token's sum over its places here, as it travels. */
LL_FN imx_ll_unit sum_places(const imx_combine_args &x, const places &p, int64_t i)
{
    float sum[ELEMENTS] = { 0.0f };
    auto load = [&](int64_t row) {
        return load_data((const char *)x.from + row * x.n * ELEMENT, x.n * ELEMENT, i);
    };
    auto add = [&](imx_ll_unit data, float weight, bool first) {
        float term[ELEMENTS];
        add_unit(term, data, true);
        add_weighted<ELEMENTS>(sum, term, weight, first);
    };
    each_place<imx_ll_unit>(p, load, add);
    return rounded(sum);
}

/* ---- the two halves of a run ----------------------------------------------------------------- */

struct run_of {
    const imx_combine_ll_args &args;
    const imbrexd_watch &watch;
    uint64_t epoch;
    int units, pieces; /* of a token; pieces: of 32 units */
};

LL_FN int peer(const imx_combine_ll_args &args, int i)
{
    int r = args.team.rank + i;
    return r < args.team.size ? r : r - args.team.size;
}

LL_FN imx_ll_unit *token_lines(const run_of &run, int holder, int of, int64_t token)
{
    const imx_combine_ll_args &args = run.args;
    return imx_combine_ll_token(&args, holder, of, run.epoch, token, args.combine.n * ELEMENT);
}

/* By a warp: a piece of what an owner gets of a token, if this rank has any of it. */
LL_FN void send_piece(const run_of &run, int owner, int64_t token, int64_t number, int piece)
{
    const imx_combine_args &x = run.args.combine;
    unsigned some = some_ranks(x, number);
    places p = places_of(x, number);
    int i = piece * LANES + lane_of();
    if (!(__reduce_or_sync(ALL, some) >> x.own & 1))
        return;
    imx_ll_unit data = sum_places(x, p, i);
    __syncwarp();
    if (i < run.units)
        store_unit(token_lines(run, owner, x.own, token) + i, pack(i, data, run.epoch));
}

LL_FN void send(const run_of &run, int warp, int warps)
{
    const imx_combine_args &x = run.args.combine;
    int most = (int)run.args.most, items = most * run.pieces;
    for (int at = warp; at < items * (x.ranks - 1); at += warps) {
        int owner = peer(run.args, 1 + at / items), token = at % items / run.pieces;
        int64_t first = imx_team_row(x.tokens, x.ranks, owner);
        if (first + token < imx_team_row(x.tokens, x.ranks, owner + 1))
            send_piece(run, owner, token, first + token, at % run.pieces);
    }
}

/* Adds the units i of those of `ranks` from number `from` on that are behind them, in their order;
 * 0: gave up. */
LL_FN int add_ranks(const run_of &run, int64_t token, int i, unsigned ranks, imx_ll_unit own,
                    float *sum, bool *first)
{
    const imx_combine_args &x = run.args.combine;
    auto point = [&](const imx_ll_unit *at) {
        int64_t part =
            ((const char *)at - imx_team_data(&run.args.team, x.own)) / run.args.part_bytes;
        return imbrexd_wait_point{ run.args.plan, IMX_POINT_PART, (int)(part % x.ranks), -1 };
    };
#pragma unroll 1
    for (int from = 0; from < x.ranks; from += RANKS_AT_ONCE) {
        imx_ll_units_of<RANKS_AT_ONCE> u;
#pragma unroll
        for (int j = 0; j < RANKS_AT_ONCE; j++) {
            int r = from + j;
            bool comes = ranks >> r & 1 && r != x.own && i < run.units;
            u.at[j] = comes ? token_lines(run, x.own, r, token) + i : NULL;
            u.unit[j] = own; /* which stays, if it is this rank's */
        }
        if (!take_lines(u, run.epoch, run.watch, point))
            return 0;
#pragma unroll
        for (int j = 0; j < RANKS_AT_ONCE; j++) {
            if (ranks >> (from + j) & 1) {
                add_unit(sum, u.unit[j], *first);
                *first = false;
            }
        }
    }
    return 1;
}

/* By a warp: a piece of an own token's sum; 0: gave up. */
LL_FN int receive_piece(const run_of &run, int64_t token, int piece)
{
    const imx_combine_args &x = run.args.combine;
    int64_t bytes = x.n * ELEMENT;
    int i = piece * LANES + lane_of();
    unsigned some = some_ranks(x, x.first + token);
    places p = places_of(x, x.first + token);
    unsigned ranks = __reduce_or_sync(ALL, some);
    float sum[ELEMENTS] = { 0.0f };
    bool first = true;
    imx_ll_unit own = { 0, 0 }, bias = { 0, 0 }, residual = { 0, 0 };
    if (ranks >> x.own & 1)
        own = sum_places(x, p, i);
    if (x.bias)
        bias = load_data((const char *)x.bias, bytes, i);
    if (x.residual)
        residual = load_data((const char *)x.residual + token * bytes, bytes, i);
    if (!add_ranks(run, token, i, ranks, own, sum, &first))
        return 0;
    if (x.bias) {
        add_unit(sum, bias, first);
        first = false;
    }
    if (x.residual)
        add_unit(sum, residual, first);
    if (i < run.units)
        store_data((char *)x.to + token * bytes, bytes, i, rounded(sum));
    return 1;
}

/* By a lane a peer. */
LL_FN void say_come(const run_of &run)
{
    int to = (int)threadIdx.x;
    if (to < run.args.team.size && to != run.args.team.rank)
        store_unit(imx_combine_ll_part(&run.args, to, run.args.team.rank, run.epoch) +
                       IMX_LL_UNITS - 1,
                   imx_ll_unit{ 0, run.epoch });
}

LL_FN void wait_for_peers(const run_of &run)
{
    int from = (int)threadIdx.x;
    if (from < run.args.team.size && from != run.args.team.rank) {
        imbrexd_wait_point point = { run.args.plan, IMX_POINT_PART, from, -1 };
        imbrexd_signal_wait(
            &run.watch,
            &imx_combine_ll_part(&run.args, run.args.team.rank, from, run.epoch)[IMX_LL_UNITS - 1]
                 .second,
            run.epoch, point);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imx_combine_ll(const __grid_constant__ imx_combine_ll_args args,
                   const __grid_constant__ imbrexd_watch watch)
{
    imx_grid_let_go();
    imx_grid_wait();
    uint64_t *at = &args.uses[blockIdx.x];
    int warp = (int)(threadIdx.x / LANES * gridDim.x + blockIdx.x), warps = WARPS * (int)gridDim.x;
    int units = (int)imx_combine_ll_units(args.combine.n * ELEMENT);
    run_of run = { args, watch, *(volatile uint64_t *)at + 1, units, (units + LANES - 1) / LANES };
    if (blockIdx.x == 0)
        say_come(run);
    __syncthreads(); /* all threads have read the epoch */
    if (threadIdx.x == 0)
        *(volatile uint64_t *)at = run.epoch;
    send(run, warp, warps);
    for (int item = warp; item < (int)args.own * run.pieces; item += warps) {
        if (!receive_piece(run, item / run.pieces, item % run.pieces))
            return;
    }
    if (blockIdx.x == 0)
        wait_for_peers(run);
}
