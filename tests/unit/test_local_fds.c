/* test_local_fds.c - ranks as processes of one host: who may connect to them, a rank that is late
 * to pass its memory, and what is left in their sockets. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/imx.h"
#include "ranks.h"

enum { RANKS = 3, TIMEOUT_MS = 1600, LATE_MS = 1200, BYTES = 1 << 16 };

static imx_sys_table real;

static int run(rank_main body, int64_t timeout_ms)
{
    ranks_desc desc = { .size = RANKS, .processes = true, .timeout_ms = timeout_ms };
    return ranks_run(&desc, body, NULL);
}

/* Symmetric memory of all ranks, in which each finds what the one before it has written. */
static int shares(imbrex_group *group, int seed)
{
    int rank = imbrex_group_rank(group), *memory = NULL;
    RANK_OK(imbrex_mem_alloc(group, BYTES, (void **)&memory));
    int *next = NULL;
    RANK_OK(imbrex_mem_peer(group, memory, (rank + 1) % RANKS, (void **)&next));
    __atomic_store_n(next, seed + rank, __ATOMIC_RELEASE);
    RANK_CHECK(ranks_meet(group) == 0, "rank %d: the others did not come", rank);
    int got = __atomic_load_n(memory, __ATOMIC_ACQUIRE);
    RANK_CHECK(got == seed + (rank + RANKS - 1) % RANKS, "rank %d found %d", rank, got);
    imbrex_mem_free(group, memory);
    return 0;
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* What a rank says first to one that it connects to. */
typedef struct hello {
    uint8_t key[16];
    int32_t rank;
} hello;

enum { STRANGERS = 4 };
static int strangers[STRANGERS], stranger_count;

static bool passes_descriptors(int fd)
{
    int type = 0;
    socklen_t size = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

/* As soon as a rank listens, and before the true ones, processes of this user say that they are the
 * last one, with a key that they guessed. */
static int listen_to_strangers(int fd, int backlog)
{
    static const size_t bytes[STRANGERS] = { sizeof(hello), sizeof(hello), 7, 0 };
    const hello greeting = { .key = { 1, 2, 3 }, .rank = RANKS - 1 };
    struct sockaddr_un at;
    socklen_t length = sizeof at;
    int error = real.listen(fd, backlog);
    if (error || !passes_descriptors(fd) || getsockname(fd, (struct sockaddr *)&at, &length))
        return error;
    for (stranger_count = 0; stranger_count < STRANGERS; stranger_count++) {
        int stranger = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (connect(stranger, (struct sockaddr *)&at, length) != 0)
            abort();
        if (bytes[stranger_count] > 0)
            (void)!send(stranger, &greeting, bytes[stranger_count], MSG_NOSIGNAL);
        else
            shutdown(stranger, SHUT_WR); /* silent ones are waited for */
        strangers[stranger_count] = stranger;
    }
    return error;
}

static int stays_among_its_own(imbrex_group *group, void *ctx)
{
    (void)ctx;
    char byte;
    RANK_CHECK(stranger_count == STRANGERS, "%d strangers came", stranger_count);
    RANK_CHECK(shares(group, 100) == 0, "rank %d", imbrex_group_rank(group));
    for (int i = 0; i < STRANGERS; i++)
        RANK_CHECK(recv(strangers[i], &byte, 1, MSG_DONTWAIT) <= 0, "stranger %d heard", i);
    return 0;
}

static void a_guessed_key_is_of_no_use(void **state)
{
    (void)state;
    imx_sys.listen = listen_to_strangers;
    assert_int_equal(run(stays_among_its_own, 20000), 0);
    imx_sys.listen = real.listen;
}

/* ---- a rank that is late --------------------------------------------------------------------- */

static bool late;

/* Of the memory's descriptor, before it is passed. */
static int late_dup(int fd)
{
    if (late)
        usleep((useconds_t)patient(LATE_MS) * 1000);
    late = false;
    return real.dup(fd);
}

/* Half of the limit is for passing memory: the other half is left to say who was late.  The next
 * piece is that of the next call, and not what came too late. */
static int hears_who_is_late(imbrex_group *group, void *ctx)
{
    (void)ctx;
    void *memory = NULL;
    late = imbrex_group_rank(group) == 1;
    imbrex_status status = imbrex_mem_alloc(group, BYTES, &memory);
    RANK_CHECK(status == IMBREX_TIMEOUT || status == IMBREX_PEER, "%s: %s",
               imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "rank 1 did not pass its memory in time"), "%s",
               imbrex_error());
    RANK_CHECK(!memory && !late, "rank %d", imbrex_group_rank(group));
    RANK_OK(imbrex_group_status(group));
    for (int i = 2; i < 5; i++)
        RANK_CHECK(shares(group, 100 * i) == 0, "piece %d", i);
    return 0;
}

static void a_rank_that_is_late_is_named(void **state)
{
    (void)state;
    imx_sys.dup = late_dup;
    assert_int_equal(run(hears_who_is_late, TIMEOUT_MS), 0);
    imx_sys.dup = real.dup;
}

/* ---- users ----------------------------------------------------------------------------------- */

static bool is_other;

/* From the first socket of its own on, by which memory passes: the ranks have met then. */
static int socket_of_another_user(int domain, int type, int protocol)
{
    if (is_other && (type & 0xf) == SOCK_SEQPACKET && seteuid(65534) != 0)
        return -1;
    return real.socket(domain, type, protocol);
}

static int hears_of_another_user(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const bool *late_one = ctx;
    is_other = rank == 2 && *late_one;
    if (rank == 2 && !*late_one && seteuid(65534) != 0)
        return 1;
    imbrex_group *group = NULL;
    const imbrex_group_desc desc = { .bootstrap = bootstrap,
                                     .device = "cpu",
                                     .timeout_ms = patient(TIMEOUT_MS) };
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK((status == IMBREX_PEER || status == IMBREX_TIMEOUT) && !group, "%s",
               imbrex_status_name(status));
    RANK_CHECK(strstr(imbrex_error(), "user 65534") &&
                   strstr(imbrex_error(), "run all ranks as one user"),
               "rank %d: %s", rank, imbrex_error());
    /* As it was: what looks for leaks at the end has to look into this process. */
    return rank == 2 && (seteuid(0) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0);
}

static void ranks_of_two_users_hear_it(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    ranks_desc desc = { .size = RANKS, .processes = true };
    imx_sys.socket = socket_of_another_user;
    for (int i = 0; i < 2; i++)
        assert_int_equal(ranks_run_bare(&desc, hears_of_another_user, &(bool){ i == 0 }), 0);
    imx_sys.socket = real.socket;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static int listens_no_more(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int connected = 0;
    for (int fd = 3; fd < 1024; fd++) {
        int listens = 0;
        socklen_t size = sizeof listens;
        if (!passes_descriptors(fd))
            continue;
        RANK_CHECK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && !listens,
                   "rank %d still listens", imbrex_group_rank(group));
        connected++;
    }
    RANK_CHECK(connected == RANKS - 1, "%d sockets", connected);
    return 0;
}

static void nobody_listens_once_all_are_there(void **state)
{
    (void)state;
    assert_int_equal(run(listens_no_more, 20000), 0);
}

int main(void)
{
    if (!RANKS_PROCESSES)
        return 77; /* skipped: it is about processes */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_guessed_key_is_of_no_use),
        cmocka_unit_test(a_rank_that_is_late_is_named),
        cmocka_unit_test(ranks_of_two_users_hear_it),
        cmocka_unit_test(nobody_listens_once_all_are_there),
    };
    alarm((unsigned)patient(120));
    real = imx_sys;
    return cmocka_run_group_tests_name("local_fds", tests, NULL, NULL);
}
