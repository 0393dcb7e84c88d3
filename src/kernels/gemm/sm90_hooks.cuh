/* sm90_hooks.cuh - the hooks of a kernel of the caller's (imbrex_gemm.h), whose text comes after
 * this one, are a prologue and an epilogue:
 *
 *     order      which tile comes next                    by some lanes of a warp
 *     wait       before a chunk's first load              by the producer
 *     begin      before the first store                   by every warp of the consumers
 *     done       a chunk is stored                        by the one who stored its last
 *     sum        own rows become a sum                    by the producer's idle warps; of the
 *                                                         last tile by the consumers'
 *     beside     for the producer's idle warps            by each of the three
 *     end        the block has read all, or has ended     by its first warp
 */
#ifndef IMX_SM90_HOOKS_CUH
#define IMX_SM90_HOOKS_CUH

#include "sm90_owners.cuh"
#include "sm90_policy.cuh"
#include "sm90_store.cuh"

IMX_FN const imx_user_args &user_of(const imx_gemm_args &args)
{
    return ((const imx_gemm_user_args &)args).user;
}

IMX_FN imbrexd_gemm gemm_of(const imx_gemm_args &args)
{
    const imx_schedule &s = args.schedule;
    imbrexd_gemm gemm = { s.m,          s.n,      args.k,     s.ranks,    s.first,
                          s.chunk_rows, s.chunks, args.dtype, tiles_of(), NULL };
    return gemm;
}

/* ---- the prologue ---------------------------------------------------------------------------- */

struct prologue_hooks : prologue_none {
    enum { REGISTERS = REGISTERS_MORE, GATHERS = 1, WAITS = 1 };

    typedef imx_gemm_user_args params;

    IMX_FN bool lists_late(void) { return imbrexd_hook_orders(); }

    IMX_FN unsigned order(const imx_gemm_args &args, unsigned index)
    {
        const imbrexd_gemm gemm = gemm_of(args);
        return imbrexd_hook_order(user_of(args).args, &user_of(args).team, &gemm, index);
    }

    IMX_FN bool waits(const imx_gemm_args &) { return true; }

    IMX_FN int wait(const imx_gemm_args &args, const imbrexd_watch *, const tile_info *info)
    {
        const imbrexd_gemm gemm = gemm_of(args);
        int chunk = info->chunk, rank = chunk / gemm.chunks;
        int here = imbrexd_hook_wait(user_of(args).args, &user_of(args).team, &gemm, rank,
                                     chunk - rank * gemm.chunks);
        return imx_user_goes_on(&user_of(args), IMBREXD_HOOK_WAIT, here);
    }
};

/* ---- the epilogue ---------------------------------------------------------------------------- */

/* As own_parts is (sm90_fold.cuh). */
struct user_parts {
    const imx_gemm_args &args;
    imbrexd_gemm_sum sum;

    IMX_FN int begin(const user_parts &) { return 1; }

    IMX_FN unsigned order(const user_parts &of, unsigned index)
    {
        return prologue_hooks::order(of.args, index);
    }

    /* One answer: a warp's lanes go on together. */
    IMX_FN int await(user_parts &of, int chunk)
    {
        const imx_user_args &user = user_of(of.args);
        const imbrexd_gemm gemm = gemm_of(of.args);
        chunk -= of.args.team.rank * of.args.schedule.chunks;
        int here = imbrexd_all_warp(imbrexd_hook_sum(user.args, &user.team, &gemm, chunk, &of.sum));
        return imx_user_goes_on(&user, IMBREXD_HOOK_SUM, here);
    }

    IMX_FN bool are_whole(const user_parts &of)
    {
        return (((size_t)of.sum.to | (size_t)of.sum.parts | of.sum.stride_bytes) & 15) == 0;
    }

    IMX_FN const char *first(const user_parts &of) { return (const char *)of.sum.parts; }

    IMX_FN int64_t apart(const user_parts &of) { return (int64_t)of.sum.stride_bytes; }

    IMX_FN void put(const user_parts &of, uint32_t at, float (&sum)[UNIT_COLS])
    {
        ((uint4 *)of.sum.to)[at] = imx_vector_narrow(DTYPE, sum);
    }

    IMX_FN void put_element(const user_parts &of, int64_t at, int, float sum)
    {
        ((uint16_t *)of.sum.to)[at] = (uint16_t)pack(sum, 0);
    }
};

struct epilogue_hooks : epilogue_owners {
    enum { REGISTERS = REGISTERS_MORE, BEGINS = 1, REDUCES_LAST = 1 };

    IMX_FN void init(void)
    {
        for (int i = 0; i < CONSUMERS * 4; i++)
            words().stored[i] = 0;
    }

    IMX_FN void begin(const imx_gemm_args &args)
    {
        const imbrexd_gemm gemm = gemm_of(args);
        /* One answer: a warp's lanes go on together. */
        int begins =
            imbrexd_all_warp(imbrexd_hook_begin(user_of(args).args, &user_of(args).team, &gemm));
        if (!imx_user_goes_on(&user_of(args), IMBREXD_HOOK_BEGIN, begins))
            gave_up_here() = 1;
        imbrexd_fence_tma();
    }

    IMX_FN bool stored(const imx_gemm_args &args, const tile_info *note)
    {
        if (imbrexd_hook_sums() && note->owner == args.team.rank)
            count_own();
        return epilogue_owners::stored(args, note);
    }

    IMX_FN void tell(const imx_gemm_args &args, const tile_info *note, int chunk)
    {
        const imbrexd_gemm gemm = gemm_of(args);
        imbrexd_hook_done(user_of(args).args, &user_of(args).team, &gemm, note->owner,
                          chunk - note->owner * gemm.chunks);
    }

    IMX_FN int last_tile(uint32_t (&)[HALVES][IMX_ACC / 2], const imx_gemm_args &args,
                         const imbrexd_watch *, const imx_tma_map *, const tile_info *note,
                         int first_row, place *, int)
    {
        return !imbrexd_hook_sums() || fold_last(user_parts{ args, {} }, note, first_row);
    }

    /* Sums last: what peers bring may wait for what runs beside here. */
    IMX_FN int beside(const imx_gemm_args &args, const imbrexd_watch *)
    {
        const imbrexd_gemm gemm = gemm_of(args);
        int done = imbrexd_hook_beside(user_of(args).args, &user_of(args).team, &gemm,
                                       blockIdx.x * (BESIDE_WARPS * 32) + threadIdx.x - 32,
                                       gridDim.x * (BESIDE_WARPS * 32));
        if (!imx_user_goes_on(&user_of(args), IMBREXD_HOOK_BESIDE, done))
            return 0;
        return !imbrexd_hook_sums() || fold_tiles(user_parts{ args, {} });
    }

    /* The counter lies behind the epoch; see imbrexd_kernel_end. */
    IMX_FN void end(const imx_gemm_args &args)
    {
        const imbrexd_team *team = &user_of(args).team;
        uint64_t *epoch = (uint64_t *)team->epoch;
        if (threadIdx.x != 0 || !imbrexd_counter_last((uint32_t *)(epoch + 1), gridDim.x))
            return;
        const imbrexd_gemm gemm = gemm_of(args);
        imbrexd_hook_end(user_of(args).args, team, &gemm);
        *epoch += 1;
    }
};

/* ---- imbrexd_gemm_add ------------------------------------------------------------------------ */

enum { ADD_AT_ONCE = 2, ADD_LOADS = 8 };

/* So many parts of several units, each `apart` bytes after the one before. */
template <int count>
IMX_FN void add_some(char *to, const char *parts, size_t stride, unsigned apart)
{
    float sum[ADD_LOADS / count][UNIT_COLS];
    sum_parts<count, count>(
        sum, [&](int r, int u) { return imx_vector_load(parts + r * stride + (size_t)u * apart); },
        [&](int u) { *(uint4 *)(to + (size_t)u * apart) = imx_vector_narrow(DTYPE, sum[u]); });
}

/* Most units of a thread, if there are 2 to `most` parts; it returns the first unit that is left.
 * 32 bits wherever they do: the producer's warps have few registers. */
template <int most>
IMX_FN unsigned add_most(char *to, const char *parts, size_t stride, int count, unsigned units,
                         unsigned thread, unsigned threads)
{
    if constexpr (most > 2) {
        if (count < most)
            return add_most<most - 1>(to, parts, stride, count, units, thread, threads);
    }
    const unsigned at_once = ADD_LOADS / most;
    unsigned u = thread;
#pragma unroll 1
    for (; count == most && u + (at_once - 1) * threads < units; u += at_once * threads)
        add_some<most>(to + (size_t)u * 16, parts + (size_t)u * 16, stride, threads * 16);
    return u;
}

/* Any number of parts, a unit at a time; more at once want more registers. */
IMX_FN void add_units(char *to, const char *parts, size_t stride, int count, unsigned units,
                      unsigned first, unsigned threads)
{
#pragma unroll 1
    for (unsigned u = first; u < units; u += threads) {
        const char *from = parts + (size_t)u * 16;
        float sum[8];
#pragma unroll 1
        for (int r = 0; r < count; r += ADD_AT_ONCE) {
            uint4 part[ADD_AT_ONCE]; /* all under way before the first is added */
#pragma unroll
            for (int j = 0; j < ADD_AT_ONCE; j++) {
                if (r + j < count)
                    part[j] = imx_vector_load(from);
                from += stride;
            }
#pragma unroll
            for (int j = 0; j < ADD_AT_ONCE; j++)
                if (r + j < count)
                    imx_vector_add(DTYPE, sum, part[j], r + j == 0);
        }
        *(uint4 *)(to + (size_t)u * 16) = imx_vector_narrow(DTYPE, sum);
    }
}

/* 16 bytes at a time where all parts allow it; the rest one by one. */
IMX_FN void hook_add(void *to, const void *parts, size_t stride, int count, int64_t elements,
                     unsigned thread, unsigned threads)
{
    bool whole = (((size_t)to | (size_t)parts | stride) & 15) == 0;
    unsigned units = whole ? (unsigned)(elements / 8) : 0, rest = (unsigned)elements - units * 8;
    unsigned first =
        add_most<ADD_LOADS>((char *)to, (const char *)parts, stride, count, units, thread, threads);
    add_units((char *)to, (const char *)parts, stride, count, units, first, threads);
#pragma unroll 1
    for (unsigned i = thread; i < rest; i += threads) {
        const char *from = (const char *)parts + ((size_t)units * 8 + i) * 2;
        float sum = imx_vector_get(DTYPE, from, 0);
#pragma unroll 1
        for (int r = 1; r < count; r++)
            sum += imx_vector_get(DTYPE, from += stride, 0);
        imx_vector_put(DTYPE, to, (int64_t)units * 8 + i, sum);
    }
}

#endif /* IMX_SM90_HOOKS_CUH */
