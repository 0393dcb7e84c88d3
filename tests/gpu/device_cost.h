/* device_cost.h - what each primitive of imbrex_device.h takes, as a kernel for CPU ranks and GPUs:
 * rank 0 measures, towards rank 1; where all take part, all do the same.
 */
#ifndef DEVICE_COST_H
#define DEVICE_COST_H

#include "device_arena.h"

/* Rows: what is repeated, and by whom: one thread, a warp, the block, or `both` ranks in turn (then
 * half of a round trip is a time one way).  far: rank 1's arena; i: number of the repeat; last: of
 * what is read, so that no read begins before the one before has ended. */
#define COSTS(ONE, WARP, BLOCK, BOTH)                                                             \
    ONE(store_relaxed, imbrexd_store_relaxed(&far->sum, i))                                       \
    ONE(load_relaxed, last = imbrexd_load_relaxed(&far->sum + (last >> 63)))                      \
    ONE(load_acquire, last = imbrexd_load_acquire(&far->sum + (last >> 63)))                      \
    ONE(load_acquire_own, last = imbrexd_load_acquire(&own->sum + (last >> 63)))                  \
    ONE(load_acquire_gpu_own, last = imbrexd_load_acquire_gpu(&own->sum + (last >> 63)))          \
    ONE(store_release, imbrexd_store_release(&far->sum, i))                                       \
    ONE(store_and_fence_post, (imbrexd_store_relaxed(&far->sum, i), imbrexd_fence_post()))        \
    ONE(store_and_quiet, (imbrexd_store_relaxed(&far->sum, i), imbrexd_quiet()))                  \
    ONE(fence_post, imbrexd_fence_post())                                                         \
    ONE(quiet, imbrexd_quiet())                                                                   \
    ONE(clock, last = (uint64_t)imbrexd_now_ns())                                                 \
    ONE(signal_post, imbrexd_signal_post(&far->signal[4], i))                                     \
    ONE(signal_add, imbrexd_signal_add(&far->signal[5], 1))                                       \
    ONE(red_release, imbrexd_red_release(&far->sum, 1))                                           \
    ONE(red_release_gpu_own, imbrexd_red_release_gpu(&own->sum, 1))                               \
    ONE(atomic_add,                                                                               \
        last = imbrexd_atomic_add_u64(&far->sum + (last >> 63), 1, IMBREXD_RELAXED, IMBREXD_SYS)) \
    ONE(atomic_add_acq_rel,                                                                       \
        last = imbrexd_atomic_add_u64(&far->sum + (last >> 63), 1, IMBREXD_ACQ_REL, IMBREXD_SYS)) \
    ONE(atomic_add_gpu_own,                                                                       \
        last = imbrexd_atomic_add_u64(&own->sum + (last >> 63), 1, IMBREXD_RELAXED, IMBREXD_GPU)) \
    ONE(atomic_cas, last = imbrexd_atomic_cas_u64(&far->lock + (last >> 63), i, i,                \
                                                  IMBREXD_ACQ_REL, IMBREXD_SYS))                  \
    ONE(counter_last, imbrexd_counter_last(&own->count, 1))                                       \
    ONE(wait_that_is_over, imbrexd_wait(&team, &own->sum, 0, 1))                                  \
    ONE(wait_any_of_8_that_is_over,                                                               \
        imbrexd_wait_any(&team, own->word[2], 8, NULL, IMBREXD_GE, 0, 1))                         \
    WARP(wait_warp_that_is_over, imbrexd_wait_warp(&team, &own->sum, 1, 0, 1))                    \
    BLOCK(wait_block_that_is_over, imbrexd_wait_block(&team, &own->sum, 1, 0, 1))                 \
    ONE(put_thread_64, (imbrexd_put_thread(far->spot, own->spot, 64), imbrexd_quiet()))           \
    ONE(get_thread_64, imbrexd_get_thread(own->spot, far->spot, 64))                              \
    ONE(put_thread_64_nbi, imbrexd_put_thread_nbi(far->spot, own->spot, 64))                      \
    ONE(get_thread_64_nbi, (imbrexd_get_thread_nbi(own->spot, far->spot, 64), imbrexd_quiet()))   \
    WARP(put_warp_4k, (imbrexd_put_warp(far->spot, own->spot, 4096), imbrexd_quiet_warp()))       \
    WARP(get_warp_4k, imbrexd_get_warp(own->spot, far->spot, 4096))                               \
    BLOCK(put_block_64k, (imbrexd_put_block(far->spot, own->spot, 65536), imbrexd_quiet_block())) \
    BLOCK(get_block_64k, imbrexd_get_block(own->spot, far->spot, 65536))                          \
    BLOCK(notify_block, imbrexd_notify_block(&far->signal[4], i, IMBREXD_SET))                    \
    BLOCK(ll_pack_4k, imbrexd_ll_pack_block(far->word[1], own->mine, 4096, (uint32_t)i))          \
    BLOCK(sync_all, imbrexd_sync_all(&team))                                                      \
    BLOCK(barrier_all, imbrexd_barrier_all(&team))                                                \
    BLOCK(sync_node, imbrexd_sync_node(&team))                                                    \
    BLOCK(barrier_node, imbrexd_barrier_node(&team))                                              \
    BLOCK(broadcast_4k, imbrexd_broadcast(&team, own->data, own->spot, 4096, 0))                  \
    BOTH(post_to_wait, imbrexd_notify_block(&to->signal[6], i, IMBREXD_SET),                      \
         imbrexd_wait_block(&team, &own->signal[6], 1, i, -1))                                    \
    BOTH(put_signal_64,                                                                           \
         imbrexd_put_signal_block(to->data, own->spot, 64, &to->signal[7], i, IMBREXD_SET),       \
         imbrexd_wait_block(&team, &own->signal[7], 1, i, -1))                                    \
    BOTH(put_signal_64k,                                                                          \
         imbrexd_put_signal_block(to->step, own->spot, 65536, &to->signal[8], i, IMBREXD_SET),    \
         imbrexd_wait_block(&team, &own->signal[8], 1, i, -1))                                    \
    BOTH(ll_64, imbrexd_ll_pack_block(to->word[0], own->mine, 64, (uint32_t)i),                   \
         imbrexd_ll_unpack_block(&team, own->back, own->word[0], 64, (uint32_t)i, -1))            \
    BOTH(ll_4k, imbrexd_ll_pack_block(to->word[1], own->mine, 4096, (uint32_t)i),                 \
         imbrexd_ll_unpack_block(&team, own->back, own->word[1], 4096, (uint32_t)i, -1))

#define COST_ROW(name, ...) COST_##name,
enum { COSTS(COST_ROW, COST_ROW, COST_ROW, COST_ROW) COST_COUNT };
#undef COST_ROW

#ifndef __CUDACC__
#define COST_ROW(name, ...) #name,
static const char *const cost_names[] = { COSTS(COST_ROW, COST_ROW, COST_ROW, COST_ROW) };
#undef COST_ROW
#endif

/* whole: which cost, and above its lowest byte how many repeats.  Leaves the nanoseconds of all in
 * have, and how many times that was in want. */
CASE cost(const imbrexd_team team, arena *own, outcome *out, uint64_t whole)
{
    int what = (int)(whole & 255), first = team.rank == 0, other = team.rank ^ 1;
    uint64_t repeats = whole >> 8, times = repeats;
    uint64_t begin = imbrexd_epoch(&team) << 20, end = begin + repeats; /* signals go on growing */
    arena *far = at_rank(&team, team.size > 1 ? 1 : 0, own);
    arena *to = at_rank(&team, other < team.size ? other : team.rank, own);
    if (!imbrexd_barrier_all(&team))
        return;
    uint64_t last = 0;
    int64_t begin_ns = imbrexd_now_ns();
#define COST_LOOP(name, mine, operation)                      \
    case COST_##name:                                         \
        for (uint64_t i = begin + 1; i <= end && (mine); i++) \
            (void)(operation);                                \
        break;
#define COST_ONE(name, operation)  COST_LOOP(name, first &&imbrexd_thread() == 0, operation)
#define COST_WARP(name, operation) COST_LOOP(name, first &&FIRST_WARP, operation)
#define COST_BLOCK(name, operation) \
    COST_LOOP(name, first || (what >= COST_sync_all && what <= COST_broadcast_4k), operation)
#define COST_BOTH(name, send, receive)                                                  \
    case COST_##name:                                                                   \
        times = 2 * repeats;                                                            \
        for (uint64_t i = begin + 1; i <= end && team.rank < 2 && team.size > 1; i++) { \
            if (first)                                                                  \
                send;                                                                   \
            if (!(receive))                                                             \
                break;                                                                  \
            if (!first)                                                                 \
                send;                                                                   \
        }                                                                               \
        break;
    switch (what) {
        COSTS(COST_ONE, COST_WARP, COST_BLOCK, COST_BOTH)
    }
    int64_t end_ns = imbrexd_now_ns();
    if (imbrexd_barrier_all(&team) && imbrexd_thread() == 0) {
        out->have = (uint64_t)(end_ns - begin_ns);
        out->want = times;
        out->rank = last;
        out->done = whole;
    }
}

#endif /* DEVICE_COST_H */
