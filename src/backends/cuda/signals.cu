/* signals.cu - posts and waits of a stream: one warp, a lane an op, with few registers and without
 * shared memory, so that it finds room beside most kernels.  Beneath a product that fills the GPU
 * there is none (docs/experiments.md).
 *
 * Posts go through also after an abort: to look at the abort word first would cost each of them a
 * trip to host memory, and whoever is let go by one finds the group failed.
 *
 * It neither starts early nor lets the next kernel do so (kernels/grid.cuh).  Where ranks or
 * streams share out the multiprocessors it would wait on one that another's product needs for its
 * last block, and that product may be what the kernel ahead of this one waits for.
 */
#include "signals.h"

/* By the clock of a trace's other spans (kernels/trace.cuh). */
static __device__ __forceinline__ void tell_time(uint64_t *to)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) : : "memory");
    *(volatile uint64_t *)to = now;
}

extern "C" __global__ void __launch_bounds__(32, 1)
    imx_signals(const __grid_constant__ imx_signals_args args,
                const __grid_constant__ imbrexd_watch watch)
{
    int lane = (int)threadIdx.x;
    const imx_signals_op *op = &args.ops[lane < args.count ? lane : 0];
    uint64_t value = op->add, base = 0;
    if (op->word)
        base = imbrexd_load_relaxed(op->word);
    __syncwarp(); /* all values are there before a post raises one's own word */
    if (lane < args.count && op->kind == IMX_SIGNALS_POST && op->step == 0)
        imbrexd_fence_post(); /* under way together with the word */
    value += base;
    int steps = args.count ? args.ops[args.count - 1].step + 1 : 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        int there = 1;
        if (lane < args.count && op->step == step) {
            if (op->kind == IMX_SIGNALS_TIME)
                tell_time(op->signal);
            else if (op->kind == IMX_SIGNALS_WAIT)
                there = imbrexd_signal_wait(&watch, op->signal, value, op->point);
            else if (step == 0)
                imbrexd_signal_post_relaxed(op->signal, value);
            else
                imbrexd_signal_post(op->signal, value);
        }
        __syncwarp(); /* a vote alone orders no memory */
        if (!__all_sync(0xffffffffu, there))
            return; /* the group has failed: what would follow must not be let go */
    }
}
