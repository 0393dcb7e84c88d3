/* test_gate.c - imbrex_topk_gate on CPU ranks, and what it refuses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gate_cases.h"
#include "ranks.h"

static void chooses(void **state)
{
    (void)state;
    static const char *const threads[] = { "1", "3" };
    for (int i = 0; i < 2; i++) {
        ranks_desc desc = { .size = 1 + i };
        setenv("IMBREX_CPU_THREADS", threads[i], 1);
        assert_int_equal(ranks_run(&desc, gate_cases, NULL), 0);
    }
    unsetenv("IMBREX_CPU_THREADS");
}

enum { TOKENS = 2, EXPERTS = 8, TOP = 2 };

#define REFUSED(status, says, ...)                                                              \
    do {                                                                                        \
        RANK_CHECK(imbrex_topk_gate(__VA_ARGS__) == (status) && strstr(imbrex_error(), says) && \
                       strstr(imbrex_error(), "topk_gate"),                                     \
                   "%s", imbrex_error());                                                       \
    } while (0)

/* One field of a good gate is made wrong. */
#define WRONG(field, value, says)                                                           \
    do {                                                                                    \
        imbrex_gate wrong = good;                                                           \
        wrong.field = (value);                                                              \
        REFUSED(IMBREX_INVALID, says, g, &wrong, TOKENS, logits, NULL, ids, weights, NULL); \
    } while (0)

static int mistakes(imbrex_group *g, void *ctx)
{
    (void)ctx;
    const imbrex_gate good = {
        .experts = EXPERTS, .top_k = TOP, .groups = 4, .top_groups = 1, .dtype = IMBREX_F32
    };
    imbrex_gate bad = good;
    float logits[TOKENS * EXPERTS] = { 0 }, weights[TOKENS * TOP];
    int32_t ids[TOKENS * TOP];
    RANK_OK(imbrex_topk_gate(g, &good, TOKENS, logits, NULL, ids, weights, NULL));
    RANK_OK(imbrex_topk_gate(g, &good, 0, NULL, NULL, NULL, NULL, NULL));
    WRONG(experts, 0, "gate.experts is 0: want from 1 to 1024");
    WRONG(experts, 1025, "gate.experts is 1025");
    WRONG(top_k, 0, "gate.top_k is 0: want from 1 to 8");
    WRONG(top_k, 9, "gate.top_k is 9: want from 1 to 8");
    WRONG(top_k, 3, "gate.top_groups is 1, of 2 experts each: gate.top_k, 3, wants more");
    WRONG(sigmoid, 2, "gate.sigmoid is 2: want from 0 to 1");
    WRONG(renormalize, -1, "gate.renormalize is -1");
    WRONG(groups, 3, "gate.groups is 3: want a divisor of gate.experts, 8");
    WRONG(groups, 9, "gate.groups is 9: want from 0 to 8");
    WRONG(groups, 0, "gate.top_groups is 1, but gate.groups is 0: want both");
    WRONG(top_groups, 5, "gate.top_groups is 5: want from 1 to 4");
    WRONG(group_best, 3, "gate.group_best is 3: want from 0 to 2");
    WRONG(scale, NAN, "gate.scale is nan: want a finite number from 0");
    WRONG(scale, -1, "gate.scale is -1");
    WRONG(scale, INFINITY, "gate.scale is inf");
    WRONG(dtype, (imbrex_dtype)9, "gate.dtype is 9");
    bad.reserved[6] = 1;
    REFUSED(IMBREX_UNSUPPORTED, "gate.reserved is not 0", g, &bad, TOKENS, logits, NULL, ids,
            weights, NULL);
    REFUSED(IMBREX_INVALID, "gate is NULL", g, NULL, TOKENS, logits, NULL, ids, weights, NULL);
    REFUSED(IMBREX_INVALID, "tokens is -1", g, &good, -1, logits, NULL, ids, weights, NULL);
    REFUSED(IMBREX_INVALID, "logits is NULL: want 64 bytes", g, &good, TOKENS, NULL, NULL, ids,
            weights, NULL);
    REFUSED(IMBREX_INVALID, "ids is NULL: want 16 bytes", g, &good, TOKENS, logits, NULL, NULL,
            weights, NULL);
    REFUSED(IMBREX_INVALID, "is not 4-byte aligned", g, &good, TOKENS, (char *)logits + 2, NULL,
            ids, weights, NULL);
    REFUSED(IMBREX_INVALID, "weights, ", g, &good, TOKENS, logits, NULL, ids, logits + 15, NULL);
    REFUSED(IMBREX_INVALID, "overlaps ids, ", g, &good, TOKENS, logits, NULL, ids, (float *)ids,
            NULL);
    REFUSED(IMBREX_INVALID, "ids, ", g, &good, TOKENS, logits, logits, (int32_t *)logits, weights,
            NULL);
    REFUSED(IMBREX_INVALID, "group is NULL", NULL, &good, TOKENS, logits, NULL, ids, weights, NULL);
    RANK_OK(imbrex_stream_sync(g, NULL));
    return 0;
}

static void refuses(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    assert_int_equal(ranks_run(&desc, mistakes, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chooses),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests_name("gate", tests, NULL, NULL);
}
