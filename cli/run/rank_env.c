/* rank_env.c - the environment of a rank: makes it, and knows it. */
#define _GNU_SOURCE
#include "run.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "imbrex.h"
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

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* The launchers that this process is in, "srun=0/2,": by them the library knows one that a rank has
 * started. */
static void say_outer(char *at, size_t size)
{
    static const char *const names[] = { "mpirun", "mpiexec", "srun" };
    for (int i = 0, rank, ranks; i < 3; i++) {
        setenv("IMBREX_LAUNCHER", names[i], 1);
        if (!imbrex_launcher(&rank, &ranks))
            continue;
        int length = snprintf(at, size, "%s=%d/%d,", names[i], rank, ranks);
        at += length;
        size -= (size_t)length;
    }
}

static bool is_ours; /* see launch_is_ours */

void rank_env_set(const rank_env *at, int rank, int ranks)
{
    const char *named = getenv("IMBREX_LAUNCHER"); /* a launcher around ours counts no more */
    bool kept = named && strcmp(named, "torchrun") == 0;
    char copy[160]; /* by which the library sees that RANK or WORLD_SIZE were edited */
    int length = snprintf(copy, sizeof copy, "%d/%d,", rank, ranks);
    say_outer(copy + length, sizeof copy - (size_t)length);
    setenv("IMBREX_LAUNCHED", copy, 1);
    unsetenv("IMBREX_LAUNCHER");
    if (kept)
        setenv("IMBREX_LAUNCHER", "torchrun", 1);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", ranks);
    set_number("LOCAL_WORLD_SIZE", ranks);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", at->port, 1);
    setenv("IMBREX_TOKEN", at->token, 1);
    setenv("OMP_NUM_THREADS", "1", 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* streams that wait for each other */
    is_ours = true;
}

bool launch_is_rank(void)
{
    int rank, size;
    return imbrex_launcher(&rank, &size) != NULL;
}

bool launch_is_ours(void)
{
    return is_ours;
}

bool launch_is_first(void)
{
    int rank, size;
    return !imbrex_launcher(&rank, &size) || rank <= 0;
}

int launch_size(void)
{
    int rank, size;
    return imbrex_launcher(&rank, &size) ? size : 0;
}
