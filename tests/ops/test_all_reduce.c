/* test_all_reduce.c - what a sum over all ranks promises beyond the table of cases: in place, and
 * the same bits on every rank, by every algorithm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"
#include "reference.h"
#include "tuned.h"

typedef struct shape {
    int64_t m, n;
} shape;

static const shape shapes[] = { { 1, 1 },    { 5, 7 },    { 64, 33 },
                                { 1, 4099 }, { 2500, 1 }, { 70, 1001 } };

/* Bits of a result, which the first rank to come leaves for all others. */
typedef struct board {
    uint64_t hash[sizeof shapes / sizeof *shapes][3]; /* by shape and dtype */
} board;

static uint64_t hash_of(const char *bytes, size_t count)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < count; i++)
        h = (h ^ (unsigned char)bytes[i]) * 1099511628211u;
    return h | 1;
}

/* Not in place, in place, and not once more. */
static int run(imbrex_group *group, board *b, int algorithm, size_t s, imbrex_dtype dtype)
{
    static const char *const names[] = { "sequential", "copy", "store", "ll", "ll2" };
    const int64_t count = shapes[s].m * shapes[s].n;
    const size_t bytes = (size_t)count * element_bytes(dtype);
    imbrex_coll_desc desc = {
        .m = shapes[s].m, .n = shapes[s].n, .dtype = dtype, .algorithm = names[algorithm]
    };
    imbrex_plan *plan;
    char *a = malloc(bytes), *c = malloc(bytes);
    RANK_OK(imbrex_plan_all_reduce(group, &desc, &plan));
    for (int form = 0; form < 3; form++) {
        char *to = form == 1 ? a : c;
        input_fill(dtype, imbrex_group_rank(group), 0, a, count);
        memset(c, 0xff, bytes);
        RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = to }, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        uint64_t none = 0, mine = hash_of(to, bytes), *all = &b->hash[s][dtype - IMBREX_BF16];
        if (!__atomic_compare_exchange_n(all, &none, mine, false, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            RANK_CHECK(none == mine, "%s of %d x %d, form %d: other bits", names[algorithm],
                       (int)desc.m, (int)desc.n, form);
    }
    imbrex_plan_destroy(plan);
    free(a);
    free(c);
    return 0;
}

static int runs(imbrex_group *group, void *ctx)
{
    for (int algorithm = 0; algorithm < 5; algorithm++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++)
                if (run(group, ctx, algorithm, s, (imbrex_dtype)dtype))
                    return 1;
    return 0;
}

static void in_place_and_alike(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 3, 5, 8 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        board *b = calloc(1, sizeof *b);
        ranks_desc desc = { .size = sizes[i] };
        assert_int_equal(ranks_run(&desc, runs, b), 0);
        free(b);
    }
}

static int overlaps(imbrex_group *group, void *ctx)
{
    (void)ctx;
    float a[20] = { 0 };
    imbrex_coll_desc desc = { .m = 4, .n = 3, .dtype = IMBREX_F32 };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_reduce(group, &desc, &plan));
    imbrex_status status = imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = a + 1 }, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "args.c overlaps args.a"), "%s",
               imbrex_error());
    imbrex_plan_destroy(plan);
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plan));
    status = imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = a }, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "args.c overlaps args.a"), "%s",
               imbrex_error());
    imbrex_plan_destroy(plan);
    return 0;
}

static void beside_it_is_refused(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, overlaps, NULL), 0);
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* What was the soonest on two and four H200s, at rows of 8192: 16 KB to 64 MB.  A norm does not
 * change it. */
static void takes_what_was_the_soonest(void **state)
{
    (void)state;
    static const struct {
        int m;
        const char *by_two, *by_four;
    } measured[] = { { 1, "ll", "ll" },     { 16, "ll", "ll" },     { 64, "ll2", "ll2" },
                     { 256, "ll2", "ll2" }, { 1024, "ll2", "ll2" }, { 4096, "store", "store" } };
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        for (int norms = 0; norms <= 1; norms++) {
            assert_true(tuned_takes(&imx_op_all_reduce, measured[i].m, 8192, 0, 2, norms,
                                    measured[i].by_two));
            assert_true(tuned_takes(&imx_op_all_reduce, measured[i].m, 8192, 0, 4, norms,
                                    measured[i].by_four));
        }
    }
}

/* Who norms rows beneath what it sends is ahead sooner; of rows that are too long nobody does. */
static void a_norm_counts(void **state)
{
    (void)state;
    assert_true(tuned_takes(&imx_op_all_reduce, 2200, 8192, 0, 2, false, "ll2"));
    assert_true(tuned_takes(&imx_op_all_reduce, 2200, 8192, 0, 2, true, "store"));
    assert_true(tuned_takes(&imx_op_all_reduce, 2200 / 4, 8192 * 4, 0, 2, false, "ll2"));
    assert_true(tuned_takes(&imx_op_all_reduce, 2200 / 4, 8192 * 4, 0, 2, true, "ll2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_was_the_soonest),
        cmocka_unit_test(a_norm_counts),
        cmocka_unit_test(in_place_and_alike),
        cmocka_unit_test(beside_it_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
