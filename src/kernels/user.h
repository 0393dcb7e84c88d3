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

/* What a hook says: 0 where a wait of its own gave up, by which the group has failed; else the hook
 * is to blame. */
IMBREXD_FN int imx_user_goes_on(const imx_user_args *user, imbrexd_hook hook, int says)
{
    const imbrexd_watch *watch = &user->team.watch;
    if (!says && !imbrexd_load_acquire(watch->abort[watch->rank])) {
        imbrexd_wait_point point = { user->team.kernel, 0, watch->rank, (int32_t)hook };
        imbrexd_fault_raise(watch, IMBREXD_FAULT_HOOK, point, 0, 0);
    }
    return says;
}

#endif /* IMX_USER_H */
