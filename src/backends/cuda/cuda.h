/* cuda.h - the CUDA backend's own types: a device is a GPU's primary context as a rank uses it. */
#ifndef IMX_CUDA_H
#define IMX_CUDA_H

#include "backends/backend.h"
#include "base/cache.h"
#include "driver.h"

typedef struct imx_cuda_stream imx_cuda_stream;
typedef struct imx_cuda_ring imx_cuda_ring;
typedef struct imx_cuda_dropped imx_cuda_dropped;
typedef struct imx_cuda_maps imx_cuda_maps;

enum { IMX_CUDA_ID = 40 };

struct imx_device {
    CUdevice gpu;
    CUcontext context; /* the primary one, shared with all users of the GPU in this process */
    int arch;          /* compute capability: 90 */
    int form;          /* that kernels are made for: the same, or less */
    int sms;
    size_t shared_bytes_most; /* that a block may ask for */
    int memory_gb_s;          /* see imx_target */
    int clock_mhz;            /* likewise */
    char id[IMX_CUDA_ID];
    char name[96];
    bool counted;             /* among the ranks of this process on this GPU */
    int priority;             /* of streams: the highest */
    CUstream setup;           /* the backend's own: fills new memory */
    imx_cuda_stream *streams; /* all that were made */
    int stream_count;
    imx_folder cache;
    imx_cuda_maps *maps;
    imx_memory *abort_table; /* host memory: watch.abort */
    imbrexd_watch watch;     /* for kernels: all its pointers are theirs to follow */
    int ranks;
    imx_prepared *signals;
    imx_prepared *idle;        /* kernels that nobody uses, loaded */
    imx_cuda_dropped *dropped; /* other code */
    bool ipc;                  /* memory is shared as cudaIpc has it */
    char memory_why[256];      /* if so: why */
    imbrexd_trace *trace;      /* NULL: off */
    imx_cuda_ring *rings;      /* of all prepared kernels that are traced */
    imbrex_span *timed;        /* and what is no kernel; NULL until there is a trace */
    imx_memory *times;         /* host memory: [][2], when it began and ended */
    size_t timed_count;        /* may run past the room for them */
    imx_prepared *clock;       /* how its clock is read; likewise */
    imx_memory *clock_words;
};

/* ---- cuda.c ---------------------------------------------------------------------------------- */

/* Makes context the calling thread's own and returns what was before; leave gives that back.  A
 * thread whose own it is already pays for one look. */
imbrex_status imx_cuda_enter(CUcontext context, CUcontext *before) IMX_MUST_CHECK;
void imx_cuda_leave(CUcontext context, CUcontext before);

/* Which form of kernels a device takes: its GPU's own, or IMBREX_CUDA_ARCH's. */
imbrex_status imx_cuda_form(const imx_env *env, imx_device *device) IMX_MUST_CHECK;

int imx_cuda_attribute(CUdevice gpu, int which); /* 0 if unknown */

/* Whether other ranks of this process are on the GPU, and so in its context. */
bool imx_cuda_shared(const imx_device *device);

/* ---- info.c ---------------------------------------------------------------------------------- */

void imx_cuda_info(imx_text *text);

/* Why imbrex cannot use the GPU at all, in words; NULL: it can. */
const char *imx_cuda_lacks(CUdevice gpu);

/* The GPU's name among all GPUs, in hexadecimal digits. */
CUresult imx_cuda_identify(CUdevice gpu, char id[IMX_CUDA_ID]);

/* What lies between a device and the GPU of that id, in a word. */
void imx_cuda_link(const imx_device *device, const char *id, imx_text *text);

/* Over NVLink alone.  No manual says so; NCCL's protocol LL128 rests on it (its
 * src/graph/tuning.cc). */
imbrex_status imx_cuda_whole_lines(const imx_device *device, const char *id, bool *whole);

/* ---- memory.c -------------------------------------------------------------------------------- */

imbrex_status imx_cuda_memory_create(imx_device *device, size_t bytes, imx_memory **memory);
imbrex_status imx_cuda_memory_create_host(imx_device *device, size_t bytes, imx_memory **memory);
imbrex_status imx_cuda_memory_export(imx_memory *memory, int *fd);
imbrex_status imx_cuda_memory_import(imx_device *device, int fd, const imx_memory *like,
                                     imx_memory **memory);
imbrex_status imx_cuda_memory_share(imx_device *device, imx_memory *of_peer, imx_memory **memory);
void imx_cuda_memory_release(imx_memory *memory);

/* ---- ipc.c ----------------------------------------------------------------------------------- */

/* Whether symmetric memory of gpu, whose context is current, has to be cudaIpc's, and then why, in
 * words. */
imbrex_status imx_cuda_ipc_choose(CUdevice gpu, const imx_env *env, bool *ipc,
                                  imx_text *why) IMX_MUST_CHECK;

/* cuMemAlloc, in whole pages: *room bytes. */
imbrex_status imx_cuda_ipc_take(size_t bytes, CUdeviceptr *at, size_t *room) IMX_MUST_CHECK;

/* A descriptor that carries the handle of the memory; and the memory of such a descriptor.
 * carries: it is one. */
imbrex_status imx_cuda_ipc_export(CUdeviceptr at, int *fd) IMX_MUST_CHECK;
bool imx_cuda_ipc_carries(int fd, CUipcHandle *handle);
imbrex_status imx_cuda_ipc_open(CUipcHandle handle, CUdevice gpu, CUdeviceptr *at) IMX_MUST_CHECK;

/* Lets the current context use all memory of another in this process. */
imbrex_status imx_cuda_ipc_reach(CUcontext owner, CUdevice of, CUdevice by) IMX_MUST_CHECK;

/* ---- stream.c -------------------------------------------------------------------------------- */

imbrex_status imx_cuda_stream_create(imx_device *device, imbrex_stream *stream);
void imx_cuda_stream_destroy(imx_device *device, imbrex_stream stream);
void imx_cuda_stream_destroy_all(imx_device *device);
imbrex_status imx_cuda_stream_sync(imx_device *device, imbrex_stream stream);
uint64_t imx_cuda_stream_capture(const imx_device *device, imbrex_stream stream);

imbrex_status imx_cuda_event_create(imx_device *device, imx_event **event);
void imx_cuda_event_destroy(imx_device *device, imx_event *event);
imbrex_status imx_cuda_event_record(imx_device *device, imx_event *event, imbrex_stream stream);
imbrex_status imx_cuda_event_wait(imx_device *device, imx_event *event, imbrex_stream stream);

imbrex_status imx_cuda_copy(imx_device *device, void *dst, const void *src, size_t bytes, int rank,
                            imbrex_stream stream);
imbrex_status imx_cuda_copy_any(imx_device *device, void *dst, const void *src, size_t bytes,
                                int rank, imbrex_stream stream);
imbrex_status imx_cuda_signals(imx_device *device, const imx_signal_op *ops, int count,
                               imbrex_stream stream);

/* 0: the group's, or one that the caller made elsewhere. */
int imx_cuda_stream_number(const imx_device *device, imbrex_stream stream);

/* ---- kernel.c -------------------------------------------------------------------------------- */

extern const imx_kernel imx_cuda_signals_kernel, imx_cuda_clock_kernel;

imbrex_status imx_cuda_prepare(imx_device *device, const imx_kernel *kernel, const void *largest,
                               int blocks, imx_prepared **prepared);
/* The product of a kernel of the caller's, with its text's hooks; *args_bytes: that the text takes.
 */
imbrex_status imx_cuda_prepare_hooks(imx_device *device, const imx_user_desc *desc,
                                     imx_prepared **prepared, size_t *args_bytes) IMX_MUST_CHECK;
void imx_cuda_prepared_destroy(imx_device *device, imx_prepared *prepared);
/* The rest of loading a function: what its blocks may have. */
imbrex_status imx_cuda_function_ready(CUfunction function, const char *name,
                                      size_t shared_bytes) IMX_MUST_CHECK;
/* Instead of cuModuleUnload.  NULL is fine. */
void imx_cuda_module_drop(imx_device *device, CUmodule module);
/* As the device is closed: unloads what was kept. */
void imx_cuda_modules_end(imx_device *device);
imbrex_status imx_cuda_kernel_launch(imx_device *device, imx_prepared *prepared, const void *args,
                                     size_t args_bytes, imbrex_stream stream);

/* ---- maps.c ---------------------------------------------------------------------------------- */

imbrex_status imx_cuda_maps_create(imx_cuda_maps **maps) IMX_MUST_CHECK;
void imx_cuda_maps_destroy(imx_cuda_maps *maps); /* NULL is fine */

/* from, which has an address, encoded now or before. */
imbrex_status imx_cuda_maps_find(imx_cuda_maps *maps, const imx_tensor_map *from,
                                 CUtensorMap *map) IMX_MUST_CHECK;
bool imx_cuda_maps_same(const imx_tensor_map *x, const imx_tensor_map *y);

/* ---- trace.c --------------------------------------------------------------------------------- */

/* A kernel compiled with IMX_TRACE: gives its module somewhere to write.  launched says where it
 * runs; ring NULL: not traced. */
imbrex_status imx_cuda_trace_prepare(imx_device *device, CUmodule module, const char *name,
                                     int blocks, imx_cuda_ring **ring) IMX_MUST_CHECK;
void imx_cuda_trace_launched(imx_device *device, imx_cuda_ring *ring, imbrex_stream stream);
void imx_cuda_trace_destroy(imx_device *device, imx_cuda_ring *ring);

uint64_t *imx_cuda_trace_times(imx_device *device, const imbrex_span *span, imbrex_stream stream);
imbrex_status imx_cuda_trace_set(imx_device *device, imbrexd_trace *trace);
imbrex_status imx_cuda_trace_collect(imx_device *device) IMX_MUST_CHECK;

/* ---- clock.c --------------------------------------------------------------------------------- */

/* Prepared once, before anything waits on the GPU.  offset: CLOCK_MONOTONIC less the GPU's clock,
 * to about a microsecond; streams are idle. */
imbrex_status imx_cuda_clock_prepare(imx_device *device) IMX_MUST_CHECK;
imbrex_status imx_cuda_clock_offset(imx_device *device, int64_t *offset_ns) IMX_MUST_CHECK;

/* ---- user.c: kernels of the caller's --------------------------------------------------------- */

imbrex_status imx_cuda_user_prepare(imx_device *device, const imx_user_desc *desc, imx_user **user,
                                    imx_user_facts *facts);
void imx_cuda_user_destroy(imx_device *device, imx_user *user);
imbrex_status imx_cuda_user_launch(imx_device *device, imx_user *user,
                                   const imx_user_launch *launch, imbrex_stream stream);

/* The cubin of a kernel's text, out of the cache or compiled; config: of the product that it has
 * hooks for, or NULL.  Free it. */
imbrex_status imx_cuda_user_build(const imx_device *device, const imx_user_desc *desc,
                                  const imx_cuda_config *config, void **cubin,
                                  size_t *bytes) IMX_MUST_CHECK;

/* The bytes of the args that IMBREXD_KERNEL or imbrex_gemm_kernel.h noted in the module. */
CUresult imx_cuda_user_args(CUmodule module, const imx_user_desc *desc, size_t *args_bytes);

/* INVALID: what was compiled has not what desc.name, or desc.gemm, wants. */
imbrex_status imx_cuda_user_lacks(const imx_user_desc *desc) IMX_MUST_CHECK;

/* As imx_cuda_user_prepare, but only into the cache. */
imbrex_status imx_cuda_user_compile(imx_device *device, const imx_user_desc *desc, imx_user **user,
                                    imx_user_facts *facts);

/* ---- cubin.c --------------------------------------------------------------------------------- */

/* By its head alone: a file need not be whole. */
typedef enum imx_cuda_file {
    IMX_CUDA_FILE_UNKNOWN,
    IMX_CUDA_FILE_OTHER, /* PTX, a fatbin */
    IMX_CUDA_FILE_CUBIN,
    IMX_CUDA_FILE_OF_HOST /* a program, a library or an object for another machine than GPUs */
} imx_cuda_file;

imx_cuda_file imx_cuda_cubin_kind(const void *file, size_t bytes);

/* The GPUs that it is for, 90 for sm_90a, say; 0: a form that is not known. */
int imx_cuda_cubin_arch(const void *cubin, size_t bytes);

/* Whether it has a kernel, or else a variable, of that name, and then how large that is. */
bool imx_cuda_cubin_find(const void *cubin, size_t bytes, const char *name, bool kernel,
                         size_t *symbol_bytes);

/* ---- build.c --------------------------------------------------------------------------------- */

/* The form of a kernel for args no larger than these; UNSUPPORTED: it has none there.  arch: the
 * GPU's own, for people. */
imbrex_status imx_cuda_configure(const imx_kernel *kernel, const void *largest,
                                 const imx_cuda_target *target, int arch, int blocks,
                                 imx_cuda_config *config) IMX_MUST_CHECK;

/* The cubin of a kernel's config, out of the cache or compiled.  *log (or log NULL) is what the
 * compiler said, NULL if it did not have to run.  Free both. */
imbrex_status imx_cuda_build(const imx_folder *cache, const imx_cuda_config *config, int arch,
                             void **cubin, size_t *bytes, char **log) IMX_MUST_CHECK;

#endif /* IMX_CUDA_H */
