/* test_tune.c - imbrex_tune on CPU ranks: what it measures is kept and used by all alike, what
 * fails on one rank is dropped on all, and a file that is not to be trusted is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/imx.h"
#include "base/siphash.h"
#include "plan/plan.h"
#include "ranks.h"
#include "scratch.h"

enum { RANKS = 3, M = 96, N = 16, K = 8 };

static const imbrex_gemm_desc shape = { .m = M, .n = N, .k = K, .dtype = IMBREX_F32 };
static const char file[] = "tuning-1.txt";

/* ---- a rank's view of a tuning --------------------------------------------------------------- */

typedef struct view {
    int calls, dropped, chunk_rows_most;
    double done;
    char first_dropped[32], why[256], best[32], seen[256];
    double best_us;
} view;

static void note(void *ctx, const imbrex_tune_step *step)
{
    view *v = ctx;
    v->calls++;
    if (step->chunk_rows > v->chunk_rows_most)
        v->chunk_rows_most = step->chunk_rows;
    if (step->dropped && !v->dropped++) {
        snprintf(v->first_dropped, sizeof v->first_dropped, "%s", step->algorithm);
        snprintf(v->why, sizeof v->why, "%s", step->dropped);
    }
    v->done = step->done >= v->done ? step->done : 9; /* it only rises */
    snprintf(v->best, sizeof v->best, "%s", step->algorithm);
    v->best_us = step->us;
    char word[40];
    snprintf(word, sizeof word, " %s,", step->algorithm);
    if (!strstr(v->seen, word))
        snprintf(v->seen + strlen(v->seen), sizeof v->seen - strlen(v->seen), "%s", word);
}

/* What came of a plan, and its line, for what is said of the file. */
typedef struct made {
    imx_plan_facts facts;
    char text[600];
} made;

static imbrex_status make(imbrex_group *group, const imbrex_gemm_desc *desc, made *out)
{
    imbrex_plan *plan;
    imbrex_status status = imbrex_plan_ag_gemm(group, desc, &plan);
    if (status != IMBREX_OK)
        return status;
    out->facts = imx_describe_facts(plan);
    imbrex_plan_describe(plan, out->text, sizeof out->text);
    imbrex_plan_destroy(plan);
    return status;
}

/* A plan of `shape`, as a new group has it: rank 0's, which has the algorithm of all. */
typedef struct look {
    pthread_mutex_t lock;
    bool seen;
    made made;
} look;

static int look_rank(imbrex_group *group, void *ctx)
{
    look *l = ctx;
    made m;
    RANK_OK(make(group, &shape, &m));
    pthread_mutex_lock(&l->lock);
    bool alike = !l->seen || (strcmp(m.facts.algorithm, l->made.facts.algorithm) == 0 &&
                              m.facts.measured == l->made.facts.measured);
    if (imbrex_group_rank(group) == 0 || !l->seen)
        l->made = m;
    l->seen = true;
    pthread_mutex_unlock(&l->lock);
    RANK_CHECK(alike, "rank %d: %s", imbrex_group_rank(group), m.text);
    return 0;
}

static const made *new_plan(void)
{
    static look l = { .lock = PTHREAD_MUTEX_INITIALIZER };
    ranks_desc desc = { .size = RANKS };
    l.seen = false;
    assert_int_equal(ranks_run(&desc, look_rank, &l), 0);
    return &l.made;
}

static bool is_measured(void)
{
    return new_plan()->facts.measured;
}

#define assert_says(text, words)                                  \
    do {                                                          \
        const char *says_ = (text);                               \
        if (!strstr(says_, words))                                \
            fail_msg("\"%s\" does not say \"%s\"", says_, words); \
    } while (0)

static const char *info(void)
{
    static char text[8000];
    imbrex_info(text, sizeof text);
    return text;
}

/* ---- tuning ---------------------------------------------------------------------------------- */

static int tune_rank(imbrex_group *group, void *ctx)
{
    (void)ctx;
    view v = { .calls = 0 };
    made m;
    RANK_OK(imbrex_tune(group, "ag_gemm", &shape, sizeof shape, note, &v));
    /* Tiles span ranks. */
    RANK_CHECK(v.done == 1 && v.best_us > 0 && v.dropped == 1 &&
                   strcmp(v.first_dropped, "ring") == 0,
               "done %g, %g us, %d dropped: %s", v.done, v.best_us, v.dropped, v.why);
    RANK_CHECK(strcmp(v.seen, " ring, copy, sequential, store, pull, ll,") == 0, "tried%s", v.seen);
    RANK_OK(make(group, &shape, &m)); /* the same group knows it */
    RANK_CHECK(m.facts.measured && strcmp(m.facts.algorithm, v.best) == 0, "%s is not %s", m.text,
               v.best);
    imbrex_gemm_desc other = shape;
    other.algorithm = "pull";
    RANK_OK(make(group, &other, &m));
    RANK_CHECK(!m.facts.measured && strcmp(m.facts.algorithm, "pull") == 0, "%s", m.text);
    const imbrex_gemm_desc others[] = {
        { .m = M + 1, .n = N, .k = K, .dtype = IMBREX_F32 },
        { .m = M, .n = N, .k = K, .dtype = IMBREX_BF16 },
        { .m = M, .n = N, .k = K, .dtype = IMBREX_F32, .layout = IMBREX_KN },
        { .m = M, .n = N, .k = K, .dtype = IMBREX_F32, .sms = 2 },
    };
    for (int i = 0; i < 4; i++) {
        RANK_OK(make(group, &others[i], &m));
        RANK_CHECK(!m.facts.measured, "%d: %s", i, m.text);
    }
    return 0;
}

static int tune_quietly(imbrex_group *group, void *ctx)
{
    (void)ctx;
    RANK_OK(imbrex_tune(group, "ag_gemm", &shape, sizeof shape, NULL, NULL));
    return 0;
}

static void tune(rank_main run)
{
    ranks_desc desc = { .size = RANKS };
    assert_int_equal(ranks_run(&desc, run, NULL), 0);
}

static void what_is_measured_is_used(void **state)
{
    (void)state;
    assert_false(is_measured());
    assert_says(info(), "tuning cache: none\n");
    tune(tune_rank);
    assert_true(is_measured());
    assert_says(new_plan()->text, " (measured: ");
    assert_says(new_plan()->text, " us, ");
    assert_says(new_plan()->text, "; tuned 20");
    assert_says(info(), "tuning cache: 1, of this version 1, in ");
    tune(tune_quietly); /* in the same line's place */
    assert_says(info(), "tuning cache: 1, of this version 1, in ");
    assert_int_equal(scratch_count(), 1);
    setenv("IMBREX_ALGORITHM", "sequential", 1);
    assert_string_equal(new_plan()->facts.algorithm, "sequential");
    assert_false(is_measured());
    unsetenv("IMBREX_ALGORITHM");
}

/* Of a list, what the operator has: ag_gemm has no "scatter_push", and gemm_rs no "store". */
static int plans_of_a_list(imbrex_group *group, void *ctx)
{
    (void)ctx;
    static const char *const ops[] = { "ag_gemm", "gemm_rs", "gemm" };
    static const char *const want[] = { "store", "scatter_push", NULL };
    imbrex_gemm_desc desc = { .m = 256, .n = 24, .k = 32, .chunk_rows = 64 };
    for (int i = 0; i < 3; i++) {
        imbrex_plan *plan;
        imbrex_status status = imbrex_plan_create(group, ops[i], &desc, sizeof desc, &plan);
        if (!want[i]) {
            RANK_CHECK(status == IMBREX_UNSUPPORTED &&
                           strstr(imbrex_error(), "IMBREX_ALGORITHM is \"scatter_push,store\": "
                                                  "gemm has \"sequential\" here"),
                       "%s: %s", imbrex_status_name(status), imbrex_error());
            continue;
        }
        RANK_OK(status);
        const char *have = imx_describe_facts(plan).algorithm;
        RANK_CHECK(strcmp(have, want[i]) == 0, "%s by %s", ops[i], have);
        imbrex_plan_destroy(plan);
    }
    return 0;
}

static void each_operator_takes_its_own_of_a_list(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    setenv("IMBREX_ALGORITHM", "scatter_push,store", 1);
    assert_int_equal(ranks_run(&desc, plans_of_a_list, NULL), 0);
    unsetenv("IMBREX_ALGORITHM");
}

static int tune_others(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_gemm_desc desc = { .m = 7, .n = 5, .k = 3, .dtype = IMBREX_BF16, .layout = IMBREX_KN };
    for (int i = 0; i < 2; i++)
        RANK_OK(imbrex_tune(group, i ? "gemm_ar" : "gemm_rs", &desc, sizeof desc, NULL, NULL));
    static const char *const others[] = { "reduce_scatter", "all_gather", "all_reduce" };
    for (int i = 0; i < 3; i++) {
        imbrex_coll_desc coll = { .m = 7, .n = 5, .dtype = IMBREX_BF16, .norm.rms = i == 2 };
        imbrex_plan *plan;
        RANK_OK(imbrex_tune(group, others[i], &coll, sizeof coll, NULL, NULL));
        RANK_OK(imbrex_plan_create(group, others[i], &coll, sizeof coll, &plan));
        bool measured = imx_describe_facts(plan).measured;
        imbrex_plan_destroy(plan);
        RANK_CHECK(measured, "%s is not", others[i]);
    }
    return 0;
}

static char *load(size_t *bytes)
{
    char *text = (char *)scratch_read(file, bytes);
    text[*bytes] = '\0';
    return text;
}

/* The line that tuning wrote, with `from` replaced by `to` and, if it is to be right, its digest
 * too. */
static void rewrite(const char *from, const char *to, bool right)
{
    size_t bytes;
    char *text = load(&bytes), changed[4000];
    char *at = strstr(text, from);
    assert_non_null(at);
    int length = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to,
                          at + strlen(from));
    if (right) {
        const uint64_t key[2] = { 3, 4 };
        char *line = strchr(changed, '\n') + 1, *digest = changed + length - 17;
        snprintf(digest, 18, "%016llx\n",
                 (unsigned long long)imx_siphash(key, line, (size_t)(digest - line)));
    }
    scratch_write(file, changed, (size_t)length);
    free(text);
}

/* What a desc gives stays, and makes it a case of its own. */
static int tune_with_chunks(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_gemm_desc desc = shape;
    made m;
    view v = { .calls = 0 };
    desc.chunk_rows = 8;
    RANK_OK(imbrex_tune(group, "ag_gemm", &desc, sizeof desc, note, &v));
    RANK_CHECK(v.chunk_rows_most == 0, "tried chunks of %d rows", v.chunk_rows_most);
    RANK_OK(make(group, &desc, &m));
    RANK_CHECK(m.facts.measured && m.facts.chunk_rows == 8, "%s", m.text);
    RANK_OK(make(group, &shape, &m));
    RANK_CHECK(!m.facts.measured, "%s", m.text);
    return 0;
}

static void descs_that_give_chunks(void **state)
{
    (void)state;
    tune(tune_with_chunks);
}

/* Chunks that a CPU's plan would not choose by itself, from a file. */
static void chunks_from_the_file(void **state)
{
    (void)state;
    tune(tune_quietly);
    size_t bytes;
    char *text = load(&bytes), *at = strstr(text, ", chunk_rows="), before[32];
    assert_non_null(at);
    snprintf(before, sizeof before, "%.*s", (int)strcspn(at + 1, "|") + 1, at);
    free(text);
    rewrite(before, ", chunk_rows=20 ", true);
    assert_int_equal(new_plan()->facts.chunk_rows, 20);
}

static void every_operator(void **state)
{
    (void)state;
    tune(tune_others);
    assert_says(info(), "tuning cache: 5, of this version 5, in ");
}

/* Rank 1 looks for the file where there is none. */
static int look_elsewhere(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    if (rank == 1)
        setenv("IMBREX_CACHE_DIR", scratch_path("none"), 1);
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu", .timeout_ms = 20000 };
    imbrex_group *group;
    made m;
    RANK_OK(imbrex_group_create(&desc, &group));
    RANK_OK(make(group, &shape, &m));
    RANK_CHECK(m.facts.measured, "rank %d: %s", rank, m.text);
    imbrex_group_destroy(group);
    return 0;
}

static void ranks_with_other_files(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    tune(tune_quietly);
    ranks_desc desc = { .size = RANKS, .processes = true };
    assert_int_equal(ranks_run_bare(&desc, look_elsewhere, NULL), 0);
}

/* ---- what fails ------------------------------------------------------------------------------ */

static imx_sys_table real;
static _Thread_local int first_lost = -1, lost_count; /* of this thread's pieces of memory */

static int failing_memfd_create(const char *name, unsigned flags)
{
    if (first_lost >= 0 && first_lost-- <= 0 && lost_count-- > 0) {
        first_lost = 0;
        errno = EMFILE;
        return -1;
    }
    return real.memfd_create(name, flags);
}

/* The group that candidates run in takes the first ones, the last of these for its inputs. */
enum { BEFORE_PLANS = 3 };

static int refused_on_one(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    view v = { .calls = 0 };
    made m;
    first_lost = rank == 1 ? BEFORE_PLANS : -1;
    lost_count = 1;
    RANK_OK(imbrex_tune(group, "ag_gemm", &shape, sizeof shape, note, &v));
    first_lost = -1;
    RANK_CHECK(v.dropped == 2 && strcmp(v.first_dropped, "copy") == 0, "%d dropped, first %s",
               v.dropped, v.first_dropped); /* and "ring", as always */
    RANK_CHECK(strstr(v.why, rank == 1 ? "(memfd)" : "rank 1 failed: "), "rank %d: %s", rank,
               v.why);
    RANK_CHECK(v.done == 1 && strcmp(v.best, "copy") != 0, "%s is best, done %g", v.best, v.done);
    RANK_OK(make(group, &shape, &m));
    RANK_CHECK(m.facts.measured && strcmp(m.facts.algorithm, "copy") != 0, "%s", m.text);
    return 0;
}

static int refused_always(imbrex_group *group, void *ctx)
{
    (void)ctx;
    first_lost = imbrex_group_rank(group) == 1 ? BEFORE_PLANS : -1;
    lost_count = 1000;
    imbrex_status status = imbrex_tune(group, "ag_gemm", &shape, sizeof shape, NULL, NULL);
    first_lost = -1;
    RANK_CHECK(status == IMBREX_UNSUPPORTED, "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "imbrex_tune: no algorithm of ag_gemm could be made here: "),
               "%s", imbrex_error());
    RANK_OK(imbrex_group_status(group)); /* and yet the group works */
    made m;
    RANK_OK(make(group, &shape, &m));
    RANK_CHECK(!m.facts.measured, "%s", m.text);
    return 0;
}

static void what_fails_on_one_is_dropped_on_all(void **state)
{
    (void)state;
    real = imx_sys;
    imx_sys.memfd_create = failing_memfd_create;
    tune(refused_always);
    tune(refused_on_one);
    imx_sys = real;
}

static void leave(void *ctx, const imbrex_tune_step *step)
{
    (void)step;
    imbrex_group_abort(ctx);
}

static int run_fails(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_status status = imbrex_tune(group, "ag_gemm", &shape, sizeof shape,
                                       imbrex_group_rank(group) == 2 ? leave : NULL, group);
    RANK_CHECK(status == IMBREX_PEER, "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "failed while it was timed, and the group with it: ") &&
                   strstr(imbrex_error(), "imbrex_group_abort"),
               "%s", imbrex_error());
    RANK_CHECK(imbrex_group_status(group) == IMBREX_PEER, "the group is well");
    return 0;
}

static void a_run_that_fails_fails_the_group(void **state)
{
    (void)state;
    tune(run_fails);
    assert_int_equal(scratch_count(), 0);
}

/* ---- the file -------------------------------------------------------------------------------- */

static void damaged_lines(void **state)
{
    (void)state;
    tune(tune_quietly);
    rewrite(" us", " uS", false);
    assert_says(new_plan()->text, "tuning-1.txt is damaged");
    assert_false(is_measured());
    assert_says(info(), "tuning cache: 0, of this version 0, in ");
    assert_says(info(), "tuning-1.txt; 1 damaged lines are ignored\n");
    tune(tune_quietly); /* puts it right */
    assert_true(is_measured());
    assert_null(strstr(info(), "damaged"));
    rewrite(", chunk_rows=", ", chunk_row=", true);
    assert_says(new_plan()->text, "tuning-1.txt is damaged");
    tune(tune_quietly);
    char year[16], before[32]; /* " | 20" alone may also be a figure's */
    time_t now = time(NULL);
    strftime(year, sizeof year, " | %Y-", gmtime(&now));
    snprintf(before, sizeof before, ", ring 1.0%s", year);
    rewrite(year, before, true); /* right again: the digest is all that counts */
    assert_says(new_plan()->text, ", ring 1.0; tuned 20");
    size_t bytes;
    char *text = load(&bytes);
    scratch_write(file, text, bytes - 5);
    free(text);
    assert_says(new_plan()->text, "tuning-1.txt is damaged");
}

static void lines_of_another_version(void **state)
{
    (void)state;
    char version[32], other[32];
    tune(tune_quietly);
    snprintf(version, sizeof version, "\n%s | ", imbrex_version());
    strcpy(other, "\n99.0.0 | ");
    rewrite(version, other, true);
    assert_false(is_measured());
    assert_says(info(), "tuning cache: 1, of this version 0, in ");
    tune(tune_quietly); /* and stay */
    assert_says(info(), "tuning cache: 2, of this version 1, in ");
}

static void files_that_are_not_to_be_trusted(void **state)
{
    (void)state;
    tune(tune_quietly);
    assert_int_equal(chmod(scratch_path(file), 0622), 0);
    assert_says(new_plan()->text,
                "is ignored: it or its folder belongs to someone else, or others may write it");
    assert_says(info(), "tuning cache: none: ");
    tune(tune_quietly); /* replaces it */
    assert_true(is_measured());
    scratch_write(file, "something\n", 10);
    assert_says(new_plan()->text, "is ignored: it is no tuning cache");
    tune(tune_quietly);
    assert_true(is_measured());
}

static void long_files(void **state)
{
    (void)state;
    tune(tune_quietly);
    size_t bytes;
    char *text = load(&bytes);
    char *line = strchr(text, '\n') + 1;
    size_t head = (size_t)(line - text), length = bytes - head;
    size_t count = ((1 << 20) - head) / length; /* as many as a file may have */
    char *many = malloc(head + count * length);
    assert_non_null(many);
    rewrite(" n=16 ", " n=17 ", true); /* the case of another shape, all over */
    free(text);
    text = load(&bytes);
    memcpy(many, text, head);
    for (size_t i = 0; i < count; i++)
        memcpy(many + head + i * length, text + head, length);
    scratch_write(file, many, head + count * length);
    tune(tune_quietly); /* the oldest goes */
    assert_true(is_measured());
    free(text);
    text = load(&bytes);
    assert_true(bytes <= 1 << 20);
    assert_true(bytes > (1 << 20) - 3 * length);
    free(text);
    free(many);
}

static int nowhere_to_write(imbrex_group *group, void *ctx)
{
    (void)ctx;
    view v = { .calls = 0 };
    imbrex_status status = imbrex_tune(group, "ag_gemm", &shape, sizeof shape, note, &v);
    bool first = imbrex_group_rank(group) == 0;
    RANK_CHECK(status == (first ? IMBREX_SYSTEM : IMBREX_PEER), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "what is measured could not be kept: /dev/null/x: "), "%s",
               imbrex_error());
    RANK_CHECK(v.calls == 0, "%d steps before it was noticed", v.calls);
    return 0;
}

static void folders_that_cannot_be_written(void **state)
{
    (void)state;
    setenv("IMBREX_CACHE_DIR", "/dev/null/x", 1);
    tune(nowhere_to_write);
    assert_false(is_measured());
    setenv("IMBREX_CACHE_DIR", scratch_path(""), 1);
}

enum { LOCKED_MS = 4000 }; /* the group's limit: half of it is waited for the folder */

static int locked_out(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_status status = imbrex_tune(group, "ag_gemm", &shape, sizeof shape, NULL, NULL);
    bool first = imbrex_group_rank(group) == 0;
    RANK_CHECK(status == (first ? IMBREX_SYSTEM : IMBREX_PEER), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "another process has had ") &&
                   strstr(imbrex_error(), " locked for "),
               "%s", imbrex_error());
    return 0;
}

/* As by a process that is stopped, or in a debugger. */
static void a_folder_that_stays_locked(void **state)
{
    (void)state;
    ranks_desc desc = { .size = RANKS, .timeout_ms = LOCKED_MS };
    int fd = open(scratch_path(""), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(ranks_run(&desc, locked_out, NULL), 0);
    close(fd);
    tune(tune_quietly);
    assert_true(is_measured());
}

static int begin(void **state)
{
    int failed = scratch_make(state);
    setenv("IMBREX_CACHE_DIR", scratch_path(""), 1);
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, scratch_remove)
        TEST(what_is_measured_is_used),
        TEST(each_operator_takes_its_own_of_a_list),
        TEST(descs_that_give_chunks),
        TEST(chunks_from_the_file),
        TEST(every_operator),
        TEST(ranks_with_other_files),
        TEST(what_fails_on_one_is_dropped_on_all),
        TEST(a_run_that_fails_fails_the_group),
        TEST(damaged_lines),
        TEST(lines_of_another_version),
        TEST(files_that_are_not_to_be_trusted),
        TEST(long_files),
        TEST(folders_that_cannot_be_written),
        TEST(a_folder_that_stays_locked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
