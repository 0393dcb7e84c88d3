/* fake_function.h - a kernel as the fake driver knows it. */
#ifndef FAKE_FUNCTION_H
#define FAKE_FUNCTION_H

#include "backends/backend.h"
#include "backends/cuda/driver.h"
#include "kernels/trace.h"
#include "ptx.h"

struct CUfunc_st {
    const char *prefix; /* of its entries */
    const imx_kernel *kernel;
    size_t args_bytes;
    const imx_trace_room *traces;
    const imbrexd_entry *entry; /* a caller's; kernel is NULL */
    const ptx_module *module;   /* it runs as it was compiled, or NULL */
    const ptx_function *compiled;
    bool loaded;
    int carveout;
};

extern const imx_kernel fake_signals_kernel;

/* A kernel by its entry, or a caller's by its name, for free(); NULL if there is none.  Once traces
 * has room, each block of it notes one tile there, and itself. */
CUfunction fake_function_make(const char *entry, const imx_trace_room *traces);

/* The same of a kernel that was compiled. */
CUfunction fake_function_compiled(const char *entry, const ptx_module *module);

/* Whether it is loaded: else its launch loads it, for which a real GPU may have to be idle. */
bool *fake_function_loaded(CUfunction function);

/* How multiprocessors split their memory under it, which all functions of a GPU have alike. */
CUresult fake_function_split(CUfunction function, int gpu, int percent);
void fake_function_forget(void); /* how those of all GPUs do */

/* Whether a launch of it is one that a driver takes. */
bool fake_function_takes(CUfunction function, const CUlaunchConfig *config);

/* What its launch asks for: the blocks that share a cluster. */
int fake_function_cluster(const CUlaunchConfig *config);

/* Copies what a launch of it is given; returns how many more blocks than those it takes. */
int fake_function_args(CUfunction function, const void *from, void *to);

/* What a caller's kernel takes, by the array that it leaves; 0: there is none. */
size_t fake_function_args_bytes(const char *array);

#endif /* FAKE_FUNCTION_H */
