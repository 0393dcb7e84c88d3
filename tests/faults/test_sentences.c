/* test_sentences.c - what is said of a wait that reached its deadline, of faults as a rank may
 * leave them: whose fault it may be, and no more than can be known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "group/group.h"
#include "kernels/wait_points.h"
#include "ranks.h"

enum { TIMEOUT_MS = 700 };

/* Rank 0's, as a device leaves it: without a time, and no times of waits to compare it with. */
static void leave_fault(imbrex_group *group, imbrexd_wait_point point)
{
    imbrexd_fault *fault = &imx_control_of(group, 0)->fault;
    *fault =
        (imbrexd_fault){ .kind = IMBREXD_FAULT_DEADLINE, .point = point, .have = 3, .want = 4 };
    __atomic_store_n(&fault->state, 2, __ATOMIC_RELEASE);
    for (int r = 0; r < imbrex_group_size(group); r++)
        __atomic_store_n(group->abort[r], 1, __ATOMIC_RELEASE);
}

/* What rank 0 waited for, for so much of the limit, and how that is said. */
typedef struct wait_seen {
    imbrexd_wait_point point;
    int of_limit; /* 1 / of_limit */
    const char *said;
} wait_seen;

/* Every rank is told of it. */
static int notice(imbrex_group *group, void *ctx)
{
    const wait_seen *seen = ctx;
    char said[200];
    if (imbrex_group_rank(group) == 0)
        leave_fault(group, seen->point);
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    snprintf(said, sizeof said, " waited %lld ms%s",
             (long long)patient(TIMEOUT_MS) / seen->of_limit, seen->said);
    return ranks_expect(group, said);
}

static void expect_notice(wait_seen seen)
{
    ranks_desc desc = { .size = 2, .timeout_ms = TIMEOUT_MS };
    assert_int_equal(ranks_run(&desc, notice, &seen), 0);
}

/* What connects the nodes gives up after half of the limit, and is no barrier. */
static void tells_opening_from_barriers(void **state)
{
    (void)state;
    expect_notice((wait_seen){
        .point = { .plan = IMX_NET_OPENING, .what = IMX_POINT_NET, .rank = 1, .index = -1 },
        .of_limit = 2,
        .said = ", half of the timeout, for the network to or from rank 1 as the group was made: "
                "is rank 1 stopped, busy or in another call?" });
}

static void guesses_nothing_on_devices(void **state)
{
    (void)state;
    expect_notice(
        (wait_seen){ .point = { .what = IMX_POINT_BARRIER, .rank = 1, .index = -1 },
                     .of_limit = 1,
                     .said = " for rank 1 to come to imbrex_barrier (the signal is 3, not yet 4): "
                             "is rank 1 stopped, busy or in another call?" });
    /* What blocks of one kernel wait for comes from others of its blocks. */
    expect_notice((wait_seen){
        .point = { .what = IMX_POINT_BARRIER, .rank = 0, .index = -1 },
        .of_limit = 1,
        .said = " for rank 0 to come to imbrex_barrier (the signal is 3, not yet 4): did other "
                "kernels keep part of this one from running (imbrex.h, Budget)?" });
}

/* Of what is gone, or of a kind that this rank never made. */
static void what_is_gone_is_called_by_its_number(void **state)
{
    (void)state;
    const struct {
        int what;
        const char *said;
    } points[] = {
        { IMX_POINT_CHUNK,
          " for chunk 2 of rank 1 in a destroyed plan (plan 7) (the signal is 3, not yet 4)" },
        { IMBREXD_POINT_DATA, " for data of rank 1 in kernel that has been destroyed" },
    };
    for (size_t i = 0; i < sizeof points / sizeof *points; i++)
        expect_notice(
            (wait_seen){ .point = { .plan = 7, .what = points[i].what, .rank = 1, .index = 2 },
                         .of_limit = 1,
                         .said = points[i].said });
}

/* Those that live are found among each other, and what is gone is said to be. */
static int names_of_plans(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_coll_desc coll = { .m = 8, .n = 8 };
    imbrex_plan *plans[3];
    RANK_OK(imbrex_plan_all_gather(group, &coll, &plans[0]));
    RANK_OK(imbrex_plan_all_reduce(group, &coll, &plans[1]));
    RANK_OK(imbrex_plan_reduce_scatter(group, &coll, &plans[2]));
    imbrex_plan_destroy(plans[1]);
    static const char *const said[] = { "all_gather (plan 1)", "a destroyed plan (plan 2)",
                                        "reduce_scatter (plan 3)", "a destroyed plan (plan 4)" };
    for (int i = 0; i < 4; i++) {
        char words[100] = "";
        imx_text text = { .at = words, .size = sizeof words };
        imx_object_kinds[IMX_OF_LIBRARY]->name(group, i + 1, &text);
        RANK_CHECK(strcmp(words, said[i]) == 0, "'%s', not '%s'", words, said[i]);
    }
    return 0;
}

static void plans_are_called_by_their_numbers(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(&(ranks_desc){ .size = 2 }, names_of_plans, NULL), 0);
}

/* Rank 0 takes four ranks for two nodes, and waits for a chunk of rank 3, which rank 1 brings. */
static int chunk_of_another_node(imbrex_group *group, void *ctx)
{
    int of[] = { 0, 0, 1, 1 }, first[] = { 0, 2, 4 };
    char names[2][IMX_NODES_NAME] = { "here", "there" };
    imx_nodes one = group->nodes;
    imbrex_coll_desc coll = { .m = 8, .n = 8 };
    imbrex_plan *plan;
    (void)ctx;
    RANK_OK(imbrex_plan_all_gather(group, &coll, &plan));
    if (imbrex_group_rank(group) == 0) {
        group->nodes = (imx_nodes){
            .count = 2, .ranks = 2, .equal = true, .of = of, .first = first, .name = names
        };
        leave_fault(group, (imbrexd_wait_point){ .plan = 1, .what = IMX_POINT_CHUNK, .rank = 3 });
    }
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    const char *part = "chunk 0 of rank 3 in all_gather (plan 1), by way of rank 1 (the signal "
                       "is 3, not yet 4): is rank 1 stopped, busy or in another call?";
    int failed = imbrex_group_rank(group) == 0 && ranks_expect(group, part);
    group->nodes = one;
    return failed;
}

static void names_the_rank_of_this_node(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 4, .timeout_ms = TIMEOUT_MS };
    assert_int_equal(ranks_run(&desc, chunk_of_another_node, NULL), 0);
}

/* A run's word has the lower bits of its plan's number: the nearest plan is meant. */
static void a_runs_plan_is_the_nearest(void **state)
{
    (void)state;
    static const int plans[][2] = { { 1, 1 },       { 1, 4000 },      { 8191, 8192 },
                                    { 8192, 8191 }, { 20000, 20100 }, { 24577, 24575 } };
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        uint64_t word = imx_agree_run_word(77, plans[i][1], 5);
        assert_int_equal(imx_agree_run_plan(word, plans[i][0]), plans[i][1]);
        assert_int_equal(imx_agree_run_m(word), 5);
    }
}

/* Whatever a variable, a file's name or another rank has put into it. */
static void no_sentence_talks_to_a_terminal(void **state)
{
    (void)state;
    const char *name = "a\x1b[31m b\xc2\x9b c\x7f\r d\ne\tf \xc3\x9b\xc2\xa0";
    assert_int_equal(imx_fail(IMBREX_INVALID, "RANK=%s", name), IMBREX_INVALID);
    assert_string_equal(imx_status_detail(), "RANK=a?[31m b? c?? d\ne\tf \xc3\x9b\xc2\xa0");
    imbrex_group *group;
    setenv("RANK", name, 1);
    setenv("WORLD_SIZE", "2", 1);
    assert_int_equal(imbrex_group_create(&(imbrex_group_desc){ 0 }, &group), IMBREX_INVALID);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    assert_non_null(strstr(imbrex_error(), "RANK=a?[31m b? c?? d\ne\tf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_runs_plan_is_the_nearest),
        cmocka_unit_test(guesses_nothing_on_devices),
        cmocka_unit_test(tells_opening_from_barriers),
        cmocka_unit_test(what_is_gone_is_called_by_its_number),
        cmocka_unit_test(plans_are_called_by_their_numbers),
        cmocka_unit_test(names_the_rank_of_this_node),
        cmocka_unit_test(no_sentence_talks_to_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
