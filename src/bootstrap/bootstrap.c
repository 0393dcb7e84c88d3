/* bootstrap.c - ties the launcher's environment, the rendezvous and the out-of-band allgather
 * together. */
#include "bootstrap.h"

#include <stdlib.h>

#include "host.h"
#include "oob.h"
#include "rendezvous.h"

struct imx_bootstrap {
    imbrex_bootstrap public;
    imx_oob oob;
    imx_host *host; /* NULL but on rank 0 */
};

static int allgather(void *ctx, const void *send, void *recv, size_t bytes)
{
    imx_bootstrap *bootstrap = ctx;
    return imx_oob_allgather(&bootstrap->oob, send, recv, bytes) != IMBREX_OK;
}

imbrex_status imx_bootstrap_meet(const imx_rendezvous_desc *desc, imx_bootstrap **out)
{
    imx_bootstrap *bootstrap;
    IMX_TRY(imx_sys_alloc(1, sizeof *bootstrap, &bootstrap));
    bootstrap->public = (imbrex_bootstrap){ .rank = desc->launch->rank,
                                            .size = desc->launch->size,
                                            .allgather = allgather,
                                            .ctx = bootstrap };
    imbrex_status status;
    IMX_GOTO(imx_rendezvous_meet(desc, &bootstrap->oob, &bootstrap->host));
    *out = bootstrap;
    return IMBREX_OK;
fail:
    imx_bootstrap_destroy(bootstrap);
    return status;
}

imbrex_status imx_bootstrap_open(const imx_launch_env *launch, const imx_env *env,
                                 uint64_t sequence, int64_t timeout_ms, imx_bootstrap **out)
{
    const imx_rendezvous_desc desc = { .launch = launch,
                                       .token = env->token,
                                       .bind = env->bind,
                                       .sequence = sequence,
                                       .timeout_ms = timeout_ms };
    return imx_bootstrap_meet(&desc, out);
}

static const char *get_variable(void *ctx, const char *variable)
{
    (void)ctx;
    return getenv(variable);
}

const char *imbrex_launcher(int *rank, int *size)
{
    return imx_launch_env_name(get_variable, NULL, rank, size);
}

imbrex_status imx_bootstrap_from_env(const imx_env *env, int64_t timeout_ms, imx_bootstrap **out)
{
    /* Relaxed: the number alone matters; groups made at once by several threads only need
     * different ones. */
    static uint64_t made;
    uint64_t sequence = __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
    imx_launch_env launch;
    IMX_TRY(imx_launch_env_parse(get_variable, NULL, &launch));
    return imx_bootstrap_open(&launch, env, sequence, timeout_ms, out);
}

const imbrex_bootstrap *imx_bootstrap_public(imx_bootstrap *bootstrap)
{
    return &bootstrap->public;
}

imbrex_status imx_bootstrap_status(const imx_bootstrap *bootstrap)
{
    return bootstrap->oob.status;
}

void imx_bootstrap_secret(const imx_bootstrap *bootstrap, uint64_t key[2])
{
    key[0] = bootstrap->oob.key[0];
    key[1] = bootstrap->oob.key[1];
}

void imx_bootstrap_watch(imx_bootstrap *bootstrap, const uint64_t *abort)
{
    bootstrap->oob.abort = abort;
}

void imx_bootstrap_destroy(imx_bootstrap *bootstrap)
{
    if (!bootstrap)
        return;
    imx_host_close(bootstrap->host);
    imx_oob_close(&bootstrap->oob);
    free(bootstrap);
}
