/* imbrex_device_cuda.h - the primitives of imbrex_device.h as CUDA C, for NVRTC and nvcc, sm_80 and
 * newer.  Include imbrex_device.h, not this.
 *
 * Signals, faults and abort words may lie in this GPU's memory, in a peer's, or in host memory that
 * the GPU sees; so all of them are read and written at system scope.
 *
 *   one thread waits   imbrexd_signal_wait, then __syncthreads or a barrier for those that read
 *   before TMA reads   what another agent wrote: imbrexd_fence_tma in the thread that waited
 *   many threads store all store, __syncthreads, then one thread posts: the post releases them all
 *   TMA stores         cp.async.bulk.wait_group 0 (not .read) in the thread that issued them, then
 *                      it posts
 */
#ifndef IMBREX_DEVICE_CUDA_H
#define IMBREX_DEVICE_CUDA_H

IMBREXD_FN uint64_t imbrexd_load_acquire(const uint64_t *at)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

IMBREXD_FN uint64_t imbrexd_look(const uint64_t *at)
{
    return imbrexd_load_acquire(at);
}

IMBREXD_FN void imbrexd_store_release(uint64_t *at, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}

IMBREXD_FN uint64_t imbrexd_load_relaxed(const uint64_t *at)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

IMBREXD_FN void imbrexd_store_relaxed(uint64_t *at, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}

/* Nanoseconds of the GPU's own clock; comparable on one GPU only, and coarse. */
IMBREXD_FN int64_t imbrexd_now_ns(void)
{
    int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* A kernel goes on while its process is stopped. */
IMBREXD_FN int64_t imbrexd_pause_ns(int64_t gap_ns, int64_t limit_ns)
{
    (void)gap_ns;
    (void)limit_ns;
    return 0;
}

/* Between a wait and TMA loads of what it waited for: the copy engine of the block reads through
 * another path than ordinary loads.  Qualified: the general form costs a few percent. */
IMBREXD_FN void imbrexd_fence_tma(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" : : : "memory");
#endif
}

/* All stores of this thread, and those that a barrier ordered before, come before its next post. */
IMBREXD_FN void imbrexd_fence_post(void)
{
    asm volatile("fence.acq_rel.sys;" : : : "memory");
}

IMBREXD_FN void imbrexd_quiet(void)
{
    asm volatile("fence.sc.sys;" : : : "memory");
}

/* The fence makes the relaxed store a release (PTX ISA, memory consistency model: a fence and the
 * strong write behind it are a release pattern), also of what a barrier brought this thread to
 * know.  A store that releases by itself would be a second fence, as long as the first. */
IMBREXD_FN void imbrexd_signal_post(uint64_t *signal, uint64_t value)
{
    imbrexd_fence_post();
    imbrexd_store_relaxed(signal, value);
}

/* Orders nothing. */
IMBREXD_FN void imbrexd_signal_post_relaxed(uint64_t *signal, uint64_t value)
{
    imbrexd_store_relaxed(signal, value);
}

/* Plain stores, not compare-and-swap: between a GPU and host memory that is not atomic everywhere.
 * Of two faults at once either may stay; both are true. */
IMBREXD_FN void imbrexd_fault_raise(const imbrexd_watch *watch, int32_t kind,
                                    imbrexd_wait_point point, uint64_t have, uint64_t want)
{
    volatile imbrexd_fault *fault = watch->fault;
    if (fault->state == 0) {
        fault->kind = kind;
        fault->rank = watch->rank;
        fault->point.plan = point.plan;
        fault->point.what = point.what;
        fault->point.rank = point.rank;
        fault->point.index = point.index;
        fault->have = have;
        fault->want = want;
        imbrexd_fence_post();
        fault->state = 2;
    }
#pragma unroll 1
    for (int32_t r = 0; r < watch->size; r++) {
        if (imbrexd_load_acquire(watch->abort[r]) == 0)
            imbrexd_signal_post(watch->abort[r], (uint64_t)watch->rank + 1);
    }
}

/* Until the signal compares so with value; nap_ns: between polls, or 0.  Looks at the clock, and at
 * the abort word, which lies far away, once in a thousand polls.  Returns 1 when the value is
 * there, 0 to give up.  Inlined with all it calls: around a call, a kernel short of registers would
 * spill. */
IMBREXD_FN int imbrexd_signal_poll(const imbrexd_watch *watch, const uint64_t *signal,
                                   imbrexd_compare compare, uint64_t value,
                                   imbrexd_wait_point point, unsigned nap_ns)
{
    if (imbrexd_holds(imbrexd_load_acquire(signal), compare, value))
        return 1;
    int64_t begin = imbrexd_now_ns();
    for (;;) {
        for (int i = 0; i < 1000; i++) {
            if (imbrexd_holds(imbrexd_load_acquire(signal), compare, value))
                return 1;
            if (nap_ns)
                __nanosleep(nap_ns);
        }
        if (imbrexd_load_acquire(watch->abort[watch->rank]))
            return 0;
        if (imbrexd_now_ns() - begin > watch->timeout_ns) {
            uint64_t have = imbrexd_load_acquire(signal);
            imbrexd_fault_raise(watch, IMBREXD_FAULT_DEADLINE, point, have, value);
            return 0;
        }
    }
}

IMBREXD_FN int imbrexd_signal_wait_until(const imbrexd_watch *watch, const uint64_t *signal,
                                         imbrexd_compare compare, uint64_t value,
                                         imbrexd_wait_point point)
{
    return imbrexd_signal_poll(watch, signal, compare, value, point, 0);
}

IMBREXD_FN int imbrexd_signal_wait(const imbrexd_watch *watch, const uint64_t *signal,
                                   uint64_t value, imbrexd_wait_point point)
{
    return imbrexd_signal_wait_until(watch, signal, IMBREXD_GE, value, point);
}

/* For many who wait for one word, and would keep its writer waiting. */
IMBREXD_FN int imbrexd_signal_wait_napping(const imbrexd_watch *watch, const uint64_t *signal,
                                           uint64_t value, imbrexd_wait_point point)
{
    return imbrexd_signal_poll(watch, signal, IMBREXD_GE, value, point, 500);
}

/* Adds one to a counter of this GPU and, for the one that makes it `last`, empties it and returns
 * 1.  Whoever gets the 1 sees everything that the others wrote before they counted (gpu scope: a
 * counter is never shared between GPUs). */
IMBREXD_FN int imbrexd_counter_last(uint32_t *counter, uint32_t last)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    if (before + 1 != last)
        return 0;
    *(volatile uint32_t *)counter = 0; /* the next use comes after this kernel, in stream order */
    return 1;
}

/* ---- one GPU's blocks ------------------------------------------------------------------------ */

IMBREXD_FN uint64_t imbrexd_load_acquire_gpu(const uint64_t *at)
{
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

IMBREXD_FN void imbrexd_store_release_gpu(uint64_t *at, uint64_t value)
{
    asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}

IMBREXD_FN void imbrexd_fence_gpu(void)
{
    asm volatile("fence.acq_rel.gpu;" : : : "memory");
}

/* ---- atomic operations ----------------------------------------------------------------------- */

/* One instruction for each order and scope; the switches are gone where both are constants. */
#define IMBREXD_BY_SCOPE(scope, sem, ASM) \
    switch (scope) {                      \
    case IMBREXD_BLOCK:                   \
        ASM("atom." sem ".cta.global.");  \
        break;                            \
    case IMBREXD_GPU:                     \
        ASM("atom." sem ".gpu.global.");  \
        break;                            \
    default:                              \
        ASM("atom." sem ".sys.global.");  \
    }

#define IMBREXD_BY_ORDER(order, scope, ASM)     \
    switch (order) {                            \
    case IMBREXD_RELAXED:                       \
        IMBREXD_BY_SCOPE(scope, "relaxed", ASM) \
        break;                                  \
    case IMBREXD_ACQUIRE:                       \
        IMBREXD_BY_SCOPE(scope, "acquire", ASM) \
        break;                                  \
    case IMBREXD_RELEASE:                       \
        IMBREXD_BY_SCOPE(scope, "release", ASM) \
        break;                                  \
    default:                                    \
        IMBREXD_BY_SCOPE(scope, "acq_rel", ASM) \
    }

IMBREXD_FN uint32_t imbrexd_atomic_add_u32(uint32_t *at, uint32_t value, imbrexd_order order,
                                           imbrexd_scope scope)
{
    uint32_t before;
#define IMBREXD_ASM(atom) \
    asm volatile(atom "add.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory")
    IMBREXD_BY_ORDER(order, scope, IMBREXD_ASM)
#undef IMBREXD_ASM
    return before;
}

IMBREXD_FN uint64_t imbrexd_atomic_add_u64(uint64_t *at, uint64_t value, imbrexd_order order,
                                           imbrexd_scope scope)
{
    uint64_t before;
#define IMBREXD_ASM(atom) \
    asm volatile(atom "add.u64 %0, [%1], %2;" : "=l"(before) : "l"(at), "l"(value) : "memory")
    IMBREXD_BY_ORDER(order, scope, IMBREXD_ASM)
#undef IMBREXD_ASM
    return before;
}

IMBREXD_FN uint32_t imbrexd_atomic_cas_u32(uint32_t *at, uint32_t want, uint32_t value,
                                           imbrexd_order order, imbrexd_scope scope)
{
    uint32_t before;
#define IMBREXD_ASM(atom)                         \
    asm volatile(atom "cas.b32 %0, [%1], %2, %3;" \
                 : "=r"(before)                   \
                 : "l"(at), "r"(want), "r"(value) \
                 : "memory")
    IMBREXD_BY_ORDER(order, scope, IMBREXD_ASM)
#undef IMBREXD_ASM
    return before;
}

IMBREXD_FN uint64_t imbrexd_atomic_cas_u64(uint64_t *at, uint64_t want, uint64_t value,
                                           imbrexd_order order, imbrexd_scope scope)
{
    uint64_t before;
#define IMBREXD_ASM(atom)                         \
    asm volatile(atom "cas.b64 %0, [%1], %2, %3;" \
                 : "=l"(before)                   \
                 : "l"(at), "l"(want), "l"(value) \
                 : "memory")
    IMBREXD_BY_ORDER(order, scope, IMBREXD_ASM)
#undef IMBREXD_ASM
    return before;
}

/* In a GPU's memory: between a GPU and host memory an addition is not atomic everywhere. */
IMBREXD_FN void imbrexd_red_release(uint64_t *at, uint64_t value)
{
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}

IMBREXD_FN void imbrexd_red_release_gpu(uint64_t *at, uint64_t value)
{
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}

IMBREXD_FN void imbrexd_signal_add(uint64_t *signal, uint64_t value)
{
    imbrexd_fence_post();
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" : : "l"(signal), "l"(value) : "memory");
}

/* Thread number lane of lanes: in the widest words that both sides are aligned to; the rest, and
 * what is not aligned to four, byte by byte. */
IMBREXD_FN void imbrexd_copy_part(void *dst, const void *src, size_t bytes, size_t lane,
                                  size_t lanes)
{
    size_t both = (size_t)dst | (size_t)src, done = 0;
    if (both % 16 == 0) {
        uint4 *__restrict__ to = (uint4 *)dst;
        const uint4 *__restrict__ from = (const uint4 *)src;
        done = bytes / 16 * 16;
#pragma unroll 4
        for (size_t i = lane; i < bytes / 16; i += lanes)
            to[i] = from[i];
    } else if (both % 4 == 0) {
        uint32_t *__restrict__ to = (uint32_t *)dst;
        const uint32_t *__restrict__ from = (const uint32_t *)src;
        done = bytes / 4 * 4;
#pragma unroll 4
        for (size_t i = lane; i < bytes / 4; i += lanes)
            to[i] = from[i];
    }
    for (size_t i = done + lane; i < bytes; i += lanes)
        ((char *)dst)[i] = ((const char *)src)[i];
}

IMBREXD_FN unsigned imbrexd_thread(void)
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

IMBREXD_FN unsigned imbrexd_threads(void)
{
    return blockDim.x * blockDim.y * blockDim.z;
}

/* This thread's number in its warp, and how many the warp has: a block's last may have fewer.  All
 * of them take part in what a warp does. */
IMBREXD_FN unsigned imbrexd_lane(void)
{
    return imbrexd_thread() % 32;
}

IMBREXD_FN unsigned imbrexd_lanes(void)
{
#ifdef IMX_HOOKS /* whose blocks are the library's, and which have no register to spare */
    return 32;
#else
    unsigned left = imbrexd_threads() - imbrexd_thread() / 32 * 32;
    return left < 32 ? left : 32;
#endif
}

/* CPUs look for who calls what in a product's hooks. */
IMBREXD_FN void imbrexd_hook_enter(const imbrexd_team *, imbrexd_hook, imbrexd_callers) {}
IMBREXD_FN void imbrexd_together(imbrexd_callers) {}

IMBREXD_FN void imbrexd_sync_warp(void)
{
    __syncwarp();
}

IMBREXD_FN int imbrexd_all_warp(int mine)
{
    __syncwarp(); /* a vote alone orders no memory */
    return __all_sync(0xffffffff, mine);
}

/* All threads of the block meet. */
IMBREXD_FN void imbrexd_sync_block(void)
{
    __syncthreads();
}

/* The same; 1 if all brought something else than 0. */
IMBREXD_FN int imbrexd_all_block(int mine)
{
    return __syncthreads_and(mine);
}

/* CPUs do more between polls, of those that last long, and for a checker. */
IMBREXD_FN void imbrexd_yield(int64_t waited_ns)
{
    (void)waited_ns;
}

IMBREXD_FN void imbrexd_check_fence(void) {}

IMBREXD_FN void imbrexd_check_came(const uint64_t *signal, imbrexd_compare compare, uint64_t value,
                                   imbrexd_wait_point point)
{
    (void)signal, (void)compare, (void)value, (void)point;
}

IMBREXD_FN int imbrexd_check_read(const void *at, size_t bytes, size_t stride, size_t rows)
{
    (void)at, (void)bytes, (void)stride, (void)rows;
    return 1;
}

IMBREXD_FN int imbrexd_check_write(void *at, size_t bytes, size_t stride, size_t rows)
{
    (void)at, (void)bytes, (void)stride, (void)rows;
    return 1;
}

IMBREXD_FN int imbrexd_inside(const imbrexd_team *team, int what, int rank, int index, size_t have,
                              size_t most)
{
    (void)team, (void)what, (void)rank, (void)index, (void)have, (void)most;
    return 1;
}

IMBREXD_FN void imbrexd_watch_note(const imbrexd_watch *watch, imbrexd_wait_point point,
                                   int64_t now_ns)
{
    (void)watch, (void)point, (void)now_ns;
}

#endif /* IMBREX_DEVICE_CUDA_H */
