/* test_op_rotate.c - an operator of copies and signals alone, made by nothing but
 * docs/internals/adding_an_operator.md: c = a of the next rank, (r + 1) % R.
 *
 * copy        caller   | wait 0 | copy 0 to c | wait 1 | copy 1 to c | ...
 *             second   | push chunk 0 to the rank before | flag | chunk 1 | flag | ...
 *
 * sequential  caller   | push all chunks, flags | wait for all | copy all to c |
 *
 * In shared data, per buffer: [most rows, n], the next rank's rows; signal q: its chunk q is here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "net_threads.h"
#include "ops/transfer.h"
#include "plan/descs.h"
#include "reference.h"

/* ---- the operator ---------------------------------------------------------------------------- */

static void layout(const imx_variant *variant, imx_needs *needs)
{
    const imx_shape *s = &variant->shape;
    int ranks = variant->plan->group->size;
    if (ranks == 1)
        return;
    needs->data_bytes =
        (size_t)imx_ceil_div(s->m, ranks) * (size_t)s->n * imx_dtype_bytes(s->dtype);
    needs->signals = (size_t)variant->config.chunks;
}

static int next_of(const imx_run *run)
{
    return (run->rank + 1) % run->ranks;
}

/* Own rows to the rank before. */
static imbrex_status push(const imx_run *run, imbrex_stream stream, bool posts)
{
    int to = (run->rank + run->ranks - 1) % run->ranks;
    int64_t width = run->variant->shape.n;
    for (int q = 0; q < imx_run_chunks(run, run->rank); q++) {
        size_t at = imx_transfer_chunk_at(run, q, width);
        IMX_TRY(imx_run_copy(run, stream, (char *)imx_run_data(run, to) + at,
                             (const char *)run->args->a + at,
                             imx_transfer_chunk_bytes(run, run->rank, q, width), to));
        if (posts)
            IMX_TRY(imx_run_post(run, stream, imx_run_signal(run, to) + q, to));
    }
    return IMBREX_OK;
}

static imbrex_status wait_chunk(const imx_run *run, int q)
{
    return imx_run_wait(run, run->stream, imx_run_signal(run, run->rank) + q, IMX_POINT_CHUNK,
                        next_of(run), q);
}

static imbrex_status take_chunk(const imx_run *run, int q)
{
    int64_t width = run->variant->shape.n;
    size_t at = imx_transfer_chunk_at(run, q, width);
    return imx_run_copy(run, run->stream, (char *)run->args->c + at,
                        (const char *)imx_run_data(run, run->rank) + at,
                        imx_transfer_chunk_bytes(run, next_of(run), q, width), run->rank);
}

static imbrex_status run_copy(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(push(run, run->plan->comm, true));
    for (int q = 0; q < imx_run_chunks(run, next_of(run)); q++) {
        IMX_TRY(wait_chunk(run, q));
        IMX_TRY(take_chunk(run, q));
    }
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status in_sequence(const imx_run *run, bool posts, bool waits)
{
    int chunks = imx_run_chunks(run, next_of(run));
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(push(run, run->stream, posts));
    for (int q = 0; q < chunks && waits; q++)
        IMX_TRY(wait_chunk(run, q));
    for (int q = 0; q < chunks; q++)
        IMX_TRY(take_chunk(run, q));
    return imx_run_end(run);
}

/* One rank alone is its own next one. */
static imbrex_status run_sequential(const imx_run *run)
{
    size_t bytes = (size_t)run->m * imx_transfer_row_bytes(run, run->variant->shape.n);
    if (run->ranks == 1)
        return imx_run_copy(run, run->stream, run->args->c, run->args->a, bytes, run->rank);
    return in_sequence(run, true, true);
}

static imbrex_status run_without_wait(const imx_run *run)
{
    return in_sequence(run, true, false);
}

static imbrex_status run_without_post(const imx_run *run)
{
    return in_sequence(run, run->rank != 0, true);
}

/* Of the bytes that a rank of a gather sends, those to one peer. */
static double copy_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_copy_cost(rates, p->sent / imx_max(1, p->in->ranks - 1));
}

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_sequential_cost(rates, p->sent / imx_max(1, p->in->ranks - 1));
}

static int64_t rows_of_next(const imx_asked *asked, int64_t m, int which)
{
    int ranks = asked->group->size, next = (asked->group->rank + 1) % ranks;
    (void)which;
    return imx_team_row(m, ranks, next + 1) - imx_team_row(m, ranks, next);
}

/* c may have a row more than a: so c is never a. */
static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[rows, n]", "own rows", IMX_OWN_ROWS, IMX_N),
    IMX_MATRIX_OF(c, IMBREX_FIELD_OUTPUT, false, "[rows of the next rank, n]",
                  "a of rank (r + 1) % size", IMX_OF_OP, IMX_N),
    IMX_ARGS_M,
};

static const imx_op rotate = {
    IMX_OP(rotate, "c = a of the next rank", imbrex_coll_desc, imx_coll_desc, args),
    .blanks[1] = IMX_BLANK_OF_OTHERS(imbrex_coll_desc, norm),
    .extent = rows_of_next,
    .algorithms = {
        { .name = "copy", .cost = copy_cost, .layout = layout, .run = run_copy },
        { .name = "sequential", .cost = sequential_cost, .layout = layout, .run = run_sequential },
    },
};

/* What the protocol checker is there for. */
static const imx_op mistaken = {
    IMX_OP(rotate, "c = a of the next rank", imbrex_coll_desc, imx_coll_desc, args),
    .blanks[1] = IMX_BLANK_OF_OTHERS(imbrex_coll_desc, norm),
    .extent = rows_of_next,
    .algorithms = {
        { .name = "no wait", .layout = layout, .run = run_without_wait },
        { .name = "no post", .layout = layout, .run = run_without_post },
    },
};

/* ---- runs ------------------------------------------------------------------------------------ */

enum { RUNS = 12, BESIDE = 64, UNTOUCHED = 0xa5 };

static const imbrex_coll_desc shapes[] = {
    { .m = 0, .n = 5 },
    { .m = 1, .n = 1 },
    { .m = 2, .n = 33 }, /* of three ranks and more, some have none */
    { .m = 7, .n = 5, .chunk_rows = 1 },
    { .m = 45, .n = 24, .chunk_rows = 4 },
    { .m = 9, .n = 0 },
    { .m = 1000, .n = 130 }, /* so many that "copy" is chosen */
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Rows of a rank in a run of m. */
static int64_t rows_of(int64_t m, int ranks, int r)
{
    return rank_row(m, ranks, r + 1) - rank_row(m, ranks, r);
}

/* args.m of a run: all rows, fewer than there are ranks, somewhat fewer, none. */
static int64_t asked_in(const imbrex_coll_desc *desc, int run)
{
    const int64_t rows[] = { desc->m, 1, desc->m - desc->m / 3, 0, IMBREX_NONE, desc->m / 2 };
    return imx_min(rows[run % 6], desc->m);
}

/* What a rank has in a run, where everybody can find it out. */
static int input_of(int rank, int run)
{
    return 100 * run + rank;
}

/* The operands of one run: in front of c and behind it lies what nobody may touch. */
typedef struct operands {
    char *a, *room, *c;
    int64_t have, want; /* elements */
    size_t element;
} operands;

static operands operands_of(imbrex_group *group, const imbrex_coll_desc *desc, int run)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    int64_t m = imx_count(asked_in(desc, run), desc->m);
    operands o = { .have = rows_of(m, ranks, rank) * desc->n,
                   .want = rows_of(m, ranks, (rank + 1) % ranks) * desc->n,
                   .element = element_bytes(desc->dtype) };
    size_t bytes = (size_t)o.want * o.element + 2 * BESIDE;
    o.a = malloc((size_t)o.have * o.element + 1);
    o.room = malloc(bytes);
    o.c = o.room + BESIDE;
    memset(o.room, UNTOUCHED, bytes);
    input_fill(desc->dtype, input_of(rank, run), 0, o.a, o.have);
    return o;
}

static int check_operands(imbrex_group *group, const imbrex_coll_desc *desc, int run,
                          const operands *o)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    size_t bytes = (size_t)o->want * o->element;
    char *want = malloc(bytes + 1);
    input_fill(desc->dtype, input_of((rank + 1) % ranks, run), 0, want, o->want);
    int differs = memcmp(o->c, want, bytes);
    free(want);
    RANK_CHECK(!differs, "%s of %d x %d, run %d, rank %d: not the next rank's rows",
               desc->algorithm ? desc->algorithm : "chosen", (int)desc->m, (int)desc->n, run, rank);
    for (size_t i = 0; i < BESIDE; i++)
        RANK_CHECK(
            (unsigned char)o->room[i] == UNTOUCHED && (unsigned char)o->c[bytes + i] == UNTOUCHED,
            "%s of %d x %d, run %d, rank %d: a byte beside c",
            desc->algorithm ? desc->algorithm : "chosen", (int)desc->m, (int)desc->n, run, rank);
    return 0;
}

static imbrex_status run_plan(imbrex_plan *plan, const imbrex_coll_desc *desc, int run,
                              const operands *o)
{
    imbrex_args given = { .a = o->have ? o->a : NULL,
                          .c = o->want ? o->c : NULL,
                          .m = asked_in(desc, run) };
    return imbrex_plan_run(plan, &given, NULL);
}

/* Both algorithms give all bits of the next rank's, so those of each other. */
static int run_many(imbrex_group *group, const imbrex_coll_desc *desc)
{
    imbrex_plan *plan;
    operands o[RUNS];
    int failed = 0;
    RANK_OK(imx_plan_create(group, &rotate, desc, &plan));
    for (int run = 0; run < RUNS; run++) { /* back to back, so that they overlap */
        o[run] = operands_of(group, desc, run);
        RANK_OK(run_plan(plan, desc, run, &o[run]));
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int run = 0; run < RUNS; run++) {
        failed = failed || check_operands(group, desc, run, &o[run]);
        free(o[run].a);
        free(o[run].room);
    }
    imbrex_plan_destroy(plan);
    return failed;
}

static int everything(imbrex_group *group, void *ctx)
{
    static const char *const algorithms[] = { "copy", "sequential", NULL };
    (void)ctx;
    for (int i = 0; i < SHAPES * 3 * 3; i++) {
        imbrex_coll_desc desc = shapes[i / 9];
        desc.dtype = (imbrex_dtype)(IMBREX_BF16 + i / 3 % 3);
        desc.algorithm = algorithms[i % 3];
        if (run_many(group, &desc))
            return 1;
    }
    return 0;
}

/* ---- on every kind of rank ------------------------------------------------------------------- */

static void cpu_ranks(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++) {
        ranks_desc desc = { .size = size };
        assert_int_equal(ranks_run(&desc, everything, NULL), 0);
    }
}

static void cpu_processes(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3, .processes = true };
    if (!RANKS_PROCESSES)
        skip();
    assert_int_equal(ranks_run(&desc, everything, NULL), 0);
}

static void fake_gpus(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) {
        ranks_desc desc = { .size = size };
        assert_int_equal(fake_ranks_run(&desc, size == 4 ? 1 : size, everything, NULL), 0);
    }
}

static void fake_processes(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3, .processes = true };
    if (!RANKS_PROCESSES)
        skip();
    assert_int_equal(fake_ranks_run(&desc, 3, everything, NULL), 0);
}

/* ---- what it is for, and what it is not ------------------------------------------------------ */

/* Small shares by one stream, large ones by two; on a GPU always by two. */
static int is_chosen(imbrex_group *group, void *ctx)
{
    bool gpu = *(const bool *)ctx;
    for (int large = 0; large < 2; large++) {
        const imbrex_coll_desc desc = { .m = large ? 1000 : 10, .n = 100, .dtype = IMBREX_F32 };
        const char *want = gpu || large ? "copy" : "sequential";
        imbrex_plan *plan;
        RANK_OK(imx_plan_create(group, &rotate, &desc, &plan));
        imx_plan_facts facts = imx_describe_facts(plan);
        RANK_CHECK(strcmp(facts.algorithm, want) == 0, "%s, not %s", facts.algorithm, want);
        imbrex_plan_destroy(plan);
    }
    return 0;
}

static void chooses(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, is_chosen, &(bool){ false }), 0);
    assert_int_equal(fake_ranks_run(&desc, 2, is_chosen, &(bool){ true }), 0);
}

static int says(imbrex_group *group, void *ctx)
{
    enum { M = 10, N = 3, RANKS = 3 };
    float memory[2 * M * N] = { 0 };
    int rank = imbrex_group_rank(group);
    imbrex_coll_desc desc = { .m = M, .n = N, .dtype = IMBREX_F32, .algorithm = "store" };
    imbrex_plan *plan;
    int64_t dims[4];
    imbrex_dtype dtype;
    (void)ctx;
    RANK_CHECK(imx_plan_create(group, &rotate, &desc, &plan) == IMBREX_UNSUPPORTED &&
                   strstr(imbrex_error(), "rotate has \"copy\", \"sequential\" here"),
               "%s", imbrex_error());
    desc.algorithm = NULL;
    desc.norm.rms = 1;
    RANK_CHECK(imx_plan_create(group, &rotate, &desc, &plan) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "desc.norm must be 0 for rotate"),
               "%s", imbrex_error());
    desc.norm.rms = 0;
    RANK_OK(imx_plan_create(group, &rotate, &desc, &plan));
    for (int i = 0; i < 2; i++) { /* a, then c, which on some ranks has another number of rows */
        int64_t rows = rows_of(M, RANKS, (rank + i) % RANKS);
        RANK_OK(imbrex_plan_operand(plan, i, 0, dims, &dtype));
        RANK_CHECK(dims[0] == rows && dims[1] == N && dims[2] == -1, "operand %d is %d x %d", i,
                   (int)dims[0], (int)dims[1]);
    }
    for (int i = 0; i < 2; i++) { /* in place, and one element into it */
        imbrex_args wrong = { .a = memory, .c = memory + i };
        RANK_CHECK(imbrex_plan_run(plan, &wrong, NULL) == IMBREX_INVALID &&
                       strstr(imbrex_error(), "args.c overlaps args.a"),
                   "%s", imbrex_error());
    }
    imbrex_args wrong = { .a = memory, .b = memory, .c = memory + M * N };
    RANK_CHECK(imbrex_plan_run(plan, &wrong, NULL) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "args.b must be NULL for rotate"),
               "%s", imbrex_error());
    imbrex_plan_destroy(plan);
    return 0;
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3 };
    assert_int_equal(ranks_run(&desc, says, NULL), 0);
    assert_int_equal(fake_ranks_run(&desc, 3, says, NULL), 0);
}

static int refused(imbrex_group *group, void *ctx)
{
    const imbrex_coll_desc desc = { .m = 8, .n = 8 };
    imbrex_plan *plan;
    (void)ctx;
    RANK_CHECK(imx_plan_create(group, &rotate, &desc, &plan) == IMBREX_UNSUPPORTED &&
                   strstr(imbrex_error(), "rotate is for ranks of one node, and these are on 2"),
               "%s", imbrex_error());
    return 0;
}

static void not_over_nodes(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 4, .node_ranks = 2 };
    imx_net_of_test = &net_threads; /* else no group is made over nodes */
    net_threads_reset();
    int failed = ranks_run(&desc, refused, NULL);
    imx_net_of_test = NULL;
    assert_int_equal(failed, 0);
}

/* ---- under the protocol checker -------------------------------------------------------------- */

typedef struct mistake {
    const char *algorithm, *says, * or ; /* or this, if the other side comes second */
} mistake;

static const mistake mistakes[] = {
    { "no wait", "no signal orders it after that", "which nobody has written" },
    { "no post", "that nobody will satisfy", NULL },
};

static int is_found(imbrex_group *group, void *ctx)
{
    const mistake *what = ctx;
    const imbrex_coll_desc desc = {
        .m = 45, .n = 24, .dtype = IMBREX_F32, .algorithm = what->algorithm, .chunk_rows = 4
    };
    imbrex_plan *plan;
    operands o = operands_of(group, &desc, 0);
    RANK_OK(imx_plan_create(group, &mistaken, &desc, &plan));
    imbrex_status status = IMBREX_OK;
    for (int i = 0; i < 3 && status == IMBREX_OK; i++)
        status = run_plan(plan, &desc, 0, &o);
    imbrex_status synced = imbrex_stream_sync(group, NULL);
    status = status == IMBREX_OK ? synced : status;
    free(o.a);
    free(o.room);
    RANK_CHECK(
        status == IMBREX_INTERNAL && strstr(imbrex_error(), "IMBREX_CHECK: ") &&
            strstr(imbrex_error(), "rotate") &&
            (strstr(imbrex_error(), what->says) || (what->or &&strstr(imbrex_error(), what->or))),
        "%s: %s, \"%s\"", what->algorithm, imbrex_status_name(status),
        status == IMBREX_OK ? "" : imbrex_error());
    return 0; /* the group has failed: its plan goes with it */
}

static void checked(void **state)
{
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* the checker's locks hide from it what operators do */
    setenv("IMBREX_CHECK", "1", 1);
    int failed = 0;
    for (int size = 2; size <= 4; size++) {
        ranks_desc desc = { .size = size };
        failed += ranks_run(&desc, everything, NULL);
        for (int i = 0; i < 2; i++)
            failed += ranks_run(&desc, is_found, (void *)&mistakes[i]);
    }
    unsetenv("IMBREX_CHECK");
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_ranks), cmocka_unit_test(cpu_processes),
        cmocka_unit_test(fake_gpus), cmocka_unit_test(fake_processes),
        cmocka_unit_test(chooses),   cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(checked),   cmocka_unit_test(not_over_nodes),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
