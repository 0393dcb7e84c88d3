/* driver.h - NVIDIA's driver as a table of functions, filled from libcuda.so.1 when the first
 * device is asked for: nothing of CUDA is needed to build, and no driver to start.
 *
 * The names are those of the driver's manual.  The types below are what its binary interface says,
 * as far as imbrex uses it.
 */
#ifndef IMX_DRIVER_H
#define IMX_DRIVER_H

#include "base/imx.h"

/* ---- types ----------------------------------------------------------------------------------- */

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
#define CU_STREAM_PER_THREAD ((CUstream)2)
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER = 36,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_CAPTURED_EVENT = 907
};

enum {                     /* CUdevice_attribute */
       CU_CLOCK_RATE = 13, /* kHz */
       CU_MULTIPROCESSOR_COUNT = 16,
       CU_MEMORY_CLOCK_RATE = 36,       /* kHz */
       CU_GLOBAL_MEMORY_BUS_WIDTH = 37, /* bits */
       CU_COMPUTE_CAPABILITY_MAJOR = 75,
       CU_COMPUTE_CAPABILITY_MINOR = 76,
       CU_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
       CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
       CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
       CU_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103
};

enum { CU_P2P_ACCESS_SUPPORTED = 2, CU_P2P_NATIVE_ATOMIC_SUPPORTED = 3 };
enum {
    CU_FUNC_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_SHARED_SIZE_BYTES = 1,
    CU_FUNC_LOCAL_SIZE_BYTES = 3
};
enum { CU_LIMIT_STACK_SIZE = 0 };
enum { CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, CU_FUNC_PREFERRED_SHARED_CARVEOUT = 9 };
enum { CU_STREAM_CAPTURE_NONE = 0, CU_STREAM_CAPTURE_ACTIVE = 1 };
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_MEMHOSTREGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_DEVICEMAP = 2 };

typedef struct CUuuid {
    unsigned char bytes[16];
} CUuuid;

enum { CU_IPC_LAZY_ENABLE_PEER_ACCESS = 1 };
enum { CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2 }; /* pageable memory of the host has none */

typedef struct CUipcHandle {
    char bytes[64];
} CUipcHandle;

enum { CU_MEM_LOCATION_DEVICE = 1, CU_MEM_PINNED = 1, CU_MEM_POSIX_FD = 1, CU_MEM_READWRITE = 3 };

typedef struct CUmemLocation {
    int type, id;
} CUmemLocation;

typedef struct CUmemAllocationProp {
    int type, handle_types;
    CUmemLocation location;
    void *windows;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} CUmemAllocationProp;

typedef struct CUmemAccessDesc {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

enum { CU_LAUNCH_CLUSTER_DIMENSION = 4, CU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

typedef struct CUlaunchAttribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        unsigned cluster[3];
        int allowed;
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

/* CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion */
enum { CU_TENSOR_U8 = 0, CU_TENSOR_F16 = 6, CU_TENSOR_F32 = 7, CU_TENSOR_BF16 = 9 };
enum { CU_TENSOR_SWIZZLE_NONE, CU_TENSOR_SWIZZLE_32, CU_TENSOR_SWIZZLE_64, CU_TENSOR_SWIZZLE_128 };
enum { CU_TENSOR_L2_128 = 2 };

typedef struct CUtensorMap {
    _Alignas(64) uint64_t opaque[16];
} CUtensorMap;

/* ---- the table ------------------------------------------------------------------------------- */

/* Rows: name in the table, name in the library, what it takes. */
#define IMX_DRIVER_TABLE(ROW)                                                                     \
    ROW(cuInit, "cuInit", (unsigned flags))                                                       \
    ROW(cuDriverGetVersion, "cuDriverGetVersion", (int *version))                                 \
    ROW(cuGetErrorName, "cuGetErrorName", (CUresult error, const char **name))                    \
    ROW(cuGetErrorString, "cuGetErrorString", (CUresult error, const char **text))                \
    ROW(cuDeviceGetCount, "cuDeviceGetCount", (int *count))                                       \
    ROW(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int index))                               \
    ROW(cuDeviceGetName, "cuDeviceGetName", (char *name, int bytes, CUdevice device))             \
    ROW(cuDeviceGetUuid, "cuDeviceGetUuid_v2", (CUuuid * uuid, CUdevice device))                  \
    ROW(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * bytes, CUdevice device))               \
    ROW(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int which, CUdevice device))   \
    ROW(cuDeviceGetP2PAttribute, "cuDeviceGetP2PAttribute",                                       \
        (int *value, int which, CUdevice from, CUdevice to))                                      \
    ROW(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain",                                     \
        (CUcontext * context, CUdevice device))                                                   \
    ROW(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))             \
    ROW(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext * context))                                \
    ROW(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                  \
    ROW(cuCtxGetLimit, "cuCtxGetLimit", (size_t * value, int which))                              \
    ROW(cuCtxSetLimit, "cuCtxSetLimit", (int which, size_t value))                                \
    ROW(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int *least, int *greatest))  \
    ROW(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity",                           \
        (size_t * bytes, const CUmemAllocationProp *prop, int which))                             \
    ROW(cuMemCreate, "cuMemCreate",                                                               \
        (CUmemHandle * handle, size_t bytes, const CUmemAllocationProp *prop,                     \
         unsigned long long flags))                                                               \
    ROW(cuMemRelease, "cuMemRelease", (CUmemHandle handle))                                       \
    ROW(cuMemAddressReserve, "cuMemAddressReserve",                                               \
        (CUdeviceptr * at, size_t bytes, size_t alignment, CUdeviceptr wish,                      \
         unsigned long long flags))                                                               \
    ROW(cuMemAddressFree, "cuMemAddressFree", (CUdeviceptr at, size_t bytes))                     \
    ROW(cuMemMap, "cuMemMap",                                                                     \
        (CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle,                         \
         unsigned long long flags))                                                               \
    ROW(cuMemUnmap, "cuMemUnmap", (CUdeviceptr at, size_t bytes))                                 \
    ROW(cuMemSetAccess, "cuMemSetAccess",                                                         \
        (CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count))              \
    ROW(cuMemExportToShareableHandle, "cuMemExportToShareableHandle",                             \
        (void *out, CUmemHandle handle, int type, unsigned long long flags))                      \
    ROW(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle",                         \
        (CUmemHandle * handle, void *from, int type))                                             \
    ROW(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * at, size_t bytes))                            \
    ROW(cuMemFree, "cuMemFree_v2", (CUdeviceptr at))                                              \
    ROW(cuIpcGetMemHandle, "cuIpcGetMemHandle", (CUipcHandle * handle, CUdeviceptr at))           \
    ROW(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2",                                              \
        (CUdeviceptr * at, CUipcHandle handle, unsigned flags))                                   \
    ROW(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr at))                             \
    ROW(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", (CUcontext context, unsigned flags))      \
    ROW(cuMemHostRegister, "cuMemHostRegister_v2", (void *at, size_t bytes, unsigned flags))      \
    ROW(cuMemHostUnregister, "cuMemHostUnregister", (void *at))                                   \
    ROW(cuMemsetD8Async, "cuMemsetD8Async",                                                       \
        (CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream))                     \
    ROW(cuPointerGetAttributes, "cuPointerGetAttributes",                                         \
        (unsigned count, int *attributes, void **values, CUdeviceptr at))                         \
    ROW(cuMemcpyAsync, "cuMemcpyAsync",                                                           \
        (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                        \
    ROW(cuStreamCreateWithPriority, "cuStreamCreateWithPriority",                                 \
        (CUstream * stream, unsigned flags, int priority))                                        \
    ROW(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                 \
    ROW(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream))                            \
    ROW(cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2",                                      \
        (CUstream stream, int *state, uint64_t *number, void **graph, const void **after,         \
         size_t *after_count))                                                                    \
    ROW(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags)) \
    ROW(cuEventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                        \
    ROW(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))                                     \
    ROW(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                         \
    ROW(cuModuleLoadData, "cuModuleLoadData", (CUmodule * module, const void *image))             \
    ROW(cuModuleUnload, "cuModuleUnload", (CUmodule module))                                      \
    ROW(cuModuleGetFunction, "cuModuleGetFunction",                                               \
        (CUfunction * function, CUmodule module, const char *name))                               \
    ROW(cuModuleGetGlobal, "cuModuleGetGlobal_v2",                                                \
        (CUdeviceptr * at, size_t * bytes, CUmodule module, const char *name))                    \
    ROW(cuFuncGetAttribute, "cuFuncGetAttribute", (int *value, int which, CUfunction function))   \
    ROW(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction function, int which, int value))    \
    ROW(cuLaunchKernelEx, "cuLaunchKernelEx",                                                     \
        (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))         \
    ROW(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                         \
        (CUtensorMap * map, int dtype, uint32_t rank, void *address, const uint64_t *sizes,       \
         const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,           \
         int interleave, int swizzle, int l2_promotion, int fill))

/* NULL where the driver is older than these. */
#define IMX_DRIVER_LATER_TABLE(ROW) ROW(cuFuncLoad, "cuFuncLoad", (CUfunction function))

typedef struct imx_driver_calls {
#define IMX_DRIVER_FIELD(name, symbol, takes) CUresult(*name) takes;
    IMX_DRIVER_TABLE(IMX_DRIVER_FIELD)
    IMX_DRIVER_LATER_TABLE(IMX_DRIVER_FIELD)
#undef IMX_DRIVER_FIELD
} imx_driver_calls;

/* NULL until imx_driver_open.  A test puts its own table here first. */
extern const imx_driver_calls *imx_driver;

/* Loads the driver and starts it; once is enough, any thread may.  UNSUPPORTED: there is none, it
 * is too old, or it sees no GPU. */
imbrex_status imx_driver_open(void) IMX_MUST_CHECK;

int imx_driver_version(void); /* 13000: CUDA 13.0; 0: none */

/* OK for CUDA_SUCCESS.  Else fails with the sentence, the call, the driver's words for the result
 * and what to do about it. */
imbrex_status imx_driver_check(CUresult result, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4), warn_unused_result));

#endif /* IMX_DRIVER_H */
