/* sm80.cu - the attend kernel on NVIDIA GPUs.
 *
 *     IMX_DTYPE   of q and o          IMX_CACHE    of k and v
 *     IMX_DIM     of q and k          IMX_VALUES   of v and o
 *     IMX_THREADS of a block          IMX_STAGES   tiles under way, by tensor cores; 0: by plain
 *                                                  arithmetic
 *     IMX_BESIDE  blocks of an SM     IMX_ROWS     of q that products have
 *
 * A block takes a split of a sequence, for one head of the cache and a piece of its rows of q, then
 * the next; which there are follows from lengths, and each block counts them for itself. */
#include "sm80_where.cuh"

#if IMX_STAGES && IMX_DIM != IMX_VALUES
#include "sm80_mla.cuh"
#elif IMX_STAGES
#include "sm80_tensor.cuh"
#else
#include "sm80_plain.cuh"
#endif

#if !IMX_STAGES || IMX_DIM != IMX_VALUES
ATTEND_FN void attend_items(const imx_attend_args &x, const imbrexd_watch &watch, const items &all)
{
    for (int item = all.next; item < all.end; item += (int)gridDim.x) {
        work w = work_of(x, all.first, all.upto, item);
        attend_split(x, watch, w);
        add_if_last(x, w);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(IMX_THREADS, IMX_BESIDE)
    imx_attend(const __grid_constant__ imx_attend_args args,
               const __grid_constant__ imbrexd_watch watch)
{
    __shared__ int upto[CHUNK];
    int beside = beside_of(args), blocks = (int)gridDim.x;
    int next = (int)blockIdx.x; /* from the chunk's first on */
    imx_grid_wait();
    imx_grid_let_go();
    for (int first = 0; first < args.sequences; first += CHUNK) {
        int end = count_splits(args, watch, first, upto) * beside;
        attend_items(args, watch, { first, next, end, upto });
        next += (end - next + blocks - 1) / blocks * blocks * (next < end);
        next -= end;
    }
}
