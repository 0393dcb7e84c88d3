/* test_runtime.c - what a run costs the host: no allocation, few microseconds, and no CPU while it
 * waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/imx.h"
#include "imbrex_device.h"
#include "ranks.h"
#include "reference.h"
#include "sanitized.h"

/* ---- counting allocations -------------------------------------------------------------------- */

static long allocations; /* of all threads; atomic */

static long counted(void)
{
    return __atomic_load_n(&allocations, __ATOMIC_SEQ_CST);
}

static void count(void)
{
    __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
}

static imx_sys_table real;

static void *count_calloc(size_t number, size_t bytes)
{
    count();
    return real.calloc(number, bytes);
}

static void *count_aligned_alloc(size_t alignment, size_t bytes)
{
    count();
    return real.aligned_alloc(alignment, bytes);
}

static void *count_mmap(void *at, size_t bytes, int protection, int flags, int fd, long offset)
{
    count();
    return real.mmap(at, bytes, protection, flags, fd, offset);
}

/* Every allocation of the whole program, whoever makes it.  A sanitizer has its own. */
#if defined(__GLIBC__) && !SANITIZED
#define INTERPOSED 1
#define PUBLIC     __attribute__((visibility("default"))) /* libraries, too, find these first */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t number, size_t bytes);
extern void *__libc_realloc(void *at, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

PUBLIC void *malloc(size_t bytes)
{
    count();
    return __libc_malloc(bytes);
}

PUBLIC void *calloc(size_t number, size_t bytes)
{
    count();
    return __libc_calloc(number, bytes);
}

PUBLIC void *realloc(void *at, size_t bytes)
{
    count();
    return __libc_realloc(at, bytes);
}

PUBLIC void *aligned_alloc(size_t alignment, size_t bytes)
{
    count();
    return __libc_memalign(alignment, bytes);
}

PUBLIC int posix_memalign(void **at, size_t alignment, size_t bytes)
{
    count();
    *at = __libc_memalign(alignment, bytes);
    return *at ? 0 : 12;
}
#endif

/* ---- one operator, many runs ----------------------------------------------------------------- */

enum { WARM = 20, RUNS = 100, TIMED = 400 };

typedef struct figures {
    double run_us[8]; /* host time of one imbrex_plan_run, by case */
} figures;

static op_case case_of(int i)
{
    static const char *const ops[] = { "all_gather", "reduce_scatter", "ag_gemm", "gemm_rs" };
    return (op_case){ .op = ops[i / 2],
                      .m = 16,
                      .n = 8,
                      .k = i / 2 < 2 ? 0 : 8,
                      .dtype = IMBREX_BF16,
                      .algorithm = i % 2 ? "sequential" : "copy" };
}

static int runs(imbrex_plan *plan, const imbrex_args *args, int times)
{
    for (int i = 0; i < times; i++)
        RANK_OK(imbrex_plan_run(plan, args, NULL));
    return 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of batches that fit into a stream's queue: that is the call, and no wait. */
static int measure(imbrex_group *group, imbrex_plan *plan, const imbrex_args *args, double *median)
{
    enum { BATCH = 5, BATCHES = TIMED / BATCH };
    double us[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        int64_t begin_ns = imbrexd_now_ns();
        if (runs(plan, args, BATCH))
            return 1;
        us[i] = (double)(imbrexd_now_ns() - begin_ns) / 1000 / BATCH;
        RANK_OK(imbrex_stream_sync(group, NULL));
    }
    qsort(us, BATCHES, sizeof us[0], by_size);
    *median = us[BATCHES / 2];
    return 0;
}

static int allocate_nothing(imbrex_group *group, void *ctx)
{
    figures *out = ctx;
    for (int i = 0; i < 8; i++) {
        op_case c = case_of(i);
        char a[16 * 8 * 2] = "", b[8 * 8 * 2] = "", result[16 * 8 * 2];
        imbrex_args args = { .a = a, .b = c.k ? b : NULL, .c = result };
        imbrex_plan *plan;
        RANK_OK(case_plan(group, &c, &plan));
        if (runs(plan, &args, WARM) || ranks_meet(group))
            return 1;
        long before = counted();
        if (runs(plan, &args, RUNS) || ranks_meet(group))
            return 1;
        long after = counted();
        RANK_CHECK(after == before, "%s %s: %ld allocations in %d runs", c.op, c.algorithm,
                   after - before, RUNS);
        double us;
        if (ranks_meet(group) || measure(group, plan, &args, &us) || ranks_meet(group))
            return 1;
        if (imbrex_group_rank(group) == 0)
            out->run_us[i] = us;
        imbrex_plan_destroy(plan);
    }
    return 0;
}

static void runs_allocate_nothing_and_return_soon(void **state)
{
    (void)state;
    figures out = { 0 };
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, allocate_nothing, &out), 0);
    for (int i = 0; i < 8; i++) {
        op_case c = case_of(i);
        printf("%-15s %-11s %6.1f us a call of imbrex_plan_run\n", c.op, c.algorithm,
               out.run_us[i]);
        assert_true(SANITIZED || out.run_us[i] < 200);
    }
}

static void allocations_are_counted(void **state)
{
    (void)state;
    long before = counted();
    void *at = NULL;
    assert_int_equal(imx_sys_alloc(1, 1, &at), IMBREX_OK);
    free(at);
    assert_true(counted() > before);
#ifdef INTERPOSED
    before = counted();
    free(strdup("as a library asks for it"));
    assert_true(counted() > before);
#endif
}

/* ---- waiting --------------------------------------------------------------------------------- */

static double cpu_s(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

/* All wait for a second, each on two streams, for a signal that rank 0 gives late. */
static int wait_long(imbrex_group *group, void *ctx)
{
    double *share = ctx;
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    void *word;
    imbrex_stream streams[2] = { NULL, NULL };
    RANK_OK(imbrex_mem_alloc(group, sizeof(uint64_t), &word));
    RANK_OK(imbrex_stream_create(group, &streams[1]));
    if (ranks_meet(group))
        return 1;
    for (int i = 0; i < 2; i++)
        RANK_OK(imbrex_signal_wait(group, word, 1, streams[i]));
    if (rank == 0) {
        imbrex_stream third;
        RANK_OK(imbrex_stream_create(group, &third));
        double before = cpu_s();
        usleep(1000000);
        *share = cpu_s() - before;
        for (int r = 0; r < ranks; r++)
            RANK_OK(imbrex_signal_post(group, word, 1, r, third));
        RANK_OK(imbrex_stream_sync(group, third));
    }
    for (int i = 0; i < 2; i++)
        RANK_OK(imbrex_stream_sync(group, streams[i]));
    return 0;
}

static void waiting_leaves_the_cpu_alone(void **state)
{
    (void)state;
    double share = 1;
    ranks_desc desc = { .size = 8 };
    assert_int_equal(ranks_run(&desc, wait_long, &share), 0);
    printf("8 ranks that wait on 2 streams each: %.1f %% of one CPU\n", share * 100);
    assert_true(share < 0.2);
}

/* ---- signals --------------------------------------------------------------------------------- */

/* A line of one of this process's threads' files; NULL: there is none that begins so. */
static const char *line_of(const char *thread, const char *file, const char *begin)
{
    static char line[256];
    char path[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/%s", thread, file);
    FILE *from = fopen(path, "r");
    bool found = false;
    while (from && !found && fgets(line, sizeof line, from))
        found = strncmp(line, begin, strlen(begin)) == 0;
    if (from)
        fclose(from);
    return found ? line + strlen(begin) : NULL;
}

/* What the caller blocks waits for the caller: no thread of the library's takes it. */
static void signals_are_the_callers(void **state)
{
    (void)state;
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &one, .device = "cpu" };
    imbrex_group *group = NULL;
    void *word = NULL;
    int threads = 0;
    assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_OK);
    assert_int_equal(imbrex_mem_alloc(group, 8, &word), IMBREX_OK);
    assert_int_equal(imbrex_signal_post(group, word, 1, 0, NULL), IMBREX_OK);
    assert_int_equal(imbrex_stream_sync(group, NULL), IMBREX_OK); /* its thread has begun */
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        if (!line_of(task->d_name, "comm", "imbrex"))
            continue;
        const char *blocked = line_of(task->d_name, "status", "SigBlk:");
        assert_non_null(blocked);
        unsigned long long mask = strtoull(blocked, NULL, 16);
        assert_true(mask >> (SIGUSR1 - 1) & 1);
        assert_true(mask >> (SIGTERM - 1) & 1);
        assert_false(mask >> (SIGSEGV - 1) & 1);
        threads++;
    }
    closedir(tasks);
    imbrex_group_destroy(group);
    assert_true(threads > 0);
}

int main(void)
{
    real = imx_sys;
    imx_sys.calloc = count_calloc;
    imx_sys.aligned_alloc = count_aligned_alloc;
    imx_sys.mmap = count_mmap;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_counted),
        cmocka_unit_test(signals_are_the_callers),
        cmocka_unit_test(runs_allocate_nothing_and_return_soon),
        cmocka_unit_test(waiting_leaves_the_cpu_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
