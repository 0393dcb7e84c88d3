/* bootstrap.h - a bootstrap (who am I, and swap small blobs) made from what the launcher put in the
 * environment. */
#ifndef IMX_BOOTSTRAP_H
#define IMX_BOOTSTRAP_H

#include "launch_env.h"

typedef struct imx_bootstrap imx_bootstrap;

/* Collective over the ranks that the environment describes: the n-th call of this process meets the
 * n-th of the others.  Without a launcher's variables: one rank, no sockets.  timeout_ms > 0 limits
 * this call and every allgather. */
imbrex_status imx_bootstrap_from_env(const imx_env *env, int64_t timeout_ms,
                                     imx_bootstrap **out) IMX_MUST_CHECK;

/* The same with the launcher's words given, and the number of the group. */
imbrex_status imx_bootstrap_open(const imx_launch_env *launch, const imx_env *env,
                                 uint64_t sequence, int64_t timeout_ms,
                                 imx_bootstrap **out) IMX_MUST_CHECK;

/* The same, as desc says. */
struct imx_rendezvous_desc;
imbrex_status imx_bootstrap_meet(const struct imx_rendezvous_desc *desc,
                                 imx_bootstrap **out) IMX_MUST_CHECK;

/* For the group; lives as long as the bootstrap.  When its allgather returns other than 0, the
 * sentence is noted and imx_bootstrap_status has the status.  One failure ends it on all ranks. */
const imbrex_bootstrap *imx_bootstrap_public(imx_bootstrap *bootstrap);
imbrex_status imx_bootstrap_status(const imx_bootstrap *bootstrap);

/* A key that the ranks have, and nobody who only hears what they swap, if they have a token. */
void imx_bootstrap_secret(const imx_bootstrap *bootstrap, uint64_t key[2]);

/* From now on an allgather fails soon after *abort is not 0 any more. */
void imx_bootstrap_watch(imx_bootstrap *bootstrap, const uint64_t *abort);

void imx_bootstrap_destroy(imx_bootstrap *bootstrap); /* NULL is fine */

#endif /* IMX_BOOTSTRAP_H */
