/* imbrex_device_cpu.h - the primitives of imbrex_device.h for CPU ranks.  Include that one. */
#ifndef IMBREX_DEVICE_CPU_H
#define IMBREX_DEVICE_CPU_H

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What the primitives tell a checker of protocols (IMBREX_CHECK). */
typedef struct imbrexd_checker {
    void (*post)(uint64_t *signal, uint64_t value, int adds); /* before it is there */
    void (*wait)(const uint64_t *signal, imbrexd_compare compare, uint64_t value,
                 imbrexd_wait_point point);
    void (*held)(void); /* still */
    void (*came)(int arrived);
    void (*count)(uint32_t *counter, int last); /* before; again after, for the last one */
    /* rows of bytes, each stride after the one before, are about to be read, or written; 0: a
     * mistake, better left */
    int (*access)(const void *at, size_t bytes, size_t stride, size_t rows, int writes);
    void (*fence)(void); /* a fence or an acquire by hand: it may order anything */
} imbrexd_checker;

/* The library's own; NULL: nobody checks.  Without an address, outside of it: a kernel's own, which
 * the library fills in.  Both are set once, before kernels run. */
#ifdef __cplusplus
extern "C" {
#endif
extern const imbrexd_checker *imbrex_checker __attribute__((weak, visibility("hidden")));
#ifdef __cplusplus
}
#endif

static const imbrexd_checker *imbrexd_own_checker;

/* Where the streams' spans go while imbrex_trace is on. */
typedef struct imbrexd_trace {
    imbrex_span *spans;
    size_t capacity;
    size_t count; /* atomic; may run past capacity: the rest was dropped */
} imbrexd_trace;

/* What one block of a kernel knows of its place. */
typedef struct imbrexd_block {
    int32_t index, count; /* this block, of so many */
    int32_t stream, pad;
    const imbrexd_watch *watch;
    void *scratch;        /* this block's own, as large as the kernel asked for, 64-byte aligned */
    imbrexd_trace *trace; /* NULL: not recording */
} imbrexd_block;

/* -std=c11 without feature macros hides these in the C library's headers. */
#if defined(__STRICT_ANSI__) && !defined(__cplusplus) && !defined(_GNU_SOURCE) && \
    !defined(_DEFAULT_SOURCE)
long syscall(long number, ...);
#ifndef CLOCK_MONOTONIC
int clock_gettime(int clock, struct timespec *now);
int nanosleep(const struct timespec *wanted, struct timespec *left);
#endif
#endif

enum { IMBREXD_CLOCK = 1 }; /* CLOCK_MONOTONIC */

IMBREXD_FN int64_t imbrexd_now_ns(void)
{
    struct timespec t;
    clock_gettime(IMBREXD_CLOCK, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Long after its last look a wait looks again: its process was stopped, maybe with all its peers.
 * What of such a gap does not count: all but a second, or a quarter of a short limit.  So much
 * counts, so that waits end where every look is late. */
IMBREXD_FN int64_t imbrexd_pause_ns(int64_t gap_ns, int64_t limit_ns)
{
    int64_t most_ns = limit_ns / 4;
    most_ns = most_ns < 100000000 ? 100000000 : most_ns > 1000000000 ? 1000000000 : most_ns;
    return gap_ns > most_ns ? gap_ns - most_ns : 0;
}

/* Adds one span; drops it when the trace is full. */
IMBREXD_FN void imbrexd_trace_add(imbrexd_trace *trace, const imbrex_span *span)
{
    size_t at = __atomic_fetch_add(&trace->count, 1, __ATOMIC_RELAXED);
    if (at < trace->capacity)
        trace->spans[at] = *span;
}

/* relaxed: what it points to is constant. */
IMBREXD_FN const imbrexd_checker *imbrexd_check(void)
{
    const imbrexd_checker *const *at = &imbrex_checker ? &imbrex_checker : &imbrexd_own_checker;
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

/* Rows of bytes, each stride after the one before, that the block now reads or writes: for the
 * checker, which sees nothing else of plain loads and stores.  0: it has found a mistake, and the
 * group has failed. */
IMBREXD_FN int imbrexd_check_read(const void *at, size_t bytes, size_t stride, size_t rows)
{
    return !imbrexd_check() || imbrexd_check()->access(at, bytes, stride, rows, 0);
}

IMBREXD_FN int imbrexd_check_write(void *at, size_t bytes, size_t stride, size_t rows)
{
    return !imbrexd_check() || imbrexd_check()->access(at, bytes, stride, rows, 1);
}

IMBREXD_FN void imbrexd_check_fence(void)
{
    if (imbrexd_check())
        imbrexd_check()->fence();
}

/* Ends all waits of all ranks with this fault, unless an earlier one already did. */
IMBREXD_FN void imbrexd_fault_raise(const imbrexd_watch *watch, int32_t kind,
                                    imbrexd_wait_point point, uint64_t have, uint64_t want)
{
    imbrexd_fault *fault = watch->fault;
    uint32_t unused = 0;
    if (__atomic_compare_exchange_n(&fault->state, &unused, 1, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED)) {
        fault->kind = kind;
        fault->rank = watch->rank;
        fault->late = watch->late;
        fault->point = point;
        fault->have = have;
        fault->want = want;
        fault->when_ns = imbrexd_now_ns();
        __atomic_store_n(&fault->state, 2, __ATOMIC_RELEASE);
    }
    for (int32_t r = 0; r < watch->size; r++) {
        uint64_t none =
            0; /* acq_rel: who sees the word may read the fault; the first fault stays the first */
        __atomic_compare_exchange_n(watch->abort[r], &none, (uint64_t)watch->rank + 1, 0,
                                    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
}

/* Of the last rank that imbrexd_peer had nothing of for this thread, in this kernel. */
static __thread struct {
    imbrexd_watch watch; /* abort NULL: there was none */
    imbrexd_wait_point point;
} imbrexd_far;

enum { IMBREXD_NOWHERE = 65536 }; /* nothing is mapped below */

/* 0: `at` is NULL, or not far behind, and imbrexd_peer has said so of a rank on another node: ends
 * all waits, so that the host can say so. */
IMBREXD_FN int imbrexd_reached(const void *at)
{
    if ((size_t)at >= IMBREXD_NOWHERE || !imbrexd_far.watch.abort)
        return 1;
    imbrexd_fault_raise(&imbrexd_far.watch, IMBREXD_FAULT_UNREACHABLE, imbrexd_far.point, 0, 0);
    return 0;
}

/* ---- loads, stores, fences ------------------------------------------------------------------- */

/* As imbrexd_load_acquire, by those who tell the checker themselves. */
IMBREXD_FN uint64_t imbrexd_look(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

IMBREXD_FN uint64_t imbrexd_load_acquire(const uint64_t *at)
{
    uint64_t value = imbrexd_reached(at) ? imbrexd_look(at) : 0;
    imbrexd_check_fence();
    return value;
}

IMBREXD_FN void imbrexd_store_release(uint64_t *at, uint64_t value)
{
    if (imbrexd_reached(at))
        __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

IMBREXD_FN uint64_t imbrexd_load_acquire_gpu(const uint64_t *at)
{
    return imbrexd_load_acquire(at);
}

IMBREXD_FN void imbrexd_store_release_gpu(uint64_t *at, uint64_t value)
{
    imbrexd_store_release(at, value);
}

IMBREXD_FN uint64_t imbrexd_load_relaxed(const uint64_t *at)
{
    return imbrexd_reached(at) ? __atomic_load_n(at, __ATOMIC_RELAXED) : 0;
}

IMBREXD_FN void imbrexd_store_relaxed(uint64_t *at, uint64_t value)
{
    if (imbrexd_reached(at))
        __atomic_store_n(at, value, __ATOMIC_RELAXED);
}

/* Thread sanitizer knows no fences: under it each is a read-modify-write, which is one for the
 * processor too. */
#if defined(__SANITIZE_THREAD__)
#define IMBREXD_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define IMBREXD_TSAN 1
#endif
#endif

IMBREXD_FN void imbrexd_quiet(void)
{
#ifdef IMBREXD_TSAN
    uint64_t word = 0;
    __atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
    imbrexd_check_fence();
}

IMBREXD_FN void imbrexd_fence_post(void)
{
#ifdef IMBREXD_TSAN
    imbrexd_quiet();
#else
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
    imbrexd_check_fence();
#endif
}

IMBREXD_FN void imbrexd_fence_gpu(void)
{
    imbrexd_fence_post();
}

/* ---- atomic operations ----------------------------------------------------------------------- */

/* All scopes are one here. */
IMBREXD_FN int imbrexd_order_of(imbrexd_order order)
{
    switch (order) {
    case IMBREXD_RELAXED:
        return __ATOMIC_RELAXED;
    case IMBREXD_ACQUIRE:
        return __ATOMIC_ACQUIRE;
    case IMBREXD_RELEASE:
        return __ATOMIC_RELEASE;
    default:
        return __ATOMIC_ACQ_REL;
    }
}

/* A comparison that failed was a load only. */
IMBREXD_FN int imbrexd_order_of_load(imbrexd_order order)
{
    return order == IMBREXD_ACQUIRE || order == IMBREXD_ACQ_REL ? __ATOMIC_ACQUIRE
                                                                : __ATOMIC_RELAXED;
}

IMBREXD_FN void imbrexd_check_order(imbrexd_order order)
{
    if (order == IMBREXD_ACQUIRE || order == IMBREXD_ACQ_REL)
        imbrexd_check_fence();
}

IMBREXD_FN uint32_t imbrexd_atomic_add_u32(uint32_t *at, uint32_t value, imbrexd_order order,
                                           imbrexd_scope scope)
{
    (void)scope;
    if (!imbrexd_reached(at))
        return 0;
    uint32_t before = __atomic_fetch_add(at, value, imbrexd_order_of(order));
    imbrexd_check_order(order);
    return before;
}

IMBREXD_FN uint64_t imbrexd_atomic_add_u64(uint64_t *at, uint64_t value, imbrexd_order order,
                                           imbrexd_scope scope)
{
    (void)scope;
    if (!imbrexd_reached(at))
        return 0;
    uint64_t before = __atomic_fetch_add(at, value, imbrexd_order_of(order));
    imbrexd_check_order(order);
    return before;
}

IMBREXD_FN uint32_t imbrexd_atomic_cas_u32(uint32_t *at, uint32_t want, uint32_t value,
                                           imbrexd_order order, imbrexd_scope scope)
{
    (void)scope;
    if (!imbrexd_reached(at))
        return 0;
    __atomic_compare_exchange_n(at, &want, value, 0, imbrexd_order_of(order),
                                imbrexd_order_of_load(order));
    imbrexd_check_order(order);
    return want;
}

IMBREXD_FN uint64_t imbrexd_atomic_cas_u64(uint64_t *at, uint64_t want, uint64_t value,
                                           imbrexd_order order, imbrexd_scope scope)
{
    (void)scope;
    if (!imbrexd_reached(at))
        return 0;
    __atomic_compare_exchange_n(at, &want, value, 0, imbrexd_order_of(order),
                                imbrexd_order_of_load(order));
    imbrexd_check_order(order);
    return want;
}

IMBREXD_FN void imbrexd_red_release(uint64_t *at, uint64_t value)
{
    if (imbrexd_reached(at))
        __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
}

IMBREXD_FN void imbrexd_red_release_gpu(uint64_t *at, uint64_t value)
{
    imbrexd_red_release(at, value);
}

/* ---- signals --------------------------------------------------------------------------------- */

/* Wakes whoever sleeps on the signal.  A futex is a 32-bit word: the low half, which comes first on
 * every machine that this builds for. */
IMBREXD_FN void imbrexd_signal_wake(uint64_t *signal)
{
    syscall(SYS_futex, (uint32_t *)signal, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

IMBREXD_FN void imbrexd_signal_post(uint64_t *signal, uint64_t value)
{
    if (!imbrexd_reached(signal))
        return;
    if (imbrexd_check())
        imbrexd_check()->post(signal, value, 0);
    imbrexd_store_release(signal, value);
    imbrexd_signal_wake(signal);
}

/* Orders nothing. */
IMBREXD_FN void imbrexd_signal_post_relaxed(uint64_t *signal, uint64_t value)
{
    __atomic_store_n(signal, value, __ATOMIC_RELAXED);
    imbrexd_signal_wake(signal);
}

/* Release, and acquire so that a wait which sees the last addend sees what all adders wrote. */
IMBREXD_FN void imbrexd_signal_add(uint64_t *signal, uint64_t value)
{
    if (!imbrexd_reached(signal))
        return;
    if (imbrexd_check())
        imbrexd_check()->post(signal, value, 1);
    __atomic_fetch_add(signal, value, __ATOMIC_ACQ_REL);
    imbrexd_signal_wake(signal);
}

/* 1 if there is such a rank and have, an offset or a number, is below most (bytes of the piece,
 * signals); else ends all waits, so that the host can say so.  A rank of another node has no
 * signals here; of its memory, which may be asked for, imbrexd_reached tells. */
IMBREXD_FN int imbrexd_inside(const imbrexd_team *team, int what, int rank, int index, size_t have,
                              size_t most)
{
    int there = rank >= 0 && rank < team->size && have < most;
    imbrexd_wait_point point = { team->kernel, what, rank, index };
    if (there && what == IMBREXD_POINT_SIGNAL && !team->words[rank]) {
        imbrexd_fault_raise(&team->watch, IMBREXD_FAULT_UNREACHABLE, point, 0, 0);
        return 0;
    }
    if (there && what == IMBREXD_POINT_DATA && !team->base[rank]) {
        imbrexd_far.watch = team->watch;
        imbrexd_far.point = point;
    }
    if (there)
        return 1;
    imbrexd_fault_raise(&team->watch, IMBREXD_FAULT_OUTSIDE, point, have, most);
    return 0;
}

/* Notes that this rank is held; by a rank that is not there, as if nobody knew by whom.  relaxed: a
 * time by itself, nothing is read on its strength. */
IMBREXD_FN void imbrexd_watch_note(const imbrexd_watch *watch, imbrexd_wait_point point,
                                   int64_t now_ns)
{
    int32_t at = point.rank >= 0 && point.rank < watch->size ? point.rank : watch->size;
    if (watch->waiting)
        __atomic_store_n(&watch->waiting[at], now_ns, __ATOMIC_RELAXED);
}

/* Until the signal compares so with value: polls watch->spins times, then sleeps on the word,
 * because ranks may outnumber cores.  It wakes up every 10 ms to look at the abort word and the
 * clock.  Returns 1 when the value is there, 0 to give up. */
IMBREXD_FN int imbrexd_signal_await(const imbrexd_watch *watch, const uint64_t *signal,
                                    imbrexd_compare compare, uint64_t value,
                                    imbrexd_wait_point point)
{
    uint64_t have = imbrexd_look(signal);
    for (int32_t i = 0; !imbrexd_holds(have, compare, value) && i < watch->spins; i++) {
        if (i % 64 == 63)
            sched_yield();
        have = imbrexd_look(signal);
    }
    if (imbrexd_holds(have, compare, value))
        return 1;

    const struct timespec nap = { 0, 10000000 };
    int64_t looked_ns = imbrexd_now_ns(), deadline = looked_ns + watch->timeout_ns;
    while (!imbrexd_holds(have = imbrexd_look(signal), compare, value)) {
        if (imbrexd_look(watch->abort[watch->rank]))
            return 0;
        int64_t now_ns = imbrexd_now_ns();
        deadline += imbrexd_pause_ns(now_ns - looked_ns, watch->timeout_ns);
        looked_ns = now_ns;
        imbrexd_watch_note(watch, point, now_ns);
        if (imbrexd_check())
            imbrexd_check()->held();
        if (now_ns >= deadline) {
            imbrexd_fault_raise(watch, IMBREXD_FAULT_DEADLINE, point, have, value);
            return 0;
        }
        /* Sleeps only if the low half is still what we saw: a post in between is never missed. */
        syscall(SYS_futex, (const uint32_t *)signal, FUTEX_WAIT, (uint32_t)have, &nap, NULL, 0);
    }
    return 1;
}

/* The same, watched by the checker if there is one. */
IMBREXD_FN int imbrexd_signal_wait_until(const imbrexd_watch *watch, const uint64_t *signal,
                                         imbrexd_compare compare, uint64_t value,
                                         imbrexd_wait_point point)
{
    const imbrexd_checker *checker = imbrexd_check();
    if (!checker)
        return imbrexd_signal_await(watch, signal, compare, value, point);
    checker->wait(signal, compare, value, point);
    int arrived = imbrexd_signal_await(watch, signal, compare, value, point);
    checker->came(arrived);
    return arrived;
}

IMBREXD_FN int imbrexd_signal_wait(const imbrexd_watch *watch, const uint64_t *signal,
                                   uint64_t value, imbrexd_wait_point point)
{
    return imbrexd_signal_wait_until(watch, signal, IMBREXD_GE, value, point);
}

IMBREXD_FN int imbrexd_signal_wait_napping(const imbrexd_watch *watch, const uint64_t *signal,
                                           uint64_t value, imbrexd_wait_point point)
{
    return imbrexd_signal_wait(watch, signal, value, point);
}

/* For the checker: a wait that was over when it was looked at. */
IMBREXD_FN void imbrexd_check_came(const uint64_t *signal, imbrexd_compare compare, uint64_t value,
                                   imbrexd_wait_point point)
{
    const imbrexd_checker *checker = imbrexd_check();
    if (!checker)
        return;
    checker->wait(signal, compare, value, point);
    checker->came(1);
}

/* Adds one to a counter of last and, for the one that makes it full, empties it and returns 1.
 * acq_rel: whoever gets the 1 sees everything that the others wrote before they counted. */
IMBREXD_FN int imbrexd_counter_last(uint32_t *counter, uint32_t last)
{
    if (imbrexd_check())
        imbrexd_check()->count(counter, 0);
    if (__atomic_add_fetch(counter, 1, __ATOMIC_ACQ_REL) != last)
        return 0;
    if (imbrexd_check())
        imbrexd_check()->count(counter, 1);
    __atomic_store_n(counter, 0, __ATOMIC_RELAXED); /* the next use of the counter comes after this
                                                       kernel, in stream order */
    return 1;
}

/* ---- a block is one thread ------------------------------------------------------------------- */

/* The hook that this thread is in, if team is not NULL, and who is in it on GPUs. */
static __thread struct {
    const imbrexd_team *team;
    imbrexd_hook hook;
    imbrexd_callers callers;
} imbrexd_hooked;

IMBREXD_FN void imbrexd_hook_enter(const imbrexd_team *team, imbrexd_hook hook,
                                   imbrexd_callers callers)
{
    imbrexd_hooked.team = team;
    imbrexd_hooked.hook = hook;
    imbrexd_hooked.callers = callers;
}

/* What only all threads of the warp or the block may call hangs a GPU in a hook that fewer call,
 * and ends the group here. */
IMBREXD_FN void imbrexd_together(imbrexd_callers callers)
{
    const imbrexd_team *team = imbrexd_hooked.team;
    if (!team || imbrexd_hooked.callers >= callers)
        return;
    imbrexd_wait_point point = { team->kernel, 0, team->rank, (int32_t)imbrexd_hooked.hook };
    imbrexd_fault_raise(&team->watch, IMBREXD_FAULT_HOOK, point, (uint64_t)callers, 0);
}

IMBREXD_FN unsigned imbrexd_thread(void)
{
    return 0;
}

IMBREXD_FN unsigned imbrexd_threads(void)
{
    return 1;
}

IMBREXD_FN unsigned imbrexd_lane(void)
{
    return 0;
}

IMBREXD_FN unsigned imbrexd_lanes(void)
{
    return 1;
}

IMBREXD_FN void imbrexd_sync_warp(void)
{
    imbrexd_together(IMBREXD_CALLED_BY_WARP);
}

IMBREXD_FN int imbrexd_all_warp(int mine)
{
    imbrexd_together(IMBREXD_CALLED_BY_WARP);
    return mine;
}

IMBREXD_FN void imbrexd_sync_block(void)
{
    imbrexd_together(IMBREXD_CALLED_BY_BLOCK);
}

IMBREXD_FN int imbrexd_all_block(int mine)
{
    imbrexd_together(IMBREXD_CALLED_BY_BLOCK);
    return mine;
}

/* Between polls of a wait that has lasted so long: another rank may need this core.  Where threads
 * outnumber cores a yield costs the time slices of all others; a thread that naps is the next one
 * when it wakes up. */
IMBREXD_FN void imbrexd_yield(int64_t waited_ns)
{
    const struct timespec nap = { 0, 20000 };
    if (waited_ns < 100000)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

/* Thread number lane of lanes, which is the only one. */
IMBREXD_FN void imbrexd_copy_part(void *dst, const void *src, size_t bytes, size_t lane,
                                  size_t lanes)
{
    (void)lane;
    (void)lanes;
    if (bytes && imbrexd_reached(src) && imbrexd_reached(dst) &&
        imbrexd_check_read(src, bytes, 0, 1) && imbrexd_check_write(dst, bytes, 0, 1))
        memcpy(dst, src, bytes);
}

#endif /* IMBREX_DEVICE_CPU_H */
