/* test_schedule.c - the tile order, over many small shapes: what is covered, in which order, and
 * what the chunks count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gemm/schedule.h"
#include "kernels/gemm/sm90_tile.h"
#include "sanitized.h"

enum { MOST_M = 128, MOST_N = 40, MOST_CHUNKS = 128, MOST_RANKS = 16 };

/* Tile and chunk sizes; chunk_rows is chunk_tiles tile rows. */
static const struct cut {
    int tile_rows, tile_cols, chunk_tiles, group, band;
} cuts[] = {
    { 1, 1, 1, 1, 0 },    { 1, 7, 3, 2, 2 },   { 2, 3, 1, 1, 3 },  { 3, 4, 2, 1, 0 },
    { 3, 40, 3, 2, 7 },   { 4, 16, 4, 3, 0 },  { 5, 9, 2, 8, 2 },  { 16, 16, 2, 2, 16 },
    { 7, 2, 5, 4, 0 },    { 64, 64, 1, 1, 3 }, { 2, 5, 10, 3, 1 }, { 8, 8, 16, 16, 4 },
    { 1, 40, 128, 1, 0 }, { 6, 13, 3, 5, 2 },
};

static const int ns[] = { 0, 1, 2, 13, 16, 40 };

static long tiles_seen;

/* A sanitizer gets a ninth of them: values are the release build's. */
static bool is_left_out(int number)
{
    return SANITIZED && number % 9;
}

/* With which schedule a check failed; printed by the check. */
static void describe(const imx_schedule *s, long long index)
{
    print_error("m %lld n %lld ranks %d first %d chunk_rows %d tile %dx%d group %d band %d solo %d "
                "local %d: tile %lld\n",
                s->m, s->n, s->ranks, s->first, s->chunk_rows, s->tile_rows, s->tile_cols, s->group,
                s->band, s->solo, s->local, index);
}

#define CHECK_EQUAL(s, index, have, want)                                      \
    do {                                                                       \
        long long have_ = (have), want_ = (want);                              \
        if (have_ != want_) {                                                  \
            describe(s, index);                                                \
            fail_msg("%s is %lld, not %lld (%s)", #have, have_, want_, #want); \
        }                                                                      \
    } while (0)

#define CHECK(s, index, condition) CHECK_EQUAL(s, index, !!(condition), 1)

/* Rank of a row, found the slow way: the r with r*m/R <= row < (r+1)*m/R. */
static int owner(const imx_schedule *s, long long row)
{
    for (int r = 0; r < s->ranks; r++)
        if (row >= r * s->m / s->ranks && row < (r + 1) * s->m / s->ranks)
            return r;
    return -1;
}

/* One tile on its own: size, owner, chunk. */
static void check_tile(const imx_schedule *s, long long i, const imx_tile *t)
{
    CHECK(s, i, t->rows >= 1 && t->rows <= s->tile_rows);
    CHECK(s, i, t->cols >= 1 && t->cols <= s->tile_cols);
    CHECK(s, i, t->row >= 0 && t->row + t->rows <= s->m);
    CHECK(s, i, t->col >= 0 && t->col + t->cols <= s->n);
    CHECK_EQUAL(s, i, t->rank, owner(s, t->row));
    CHECK_EQUAL(s, i, t->rank, owner(s, t->row + t->rows - 1));
    CHECK_EQUAL(s, i, t->rank_row, t->row - t->rank * s->m / s->ranks);
    CHECK_EQUAL(s, i, t->chunk, t->rank * s->chunks + t->rank_row / s->chunk_rows);
    CHECK_EQUAL(s, i, t->chunk, t->rank * s->chunks + (t->rank_row + t->rows - 1) / s->chunk_rows);
    CHECK(s, i, t->chunk - t->rank * s->chunks < imx_schedule_chunks(s, t->rank));
}

/* The first place of the band that `place` is in, found from the front. */
static int band_of(const imx_schedule *s, int place)
{
    int begin = 0;
    while (begin + imx_schedule_band(s, begin) <= place)
        begin += imx_schedule_band(s, begin);
    return begin;
}

static bool is_banded(const imx_schedule *s, const imx_tile *t)
{
    int place = (t->rank - s->first + s->ranks) % s->ranks;
    return imx_schedule_band(s, band_of(s, place)) > 1;
}

/* Ranks that are walked together: down all their tile rows, then the next column. */
static void check_band(const imx_schedule *s, long long i, const imx_tile *before,
                       const imx_tile *t)
{
    int place = (t->rank - s->first + s->ranks) % s->ranks;
    int place_before = (before->rank - s->first + s->ranks) % s->ranks;
    CHECK(s, i, place != s->solo);
    if (band_of(s, place) != band_of(s, place_before)) {
        CHECK(s, i, band_of(s, place) > band_of(s, place_before));
        return;
    }
    CHECK(s, i, t->col == before->col || t->col == before->col + s->tile_cols);
    if (t->col != before->col)
        return;
    if (t->rank == before->rank)
        CHECK_EQUAL(s, i, t->row, before->row + s->tile_rows);
    else
        CHECK(s, i, place > place_before);
}

/* Over nodes, in their order: another node's ranks chunk by chunk, one's own one by one, but where
 * solo is of none. */
static void check_nodes(const imx_schedule *s, long long i, const imx_tile *before,
                        const imx_tile *t)
{
    const imx_tile *tiles[] = { before, t };
    long long at[2];
    for (int j = 0; j < 2; j++) {
        int nodes = s->ranks / s->local, rank = tiles[j]->rank;
        int node = (rank / s->local - s->first / s->local + nodes) % nodes;
        int local = (rank % s->local - s->first % s->local + s->local) % s->local;
        int q = tiles[j]->chunk - rank * s->chunks;
        bool own = node == s->solo / s->local;
        at[j] = node * 1000000 + (own ? local * 1000 + q : q * 1000 + local);
    }
    CHECK(s, i, i == 0 || at[1] >= at[0]);
}

/* After the tile before it: the same chunk, a later one of the same rank, or a rank further on. */
static void check_order(const imx_schedule *s, long long i, const imx_tile *before,
                        const imx_tile *t)
{
    if (s->local) {
        check_nodes(s, i, before, t);
        return;
    }
    int place = (t->rank - s->first + s->ranks) % s->ranks;
    if (i == 0) {
        for (int p = 0; p < place; p++)
            CHECK_EQUAL(s, i, imx_schedule_rows(s, (s->first + p) % s->ranks), 0);
        return;
    }
    int place_before = (before->rank - s->first + s->ranks) % s->ranks;
    if (is_banded(s, t)) {
        check_band(s, i, before, t);
        return;
    }
    CHECK(s, i, place >= place_before);
    if (place > place_before)
        return;
    CHECK(s, i, t->chunk >= before->chunk);
    if (t->chunk > before->chunk || s->group > 1)
        return;
    /* groups of one row: along the row, then the next row */
    CHECK(s, i, t->row > before->row || (t->row == before->row && t->col > before->col));
}

/* Within one chunk: `group` tile rows are walked down, then the next column. */
static void check_group(const imx_schedule *s, long long i, const imx_tile *before,
                        const imx_tile *t)
{
    if (i == 0 || t->chunk != before->chunk || is_banded(s, t))
        return;
    long long in_chunk = t->rank_row % s->chunk_rows / s->tile_rows;
    long long in_chunk_before = before->rank_row % s->chunk_rows / s->tile_rows;
    if (in_chunk / s->group != in_chunk_before / s->group) {
        CHECK_EQUAL(s, i, in_chunk, (in_chunk_before / s->group + 1) * s->group);
        CHECK_EQUAL(s, i, t->col, 0);
        CHECK_EQUAL(s, i, before->col + before->cols, s->n);
    } else if (t->col == before->col) {
        CHECK_EQUAL(s, i, in_chunk, in_chunk_before + 1);
    } else {
        CHECK_EQUAL(s, i, t->col, before->col + s->tile_cols);
        CHECK_EQUAL(s, i, in_chunk % s->group, 0);
    }
}

/* A tile by `blocks` of GPUs, one below the other, or its columns by as many: what the copy engine
 * brings for a block that the matrix does not fill is there, and hardly more than that. */
static void check_edges(const imx_schedule *s, long long i, const imx_tile *t, int blocks)
{
    int box_rows = s->tile_rows / blocks, box_cols = s->tile_cols / blocks;
    for (int b = 0; b < blocks; b++) {
        int rows = t->rows - b * box_rows, cols = t->cols - b * box_cols;
        if (rows > 0 && rows < box_rows) {
            int edge = (int)imx_sm90_edge_rows(s, (unsigned)box_rows);
            CHECK(s, i, edge < box_rows && (edge == rows || edge == rows + 1));
        }
        if (cols > 0 && cols < box_cols)
            CHECK_EQUAL(
                s, i,
                imx_sm90_edge_cols((unsigned)s->n, (unsigned)s->tile_cols, (unsigned)box_cols),
                cols);
    }
}

/* What GPUs compute in 32 bits. */
static void check_sm90(const imx_schedule *s, long long i, const imx_tile *t)
{
    imx_sm90_tile g =
        imx_sm90_tile_at(s, (unsigned)s->tile_rows, (unsigned)s->tile_cols, (unsigned)i);
    CHECK_EQUAL(s, i, g.row, t->row);
    CHECK_EQUAL(s, i, g.col, t->col);
    CHECK_EQUAL(s, i, g.rows, t->rows);
    CHECK_EQUAL(s, i, g.cols, t->cols);
    CHECK_EQUAL(s, i, g.rank, t->rank);
    CHECK_EQUAL(s, i, g.chunk, t->chunk);
    CHECK_EQUAL(s, i, g.rank_row, t->rank_row);
    CHECK_EQUAL(s, i, g.chunk_tiles,
                imx_schedule_chunk_tiles(s, t->rank, t->chunk - t->rank * s->chunks));
}

static void check_schedule(const imx_schedule *s)
{
    static unsigned char covered[MOST_M][MOST_N];
    static int counted[MOST_RANKS * MOST_CHUNKS];
    memset(covered, 0, sizeof covered);
    memset(counted, 0, sizeof counted);

    long long tiles = imx_schedule_tiles(s);
    CHECK_EQUAL(s, -1, imx_sm90_tiles(s, (unsigned)s->tile_rows, (unsigned)s->tile_cols), tiles);
    imx_tile before = { 0 };
    for (long long i = 0; i < tiles; i++) {
        imx_tile t = imx_schedule_tile(s, i);
        check_tile(s, i, &t);
        check_sm90(s, i, &t);
        check_edges(s, i, &t, 1);
        if (s->tile_rows % 2 == 0 && s->tile_cols % 2 == 0)
            check_edges(s, i, &t, 2);
        check_order(s, i, &before, &t);
        check_group(s, i, &before, &t);
        for (int y = 0; y < t.rows; y++)
            for (int x = 0; x < t.cols; x++)
                covered[t.row + y][t.col + x]++;
        counted[t.chunk]++;
        before = t;
        tiles_seen++;
    }
    for (int y = 0; y < s->m; y++)
        for (int x = 0; x < s->n; x++)
            CHECK_EQUAL(s, y * 1000 + x, covered[y][x], 1);

    long long rows = 0;
    for (int r = 0; r < s->ranks; r++) {
        long long chunk_rows = 0;
        CHECK(s, -1, imx_schedule_chunks(s, r) <= s->chunks);
        for (int q = 0; q < imx_schedule_chunks(s, r); q++) {
            CHECK(s, -1, imx_schedule_chunk_rows(s, r, q) > 0);
            CHECK_EQUAL(s, -1, counted[r * s->chunks + q], imx_schedule_chunk_tiles(s, r, q));
            chunk_rows += imx_schedule_chunk_rows(s, r, q);
        }
        CHECK_EQUAL(s, -1, chunk_rows, imx_schedule_rows(s, r));
        rows += chunk_rows;
    }
    CHECK_EQUAL(s, -1, rows, s->m);
}

/* All m, n and firsts of one cut on so many ranks.  chunks is that of a plan for `most` rows, which
 * every smaller run keeps. */
static void check_cut(const struct cut *cut, int ranks)
{
    const int ms[] = { 0, 1, ranks - 1, ranks, ranks + 1, 2 * ranks + 1, 7 * ranks + 3, 37, 100 };
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++)
            for (int first = 0; first < ranks; first += 1 + ranks / 6) {
                if (is_left_out((int)(i + 2 * j) + first))
                    continue;
                imx_schedule s = { .m = MOST_M,
                                   .n = ns[j],
                                   .ranks = ranks,
                                   .first = first,
                                   .chunk_rows = cut->tile_rows * cut->chunk_tiles,
                                   .tile_rows = cut->tile_rows,
                                   .tile_cols = cut->tile_cols,
                                   .group = cut->group,
                                   .band = cut->band,
                                   .solo = (int)(i + j) % 3 == 2 ? 1 % ranks
                                           : first % 2           ? 0
                                                                 : ranks - 1 };
                for (int r = 0; r < ranks; r++)
                    if (imx_schedule_chunks(&s, r) > s.chunks)
                        s.chunks = imx_schedule_chunks(&s, r);
                s.m = ms[i];
                check_schedule(&s);
                s.band = 0;
                s.local = 1 + (int)(i + j) % (ranks - (ranks > 1));
                if (ranks > 1 && ranks % s.local == 0)
                    check_schedule(&s);
                s.local = s.solo = ranks;
                check_schedule(&s);
            }
}

static void every_schedule_covers_in_order(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
            check_cut(&cuts[i], ranks);
    assert_true(tiles_seen > (SANITIZED ? 100000 : 1000000));
}

/* ---- tiles with rows of several ranks -------------------------------------------------------- */

/* All that a tile reads is its own rank's alone, or waited for: other ranks' rows by the signals of
 * its chunks, and own rows that are in tiles with others' by one signal, since they are copied. */
static void check_waits(const imx_schedule *s, long long i, const imx_tile *t)
{
    imx_schedule_edges edges = imx_schedule_edges_of(s, s->first);
    long long first = imx_schedule_row(s, s->first), end = imx_schedule_row(s, s->first + 1);
    bool alone = t->row >= first && t->row + t->rows <= end;
    for (long long row = t->row; row < t->row + t->rows; row++) {
        int rank, chunk = imx_schedule_chunk_of(s, row, &rank), next = t->chunk;
        CHECK_EQUAL(s, i, rank, owner(s, row));
        CHECK_EQUAL(s, i, chunk,
                    rank * s->chunks + (row - imx_schedule_row(s, rank)) / s->chunk_rows);
        while (next < chunk)
            next = imx_schedule_next_chunk(s, next);
        CHECK_EQUAL(s, i, next, chunk);
        CHECK(s, i, chunk <= t->last);
        if (rank == s->first && !alone)
            CHECK(s, i, row - first < edges.head || row - first >= edges.tail);
    }
    for (int chunk = t->chunk; chunk <= t->last; chunk = imx_schedule_next_chunk(s, chunk)) {
        CHECK(s, i, chunk % s->chunks < imx_schedule_chunks(s, chunk / s->chunks)); /* it comes */
        CHECK_EQUAL(s, i, imx_sm90_next_chunk(s, chunk), imx_schedule_next_chunk(s, chunk));
    }
}

/* Those of `first` alone come first, then on from there; within each part, groups. */
static void check_spanning_order(const imx_schedule *s, long long i, const imx_tile *before,
                                 const imx_tile *t)
{
    imx_schedule_alone alone = imx_schedule_alone_of(s, s->first);
    long long all = imx_schedule_ceil(s->m, s->tile_rows);
    long long place = (t->row / s->tile_rows - alone.from + all) % all;
    long long place_before = (before->row / s->tile_rows - alone.from + all) % all;
    bool is_alone = place < alone.count, was_alone = place_before < alone.count;
    CHECK(s, i,
          is_alone == (t->row >= imx_schedule_row(s, s->first) &&
                       t->row + t->rows <= imx_schedule_row(s, s->first + 1)));
    if (i == 0 || is_alone != was_alone) {
        CHECK(s, i, i == 0 || was_alone);
        CHECK_EQUAL(s, i, t->col, 0);
        CHECK(s, i, place == 0 || place == alone.count);
        return;
    }
    long long in_part = is_alone ? place : place - alone.count;
    long long in_part_before = is_alone ? place_before : place_before - alone.count;
    CHECK(s, i, in_part / s->group >= in_part_before / s->group);
    if (in_part / s->group > in_part_before / s->group)
        CHECK(s, i, t->col == 0 && before->col + before->cols == s->n);
    else if (t->col == before->col)
        CHECK_EQUAL(s, i, in_part, in_part_before + 1);
    else
        CHECK(s, i, t->col == before->col + s->tile_cols && in_part % s->group == 0);
}

static void check_spanning(const imx_schedule *s)
{
    static unsigned char covered[MOST_M][MOST_N];
    memset(covered, 0, sizeof covered);
    long long tiles = imx_schedule_tiles(s);
    imx_tile before = { 0 };
    for (int r = 0; r < s->ranks; r++) {
        imx_schedule_edges edges = imx_schedule_edges_of(s, r);
        imx_sm90_edges g = imx_sm90_edges_of(s, (unsigned)s->tile_rows, (unsigned)r);
        CHECK(s, r, g.head == edges.head && g.tail == edges.tail);
    }
    CHECK_EQUAL(s, -1, tiles,
                imx_schedule_ceil(s->m, s->tile_rows) * imx_schedule_ceil(s->n, s->tile_cols));
    CHECK_EQUAL(s, -1, imx_sm90_tiles(s, (unsigned)s->tile_rows, (unsigned)s->tile_cols), tiles);
    for (long long i = 0; i < tiles; i++) {
        imx_tile t = imx_schedule_tile(s, i);
        imx_sm90_tile g =
            imx_sm90_tile_at(s, (unsigned)s->tile_rows, (unsigned)s->tile_cols, (unsigned)i);
        CHECK(s, i, g.row == t.row && g.col == t.col && g.rows == t.rows && g.cols == t.cols);
        CHECK(s, i, g.rank == t.rank && g.chunk == t.chunk && g.last == t.last);
        CHECK_EQUAL(s, i, g.rank_row, t.rank_row);
        CHECK_EQUAL(s, i, t.rank_row, t.row - imx_schedule_row(s, t.rank));
        CHECK_EQUAL(s, i, t.row % s->tile_rows, 0);
        if (t.rows < s->tile_rows)
            CHECK_EQUAL(s, i, imx_sm90_edge_rows(s, (unsigned)s->tile_rows), t.rows);
        check_waits(s, i, &t);
        check_spanning_order(s, i, &before, &t);
        for (int y = 0; y < t.rows; y++)
            for (int x = 0; x < t.cols; x++)
                covered[t.row + y][t.col + x]++;
        before = t;
        tiles_seen++;
    }
    for (int y = 0; y < s->m; y++)
        for (int x = 0; x < s->n; x++)
            CHECK_EQUAL(s, y * 1000 + x, covered[y][x], 1);
}

static void spanning_tiles_wait_for_all_they_read(void **state)
{
    (void)state;
    const int columns[] = { 0, 1, 13, 40 };
    tiles_seen = 0;
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            for (int m = 0; m <= 100; m += m < 40 ? 1 : 7) {
                for (int first = 0; first < ranks; first++) {
                    if (is_left_out(m + first))
                        continue;
                    imx_schedule s = { .m = m,
                                       .n = columns[(m + first) % 4],
                                       .ranks = ranks,
                                       .first = first,
                                       .chunk_rows = cuts[i].tile_rows * cuts[i].chunk_tiles,
                                       .tile_rows = cuts[i].tile_rows,
                                       .tile_cols = cuts[i].tile_cols,
                                       .group = cuts[i].group,
                                       .chunks = 1,
                                       .spans = 1 };
                    for (int r = 0; r < ranks; r++)
                        if (imx_schedule_chunks(&s, r) > s.chunks)
                            s.chunks = imx_schedule_chunks(&s, r);
                    check_spanning(&s);
                }
            }
        }
    }
    assert_true(tiles_seen > (SANITIZED ? 100000 : 1000000));
}

/* Chunks of columns: in the order of their numbers, each of the tiles that it counts. */
static void check_columns(const struct cut *cut, long long m, long long n, int columns)
{
    imx_schedule s = { .m = m,
                       .n = n,
                       .chunk_cols = (long long)columns * cut->tile_cols,
                       .ranks = 1,
                       .chunk_rows = MOST_M / cut->tile_rows * cut->tile_rows,
                       .tile_rows = cut->tile_rows,
                       .tile_cols = cut->tile_cols,
                       .group = MOST_M,
                       .chunks = MOST_CHUNKS };
    long long tiles = imx_schedule_tiles(&s), counted = 0, cols = 0;
    int chunk = 0;
    for (long long i = 0; i < tiles; i++, counted++) {
        imx_tile t = imx_schedule_tile(&s, i);
        check_sm90(&s, i, &t);
        CHECK_EQUAL(&s, i, t.chunk, t.col / s.chunk_cols);
        if (t.chunk == chunk)
            continue;
        CHECK_EQUAL(&s, i, counted, imx_schedule_chunk_tiles(&s, 0, chunk));
        CHECK_EQUAL(&s, i, t.chunk, ++chunk);
        counted = 0;
    }
    CHECK_EQUAL(&s, -1, imx_schedule_chunks(&s, 0), tiles ? chunk + 1 : 0);
    for (int q = 0; q < imx_schedule_chunks(&s, 0); q++) {
        CHECK_EQUAL(&s, -1, imx_schedule_chunk_rows(&s, 0, q), m);
        cols += imx_schedule_chunk_cols(&s, q);
    }
    CHECK_EQUAL(&s, -1, cols, m ? n : 0);
    if (tiles)
        CHECK_EQUAL(&s, -1, counted, imx_schedule_chunk_tiles(&s, 0, chunk));
}

static void few_rows_are_cut_in_columns(void **state)
{
    (void)state;
    const int ms[] = { 0, 1, 2, 37, 96 };
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
            for (size_t j = 0; j < sizeof ns / sizeof *ns; j++)
                for (int columns = 1; columns <= 4; columns++)
                    check_columns(&cuts[c], ms[i], ns[j], columns);
}

/* Sizes whose products leave 32 bits. */
static void large_schedules_do_not_overflow(void **state)
{
    (void)state;
    imx_schedule s = { .m = 5000000000,
                       .n = 3000000000,
                       .ranks = 7,
                       .first = 3,
                       .chunk_rows = 4096,
                       .tile_rows = 128,
                       .tile_cols = 256,
                       .group = 8,
                       .chunks = 200000 };
    long long tiles = imx_schedule_tiles(&s);
    imx_tile last = imx_schedule_tile(&s, tiles - 1);
    assert_int_equal(last.rank, 2);
    assert_true(last.row + last.rows == imx_schedule_row(&s, 3));
    assert_true(last.col + last.cols == s.n);
    imx_tile first = imx_schedule_tile(&s, 0);
    assert_true(first.row == imx_schedule_row(&s, 3));
    assert_true(first.rank_row == 0 && first.col == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_covers_in_order),
        cmocka_unit_test(spanning_tiles_wait_for_all_they_read),
        cmocka_unit_test(few_rows_are_cut_in_columns),
        cmocka_unit_test(large_schedules_do_not_overflow),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
