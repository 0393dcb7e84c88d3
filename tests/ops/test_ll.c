/* test_ll.c - the ll kernel by itself, on ranks that are threads: runs back to back in one buffer,
 * with other rows and data each time and ranks that dawdle, so that a part which is written again
 * before it was read shows; what a missing rank leads to; and where a plan gathers by it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <poll.h>
#include <sched.h>

#include "group/group.h"
#include "kernels/kernels.h"
#include "kernels/ll/args.h"
#include "ranks.h"
#include "tuned.h"

enum { RUNS = SANITIZED ? 600 : 3000, ROWS = 9, ROW_BYTES = 262, GUARD = 16 };

typedef struct trial {
    int lines;
    int runs;
    int absent; /* this rank does not come to the last run; -1: all do */
} trial;

static unsigned next(unsigned *seed)
{
    return *seed = *seed * 1664525u + 1013904223u;
}

static int64_t rows_of(int run)
{
    return 1 + (int64_t)run * 7 % ROWS; /* fewer than ranks, often */
}

static unsigned char byte_of(int run, int64_t at)
{
    return (unsigned char)(run * 31 + at * 7 + at / 256);
}

static int make_args(imbrex_group *group, const trial *t, imx_ll_args *args)
{
    int ranks = imbrex_group_size(group);
    int64_t most = imx_ceil_div(ROWS, ranks) * ROW_BYTES;
    *args = (imx_ll_args){
        .row_bytes = ROW_BYTES,
        .ranks = ranks,
        .lines = t->lines,
        .plan = 3,
        .part_bytes = imx_ll_part_bytes(t->lines, most),
        .team = { .rank = imbrex_group_rank(group), .size = ranks, .data = 256 },
    };
    void *own, *peer;
    RANK_OK(imbrex_mem_alloc(group, 256 + 2 * (size_t)(ranks * args->part_bytes), &own));
    for (int r = 0; r < ranks; r++) {
        RANK_OK(imbrex_mem_peer(group, own, r, &peer));
        args->team.base[r] = peer;
    }
    return 0;
}

/* Every second run a rank is as slow as chance has it, in sending or in reading. */
static void dawdle(unsigned *seed)
{
    unsigned turns = next(seed) >> 28;
    for (unsigned i = 0; i < turns; i++)
        sched_yield();
}

static int gather_once(imx_ll_args *args, const imbrexd_watch *watch, int run, unsigned *seed)
{
    char from[ROWS * ROW_BYTES], to[ROWS * ROW_BYTES + GUARD];
    imbrexd_block block = { .count = 2, .watch = watch };
    int64_t m = rows_of(run), own = args->team.rank * m / args->ranks * ROW_BYTES;
    args->m = m;
    args->most = imx_ceil_div(m, args->ranks) * ROW_BYTES;
    args->from = from + run % 4; /* any alignment */
    args->to = to + run % 3;
    for (int64_t i = 0; i < args->most && own + i < m * ROW_BYTES; i++)
        from[run % 4 + i] = (char)byte_of(run, own + i);
    memset(to, 0x5A, sizeof to);
    dawdle(seed);
    imx_kernel_ll.cpu(args, &block);
    block.index = 1;
    imx_kernel_ll.cpu(args, &block);
    RANK_CHECK(*args->uses == (uint64_t)run, "the use is %llu, want %d",
               (unsigned long long)*args->uses, run);
    const char *have = args->to;
    for (int64_t i = 0; i < m * ROW_BYTES; i++)
        RANK_CHECK((unsigned char)have[i] == byte_of(run, i),
                   "rank %d, run %d of %lld rows: byte %lld is %02x, want %02x", args->team.rank,
                   run, (long long)m, (long long)i, (unsigned char)have[i], byte_of(run, i));
    RANK_CHECK(have[m * ROW_BYTES] == 0x5A && (run % 3 == 0 || to[0] == 0x5A),
               "run %d wrote beside its output", run);
    return 0;
}

static int gathers(imbrex_group *group, void *ctx)
{
    const trial *t = ctx;
    imx_ll_args args;
    uint64_t epoch = 0;
    unsigned seed = (unsigned)imbrex_group_rank(group) + 1;
    if (make_args(group, t, &args))
        return 1;
    args.uses = &epoch;
    for (int run = 1; run <= t->runs; run++) {
        if (gather_once(&args, &group->watch, run, &seed))
            return 1;
    }
    RANK_OK(imbrex_barrier(group, NULL));
    return 0;
}

static void with(int ranks, int lines)
{
    trial t = { .lines = lines, .runs = RUNS, .absent = -1 };
    ranks_desc desc = { .size = ranks };
    assert_int_equal(ranks_run(&desc, gathers, &t), 0);
}

static void words(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        with(ranks, 0);
}

static void lines(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        with(ranks, 1);
}

/* ---- who does not come ----------------------------------------------------------------------- */

enum { LIMIT_MS = 200 };

static int misses(imbrex_group *group, void *ctx)
{
    const trial *t = ctx;
    imx_ll_args args;
    char from[ROW_BYTES] = { 0 }, to[ROWS * ROW_BYTES];
    uint64_t epoch = 0;
    if (make_args(group, t, &args))
        return 1;
    args.m = 2; /* of three ranks one has no rows: it is waited for all the same */
    args.most = ROW_BYTES;
    args.from = from;
    args.to = to;
    args.uses = &epoch;
    if (imbrex_group_rank(group) != t->absent)
        imx_kernel_ll.cpu(&args, &(imbrexd_block){ .count = 1, .watch = &group->watch });
    imbrex_status status = IMBREX_OK;
    for (int i = 0; i < patient(5000) && status == IMBREX_OK; i++) {
        status = imbrex_group_status(group);
        imbrexd_yield(0);
        if (imbrex_group_rank(group) == t->absent)
            poll(NULL, 0, 1);
    }
    char who[60];
    snprintf(who, sizeof who, "%lld ms for the rows of rank %d in", (long long)patient(LIMIT_MS),
             t->absent);
    RANK_CHECK(status == IMBREX_PEER || status == IMBREX_TIMEOUT, "%s: %s",
               imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), who), "no %s in: %s", who, imbrex_error());
    return 0;
}

static void a_missing_rank_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        trial t = { .lines = i % 2, .absent = i / 2 * 2 };
        ranks_desc desc = { .size = 3, .timeout_ms = LIMIT_MS };
        assert_int_equal(ranks_run(&desc, misses, &t), 0);
    }
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static void units(void **state)
{
    (void)state;
    static const int64_t cases[][4] = {
        /* bytes, words' units, lines' units, a part in lines */
        { 0, 1, 8, 128 },    { 1, 1, 8, 128 },     { 8, 1, 8, 128 },     { 9, 2, 8, 128 },
        { 120, 15, 8, 128 }, { 121, 16, 16, 256 }, { 240, 30, 16, 256 }, { 241, 31, 24, 384 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t *c = cases[i];
        if (imx_ll_units(0, c[0]) != c[1] || imx_ll_units(1, c[0]) != c[2] ||
            imx_ll_part_bytes(1, c[0]) != c[3])
            fail_msg("%lld bytes: %lld, %lld units, %lld bytes of lines; want %lld, %lld, %lld",
                     (long long)c[0], (long long)imx_ll_units(0, c[0]),
                     (long long)imx_ll_units(1, c[0]), (long long)imx_ll_part_bytes(1, c[0]),
                     (long long)c[1], (long long)c[2], (long long)c[3]);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* No thread goes round once more than it has to, and where there are units for all multiprocessors
 * no more than a few have no block. */
static void threads_go_round_evenly(void **state)
{
    (void)state;
    enum { SMS = 132, LEAST = 128, MOST = 512, WARP = 32 };
    const imx_cuda_target hopper = { 90, 232448 };
    for (int64_t most = 1; most <= 16 << 20; most += 1 + most / 7) {
        for (int lines = 0; lines <= 1; lines++) {
            imx_ll_args args = { .ranks = 4, .lines = lines, .most = most, .how = IMX_LL_FANS };
            imx_cuda_config config = { 0 };
            imx_kernel_ll.cuda_config(&args, &hopper, SMS, &config);
            int64_t units = imx_ll_units(lines, most);
            int64_t at_once = (int64_t)config.blocks * config.threads;
            int64_t rounds = imx_ceil_div(units, at_once);
            assert_in_range(config.threads, LEAST, MOST);
            assert_int_equal(rounds, imx_ceil_div(units, SMS * MOST));
            if (units >= SMS * LEAST)
                assert_in_range(at_once, 1, units / rounds + SMS * WARP);
            if (units >= SMS * LEAST)
                assert_in_range(config.blocks, SMS * 4 / 5, SMS);
        }
    }
}

/* Clusters find room at once: of four blocks 28, of two as many as there are. */
static void rows_are_spread_while_they_are_few(void **state)
{
    (void)state;
    static const int of_rows[][2] = { { 1, 8 },  { 14, 8 }, { 15, 4 }, { 28, 4 },
                                      { 29, 2 }, { 64, 2 }, { 65, 1 }, { 4096, 1 } };
    for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++)
        assert_int_equal(imx_ll_pieces(8192, of_rows[i][0]), of_rows[i][1]);
    assert_int_equal(imx_ll_pieces(5120, 1), 5);
    assert_int_equal(imx_ll_pieces(1000, 1), 1);
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* What was the sooner one on four H200s, of so many bytes a rank. */
static void gathers_by_lines_while_they_are_sooner(void **state)
{
    (void)state;
    enum { N = 8192, ROW = 2 * N, RANKS = 4 };
    for (int64_t kb = 16; kb <= 8192; kb *= 2) {
        int64_t m = kb * 1024 / ROW * RANKS;
        const char *want = kb <= 2048 ? "ll" : "store";
        imx_choice choice = tuned_choice_of(&imx_op_all_gather, m, N, 0, RANKS, 90, 132);
        if (strcmp(choice.algorithm, want) != 0)
            fail_msg("%d KB: %s (%s)", (int)kb, choice.algorithm, choice.why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units),
        cmocka_unit_test(words),
        cmocka_unit_test(lines),
        cmocka_unit_test(a_missing_rank_is_named),
        cmocka_unit_test(threads_go_round_evenly),
        cmocka_unit_test(rows_are_spread_while_they_are_few),
        cmocka_unit_test(gathers_by_lines_while_they_are_sooner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
