/* test_faults.c - the n-th system call or allocation of one rank fails, for n = 1, 2, 3 ... until
 * all goes well: the right status, nothing lost, no rank that waits for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/imx.h"
#include "bootstrap/host.h"
#include "imbrex_device.h"
#include "meeting.h"
#include "ranks.h"
#include "reference.h"
#include "sanitized.h"

enum { TIMEOUT_MS = 600, NEVER = -1 };

/* ---- the table whose n-th call fails --------------------------------------------------------- */

static imx_sys_table real;
static _Thread_local int countdown = NEVER; /* of this thread; 0: this call fails */
static _Thread_local const char *failed_call;
static const char *only; /* NULL: all calls count */

static bool fails(const char *call, int error)
{
    if (countdown == NEVER || (only && strcmp(call, only) != 0) || countdown-- > 0)
        return false;
    failed_call = call;
    errno = error;
    return true;
}

static void *fail_calloc(size_t count, size_t bytes)
{
    return fails("calloc", ENOMEM) ? NULL : real.calloc(count, bytes);
}

static void *fail_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails("aligned_alloc", ENOMEM) ? NULL : real.aligned_alloc(alignment, bytes);
}

static int fail_memfd_create(const char *name, unsigned flags)
{
    return fails("memfd_create", EMFILE) ? -1 : real.memfd_create(name, flags);
}

static int fail_ftruncate(int fd, long bytes)
{
    return fails("ftruncate", ENOMEM) ? -1 : real.ftruncate(fd, bytes);
}

static int fail_fallocate(int fd, long at, long bytes)
{
    return fails("fallocate", ENOSPC) ? -1 : real.fallocate(fd, at, bytes);
}

static void *fail_mmap(void *at, size_t bytes, int protection, int flags, int fd, long offset)
{
    return fails("mmap", ENOMEM) ? MAP_FAILED : real.mmap(at, bytes, protection, flags, fd, offset);
}

static int fail_dup(int fd)
{
    return fails("dup", EMFILE) ? -1 : real.dup(fd);
}

static int fail_socket(int domain, int type, int protocol)
{
    return fails("socket", EMFILE) ? -1 : real.socket(domain, type, protocol);
}

static int fail_bind(int fd, const struct sockaddr *address, unsigned length)
{
    return fails("bind", ENOBUFS) ? -1 : real.bind(fd, address, length);
}

static int fail_listen(int fd, int backlog)
{
    return fails("listen", ENOBUFS) ? -1 : real.listen(fd, backlog);
}

static int fail_accept(int fd, struct sockaddr *address, unsigned *length)
{
    return fails("accept", EMFILE) ? -1 : real.accept(fd, address, length);
}

static int fail_connect(int fd, const struct sockaddr *address, unsigned length)
{
    return fails("connect", EAGAIN) ? -1 : real.connect(fd, address, length);
}

static long fail_sendmsg(int fd, const struct msghdr *message, int flags)
{
    return fails("sendmsg", ENOBUFS) ? -1 : real.sendmsg(fd, message, flags);
}

static long fail_recvmsg(int fd, struct msghdr *message, int flags)
{
    return fails("recvmsg", ENOMEM) ? -1 : real.recvmsg(fd, message, flags);
}

static int fail_poll(struct pollfd *fds, unsigned long count, int timeout_ms)
{
    return fails("poll", ENOMEM) ? -1 : real.poll(fds, count, timeout_ms);
}

static int fail_eventfd(unsigned value, int flags)
{
    return fails("eventfd", EMFILE) ? -1 : real.eventfd(value, flags);
}

static int fail_thread_create(unsigned long *thread, void *(*run)(void *), void *arg)
{
    return fails("thread_create", EAGAIN) ? EAGAIN : real.thread_create(thread, run, arg);
}

static const imx_sys_table failing = { fail_calloc,    fail_aligned_alloc, fail_memfd_create,
                                       fail_ftruncate, fail_fallocate,     fail_mmap,
                                       fail_dup,       fail_socket,        fail_bind,
                                       fail_listen,    fail_accept,        fail_connect,
                                       fail_sendmsg,   fail_recvmsg,       fail_poll,
                                       fail_eventfd,   fail_thread_create };

/* ---- all that a rank does -------------------------------------------------------------------- */

static imbrex_status run_all(imbrex_group *group, float *a, float *b, float *c)
{
    static const char *const ops[] = { "all_gather", "reduce_scatter", "ag_gemm", "gemm_rs",
                                       "all_to_all", "all_reduce",     "gemm_ar" };
    for (int i = 0; i < 7; i++) {
        bool product = strstr(ops[i], "gemm") != NULL;
        op_case shape = { .op = ops[i],
                          .m = 16,
                          .n = 8,
                          .k = product ? 4 : 0,
                          .dtype = IMBREX_F32,
                          .algorithm = i % 2 ? "sequential" : "copy",
                          .sms = 2 };
        imbrex_plan *plan;
        IMX_TRY(case_plan(group, &shape, &plan));
        IMX_TRY(
            imbrex_plan_run(plan, &(imbrex_args){ .a = a, .b = product ? b : NULL, .c = c }, NULL));
    }
    return imbrex_stream_sync(group, NULL);
}

static imbrex_status epoch(imbrex_group *group)
{
    float *matrices =
        calloc(3, 16 * 8 * sizeof *matrices); /* outlives the group's streams: below */
    void *memory;
    imbrex_stream stream;
    imbrex_group *child = NULL;
    float *a = matrices, *b = a + 16 * 8, *c = b + 16 * 8;
    imbrex_status status = imbrex_mem_alloc(group, 100, &memory);
    if (status == IMBREX_OK)
        status = imbrex_group_split(group, 1, 0, &child);
    if (status == IMBREX_OK)
        status = imbrex_barrier(child, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(child, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_create(group, &stream);
    if (status == IMBREX_OK)
        status = imbrex_silu_mul(group, IMBREX_F32, 4, 4, a, b, stream);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, stream);
    if (status == IMBREX_OK)
        status = imbrex_trace(group, 100);
    if (status == IMBREX_OK)
        status = run_all(group, a, b, c);
    /* A rank that lacks something goes; what the group still has under way it waits for. */
    char why[512];
    snprintf(why, sizeof why, "%s", imx_status_detail());
    imbrex_group_destroy(child);
    imbrex_group_destroy(group);
    free(matrices);
    return status == IMBREX_OK ? status : imx_fail(status, "%s", why);
}

/* ---- one attempt ----------------------------------------------------------------------------- */

/* WELL: the victim made fewer than n calls.  SLOW: likewise, and yet the limit was over. */
enum { FAILED, WELL, SLOW };

typedef struct attempt {
    int victim, n;
    bool threads;
    int timeout_ms;
    int *outcome; /* shared with processes */
} attempt;

static int try(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const attempt *at = ctx;
    bool victim = rank == at->victim;
    int fds = meeting_count_fds();
    int64_t begin_ns = imbrexd_now_ns();
    failed_call = NULL;
    countdown = victim ? at->n : NEVER;
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .timeout_ms = patient(at->timeout_ms) };
    imbrex_status status = imbrex_group_create(&desc, &group);
    if (status == IMBREX_OK)
        status = epoch(group);
    countdown = NEVER;
    const char *call = failed_call ? failed_call : "nothing";
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(took_ms < patient(8 * at->timeout_ms), "call %d, %s: took %lld ms", at->n, call,
               (long long)took_ms);
    imx_host_close_failed(); /* where rank 0 tells who comes too late */
    RANK_CHECK(at->threads || meeting_count_fds() == fds,
               "call %d, %s: %d descriptors before, %d after", at->n, call, fds,
               meeting_count_fds());
    if (!victim) {
        RANK_CHECK(status == IMBREX_OK || status == IMBREX_PEER || status == IMBREX_TIMEOUT,
                   "call %d: the other rank has %s: %s", at->n, imbrex_status_name(status),
                   imbrex_error());
        return 0;
    }
    bool late = status == IMBREX_TIMEOUT || status == IMBREX_PEER;
    bool slow = !failed_call && late && at->timeout_ms == TIMEOUT_MS;
    *at->outcome = failed_call ? FAILED : slow ? SLOW : WELL;
    if (slow)
        return 0;
    RANK_CHECK(failed_call || status == IMBREX_OK, "nothing failed, and yet: %s", imbrex_error());
    bool memory = strstr(call, "alloc") /* and fallocate */ || !strcmp(call, "mmap") ||
                  !strcmp(call, "ftruncate") || !strcmp(call, "poll") || !strcmp(call, "recvmsg");
    RANK_CHECK(status == IMBREX_OK || status == (memory ? IMBREX_NO_MEMORY : IMBREX_SYSTEM),
               "call %d, %s: %s: %s", at->n, call, imbrex_status_name(status), imbrex_error());
    return 0;
}

/* Until the victim meets no failure.  The limit is short, since others wait for the victim as long;
 * where it is over and nothing failed, the machine may have been slow, and gets more time once.
 * Where each process looks for leaks at its end processes take every fifth call, each victim
 * others. */
static void until_it_goes_well(int size, int victim, bool processes)
{
    int *outcome =
        mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(outcome != MAP_FAILED);
    int step = processes && SANITIZED_ADDRESSES ? 5 : 1;
    int n = victim % step, fds = meeting_count_fds();
    while (n < 1000 && *outcome != WELL) {
        bool again = *outcome == SLOW;
        attempt at = { victim, n, !processes, again ? 20 * TIMEOUT_MS : TIMEOUT_MS, outcome };
        ranks_desc desc = { .size = size, .processes = processes, .meeting_s = again ? 20 : 1 };
        assert_int_equal(ranks_run_bare(&desc, try, &at), 0);
        assert_int_equal(meeting_count_fds(), fds);
        n += *outcome == FAILED ? step : 0;
    }
    assert_int_equal(*outcome, WELL);
    assert_true(n > 40); /* it did go through the calls */
    munmap(outcome, sizeof *outcome);
}

static void one_rank(void **state)
{
    (void)state;
    until_it_goes_well(1, 0, false);
}

static void one_of_two_threads(void **state)
{
    (void)state;
    until_it_goes_well(2, 0, false);
}

static void one_of_two_processes(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    until_it_goes_well(2, 0, true);
}

static void other_of_two_processes(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    until_it_goes_well(2, 1, true);
}

/* ---- after a failure ------------------------------------------------------------------------- */

/* Memory that could not be had on rank 0: all hear of it, and the next piece is the right one. */
static int next_memory(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    static const struct {
        const char *call;
        int n;
    } lost[] = { { "mmap", 0 }, { "mmap", 1 }, { "mmap", 2 }, { "dup", 0 }, { "memfd_create", 0 } };
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
        void *memory, *peer;
        only = lost[i].call;
        countdown = rank == 0 ? lost[i].n : NEVER;
        imbrex_status status = imbrex_mem_alloc(group, 64, &memory);
        countdown = NEVER;
        RANK_CHECK(status == (rank    ? IMBREX_PEER
                              : i < 3 ? IMBREX_NO_MEMORY
                                      : IMBREX_SYSTEM),
                   "%s %d: %s: %s", only, lost[i].n, imbrex_status_name(status), imbrex_error());
        RANK_CHECK(rank == 0 || strstr(imbrex_error(), "rank 0 failed: cannot "), "%s",
                   imbrex_error());
        RANK_OK(imbrex_mem_alloc(group, 64, &memory));
        for (int r = 0; r < ranks; r++) {
            RANK_OK(imbrex_mem_peer(group, memory, r, &peer));
            ((int *)peer)[rank] = 10 * r + rank + 1;
        }
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        for (int r = 0; r < ranks; r++)
            RANK_CHECK(((int *)memory)[r] == 10 * rank + r + 1, "after %s %d, rank %d wrote %d",
                       only, lost[i].n, r, ((int *)memory)[r]);
    }
    only = NULL;
    return 0;
}

static void memory_after_a_failure(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3, .processes = true };
    assert_int_equal(ranks_run(&desc, next_memory, NULL), 0);
}

/* ---- a queue that strangers fill ------------------------------------------------------------- */

/* Where nobody accepts, and no more can wait. */
static struct sockaddr_un full;
static socklen_t full_length = sizeof full;
static int times_full; /* so often a rank comes there instead of to its peer */

static int connect_to_full(int fd, const struct sockaddr *address, unsigned length)
{
    int type = 0;
    socklen_t bytes = sizeof type;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes);
    if (type != SOCK_SEQPACKET || times_full == 0)
        return real.connect(fd, address, length);
    times_full--;
    return real.connect(fd, (const struct sockaddr *)&full, full_length);
}

static int meets_or_is_late(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    bool late = *(const bool *)ctx;
    imbrex_group_desc desc = { .bootstrap = bootstrap,
                               .timeout_ms = late ? patient(TIMEOUT_MS) : 10000 };
    imbrex_group *group = NULL;
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_status status = imbrex_group_create(&desc, &group);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(status == (late ? IMBREX_TIMEOUT : IMBREX_OK), "rank %d: %s: %s", rank,
               imbrex_status_name(status), imbrex_error());
    imbrex_group_destroy(group);
    RANK_CHECK(!late || took_ms < patient(8 * TIMEOUT_MS), "took %lld ms", (long long)took_ms);
    RANK_CHECK(!late || rank == 0 || strstr(imbrex_error(), "rank 0 did not take a connection"),
               "rank %d: %s", rank, imbrex_error());
    return 0;
}

static void a_full_queue_is_not_waited_for_for_ever(void **state)
{
    (void)state;
    int fds[8], listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    full.sun_family = AF_UNIX;
    assert_int_equal(bind(listener, (struct sockaddr *)&full, sizeof full.sun_family), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&full, &full_length), 0);
    assert_int_equal(listen(listener, 0), 0);
    for (int i = 0; i < 8; i++) {
        fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(fds[i], (struct sockaddr *)&full, full_length);
    }
    imx_sys.connect = connect_to_full;
    for (int i = 0; i < 2; i++) {
        bool late = i == 1;
        ranks_desc desc = { .size = 2, .processes = true };
        times_full = late ? INT_MAX : 3;
        assert_int_equal(ranks_run_bare(&desc, meets_or_is_late, &late), 0);
    }
    imx_sys.connect = fail_connect;
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    close(listener);
}

/* ---- a peer that is gone --------------------------------------------------------------------- */

/* Of a listener that is closed, as a rank's is when its process has ended. */
static struct sockaddr_un closed;
static socklen_t closed_length = sizeof closed;

static int connect_to_closed(int fd, const struct sockaddr *address, unsigned length)
{
    int type = 0;
    socklen_t bytes = sizeof type;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes);
    return type != SOCK_SEQPACKET
               ? real.connect(fd, address, length)
               : real.connect(fd, (const struct sockaddr *)&closed, closed_length);
}

static int misses_a_peer(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .timeout_ms = patient(TIMEOUT_MS) };
    imbrex_group *group;
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status == IMBREX_PEER || (rank == 0 && status == IMBREX_TIMEOUT), "rank %d: %s: %s",
               rank, imbrex_status_name(status), imbrex_error());
    RANK_CHECK(rank == 0 || strstr(imbrex_error(), "rank 0 has left"), "%s", imbrex_error());
    return 0;
}

static void who_listens_no_more_has_left(void **state)
{
    (void)state;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    closed.sun_family = AF_UNIX;
    assert_int_equal(bind(listener, (struct sockaddr *)&closed, sizeof closed.sun_family), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&closed, &closed_length), 0);
    assert_int_equal(listen(listener, 8), 0);
    close(listener);
    imx_sys.connect = connect_to_closed;
    ranks_desc desc = { .size = 2, .processes = true };
    assert_int_equal(ranks_run_bare(&desc, misses_a_peer, NULL), 0);
    imx_sys.connect = fail_connect;
}

int main(void)
{
    real = imx_sys;
    imx_sys = failing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(one_of_two_threads),
        cmocka_unit_test(one_of_two_processes),
        cmocka_unit_test(other_of_two_processes),
        cmocka_unit_test(memory_after_a_failure),
        cmocka_unit_test(a_full_queue_is_not_waited_for_for_ever),
        cmocka_unit_test(who_listens_no_more_has_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
