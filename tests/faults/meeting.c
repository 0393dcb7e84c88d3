/* meeting.c - forks the ranks of a rendezvous and collects what they say through shared memory. */
#define _GNU_SOURCE
#include "meeting.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bootstrap/host.h"
#include "bootstrap/socket.h"

enum { MOST_RANKS = 16 };

struct meeting_ranks {
    int count;
    pid_t pids[MOST_RANKS];
    meeting_rank ranks[MOST_RANKS];
};

static meeting_result *results; /* [MOST_RANKS], shared with the ranks */

int meeting_port(void)
{
    static int offset;
    /* Away from the ports that the system hands out, and from another run's. */
    for (int i = 0; i < 100; i++) {
        int port = 10000 + ((int)getpid() * 7 + 40 * offset++) % 20000;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const struct sockaddr_in at = { .sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)port),
                                        .sin_addr = { htonl(INADDR_LOOPBACK) } };
        bool is_free = !bind(fd, (const struct sockaddr *)&at, sizeof at);
        close(fd);
        if (is_free)
            return port;
    }
    fail_msg("no free port");
    return 0;
}

int meeting_occupy(int port)
{
    const int on = 1;
    const struct sockaddr_in at = { .sin_family = AF_INET,
                                    .sin_port = htons((uint16_t)port),
                                    .sin_addr = { htonl(INADDR_LOOPBACK) } };
    /* Another run of the same test may have it for a moment. */
    for (int i = 0; i < patient(200); i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (!bind(fd, (const struct sockaddr *)&at, sizeof at) && !listen(fd, 128))
            return fd;
        close(fd);
        usleep(10000);
    }
    fail_msg("cannot listen on port %d", port);
    return -1;
}

int meeting_connect(int port)
{
    const struct sockaddr_in at = { .sin_family = AF_INET,
                                    .sin_port = htons((uint16_t)port),
                                    .sin_addr = { htonl(INADDR_LOOPBACK) } };
    for (int i = 0; i < patient(200); i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (!connect(fd, (const struct sockaddr *)&at, sizeof at))
            return fd;
        close(fd);
        usleep(10000);
    }
    fail_msg("nobody listens on port %d", port);
    return -1;
}

void meeting_make(meeting_rank *ranks, int size, int kind)
{
    static int made;
    int port = kind == MEETING_TCP ? meeting_port() : 29500;
    char token[64];
    snprintf(token, sizeof token, "test %d %d", (int)getpid(), made++);
    for (int r = 0; r < size; r++) {
        ranks[r] = (meeting_rank){ .timeout_ms = 10000 };
        ranks[r].launch = (imx_launch_env){ .launcher = "test",
                                            .rank = r,
                                            .size = size,
                                            .local_rank = -1,
                                            .local_size = -1,
                                            .one_host = kind == MEETING_UNIX,
                                            .address = "127.0.0.1",
                                            .port = port,
                                            .identified = true };
        strcpy(ranks[r].env.token, token);
    }
}

int meeting_count_fds(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        count++;
    closedir(dir);
    return count;
}

imbrex_status meeting_swap(imx_bootstrap *bootstrap)
{
    const imbrex_bootstrap *b = imx_bootstrap_public(bootstrap);
    int all[MOST_RANKS];
    if (b->allgather(b->ctx, &b->rank, all, sizeof b->rank))
        return imx_bootstrap_status(bootstrap);
    for (int r = 0; r < b->size; r++)
        if (all[r] != r)
            return imx_fail(IMBREX_INTERNAL, "blob %d holds %d", r, all[r]);
    return IMBREX_OK;
}

static void play(const meeting_rank *rank, meeting_result *result)
{
    usleep((useconds_t)patient(rank->delay_ms) * 1000);
    if (rank->user && setresuid(rank->user, rank->user, rank->user))
        _exit(1);
    int before = meeting_count_fds();
    int64_t begun = imx_socket_now_ms();
    imx_bootstrap *bootstrap = NULL;
    imbrex_status status = imx_bootstrap_open(&rank->launch, &rank->env, rank->sequence,
                                              patient(rank->timeout_ms), &bootstrap);
    if (status == IMBREX_OK)
        status = rank->then ? rank->then(bootstrap) : meeting_swap(bootstrap);
    result->took_ms = (imx_socket_now_ms() - begun) / patient(1);
    imx_bootstrap_destroy(bootstrap);
    imx_host_close_failed();
    result->leaked = meeting_count_fds() - before;
    result->status = status;
    snprintf(result->text, sizeof result->text, "%s", status ? imbrex_error() : "");
    result->ended = true;
}

meeting_ranks *meeting_start(const meeting_rank *ranks, int count)
{
    if (!results)
        results = mmap(NULL, MOST_RANKS * sizeof *results, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(results, 0, MOST_RANKS * sizeof *results);
    assert_in_range(count, 1, MOST_RANKS);
    meeting_ranks *meeting = calloc(1, sizeof *meeting);
    meeting->count = count;
    for (int i = 0; i < count; i++) {
        meeting->ranks[i] = ranks[i];
        meeting->pids[i] = fork();
        if (meeting->pids[i] == 0) {
            alarm((unsigned)patient(30));
            play(&ranks[i], &results[i]);
            _exit(0);
        }
        assert_true(meeting->pids[i] > 0);
    }
    return meeting;
}

const meeting_result *meeting_join(meeting_ranks *meeting)
{
    for (int i = 0; i < meeting->count; i++) {
        int status;
        assert_int_equal(waitpid(meeting->pids[i], &status, 0), meeting->pids[i]);
        if (meeting->ranks[i].killed) {
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
            continue;
        }
        if (!WIFEXITED(status) || !results[i].ended)
            fail_msg("rank %d of the test ended with status %#x", i, status);
        if (results[i].leaked)
            fail_msg("rank %d of the test left %d descriptors open", i, results[i].leaked);
    }
    free(meeting);
    return results;
}

const meeting_result *meeting_run(const meeting_rank *ranks, int count)
{
    return meeting_join(meeting_start(ranks, count));
}

void meeting_check_status(const meeting_result *result, imbrex_status status)
{
    if (result->status != status)
        fail_msg("%s, want %s: \"%s\"", imbrex_status_name(result->status),
                 imbrex_status_name(status), result->text);
}

void meeting_check_text(const meeting_result *result, const char *part)
{
    if (!strstr(result->text, part))
        fail_msg("\"%s\" does not say \"%s\"", result->text, part);
}

void meeting_check_limit(const meeting_result *result, int64_t ms)
{
    char part[40];
    snprintf(part, sizeof part, "within %lld ms", (long long)patient(ms));
    meeting_check_text(result, part);
}

void meeting_check_all_ok(const meeting_result *all, int count)
{
    for (int i = 0; i < count; i++)
        meeting_check_status(&all[i], IMBREX_OK);
}

void meeting_check_sizes(meeting_body *then)
{
    static const int sizes[] = { 1, 2, 3, 8 };
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            meeting_rank ranks[8];
            meeting_make(ranks, sizes[i], kind);
            for (int r = 0; r < sizes[i]; r++)
                ranks[r].then = then;
            meeting_check_all_ok(meeting_run(ranks, sizes[i]), sizes[i]);
        }
    }
}
