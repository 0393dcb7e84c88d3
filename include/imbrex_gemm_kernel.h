/* imbrex_gemm_kernel.h - makes a kernel of the library's product and the hooks that are defined as
 * IMBREXD_GEMM_...: see imbrex_gemm.h.  Once in a file, behind the hooks. */
#ifndef IMBREX_GEMM_KERNEL_H
#define IMBREX_GEMM_KERNEL_H

#include "imbrex_gemm.h"

#ifndef IMBREXD_GEMM_NAME
#error "want #define IMBREXD_GEMM_NAME, the kernel's name, before imbrex_gemm_kernel.h"
#endif
#ifndef IMBREXD_GEMM_ARGS
#error "want #define IMBREXD_GEMM_ARGS, the type of the kernel's args, before imbrex_gemm_kernel.h"
#endif

#define IMBREXD_GEMM_ARGS_OF(args) ((const IMBREXD_GEMM_ARGS *)(args))

IMBREXD_FN unsigned imbrexd_hook_order(const void *args, const imbrexd_team *team,
                                       const imbrexd_gemm *gemm, unsigned index)
{
#ifdef IMBREXD_GEMM_ORDER
    imbrexd_hook_enter(team, IMBREXD_HOOK_ORDER, IMBREXD_CALLED_BY_THREAD);
    return IMBREXD_GEMM_ORDER(IMBREXD_GEMM_ARGS_OF(args), team, gemm, index);
#else
    (void)args, (void)team, (void)gemm;
    return index;
#endif
}

IMBREXD_FN int imbrexd_hook_begin(const void *args, const imbrexd_team *team,
                                  const imbrexd_gemm *gemm)
{
#ifdef IMBREXD_GEMM_BEGIN
    imbrexd_hook_enter(team, IMBREXD_HOOK_BEGIN, IMBREXD_CALLED_BY_WARP);
    return IMBREXD_GEMM_BEGIN(IMBREXD_GEMM_ARGS_OF(args), team, gemm);
#else
    (void)args, (void)team, (void)gemm;
    return 1;
#endif
}

IMBREXD_FN int imbrexd_hook_wait(const void *args, const imbrexd_team *team,
                                 const imbrexd_gemm *gemm, int rank, int chunk)
{
#ifdef IMBREXD_GEMM_WAIT
    imbrexd_hook_enter(team, IMBREXD_HOOK_WAIT, IMBREXD_CALLED_BY_THREAD);
    return IMBREXD_GEMM_WAIT(IMBREXD_GEMM_ARGS_OF(args), team, gemm, rank, chunk);
#else
    (void)args, (void)team, (void)gemm, (void)rank, (void)chunk;
    return 1;
#endif
}

IMBREXD_FN void imbrexd_hook_done(const void *args, const imbrexd_team *team,
                                  const imbrexd_gemm *gemm, int rank, int chunk)
{
#ifdef IMBREXD_GEMM_DONE
    imbrexd_hook_enter(team, IMBREXD_HOOK_DONE, IMBREXD_CALLED_BY_THREAD);
    IMBREXD_GEMM_DONE(IMBREXD_GEMM_ARGS_OF(args), team, gemm, rank, chunk);
#else
    (void)args, (void)team, (void)gemm, (void)rank, (void)chunk;
#endif
}

IMBREXD_FN int imbrexd_hook_sum(const void *args, const imbrexd_team *team,
                                const imbrexd_gemm *gemm, int chunk, imbrexd_gemm_sum *sum)
{
#ifdef IMBREXD_GEMM_SUM
    imbrexd_hook_enter(team, IMBREXD_HOOK_SUM, IMBREXD_CALLED_BY_WARP);
    return IMBREXD_GEMM_SUM(IMBREXD_GEMM_ARGS_OF(args), team, gemm, chunk, sum);
#else
    (void)args, (void)team, (void)gemm, (void)chunk, (void)sum;
    return 1;
#endif
}

IMBREXD_FN int imbrexd_hook_beside(const void *args, const imbrexd_team *team,
                                   const imbrexd_gemm *gemm, unsigned thread, unsigned threads)
{
#ifdef IMBREXD_GEMM_BESIDE
    imbrexd_hook_enter(team, IMBREXD_HOOK_BESIDE, IMBREXD_CALLED_BY_WARP);
    return IMBREXD_GEMM_BESIDE(IMBREXD_GEMM_ARGS_OF(args), team, gemm, thread, threads);
#else
    (void)args, (void)team, (void)gemm, (void)thread, (void)threads;
    return 1;
#endif
}

IMBREXD_FN void imbrexd_hook_end(const void *args, const imbrexd_team *team,
                                 const imbrexd_gemm *gemm)
{
#ifdef IMBREXD_GEMM_END
    imbrexd_hook_enter(team, IMBREXD_HOOK_END, IMBREXD_CALLED_BY_THREAD);
    IMBREXD_GEMM_END(IMBREXD_GEMM_ARGS_OF(args), team, gemm);
#else
    (void)args, (void)team, (void)gemm;
#endif
}

#define IMBREXD_GEMM_JOIN(a, b)  IMBREXD_GEMM_JOIN_(a, b)
#define IMBREXD_GEMM_JOIN_(a, b) a##b

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

IMBREXD_FN int imbrexd_hook_orders(void)
{
#ifdef IMBREXD_GEMM_ORDER
    return 1;
#else
    return 0;
#endif
}

IMBREXD_FN int imbrexd_hook_sums(void)
{
#ifdef IMBREXD_GEMM_SUM
    return 1;
#else
    return 0;
#endif
}

/* As IMBREXD_KERNEL leaves one: for its size, which the host asks the module for. */
extern "C" {
__device__ char IMBREXD_GEMM_JOIN(imbrexd_hooks_, IMBREXD_GEMM_NAME)[sizeof(IMBREXD_GEMM_ARGS)];
}

IMBREXD_FN void imbrexd_gemm_add(const imbrexd_gemm *gemm, void *to, const void *parts,
                                 size_t stride_bytes, int count, int64_t elements, unsigned thread,
                                 unsigned threads)
{
    (void)gemm;
#ifdef IMX_HOOKS /* the pipeline stands before this text; without it nobody calls the hooks */
    imx_pipeline::hook_add(to, parts, stride_bytes, count, elements, thread, threads);
#endif
}

#else

static const struct imbrexd_hooks imbrexd_gemm_hooks = {
    imbrexd_enter,       imbrexd_hook_order, imbrexd_hook_begin,
    imbrexd_hook_wait,   imbrexd_hook_done,
#ifdef IMBREXD_GEMM_SUM
    imbrexd_hook_sum,
#else
    NULL,
#endif
#ifdef IMBREXD_GEMM_BESIDE
    imbrexd_hook_beside,
#else
    NULL,
#endif
    imbrexd_hook_end,
};

IMBREXD_EXTERN IMBREX_API const imbrexd_entry IMBREXD_GEMM_JOIN(imbrexd_entry_, IMBREXD_GEMM_NAME);
IMBREX_API const imbrexd_entry IMBREXD_GEMM_JOIN(imbrexd_entry_, IMBREXD_GEMM_NAME) = {
    NULL, sizeof(IMBREXD_GEMM_ARGS), 1, &imbrexd_own_checker, &imbrexd_gemm_hooks
};

#endif

#endif /* IMBREX_GEMM_KERNEL_H */
