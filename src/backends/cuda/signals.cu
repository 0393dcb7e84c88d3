/* signals.cu - posts and waits of a stream: one warp, of which one thread works, in order.  Small
 * enough in registers, and without shared memory, to become resident beneath a kernel that fills
 * the GPU.
 *
 * Posts go through also after an abort: to look at the abort word first would cost each of them a
 * trip to host memory, and whoever is let go by one finds the group failed.
 */
#include "signals.h"

extern "C" __global__ void __launch_bounds__(32, 1)
    imx_signals(const __grid_constant__ imx_signals_args args,
                const __grid_constant__ imbrexd_watch watch)
{
    if (threadIdx.x != 0)
        return;
    for (int i = 0; i < args.count; i++) {
        const imx_signals_op *op = &args.ops[i];
        uint64_t value = op->add;
        if (op->word)
            value += *(const volatile uint64_t *)op->word;
        if (op->kind == IMX_SIGNALS_POST)
            imbrexd_signal_post(op->signal, value);
        else if (!imbrexd_signal_wait(&watch, op->signal, value, op->site))
            return; /* the group has failed: what would follow must not be let go */
    }
}
