/* test_chaos.c - runs back to back, with ranks that sleep at random before every copy, post and
 * kernel: the same bits as a quiet rank after rank gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "imbrex_device.h"
#include "ranks.h"
#include "reference.h"

enum { RUNS = 8, OPS = 4, PAIRS = 2 * OPS, CASES = PAIRS + 30, M = 45 };

static const char *const ops[] = { "all_gather", "reduce_scatter", "ag_gemm", "gemm_rs",
                                   "all_reduce", "all_to_all",     "gemm_ar" };

/* Operator by operator, "copy" before "sequential"; then what kernels do by themselves.  Of one
 * row most ranks have nothing to send: credits alone hold back the one that has. */
static op_case case_of(int i)
{
    static const struct {
        int op;
        const char *algorithm;
        int64_t m, n;
        int chunk_rows;
    } others[CASES - PAIRS] = {
        { 2, "store", M, 24, 12 },      { 3, BY_TILES, M, 24, 12 },
        { 2, "ring", M, 24, 12 },       { 0, "store", M, 24, 12 },
        { 1, "store", M, 24, 12 },      { 0, "store", 1, 4, 0 }, /* lines */
        { 1, "store", 1, 4, 0 },        { 0, "ll", M, 24, 0 },
        { 0, "ll", M, 400, 0 }, /* lines */
        { 2, "ll", M, 24, 0 },          { 3, "ll", M, 24, 0 },
        { 4, "ll", M, 24, 0 },          { 4, "ll", M, 400, 0 },
        { 4, "ll2", M, 24, 0 },         { 4, "ll2", M, 400, 0 },
        { 4, "store", M, 24, 12 },      { 4, "copy", M, 24, 4 },
        { 4, "sequential", M, 24, 12 }, { 5, "store", M, 24, 12 },
        { 5, "store", 1, 4, 0 },        { 5, "copy", M, 24, 12 },
        { 5, "sequential", M, 24, 12 }, { 6, "copy", M, 24, 4 },
        { 6, "sequential", M, 24, 12 }, { 6, "store", M, 24, 4 },
        { 6, "store", 1, 4, 0 }, /* one row of sums, in lines */
        { 6, "ll", M, 24, 0 },          { 6, "ll", M, 400, 0 },
        { 6, "ll2", M, 24, 0 },         { 6, "ll2", M, 400, 0 },
    };
    int op = i < PAIRS ? i / 2 : others[i - PAIRS].op;
    return (op_case){ .op = ops[op],
                      .m = i < PAIRS ? M : others[i - PAIRS].m,
                      .n = i < PAIRS ? 24 : others[i - PAIRS].n,
                      .k = strstr(ops[op], "gemm") ? 16 : 0,
                      .dtype = i % 3 ? IMBREX_BF16 : IMBREX_F32,
                      .algorithm = i >= PAIRS ? others[i - PAIRS].algorithm
                                   : i % 2    ? "sequential"
                                              : "copy",
                      .chunk_rows = i < PAIRS ? 12 : others[i - PAIRS].chunk_rows,
                      .sms = i < PAIRS ? 0 : 2,
                      .gathered = op == 2 };
}

/* ---- one plan's runs ------------------------------------------------------------------------- */

/* Every run has its own a and outputs, and its own number of rows. */
typedef struct work {
    op_case c;
    imbrex_plan *plan;
    op_sizes bytes; /* the most that any run has */
    char *a, *b, *out, *gathered;
} work;

static int64_t rows_of(const op_case *c, int run)
{
    return run % 5 == 4 && c->m > run ? c->m - run : c->m;
}

static size_t at(int64_t bytes, int run)
{
    return (size_t)(bytes * run);
}

static int begin(imbrex_group *group, op_case c, work *w)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    op_sizes n = op_sizes_of(&c, c.m, ranks, rank);
    int64_t e = (int64_t)element_bytes(c.dtype);
    int64_t most =
        (c.m / ranks + 1) * (c.k > c.n ? c.k : c.n); /* with fewer rows a share may grow */
    *w = (work){ .c = c };
    w->bytes =
        (op_sizes){ .a = (n.a + most) * e, .c = (n.c + most) * e, .gathered = n.gathered * e };
    w->a = malloc(at(w->bytes.a, RUNS));
    w->b = malloc((size_t)(n.b * e) + 1);
    w->out = calloc(RUNS, (size_t)w->bytes.c);
    w->gathered = calloc(RUNS, (size_t)w->bytes.gathered + 1);
    input_fill(c.dtype, INPUT_B + rank, 0, w->b, n.b);
    for (int i = 0; i < RUNS; i++)
        input_fill(c.dtype, rank * RUNS + i, 0, w->a + at(w->bytes.a, i), w->bytes.a / e);
    RANK_OK(case_plan(group, &c, &w->plan));
    return 0;
}

static imbrex_status enqueue(const work *w, int run, imbrex_stream stream)
{
    imbrex_args args = {
        .a = w->a + at(w->bytes.a, run),
        .b = w->c.k ? w->b : NULL,
        .c = w->out + at(w->bytes.c, run),
        .gathered = w->c.gathered ? w->gathered + at(w->bytes.gathered, run) : NULL,
        .m = rows_of(&w->c, run),
    };
    return imbrex_plan_run(w->plan, &args, stream);
}

static void end(work *w)
{
    imbrex_plan_destroy(w->plan);
    free(w->a);
    free(w->b);
    free(w->out);
    free(w->gathered);
}

/* ---- what a quiet group gives ---------------------------------------------------------------- */

/* outputs[case][rank]: kept by the quiet pass, in memory that chaotic children inherit. */
typedef struct kept {
    char *out, *gathered;
} kept;

static kept quiet[CASES][8];

static int keep(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    for (int i = 0; i < CASES; i++) {
        work w;
        if (begin(group, case_of(i), &w))
            return 1;
        for (int run = 0; run < RUNS; run++) {
            RANK_OK(enqueue(&w, run, NULL));
            RANK_OK(imbrex_barrier(group, NULL));
            RANK_OK(imbrex_stream_sync(group, NULL));
        }
        quiet[i][rank] = (kept){ w.out, w.gathered };
        w.out = w.gathered = NULL;
        end(&w);
    }
    return 0;
}

static int same(imbrex_group *group, int i, const work *w)
{
    int rank = imbrex_group_rank(group);
    for (int run = 0; run < RUNS; run++) {
        size_t c = at(w->bytes.c, run), g = at(w->bytes.gathered, run);
        RANK_CHECK(memcmp(w->out + c, quiet[i][rank].out + c, (size_t)w->bytes.c) == 0 &&
                       memcmp(w->gathered + g, quiet[i][rank].gathered + g,
                              (size_t)w->bytes.gathered) == 0,
                   "%s %s: run %d on rank %d differs from the quiet one", w->c.op, w->c.algorithm,
                   run, rank);
    }
    return 0;
}

/* ---- chaotic --------------------------------------------------------------------------------- */

/* All runs of a plan without waiting for anything; every fourth on another stream. */
static int back_to_back(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_stream other;
    RANK_OK(imbrex_stream_create(group, &other));
    for (int i = 0; i < CASES; i++) {
        work w;
        if (begin(group, case_of(i), &w))
            return 1;
        for (int run = 0; run < RUNS; run++)
            RANK_OK(enqueue(&w, run, run % 4 == 3 ? other : NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        RANK_OK(imbrex_stream_sync(group, other));
        int failed = same(group, i, &w);
        end(&w);
        if (failed)
            return 1;
    }
    return 0;
}

/* Two plans of one group at once, each on a stream of its own. */
static int two_plans(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_stream streams[2] = { NULL, NULL };
    RANK_OK(imbrex_stream_create(group, &streams[1]));
    for (int i = 0; i < CASES; i += 2) {
        int pair[2] = { i, (i + 5) % CASES };
        work w[2];
        if (begin(group, case_of(pair[0]), &w[0]) || begin(group, case_of(pair[1]), &w[1]))
            return 1;
        for (int run = 0; run < RUNS; run++) {
            for (int p = 0; p < 2; p++)
                RANK_OK(enqueue(&w[p], run, streams[p]));
        }
        for (int p = 0; p < 2; p++)
            RANK_OK(imbrex_stream_sync(group, streams[p]));
        int failed = same(group, pair[0], &w[0]) || same(group, pair[1], &w[1]);
        end(&w[0]);
        end(&w[1]);
        if (failed)
            return 1;
    }
    return 0;
}

/* Two groups of the same ranks, their runs interleaved. */
static int two_groups(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)rank, (void)ctx;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .timeout_ms = 20000 };
    imbrex_group *groups[2];
    for (int g = 0; g < 2; g++)
        RANK_OK(imbrex_group_create(&desc, &groups[g]));
    for (int i = 0; i < CASES; i += 2) {
        int pair[2] = { (i + 1) % CASES, (i + 4) % CASES };
        work w[2];
        if (begin(groups[0], case_of(pair[0]), &w[0]) || begin(groups[1], case_of(pair[1]), &w[1]))
            return 1;
        for (int run = 0; run < RUNS; run++) {
            for (int g = 0; g < 2; g++)
                RANK_OK(enqueue(&w[g], run, NULL));
        }
        for (int g = 0; g < 2; g++) {
            RANK_OK(imbrex_stream_sync(groups[g], NULL));
            int failed = same(groups[g], pair[g], &w[g]);
            end(&w[g]);
            if (failed)
                return 1;
        }
    }
    for (int g = 0; g < 2; g++)
        imbrex_group_destroy(groups[g]);
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void with(int size, bool processes)
{
    ranks_desc desc = { .size = size };
    unsetenv("IMBREX_CHAOS");
    assert_int_equal(ranks_run(&desc, keep, NULL), 0);
    setenv("IMBREX_CHAOS", "2", 1);
    desc.processes = processes;
    assert_int_equal(ranks_run(&desc, back_to_back, NULL), 0);
    assert_int_equal(ranks_run(&desc, two_plans, NULL), 0);
    assert_int_equal(ranks_run_bare(&desc, two_groups, NULL), 0);
    for (int i = 0; i < CASES; i++) {
        for (int r = 0; r < size; r++) {
            free(quiet[i][r].out);
            free(quiet[i][r].gathered);
        }
    }
}

static void threads_2(void **state)
{
    (void)state;
    with(2, false);
}

static void threads_4(void **state)
{
    (void)state;
    with(4, false);
}

static void processes_2(void **state)
{
    (void)state;
    with(2, true);
}

static void processes_4(void **state)
{
    (void)state;
    with(4, true);
}

/* Kernels sleep too, else "store", which is a kernel and nothing else, would never be disturbed. */
static int sleepy(imbrex_group *group, void *ctx)
{
    (void)ctx;
    float in[2] = { 0 }, out = -1;
    int64_t begin_ns = imbrexd_now_ns();
    for (int i = 0; i < 20; i++)
        RANK_OK(imbrex_silu_mul(group, IMBREX_F32, 1, 1, in, &out, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(took_ms >= 30, "20 kernels that sleep up to 10 ms each took %lld ms, want about 100",
               (long long)took_ms);
    RANK_CHECK(out == 0, "out is %g, want 0", (double)out);
    return 0;
}

static void kernels_sleep(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    setenv("IMBREX_CHAOS", "10", 1);
    assert_int_equal(ranks_run(&desc, sleepy, NULL), 0);
    setenv("IMBREX_CPU_THREADS", "3", 1);
    assert_int_equal(ranks_run(&desc, sleepy, NULL), 0);
    unsetenv("IMBREX_CPU_THREADS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_2),     cmocka_unit_test(threads_4),
        cmocka_unit_test(processes_2),   cmocka_unit_test(processes_4),
        cmocka_unit_test(kernels_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
