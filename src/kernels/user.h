/* user.h - what a kernel of the caller's around a product has behind the product's args. */
#ifndef IMX_USER_H
#define IMX_USER_H

#include "imbrex_gemm.h"

enum { IMX_USER_ARGS_BYTES = 256 }; /* most that a caller's kernel may take */

/* At the next multiple of 16 bytes. */
typedef struct __attribute__((aligned(16))) imx_user_args {
    imbrexd_team team;
    const struct imbrexd_hooks *hooks; /* on CPUs */
    uint64_t pad;
    __attribute__((aligned(16))) char args[IMX_USER_ARGS_BYTES];
} imx_user_args;

#endif /* IMX_USER_H */
