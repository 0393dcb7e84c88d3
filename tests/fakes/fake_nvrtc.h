/* fake_nvrtc.h - the fake driver's compiler, and what its parts share. */
#ifndef FAKE_NVRTC_H
#define FAKE_NVRTC_H

#include "backends/cuda/driver.h"
#include "backends/cuda/nvrtc.h"
#include "base/source.h"

#define FAKE_CUBIN "fake cubin of " /* how a cubin begins */

#define FAKE_PTX "// fake ptx\n" /* how one does that is run as it was compiled */

extern const imx_nvrtc_calls fake_nvrtc_calls;

/* From now on the real compiler compiles, to PTX.  folder: where that is kept for the next time, or
 * "".  false, with imbrex_error(): there is none. */
bool fake_nvrtc_use_real(const char *folder);

/* From now on the real compiler compiles as it does without fakes, and the PTX on its way is kept
 * where fake_nvrtc_use_real(folder) looks for it. */
bool fake_nvrtc_keep_ptx(const char *folder);

/* From now on a kernel of the library's that the test has no use for, which takes the real compiler
 * long, is one that fails where it runs. */
void fake_nvrtc_leave_out(const char *name, const char *entry);

/* The key of all that the library hands to the real compiler for a kernel of its own: the text,
 * headers, options, and the compiler's version. */
imx_cache_key fake_nvrtc_key(const char *name, const char *text, const char *options, int arch);

/* Which build of the compiler the real one is, as it says itself; false: it does not. */
bool fake_nvrtc_build(char build[80]);

CUresult fake_driver_may_fail(const char *call);        /* it is this one's turn to fail */
CUresult fake_driver_in_context(const char *call);      /* the same, and needs a current context */
CUresult fake_driver_outside_capture(const char *call); /* and is refused in a capture */
int fake_driver_gpu(void);                              /* of the current context */
int fake_driver_attribute(int gpu, int which);
void fake_driver_count(int objects);
void fake_driver_count_compiled(void);

#define FAKE_TRY(check)           \
    do {                          \
        CUresult try_ = (check);  \
        if (try_ != CUDA_SUCCESS) \
            return try_;          \
    } while (0)

#endif /* FAKE_NVRTC_H */
