/* imbrex_device.h - what code inside a kernel may do: reach peers' memory, signal and wait, in an
 * order that holds.  The same names everywhere: CUDA C under NVRTC and nvcc for sm_80 and newer
 * (imbrex_device_cuda.h), else C or C++ with the atomics of GCC and Clang, for kernels that run as
 * blocks on CPU ranks, where a block is one thread (imbrex_device_cpu.h).  What is built of these
 * is written once (imbrex_device_team.h).  docs/device.md has them beside OpenSHMEM's names.
 *
 *   team     what the host passes: team->rank, ->size, ->node, ->node_rank, ->node_size
 *     imbrexd_epoch(team)                                    which launch this is, from 1
 *     imbrexd_peer(team, rank, at)                           where rank has what is at `at` here
 *     imbrexd_signal(team, rank, index)                      rank's signal of that number
 *   copies   _thread, _warp, _block; with _nbi done only after a quiet
 *     imbrexd_put_block(dst, src, bytes)                     dst: a peer's
 *     imbrexd_get_block(dst, src, bytes)                     src: a peer's
 *     imbrexd_put_signal_block(dst, src, bytes, signal, value, op)
 *   signals  uint64_t in symmetric memory; op: IMBREXD_SET or IMBREXD_ADD
 *     imbrexd_signal_post / _add(signal, value)              one thread
 *     imbrexd_signal_op(signal, value, op)
 *     imbrexd_notify_block(signal, value, op)                after all that the block stored
 *     imbrexd_wait(team, signal, value, from)                one thread, until *signal >= value
 *     imbrexd_wait_until(team, signal, compare, value, from) IMBREXD_EQ NE GT GE LT LE
 *     imbrexd_wait_warp / _block(team, signals, count, value, from)  until all are >= value
 *     imbrexd_wait_any(team, signals, count, skip, compare, value, from)  which one; -1: give up
 *     imbrexd_go_on(team, &limit, from)                      in a loop that looks by itself
 *   all ranks, or those of the node: one block of each, with all its threads
 *     imbrexd_barrier_all / _node(team)                      what all put before is there
 *     imbrexd_sync_all / _node(team)                         all have come, no more
 *     imbrexd_broadcast(team, dst, src, bytes, root)
 *   order
 *     imbrexd_fence_post, imbrexd_fence_gpu()                my stores so far before my later ones
 *     imbrexd_quiet, imbrexd_quiet_warp / _block()           all I put is there, for everybody
 *     imbrexd_fence_tma()                                    CUDA: between a wait and TMA reads
 *     imbrexd_load_acquire / _relaxed(at), imbrexd_store_release / _relaxed(at, value)
 *     imbrexd_load_acquire_gpu, imbrexd_store_release_gpu    among one GPU's blocks
 *     imbrexd_red_release / _gpu(at, value)                  adds, returns nothing
 *     imbrexd_atomic_add_u32 / _u64(at, value, order, scope) returns what was there
 *     imbrexd_atomic_cas_u32 / _u64(at, want, value, order, scope)
 *     imbrexd_counter_last(counter, last)                    adds 1; 1 for the last one
 *   LL       four bytes of data and four of flag in one word
 *     imbrexd_ll_pack_block(ll, src, bytes, flag)
 *     imbrexd_ll_unpack_block(team, dst, ll, bytes, flag, from)
 *   threads  imbrexd_thread, imbrexd_threads(), imbrexd_sync_block(), imbrexd_all_block(mine)
 *            imbrexd_lane, imbrexd_lanes(), imbrexd_sync_warp(), imbrexd_all_warp(mine)
 *   for IMBREX_CHECK: rows of bytes, each stride after the one before, which the block now reads or
 *   writes by plain loads and stores; 0: a mistake, give up.  On GPUs nothing
 *     imbrexd_check_read / _write(at, bytes, stride, rows)
 *   multimem if IMBREXD_MULTIMEM is defined before the #include: imbrex_device_multimem.h
 *
 * Ordering, for all signals: whatever the poster wrote before a post is visible to whoever saw the
 * posted value in a wait (release, acquire).  What many threads wrote is posted by one of them
 * after a barrier of the block: _block functions see to that.  Signals are 64-bit words in
 * symmetric memory that only grow and have one writer, or many that all add; a counter is a 32-bit
 * word of one rank.
 *
 * Every wait ends: at its value, or when the group was aborted, or after the watch's deadline; a
 * loop of one's own does if it asks imbrexd_go_on.  A wait that returns 0 (imbrexd_wait_any: -1)
 * means "give up": the kernel returns at once, posts nothing, and the host learns why from the
 * fault.
 */
#ifndef IMBREX_DEVICE_H
#define IMBREX_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "imbrex.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a wait waits for, kept as plain numbers so that a device can record it and the host can put
 * it into words. */
typedef struct imbrexd_wait_point {
    int32_t plan;  /* number of the plan in its group, from 1; 0: none */
    int32_t what;  /* kind of signal: the host's table of words */
    int32_t rank;  /* who has to post */
    int32_t index; /* chunk, tile, ...; -1: none */
} imbrexd_wait_point;

/* The first thing that a rank found wrong: a wait that outlived its deadline, a peer that died...
 * state: 0 free, 1 being written, 2 to be read. */
typedef struct imbrexd_fault {
    uint32_t state;
    int32_t kind; /* below */
    int32_t rank; /* who noticed */
    int32_t late; /* DEADLINE: as the watch has it */
    imbrexd_wait_point point;
    uint64_t have, want;
    int64_t when_ns; /* CLOCK_MONOTONIC; 0: noticed by a device, which has no such clock */
} imbrexd_fault;

/* imbrexd_fault.kind, and what have and want are.  Kernels raise 1, 7, 9 and 11 to 14, the host all
 * but 7, 9 and 11 to 14. */
enum {
    IMBREXD_FAULT_DEADLINE = 1, /* the signal's value, the value waited for */
    IMBREXD_FAULT_DEATH = 2,    /* of rank point.rank */
    IMBREXD_FAULT_ABORT = 3,
    IMBREXD_FAULT_MISMATCH = 4, /* runs that differ: of rank point.rank, of the one that noticed */
    IMBREXD_FAULT_GAVE_UP = 5,  /* a part of a run is enqueued, the rest cannot be: its status */
    IMBREXD_FAULT_NET = 6, /* the engine between nodes failed, with rank point.rank: its code */
    IMBREXD_FAULT_UNREACHABLE = 7, /* a kernel's: point.rank is on another node */
    IMBREXD_FAULT_PROTOCOL = 8,    /* the checker's; the host has the words */
    IMBREXD_FAULT_OUTSIDE = 9,     /* a kernel asked for what is not there: see imbrexd_inside */
    IMBREXD_FAULT_SHARED = 10,     /* block point.index wrote beyond desc.shared_bytes: 0, these */
    IMBREXD_FAULT_ROWS = 12,       /* tokens have more rows here than desc.rows: so many, that */
    IMBREXD_FAULT_LENGTH = 13,     /* of sequence point.index: its tokens, the most there can be */
    IMBREXD_FAULT_PAGE = 14,       /* of sequence point.index: a page, how many there are */
    IMBREXD_FAULT_HOOK = 11 /* hook point.index (imbrexd_hook) said 0 where no wait gave up: 0, 0;
                               named tile `have` of `want`; or called what only imbrexd_callers
                               `have` may: that, 0 */
};

/* The hooks of a product (imbrex_gemm.h). */
typedef enum imbrexd_hook {
    IMBREXD_HOOK_ORDER,
    IMBREXD_HOOK_BEGIN,
    IMBREXD_HOOK_WAIT,
    IMBREXD_HOOK_DONE,
    IMBREXD_HOOK_BESIDE,
    IMBREXD_HOOK_END,
    IMBREXD_HOOK_SUM
} imbrexd_hook;

/* Who calls something together, on GPUs. */
typedef enum imbrexd_callers {
    IMBREXD_CALLED_BY_THREAD = 1,
    IMBREXD_CALLED_BY_WARP = 2,
    IMBREXD_CALLED_BY_BLOCK = 3
} imbrexd_callers;

/* A group's watch over its waits.  abort[r] is rank r's abort word: 0, or 1 + the rank that noticed
 * the first fault.  waiting[r] is when this rank last found itself still held by rank r, and
 * waiting[size] the same where nobody knows who has to post: from these the host finds the rank
 * that holds up all others.  A rank that is stopped has old times, one that waits has new ones. */
typedef struct imbrexd_watch {
    uint64_t *const *abort;
    imbrexd_fault *fault; /* this rank's own, readable by all ranks, like waiting */
    int64_t *waiting;     /* [size + 1], CLOCK_MONOTONIC; NULL: not kept.  Devices never do. */
    int32_t rank, size;
    int32_t spins; /* polls before a wait goes to sleep */
    int32_t late;  /* CPU: blocks of the launch that begin only when others have ended */
    int64_t timeout_ns;
} imbrexd_watch;

/* What a kernel knows of its group: made by the host, passed by value, never written.  Its pointers
 * are the kernel's to follow, not the host's.
 *
 * One piece of symmetric memory on all ranks: what lies at `at` here lies on rank r at
 * base[r] + (at - base[rank]).  Beside it words of the team's own, zeroed when the team is made:
 *
 *     words[r]: | arrived [size] | arrived of the node [size] | broadcast [size] | epochs [4] |
 *               | signals [signal_count]: the kernels', as they like |
 */
typedef struct imbrexd_team {
    int32_t rank, size;
    int32_t node, nodes;          /* this rank's node, of so many */
    int32_t node_rank, node_size; /* in it; a node's ranks follow each other, from
                                     rank - node_rank */
    int32_t kernel; /* number of the kernel in its group, from 1, for faults; 0: none */
    int32_t signal_count;
    char *const *base;      /* [size]; as this rank maps it; NULL: a rank of another node */
    size_t bytes;           /* of the piece, alike on all ranks */
    uint64_t *const *words; /* [size]; as this rank maps them; NULL: a rank of another node */
    const uint64_t *epoch;  /* launches of this kernel so far, with this one: alike on all ranks, in
                               memory so that a replayed graph counts too; what signals carry */
    char *multicast; /* the pieces of the whole node at once (NVLink multicast); NULL: none */
    imbrexd_watch watch;
} imbrexd_team;

/* How many words of its own a team has before the kernels' signals. */
#define IMBREXD_TEAM_WORDS(size) (3 * (size_t)(size) + 4)

/* imbrexd_wait_point.what of waits in everyone's kernels; plan: the kernel's number. */
enum {
    IMBREXD_POINT_SIGNAL = 32,  /* of rank; index: which of the team's, or -1 */
    IMBREXD_POINT_BARRIER = 33, /* rank to come to it */
    IMBREXD_POINT_DATA = 34,    /* of rank: a broadcast, words with flags */
    IMBREXD_POINT_LOOP = 35     /* what rank is to bring to a loop of the kernel's own */
};

/* How a signal is compared with a value. */
typedef enum imbrexd_compare {
    IMBREXD_EQ,
    IMBREXD_NE,
    IMBREXD_GT,
    IMBREXD_GE,
    IMBREXD_LT,
    IMBREXD_LE
} imbrexd_compare;

/* What is done to a signal. */
typedef enum imbrexd_op { IMBREXD_SET, IMBREXD_ADD } imbrexd_op;

/* Of an atomic operation: what it orders, and among whom. */
typedef enum imbrexd_order {
    IMBREXD_RELAXED,
    IMBREXD_ACQUIRE,
    IMBREXD_RELEASE,
    IMBREXD_ACQ_REL
} imbrexd_order;

typedef enum imbrexd_scope { IMBREXD_BLOCK, IMBREXD_GPU, IMBREXD_SYS } imbrexd_scope;

#ifdef __cplusplus
}
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define IMBREXD_FN static __device__ __forceinline__
#else
#define IMBREXD_FN static inline
#endif

IMBREXD_FN int imbrexd_holds(uint64_t have, imbrexd_compare compare, uint64_t value)
{
    switch (compare) {
    case IMBREXD_EQ:
        return have == value;
    case IMBREXD_NE:
        return have != value;
    case IMBREXD_GT:
        return have > value;
    case IMBREXD_GE:
        return have >= value;
    case IMBREXD_LT:
        return have < value;
    default:
        return have <= value;
    }
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "imbrex_device_cuda.h"
#else
#include "imbrex_device_cpu.h"
#endif
#include "imbrex_device_kernel.h"
#include "imbrex_device_team.h"

#endif /* IMBREX_DEVICE_H */
