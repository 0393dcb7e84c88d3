/* launch_env.h - what a launcher (torchrun, mpirun, srun, mpiexec, or our own) says about this
 * rank in the environment. */
#ifndef IMX_LAUNCH_ENV_H
#define IMX_LAUNCH_ENV_H

#include "base/imx.h"

enum { IMX_LAUNCH_MAX_SIZE = 65536, IMX_LAUNCH_PORT = 29500 };

typedef struct imx_launch_env {
    const char *launcher; /* "torchrun", ...; "none" */
    int rank, size;
    int local_rank, local_size; /* among the ranks of this host; -1: the launcher does not say */
    bool one_host;              /* all ranks are on this host */
    bool guessed;               /* ... because MASTER_ADDR is this host's loopback, and no more */
    char address[256];          /* MASTER_ADDR, where rank 0 is; "": not said */
    int port;                   /* MASTER_PORT: rank 0 listens on a port above it */
    char job[256];              /* the launcher's name for this job, cut if longer; "": none */
    bool identified;            /* job, or what this launcher has set, is no other launch's */
    char said[256]; /* what makes this rank that rank, "RANK=1 WORLD_SIZE=3"; "": none */
} imx_launch_env;

/* The value of an environment variable, or NULL. */
typedef const char *imx_launch_get(void *ctx, const char *variable);

/* The launcher that IMBREX_LAUNCHER names, else the first whose variables are there; without any:
 * rank 0 of 1.  INVALID, with the variable, its value and what to set, if they make no sense, or if
 * two launchers, or one and its own copies, disagree on which rank this is. */
imbrex_status imx_launch_env_parse(imx_launch_get *get, void *ctx,
                                   imx_launch_env *out) IMX_MUST_CHECK;

/* See imbrex_launcher. */
const char *imx_launch_env_name(imx_launch_get *get, void *ctx, int *rank, int *size);

#endif /* IMX_LAUNCH_ENV_H */
