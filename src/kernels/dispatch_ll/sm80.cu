/* sm80.cu - the dispatch_ll kernel on NVIDIA GPUs.
 *
 *     all blocks | ids, weights, rows of own tokens to all who want them |
 *                | ids of all ranks, as they come: how many pairs each expert has |
 *                | a block's share of all tokens: their rows, as they come, to all places in c |
 *
 * Every block takes all ids and counts for itself: no block tells another anything.  This rank is
 * sent what is its own, too.  A block waits for any blocks of all ranks, its own among them: all of
 * a grid are there at once, and send before they wait.
 */
#include "../grid.cuh"
#include "../ll/sm80_lines.cuh"
#include "../route/sm80_places.cuh"
#include "../row.cuh"
#include "../wait_points.h"
#include "args.h"

enum { THREADS = 512, WARPS = THREADS / 32, LANES = 32 };
enum { AHEAD = 4 /* units of a thread that are under way */ };
enum { PLACES = 64 /* of a token, at most */, EIGHT = 8 /* pairs that a lane looks at together */ };
enum : unsigned { ALL = 0xffffffff }; /* lanes */

/* Of a block; and in dynamic shared memory the expert of each pair, counted from this rank's first;
 * -1: it is not here. */
struct shared : places {
    int32_t row[2][PLACES]; /* of the places of a token, and of the next one; -1: it has none */
};

extern __shared__ __attribute__((aligned(16))) int16_t expert_of[];

struct run_of {
    const imx_dispatch_ll_args &args;
    const imbrexd_watch &watch;
    uint64_t epoch;
    int32_t pairs;  /* of a rank */
    int32_t words;  /* units of its ids, and of its weights */
    int32_t units;  /* of a token */
    int32_t bytes;  /* of a row in c */
    int32_t blocks; /* scales of a row */
};

LL_FN imx_ll_unit *part(const run_of &run, int holder, int of)
{
    return imx_dispatch_ll_part(&run.args, holder, of, run.epoch);
}

/* i = 1, 2, ...: each rank begins with another one, and ends with itself. */
LL_FN int target(const run_of &run, int i)
{
    int r = run.args.team.rank + i;
    return r < run.args.team.size ? r : r - run.args.team.size;
}

LL_FN int warps_lane(void)
{
    return (int)threadIdx.x % LANES;
}

/* ---- sends ----------------------------------------------------------------------------------- */

/* Number i of own ids, then of weights, of tokens that are not there none. */
LL_FN uint32_t word_of(const run_of &run, bool weight, int64_t i)
{
    const imx_dispatch_args &d = run.args.dispatch;
    bool own = i < (int64_t)d.tokens * d.top_k;
    if (!weight)
        return own ? (uint32_t)d.ids[i] : (uint32_t)-1;
    return __float_as_uint(!own ? 0.0f : d.weights ? d.weights[i] : 1.0f);
}

/* To all ranks. */
LL_FN void send_words(const run_of &run)
{
    int32_t step = (int32_t)(gridDim.x * THREADS), lane = warps_lane();
    for (int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x); i - lane < 2 * run.words;
         i += step) {
        bool weight = i >= run.words;
        int64_t unit = weight ? i - run.words : i, first = data_at(unit) / 4;
        uint32_t word[4] = { 0, 0, 0, 0 };
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (first + j < run.pairs && i < 2 * run.words)
                word[j] = word_of(run, weight, first + j);
        }
        imx_ll_unit data = { word[0] | (uint64_t)word[1] << 32, word[2] | (uint64_t)word[3] << 32 };
        __syncwarp();
        for (int r = 1; r <= run.args.team.size && i < 2 * run.words; r++)
            store_unit(part(run, target(run, r), run.args.team.rank) + i,
                       pack(unit, data, run.epoch));
    }
}

/* By a warp: ranks that have an expert of an own token, a bit each. */
LL_FN unsigned targets_of(const run_of &run, int32_t token)
{
    const imx_dispatch_args &d = run.args.dispatch;
    unsigned targets = 0;
    for (int place = warps_lane(); place < d.top_k; place += LANES) {
        int to = imx_dispatch_target(&d, d.ids[(int64_t)token * d.top_k + place]);
        targets |= to < 0 ? 0u : 1u << to;
    }
    return __reduce_or_sync(ALL, targets);
}

/* An own row as it travels. */
struct wire_row {
    const char *at;
    int64_t bytes;
};

/* By all threads, which meet: into local memory. */
LL_FN wire_row quantized(const run_of &run, int32_t token)
{
    const imx_dispatch_args &d = run.args.dispatch;
    int64_t bytes = imx_dispatch_ll_row(&d);
    char *to = d.data[0] + token * ((bytes + 15) / 16 * 16);
    float *scales = (float *)(to + d.row_bytes);
    const char *row = (const char *)d.a + token * d.n * imx_vector_bytes(d.dtype);
    int n = (int)d.n;
    for (int first = 0; first < n; first += THREADS * IMX_ROW_COLS) {
        int column = first + (int)threadIdx.x * IMX_ROW_COLS;
        float x[IMX_ROW_COLS];
        imx_row_load(d.dtype, row, column, n, x);
        float scale = imx_scale_of(imx_row_largest_of(imx_row_largest(x), IMX_ROW_HALF), 0);
#pragma unroll
        for (int j = 0; j < IMX_ROW_COLS; j++)
            x[j] = __fdiv_rn(x[j], scale);
        if (column >= n)
            continue;
        imx_row_store_e4m3(to, column, n, x);
        if (column % IMX_DISPATCH_BLOCK == 0)
            scales[column / IMX_DISPATCH_BLOCK] = scale;
    }
    __syncthreads();
    return wire_row{ to, bytes };
}

/* Lines [from, to) of a token. */
LL_FN void send_lines(const run_of &run, const wire_row &row, int32_t token, unsigned targets,
                      int32_t from, int32_t to)
{
    int32_t end = to * IMX_LL_UNITS;
    int64_t at = imx_dispatch_ll_token(&run.args.dispatch, token);
    for (int32_t i = from * IMX_LL_UNITS + (int32_t)threadIdx.x; i - warps_lane() < end;
         i += THREADS) {
        imx_ll_unit unit = { 0, 0 };
        if (i < end)
            unit = pack(i, load_data(row.at, row.bytes, i), run.epoch);
        __syncwarp();
        for (int r = 1; r <= run.args.team.size; r++) {
            int holder = target(run, r);
            if (i < end && targets >> holder & 1)
                store_unit(part(run, holder, run.args.team.rank) + at + i, unit);
        }
    }
}

/* A token is one block's, or, where there are blocks enough, several': not of rows that are
 * quantized first. */
LL_FN void send_rows(const run_of &run)
{
    const imx_dispatch_args &d = run.args.dispatch;
    bool quantizes = d.wire == IMBREX_E4M3;
    int32_t lines = run.units / IMX_LL_UNITS;
    int32_t pieces = quantizes || d.tokens == 0 ? 1 : (int32_t)gridDim.x / d.tokens;
    pieces = pieces < 1 ? 1 : pieces;
    for (int32_t item = (int32_t)blockIdx.x; item < d.tokens * pieces; item += (int32_t)gridDim.x) {
        int32_t token = item / pieces, piece = item % pieces;
        unsigned targets = targets_of(run, token);
        if (!targets)
            continue;
        wire_row row = { (const char *)d.a + token * (int64_t)run.bytes, run.bytes };
        if (quantizes)
            row = quantized(run, token);
        send_lines(run, row, token, targets, lines * piece / pieces, lines * (piece + 1) / pieces);
    }
}

/* ---- ids and weights of all ------------------------------------------------------------------ */

struct point_of {
    const run_of &run;
    __device__ imbrexd_wait_point operator()(const imx_ll_unit *at) const
    {
        int rank = run.args.team.rank;
        int64_t number =
            ((const char *)at - imx_team_data(&run.args.team, rank)) / run.args.part_bytes;
        return imbrexd_wait_point{ run.args.plan, IMX_POINT_CHUNK,
                                   (int32_t)(number % run.args.team.size), -1 };
    }
};

/* A lane's unit number i of all ranks' ids, or weights, which begin at unit `at` of a part: the
 * pair that it begins with, and its words; *count: 0 if it has none.  0: gave up. */
LL_FN int take_words(const run_of &run, int32_t i, int64_t at, int32_t *pair, int *count,
                     uint32_t (&word)[4])
{
    imx_ll_units_of<1> u;
    int32_t of = i / run.words, unit = i - of * run.words;
    bool is_one = of < run.args.team.size;
    u.at[0] = is_one ? part(run, run.args.team.rank, of) + at + unit : NULL;
    if (!take_lines(u, run.epoch, run.watch, point_of{ run }))
        return 0;
    int32_t first = (int32_t)data_at(unit) / 4, most = is_flag(unit) ? 2 : 4;
    *pair = of * run.pairs + first;
    *count = !is_one || first >= run.pairs ? 0
             : run.pairs - first < most    ? run.pairs - first
                                           : most;
    word[0] = (uint32_t)u.unit[0].first, word[1] = (uint32_t)(u.unit[0].first >> 32);
    word[2] = (uint32_t)u.unit[0].second, word[3] = (uint32_t)(u.unit[0].second >> 32);
    return 1;
}

/* A block tells of every so-many-th group of ids what is each pair's own. */
LL_FN void note_id(const run_of &run, shared *s, int32_t pair, int32_t id, bool tells)
{
    const imx_route_args &route = run.args.route;
    bool here = is_here(route, id);
    int32_t e = here ? id - route.first : -1;
    expert_of[pair] = (int16_t)e;
    if (here)
        atomicAdd(&s->count[e], 1);
    if (tells)
        route.pair_expert[pair] = id >= 0 && id < route.experts ? id : -1;
    if (tells && !here)
        route.pair_row[pair] = -1;
}

/* By all threads, which meet behind it; 0: gave up. */
LL_FN int take_ids(const run_of &run, shared *s)
{
    int there = 1;
    int32_t units = run.words * run.args.team.size;
    for (int32_t i = (int32_t)threadIdx.x; there && i - warps_lane() < units; i += THREADS) {
        int32_t pair;
        int count;
        uint32_t word[4];
        bool tells = i / LANES % (int32_t)gridDim.x == (int32_t)blockIdx.x;
        there = take_words(run, i, 0, &pair, &count, word);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (there && j < count)
                note_id(run, s, pair + j, (int32_t)word[j], tells);
        }
    }
    return __syncthreads_and(there);
}

LL_FN int take_weights(const run_of &run)
{
    int there = 1;
    int32_t units = run.words * run.args.team.size, step = (int32_t)gridDim.x * THREADS;
    int32_t warp = (int32_t)(threadIdx.x / LANES * gridDim.x + blockIdx.x);
    for (int32_t i = warp * LANES + warps_lane(); there && i - warps_lane() < units; i += step) {
        int32_t pair;
        int count;
        uint32_t word[4];
        there = take_words(run, i, run.words, &pair, &count, word);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (there && j < count)
                run.args.route.weights[pair + j] = __uint_as_float(word[j]);
        }
    }
    return there;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* By a warp: how many pairs ahead of one are of its expert, e. */
LL_FN int32_t pairs_ahead(int32_t pair, int32_t e)
{
    int32_t ahead = 0;
    for (int32_t i = warps_lane() * EIGHT; i < pair; i += LANES * EIGHT) {
        union {
            uint4 all;
            int16_t of[EIGHT];
        } experts = { *(const uint4 *)&expert_of[i] };
#pragma unroll
        for (int j = 0; j < EIGHT; j++)
            ahead += i + j < pair && experts.of[j] == e;
    }
    return (int32_t)__reduce_add_sync(ALL, (uint32_t)ahead);
}

/* By all threads: the rows of a token's places.  tells: who writes them down, too. */
LL_FN void find_rows(const run_of &run, const places *s, int32_t token, bool tells, int32_t *rows)
{
    const imx_route_args &route = run.args.route;
    for (int32_t place = (int32_t)threadIdx.x / LANES; place < route.top_k; place += WARPS) {
        int32_t pair = token * route.top_k + place, e = expert_of[pair], row = -1;
        if (e >= 0)
            row = s->begin[e] + pairs_ahead(pair, e);
        if (e >= 0 && row >= limit_of(route, s, e))
            row = -1;
        if (warps_lane())
            continue;
        rows[place] = row;
        if (tells && e >= 0)
            route.pair_row[pair] = row;
        if (tells && row >= 0)
            route.row_pair[row] = pair;
    }
}

/* 8 bytes of a row that has come, from byte `at` on: of c, or two scales. */
LL_FN void put_word(const run_of &run, int64_t row, int32_t at, uint64_t word)
{
    const imx_dispatch_args &d = run.args.dispatch;
    char *c = (char *)d.c + row * run.bytes + at;
    int32_t left = run.bytes - at, scale = (at - (int32_t)d.row_bytes) / 4;
    if (left > 0 && (d.wire != IMBREX_E4M3 || (left >= 8 && ((uintptr_t)c & 7) == 0))) {
        imx_vector_store_word(c, word, left);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (j < left)
            c[j] = (char)(word >> 8 * j);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (at >= (int32_t)d.row_bytes && scale + j < run.blocks)
            d.scale_c[row * run.blocks + scale + j] = __uint_as_float((uint32_t)(word >> 32 * j));
    }
}

/* Units [from, to) of a token, to its rows; 0: gave up. */
LL_FN int take_units(const run_of &run, const int32_t *rows, int32_t token, int32_t from,
                     int32_t to)
{
    const imx_dispatch_args &d = run.args.dispatch;
    const imx_ll_unit *units =
        part(run, run.args.team.rank, token / d.most) + imx_dispatch_ll_token(&d, token % d.most);
    for (int32_t first = from + (int32_t)threadIdx.x; first - warps_lane() < to;
         first += AHEAD * THREADS) {
        imx_ll_units_of<AHEAD> u;
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int32_t i = first + j * THREADS;
            u.at[j] = i < to ? units + i : NULL;
        }
        if (!take_lines(u, run.epoch, run.watch, point_of{ run }))
            return 0;
#pragma unroll 1
        for (int place = 0; place < d.top_k; place++) {
            int32_t row = rows[place];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                int32_t unit = first + j * THREADS, at = (int32_t)data_at(unit);
                if (row < 0 || !u.at[j])
                    continue;
                put_word(run, row, at, u.unit[j].first);
                if (!is_flag(unit))
                    put_word(run, row, at + 8, u.unit[j].second);
            }
        }
    }
    return 1;
}

/* The block's share of all ranks' tokens; where there are blocks enough several share one, line by
 * line.  0: gave up. */
LL_FN int take_tokens(const run_of &run, shared *s)
{
    const imx_dispatch_args &d = run.args.dispatch;
    int32_t tokens = d.ranks * d.most, lines = run.units / IMX_LL_UNITS, there = 1, turn = 0;
    int32_t pieces = tokens ? (int32_t)gridDim.x / tokens : 1;
    pieces = pieces < 1 ? 1 : pieces;
    for (int32_t item = (int32_t)blockIdx.x; item < tokens * pieces; item += (int32_t)gridDim.x) {
        int32_t token = item / pieces, piece = item % pieces, any = 0, *rows = s->row[turn];
        find_rows(run, s, token, piece == 0, rows);
        __syncthreads(); /* and nobody reads the rows of the token before the last */
        turn ^= 1;
        for (int place = 0; place < d.top_k; place++)
            any |= rows[place] >= 0;
        if (any && there)
            there = take_units(run, rows, token, lines * piece / pieces * IMX_LL_UNITS,
                               lines * (piece + 1) / pieces * IMX_LL_UNITS);
    }
    return there;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imx_dispatch_ll(const __grid_constant__ imx_dispatch_ll_args args,
                    const __grid_constant__ imbrexd_watch watch)
{
    __shared__ shared s;
    imx_grid_let_go();
    imx_grid_wait();
    const imx_dispatch_args &d = args.dispatch;
    uint64_t *uses = &args.uses[blockIdx.x];
    const run_of run = {
        args,
        watch,
        *(volatile uint64_t *)uses + 1,
        d.most * d.top_k,
        (int32_t)imx_dispatch_ll_weights(&d),
        (int32_t)imx_ll_units(1, imx_dispatch_ll_row(&d)),
        (int32_t)(d.n * (d.wire == IMBREX_E4M3 ? 1 : imx_vector_bytes(d.wire))),
        (int32_t)imx_dispatch_blocks(&d),
    };
    for (int32_t e = (int32_t)threadIdx.x; e < args.route.here; e += THREADS)
        s.count[e] = 0;
    send_words(run);
    send_rows(run);
    __syncthreads(); /* all threads have read the epoch, and counts are 0 */
    if (threadIdx.x == 0)
        *(volatile uint64_t *)uses = run.epoch;
    if (!take_ids(run, &s))
        return;
    if (threadIdx.x < LANES)
        place_experts(args.route, &s);
    __syncthreads();
    if (blockIdx.x == 0)
        tell(args.route, &s, watch);
    clear_gaps(args.route, &s, (int32_t)blockIdx.x, (int32_t)gridDim.x);
    if (take_tokens(run, &s))
        take_weights(run);
}
