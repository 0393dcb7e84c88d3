/* test_split.c - groups of some ranks of another: who is in which, and what fails stays there. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "ranks.h"

enum { MOST = 6, ROWS = 3, COLUMNS = 8 };

/* All ranks gather their rank of the world: those of child must be want[size]. */
static int gather_is(imbrex_group *child, const int *want, int size, int world)
{
    float a[ROWS * COLUMNS], c[MOST * ROWS * COLUMNS];
    imbrex_plan *plan;
    RANK_CHECK(imbrex_group_size(child) == size, "%d ranks, want %d", imbrex_group_size(child),
               size);
    RANK_CHECK(want[imbrex_group_rank(child)] == world, "rank %d of the child is rank %d",
               imbrex_group_rank(child), world);
    imbrex_coll_desc desc = { .m = (int64_t)size * ROWS, .n = COLUMNS, .dtype = IMBREX_F32 };
    RANK_OK(imbrex_plan_all_gather(child, &desc, &plan));
    for (int run = 0; run < 20; run++) {
        for (int i = 0; i < ROWS * COLUMNS; i++)
            a[i] = (float)(world + 100 * run);
        RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = c }, NULL));
        RANK_OK(imbrex_stream_sync(child, NULL));
        for (int i = 0; i < size * ROWS * COLUMNS; i++)
            RANK_CHECK(c[i] == (float)(want[i / (ROWS * COLUMNS)] + 100 * run),
                       "element %d of run %d is %g", i, run, (double)c[i]);
    }
    imbrex_plan_destroy(plan);
    return 0;
}

/* One split: each rank's color and key, and who is in its child then, in order; -1: the end. */
typedef struct split_case {
    int size;
    int color[MOST], key[MOST];
    int child[MOST][MOST + 1];
} split_case;

static const split_case cases[] = {
    { 4, { 0, 0, 1, 1 }, { 0 }, { { 0, 1, -1 }, { 0, 1, -1 }, { 2, 3, -1 }, { 2, 3, -1 } } },
    { 4, { 0, 1, 0, 1 }, { 0 }, { { 0, 2, -1 }, { 1, 3, -1 }, { 0, 2, -1 }, { 1, 3, -1 } } },
    { 6,
      { 7, 7, 7, 2, 2, 2 },
      { 0 },
      { { 0, 1, 2, -1 },
        { 0, 1, 2, -1 },
        { 0, 1, 2, -1 },
        { 3, 4, 5, -1 },
        { 3, 4, 5, -1 },
        { 3, 4, 5, -1 } } },
    { 6,
      { 0, 1, 2, 0, 1, 2 },
      { 0 },
      { { 0, 3, -1 }, { 1, 4, -1 }, { 2, 5, -1 }, { 0, 3, -1 }, { 1, 4, -1 }, { 2, 5, -1 } } },
    /* uneven, one alone, one in none, keys reversed and negative */
    { 4, { 0, 0, 0, 1 }, { 0 }, { { 0, 1, 2, -1 }, { 0, 1, 2, -1 }, { 0, 1, 2, -1 }, { 3, -1 } } },
    { 4, { 5, -1, 5, 5 }, { 0 }, { { 0, 2, 3, -1 }, { -1 }, { 0, 2, 3, -1 }, { 0, 2, 3, -1 } } },
    { 4, { -1, -1, -1, -7 }, { 0 }, { { -1 }, { -1 }, { -1 }, { -1 } } },
    { 4,
      { 1, 1, 1, 1 },
      { 3, 2, 1, -9 },
      { { 3, 2, 1, 0, -1 }, { 3, 2, 1, 0, -1 }, { 3, 2, 1, 0, -1 }, { 3, 2, 1, 0, -1 } } },
    { 1, { 0 }, { 0 }, { { 0, -1 } } },
};

static int split_as(imbrex_group *group, void *ctx)
{
    const split_case *c = ctx;
    int me = imbrex_group_rank(group), size = 0;
    while (c->child[me][size] >= 0)
        size++;
    imbrex_group *child = group;
    RANK_OK(imbrex_group_split(group, c->color[me], c->key[me], &child));
    RANK_CHECK((child == NULL) == (size == 0), "child %p of %d ranks", (void *)child, size);
    int failed = child ? gather_is(child, c->child[me], size, me) : 0;
    static const int all[] = { 0, 1, 2, 3, 4, 5 };
    failed = failed || gather_is(group, all, c->size, me); /* the parent is as it was */
    imbrex_group_destroy(child);
    return failed;
}

static void splits(bool processes, int node_ranks)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        split_case c = cases[i];
        ranks_desc desc = { .size = c.size, .processes = processes, .node_ranks = node_ranks };
        if (ranks_run(&desc, split_as, &c))
            fail_msg("case %zu, %s", i, processes ? "processes" : "threads");
    }
}

static void threads_split(void **state)
{
    (void)state;
    splits(false, 0);
}

static void processes_split(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    splits(true, 0);
}

/* ---- Tensor parallel x data parallel --------------------------------------------------------- */

/* Two children of each rank at once, a child of a child, and the parent gone before them. */
static int grid(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int me = imbrex_group_rank(group);
    imbrex_group *tp, *dp, *one, *outer;
    RANK_OK(imbrex_group_split(group, 0, 0, &outer));
    RANK_OK(imbrex_group_split(outer, me / 2, me, &tp));
    RANK_OK(imbrex_group_split(outer, me % 2, me, &dp));
    RANK_OK(imbrex_group_split(tp, me % 2, 0, &one));
    imbrex_group_destroy(outer);
    const int tp_ranks[] = { me / 2 * 2, me / 2 * 2 + 1 }, dp_ranks[] = { me % 2, me % 2 + 2 };
    int failed = gather_is(tp, tp_ranks, 2, me) || gather_is(dp, dp_ranks, 2, me) ||
                 gather_is(one, &me, 1, me);

    float a[2][ROWS * COLUMNS], c[2][2 * ROWS * COLUMNS];
    imbrex_group *groups[2] = { tp, dp };
    imbrex_plan *plans[2];
    imbrex_coll_desc desc = { .m = 2 * ROWS, .n = COLUMNS, .dtype = IMBREX_F32 };
    for (int g = 0; g < 2; g++) {
        RANK_OK(imbrex_plan_all_gather(groups[g], &desc, &plans[g]));
        for (int i = 0; i < ROWS * COLUMNS; i++)
            a[g][i] = (float)(10 * g + me);
    }
    for (int run = 0; run < 20; run++) /* both are under way, in another order on each rank */
        for (int i = 0; i < 2; i++) {
            int g = (i + me) % 2;
            RANK_OK(imbrex_plan_run(plans[g], &(imbrex_args){ .a = a[g], .c = c[g] }, NULL));
        }
    for (int g = 0; g < 2; g++) {
        RANK_OK(imbrex_stream_sync(groups[g], NULL));
        const int *of = g ? dp_ranks : tp_ranks;
        for (int i = 0; i < 2 * ROWS * COLUMNS; i++)
            RANK_CHECK(c[g][i] == (float)(10 * g + of[i / (ROWS * COLUMNS)]), "%d: %g", i,
                       (double)c[g][i]);
    }
    imbrex_group_destroy(one);
    imbrex_group_destroy(dp);
    imbrex_group_destroy(tp);
    return failed;
}

static void a_grid_of_groups(void **state)
{
    (void)state;
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++)
        assert_int_equal(ranks_run(&(ranks_desc){ .size = 4, .processes = processes }, grid, NULL),
                         0);
}

/* ---- What goes wrong ------------------------------------------------------------------------- */

static int bad_argument(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int me = imbrex_group_rank(group);
    imbrex_group *child = group;
    imbrex_status status = imbrex_group_split(group, 0, 0, me == 1 ? NULL : &child);
    RANK_CHECK(status == (me == 1 ? IMBREX_INVALID : IMBREX_PEER), "%s", imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), me == 1 ? "child" : "rank 1 failed"), "%s", imbrex_error());
    RANK_CHECK(child == group, "an output was written");
    RANK_CHECK(imbrex_group_split(NULL, 0, 0, &child) == IMBREX_INVALID, "no group");
    RANK_OK(imbrex_group_split(group, 0, 0, &child)); /* the parent lives on */
    imbrex_group_destroy(child);
    return 0;
}

static int another_call(imbrex_group *group, void *ctx)
{
    (void)ctx;
    void *memory;
    imbrex_group *child;
    imbrex_status status = imbrex_group_rank(group) == 2 ? imbrex_mem_alloc(group, 64, &memory)
                                                         : imbrex_group_split(group, 0, 0, &child);
    RANK_CHECK(status == IMBREX_PEER && strstr(imbrex_error(), "different collective calls") &&
                   strstr(imbrex_error(), "imbrex_group_split"),
               "%s", imbrex_error());
    return 0;
}

static void ranks_differ(void **state)
{
    (void)state;
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++) {
        ranks_desc desc = { .size = 3, .processes = processes };
        assert_int_equal(ranks_run(&desc, bad_argument, NULL), 0);
        assert_int_equal(ranks_run(&desc, another_call, NULL), 0);
    }
}

/* What one child's ranks do does not reach the other's, nor the parent. */
static int abort_one(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int me = imbrex_group_rank(group);
    static const int all[] = { 0, 1, 2, 3 };
    imbrex_group *child;
    RANK_OK(imbrex_group_split(group, me / 2, 0, &child));
    if (me == 0)
        imbrex_group_abort(child);
    if (me < 2) {
        imbrex_status status = imbrex_barrier(child, NULL);
        if (status == IMBREX_OK)
            status = imbrex_stream_sync(child, NULL);
        RANK_CHECK(status == IMBREX_PEER, "%s", imbrex_error());
    } else if (gather_is(child, &all[2], 2, me)) {
        return 1;
    }
    int failed = gather_is(group, all, 4, me);
    imbrex_group_destroy(child);
    return failed;
}

static void a_failed_child_fails_alone(void **state)
{
    (void)state;
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++)
        assert_int_equal(
            ranks_run(&(ranks_desc){ .size = 4, .processes = processes }, abort_one, NULL), 0);
}

/* Rank 3 dies: its child and the parent hear of it, the other child goes on. */
static int die_as_3(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int me = imbrex_group_rank(group);
    static const int first[] = { 0, 1 };
    imbrex_group *child;
    RANK_OK(imbrex_group_split(group, me / 2, 0, &child));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (me == 3) {
        usleep((useconds_t)patient(300) * 1000); /* until the others are out of that sync, too */
        kill(getpid(), SIGKILL);
    }
    if (me == 2) {
        RANK_OK(imbrex_barrier(child, NULL));
        if (ranks_expect(child, "rank 1")) /* of the child */
            return 1;
    } else if (gather_is(child, first, 2, me)) {
        return 1;
    }
    imbrex_status status = imbrex_barrier(group, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    RANK_CHECK(status == IMBREX_PEER && strstr(imbrex_error(), "rank 3"), "%s", imbrex_error());
    int failed = me < 2 && gather_is(child, first, 2, me);
    imbrex_group_destroy(child);
    return failed;
}

static void a_rank_of_a_child_dies(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    assert_int_equal(ranks_run(&(ranks_desc){ .size = 4, .processes = true }, die_as_3, NULL), 1);
}

/* ---- On GPUs --------------------------------------------------------------------------------- */

static int on_the_same_gpu(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int me = imbrex_group_rank(group);
    imbrex_group *child;
    void *memory, *peer;
    RANK_OK(imbrex_group_split(group, me % 2, 0, &child));
    RANK_CHECK(strcmp(imbrex_group_device(child), imbrex_group_device(group)) == 0, "%s, not %s",
               imbrex_group_device(child), imbrex_group_device(group));
    RANK_OK(imbrex_mem_alloc(child, 4096, &memory));
    RANK_OK(imbrex_mem_peer(child, memory, 1 - imbrex_group_rank(child), &peer));
    RANK_CHECK(peer && peer != memory, "%p", peer);
    RANK_OK(imbrex_signal_post(child, memory, 1, 1 - imbrex_group_rank(child), NULL));
    RANK_OK(imbrex_signal_wait(child, memory, 1, NULL));
    RANK_OK(imbrex_barrier(child, NULL));
    RANK_OK(imbrex_stream_sync(child, NULL));
    imbrex_group_destroy(child);
    return 0;
}

static void gpus_split(void **state)
{
    (void)state;
    for (int gpus = 1; gpus <= 4; gpus *= 2)
        assert_int_equal(fake_ranks_run(&(ranks_desc){ .size = 4 }, gpus, on_the_same_gpu, NULL),
                         0);
}

int main(void)
{
    fake_ranks_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_split),
        cmocka_unit_test(processes_split),
        cmocka_unit_test(a_grid_of_groups),
        cmocka_unit_test(ranks_differ),
        cmocka_unit_test(a_failed_child_fails_alone),
        cmocka_unit_test(a_rank_of_a_child_dies),
        cmocka_unit_test(gpus_split),
    };
    int failed = cmocka_run_group_tests_name("split", tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
