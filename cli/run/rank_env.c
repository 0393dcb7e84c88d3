/* rank_env.c - the environment of a rank: makes it, and knows it. */
#define _GNU_SOURCE
#include "run.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch.h"

bool rank_env_choose(rank_env *at)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    unsigned char secret[16];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool chosen = fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 &&
                  getsockname(fd, (struct sockaddr *)&address, &length) == 0 &&
                  getrandom(secret, sizeof secret, 0) == sizeof secret;
    if (fd >= 0)
        close(fd);
    if (!chosen)
        return false;
    snprintf(at->port, sizeof at->port, "%d", ntohs(address.sin_port));
    for (size_t i = 0; i < sizeof secret; i++)
        snprintf(at->token + 2 * i, 3, "%02x", secret[i]);
    return true;
}

/* An empty variable is as good as none. */
static const char *look_up(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static bool is_ours; /* see launch_is_ours */

void rank_env_set(const rank_env *at, int rank, int ranks)
{
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", ranks);
    set_number("LOCAL_WORLD_SIZE", ranks);
    char copy[32]; /* by which the library sees that RANK or WORLD_SIZE were edited */
    snprintf(copy, sizeof copy, "%d/%d", rank, ranks);
    setenv("IMBREX_LAUNCHED", copy, 1);
    const char *named = look_up("IMBREX_LAUNCHER"); /* a launcher around ours counts no more */
    if (named && strcmp(named, "torchrun") != 0)
        unsetenv("IMBREX_LAUNCHER");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", at->port, 1);
    setenv("IMBREX_TOKEN", at->token, 1);
    setenv("OMP_NUM_THREADS", "1", 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* streams that wait for each other */
    is_ours = true;
}

/* Not one of Slurm's reserved steps at the top of 32 bits, which are no tasks: salloc's shell runs
 * in one. */
static bool is_step(const char *step)
{
    char *end;
    errno = 0;
    long long number = strtoll(step, &end, 10);
    return isdigit((unsigned char)*step) && !*end && !errno && number < 0xfffffff0;
}

/* A launcher's two variables; NULL: not set. */
typedef struct sign {
    const char *rank, *size;
} sign;

static bool is_there(sign found)
{
    return found.rank || found.size;
}

/* What the launcher of this process has set; neither: there is none.  The library has the same
 * rules, in launch_env.c, and says what is missing where half a pair is set, and who disagrees. */
static sign find_sign(void)
{
    static const struct {
        const char *name, *rank, *size;
    } launchers[] = { { "torchrun", "RANK", "WORLD_SIZE" },
                      { "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
                      { "mpiexec", "PMI_RANK", "PMI_SIZE" },
                      { "srun", "SLURM_PROCID", "SLURM_NTASKS" } };
    enum { LAUNCHERS = sizeof launchers / sizeof launchers[0], SRUN = LAUNCHERS - 1 };
    const char *named = look_up("IMBREX_LAUNCHER"), *step = look_up("SLURM_STEP_ID");
    for (int i = 0; i < LAUNCHERS; i++) {
        sign found = { look_up(launchers[i].rank), look_up(launchers[i].size) };
        /* A batch script has SLURM_PROCID, but is no step. */
        bool set = i == SRUN ? step && is_step(step) && found.rank : is_there(found);
        if (named ? strcmp(named, launchers[i].name) == 0 : set)
            return found;
    }
    return (sign){ NULL, NULL };
}

bool launch_is_rank(void)
{
    return is_there(find_sign());
}

bool launch_is_ours(void)
{
    return is_ours;
}

bool launch_is_first(void)
{
    const char *rank = find_sign().rank;
    return !rank || strcmp(rank, "0") == 0;
}

int launch_size(void)
{
    const char *size = find_sign().size;
    long long number = size ? strtoll(size, NULL, 10) : 0;
    return number > 0 && number <= INT_MAX ? (int)number : 0;
}
