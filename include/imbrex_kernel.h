/* imbrex_kernel.h - kernels of your own: makes and launches them.  Part of imbrex.h, which includes
 * it and whose rules hold; imbrex_device.h is what they are written against.
 */
#ifndef IMBREX_KERNEL_H
#define IMBREX_KERNEL_H

#ifndef IMBREX_H
#error "include imbrex.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel is written against imbrex_device.h; docs/kernels.md shows how:
 *
 *     #include "imbrex_device.h"
 *     typedef struct { float *x; int n; } scale_args;
 *     IMBREXD_KERNEL(scale, scale_args) { ... args->x[i] ... imbrexd_wait(team, ...) ... }
 *
 * On "cuda" its text is CUDA C for the GPU's own architecture; on "cpu" it is C, for the compiler
 * in IMBREX_CC, or else cc, gcc or clang.  What was compiled once is kept on disk. */
typedef struct imbrex_kernel imbrex_kernel;
struct imbrexd_entry;

typedef struct imbrex_kernel_desc {
    const char *name;    /* as in IMBREXD_KERNEL(name, ...); at most 63 characters */
    const char *source;  /* the text; NULL: it is in file */
    const char *file;    /* as the compiler's messages name it, at most 255 characters; its #include
                            "..." are beside it.  A .cubin is loaded as it is. */
    const char *options; /* at most 48 words for the compiler, "-DTILE=64 -I include", or NULL */
    const struct imbrexd_entry *entry; /* "cpu": IMBREXD_ENTRY(name), if it was compiled with the
                                          program, in place of source; others do not look at it */
    void *memory;        /* symmetric memory that the kernel reaches on its peers, imbrexd_peer: all
                            of its piece, which must outlive it; NULL: none */
    int signals;         /* words of its own on every rank, imbrexd_signal; zeroed; at most 2^20 */
    int resident;        /* "cpu": blocks that run at once, at most 1024; others of a launch come
                            after them.  0: IMBREX_CPU_THREADS */
    size_t shared_bytes; /* of a block's own memory, imbrexd_shared; at most 232448, or what the GPU
                            has */
    const imbrex_gemm_desc *gemm; /* the library's product, which the text has hooks for
                                     (imbrex_gemm.h); NULL: the text is the kernel */
    uint64_t reserved[5];
} imbrex_kernel_desc;

/* Collective; compiles and loads, so that a launch need not.  INVALID if the text does not compile:
 * imbrex_error() then says what the compiler said. */
IMBREX_TRY imbrex_kernel_create(imbrex_group *group, const imbrex_kernel_desc *desc,
                                imbrex_kernel **kernel);

/* Enqueues grid blocks of block threads each ("cpu": one thread, whatever block says).  args: what
 * IMBREXD_KERNEL takes, args_bytes its size, at most 256; copied.  Launches of one kernel follow
 * each other, also on different streams.  Its waits end as all others do: the status then names
 * the kernel and the signal. */
IMBREX_TRY imbrex_launch(imbrex_kernel *kernel, int grid, int block, const void *args,
                         size_t args_bytes, imbrex_stream stream);

/* What one launch of a kernel with a product multiplies: c = a * b, by ranks' rows. */
typedef struct imbrex_gemm_operands {
    const void *a;   /* [m, k] */
    const void *own; /* [rows, k]: this rank's rows of a lie here, and need no wait; NULL: in a */
    const void *b;   /* [n, k] or [k, n] */
    void *const *c;  /* [ranks]: c[r][rows of r, n], in this rank's memory or a peer's */
    int64_t m;       /* rows of this launch, as imbrex_args.m; 0: the desc's m */
    int first;       /* rank whose rows come first; the next ranks' follow */
    uint32_t reserved[7];
} imbrex_gemm_operands;

/* As imbrex_launch, for a kernel that was made with desc.gemm: m, n and k of that are at least 1,
 * its algorithm NULL, and bias is the hooks' to add.  On "cuda" such kernels want compute
 * capability 9.0, bf16 or f16, and rows of a and b of a multiple of 16 bytes, else UNSUPPORTED;
 * operands are aligned as a plan's.  All ranks on one node, at most 16.  Blocks are as many as
 * gemm.sms allows; desc.resident and desc.shared_bytes are not looked at.  A kernel's n-th launch,
 * of those that were not refused, has one operands.m on all ranks: if a rank is seen to differ, the
 * group fails, INVALID on all. */
IMBREX_TRY imbrex_launch_gemm(imbrex_kernel *kernel, const imbrex_gemm_operands *operands,
                              const void *args, size_t args_bytes, imbrex_stream stream);

/* Local.  Waits until this rank's launches of the kernel are done, but for replays of graphs.  The
 * kernel is not to be launched any more. */
IMBREX_API void imbrex_kernel_destroy(imbrex_kernel *kernel);

#ifdef __cplusplus
}
#endif

#endif /* IMBREX_KERNEL_H */
