/* sm90_prologue_push.cuh - rows of a are waited for as sm90_prologue_wait.cuh has them, and this
 * rank's go to the peers: by the idle warps, or where there is room by the copy engine, at the
 * orders of one of them (sm90_push.cuh). */
#ifndef IMX_SM90_PROLOGUE_PUSH_CUH
#define IMX_SM90_PROLOGUE_PUSH_CUH

#include "sm90_prologue_wait.cuh"
#include "sm90_push.cuh"

struct prologue_push : prologue_wait {
    enum { ENDS_RUN = 1 };

    IMX_FN void init(void)
    {
        if (BULK)
            push_init();
    }

    IMX_FN int beside(const imx_gemm_args &args, const imbrexd_watch *watch, const imx_tma_map *)
    {
        if (BULK)
            return thread_here() >= 64 || push_bulk(args, watch);
        return push(args, watch, ELEMENT_BYTES, push_by(1, BESIDE_WARPS));
    }
};

struct prologue_push_all : prologue_wait_all {
    enum { ENDS_RUN = 1 };

    IMX_FN int beside(const imx_gemm_args &args, const imbrexd_watch *watch, const imx_tma_map *)
    {
        return push(args, watch, ELEMENT_BYTES, push_by(1, BESIDE_WARPS));
    }
};

#endif /* IMX_SM90_PROLOGUE_PUSH_CUH */
