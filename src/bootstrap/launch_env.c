/* launch_env.c - one row a launcher: which variables it sets. */
#define _GNU_SOURCE
#include "launch_env.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct launcher {
    const char *name;
    const char *rank, *size, *local_rank, *local_size;
    const char *jobs[3];      /* variables that tell this launch from others; all set ones count */
    const char *host_jobs[3]; /* the same, but alike on the ranks of one host only */
    const char *peer;  /* a descriptor whose other end, on every rank of a host, is one process */
    const char *wider; /* tells the job that this launch is in, which may have several of them */
    const char *step;  /* set, to a small number, only in tasks; NULL: no such variable */
} launcher;

/* In order of precedence.  Launchers nest, and the inner one knows better: mpirun and mpiexec start
 * their daemons with srun inside a Slurm job, so that their ranks inherit the daemon's
 * SLURM_PROCID; torchrun runs under any of them.  SLURM_STEP_TASKS_PER_NODE is what the step got;
 * SLURM_NTASKS_PER_NODE only what somebody asked for, if at all. */
static const launcher launchers[] = {
    { .name = "torchrun",
      .rank = "RANK",
      .size = "WORLD_SIZE",
      .local_rank = "LOCAL_RANK",
      .local_size = "LOCAL_WORLD_SIZE",
      .jobs = { "TORCHELASTIC_RUN_ID" } },
    { .name = "mpirun",
      .rank = "OMPI_COMM_WORLD_RANK",
      .size = "OMPI_COMM_WORLD_SIZE",
      .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
      .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
      .jobs = { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" } },
    { .name = "mpiexec",
      .rank = "PMI_RANK",
      .size = "PMI_SIZE",
      .local_rank = "MPI_LOCALRANKID",
      .local_size = "MPI_LOCALNRANKS",
      .jobs = { "PMI_JOBID", "PALS_APID" },
      .host_jobs = { "I_MPI_HYDRA_UUID", "PMI_PORT" },
      .peer = "PMI_FD",
      .wider = "SLURM_JOB_ID" },
    { .name = "srun",
      .rank = "SLURM_PROCID",
      .size = "SLURM_NTASKS",
      .local_rank = "SLURM_LOCALID",
      .local_size = "SLURM_STEP_TASKS_PER_NODE",
      .jobs = { "SLURM_JOB_ID", "SLURM_STEP_ID" },
      .step = "SLURM_STEP_ID" },
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

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

static bool is_set(const reader *in, const launcher *row)
{
    return row->step ? is_task(in, row) : look_up(in, row->rank) || look_up(in, row->size);
}

/* What a row says of this rank; false: not all of it, or nonsense. */
static bool read_claim(const reader *in, const launcher *row, int64_t *rank, int64_t *size)
{
    const char *rank_text = look_up(in, row->rank), *size_text = look_up(in, row->size);
    return is_set(in, row) && rank_text && size_text && imx_env_parse_int(rank_text, rank) &&
           imx_env_parse_int(size_text, size) && *rank >= 0 && *rank < *size;
}

/* Whether a rank of imbrex run has started row's launcher: IMBREX_LAUNCHED, "3/4,srun=0/2,", says
 * which launchers that rank was in, "3/4," none. */
static bool is_started_within(const reader *in, const launcher *row)
{
    const char *copy = look_up(in, "IMBREX_LAUNCHED"), *outer = copy ? strchr(copy, ',') : NULL;
    int64_t rank, size;
    char said[80];
    if (!outer || row == &launchers[0] || !read_claim(in, row, &rank, &size))
        return false;
    snprintf(said, sizeof said, ",%s=%lld/%lld,", row->name, (long long)rank, (long long)size);
    return !strstr(outer, said);
}

/* Who is named, else a launcher within imbrex run, else the first that is set; NULL: none. */
static const launcher *look_for(const reader *in, const char *named)
{
    for (int i = 0; i < LAUNCHERS && !named; i++)
        if (is_started_within(in, &launchers[i]))
            return &launchers[i];
    for (int i = 0; i < LAUNCHERS; i++)
        if (named ? strcmp(named, launchers[i].name) == 0 : is_set(in, &launchers[i]))
            return &launchers[i];
    return NULL;
}

/* named: by IMBREX_LAUNCHER. */
static imbrex_status find_launcher(const reader *in, const char *named, const launcher **found)
{
    *found = look_for(in, named);
    if (!named || *found || strcmp(named, "none") == 0)
        return IMBREX_OK;
    return imx_fail(IMBREX_INVALID,
                    "IMBREX_LAUNCHER=%.64s: want torchrun (which stands for imbrex run and for "
                    "RANK and WORLD_SIZE set by hand, too), mpirun, mpiexec, srun or none",
                    named);
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

/* ---- Which launch this is -------------------------------------------------------------------- */

static bool add_id(imx_text *job, const char *value)
{
    if (value)
        imx_text_add(job, "%s%s", job->length ? "." : "", value);
    return value != NULL;
}

static bool add_ids(const reader *in, const char *const *names, size_t count, imx_text *job)
{
    bool any = false;
    for (size_t i = 0; i < count && names[i]; i++)
        any = add_id(job, look_up(in, names[i])) || any;
    return any;
}

/* The process that made the socket pair whose other end fd is, 0: fd is no such thing.  Nothing is
 * sent. */
static int peer_process(int64_t fd)
{
    int domain = 0;
    struct ucred other = { .pid = 0 };
    socklen_t bytes = sizeof domain;
    if (fd < 0 || fd > INT32_MAX ||
        getsockopt((int)fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX)
        return 0;
    bytes = sizeof other;
    if (getsockopt((int)fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) != 0)
        return 0;
    return other.pid != getpid() ? other.pid : 0;
}

/* Whether what row has set tells this launch from every other. */
static bool read_job(const reader *in, const launcher *row, bool one_host, imx_text *job)
{
    bool told = add_ids(in, row->jobs, sizeof row->jobs / sizeof *row->jobs, job);
    int64_t fd;
    const char *peer = row->peer ? look_up(in, row->peer) : NULL;
    if (one_host) {
        told = add_ids(in, row->host_jobs, sizeof row->host_jobs / sizeof *row->host_jobs, job) ||
               told;
        int pid = peer && imx_env_parse_int(peer, &fd) ? peer_process(fd) : 0;
        char text[24];
        snprintf(text, sizeof text, "%d", pid);
        told = add_id(job, pid > 0 ? text : NULL) || told;
    }
    if (row->wider)
        add_id(job, look_up(in, row->wider));
    return told;
}

/* ---- Launchers that disagree ----------------------------------------------------------------- */

/* "3/4", and more behind a comma: as imbrex run left it beside RANK and WORLD_SIZE. */
static bool read_copy(const char *text, int64_t *rank, int64_t *size)
{
    char number[24];
    size_t digits = text ? strcspn(text, "/") : 0;
    if (!digits || digits >= sizeof number || text[digits] != '/')
        return false;
    snprintf(number, sizeof number, "%.*s", (int)digits, text);
    bool good = imx_env_parse_int(number, rank);
    text += digits + 1;
    snprintf(number, sizeof number, "%.*s", (int)strcspn(text, ","), text);
    return good && imx_env_parse_int(number, size);
}

/* Whether RANK and WORLD_SIZE are what imbrex run or torchrun set: both leave copies that nobody
 * edits.  torchrun's count the ranks of one role, which are some of all.  *text: the copy that says
 * otherwise, or NULL where there is no copy. */
static bool is_as_launched(const reader *in, const imx_launch_env *env, char text[128],
                           const char **otherwise)
{
    int64_t rank, size;
    *otherwise = NULL;
    const char *ours = look_up(in, "IMBREX_LAUNCHED");
    if (read_copy(ours, &rank, &size)) {
        if (rank == env->rank && size == env->size)
            return true;
        snprintf(text, 128, "imbrex run has set IMBREX_LAUNCHED=%.32s", ours);
        *otherwise = text;
    }
    const char *role_rank = look_up(in, "ROLE_RANK"), *role_size = look_up(in, "ROLE_WORLD_SIZE");
    if (!look_up(in, "TORCHELASTIC_RUN_ID") || !role_rank || !role_size ||
        !imx_env_parse_int(role_rank, &rank) || !imx_env_parse_int(role_size, &size))
        return false;
    if (rank <= env->rank && size <= env->size && (size < env->size || rank == env->rank))
        return true;
    snprintf(text, 128, "torchrun has set ROLE_RANK=%.16s ROLE_WORLD_SIZE=%.16s", role_rank,
             role_size);
    *otherwise = text;
    return false;
}

static imbrex_status check_copies(const char *otherwise, const imx_launch_env *env)
{
    if (!otherwise)
        return IMBREX_OK;
    return imx_fail(IMBREX_INVALID,
                    "RANK=%d WORLD_SIZE=%d, but %s: make a group of some of a launch's ranks with "
                    "imbrex_group_split; or let IMBREX_LAUNCHER=torchrun say that RANK and "
                    "WORLD_SIZE count, and give each group a MASTER_PORT of its own",
                    env->rank, env->size, otherwise);
}

/* Whether row, which says other than `other`, is evidently the launcher within it.  A group of one
 * never is: what was left over would go unnoticed.  Nor is a part of the other's ranks. */
static bool is_inner(const reader *in, const launcher *row, const imx_launch_env *env,
                     bool as_launched, int64_t other_size)
{
    if (env->size == 1 || !look_up(in, row->local_rank))
        return false;
    return row != &launchers[0] || as_launched || env->size >= other_size;
}

/* All rows that are set must agree with row, unless it is evidently an inner launcher's.  *agrees:
 * the first that does, where row is not; it knows more of the launch, and all ranks have it. */
static imbrex_status compare_launchers(const reader *in, const launcher *row, bool as_launched,
                                       imx_launch_env *env, const launcher **agrees)
{
    *agrees = NULL;
    for (int i = 0; i < LAUNCHERS; i++) {
        const launcher *other = &launchers[i];
        int64_t rank, size;
        if (other == row || !read_claim(in, other, &rank, &size))
            continue;
        if (rank == env->rank && size == env->size) {
            if (!*agrees && !look_up(in, row->local_rank))
                *agrees = other;
            continue;
        }
        if (!is_inner(in, row, env, as_launched, size))
            return imx_fail(IMBREX_INVALID,
                            "%s=%d %s=%d (%s) and %s=%lld %s=%lld (%s) disagree on which rank this "
                            "is: unset those that are left over, or name the launcher that counts, "
                            "IMBREX_LAUNCHER=%s or IMBREX_LAUNCHER=%s; a group of some of a "
                            "launch's ranks is made with imbrex_group_split",
                            row->rank, env->rank, row->size, env->size, row->name, other->rank,
                            (long long)rank, other->size, (long long)size, other->name, row->name,
                            other->name);
        imx_text said = { .at = env->said, .size = sizeof env->said, .length = strlen(env->said) };
        imx_text_add(&said, ", before %s=%lld %s=%lld", other->rank, (long long)rank, other->size,
                     (long long)size);
    }
    return IMBREX_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static bool is_loopback(const char *address)
{
    struct in_addr four;
    if (inet_pton(AF_INET, address, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    return !strcmp(address, "localhost") || !strcmp(address, "::1");
}

static imbrex_status read_row(const reader *in, const launcher *row, bool named,
                              imx_launch_env *env)
{
    env->launcher = row->name;
    IMX_TRY(read_int(in, row->size, row->rank, 1, IMX_LAUNCH_MAX_SIZE, &env->size));
    IMX_TRY(read_int(in, row->rank, row->size, 0, env->size - 1, &env->rank));
    snprintf(env->said, sizeof env->said, "%s=%d %s=%d", row->rank, env->rank, row->size,
             env->size);

    char text[128];
    const char *otherwise = NULL;
    const bool plain = row == &launchers[0];
    const bool as_launched = plain && is_as_launched(in, env, text, &otherwise);
    const launcher *agrees = NULL;
    if (!named) {
        if (!as_launched)
            IMX_TRY(check_copies(otherwise, env));
        IMX_TRY(compare_launchers(in, row, as_launched, env, &agrees));
    }
    const launcher *local = agrees && !look_up(in, row->local_size) ? agrees : row;
    IMX_TRY(read_local(in, local, env));
    IMX_TRY(read_address(in, env));
    env->one_host = env->local_size == env->size ||
                    (env->local_size < 0 && (!env->address[0] || is_loopback(env->address)));
    if (!env->one_host && !env->address[0])
        return imx_fail(IMBREX_INVALID,
                        "%s=%d but %s=%d: the ranks are on several hosts, so set MASTER_ADDR "
                        "to the name of rank 0's host",
                        local->local_size, env->local_size, row->size, env->size);
    env->guessed = env->one_host && env->local_size < 0 && env->address[0];

    imx_text job = { .at = env->job, .size = sizeof env->job };
    env->identified = read_job(in, row, env->one_host, &job) && !plain;
    if (agrees)
        env->identified = read_job(in, agrees, env->one_host, &job) || env->identified;
    env->identified = env->identified || as_launched;
    return IMBREX_OK;
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
    const char *named = look_up(&in, "IMBREX_LAUNCHER");
    const launcher *row;
    IMX_TRY(find_launcher(&in, named, &row));
    if (row)
        IMX_TRY(read_row(&in, row, named != NULL, &env));
    *out = env;
    return IMBREX_OK;
}

/* `otherwise` where there is no such number. */
static int number_of(const char *text, int64_t least, int otherwise)
{
    int64_t number;
    bool good = text && imx_env_parse_int(text, &number) && number >= least && number <= INT_MAX;
    return good ? (int)number : otherwise;
}

const char *imx_launch_env_name(imx_launch_get *get, void *ctx, int *rank, int *size)
{
    const reader in = { get, ctx };
    const launcher *row = look_for(&in, look_up(&in, "IMBREX_LAUNCHER"));
    const char *ranks = row ? look_up(&in, row->rank) : NULL;
    const char *sizes = row ? look_up(&in, row->size) : NULL;
    *rank = number_of(ranks, 0, -1);
    *size = number_of(sizes, 1, 0);
    return ranks || sizes ? row->name : NULL;
}
