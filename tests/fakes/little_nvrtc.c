/* little_nvrtc.c - a library that programs load as NVRTC: the real one, but that kernels which a
 * group has from the start, and which take it many seconds, are empty texts to it.  They are
 * test_cuda_compile's.  REAL_NVRTC, else IMBREX_NVRTC, names the real one's file. */
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/nvrtc.h"

#define DECLARE(name, takes) __attribute__((visibility("default"))) int name takes;
IMX_NVRTC_TABLE(DECLARE)

enum { NONE = 1 };

static const imx_nvrtc_calls *real(void)
{
    const char *file = getenv("REAL_NVRTC");
    if (!file)
        file = getenv("IMBREX_NVRTC");
    return imx_nvrtc_open(file ? file : "") == IMBREX_OK ? imx_nvrtc : NULL;
}

/* Another one, so that no cache takes its cubins for those of the real one. */
int nvrtcVersion(int *major, int *minor)
{
    if (!real() || real()->nvrtcVersion(major, minor))
        return NONE;
    *minor += 90;
    return 0;
}

int nvrtcCreateProgram(nvrtcProgram *program, const char *text, const char *name, int header_count,
                       const char *const *headers, const char *const *header_names)
{
    bool large =
        strcmp(name, "kernels/norm/sm80.cu") == 0 || strcmp(name, "kernels/activate/sm80.cu") == 0;
    return real() ? real()->nvrtcCreateProgram(program, large ? "" : text, name, header_count,
                                               headers, header_names)
                  : NONE;
}

int nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options)
{
    return real()->nvrtcCompileProgram(program, count, options);
}

int nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes)
{
    return real()->nvrtcGetCUBINSize(program, bytes);
}

int nvrtcGetCUBIN(nvrtcProgram program, char *cubin)
{
    return real()->nvrtcGetCUBIN(program, cubin);
}

int nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes)
{
    return real()->nvrtcGetProgramLogSize(program, bytes);
}

int nvrtcGetProgramLog(nvrtcProgram program, char *log)
{
    return real()->nvrtcGetProgramLog(program, log);
}

int nvrtcDestroyProgram(nvrtcProgram *program)
{
    return real()->nvrtcDestroyProgram(program);
}
