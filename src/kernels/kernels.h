/* kernels.h - the table row of a kernel.  A kernel is a folder: args.h (its contract: plain sizes
 * and pointers), one implementation for each target, launch.c (from args to how it is launched, as
 * plain data), and nothing that knows an operator or a backend. */
#ifndef IMX_KERNELS_H
#define IMX_KERNELS_H

#include <stdbool.h>

#include "imbrex_device.h"
#include "user.h"

/* ---- CUDA: what a backend compiles and launches without knowing the kernel ------------------- */

/* A matrix as the copy engine of a block sees it, or several: the backend encodes it for the
 * driver. */
typedef struct imx_tensor_map {
    const void *address; /* NULL: the map is not used by this launch */
    int64_t rows, cols;
    int64_t stride_bytes; /* from row to row */
    int64_t planes;       /* matrices, of which a box is in one, given by number; 0: there is one */
    int64_t plane_bytes;  /* from one to the next */
    int box_rows, box_cols;
    int box_blocks; /* 0; or so many boxes side by side, each as wide as the swizzle, are one: they
                     * lie one after the other in shared memory, and are given by number */
    int dtype;      /* imbrex_dtype */
    int swizzle_bytes; /* 0, 32, 64 or 128 */
} imx_tensor_map;

/* The GPU, as far as a kernel's shape depends on it. */
typedef struct imx_cuda_target {
    int arch;                 /* compute capability, 90 */
    size_t shared_bytes_most; /* that a block may ask for */
} imx_cuda_target;

/* Fixed when a plan is made: one compiled module. */
typedef struct imx_cuda_config {
    const char *source; /* path of the file below src/, which is embedded under that name */
    const char *entry;
    char options[480]; /* "-DIMX_TILE_M=128 ...": the key of the cache, and readable by people */
    int blocks, cluster, threads;
    bool early; /* it uses grid.cuh: its blocks may start before the kernel ahead of it has ended */
    bool traces; /* it uses trace.cuh: compiled with IMX_TRACE it writes down what its blocks do */
    size_t shared_bytes;
    int kept[4];       /* the kernel's own: what its cuda_launch wants to know again */
    const char *wants; /* source NULL: what a form of it would want, for people; may be NULL */
} imx_cuda_config;

enum { IMX_TENSOR_MAPS = 24 };

/* Fixed at each launch: the grid, and maps, which are one argument together after the args and the
 * watch: as many as the kernel declares, in this order. */
typedef struct imx_cuda_launch {
    int blocks;    /* 0 before, as is... */
    int map_count; /* ...this: that are given */
    imx_tensor_map maps[IMX_TENSOR_MAPS];
} imx_cuda_launch;

/* Blocks of a launch that would like so many: no more than the kernel was made for. */
static inline int imx_cuda_blocks(const imx_cuda_config *config, int64_t wanted)
{
    return wanted < config->blocks ? (int)wanted : config->blocks;
}

/* cuda_launch of kernels whose blocks count something in each run: all of them, whatever it has. */
static inline void imx_cuda_launch_all(const void *args, const imx_cuda_config *config,
                                       imx_cuda_launch *launch)
{
    (void)args;
    launch->blocks = config->blocks;
}

/* ---- the row --------------------------------------------------------------------------------- */

typedef struct imx_kernel {
    const char *name;

    /* CPU: the block runs to its end, or returns early when a wait gives up.  Blocks of one launch
     * run at once. */
    void (*cpu)(const void *args, const imbrexd_block *block);
    size_t (*cpu_scratch)(const void *args); /* bytes one block needs; NULL: none */
    const char *(*cpu_info)(void);           /* what it is built on; NULL: nothing to say */
    /* Whether what it is built on has the memory that it needs; else why, a sentence.  NULL: it
     * needs none. */
    bool (*cpu_ready)(char *why, size_t size);

    /* CUDA: entry(args, watch, maps...).  blocks: the most that may run side by side. */
    void (*cuda_config)(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config);
    void (*cuda_launch)(const void *args, const imx_cuda_config *config, imx_cuda_launch *launch);
} imx_kernel;

extern const imx_kernel imx_kernel_gemm;        /* gemm/args.h */
extern const imx_kernel imx_kernel_ll;          /* ll/args.h */
extern const imx_kernel imx_kernel_push;        /* push/args.h */
extern const imx_kernel imx_kernel_reduce;      /* reduce/args.h */
extern const imx_kernel imx_kernel_activate;    /* activate/args.h */
extern const imx_kernel imx_kernel_norm;        /* norm/args.h */
extern const imx_kernel imx_kernel_gate;        /* gate/args.h */
extern const imx_kernel imx_kernel_route;       /* route/args.h */
extern const imx_kernel imx_kernel_grouped;     /* grouped/args.h */
extern const imx_kernel imx_kernel_combine;     /* combine/args.h */
extern const imx_kernel imx_kernel_dispatch;    /* dispatch/args.h */
extern const imx_kernel imx_kernel_combine_ll;  /* combine_ll/args.h */
extern const imx_kernel imx_kernel_dispatch_ll; /* dispatch_ll/args.h */
extern const imx_kernel imx_kernel_merge;       /* merge/args.h */
extern const imx_kernel imx_kernel_attend;      /* attend/args.h */

#endif /* IMX_KERNELS_H */
