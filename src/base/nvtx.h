/* nvtx.h - ranges that name runs in a profiler's timeline, as NVTX has them: a tool such as Nsight
 * Systems names its library in NVTX_INJECTION64_PATH, and that takes the calls.  Without one a
 * range costs one comparison. */
#ifndef IMX_NVTX_H
#define IMX_NVTX_H

#include "base/imx.h"

/* Loads the tool's library, if there is one; once is enough, any thread may.  Why that cannot be,
 * or "". */
const char *imx_nvtx_open(void);

/* Operator, rows and algorithm, "OP m=4096 (copy)", of this thread, up to the end that belongs to
 * it. */
void imx_nvtx_begin(const char *op, int64_t m, const char *algorithm);
void imx_nvtx_end(void);

#endif /* IMX_NVTX_H */
