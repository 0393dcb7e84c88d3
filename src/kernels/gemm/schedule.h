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
 * With `spans` tiles begin at multiples of tile_rows, whoever's rows those are: a tile may have
 * rows of several ranks, and there are no more tiles than one rank alone would have.  Those that
 * have rows of `first` only come first, then the ones behind them, round all rows:
 *
 *     rank 1 of 4, first = 1:   | 0000|0111|1111|1112|2222|2333|3333|
 *     order                       5    6    0    1    2    3    4
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
    int group; /* tile rows that are walked down before the next column; at least 1 */
    int band;  /* < 2: ranks one by one */
    short solo;
    short spans; /* 1: tiles may have rows of several ranks; on one node, of chunks of rows */
    int chunks;  /* most chunks that a rank has in any run of the plan: the stride of chunk numbers
                 */
    int local;   /* ranks of each node; 0: there is one node */
} imx_schedule;

typedef struct imx_tile {
    long long row, col; /* of c */
    int rows, cols;     /* smaller at the edges */
    int rank;           /* whose rows */
    int chunk; /* number of its chunk among all ranks': rank * chunks + number within the rank */
    int last;  /* the same of its last row's */
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
#if (defined(__CUDACC__) || defined(__CUDACC_RTC__)) && !defined(IMX_CHUNK_COLS)
#define IMX_SCHEDULE_CHUNK_COLS(s) 0
#else
#define IMX_SCHEDULE_CHUNK_COLS(s) (s)->chunk_cols
#endif

/* Nor with tiles of several ranks' rows. */
#if (defined(__CUDACC__) || defined(__CUDACC_RTC__)) && !defined(IMX_SPANS)
#define IMX_SCHEDULE_SPANS(s) 0
#else
#define IMX_SCHEDULE_SPANS(s) (s)->spans
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
    if (IMX_SCHEDULE_SPANS(s))
        return imx_schedule_ceil(s->m, s->tile_rows) * imx_schedule_ceil(s->n, s->tile_cols);
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
    t.chunk = t.last = r * s->chunks + (int)q;
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

/* With spans: which tile rows have rows of rank r alone. */
typedef struct imx_schedule_alone {
    long long from, count;
} imx_schedule_alone;

IMX_SCHEDULE_FN imx_schedule_alone imx_schedule_alone_of(const imx_schedule *s, int r)
{
    imx_schedule_alone alone;
    long long end = imx_schedule_row(s, r + 1);
    alone.from = imx_schedule_ceil(imx_schedule_row(s, r), s->tile_rows);
    alone.count = (end == s->m ? imx_schedule_ceil(end, s->tile_rows) : end / s->tile_rows);
    alone.count = alone.count > alone.from ? alone.count - alone.from : 0;
    return alone;
}

/* And which rows of rank r, counted from its first, are in tiles with others: those before `head`
 * and those from `tail` on. */
typedef struct imx_schedule_edges {
    long long head, tail;
} imx_schedule_edges;

IMX_SCHEDULE_FN imx_schedule_edges imx_schedule_edges_of(const imx_schedule *s, int r)
{
    imx_schedule_edges edges;
    imx_schedule_alone alone = imx_schedule_alone_of(s, r);
    long long row = imx_schedule_row(s, r), rows = imx_schedule_rows(s, r);
    edges.head = edges.tail = rows;
    if (alone.count) {
        long long tail = (alone.from + alone.count) * s->tile_rows - row;
        edges.head = alone.from * s->tile_rows - row;
        edges.tail = tail < rows ? tail : rows;
    }
    return edges;
}

/* The number of the chunk of a row, among all ranks'. */
IMX_SCHEDULE_FN int imx_schedule_chunk_of(const imx_schedule *s, long long row, int *rank)
{
    *rank = (int)(((row + 1) * s->ranks - 1) / s->m);
    return *rank * s->chunks + (int)((row - imx_schedule_row(s, *rank)) / s->chunk_rows);
}

/* The chunk behind one of those that a tile with rows of several ranks waits for. */
IMX_SCHEDULE_FN int imx_schedule_next_chunk(const imx_schedule *s, int chunk)
{
    int r = chunk / s->chunks;
    if (chunk - r * s->chunks + 1 < imx_schedule_chunks(s, r))
        return chunk + 1;
    do
        r++;
    while (r < s->ranks && !imx_schedule_rows(s, r));
    return r * s->chunks;
}

/* Whether rank's rows are all that the tile has. */
IMX_SCHEDULE_FN int imx_schedule_is_of(const imx_schedule *s, const imx_tile *t, int rank)
{
    return t->rank == rank && t->last < (rank + 1) * s->chunks;
}

/* The index-th tile with spans. */
IMX_SCHEDULE_FN imx_tile imx_schedule_spanning(const imx_schedule *s, long long index)
{
    imx_schedule_alone alone = imx_schedule_alone_of(s, s->first);
    long long columns = imx_schedule_ceil(s->n, s->tile_cols);
    long long all = imx_schedule_ceil(s->m, s->tile_rows), from = alone.from, down = alone.count;
    if (index >= down * columns) {
        index -= down * columns;
        from += down;
        down = all - down;
    }
    long long group_row = index / (s->group * columns) * s->group;
    long long left = down - group_row, group = left < s->group ? left : s->group;
    index -= group_row * columns;

    imx_tile t;
    t.row = (from + group_row + index % group) % all * s->tile_rows;
    t.col = index / group * s->tile_cols;
    long long rows = s->m - t.row, cols = s->n - t.col;
    t.rows = (int)(rows < s->tile_rows ? rows : s->tile_rows);
    t.cols = (int)(cols < s->tile_cols ? cols : s->tile_cols);
    int last_rank;
    t.chunk = imx_schedule_chunk_of(s, t.row, &t.rank);
    t.last = imx_schedule_chunk_of(s, t.row + t.rows - 1, &last_rank);
    t.rank_row = t.row - imx_schedule_row(s, t.rank);
    return t;
}

/* The index-th tile, 0 <= index < imx_schedule_tiles. */
IMX_SCHEDULE_FN imx_tile imx_schedule_tile(const imx_schedule *s, long long index)
{
    long long columns = imx_schedule_ceil(s->n, s->tile_cols), tiles;
    int place = 0, ranks;
    if (IMX_SCHEDULE_SPANS(s))
        return imx_schedule_spanning(s, index);
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
