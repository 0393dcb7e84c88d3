/* device_arena.h - what the kernels of device_cases.h, device_litmus.h and device_cost.h work in,
 * written for both targets: as C for CPU ranks, as CUDA C for GPUs.
 *
 * One block a rank.  A kernel returns when a wait gives up, with all its threads; what else is
 * wrong it notes and goes on, so that its peers need not wait for it.
 */
#ifndef DEVICE_ARENA_H
#define DEVICE_ARENA_H

#ifdef __CUDACC__
#define CASE extern "C" __global__ void
#define FN   static __device__
#else
#define CASE static inline void
#define FN   static inline
#endif

enum { RANKS_MOST = 8, WORDS = 1024, SIGNALS = 64, SPOTS = 65536 };

/* What each rank has in symmetric memory. */
typedef struct arena {
    uint64_t signal[SIGNALS];
    uint64_t lock, sum, seen;
    uint32_t count, pad;
    uint64_t word[RANKS_MOST][WORDS];
    uint32_t data[RANKS_MOST][WORDS]; /* from each rank */
    uint32_t mine[WORDS], back[WORDS];
    uint64_t spot[SPOTS], step[SPOTS]; /* of the litmus tests */
    uint32_t datum[SPOTS];
} arena;

/* The first thing that was wrong. */
typedef struct outcome {
    uint64_t line, have, want, round, rank;
    uint64_t done; /* how many rounds went to their end */
} outcome;

FN void note(outcome *out, int line, uint64_t have, uint64_t want, uint64_t round, int rank)
{
    if (have == want ||
        imbrexd_atomic_cas_u64(&out->line, 0, (uint64_t)line, IMBREXD_RELAXED, IMBREXD_GPU) != 0)
        return;
    out->have = have;
    out->want = want;
    out->round = round;
    out->rank = (uint64_t)rank;
}

#define CHECK(have, want) note(out, __LINE__, have, want, round, r)

/* Loops over what a block's threads share. */
#define EACH(i, count)                                                            \
    for (unsigned i = imbrexd_thread(), i##_end = (unsigned)(count); i < i##_end; \
         i += imbrexd_threads())

#define FIRST_WARP (imbrexd_thread() < imbrexd_lanes())

FN arena *at_rank(const imbrexd_team *team, int rank, arena *own)
{
    return (arena *)imbrexd_peer(team, rank, own);
}

#endif /* DEVICE_ARENA_H */
