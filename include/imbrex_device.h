/* imbrex_device.h - what code inside a kernel may do: signals, loads and stores with an order,
 * copies to peers, barriers.  The same names everywhere: CUDA C under NVRTC and nvcc
 * (imbrex_device_cuda.h), else C or C++ with the atomics of GCC and Clang, for kernels that run as
 * blocks on CPU ranks, where a block is one thread (imbrex_device_cpu.h).
 *
 *     int  imbrexd_signal_wait(watch, signal, value, site)     until *signal >= value
 *     void imbrexd_signal_post(signal, value)                  raises *signal to value
 *     void imbrexd_signal_add(signal, value)                   adds; for a signal of many writers
 *     int  imbrexd_counter_last(counter, last)                 adds 1; 1 for the last one
 *
 *     uint64_t imbrexd_load_acquire(at)    void imbrexd_store_release(at, value)
 *     uint64_t imbrexd_load_acquire_gpu    void imbrexd_store_release_gpu    among one GPU's blocks
 *     void imbrexd_fence_post()            void imbrexd_fence_gpu()          acquire and release
 *
 *     void *imbrexd_peer(team, rank, at)                       where rank has what is at `at` here
 *     void imbrexd_put_thread / _warp / _block(dst, src, bytes)    all threads of it call
 *     int  imbrexd_barrier_all / _node(team), imbrexd_sync_all / _node(team)
 *
 * Ordering, for all signals: whatever the poster wrote before a post is visible to whoever saw the
 * posted value in a wait (release, acquire).  What many threads wrote is posted by one of them
 * after a barrier of the block.  Signals are 64-bit words in symmetric memory that only grow and
 * have one writer, or many that all add; a counter is a 32-bit word of one rank.
 *
 * Every wait ends: at its value, or when the group was aborted, or after the watch's deadline.  A
 * wait that returns 0 means "give up": the kernel returns at once, posts nothing, and the host
 * learns why from the fault.
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
typedef struct imbrexd_site {
    int32_t plan;  /* number of the plan in its group, from 1; 0: none */
    int32_t what;  /* kind of signal: the host's table of words */
    int32_t rank;  /* who has to post */
    int32_t index; /* chunk, tile, ...; -1: none */
} imbrexd_site;

/* The first thing that a rank found wrong: a wait that outlived its deadline, a peer that died...
 * state: 0 free, 1 being written, 2 to be read. */
typedef struct imbrexd_fault {
    uint32_t state;
    int32_t kind; /* below */
    int32_t rank; /* who noticed */
    int32_t pad;
    imbrexd_site site;
    uint64_t have, want;
    int64_t when_ns; /* CLOCK_MONOTONIC; 0: noticed by a device, which has no such clock */
} imbrexd_fault;

/* imbrexd_fault.kind, and what have and want are.  All but the first are the host's. */
enum {
    IMBREXD_FAULT_DEADLINE = 1, /* the signal's value, the value waited for */
    IMBREXD_FAULT_DEATH = 2,    /* of rank site.rank */
    IMBREXD_FAULT_ABORT = 3,
    IMBREXD_FAULT_MISMATCH = 4, /* runs that differ: of rank site.rank, of the one that noticed */
    IMBREXD_FAULT_GAVE_UP = 5,  /* a part of a run is enqueued, the rest cannot be: its status */
    IMBREXD_FAULT_NET = 6       /* the engine between nodes failed, with rank site.rank: its code */
};

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
    int32_t pad;
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
    const uint64_t *use;    /* launches of this kernel so far, with this one: alike on all ranks, in
                               memory so that a replayed graph counts too; what signals carry */
    char *multicast; /* the pieces of the whole node at once (NVLink multicast); NULL: none */
    imbrexd_watch watch;
} imbrexd_team;

/* How many words of its own a team has before the kernels' signals. */
#define IMBREXD_TEAM_WORDS(size) (3 * (size_t)(size) + 4)

/* imbrexd_site.what of waits in everyone's kernels; plan: the kernel's number. */
enum {
    IMBREXD_SITE_SIGNAL = 32,  /* of rank; index: which of the team's, or -1 */
    IMBREXD_SITE_BARRIER = 33, /* rank to come to it */
    IMBREXD_SITE_DATA = 34     /* of rank: a broadcast, words with flags */
};

#ifdef __cplusplus
}
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "imbrex_device_cuda.h"
#else
#include "imbrex_device_cpu.h"
#endif
#include "imbrex_device_team.h"

#endif /* IMBREX_DEVICE_H */
