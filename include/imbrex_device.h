/* imbrex_device.h - what code inside a kernel may do with signals: post, wait, count.  The same
 * names everywhere: CUDA C under NVRTC and nvcc (imbrex_device_cuda.h), else C with the atomics of
 * GCC and Clang, for kernels that run as blocks on CPU ranks (imbrex_device_cpu.h).
 *
 * Ordering, for every primitive here: whatever the poster wrote before a post is visible to whoever
 * saw the posted value in a wait (release, acquire).  Signals are 64-bit words that only grow and
 * have one writer; a counter is a 32-bit word that many add to.
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
    IMBREXD_FAULT_GAVE_UP = 5   /* a part of a run is enqueued, the rest cannot be: its status */
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

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "imbrex_device_cuda.h"
#else
#include "imbrex_device_cpu.h"
#endif

#ifdef __cplusplus
}
#endif
#endif /* IMBREX_DEVICE_H */
