/* test_collective_failure.c - collective calls in whose middle something happens: an allgather
 * fails on one rank alone, all processes are stopped for a while, the group is ended, a rank dies.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/imx.h"
#include "imbrex_device.h"
#include "pause.h"
#include "ranks.h"

enum { TIMEOUT_MS = 700 };

static pause_stage *shared; /* by all ranks */

/* ---- an allgather that fails on one rank ----------------------------------------------------- */

/* The meetings of imbrex_mem_alloc. */
enum { AGREES = 1, SWAPS, AGREES_AGAIN };
enum { SLOW_MS = 200, BYTES = 1 << 20 };

/* Over another bootstrap; counts what is gathered once it is armed. */
typedef struct flaky {
    const imbrex_bootstrap *inner;
    int fails_at; /* on rank 0, which has what the others brought only if it is SWAPS */
    bool armed;
    int count;
} flaky;

static int gather(void *ctx, const void *send, void *recv, size_t bytes)
{
    flaky *f = ctx;
    f->count += f->armed;
    bool fails = f->armed && f->count == f->fails_at && f->inner->rank == 0;
    if (fails && f->count == AGREES_AGAIN)
        return 1;
    int failed = f->inner->allgather(f->inner->ctx, send, recv, bytes);
    if (f->armed && f->count == SWAPS && f->inner->rank == 1)
        usleep((useconds_t)patient(SLOW_MS) * 1000);
    return failed || fails;
}

/* Rank 0 has freed its piece by the time that rank 1 comes to share it; sanitizers see the use. */
static int shares_late(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    flaky f = { .inner = bootstrap, .fails_at = *(const int *)ctx };
    const imbrex_bootstrap own = {
        .rank = rank, .size = bootstrap->size, .allgather = gather, .ctx = &f
    };
    imbrex_group *group;
    void *memory = NULL;
    RANK_OK(
        imbrex_group_create(&(imbrex_group_desc){ .bootstrap = &own, .device = "cpu" }, &group));
    f.armed = true;
    imbrex_status status = imbrex_mem_alloc(group, BYTES, &memory);
    RANK_CHECK(status == IMBREX_PEER && !memory, "rank %d: %s: %s", rank,
               imbrex_status_name(status), imbrex_error());
    imbrex_group_destroy(group);
    return 0;
}

static void memory_that_is_freed_is_not_shared(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .meeting_s = 2 };
    for (int at = SWAPS; at <= AGREES_AGAIN; at++)
        assert_int_equal(ranks_run_bare(&desc, shares_late, &at), 0);
}

/* ---- a pause of all -------------------------------------------------------------------------- */

/* Who is late for what: the other one waits for it. */
typedef struct lateness {
    int rank;
    bool passes; /* it is late to pass its memory; else to come */
} lateness;

static const lateness latenesses[] = { { 1, false }, { 0, false }, { 1, true } };

static imx_sys_table real;
static bool passes_late; /* in its next dup, of the memory's descriptor */

static int late_dup(int fd)
{
    if (passes_late)
        pause_await(&shared->over);
    passes_late = false;
    return real.dup(fd);
}

static int paused(imbrex_group *group, void *ctx)
{
    const lateness *l = ctx;
    int rank = imbrex_group_rank(group);
    void *memory;
    __atomic_store_n(&shared->pids[rank], getpid(), __ATOMIC_RELEASE);
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (rank != l->rank)
        __atomic_store_n(&shared->ready, 1, __ATOMIC_RELEASE);
    else if (l->passes)
        passes_late = true;
    else
        pause_await(&shared->over);
    RANK_OK(imbrex_mem_alloc(group, BYTES, &memory));
    return 0;
}

static void a_pause_of_all_is_no_fault(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    imx_sys.dup = late_dup;
    for (int i = 0; i < 3; i++) {
        lateness l = latenesses[i];
        assert_int_equal(pause_run(shared, l.rank, TIMEOUT_MS, paused, &l), 0);
    }
    imx_sys.dup = real.dup;
}

/* ---- a group that fails meanwhile ------------------------------------------------------------ */

enum { LONG_MS = 20000, SOON_MS = 1500 };

static void *abort_soon(void *arg)
{
    usleep(200000);
    imbrex_group_abort(arg);
    return NULL;
}

static int fails_soon(imbrex_group *group, const char *why)
{
    void *memory = NULL;
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_status status = imbrex_mem_alloc(group, BYTES, &memory);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(status == IMBREX_PEER && strstr(imbrex_error(), why), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    RANK_CHECK(!memory && took_ms < patient(SOON_MS), "it took %lld ms", (long long)took_ms);
    return 0;
}

static int await_failure(const imbrex_group *group)
{
    for (int ms = 0; imbrex_group_status(group) == IMBREX_OK && ms < LONG_MS; ms++)
        usleep(1000);
    return imbrex_group_status(group) == IMBREX_OK;
}

/* Who is late does not come before the group has failed. */
static int aborted(imbrex_group *group, void *ctx)
{
    const lateness *l = ctx;
    pthread_t thread;
    int rank = imbrex_group_rank(group);
    passes_late = rank == l->rank && l->passes;
    if (rank == l->rank && !l->passes)
        return await_failure(group);
    if (rank != l->rank)
        pthread_create(&thread, NULL, abort_soon, group);
    int failed = fails_soon(group, "called imbrex_group_abort");
    if (rank != l->rank)
        pthread_join(thread, NULL);
    __atomic_store_n(&shared->over, 1, __ATOMIC_RELEASE);
    return failed;
}

static void an_abort_ends_meetings(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    ranks_desc desc = { .size = 2, .processes = true, .timeout_ms = LONG_MS };
    imx_sys.dup = late_dup;
    for (int i = 0; i < 3; i++) {
        lateness l = latenesses[i];
        *shared = (pause_stage){ .ready = 0 };
        assert_int_equal(ranks_run(&desc, aborted, &l), 0);
    }
    imx_sys.dup = real.dup;
}

/* Rank 1 waits for rank 0, which is busy, when rank 2 dies. */
static int one_dies(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    if (rank == 0)
        return await_failure(group);
    if (rank == 1)
        return fails_soon(group, "rank 2 ended without leaving the group");
    usleep(200000);
    kill(getpid(), SIGKILL);
    return 0;
}

static void a_death_ends_meetings(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    ranks_desc desc = { .size = 3, .processes = true, .timeout_ms = LONG_MS };
    assert_int_equal(ranks_run(&desc, one_dies, NULL), 1);
}

int main(void)
{
    real = imx_sys;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_that_is_freed_is_not_shared),
        cmocka_unit_test(a_pause_of_all_is_no_fault),
        cmocka_unit_test(an_abort_ends_meetings),
        cmocka_unit_test(a_death_ends_meetings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
