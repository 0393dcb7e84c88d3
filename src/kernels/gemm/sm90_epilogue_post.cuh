/* sm90_epilogue_post.cuh - tiles go to c, and a chunk's last one tells whoever waits for it. */
#ifndef IMX_SM90_EPILOGUE_POST_CUH
#define IMX_SM90_EPILOGUE_POST_CUH

#include "sm90_policy.cuh"

struct epilogue_post : epilogue_store {
    enum { POSTS = 1 };

    IMX_FN void note(const imx_gemm_args &, unsigned, const imx_sm90_tile &t, int, int, int,
                     tile_info *info)
    {
        info->tiles = t.chunk_tiles;
    }

    IMX_FN bool posts(const imx_gemm_args &args) { return args.done != NULL; }

    IMX_FN void tell(const imx_gemm_args &args, const tile_info *, int chunk)
    {
        imbrexd_signal_post(&args.done[chunk], *args.epoch);
    }
};

#endif /* IMX_SM90_EPILOGUE_POST_CUH */
