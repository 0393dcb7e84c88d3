/* test_cuda_spanning.c - ag_gemm by tiles with rows of several ranks, through the CUDA backend on a
 * fake driver: all algorithms give what tiles of one rank's rows give, in runs of any rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "kernels/kernels.h"
#include "plan/plan.h"

/* Few multiprocessors, on which a tile row less is a wave less. */
typedef struct shape {
    int ranks;
    int64_t m, n, k;
    int sms;
    bool sliced; /* all rows come slice by slice, not chunk by chunk */
} shape;

static const shape shapes[] = {
    { 4, 2049, 320, 256, 3, false },
    { 3, 2309, 512, 256, 1, false },
    { 4, 1037, 384, 1024, 3, true },
};

/* bf16 of whole numbers from -4 to 4: sums of their products are exact, however they are cut. */
static uint16_t whole(uint32_t i)
{
    float value = (float)((int)(i * 2654435761u >> 13) % 9 - 4);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

typedef struct matrices {
    uint16_t *a, *b, *c, *gathered, *want;
} matrices;

/* apart: with chunks of so many rows, by which tiles have rows of one rank; so they have by "ring",
 * whatever a desc says, which passes on such rows. */
static int make_plan(imbrex_group *group, const shape *s, const char *algorithm, bool apart,
                     imbrex_plan **plan)
{
    imbrex_gemm_desc desc = {
        .m = s->m, .n = s->n, .k = s->k, .dtype = IMBREX_BF16, .algorithm = algorithm, .sms = s->sms
    };
    bool spans = !apart && strcmp(algorithm, "ring") != 0;
    desc.chunk_rows = apart ? 128 : 0;
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, plan));
    imx_plan_facts facts = imx_describe_facts(*plan);
    RANK_CHECK(facts.spans_chunks == (spans && !s->sliced), "%s: chunks: %d", algorithm,
               facts.spans_chunks);
    RANK_CHECK(facts.spanning == (spans && s->sliced), "%s: spanning: %d", algorithm,
               facts.spanning);
    RANK_CHECK(facts.slices > 1 || apart || !s->sliced, "%s: %d slices", algorithm, facts.slices);
    return 0;
}

/* Runs in a row, so that both of a plan's buffers are used again. */
static int run_rows(imbrex_group *group, imbrex_plan *plan, const matrices *x, uint16_t *c,
                    const shape *s, int64_t m)
{
    int rank = imbrex_group_rank(group);
    imbrex_args args = { .a = x->a + rank * m / s->ranks * s->k, .b = x->b, .c = c, .m = m };
    args.gathered = m % 2 ? x->gathered : NULL;
    memset(c, 0xff, (size_t)(s->m * s->n) * sizeof *c);
    memset(x->gathered, 0xff, (size_t)(s->m * s->k) * sizeof *c);
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(m == s->m || c[m * s->n] == 0xffff, "c has more than %lld rows", (long long)m);
    if (args.gathered)
        RANK_CHECK(!memcmp(x->gathered, x->a, (size_t)(m * s->k) * sizeof *c), "gathered is wrong");
    return 0;
}

static int all_algorithms(imbrex_group *group, const matrices *x, const shape *s)
{
    static const char *const algorithms[] = { "store", "copy", "pull", "sequential", "ll", "ring" };
    const int64_t rows[] = { s->m, s->m - 131, s->m / 2 + 3, 5 };
    imbrex_plan *apart, *plan;
    if (make_plan(group, s, "sequential", true, &apart))
        return 1;
    for (size_t i = 0; i < (s->sliced ? 1 : sizeof algorithms / sizeof *algorithms); i++) {
        if (make_plan(group, s, algorithms[i], false, &plan))
            return 1;
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++) {
            if (run_rows(group, apart, x, x->want, s, rows[j]) ||
                run_rows(group, plan, x, x->c, s, rows[j]))
                return 1;
            RANK_CHECK(!memcmp(x->c, x->want, (size_t)(s->m * s->n) * sizeof *x->c),
                       "%s: %lld rows of %lld are wrong", algorithms[i], (long long)rows[j],
                       (long long)s->m);
        }
        imbrex_plan_destroy(plan);
    }
    imbrex_plan_destroy(apart);
    return 0;
}

static int spanning_is_apart(imbrex_group *group, void *ctx)
{
    const shape *s = ctx;
    matrices x;
    uint16_t **all[] = { &x.a, &x.gathered, &x.b, &x.c, &x.want };
    const int64_t elements[] = { s->m * s->k, s->m * s->k, s->n * s->k, s->m * s->n, s->m * s->n };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        RANK_OK(imbrex_mem_alloc(group, (size_t)elements[i] * sizeof(uint16_t), (void **)all[i]));
    for (int64_t i = 0; i < s->m * s->k; i++)
        x.a[i] = whole((uint32_t)i);
    for (int64_t i = 0; i < s->n * s->k; i++)
        x.b[i] = whole((uint32_t)(i + 77777));
    return all_algorithms(group, &x, s);
}

static void all_algorithms_give_what_tiles_of_one_rank_give(void **state)
{
    (void)state;
    if (!imx_kernel_gemm.cuda_config)
        skip();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        shape s = shapes[i];
        ranks_desc desc = { .size = s.ranks };
        assert_int_equal(fake_ranks_run(&desc, s.ranks, spanning_is_apart, &s), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_algorithms_give_what_tiles_of_one_rank_give),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
