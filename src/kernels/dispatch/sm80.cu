/* sm80.cu - the dispatch kernel on NVIDIA GPUs: a block takes every so-many-th token.  Peers learn
 * of it by what follows on the stream. */
#include "../grid.cuh"
#include "sm80_rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    imx_dispatch(const __grid_constant__ imx_dispatch_args args,
                 const __grid_constant__ imbrexd_watch watch)
{
    int32_t end = imx_dispatch_tokens(&args);
    imx_grid_wait();
    imx_grid_let_go();
    for (int32_t token = blockIdx.x; token < end; token += gridDim.x)
        one_token(args, token);
}
