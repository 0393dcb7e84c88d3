/* nvrtc.h - NVIDIA's run-time compiler as a table of functions, filled from libnvrtc when the first
 * kernel is asked for. */
#ifndef IMX_NVRTC_H
#define IMX_NVRTC_H

#include "backends/backend.h"

typedef struct nvrtc_program *nvrtcProgram;

/* Rows: name, what it takes. */
#define IMX_NVRTC_TABLE(ROW)                                                                \
    ROW(nvrtcVersion, (int *major, int *minor))                                             \
    ROW(nvrtcCreateProgram,                                                                 \
        (nvrtcProgram * program, const char *text, const char *name, int header_count,      \
         const char *const *headers, const char *const *header_names))                      \
    ROW(nvrtcCompileProgram, (nvrtcProgram program, int count, const char *const *options)) \
    ROW(nvrtcGetCUBINSize, (nvrtcProgram program, size_t * bytes))                          \
    ROW(nvrtcGetCUBIN, (nvrtcProgram program, char *cubin))                                 \
    ROW(nvrtcGetProgramLogSize, (nvrtcProgram program, size_t * bytes))                     \
    ROW(nvrtcGetProgramLog, (nvrtcProgram program, char *log))                              \
    ROW(nvrtcDestroyProgram, (nvrtcProgram * program))

typedef struct imx_nvrtc_calls {
#define IMX_NVRTC_FIELD(name, takes) int(*name) takes;
    IMX_NVRTC_TABLE(IMX_NVRTC_FIELD)
#undef IMX_NVRTC_FIELD
} imx_nvrtc_calls;

/* NULL until imx_nvrtc_open.  A test puts its own table here first. */
extern const imx_nvrtc_calls *imx_nvrtc;

/* Loads the compiler: the library in `file`, or "" to look for it.  Once is enough; any thread may.
 * UNSUPPORTED: not found, with where it was looked for, or too old. */
imbrex_status imx_nvrtc_open(const char *file) IMX_MUST_CHECK;

int imx_nvrtc_version(void); /* 13000: CUDA 13.0; 0: not loaded */

/* Where the loaded one was found; "" before. */
const char *imx_nvrtc_path(void);

/* Compiles text, known as name in messages, for arch (90: "sm_90a").  options: words split by
 * blanks.  INTERNAL with the compiler's first error if it does not compile.  Free *cubin, and *log
 * (what the compiler said: registers, spills; log may be NULL) with free(). */
imbrex_status imx_nvrtc_compile(const char *name, const char *text, const char *options, int arch,
                                void **cubin, size_t *bytes, char **log) IMX_MUST_CHECK;

/* The same for a kernel of the caller's: INVALID, with all that the compiler said, if it does not
 * compile. */
imbrex_status imx_nvrtc_compile_user(const imx_user_desc *desc, int arch, void **cubin,
                                     size_t *bytes) IMX_MUST_CHECK;

#endif /* IMX_NVRTC_H */
