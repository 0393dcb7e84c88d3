/* sm80.cu - the combine kernel on NVIDIA GPUs: a block takes every so-many-th token. */
enum { THREADS = 256 };

#include "../grid.cuh"
#include "sm80_sums.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    imx_combine(const __grid_constant__ imx_combine_args args,
                const __grid_constant__ imbrexd_watch watch)
{
    __shared__ list l;
    bool wide = lies_well(args);
    imx_grid_wait();
    imx_grid_let_go();
    for (uint32_t i = blockIdx.x; i < walk_of(args); i += gridDim.x) {
        int32_t token = token_at(args, i);
        if (token >= 0)
            one_token(args, token, wide, &l);
    }
}
