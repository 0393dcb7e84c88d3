/* sm80.cu - the norm kernel on NVIDIA GPUs: a crew, so many of a block's warps, takes every
 * so-many-th row.  While one crew of a block waits the others go on.  One kernel for all dtypes: a
 * group has it ready from the start.
 */
#include "../grid.cuh"
#include "sm80_crew.cuh"

/* Warps of a crew. */
NORM_FN int crew_warps(const imx_norm_args *args)
{
    int segments = ((int)args->n + IMX_NORM_SEGMENT - 1) / IMX_NORM_SEGMENT;
    return segments < CREW ? segments : CREW;
}

extern "C" __global__ void __launch_bounds__(512, 1)
    imx_norm(const __grid_constant__ imx_norm_args args,
             const __grid_constant__ imbrexd_watch watch)
{
    __shared__ crew_words words[CREW];
    int warps = crew_warps(&args), crews = CREW / warps, warp = (int)threadIdx.x / LANES;
    norm_crew crew = { warp / warps, warps, warp % warps, 0, &words[warp / warps] };
    int64_t first = blockIdx.x + (int64_t)crew.barrier * gridDim.x;
    if (args.rms)
        fetch_gamma(&args, crew);
    imx_grid_wait();
    imx_grid_let_go();
    if (crew.barrier < crews)
        norm_rows(&args, crew, args.in, first, args.rows, (int64_t)crews * gridDim.x);
}
