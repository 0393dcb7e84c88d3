/* launch_env.c - one row a launcher: which variables it sets. */
#include "launch_env.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct launcher {
    const char *name;
    const char *rank, *size, *local_rank, *local_size;
    const char *jobs[3]; /* variables that tell this job from others; all that are set count */
    const char *step;    /* set, to a small number, only in tasks; NULL: no such variable */
} launcher;

/* In order of precedence.  Launchers nest, and the inner one knows better: mpirun and mpiexec start
 * their daemons with srun inside a Slurm job, so that their ranks inherit the daemon's
 * SLURM_PROCID; torchrun runs under any of them.  SLURM_STEP_TASKS_PER_NODE is what the step got;
 * SLURM_NTASKS_PER_NODE only what somebody asked for, if at all. */
static const launcher launchers[] = {
    { "torchrun",
      "RANK",
      "WORLD_SIZE",
      "LOCAL_RANK",
      "LOCAL_WORLD_SIZE",
      { "TORCHELASTIC_RUN_ID" },
      NULL },
    { "mpirun",
      "OMPI_COMM_WORLD_RANK",
      "OMPI_COMM_WORLD_SIZE",
      "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_LOCAL_SIZE",
      { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" },
      NULL },
    { "mpiexec",
      "PMI_RANK",
      "PMI_SIZE",
      "MPI_LOCALRANKID",
      "MPI_LOCALNRANKS",
      { "PMI_JOBID", "PALS_APID", "SLURM_JOB_ID" },
      NULL },
    { "srun",
      "SLURM_PROCID",
      "SLURM_NTASKS",
      "SLURM_LOCALID",
      "SLURM_STEP_TASKS_PER_NODE",
      { "SLURM_JOB_ID", "SLURM_STEP_ID" },
      "SLURM_STEP_ID" },
};

typedef struct reader {
    imx_launch_get *get;
    void *ctx;
} reader;

/* An empty variable is as good as none. */
static const char *look_up(const reader *in, const char *variable)
{
    const char *value = in->get(in->ctx, variable);
    return value && value[0] ? value : NULL;
}

/* A shell inside salloc or sbatch has SLURM_NTASKS, and may have SLURM_PROCID=0, but it is not one
 * of the tasks: it has no step, or one of the reserved steps at the top of 32 bits. */
static bool is_task(const reader *in, const launcher *row)
{
    const char *step = look_up(in, row->step);
    int64_t number;
    return step && imx_env_parse_int(step, &number) && number >= 0 && number < 0xfffffff0 &&
           look_up(in, row->rank);
}

static const launcher *find_launcher(const reader *in)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const launcher *row = &launchers[i];
        bool set = row->step ? is_task(in, row) : look_up(in, row->rank) || look_up(in, row->size);
        if (set)
            return row;
    }
    return NULL;
}

/* A variable that must be there, within [low, high]. */
static imbrex_status read_int(const reader *in, const char *variable, const char *partner,
                              int64_t low, int64_t high, int *out)
{
    const char *text = look_up(in, variable);
    if (!text)
        return imx_fail(IMBREX_INVALID,
                        "the environment has %s but not %s: set both, or neither for one rank",
                        partner, variable);
    int64_t value;
    if (!imx_env_parse_int(text, &value) || value < low || value > high)
        return imx_fail(IMBREX_INVALID, "%s=%.64s: set it to a number from %lld to %lld", variable,
                        text, (long long)low, (long long)high);
    *out = (int)value;
    return IMBREX_OK;
}

/* local_size may be a list over the hosts as Slurm writes it, "4(x2),3": its first number then
 * serves to tell that there are several. */
static imbrex_status read_local(const reader *in, const launcher *row, imx_launch_env *out)
{
    const char *text = look_up(in, row->local_size);
    bool list = text && strpbrk(text, "(,");
    if (list) {
        long first = strtol(text, NULL, 10);
        if (first < 1 || first > out->size)
            return imx_fail(IMBREX_INVALID, "%s=%.64s does not fit %s=%d", row->local_size, text,
                            row->size, out->size);
        out->local_size = (int)first;
    } else if (text) {
        IMX_TRY(read_int(in, row->local_size, row->size, 1, out->size, &out->local_size));
    }

    if (look_up(in, row->local_rank)) {
        int64_t most = out->local_size > 0 && !list ? out->local_size : out->size;
        IMX_TRY(read_int(in, row->local_rank, row->rank, 0, most - 1, &out->local_rank));
    }
    return IMBREX_OK;
}

static imbrex_status read_address(const reader *in, imx_launch_env *out)
{
    const char *address = look_up(in, "MASTER_ADDR");
    if (address && strlen(address) >= sizeof out->address)
        return imx_fail(IMBREX_INVALID, "MASTER_ADDR=%.64s...: set it to the name of a host",
                        address);
    if (address)
        strcpy(out->address, address);
    if (look_up(in, "MASTER_PORT"))
        IMX_TRY(read_int(in, "MASTER_PORT", "MASTER_ADDR", 1, 65534, &out->port));
    return IMBREX_OK;
}

static void read_job(const reader *in, const launcher *row, imx_launch_env *out)
{
    imx_text job = { .at = out->job, .size = sizeof out->job };
    for (size_t i = 0; i < sizeof row->jobs / sizeof *row->jobs && row->jobs[i]; i++) {
        const char *value = look_up(in, row->jobs[i]);
        if (value)
            imx_text_add(&job, "%s%s", job.length ? "." : "", value);
    }
}

static bool is_loopback(const char *address)
{
    struct in_addr four;
    if (inet_pton(AF_INET, address, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    return !strcmp(address, "localhost") || !strcmp(address, "::1");
}

imbrex_status imx_launch_env_parse(imx_launch_get *get, void *ctx, imx_launch_env *out)
{
    const reader in = { get, ctx };
    imx_launch_env env = { .launcher = "none",
                           .size = 1,
                           .local_rank = -1,
                           .local_size = -1,
                           .one_host = true,
                           .port = IMX_LAUNCH_PORT };
    const launcher *row = find_launcher(&in);
    if (row) {
        env.launcher = row->name;
        IMX_TRY(read_int(&in, row->size, row->rank, 1, IMX_LAUNCH_MAX_SIZE, &env.size));
        IMX_TRY(read_int(&in, row->rank, row->size, 0, env.size - 1, &env.rank));
        IMX_TRY(read_local(&in, row, &env));
        IMX_TRY(read_address(&in, &env));
        read_job(&in, row, &env);
        env.one_host = env.local_size == env.size ||
                       (env.local_size < 0 && (!env.address[0] || is_loopback(env.address)));
        if (!env.one_host && !env.address[0])
            return imx_fail(IMBREX_INVALID,
                            "%s=%d but %s=%d: the ranks are on several hosts, so set MASTER_ADDR "
                            "to the name of rank 0's host",
                            row->local_size, env.local_size, row->size, env.size);
    }
    *out = env;
    return IMBREX_OK;
}
