/* compiler.h - the machine's C compiler, for kernels of the caller's. */
#ifndef IMX_CPU_COMPILER_H
#define IMX_CPU_COMPILER_H

#include "backends/backend.h"

/* Compiles the text into a shared object: image, for free().  compiler: IMBREX_CC, or "" to look
 * for one.  kept: where to compile if TMPDIR is not fit for it.  INVALID with what the compiler
 * said if it does not compile; UNSUPPORTED: there is no compiler. */
imbrex_status imx_compiler_run(const char *compiler, const imx_folder *kept,
                               const imx_user_desc *desc, void **image,
                               size_t *bytes) IMX_MUST_CHECK;

/* What the image depends on besides the desc: the compiler's name, our own options, the machine,
 * and where the caller's options are for this very processor, which one that is.  root stands
 * before "/proc": "", or a test's folder. */
void imx_compiler_key(const char *compiler, const char *words, const char *root,
                      imx_cache_key *key);

#endif /* IMX_CPU_COMPILER_H */
