/* schedule.h - which tile comes next: pure functions of one constant struct, for every target and
 * for the tests.
 *
 * The product c[m, n] is cut at the ranks' rows first, then into chunks of chunk_rows (what travels
 * under one signal), then into tiles of tile_rows x tile_cols.  No tile crosses a chunk, no chunk
 * crosses a rank, so a tile waits for one signal and counts for one.  Blocks of the tile order, one
 * a rank, are rotated:
 *
 *     rank 1 of 4, first = 1: | rows of 1 | rows of 2 | rows of 3 | rows of 0 | a gathers
 *     rank 1 of 4, first = 2: | rows of 2 | rows of 3 | rows of 0 | rows of 1 | c scatters
 *
 * Within a rank's rows: chunk by chunk; within a chunk: column panels of `group` tile rows (walked
 * down the group first), so that tiles in flight share a and b in cache.  Where a rank's rows are
 * few, b would be read again for each rank: then `band` ranks that follow each other are walked
 * together, as one group, but for the rank in place `solo`, whose rows are here sooner or gone
 * later.
 *
 * Where there are so few rows that ranks = 1, and others read c, chunks may be columns instead:
 *
 *     | columns of chunk 0, all rows | of chunk 1 | ...
 *
 * Over several nodes of `local` ranks the nodes are rotated, and within each its ranks:
 *
 *     rank 1 of 2 x 2, first = 2:     | node 1: 2, 3 | node 0: 0, 1 |
 *
 * All ranks of another node come with the same chunk at about the same time, and want it so: their
 * first chunks go before all second ones.  The ranks of one's own node, which `solo` is of, are
 * walked one by one.  With solo = local = ranks, all ranks of one node go chunk by chunk.
 */
#ifndef IMX_SCHEDULE_H
#define IMX_SCHEDULE_H

typedef struct imx_schedule {
    long long m, n;       /* of this run */
    long long chunk_cols; /* > 0: chunks are so many columns, a multiple of tile_cols, of all rows,
                           * which are one group */
    int ranks;            /* R: how the rows are cut */
    int first;            /* rank whose rows come first, in 0..R-1 */
    int chunk_rows;       /* a multiple of tile_rows */
    int tile_rows, tile_cols;
    int group;      /* tile rows that are walked down before the next column; at least 1 */
    int band, solo; /* band < 2: ranks one by one */
    int chunks; /* most chunks that a rank has in any run of the plan: the stride of chunk numbers
                 */
    int local;  /* ranks of each node; 0: there is one node */
} imx_schedule;

typedef struct imx_tile {
    long long row, col; /* of c */
    int rows, cols;     /* smaller at the edges */
    int rank;           /* whose rows */
    int chunk; /* number of its chunk among all ranks': rank * chunks + number within the rank */
    long long rank_row; /* row counted from the rank's first */
} imx_tile;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define IMX_SCHEDULE_FN static __device__ __host__ inline
#else
#define IMX_SCHEDULE_FN static inline
#endif

/* A kernel for one node is compiled without what several nodes take. */
#if (defined(__CUDACC__) || defined(__CUDACC_RTC__)) && !defined(IMX_NODES)
#define IMX_SCHEDULE_LOCAL(s) 0
#else
#define IMX_SCHEDULE_LOCAL(s) (s)->local
#endif

/* Nor without need with chunks of columns. */
#if (defined(__CUDACC__) || defined(__CUDACC_RTC__)) && !defined(IMX_REDUCE_PULL)
#define IMX_SCHEDULE_CHUNK_COLS(s) 0
#else
#define IMX_SCHEDULE_CHUNK_COLS(s) (s)->chunk_cols
#endif

/* Nor with what any number of ranks takes where it knows how many there are. */
#ifdef IMX_RANKS
#define IMX_SCHEDULE_RANKS(s) IMX_RANKS
#else
#define IMX_SCHEDULE_RANKS(s) (s)->ranks
#endif

/* Before a loop that is short, and whose code should be. */
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define IMX_SCHEDULE_ROLLED _Pragma("unroll 1")
#else
#define IMX_SCHEDULE_ROLLED
#endif

/* First row of rank r. */
IMX_SCHEDULE_FN long long imx_schedule_row(const imx_schedule *s, int r)
{
    return (long long)r * s->m / s->ranks;
}

IMX_SCHEDULE_FN long long imx_schedule_rows(const imx_schedule *s, int r)
{
    return imx_schedule_row(s, r + 1) - imx_schedule_row(s, r);
}

IMX_SCHEDULE_FN long long imx_schedule_ceil(long long a, long long b)
{
    return (a + b - 1) / b;
}

/* Chunks of rank r in this run. */
IMX_SCHEDULE_FN int imx_schedule_chunks(const imx_schedule *s, int r)
{
    if (IMX_SCHEDULE_CHUNK_COLS(s))
        return imx_schedule_rows(s, r) ? (int)imx_schedule_ceil(s->n, s->chunk_cols) : 0;
    return (int)imx_schedule_ceil(imx_schedule_rows(s, r), s->chunk_rows);
}

/* Rows of chunk q of rank r. */
IMX_SCHEDULE_FN int imx_schedule_chunk_rows(const imx_schedule *s, int r, int q)
{
    long long rows = imx_schedule_rows(s, r);
    long long left = IMX_SCHEDULE_CHUNK_COLS(s) ? rows : rows - (long long)q * s->chunk_rows;
    return (int)(left < s->chunk_rows ? left : s->chunk_rows);
}

/* Columns of any rank's chunk q. */
IMX_SCHEDULE_FN long long imx_schedule_chunk_cols(const imx_schedule *s, int q)
{
    long long left = s->n - (long long)q * IMX_SCHEDULE_CHUNK_COLS(s);
    return IMX_SCHEDULE_CHUNK_COLS(s) && left > s->chunk_cols ? s->chunk_cols : left;
}

/* Tiles of chunk q of rank r: how many must count before the chunk is done. */
IMX_SCHEDULE_FN int imx_schedule_chunk_tiles(const imx_schedule *s, int r, int q)
{
    return (int)(imx_schedule_ceil(imx_schedule_chunk_rows(s, r, q), s->tile_rows) *
                 imx_schedule_ceil(imx_schedule_chunk_cols(s, q), s->tile_cols));
}

/* Tiles of rank r: all its chunks but the last are whole. */
IMX_SCHEDULE_FN long long imx_schedule_rank_tiles(const imx_schedule *s, int r)
{
    return imx_schedule_ceil(imx_schedule_rows(s, r), s->tile_rows) *
           imx_schedule_ceil(s->n, s->tile_cols);
}

IMX_SCHEDULE_FN long long imx_schedule_tiles(const imx_schedule *s)
{
    long long tiles = 0;
    for (int r = 0; r < s->ranks; r++)
        tiles += imx_schedule_rank_tiles(s, r);
    return tiles;
}

/* How many places of the rotation, from `place` on, are walked together. */
IMX_SCHEDULE_FN int imx_schedule_band(const imx_schedule *s, int place)
{
    if (s->band < 2 || place == s->solo)
        return 1;
    int left = (place < s->solo ? s->solo : s->ranks) - place;
    return left < s->band ? left : s->band;
}

/* The rank in that place of the rotation. */
IMX_SCHEDULE_FN int imx_schedule_rank(const imx_schedule *s, int place)
{
    int r = s->first + place;
    int local = IMX_SCHEDULE_LOCAL(s);
    if (local) {
        int node = (s->first / local + place / local) % (s->ranks / local);
        return node * local + (s->first + place) % local;
    }
    return r < s->ranks ? r : r - s->ranks;
}

/* Tile tile_row of the rank's rows, at tile_col. */
IMX_SCHEDULE_FN imx_tile imx_schedule_tile_at(const imx_schedule *s, int r, long long tile_row,
                                              long long tile_col)
{
    imx_tile t;
    t.rank = r;
    t.rank_row = tile_row * s->tile_rows;
    t.row = imx_schedule_row(s, r) + t.rank_row;
    t.col = tile_col * s->tile_cols;
    long long q = IMX_SCHEDULE_CHUNK_COLS(s) ? t.col / s->chunk_cols : t.rank_row / s->chunk_rows;
    t.chunk = r * s->chunks + (int)q;
    long long rows = imx_schedule_rows(s, r) - t.rank_row, cols = s->n - t.col;
    t.rows = (int)(rows < s->tile_rows ? rows : s->tile_rows);
    t.cols = (int)(cols < s->tile_cols ? cols : s->tile_cols);
    return t;
}

/* Tile number in_chunk of chunk q of rank r. */
IMX_SCHEDULE_FN imx_tile imx_schedule_in_chunk(const imx_schedule *s, int r, int q,
                                               long long in_chunk)
{
    long long columns = imx_schedule_ceil(s->n, s->tile_cols);
    long long tile_rows_here = imx_schedule_ceil(imx_schedule_chunk_rows(s, r, q), s->tile_rows);
    long long per_group = s->group * columns;
    long long group_row = in_chunk / per_group * s->group;
    long long left = tile_rows_here - group_row;
    long long group = left < s->group ? left : s->group;
    long long in_group = in_chunk % per_group;
    long long tile_row = group_row + in_group % group;
    long long tile_col = in_group / group;

    tile_row += (long long)q * (s->chunk_rows / s->tile_rows);
    return imx_schedule_tile_at(s, r, tile_row, tile_col);
}

/* Tile `index` of those of the node whose first rank has that place. */
IMX_SCHEDULE_FN imx_tile imx_schedule_in_node(const imx_schedule *s, int place, long long index)
{
    for (int q = 0;; q++) {
        for (int i = 0; i < s->local; i++) {
            int r = imx_schedule_rank(s, place + i);
            if (q >= imx_schedule_chunks(s, r))
                continue;
            long long tiles = imx_schedule_chunk_tiles(s, r, q);
            if (index < tiles)
                return imx_schedule_in_chunk(s, r, q, index);
            index -= tiles;
        }
    }
}

/* The place of the first rank of the node of `place`, if that is walked together; else -1. */
IMX_SCHEDULE_FN int imx_schedule_node(const imx_schedule *s, int place)
{
    if (!IMX_SCHEDULE_LOCAL(s) || place / s->local == s->solo / s->local)
        return -1;
    return place - place % s->local;
}

/* How many places of the rotation, from `place` on, make a band or a node. */
IMX_SCHEDULE_FN int imx_schedule_together(const imx_schedule *s, int place)
{
    return imx_schedule_node(s, place) < 0 ? imx_schedule_band(s, place) : s->local;
}

/* The index-th tile, 0 <= index < imx_schedule_tiles. */
IMX_SCHEDULE_FN imx_tile imx_schedule_tile(const imx_schedule *s, long long index)
{
    long long columns = imx_schedule_ceil(s->n, s->tile_cols), tiles;
    int place = 0, ranks;
    for (;; place += ranks, index -= tiles) {
        ranks = imx_schedule_together(s, place);
        tiles = 0;
        for (int i = 0; i < ranks; i++)
            tiles += imx_schedule_rank_tiles(s, imx_schedule_rank(s, place + i));
        if (index < tiles)
            break;
    }
    if (imx_schedule_node(s, place) >= 0)
        return imx_schedule_in_node(s, place, index);
    int r = imx_schedule_rank(s, place);
    if (ranks > 1) {
        long long all = tiles / columns, tile_row = index % all, here;
        while (tile_row >= (here = imx_schedule_rank_tiles(s, r) / columns)) {
            tile_row -= here;
            r = r + 1 < s->ranks ? r + 1 : 0;
        }
        return imx_schedule_tile_at(s, r, tile_row, index / all);
    }
    long long per_chunk = (long long)(s->chunk_rows / s->tile_rows) * columns;
    return imx_schedule_in_chunk(s, r, (int)(index / per_chunk), index % per_chunk);
}

#endif /* IMX_SCHEDULE_H */
