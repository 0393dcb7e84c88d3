/* test_fault_relay.c - connections between nodes that say why a group has failed: it is heard of at
 * once, and a group meets without them where they cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/imx.h"
#include "bootstrap/door.h"
#include "imbrex_device.h"
#include "net_threads.h"
#include "ranks.h"

static int run_with(int ranks, int per_node, int64_t timeout_ms, rank_main run, void *ctx)
{
    ranks_desc desc = { .size = ranks, .node_ranks = per_node, .timeout_ms = timeout_ms };
    net_threads_reset();
    return ranks_run(&desc, run, ctx);
}

/* ---- a fault --------------------------------------------------------------------------------- */

enum { NEWS_MS = 20000, NEWS_MOST_MS = 3000 };

/* Rank 4, not the first of its node, ends all; nobody waits for a deadline. */
static int hears_of_an_abort(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    imbrex_coll_desc desc = { .m = 60, .n = 16, .dtype = IMBREX_F32 };
    float a[600] = { 0 }, c[1024];
    imbrex_args args = { .a = a, .c = c };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plan));
    int64_t begin_ns = imbrexd_now_ns();
    if (rank == 4)
        imbrex_group_abort_because(group, "the input has NaN");
    imbrex_status status = IMBREX_OK;
    while (status == IMBREX_OK && imbrexd_now_ns() - begin_ns < NEWS_MS * (int64_t)1000000) {
        status = imbrex_plan_run(plan, &args, NULL);
        if (status == IMBREX_OK)
            status = imbrex_stream_sync(group, NULL);
    }
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(status == IMBREX_PEER &&
                   strstr(imbrex_error(), "imbrex_group_abort: the input has NaN"),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(took_ms < patient(NEWS_MOST_MS), "rank %d heard of it after %lld ms", rank,
               (long long)took_ms);
    if (rank < 3)
        RANK_CHECK(strstr(imbrex_error(), "rank 4, on node 1 ("), "no node in '%s'",
                   imbrex_error());
    return 0;
}

static void faults_travel_between_nodes(void **state)
{
    (void)state;
    assert_int_equal(run_with(9, 3, NEWS_MS, hears_of_an_abort, NULL), 0);
}

static int aborts_and_leaves(imbrex_group *group, void *ctx)
{
    (void)ctx;
    if (imbrex_group_rank(group) == 1) {
        imbrex_group_abort_because(group, "no time to lose");
        return 0; /* and the group is destroyed */
    }
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_status status;
    while ((status = imbrex_group_status(group)) == IMBREX_OK &&
           imbrexd_now_ns() - begin_ns < patient(NEWS_MOST_MS) * (int64_t)1000000)
        usleep(1000);
    RANK_CHECK(status == IMBREX_PEER && strstr(imbrex_error(), "no time to lose"), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    return 0;
}

/* Threads that begin late: the relay when its rank has left already. */
static int (*real_thread_create)(unsigned long *thread, void *(*run)(void *), void *arg);

typedef struct late_thread {
    void *(*run)(void *);
    void *arg;
} late_thread;

static void *run_late(void *arg)
{
    late_thread late = *(late_thread *)arg;
    free(arg);
    usleep(300000);
    return late.run(late.arg);
}

static int create_late(unsigned long *thread, void *(*run)(void *), void *arg)
{
    late_thread *late = malloc(sizeof *late);
    *late = (late_thread){ run, arg };
    return real_thread_create(thread, run_late, late);
}

static void the_fault_of_who_leaves_at_once(void **state)
{
    (void)state;
    real_thread_create = imx_sys.thread_create;
    imx_sys.thread_create = create_late;
    assert_int_equal(run_with(2, 1, NEWS_MS, aborts_and_leaves, NULL), 0);
    imx_sys.thread_create = real_thread_create;
}

/* ---- somebody in between --------------------------------------------------------------------- */

/* A bit of what a relay receives is another. */
static long (*real_recvmsg)(int fd, struct msghdr *message, int flags);

static long recvmsg_of_another(int fd, struct msghdr *message, int flags)
{
    char thread[16] = "";
    prctl(PR_GET_NAME, thread);
    long got = real_recvmsg(fd, message, flags);
    if (got > 0 && strcmp(thread, "imbrex-relay") == 0)
        ((char *)message->msg_iov[0].iov_base)[got - 1] ^= 1;
    return got;
}

static int hears_a_forgery(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_status status;
    if (imbrex_group_rank(group) == 2)
        imbrex_group_abort(group);
    while ((status = imbrex_group_status(group)) == IMBREX_OK &&
           imbrexd_now_ns() - begin_ns < patient(NEWS_MOST_MS) * (int64_t)1000000)
        usleep(1000);
    RANK_CHECK(status == IMBREX_PEER, "%s", imbrex_status_name(status));
    if (imbrex_group_rank(group) < 2)
        RANK_CHECK(strstr(imbrex_error(), "what came to rank 0") &&
                       strstr(imbrex_error(), "as rank 2's fault relay, on node 1") &&
                       strstr(imbrex_error(), "is not what that rank sent"),
                   "'%s'", imbrex_error());
    return 0;
}

static void a_fault_that_somebody_changes(void **state)
{
    (void)state;
    real_recvmsg = imx_sys.recvmsg;
    imx_sys.recvmsg = recvmsg_of_another;
    assert_int_equal(run_with(4, 2, NEWS_MS, hears_a_forgery, NULL), 0);
    imx_sys.recvmsg = real_recvmsg;
}

/* ---- strangers at the door ------------------------------------------------------------------- */

enum { STRANGERS = 200 };
static int strangers[STRANGERS], stranger_count;
static int (*real_listen)(int fd, int backlog);

/* They come as the door opens, before any rank, and are silent, or noisy, and stay. */
static int listen_among_strangers(int fd, int backlog)
{
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    int error = real_listen(fd, backlog);
    if (getsockname(fd, (struct sockaddr *)&at, &length) || at.sin_family != AF_INET)
        return error;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (stranger_count < STRANGERS) {
        int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(stranger, (struct sockaddr *)&at, length))
            abort();
        if (stranger_count % 3 == 2)
            (void)!send(stranger, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
        strangers[stranger_count++] = stranger;
    }
    return error;
}

static void strangers_hold_up_nobody(void **state)
{
    (void)state;
    real_listen = imx_sys.listen;
    imx_sys.listen = listen_among_strangers;
    int64_t begin_ns = imbrexd_now_ns();
    int failed = run_with(9, 3, NEWS_MS, hears_of_an_abort, NULL);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    imx_sys.listen = real_listen;
    assert_int_equal(stranger_count, STRANGERS);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    assert_int_equal(failed, 0);
    assert_in_range(took_ms, 0, patient(NEWS_MOST_MS));
}

/* ---- rank 0 cannot be reached ---------------------------------------------------------------- */

/* A door at which nobody answers, though it is there: its queue is full. */
static struct sockaddr_in dead_end;
static int64_t called_ns; /* atomic; by rank 2, the first of node 1 */
static int (*real_connect)(int fd, const struct sockaddr *address, unsigned length);

static int connect_to_dead_end(int fd, const struct sockaddr *address, unsigned length)
{
    __atomic_store_n(&called_ns, called_ns ? called_ns : imbrexd_now_ns(), __ATOMIC_RELAXED);
    return address->sa_family == AF_INET
               ? real_connect(fd, (const struct sockaddr *)&dead_end, sizeof dead_end)
               : real_connect(fd, address, length);
}

/* It waits half of the group's limit, not 1000 ms for each of rank 0's addresses. */
static int meets_soon(imbrex_group *group, void *ctx)
{
    (void)ctx;
    if (imbrex_group_rank(group) == 2) {
        int64_t begin_ns = __atomic_load_n(&called_ns, __ATOMIC_RELAXED);
        int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
        RANK_CHECK(begin_ns && took_ms < patient(900), "calling rank 0 took %lld ms",
                   (long long)took_ms);
    }
    return 0;
}

static int count_connects(int fd, const struct sockaddr *address, unsigned length)
{
    (void)fd, (void)address, (void)length;
    called_ns++;
    errno = ECONNREFUSED;
    return -1;
}

/* An offer says how many addresses are in it, and there is room for 8. */
static void an_offer_of_too_many_addresses(void **state)
{
    (void)state;
    static const int32_t counts[] = { 1000000, 9, -1, 3 };
    static const int64_t want[] = { 8, 8, 0, 3 };
    real_connect = imx_sys.connect;
    imx_sys.connect = count_connects;
    for (int i = 0; i < 4; i++) {
        imx_door_offer offer = { .count = counts[i], .port = 1 };
        called_ns = 0;
        assert_int_equal(imx_door_call(&offer, imx_socket_deadline(1000)), -1);
        assert_int_equal(called_ns, want[i]);
    }
    called_ns = 0;
    imx_sys.connect = real_connect;
}

static void a_group_meets_without_a_relay(void **state)
{
    (void)state;
    socklen_t length = sizeof dead_end;
    int fds[8], listener = socket(AF_INET, SOCK_STREAM, 0);
    dead_end =
        (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    assert_int_equal(bind(listener, (struct sockaddr *)&dead_end, length), 0);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&dead_end, &length), 0);
    for (int i = 0; i < 8; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fds[i], (struct sockaddr *)&dead_end, length);
    }
    real_connect = imx_sys.connect;
    imx_sys.connect = connect_to_dead_end;
    assert_int_equal(run_with(4, 2, 100, meets_soon, NULL), 0);
    imx_sys.connect = real_connect;
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    close(listener);
}

/* ---- rank 0 lets nobody in ------------------------------------------------------------------- */

static int (*real_accept)(int fd, struct sockaddr *address, unsigned *length);
static int accept_errno, accepts; /* accepts: atomic */

static int accept_nobody(int fd, struct sockaddr *address, unsigned *length)
{
    (void)fd, (void)address, (void)length;
    __atomic_add_fetch(&accepts, 1, __ATOMIC_RELAXED);
    errno = accept_errno;
    return -1;
}

static int only_meets(imbrex_group *group, void *ctx)
{
    (void)ctx;
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

/* Whoever called stays at the door: rank 0 must not look again and again, for ever. */
static void a_rank_0_without_descriptors_goes_without_a_relay(void **state)
{
    (void)state;
    static const int errors[] = { EMFILE, ENFILE, ENOMEM, ECONNABORTED };
    real_accept = imx_sys.accept;
    imx_sys.accept = accept_nobody;
    for (int i = 0; i < 4; i++) {
        accept_errno = errors[i];
        accepts = 0;
        assert_int_equal(run_with(4, 2, 2000, only_meets, NULL), 0);
        assert_true(errors[i] == ECONNABORTED ? accepts > 1 : accepts == 1);
    }
    imx_sys.accept = real_accept;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_travel_between_nodes),
        cmocka_unit_test(the_fault_of_who_leaves_at_once),
        cmocka_unit_test(a_fault_that_somebody_changes),
        cmocka_unit_test(strangers_hold_up_nobody),
        cmocka_unit_test(an_offer_of_too_many_addresses),
        cmocka_unit_test(a_group_meets_without_a_relay),
        cmocka_unit_test(a_rank_0_without_descriptors_goes_without_a_relay),
    };
    imx_net_of_test = &net_threads;
    return cmocka_run_group_tests_name("fault_relay", tests, NULL, NULL);
}
