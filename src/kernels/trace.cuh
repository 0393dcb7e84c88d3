/* trace.cuh - how a kernel writes down what its blocks do, and when; nothing at all without
 * IMX_TRACE.
 *
 *     imx_trace_open()                  all threads, when the kernel ahead of this one has ended
 *     imx_trace_begin(what)             any threads; a few warps of a block speak, for all
 *     imx_trace_end(what, peer, index)  the same ones
 *     imx_trace_close()                 all threads, at the end
 *
 * Times wait in shared memory, not in registers: there are none to spare around a product.
 */
#ifndef IMX_TRACE_CUH
#define IMX_TRACE_CUH

#include "trace.h"

#define IMX_TRACE_FN static __device__ __forceinline__

#ifdef IMX_TRACE

extern "C" __constant__ imx_trace_room imx_trace_to;

__constant__ imx_trace_room imx_trace_to;

enum { IMX_TRACE_WARPS = 20, IMX_TRACE_DEPTH = 5 };

static __shared__ uint64_t imx_trace_begun[IMX_TRACE_DEPTH][IMX_TRACE_WARPS];
static __shared__ uint32_t imx_trace_count;

/* What others lie within, or across, has a place of its own: the first three and the last. */
IMX_TRACE_FN int imx_trace_place(int what)
{
    if (what == IMX_TRACE_LAST)
        return IMX_TRACE_DEPTH - 1;
    return what < IMX_TRACE_DEPTH - 2 ? what : IMX_TRACE_DEPTH - 2;
}

/* The first warp of every four, and of producers the first that pushes. */
IMX_TRACE_FN bool imx_trace_speaks(void)
{
    return threadIdx.x % 128 == 0 || threadIdx.x == 32;
}

IMX_TRACE_FN uint64_t imx_trace_now(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) : : "memory");
    return now;
}

IMX_TRACE_FN void imx_trace_begin(int what)
{
    if (imx_trace_speaks())
        imx_trace_begun[imx_trace_place(what)][threadIdx.x / 32] = imx_trace_now();
}

IMX_TRACE_FN void imx_trace_end(int what, int peer, int index)
{
    if (!imx_trace_speaks())
        return;
    uint32_t at = atomicAdd(&imx_trace_count, 1);
    if (at >= imx_trace_to.each)
        return;
    volatile imx_trace_record *to = imx_trace_to.records + (blockIdx.x * imx_trace_to.each + at);
    to->what = what;
    to->peer = peer;
    to->index = index;
    to->begin = imx_trace_begun[imx_trace_place(what)][threadIdx.x / 32];
    to->end = imx_trace_now();
}

IMX_TRACE_FN void imx_trace_open(void)
{
    if (threadIdx.x == 0) {
        imx_trace_count = imx_trace_to.counts[blockIdx.x];
        imx_trace_begin(IMX_TRACE_KERNEL);
    }
    __syncthreads();
}

IMX_TRACE_FN void imx_trace_close(void)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        imx_trace_end(IMX_TRACE_KERNEL, -1, -1);
        imx_trace_to.counts[blockIdx.x] = imx_trace_count;
    }
}

#else

IMX_TRACE_FN void imx_trace_begin(int)
{
}

IMX_TRACE_FN void imx_trace_end(int, int, int)
{
}

IMX_TRACE_FN void imx_trace_open(void)
{
}

IMX_TRACE_FN void imx_trace_close(void)
{
}

#endif

#endif /* IMX_TRACE_CUH */
