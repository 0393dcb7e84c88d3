/* test_ring.c - rows of a that go on from rank to rank beneath a product: who passes which on,
 * under which signals, and that nobody waits in a circle, whatever the number of blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gemm/ring.h"
#include "sanitized.h"
#include "tune/tune.h"

enum { MOST_RANKS = 8, MOST_BLOCKS = 7, MOST_STRIPS = 4096, SLICES = 16 };

static imx_schedule schedule_of(long long m, int columns, int ranks, int rank, int chunk_tiles,
                                int group)
{
    imx_schedule s = { .m = 100,
                       .n = columns * 5 - 1,
                       .ranks = ranks,
                       .first = rank,
                       .chunk_rows = 3 * chunk_tiles,
                       .tile_rows = 3,
                       .tile_cols = 5,
                       .group = group,
                       .solo = 0 };
    for (int r = 0; r < ranks; r++)
        s.chunks = imx_schedule_chunks(&s, r) > s.chunks ? imx_schedule_chunks(&s, r) : s.chunks;
    s.m = m; /* of a smaller run, in a plan for 100 rows */
    const imx_config config = { .chunk_rows = s.chunk_rows, .tile_rows = s.tile_rows };
    s.chunk_rows = (int)imx_tune_chunk_rows(&config, imx_schedule_ceil(m, ranks));
    return s;
}

/* Every test below, for many schedules of all ranks of a group.  A sanitizer gets a third of them:
 * values are the release build's. */
static void each_group(void (*check)(const imx_schedule *of_rank))
{
    static const int ms[] = { 1, 5, 37, 64, 100 };
    static const struct {
        int columns, chunk_tiles, group; /* columns: of tiles */
    } cuts[] = { { 4, 1, 1 }, { 4, 2, 1 }, { 1, 5, 2 }, { 4, 40, 8 }, { 40, 5, 2 }, { 70, 40, 8 } };
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++)
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
            for (size_t j = 0; j < sizeof cuts / sizeof *cuts; j++) {
                if (SANITIZED && ((size_t)ranks + i + j) % 3)
                    continue;
                imx_schedule of_rank[MOST_RANKS];
                for (int r = 0; r < ranks; r++)
                    of_rank[r] = schedule_of(ms[i], cuts[j].columns, ranks, r, cuts[j].chunk_tiles,
                                             cuts[j].group);
                check(of_rank);
            }
}

/* A rank has rows of its own, and gets those of all others, once, from the rank after it. */
static void check_ways(const imx_schedule *of_rank)
{
    int ranks = of_rank[0].ranks;
    for (int r = 0; r < ranks; r++) {
        const imx_schedule *s = &of_rank[r], *to = &of_rank[imx_ring_to(s)];
        assert_int_equal(imx_ring_from(to), r);
        for (int owner = 0; owner < ranks; owner++) {
            assert_int_equal(imx_schedule_rank(s, imx_ring_step(s, owner)), owner);
            for (int slice = 0; slice < SLICES; slice++) { /* one of the tiles side by side */
                int passing = 0;
                for (int col = 0; col < s->n; col += (int)s->tile_cols)
                    passing += imx_ring_passes(s, owner, col, slice);
                assert_int_equal(passing, owner != to->first);
            }
            if (owner != to->first)
                assert_int_equal(imx_ring_step(to, owner), imx_ring_step(s, owner) + 1);
        }
    }
}

/* Tiles of other rows have other strips. */
static void check_strips(const imx_schedule *of_rank)
{
    const imx_schedule *s = &of_rank[of_rank[0].ranks - 1];
    static long long row_of[MOST_STRIPS];
    for (int strip = 0; strip < MOST_STRIPS; strip++)
        row_of[strip] = -1;
    for (long long i = 0; i < imx_schedule_tiles(s); i++) {
        imx_tile t = imx_schedule_tile(s, i);
        for (int lane = 0; lane < IMX_RING_LANES; lane++) {
            int strip = imx_ring_strip(s, t.rank, (int)t.rank_row, lane);
            assert_in_range(strip, 0, s->ranks * imx_ring_strips(s) - 1);
            assert_in_range(strip, 0, MOST_STRIPS - 1);
            assert_int_equal(strip / imx_ring_strips(s), t.rank);
            if (row_of[strip] >= 0)
                assert_int_equal(row_of[strip], t.row);
            row_of[strip] = t.row;
        }
    }
}

/* ---- nobody waits in a circle ---------------------------------------------------------------- */

/* One block of one rank: its tile, and the slice of it that comes next. */
typedef struct block {
    long long tile;
    int slice;
} block;

static bool arrived[MOST_RANKS][MOST_STRIPS * SLICES];

/* As far as the block can go now; whether that is any further. */
static bool go_on(const imx_schedule *s, block *b, int blocks)
{
    bool moved = false;
    while (b->tile < imx_schedule_tiles(s)) {
        imx_tile t = imx_schedule_tile(s, b->tile);
        int strip = imx_ring_strip(s, t.rank, (int)t.rank_row, 0);
        if (t.rank != s->first && !arrived[s->first][imx_ring_signal(strip, SLICES, b->slice)])
            return moved;
        /* Posted a slice late, but for the last. */
        for (int done = b->slice - 1; done <= b->slice; done++) {
            if (done >= 0 && (done < b->slice || done == SLICES - 1) &&
                imx_ring_passes(s, t.rank, t.col, done))
                arrived[imx_ring_to(s)][imx_ring_signal(strip, SLICES, done)] = true;
        }
        moved = true;
        if (++b->slice == SLICES) {
            b->slice = 0;
            b->tile += blocks;
        }
    }
    return moved;
}

static void check_progress(const imx_schedule *of_rank)
{
    int ranks = of_rank[0].ranks;
    for (int most = 1; most <= MOST_BLOCKS; most += 2) {
        block blocks[MOST_RANKS][MOST_BLOCKS] = { 0 };
        memset(arrived, 0, sizeof arrived);
        for (int r = 0; r < ranks; r++)
            for (int b = 0; b < most; b++)
                blocks[r][b].tile = b;
        for (bool moved = true; moved;) {
            moved = false;
            for (int r = ranks - 1; r >= 0; r--)
                for (int b = most - 1; b >= 0; b--)
                    moved |= go_on(&of_rank[r], &blocks[r][b], most);
        }
        for (int r = 0; r < ranks; r++)
            for (int b = 0; b < most; b++)
                assert_in_range(blocks[r][b].tile, imx_schedule_tiles(&of_rank[r]), INT64_MAX);
    }
}

/* ---- slices ---------------------------------------------------------------------------------- */

static void check_slices(void)
{
    for (long long k = 0; k < 40000; k += k < 2100 ? 1 : 61) {
        int columns = imx_ring_slice_k(k), slices = imx_ring_slices(k);
        assert_in_range(slices, 1, IMX_RING_SLICES_MOST);
        if (slices == 1) {
            assert_int_equal(columns, k);
            continue;
        }
        assert_int_equal(columns % IMX_RING_STEP, 0);
        assert_in_range(columns, IMX_RING_STEP * IMX_RING_STEPS_LEAST, k);
        assert_true((long long)columns * (slices - 1) < k && k <= (long long)columns * slices);
    }
    assert_int_equal(imx_ring_slices(4096), IMX_RING_SLICES_MOST);
    assert_int_equal(imx_ring_slices(1000), 4);
}

/* Every slice goes on once, whatever there is of columns; by a tile each, if there are enough. */
static void check_columns(void)
{
    for (int columns = 1; columns < 200; columns++) {
        for (int slices = 1; slices <= IMX_RING_SLICES_MOST; slices++) {
            int passing[200] = { 0 };
            for (int slice = 0; slice < slices; slice++) {
                int column = imx_ring_column(columns, slice);
                assert_in_range(column, 0, columns - 1);
                passing[column]++;
            }
            for (int column = 0; column < columns; column++) {
                assert_int_equal(imx_ring_takes_part(columns, column, slices), passing[column] > 0);
                assert_in_range(passing[column], 0, columns < slices ? slices : 1);
            }
        }
    }
    assert_int_equal(imx_ring_column(82, 5) / IMX_RING_BESIDE, 1);
    assert_int_equal(imx_ring_column(82, 6) / IMX_RING_BESIDE, 2);
}

static void rows_go_round_once(void **state)
{
    (void)state;
    each_group(check_ways);
}

static void rows_have_strips_of_their_own(void **state)
{
    (void)state;
    each_group(check_strips);
}

static void nobody_waits_in_a_circle(void **state)
{
    (void)state;
    each_group(check_progress);
}

static void slices_cover_k(void **state)
{
    (void)state;
    check_slices();
}

static void columns_take_turns(void **state)
{
    (void)state;
    check_columns();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_round_once),       cmocka_unit_test(rows_have_strips_of_their_own),
        cmocka_unit_test(nobody_waits_in_a_circle), cmocka_unit_test(slices_cover_k),
        cmocka_unit_test(columns_take_turns),
    };
    return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
