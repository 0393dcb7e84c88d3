/* sm80.cu - the merge kernel on NVIDIA GPUs.
 *
 *     IMX_HOW     as in args.h          IMX_DTYPE   of states
 *     IMX_TO      dtype of the result
 *
 * A warp has one state at a time: lane i knows the lse of source i, and of i + 32, and all lanes
 * the weights, in their order, from it; each then has some numbers of o, of all sources.
 */
#include "../end.cuh"
#include "../grid.cuh"
#include "../vector.cuh"
#include "weigh.h"

#define MERGE_FN static __device__ __forceinline__

enum { THREADS = 256, WARPS = THREADS / 32 };
enum : unsigned { ALL = 0xffffffff }; /* lanes */
enum { ELEMENT = IMX_IS_F32 ? 4 : 2, IN_VECTOR = 16 / ELEMENT, IN_WORD = 8 / ELEMENT };

MERGE_FN int lane_of(void)
{
    return (int)threadIdx.x % 32;
}

MERGE_FN int first_head(const imx_merge_args &x, int owner)
{
    return imx_merge_head(x.replicate, x.heads, x.ranks, owner);
}

MERGE_FN int head_count(const imx_merge_args &x, int owner)
{
    return imx_merge_heads(x.replicate, x.heads, x.ranks, owner);
}

/* ---- states ---------------------------------------------------------------------------------- */

struct state {
    const char *o;
    const float *lse;
};

MERGE_FN float lse_of(const state &s)
{
    return *(const volatile float *)s.lse;
}

MERGE_FN state own_state(const imx_merge_args &x, int64_t row, int64_t head)
{
    int64_t at = row * x.own_heads + head;
    return state{ (const char *)x.own_o + at * x.value_dim * ELEMENT, x.own_lse + at };
}

MERGE_FN state slot_state(const imx_merge_args &x, const char *slot, int64_t states, int64_t at)
{
    const char *lse = slot + imx_merge_lse_at(states, x.value_dim, ELEMENT);
    return state{ slot + at * x.value_dim * ELEMENT, (const float *)lse + at };
}

/* Whether o can be read, or written, 16 bytes at a time. */
MERGE_FN bool is_wide(const imx_merge_args &x, const char *o)
{
    return x.value_dim % IN_VECTOR == 0 && imx_vector_aligned(o);
}

/* ---- weights --------------------------------------------------------------------------------- */

struct weights {
    float low, high; /* of source lane, and lane + 32 */
    float sum, most, share;
};

MERGE_FN float weight_of(const weights &w, int source)
{
    return __shfl_sync(ALL, source < 32 ? w.low : w.high, source % 32);
}

/* What imx_merge_weigh does, of the lse that lanes hold: the same sums in the same order. */
MERGE_FN weights weigh(const imx_merge_args &x, float low, float high, const float *sink)
{
    const float none = __int_as_float(0xff800000);
    int lane = lane_of();
    bool has_low = lane < x.sources && imx_merge_counts(low);
    bool has_high = lane + 32 < x.sources && imx_merge_counts(high);
    float last = sink ? imx_merge_sink(x.natural, *(const volatile float *)sink) : none;
    float most = fmaxf(has_low ? low : none, has_high ? high : none);
    bool has_sink = imx_merge_counts(last);
    weights w = { 0, 0, 0, 0, 0 };
#pragma unroll
    for (int step = 16; step; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(ALL, most, step));
    if (has_sink)
        most = fmaxf(most, last);
    w.most = most;
    w.low = has_low ? imx_merge_power(x.natural, low - most) : 0;
    w.high = has_high ? imx_merge_power(x.natural, high - most) : 0;
#pragma unroll 1
    for (int i = 0; i < x.sources; i++)
        w.sum += weight_of(w, i);
    if (has_sink)
        w.sum += imx_merge_power(x.natural, last - most);
    w.share = imx_merge_share(w.sum);
    return w;
}

/* ---- results --------------------------------------------------------------------------------- */

MERGE_FN char *result(const imx_merge_args &x, int64_t at)
{
    return (char *)x.to + at * x.value_dim * imx_vector_bytes(IMX_TO);
}

/* to[e, e + count) of state `at`, of which sum has the weighted numbers. */
template <int count>
MERGE_FN void put(const imx_merge_args &x, const weights &w, int64_t at, int e, float *sum)
{
    char *to = result(x, at);
#pragma unroll
    for (int j = 0; j < count; j++) {
        if (e + j < x.value_dim)
            imx_vector_put(IMX_TO, to, e + j, sum[j] * w.share);
    }
}

MERGE_FN void put_vector(const imx_merge_args &x, const weights &w, int64_t at, int e, float *sum)
{
    char *to = result(x, at) + (int64_t)e * ELEMENT;
    if (IMX_TO != IMX_DTYPE || !imx_vector_aligned(to)) {
        put<IN_VECTOR>(x, w, at, e, sum);
        return;
    }
#pragma unroll
    for (int j = 0; j < IN_VECTOR; j++)
        sum[j] = sum[j] * w.share;
    *(uint4 *)to = imx_vector_narrow(IMX_DTYPE, sum);
}

MERGE_FN void put_lse(const imx_merge_args &x, const weights &w, int64_t at)
{
    if (x.lse_to && lane_of() == 0)
        x.lse_to[at] = imx_merge_lse(x.natural, w.sum, w.most);
}

#if IMX_HOW >= 2

/* i = 1, 2, ...: each rank begins with another one. */
MERGE_FN int peer(const imx_merge_args &x, int i)
{
    int r = x.rank + i;
    return r < x.ranks ? r : r - x.ranks;
}

#endif

#if IMX_HOW != 3

/* ---- of states in memory --------------------------------------------------------------------- */

/* Source i's state of that row and head of `to`. */
MERGE_FN state source(const imx_merge_args &x, const char *slots, int i, int64_t row, int head)
{
    return i == x.own
               ? own_state(x, row, x.own_first + head)
               : slot_state(x, slots + i * x.slot_bytes, x.rows * x.count, row * x.count + head);
}

/* By a warp. */
MERGE_FN void merge_state(const imx_merge_args &x, const char *slots, int64_t row, int head)
{
    int lane = lane_of();
    int64_t at = row * x.count + head;
    float low = lane < x.sources ? lse_of(source(x, slots, lane, row, head)) : 0;
    float high = lane + 32 < x.sources ? lse_of(source(x, slots, lane + 32, row, head)) : 0;
    weights w = weigh(x, low, high, x.sinks ? &x.sinks[x.first + head] : nullptr);
    /* Lanes stay together, for the weights. */
#pragma unroll 1
    for (int base = 0; base < x.value_dim; base += 32 * IN_VECTOR) {
        int e = base + lane * IN_VECTOR;
        float sum[IN_VECTOR] = { 0 };
#pragma unroll 1
        for (int i = 0; i < x.sources; i++) {
            float weight = weight_of(w, i);
            const char *o = source(x, slots, i, row, head).o;
            if (weight == 0 || e >= x.value_dim)
                continue;
            if (is_wide(x, o)) {
                float of[IN_VECTOR];
                imx_vector_add(IMX_DTYPE, of, imx_vector_load(o + (int64_t)e * ELEMENT), true);
#pragma unroll
                for (int j = 0; j < IN_VECTOR; j++)
                    sum[j] += weight * of[j];
            } else {
#pragma unroll
                for (int j = 0; j < IN_VECTOR; j++)
                    if (e + j < x.value_dim)
                        sum[j] += weight * imx_vector_get(IMX_DTYPE, o, e + j);
            }
        }
        __syncwarp();
        if (e < x.value_dim && x.value_dim % IN_VECTOR == 0)
            put_vector(x, w, at, e, sum);
        else if (e < x.value_dim)
            put<IN_VECTOR>(x, w, at, e, sum);
    }
    put_lse(x, w, at);
}

/* By a warp: own state into an owner's slot. */
MERGE_FN void pack_state(const imx_merge_args &x, char *slot, int owner, int64_t row, int head)
{
    int count = head_count(x, owner);
    int64_t states = x.rows * count, at = row * count + head;
    state from = own_state(x, row, first_head(x, owner) + head);
    float lse = lse_of(from);
    char *o = slot + at * x.value_dim * ELEMENT;
    if (lane_of() == 0)
        ((float *)(slot + imx_merge_lse_at(states, x.value_dim, ELEMENT)))[at] = lse;
    if (!imx_merge_counts(lse))
        return; /* nobody reads its o */
    if (is_wide(x, from.o) && imx_vector_aligned(o)) {
        for (int v = lane_of(); v < x.value_dim / IN_VECTOR; v += 32)
            *(uint4 *)(o + v * 16) = imx_vector_load(from.o + v * 16);
        return;
    }
    for (int e = lane_of(); e < x.value_dim; e += 32)
        imx_vector_put(IMX_DTYPE, o, e, imx_vector_get(IMX_DTYPE, from.o, e));
}

#endif

/* ---- the kernel, as IMX_HOW says ------------------------------------------------------------- */

#if IMX_HOW == 0

MERGE_FN void run(const imx_merge_args &x, const imbrexd_watch &)
{
    int warp = (int)(blockIdx.x * WARPS + threadIdx.x / 32), warps = (int)gridDim.x * WARPS;
    for (int owner = 0; owner < (x.replicate ? 1 : x.ranks); owner++) {
        int count = head_count(x, owner);
        if (owner == x.rank && !x.replicate)
            continue;
        for (int at = warp; at < (int)x.rows * count; at += warps)
            pack_state(x, x.slots + owner * x.slot_bytes, owner, at / count, at % count);
    }
}

#elif IMX_HOW == 1

MERGE_FN void run(const imx_merge_args &x, const imbrexd_watch &)
{
    int warp = (int)(blockIdx.x * WARPS + threadIdx.x / 32), warps = (int)gridDim.x * WARPS;
    for (int at = warp; at < (int)x.rows * x.count; at += warps)
        merge_state(x, x.slots, at / x.count, at % x.count);
}

#elif IMX_HOW == 2

MERGE_FN char *slot_at(const imx_merge_args &x, int holder, int of)
{
    return imx_team_data(&x.team, holder) + of * x.slot_bytes;
}

/* By all threads: the lanes that have a peer each wait for it; 0: give up. */
MERGE_FN int wait_all(const imx_merge_args &x, const imbrexd_watch &watch, int64_t unit,
                      uint64_t value)
{
    int r = (int)threadIdx.x, there = 1;
    if (r < x.ranks && r != x.rank) {
        const uint64_t *signal = unit < 0 ? imx_team_credit(&x.team, x.rank, r)
                                          : imx_team_signal(&x.team, x.rank, r * x.units + unit);
        imbrexd_wait_point point = { x.plan, unit < 0 ? IMX_POINT_CREDIT : IMX_POINT_PART, r,
                                     (int)unit };
        there = imbrexd_signal_wait(&watch, signal, value, point);
    }
    return __syncthreads_and(there);
}

MERGE_FN int unit_rows(const imx_merge_args &x, int64_t unit)
{
    int64_t left = x.rows - unit * x.unit_rows;
    return (int)(left < x.unit_rows ? left : x.unit_rows);
}

/* All threads store, then one for each peer posts. */
MERGE_FN void store_unit(const imx_merge_args &x, int64_t unit, uint64_t epoch)
{
    for (int i = 1; i < x.ranks; i++) {
        int to = peer(x, i), count = head_count(x, to);
        char *slot = slot_at(x, to, x.rank);
        for (int at = (int)threadIdx.x / 32; at < unit_rows(x, unit) * count; at += WARPS)
            pack_state(x, slot, to, unit * x.unit_rows + at / count, at % count);
    }
    __syncthreads();
    int to = (int)threadIdx.x;
    if (to < x.ranks && to != x.rank && head_count(x, to))
        imbrexd_signal_post(imx_team_signal(&x.team, to, x.rank * x.units + unit), epoch);
}

MERGE_FN void run(const imx_merge_args &x, const imbrexd_watch &watch)
{
    uint64_t epoch = *(volatile uint64_t *)x.epoch + 1;
    if (!wait_all(x, watch, -1, epoch - 1))
        return;
    for (int64_t unit = blockIdx.x; unit * x.unit_rows < x.rows; unit += gridDim.x)
        store_unit(x, unit, epoch);
    for (int64_t unit = blockIdx.x; x.count && unit * x.unit_rows < x.rows; unit += gridDim.x) {
        if (!wait_all(x, watch, unit, epoch))
            return;
        for (int at = (int)threadIdx.x / 32; at < unit_rows(x, unit) * x.count; at += WARPS)
            merge_state(x, slot_at(x, x.rank, 0), unit * x.unit_rows + at / x.count, at % x.count);
    }
    __syncthreads();
    if (threadIdx.x < 32)
        imx_end_run(&x.team, x.epoch, epoch, x.ended);
}

#else

static_assert(IMX_TO == IMX_DTYPE, "states and result of a whole run are of one dtype");

enum { AT_ONCE = 4 }; /* units that a lane loads at once, or sources that it looks at */

MERGE_FN void send_unit(imx_merge_unit *at, uint64_t data, uint64_t epoch)
{
    uint32_t flag = (uint32_t)epoch;
    imx_vector_store_whole(at, make_uint4((uint32_t)data, flag, (uint32_t)(data >> 32), flag));
}

/* Whether what a look found has come; then its data. */
MERGE_FN bool is_here(uint4 v, uint64_t epoch, uint64_t *data)
{
    *data = v.x | (uint64_t)v.z << 32;
    return v.y == (uint32_t)epoch && v.w == (uint32_t)epoch;
}

/* Until it is here, behind the looks at what comes at once; 0: give up. */
MERGE_FN int wait_unit(const imx_merge_args &x, const imbrexd_watch &watch,
                       const imx_merge_unit *at, uint64_t epoch, int from)
{
    uint32_t flag = (uint32_t)epoch, low, high;
    imbrexd_wait_point point = { x.plan, IMX_POINT_PART, from, -1 };
    return imbrexd_ll_wait(&watch, &at->first, flag, point, &low) &&
           imbrexd_ll_wait(&watch, &at->second, flag, point, &high);
}

/* Looks until it is here; 0: give up. */
MERGE_FN int take_unit(const imx_merge_args &x, const imbrexd_watch &watch,
                       const imx_merge_unit *at, uint64_t epoch, int from, uint64_t *data)
{
    for (int looks = 0; !is_here(imx_vector_load_whole(at), epoch, data); looks++) {
        if (looks >= IMX_TEAM_LOOKS && !wait_unit(x, watch, at, epoch, from))
            return 0;
    }
    return 1;
}

/* By a warp: own state to an owner.  All of it is on its way here before its lse is looked at. */
MERGE_FN void send_state(const imx_merge_args &x, imx_merge_unit *to, const state &from,
                         uint64_t epoch)
{
    int64_t bytes = (int64_t)x.value_dim * ELEMENT, units = imx_merge_units(x.value_dim, ELEMENT);
    float lse = lse_of(from);
#pragma unroll 1
    for (int64_t u = lane_of(); u < units; u += 32 * AT_ONCE) {
        uint64_t data[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int64_t at = u + 32 * i;
            data[i] = at && at < units
                          ? imx_vector_load_word(from.o + (at - 1) * 8, bytes - (at - 1) * 8)
                          : __float_as_uint(lse);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int64_t at = u + 32 * i;
            if (at < units)
                send_unit(to + at, !at || imx_merge_counts(lse) ? data[i] : 0, epoch);
        }
    }
}

MERGE_FN void send_all(const imx_merge_args &x, uint64_t epoch)
{
    int warp = (int)(blockIdx.x * WARPS + threadIdx.x / 32), warps = (int)gridDim.x * WARPS;
    int64_t units = imx_merge_units(x.value_dim, ELEMENT);
    int most = (int)x.rows * (x.replicate ? x.heads : (x.heads + x.ranks - 1) / x.ranks);
    for (unsigned i = warp; i < (unsigned)most * (x.ranks - 1); i += warps) {
        int to = peer(x, 1 + (int)(i / most)), at = (int)(i % most), count = head_count(x, to);
        imx_merge_unit *part = imx_merge_part(&x, to, x.rank, epoch);
        if (count && at < (int)x.rows * count)
            send_state(x, part + at * units,
                       own_state(x, at / count, first_head(x, to) + at % count), epoch);
        else if (!count && at == 0 && lane_of() == 0)
            send_unit(part, 0, epoch);
    }
}

/* The same unit of source i as `first` is of source 0. */
MERGE_FN const imx_merge_unit *unit_of(const imx_merge_args &x, const imx_merge_unit *first, int i)
{
    return (const imx_merge_unit *)((const char *)first + i * x.part_bytes);
}

/* Looks at a unit of sources [from, from + AT_ONCE), and with the first ones at the lse of source
 * `lane`, all at once, until all are here.  first, lse_at: those of source 0; data[j]: what this
 * rank has itself is there.  0: give up. */
MERGE_FN int take_units(const imx_merge_args &x, const imbrexd_watch &watch, int from,
                        const imx_merge_unit *first, const imx_merge_unit *lse_at, uint64_t epoch,
                        uint64_t (&data)[AT_ONCE], uint64_t &lse)
{
    int lane = lane_of(), last = x.sources - 1;
    unsigned lacks = 0; /* bit j: source from + j; bit 31: the lse */
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++)
        lacks |= first && from + j <= last && from + j != x.rank ? 1u << j : 0;
    lacks |= lse_at && lane <= last && lane != x.rank ? 1u << 31 : 0;
    for (int looks = 0; lacks; looks++) {
        uint4 v[AT_ONCE + 1];
        if (lse_at)
            v[AT_ONCE] = imx_vector_load_whole(unit_of(x, lse_at, lane < last ? lane : last));
        if (first) {
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                v[j] = imx_vector_load_whole(unit_of(x, first, from + j < last ? from + j : last));
        }
        if (lacks >> 31 && is_here(v[AT_ONCE], epoch, &lse))
            lacks &= ~(1u << 31);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (lacks >> j & 1 && is_here(v[j], epoch, &data[j]))
                lacks &= ~(1u << j);
        }
        if (!lacks || looks < IMX_TEAM_LOOKS)
            continue;
        bool lse_lacks = lacks >> 31;
        int source = lse_lacks ? lane : from + __ffs((int)lacks) - 1;
        if (!wait_unit(x, watch, unit_of(x, lse_lacks ? lse_at : first, source), epoch, source))
            return 0;
    }
    return 1;
}

/* By a warp; 0: gave up. */
MERGE_FN int merge_state(const imx_merge_args &x, const imbrexd_watch &watch, int at,
                         uint64_t epoch)
{
    int lane = lane_of(), head = at % x.count;
    int64_t units = imx_merge_units(x.value_dim, ELEMENT);
    state own = own_state(x, at / x.count, x.own_first + head);
    const imx_merge_unit *first = imx_merge_part(&x, x.rank, 0, epoch) + at * units;
    float own_lse = lse_of(own);
    uint64_t lse = 0;
    weights w = { 0, 0, 0, 0, 0 };
#pragma unroll 1
    for (int64_t base = 1; base < units; base += 32) {
        int64_t u = base + lane, left = (int64_t)x.value_dim * ELEMENT - (u - 1) * 8;
        float sum[4] = { 0 };
#pragma unroll 1
        for (int from = 0; from < x.sources; from += AT_ONCE) {
            bool is_first = base == 1 && from == 0;
            uint64_t data[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                data[j] = u < units && from + j == x.rank
                              ? imx_vector_load_word(own.o + (u - 1) * 8, left)
                              : 0;
            int there = take_units(x, watch, from, u < units ? first + u : nullptr,
                                   is_first ? first : nullptr, epoch, data, lse);
            if (!__all_sync(ALL, there))
                return 0;
            if (is_first)
                w = weigh(x, lane == x.rank ? own_lse : __uint_as_float((uint32_t)lse), 0,
                          x.sinks ? &x.sinks[x.first + head] : nullptr);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                float weight = from + j < x.sources ? weight_of(w, from + j) : 0, of[4];
                imx_vector_add_word(IMX_DTYPE, of, data[j], true);
                if (weight == 0)
                    continue;
#pragma unroll
                for (int i = 0; i < 4; i += 4 / IN_WORD)
                    sum[i] += weight * of[i];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] *= w.share;
        if (u < units)
            imx_vector_store_word(result(x, at) + (u - 1) * 8,
                                  imx_vector_round_word(IMX_DTYPE, sum), left);
    }
    put_lse(x, w, at);
    return 1;
}

MERGE_FN void run(const imx_merge_args &x, const imbrexd_watch &watch)
{
    int warp = (int)(blockIdx.x * WARPS + threadIdx.x / 32), warps = (int)gridDim.x * WARPS;
    uint64_t *at = &x.uses[blockIdx.x], nothing;
    uint64_t epoch = *(volatile uint64_t *)at + 1;
    send_all(x, epoch);
    __syncthreads(); /* all threads have read the epoch */
    if (threadIdx.x == 0)
        *(volatile uint64_t *)at = epoch;
    for (int i = warp; i < (int)x.rows * x.count; i += warps) {
        if (!merge_state(x, watch, i, epoch))
            return;
    }
    int from = (int)threadIdx.x;
    if (!x.count && blockIdx.x == 0 && from < x.ranks && from != x.rank)
        take_unit(x, watch, imx_merge_part(&x, x.rank, from, epoch), epoch, from, &nothing);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    imx_merge(const __grid_constant__ imx_merge_args args,
              const __grid_constant__ imbrexd_watch watch)
{
    imx_grid_wait();
    imx_grid_let_go();
    run(args, watch);
}
