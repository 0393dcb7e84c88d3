/* test_fork.c - a child that a rank has forked: it is told that the group is its parent's, waits
 * for nobody, and does the parent no harm, whatever it calls. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net_threads.h"
#include "sanitized.h"
#include "shift.h"

enum { M = 12, N = 8, ALARM_MS = 30000 };

/* All that a rank can have. */
typedef struct things {
    imbrex_group *group;
    imbrex_plan *plan;
    imbrex_stream stream;
    uint64_t *word; /* symmetric */
    shift shift;
    float a[M * N], c[M * N];
    imbrex_args args;
    pid_t pid;
} things;

static int run_once(things *x)
{
    memset(x->c, 0, sizeof x->c);
    RANK_OK(imbrex_plan_run(x->plan, &x->args, x->stream));
    RANK_OK(imbrex_stream_sync(x->group, x->stream));
    for (int i = 0; i < M * N; i++)
        RANK_CHECK(x->c[i] == 3, "c[%d] is %g", i, (double)x->c[i]);
    return ranks_meet(x->group);
}

static int make(things *x, imbrex_group *group)
{
    imbrex_kernel_desc kernel = { .entry = shift_entry, .resident = 2 };
    x->group = group;
    x->pid = getpid();
    x->args = (imbrex_args){ .a = x->a, .c = x->c };
    for (int i = 0; i < M * N; i++)
        x->a[i] = 3;
    imbrex_coll_desc desc = { .m = M, .n = N, .dtype = IMBREX_F32 };
    RANK_OK(imbrex_plan_all_gather(group, &desc, &x->plan));
    RANK_OK(imbrex_stream_create(group, &x->stream));
    RANK_OK(imbrex_mem_alloc(group, 4096, (void **)&x->word));
    if (shift_open(&x->shift, group, &kernel))
        return 1;
    RANK_OK(imbrex_trace(group, 100));
    return run_once(x);
}

/* ---- the child ------------------------------------------------------------------------------- */

#define REFUSED(call)                                                                           \
    do {                                                                                        \
        imbrex_status status_ = (call);                                                         \
        RANK_CHECK(status_ == IMBREX_INVALID && strstr(imbrex_error(), sentence), "%s: %s: %s", \
                   #call, imbrex_status_name(status_), imbrex_error());                         \
    } while (0)

static int all_are_refused(things *x)
{
    static int progressed;
    char sentence[128];
    void *at = x->word;
    imbrex_group *g = x->group;
    imbrex_stream stream = NULL;
    imbrex_plan *plan = NULL;
    imbrex_kernel *kernel = NULL;
    imbrex_coll_desc coll = { .m = M, .n = N };
    imbrex_gemm_desc gemm = { .m = M, .n = N, .k = 4 };
    imbrex_kernel_desc desc = { .name = "shift", .entry = shift_entry };
    imbrex_transfer transfer = { 0 };
    imbrex_activation activation = { 0 };
    imbrex_gemm_operands operands = { 0 };
    snprintf(sentence, sizeof sentence,
             "this group was made by process %d; a forked child cannot use it: make a group of "
             "its own",
             (int)x->pid);
    REFUSED(imbrex_plan_run(x->plan, &x->args, NULL));
    REFUSED(imbrex_plan_run(x->plan, &x->args, x->stream));
    REFUSED(imbrex_stream_sync(g, NULL));
    REFUSED(imbrex_stream_sync(g, x->stream));
    REFUSED(imbrex_copy(g, x->c, x->a, sizeof x->c, NULL));
    REFUSED(imbrex_put(g, x->word, x->a, 8, 0, NULL));
    REFUSED(imbrex_signal_post(g, x->word, 1, 0, NULL));
    REFUSED(imbrex_signal_wait(g, x->word, 1, NULL));
    REFUSED(imbrex_barrier(g, NULL));
    REFUSED(imbrex_exchange(g, &transfer, 1, NULL));
    REFUSED(imbrex_silu_mul(g, IMBREX_F32, 1, 1, x->a, x->c, NULL));
    REFUSED(imbrex_activate(g, &activation, 1, 1, x->a, x->c, NULL, NULL, NULL));
    REFUSED(imbrex_launch(x->shift.kernel, 1, 1, &x->shift.args, sizeof x->shift.args, NULL));
    REFUSED(imbrex_launch_gemm(x->shift.kernel, &operands, &x->shift.args, 8, NULL));
    REFUSED(imbrex_group_status(g));
    REFUSED(imbrex_trace(g, 10));
    REFUSED(imbrex_stream_create(g, &stream));
    REFUSED(imbrex_mem_alloc(g, 64, &at));
    REFUSED(imbrex_mem_peer(g, x->word, 0, &at));
    REFUSED(imbrex_plan_all_gather(g, &coll, &plan));
    REFUSED(imbrex_plan_reduce_scatter(g, &coll, &plan));
    REFUSED(imbrex_plan_ag_gemm(g, &gemm, &plan));
    REFUSED(imbrex_plan_gemm_rs(g, &gemm, &plan));
    REFUSED(imbrex_kernel_create(g, &desc, &kernel));
    REFUSED(imbrex_tune(g, "ag_gemm", &gemm, sizeof gemm, NULL, &progressed));
    RANK_CHECK(!plan && !kernel && !stream && at == x->word, "an output was written");
    return 0;
}

static int nothing_comes_of_the_others(things *x)
{
    imbrex_span spans[4];
    char text[400];
    imbrex_group_abort(x->group);
    imbrex_group_abort_because(x->group, "the child's");
    imbrex_stream_destroy(x->group, x->stream);
    imbrex_mem_free(x->group, x->word);
    imbrex_kernel_destroy(x->shift.kernel);
    imbrex_plan_destroy(x->plan);
    RANK_CHECK(imbrex_trace_spans(x->group, spans, 4) == 0, "there are spans");
    RANK_CHECK(imbrex_group_size(x->group) > 0 && imbrex_group_device(x->group)[0],
               "it is not known whose group it was");
    RANK_CHECK(imbrex_group_describe(x->group, text, sizeof text) > 0, "no words for it");
    RANK_CHECK(imbrex_plan_describe(x->plan, text, sizeof text) > 0, "no words for the plan");
    return 0;
}

static int own_group(void)
{
    static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &alone, .device = "cpu" };
    static things x;
    unsetenv("IMBREX_NODE_RANKS");
    RANK_OK(imbrex_group_create(&desc, &x.group));
    int failed = make(&x, x.group);
    imbrex_group_destroy(x.group);
    return failed;
}

static int maps(void)
{
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, "memfd:imbrex") != NULL;
    if (file)
        fclose(file);
    return count;
}

/* Ranks that are threads map their memory once; the others' groups hold it, too. */
static int destroys(things *x)
{
    int before = maps();
    imbrex_group_destroy(x->group);
    imbrex_group_destroy(x->group);
    RANK_CHECK(imbrex_plan_run(x->plan, &x->args, NULL) == IMBREX_INVALID, "the plan is there");
    RANK_CHECK(before == 0 || maps() <= before, "%d of %d mappings are left", maps(), before);
    return 0;
}

static int child(things *x, bool cloned)
{
    alarm((unsigned)(patient(ALARM_MS) / 1000));
    int failed = all_are_refused(x) || nothing_comes_of_the_others(x) || all_are_refused(x);
    /* Sanitizers start no threads in a child of threads: TSan says so; ASan's allocator may have
     * been locked by a thread that the child does not have, and whoever refills from it hangs. */
    if (!cloned && !SANITIZED)
        failed = failed || own_group();
    failed = failed || destroys(x);
    if (!cloned && !SANITIZED)
        failed = failed || own_group();
    return failed;
}

/* ---- the parent ------------------------------------------------------------------------------ */

/* cloned: past the handlers of fork, as runtimes of other languages do. */
static int with_child(things *x, bool cloned)
{
    fflush(NULL);
    pid_t pid = cloned ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (pid == 0)
        _exit(child(x, cloned));
    int status = -1;
    RANK_CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %#x",
               (unsigned)status);
    return run_once(x);
}

static int forks(imbrex_group *group, void *ctx)
{
    (void)ctx;
    things *x = calloc(1, sizeof *x);
    int failed = make(x, group) || with_child(x, false) || with_child(x, false);
    if (!SANITIZED)
        failed = failed || with_child(x, true);
    free(x);
    return failed;
}

static void on(int ranks, bool processes, int node_ranks)
{
    ranks_desc desc = { .size = ranks, .processes = processes, .node_ranks = node_ranks };
    net_threads_reset();
    assert_int_equal(ranks_run(&desc, forks, NULL), 0);
}

static void of_one_rank(void **state)
{
    (void)state;
    on(1, false, 0);
}

static void of_threads(void **state)
{
    (void)state;
    on(3, false, 0);
}

static void of_processes(void **state)
{
    (void)state;
    on(3, RANKS_PROCESSES, 0);
}

static void of_nodes(void **state)
{
    (void)state;
    on(4, false, 2);
}

static void of_ranks_that_are_checked(void **state)
{
    (void)state;
    setenv("IMBREX_CHECK", "1", 1);
    on(2, false, 0);
    unsetenv("IMBREX_CHECK");
}

/* While a run waits for a rank that does not come, and other threads are under way. */
static int amid_a_run(imbrex_group *group, void *ctx)
{
    (void)ctx;
    things *x = calloc(1, sizeof *x);
    if (make(x, group))
        return 1;
    RANK_OK(imbrex_signal_wait(group, x->word, 1, x->stream));
    RANK_OK(imbrex_plan_run(x->plan, &x->args, x->stream));
    pid_t pid = fork();
    if (pid == 0)
        _exit(child(x, false));
    int status = -1;
    RANK_CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %#x",
               (unsigned)status);
    RANK_OK(imbrex_signal_post(group, x->word, 1, imbrex_group_rank(group), NULL));
    RANK_OK(imbrex_stream_sync(group, x->stream));
    int failed = run_once(x);
    free(x);
    return failed;
}

static void amid_runs(void **state)
{
    (void)state;
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++) {
        ranks_desc desc = { .size = 2, .processes = processes };
        assert_int_equal(ranks_run(&desc, amid_a_run, NULL), 0);
    }
}

/* A child that destroys its copy of the group does not keep a dead rank's sockets open. */
static int dies(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { DEATH_MS = 60000 };
    void *word;
    RANK_OK(imbrex_mem_alloc(group, 8, &word));
    if (ranks_meet(group))
        return 1;
    if (imbrex_group_rank(group) == 1) {
        RANK_OK(imbrex_signal_wait(group, word, 1, NULL)); /* rank 0 has met, too */
        RANK_OK(imbrex_stream_sync(group, NULL));
        int gone[2];
        if (pipe(gone))
            return 1;
        if (fork() == 0) {
            imbrex_group_destroy(group);
            close(gone[0]);
            close(gone[1]);
            usleep(10000000); /* outlives its parent */
            _exit(0);
        }
        char none;
        close(gone[1]);
        if (read(gone[0], &none, 1) != 0)
            return 1;
        _exit(0);
    }
    imbrex_stream beside;
    RANK_OK(imbrex_stream_create(group, &beside));
    int64_t begin_ns = imbrexd_now_ns();
    RANK_OK(imbrex_signal_wait(group, word, 1, NULL));
    RANK_OK(imbrex_signal_post(group, word, 1, 1, beside)); /* and from here on it may die */
    int failed = ranks_expect(group, "rank 1 ended without leaving the group");
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(took_ms < patient(5000), "it was heard of after %lld ms", (long long)took_ms);
    return failed;
}

static void a_death_is_seen(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    ranks_desc desc = { .size = 2, .processes = true, .timeout_ms = 60000 };
    assert_int_equal(ranks_run(&desc, dies, NULL), 0);
}

/* ---- programs that a rank starts ------------------------------------------------------------- */

/* Descriptors that a program started now would have, but for the first three. */
static int inherited(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *e; folder && (e = readdir(folder));) {
        int fd = atoi(e->d_name);
        count += fd > 2 && !(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    if (folder)
        closedir(folder);
    return count;
}

static int leaves_none(imbrex_group *group, void *ctx)
{
    things *x = calloc(1, sizeof *x);
    int before = *(int *)ctx, failed = make(x, group);
    RANK_CHECK(inherited() == before, "%d descriptors would be inherited, %d before", inherited(),
               before);
    free(x);
    return failed;
}

static void programs_inherit_nothing(void **state)
{
    (void)state;
    int before = inherited();
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++) {
        for (int node_ranks = 0; node_ranks < 2 - processes; node_ranks++) {
            ranks_desc desc = { .size = 2, .processes = processes, .node_ranks = node_ranks };
            net_threads_reset();
            assert_int_equal(ranks_run(&desc, leaves_none, &before), 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_one_rank),
        cmocka_unit_test(of_threads),
        cmocka_unit_test(of_processes),
        cmocka_unit_test(of_nodes),
        cmocka_unit_test(of_ranks_that_are_checked),
        cmocka_unit_test(amid_runs),
        cmocka_unit_test(a_death_is_seen),
        cmocka_unit_test(programs_inherit_nothing),
    };
    imx_net_of_test = &net_threads;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
