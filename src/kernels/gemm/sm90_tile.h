/* sm90_tile.h - imx_schedule_tile in 32-bit arithmetic, for a thread that has better things to do
 * than 64-bit divisions: the same tile, as plain ints. */
#ifndef IMX_SM90_TILE_H
#define IMX_SM90_TILE_H

#include "schedule.h"

enum {
    IMX_SM90_LISTED = 16, /* tiles of a block that are worked out at a time */
    IMX_SM90_WORDS = 80,  /* bytes that a block has for single words */
    IMX_SM90_BULK = 4096, /* and of a that it has on its way to a peer at a time; of those two, */
    IMX_SM90_BULK_ROOM = 2 * (IMX_SM90_BULK + 8), /* each with what says that it has come */
};

typedef struct imx_sm90_tile {
    int row, col;   /* of c */
    int rows, cols; /* smaller at the edges */
    int rank, chunk;
    int last;        /* chunk of its last row */
    int rank_row;    /* row counted from the rank's first */
    int chunk_tiles; /* of the chunk; with spans 0 */
} imx_sm90_tile;

/* How the ranks share m rows: `each`, and of `more` one more here and there.  Divisions are slow:
 * most are made once. */
typedef struct imx_sm90_rows {
    unsigned ranks, each, more;
} imx_sm90_rows;

IMX_SCHEDULE_FN imx_sm90_rows imx_sm90_rows_of(unsigned m, unsigned ranks)
{
    imx_sm90_rows rows = { ranks, m, 0 };
    if (ranks > 1) {
        rows.each = m / ranks;
        rows.more = m - rows.each * ranks;
    }
    return rows;
}

/* Rank r's first: r * m / ranks, without a product of r and m. */
IMX_SCHEDULE_FN unsigned imx_sm90_row(imx_sm90_rows rows, unsigned r)
{
    if (rows.more == 0)
        return r * rows.each;
    return r * rows.each + r * rows.more / rows.ranks;
}

IMX_SCHEDULE_FN unsigned imx_sm90_rank_rows(imx_sm90_rows rows, unsigned r)
{
    return rows.more ? imx_sm90_row(rows, r + 1) - imx_sm90_row(rows, r) : rows.each;
}

/* Rows of the boxes that end the ranks' rows, whose others have `box` rows: the most of any, since
 * a rank has no more than one row more than another.  0: there are none. */
IMX_SCHEDULE_FN unsigned imx_sm90_edge_rows(const imx_schedule *s, unsigned box)
{
    imx_sm90_rows rows = imx_sm90_rows_of((unsigned)s->m, (unsigned)IMX_SCHEDULE_RANKS(s));
    unsigned few = rows.each % box, more = rows.more ? (rows.each + 1) % box : 0;
    if (IMX_SCHEDULE_SPANS(s))
        return (unsigned)s->m % box;
    return few > more ? few : more;
}

/* Columns of the box that ends b, of the two or the one of `box` columns that a tile has. */
IMX_SCHEDULE_FN unsigned imx_sm90_edge_cols(unsigned n, unsigned tile_cols, unsigned box)
{
    return n % tile_cols % box;
}

/* imx_schedule_tiles(s). */
IMX_SCHEDULE_FN unsigned imx_sm90_tiles(const imx_schedule *s, unsigned tile_rows,
                                        unsigned tile_cols)
{
    unsigned tile_rows_all = 0;
    imx_sm90_rows share = imx_sm90_rows_of((unsigned)s->m, (unsigned)IMX_SCHEDULE_RANKS(s));
    if (IMX_SCHEDULE_SPANS(s))
        tile_rows_all = ((unsigned)s->m + tile_rows - 1) / tile_rows;
    IMX_SCHEDULE_ROLLED
    for (unsigned r = 0; r < share.ranks && !IMX_SCHEDULE_SPANS(s); r++)
        tile_rows_all += (imx_sm90_rank_rows(share, r) + tile_rows - 1) / tile_rows;
    return tile_rows_all * (((unsigned)s->n + tile_cols - 1) / tile_cols);
}

/* Tile in_chunk of chunk q of rank r, whose `rows` rows begin at `row`; columns, group: in tiles as
 * that counts them. */
IMX_SCHEDULE_FN imx_sm90_tile imx_sm90_tile_in_chunk(const imx_schedule *s, unsigned tile_rows,
                                                     unsigned tile_cols, unsigned r, unsigned row,
                                                     unsigned rows, unsigned q, unsigned in_chunk,
                                                     unsigned columns, unsigned group,
                                                     unsigned band_col)
{
    unsigned n = (unsigned)s->n, chunk_rows = (unsigned)s->chunk_rows;
    unsigned left_rows = rows - q * chunk_rows;
    unsigned rows_here = left_rows < chunk_rows ? left_rows : chunk_rows;
    unsigned per_group = group * columns;
    unsigned groups = in_chunk < per_group ? 0 : in_chunk / per_group;
    unsigned group_row = groups * group, in_group = in_chunk - groups * per_group;
    unsigned tile_rows_here = (rows_here + tile_rows - 1) / tile_rows;
    unsigned left = tile_rows_here - group_row;
    unsigned tall = left < group ? left : group;
    unsigned tile_col = tall == 1 ? in_group : in_group / tall;
    unsigned tile_row = group_row + in_group - tile_col * tall;

    imx_sm90_tile t;
    t.rank = (int)r;
    t.chunk = (int)(r * (unsigned)s->chunks + q);
    t.last = t.chunk;
    t.rank_row = (int)(q * chunk_rows + tile_row * tile_rows);
    t.row = (int)row + t.rank_row;
    t.col = (int)((tile_col + band_col) * tile_cols);
    t.chunk_tiles = (int)(tile_rows_here * ((n + tile_cols - 1) / tile_cols));
    if (IMX_SCHEDULE_CHUNK_COLS(s)) {
        unsigned chunk_cols = (unsigned)s->chunk_cols, part = (unsigned)t.col / chunk_cols;
        unsigned here = n - part * chunk_cols;
        here = here < chunk_cols ? here : chunk_cols;
        t.chunk = t.last = (int)(r * (unsigned)s->chunks + part);
        t.chunk_tiles = (int)(tile_rows_here * ((here + tile_cols - 1) / tile_cols));
    }
    unsigned rows_left = rows_here - tile_row * tile_rows, cols_left = n - (unsigned)t.col;
    t.rows = (int)(rows_left < tile_rows ? rows_left : tile_rows);
    t.cols = (int)(cols_left < tile_cols ? cols_left : tile_cols);
    return t;
}

/* The same over several nodes, for which imx_schedule_tile says what comes when. */
IMX_SCHEDULE_FN imx_sm90_tile imx_sm90_tile_of_nodes(const imx_schedule *s, unsigned tile_rows,
                                                     unsigned tile_cols, unsigned index)
{
    unsigned m = (unsigned)s->m, ranks = (unsigned)s->ranks, local = (unsigned)s->local;
    imx_sm90_rows share = imx_sm90_rows_of(m, ranks);
    unsigned columns = ((unsigned)s->n + tile_cols - 1) / tile_cols;
    unsigned chunk_rows = (unsigned)s->chunk_rows, step = chunk_rows;
    unsigned base = (unsigned)s->first / local * local, start = (unsigned)s->first % local;
    unsigned own = (unsigned)s->solo / local;
    IMX_SCHEDULE_ROLLED
    for (unsigned place = 0;; place++) {
        unsigned down = 0;
        IMX_SCHEDULE_ROLLED
        for (unsigned r = base; r < base + local; r++)
            down += (imx_sm90_rank_rows(share, r) + tile_rows - 1) / tile_rows;
        if (index < down * columns) {
            step = place == own ? m : chunk_rows; /* of each rank's rows, before the next rank's */
            break;
        }
        index -= down * columns;
        base = base + local < ranks ? base + local : 0;
    }
    IMX_SCHEDULE_ROLLED
    for (unsigned from = 0, l = start;;) {
        unsigned r = base + l, row = imx_sm90_row(share, r), rows = imx_sm90_rank_rows(share, r);
        unsigned left = rows > from ? rows - from : 0;
        unsigned here = ((left < step ? left : step) + tile_rows - 1) / tile_rows * columns;
        if (index < here) {
            unsigned per_chunk = chunk_rows / tile_rows * columns, q = index / per_chunk;
            return imx_sm90_tile_in_chunk(s, tile_rows, tile_cols, r, row, rows,
                                          from / chunk_rows + q, index - q * per_chunk, columns,
                                          (unsigned)s->group, 0);
        }
        index -= here;
        l = l + 1 < local ? l + 1 : 0;
        from += l == start ? step : 0;
    }
}

/* The number of the chunk of a row. */
IMX_SCHEDULE_FN unsigned imx_sm90_chunk_of(const imx_schedule *s, imx_sm90_rows share, unsigned row,
                                           unsigned *rank)
{
    unsigned r = 0;
    IMX_SCHEDULE_ROLLED
    while (row >= imx_sm90_row(share, r + 1))
        r++;
    *rank = r;
    return r * (unsigned)s->chunks + (row - imx_sm90_row(share, r)) / (unsigned)s->chunk_rows;
}

/* imx_schedule_next_chunk. */
IMX_SCHEDULE_FN int imx_sm90_next_chunk(const imx_schedule *s, int chunk)
{
    imx_sm90_rows share = imx_sm90_rows_of((unsigned)s->m, (unsigned)IMX_SCHEDULE_RANKS(s));
    unsigned chunks = (unsigned)s->chunks, r = (unsigned)chunk / chunks;
    unsigned next = (unsigned)chunk - r * chunks + 1;
    if (next * (unsigned)s->chunk_rows < imx_sm90_rank_rows(share, r))
        return chunk + 1;
    IMX_SCHEDULE_ROLLED
    do
        r++;
    while (r < share.ranks && !imx_sm90_rank_rows(share, r));
    return (int)(r * chunks);
}

/* imx_schedule_edges_of. */
typedef struct imx_sm90_edges {
    int head, tail;
} imx_sm90_edges;

IMX_SCHEDULE_FN imx_sm90_edges imx_sm90_edges_of(const imx_schedule *s, unsigned tile_rows,
                                                 unsigned r)
{
    imx_sm90_rows share = imx_sm90_rows_of((unsigned)s->m, (unsigned)IMX_SCHEDULE_RANKS(s));
    unsigned row = imx_sm90_row(share, r), rows = imx_sm90_rank_rows(share, r), end = row + rows;
    unsigned from = (row + tile_rows - 1) / tile_rows * tile_rows;
    unsigned to = end == (unsigned)s->m ? end : end / tile_rows * tile_rows;
    imx_sm90_edges edges = { (int)rows, (int)rows };
    if (to > from) {
        edges.head = (int)(from - row);
        edges.tail = (int)(to - row);
    }
    return edges;
}

/* imx_schedule_spanning. */
IMX_SCHEDULE_FN imx_sm90_tile imx_sm90_spanning(const imx_schedule *s, unsigned tile_rows,
                                                unsigned tile_cols, unsigned index)
{
    unsigned m = (unsigned)s->m, n = (unsigned)s->n, group = (unsigned)s->group;
    imx_sm90_rows share = imx_sm90_rows_of(m, (unsigned)IMX_SCHEDULE_RANKS(s));
    unsigned columns = (n + tile_cols - 1) / tile_cols, all = (m + tile_rows - 1) / tile_rows;
    unsigned begin = imx_sm90_row(share, (unsigned)s->first);
    unsigned end = imx_sm90_row(share, (unsigned)s->first + 1);
    unsigned from = (begin + tile_rows - 1) / tile_rows;
    unsigned to = end == m ? all : end / tile_rows, down = to > from ? to - from : 0;
    if (index >= down * columns) {
        index -= down * columns;
        from += down;
        down = all - down;
    }
    unsigned groups = index < group * columns ? 0 : index / (group * columns);
    unsigned left = down - groups * group, tall = left < group ? left : group;
    index -= groups * group * columns;
    unsigned tile_col = tall == 1 ? index : index / tall;
    unsigned tile_row = from + groups * group + index - tile_col * tall, rank, last_rank;
    tile_row -= tile_row < all ? 0 : all;

    imx_sm90_tile t;
    t.row = (int)(tile_row * tile_rows);
    t.col = (int)(tile_col * tile_cols);
    unsigned rows_left = m - (unsigned)t.row, cols_left = n - (unsigned)t.col;
    t.rows = (int)(rows_left < tile_rows ? rows_left : tile_rows);
    t.cols = (int)(cols_left < tile_cols ? cols_left : tile_cols);
    t.chunk = (int)imx_sm90_chunk_of(s, share, (unsigned)t.row, &rank);
    t.last = (int)imx_sm90_chunk_of(s, share, (unsigned)(t.row + t.rows - 1), &last_rank);
    t.rank = (int)rank;
    t.rank_row = t.row - (int)imx_sm90_row(share, rank);
    t.chunk_tiles = 0;
    return t;
}

/* imx_schedule_tile(s, index) for m, n and the number of tiles below 2^31 and ranks below 2^15.
 * tile_rows and tile_cols are the schedule's, passed apart because a kernel knows them when it is
 * compiled. */
IMX_SCHEDULE_FN imx_sm90_tile imx_sm90_tile_at(const imx_schedule *s, unsigned tile_rows,
                                               unsigned tile_cols, unsigned index)
{
    if (IMX_SCHEDULE_LOCAL(s))
        return imx_sm90_tile_of_nodes(s, tile_rows, tile_cols, index);
    if (IMX_SCHEDULE_SPANS(s))
        return imx_sm90_spanning(s, tile_rows, tile_cols, index);
    unsigned m = (unsigned)s->m, n = (unsigned)s->n, ranks = (unsigned)IMX_SCHEDULE_RANKS(s);
    imx_sm90_rows share = imx_sm90_rows_of(m, ranks);
    unsigned columns = (n + tile_cols - 1) / tile_cols;
    unsigned r = (unsigned)s->first, row = 0, rows = m, place = 0, down = 0;
    unsigned together = 1; /* ranks of this band, with `down` tile rows in all */
    IMX_SCHEDULE_ROLLED
    while (ranks > 1) {
        together = (unsigned)imx_schedule_band(s, (int)place);
        down = 0;
        IMX_SCHEDULE_ROLLED
        for (unsigned i = 0; i < together; i++) {
            unsigned at = r + i < ranks ? r + i : r + i - ranks;
            row = imx_sm90_row(share, at);
            rows = imx_sm90_rank_rows(share, at);
            down += (rows + tile_rows - 1) / tile_rows;
        }
        if (index < down * columns)
            break;
        index -= down * columns;
        place += together;
        r = r + together < ranks ? r + together : r + together - ranks;
    }

    unsigned band_col = 0;
    if (together > 1) {
        band_col = index / down;
        index -= band_col * down; /* now a tile row of the band */
        IMX_SCHEDULE_ROLLED
        for (;;) {
            row = imx_sm90_row(share, r);
            rows = imx_sm90_rank_rows(share, r);
            unsigned here = (rows + tile_rows - 1) / tile_rows;
            if (index < here)
                break;
            index -= here;
            r = r + 1 < ranks ? r + 1 : 0;
        }
    }

    unsigned chunk_rows = (unsigned)s->chunk_rows, group = (unsigned)s->group;
    /* In a band the rest counts rows of tiles: as if there were one column. */
    if (together > 1) {
        columns = 1;
        group = 1;
    }
    unsigned per_chunk = chunk_rows / tile_rows * columns;
    unsigned q = index < per_chunk ? 0 : index / per_chunk, in_chunk = index - q * per_chunk;
    return imx_sm90_tile_in_chunk(s, tile_rows, tile_cols, r, row, rows, q, in_chunk, columns,
                                  group, band_col);
}

#endif /* IMX_SM90_TILE_H */
