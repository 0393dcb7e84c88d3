/* nccl.h - NVIDIA's communication library as a table of functions, filled from libnccl.so.2 when
 * the first group on several nodes is made: nothing of it is needed to build.
 *
 * The names are those of its manual.  The types below are what its binary interface says, as far as
 * imbrex uses it; a config says its own size and version, so that newer libraries take it too.
 */
#ifndef IMX_NCCL_H
#define IMX_NCCL_H

#include "base/imx.h"

typedef struct ncclComm *ncclComm_t;

enum { NCCL_SUCCESS = 0, NCCL_SYSTEM_ERROR = 2, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT8 = 0 };
enum { NCCL_CONFIG_UNDEFINED = INT32_MIN };
#define NCCL_CONFIG_MAGIC 0xcafebeefu

typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

typedef struct ncclConfig { /* of NCCL 2.18 */
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, ctas_least, ctas_most;
    const char *net_name;
    int split_share;
} ncclConfig;

/* Rows: name, result, what it takes. */
#define IMX_NCCL_TABLE(ROW)                                                                        \
    ROW(ncclGetVersion, int, (int *version))                                                       \
    ROW(ncclGetErrorString, const char *, (int result))                                            \
    ROW(ncclGetLastError, const char *, (ncclComm_t comm))                                         \
    ROW(ncclGetUniqueId, int, (ncclUniqueId * id))                                                 \
    ROW(ncclCommInitRankConfig, int,                                                               \
        (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig *config))             \
    ROW(ncclCommGetAsyncError, int, (ncclComm_t comm, int *result))                                \
    ROW(ncclCommFinalize, int, (ncclComm_t comm))                                                  \
    ROW(ncclCommDestroy, int, (ncclComm_t comm))                                                   \
    ROW(ncclCommAbort, int, (ncclComm_t comm))                                                     \
    ROW(ncclGroupStart, int, (void))                                                               \
    ROW(ncclGroupEnd, int, (void))                                                                 \
    ROW(ncclSend, int,                                                                             \
        (const void *at, size_t count, int type, int peer, ncclComm_t comm, imbrex_stream stream)) \
    ROW(ncclRecv, int,                                                                             \
        (void *at, size_t count, int type, int peer, ncclComm_t comm, imbrex_stream stream))

typedef struct imx_nccl_calls {
#define IMX_NCCL_FIELD(name, result, takes) result(*name) takes;
    IMX_NCCL_TABLE(IMX_NCCL_FIELD)
#undef IMX_NCCL_FIELD
} imx_nccl_calls;

/* Loads the library; once is enough, any thread may.  file: IMBREX_NCCL, or "": looked for.
 * UNSUPPORTED: there is none, it is too old, or it lacks something. */
imbrex_status imx_nccl_open(const char *file, const imx_nccl_calls **calls) IMX_MUST_CHECK;

/* What was opened. */
const char *imx_nccl_path(void);
const char *imx_nccl_version(void); /* "2.28.3" */

#endif /* IMX_NCCL_H */
