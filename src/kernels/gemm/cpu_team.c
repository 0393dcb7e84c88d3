/* cpu_team.c - the GEMM kernel's own communication on CPU ranks: pushes, and tiles that go to
 * their owners; see args.h. */
#include "cpu_team.h"

#include <string.h>

#include "kernels/dtype.h"

enum { STRIP = 1024 }; /* columns that are added at a time: they stay in the first-level cache */

int imx_cpu_team_credit(const imx_gemm_args *args, const imbrexd_block *block, int rank)
{
    imbrexd_wait_point point = {
        .plan = args->plan, .what = IMX_POINT_CREDIT, .rank = rank, .index = -1
    };
    return !args->ahead || rank == args->team.rank ||
           imbrexd_signal_wait(block->watch, imx_team_credit(&args->team, args->team.rank, rank),
                               *args->epoch, point);
}

/* ---- push ------------------------------------------------------------------------------------ */

/* The first of a rank's rows, as the run cuts them; its tiles may span ranks. */
static long long first_row(const imx_gemm_args *args, int rank)
{
    return imx_team_row(args->schedule.m, args->team.size, rank);
}

/* The scales of rows of this rank's share. */
static void push_scales(const imx_gemm_args *args, int to, long long row, long long rows)
{
    size_t row_bytes = (size_t)args->row_scales * sizeof(float), bytes = (size_t)rows * row_bytes;
    if (!bytes)
        return;
    const char *mine = (const char *)args->scale_a + (size_t)row * row_bytes;
    char *theirs = imx_team_data(&args->team, to) + args->scales +
                   (size_t)(args->push_first + row) * row_bytes;
    imbrexd_check_read(mine, bytes, bytes, 1);
    imbrexd_check_write(theirs, bytes, bytes, 1);
    memcpy(theirs, mine, bytes);
}

/* Rows and columns [from, from + cols) of this rank's share, to a peer, with the scales of those
 * rows where the columns are the first. */
static void copy_part(const imx_gemm_args *args, int to, long long row, long long rows,
                      int64_t from, int64_t cols)
{
    const imx_team *team = &args->team;
    size_t element = (size_t)imx_dtype_size(args->dtype);
    size_t row_bytes = (size_t)args->k * element, bytes = (size_t)cols * element;
    size_t at = (size_t)row * row_bytes + (size_t)from * element;
    const char *mine = (const char *)args->a + at;
    char *theirs = imx_team_data(team, to) + (size_t)args->push_first * row_bytes + at;
    imbrexd_check_read(mine, bytes, row_bytes, (size_t)rows);
    imbrexd_check_write(theirs, bytes, row_bytes, (size_t)rows);
    if (bytes == row_bytes && rows && bytes)
        memcpy(theirs, mine, (size_t)rows * row_bytes);
    for (long long i = 0; i < rows && bytes < row_bytes; i++)
        memcpy(theirs + (size_t)i * row_bytes, mine + (size_t)i * row_bytes, bytes);
    if (!from)
        push_scales(args, to, row, rows);
}

/* Then its signal. */
static void push_part(const imx_gemm_args *args, int to, long long row, long long rows,
                      int64_t from, int64_t cols, int64_t signal)
{
    copy_part(args, to, row, rows, from, cols);
    imbrexd_signal_post(imx_team_signal(&args->team, to, signal), imx_cpu_team_epoch(args));
}

/* Of own rows, to oneself: those that are in tiles with others'. */
static void push_edges(const imx_gemm_args *args)
{
    const imx_schedule *s = &args->schedule;
    imx_schedule_edges edges = imx_schedule_edges_of(s, args->own);
    int64_t signal = (int64_t)args->own * s->chunks;
    copy_part(args, args->own, 0, edges.head, 0, args->k);
    push_part(args, args->own, edges.tail, args->push_rows - edges.tail, 0, args->k, signal);
}

static void push_chunks(const imx_gemm_args *args, int to)
{
    long long rows = args->push_rows;
    int64_t signal = (int64_t)args->team.rank * args->schedule.chunks;
    for (long long row = 0; row < rows; row += args->schedule.chunk_rows) {
        long long here =
            rows - row < args->schedule.chunk_rows ? rows - row : args->schedule.chunk_rows;
        push_part(args, to, row, here, 0, args->k, signal++);
    }
}

/* Also where there are no rows: whoever waits, waits for all. */
static void push_slices(const imx_gemm_args *args, int to)
{
    const imx_team *team = &args->team;
    for (int s = 0; s < args->slices; s++) {
        int64_t from = (int64_t)s * args->slice_k, left = args->k - from;
        int64_t cols = s == args->slices - 1 ? left : args->slice_k;
        push_part(args, to, 0, args->push_rows, from, cols, (int64_t)s * team->size + team->rank);
    }
}

int imx_cpu_team_push(const imx_gemm_args *args, const imbrexd_block *block)
{
    const imx_team *team = &args->team;
    int last = args->own < 0 ? team->size : team->size - 1; /* oneself, at the end */
    if (args->schedule.spans)
        push_edges(args);
    for (int i = 1; i <= last; i++) {
        int to = (team->rank + team->size - i) % team->size;
        if (!imx_cpu_team_credit(args, block, to))
            return 0;
        (args->own < 0 ? push_slices : push_chunks)(args, to);
    }
    return 1;
}

/* ---- tiles to their owners ------------------------------------------------------------------- */

/* Of [rows, n]. */
static char *tile_at(const imx_gemm_args *args, const void *matrix, int64_t row, int64_t col)
{
    return (char *)(uintptr_t)imx_dtype_at(args->out, matrix, row * args->schedule.n + col);
}

void *imx_cpu_team_slot(const imx_gemm_args *args, const imx_tile *tile)
{
    const imx_team *team = &args->team;
    if (args->features & IMX_GEMM_REDUCE_PULL)
        return tile_at(args, imx_team_data(team, team->rank), tile->row, tile->col);
    char *slot = imx_team_data(team, tile->rank) + team->rank * args->slot_bytes;
    return tile_at(args, slot, tile->rank_row, tile->col);
}

/* Rank r's part of a tile of own rows. */
static char *part_at(const imx_gemm_args *args, const imx_tile *tile, int r)
{
    const imx_team *team = &args->team;
    if (args->features & IMX_GEMM_REDUCE_PULL)
        return tile_at(args, imx_team_data(team, r), first_row(args, team->rank) + tile->rank_row,
                       tile->col);
    return tile_at(args, imx_team_data(team, team->rank) + r * args->slot_bytes, tile->rank_row,
                   tile->col);
}

void imx_cpu_team_post(const imx_gemm_args *args, const imx_tile *tile)
{
    const imx_team *team = &args->team;
    int chunks = args->schedule.chunks;
    uint64_t epoch = imx_cpu_team_epoch(args);
    if (args->features & IMX_GEMM_SCATTER_PUSH) {
        int number = tile->chunk - tile->rank * chunks;
        imbrexd_signal_post(imx_team_signal(team, tile->rank, team->rank * chunks + number), epoch);
        return;
    }
    if (!(args->features & IMX_GEMM_REDUCE_PULL)) {
        imbrexd_signal_post(&args->done[tile->chunk], epoch);
        return;
    }
    for (int r = 0; r < team->size; r++)
        imbrexd_signal_post(imx_team_signal(team, r, team->rank * chunks + tile->chunk), epoch);
}

static int64_t sum_signal(const imx_gemm_args *args, const imx_tile *tile, int from)
{
    const imx_schedule *s = &args->schedule;
    int64_t columns = imx_schedule_ceil(s->n, s->tile_cols);
    int64_t number = tile->row / s->tile_rows * columns + tile->col / s->tile_cols;
    return number * args->team.size + from;
}

/* The same of its sum, with REDUCE_FAN. */
static int64_t fan_signal(const imx_gemm_args *args, const imx_tile *tile, int from)
{
    const imx_schedule *s = &args->schedule;
    return sum_signal(args, tile, from) +
           args->team.size * imx_sum_tiles(s->m, s->n, s->tile_rows, s->tile_cols);
}

/* Of a tile of own rows: what rank r says that its part is there by. */
static const uint64_t *part_signal(const imx_gemm_args *args, const imx_tile *tile, int r)
{
    const imx_schedule *s = &args->schedule;
    int64_t signal = r * s->chunks + tile->chunk - tile->rank * s->chunks;
    if (args->features & IMX_GEMM_REDUCE_PUSH)
        signal = sum_signal(args, tile, r);
    return imx_team_signal(&args->team, args->team.rank, signal);
}

static int wait_parts(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile)
{
    const imx_team *team = &args->team;
    int number = tile->chunk - tile->rank * args->schedule.chunks;
    int first = args->features & IMX_GEMM_REDUCE_PULL ? 0 : 1; /* oneself: here already */
    for (int i = first; i < team->size; i++) {
        int r = (team->rank + team->size - i) % team->size; /* in the order in which they come */
        imbrexd_wait_point point = {
            .plan = args->plan, .what = IMX_POINT_PART, .rank = r, .index = number
        };
        if (!imbrexd_signal_wait(block->watch, part_signal(args, tile, r), imx_cpu_team_epoch(args),
                                 point))
            return 0;
    }
    return 1;
}

int imx_cpu_team_fold(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile)
{
    float sum[STRIP];
    const imx_team *team = &args->team;
    int64_t n = args->schedule.n;
    if (!wait_parts(args, block, tile))
        return 0;
    size_t element = (size_t)imx_dtype_size(args->out);
    for (int r = 0; r < team->size; r++)
        imbrexd_check_read(part_at(args, tile, r), (size_t)tile->cols * element,
                           (size_t)n * element, (size_t)tile->rows);
    if (args->residual)
        imbrexd_check_read(tile_at(args, args->residual, tile->rank_row, tile->col),
                           (size_t)tile->cols * element, (size_t)n * element, (size_t)tile->rows);
    imbrexd_check_write(tile_at(args, args->c, tile->rank_row, tile->col),
                        (size_t)tile->cols * element, (size_t)n * element, (size_t)tile->rows);
    for (int64_t row = 0; row < tile->rows; row++) {
        for (int64_t col = 0; col < tile->cols; col += STRIP) {
            int64_t at = row * n + col, count = tile->cols - col < STRIP ? tile->cols - col : STRIP;
            for (int r = 0; r < team->size; r++) {
                const void *part = imx_dtype_at(args->out, part_at(args, tile, r), at);
                if (r == 0)
                    imx_dtype_widen(args->out, part, sum, count);
                else
                    imx_dtype_add(args->out, part, sum, count);
            }
            if (args->bias)
                imx_dtype_add(args->out, imx_dtype_at(args->out, args->bias, tile->col + col), sum,
                              count);
            int64_t to = (tile->rank_row + row) * n + tile->col + col;
            if (args->residual)
                imx_dtype_add(args->out, imx_dtype_at(args->out, args->residual, to), sum, count);
            imx_dtype_narrow(args->out, sum, (char *)args->c + to * imx_dtype_size(args->out),
                             count);
        }
    }
    return 1;
}

/* The tile's first element of row `row` of the holder's slot for this rank. */
static char *slot_row(const imx_gemm_args *args, const imx_tile *tile, int holder, long long row)
{
    const imx_team *team = &args->team;
    return tile_at(args, imx_team_data(team, holder) + team->rank * args->slot_bytes, row,
                   tile->col);
}

void *imx_cpu_team_row(const imx_gemm_args *args, const imx_tile *tile, long long row)
{
    const imx_team *team = &args->team;
    int owner = 0;
    if (args->features & IMX_GEMM_REDUCE_ALL)
        return slot_row(args, tile, team->rank, row);
    while (row >= first_row(args, owner + 1))
        owner++;
    return slot_row(args, tile, owner, row - first_row(args, owner));
}

/* A tile that is in one's own slot, to the others', who are told. */
static void send_tile(const imx_gemm_args *args, const imx_tile *tile)
{
    const imx_team *team = &args->team;
    size_t bytes = (size_t)(tile->cols * imx_dtype_size(args->out));
    for (int i = 1; i < team->size; i++) {
        int to = (team->rank + i) % team->size;
        for (long long row = tile->row; row < tile->row + tile->rows; row++) {
            char *there = slot_row(args, tile, to, row);
            imbrexd_check_write(there, bytes, 0, 1);
            memcpy(there, slot_row(args, tile, team->rank, row), bytes);
        }
        imbrexd_signal_post(imx_team_signal(team, to, sum_signal(args, tile, team->rank)),
                            imx_cpu_team_epoch(args));
    }
}

/* Rank r's rows of a tile. */
static imx_tile rows_of(const imx_gemm_args *args, const imx_tile *tile, int r)
{
    long long first = first_row(args, r), from = first > tile->row ? first : tile->row;
    long long end = first_row(args, r + 1), tile_end = tile->row + tile->rows;
    imx_tile own = *tile;
    own.rank = r;
    own.chunk = r * args->schedule.chunks;
    own.row = from;
    own.rank_row = from - first;
    own.rows = (int)((end < tile_end ? end : tile_end) - from);
    return own;
}

/* Own rows of a tile, which are in c, to all. */
static void fan_tile(const imx_gemm_args *args, const imx_tile *tile, const imx_tile *own)
{
    const imx_team *team = &args->team;
    size_t bytes = (size_t)(own->cols * imx_dtype_size(args->out));
    for (int i = 1; i < team->size; i++) {
        int to = (team->rank + i) % team->size;
        for (long long row = 0; row < own->rows; row++) {
            char *slot = imx_team_data(team, to) + (team->size + team->rank) * args->slot_bytes;
            char *there = tile_at(args, slot, own->rank_row + row, own->col);
            imbrexd_check_write(there, bytes, 0, 1);
            memcpy(there, tile_at(args, args->c, own->row + row, own->col), bytes);
        }
        imbrexd_signal_post(imx_team_signal(team, to, fan_signal(args, tile, team->rank)),
                            imx_cpu_team_epoch(args));
    }
}

static int sum_own(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile,
                   const imx_tile *own)
{
    imx_gemm_args of_own = *args;
    if (own->rows <= 0)
        return 1;
    if (!(args->features & IMX_GEMM_REDUCE_FAN))
        return imx_cpu_team_fold(args, block, own);
    of_own.c = tile_at(args, args->c, first_row(args, own->rank), 0);
    if (args->residual)
        of_own.residual = tile_at(args, args->residual, first_row(args, own->rank), 0);
    if (!imx_cpu_team_fold(&of_own, block, own))
        return 0;
    fan_tile(args, tile, own);
    return 1;
}

int imx_cpu_team_sum(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile)
{
    const imx_team *team = &args->team;
    if (args->features & IMX_GEMM_REDUCE_ALL) {
        imx_tile own = *tile;
        own.rank = team->rank;
        own.chunk = own.rank * args->schedule.chunks;
        own.rank_row = tile->row;
        send_tile(args, tile);
        return imx_cpu_team_fold(args, block, &own);
    }
    for (int r = 0; r < team->size; r++) {
        if (r != team->rank && rows_of(args, tile, r).rows > 0)
            imbrexd_signal_post(imx_team_signal(team, r, sum_signal(args, tile, team->rank)),
                                imx_cpu_team_epoch(args));
    }
    const imx_tile own = rows_of(args, tile, team->rank);
    return sum_own(args, block, tile, &own);
}

/* Rank r's rows of a tile, as they come. */
static int take_tile(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile,
                     int r)
{
    const imx_team *team = &args->team;
    const imx_tile rows = rows_of(args, tile, r);
    const imbrexd_wait_point point = {
        .plan = args->plan, .what = IMX_POINT_CHUNK, .rank = r, .index = -1
    };
    size_t element = (size_t)imx_dtype_size(args->out), bytes = (size_t)rows.cols * element;
    size_t stride = (size_t)args->schedule.n * element;
    if (rows.rows <= 0)
        return 1;
    if (!imbrexd_signal_wait(block->watch,
                             imx_team_signal(team, team->rank, fan_signal(args, tile, r)),
                             imx_cpu_team_epoch(args), point))
        return 0;
    char *slot = imx_team_data(team, team->rank) + (team->size + r) * args->slot_bytes;
    char *from = tile_at(args, slot, rows.rank_row, rows.col);
    char *to = tile_at(args, args->c, rows.row, rows.col);
    imbrexd_check_read(from, bytes, stride, (size_t)rows.rows);
    imbrexd_check_write(to, bytes, stride, (size_t)rows.rows);
    for (long long i = 0; i < rows.rows; i++)
        memcpy(to + (size_t)i * stride, from + (size_t)i * stride, bytes);
    return 1;
}

int imx_cpu_team_take(const imx_gemm_args *args, const imbrexd_block *block)
{
    const imx_team *team = &args->team;
    for (long long i = block->index; i < imx_schedule_tiles(&args->schedule); i += block->count) {
        const imx_tile tile = imx_schedule_tile(&args->schedule, i);
        for (int j = 1; j < team->size; j++) {
            if (!take_tile(args, block, &tile, (team->rank + j) % team->size))
                return 0;
        }
    }
    return 1;
}

int imx_cpu_team_collect(const imx_gemm_args *args, const imbrexd_block *block)
{
    const imx_schedule *s = &args->schedule;
    const imx_team *team = &args->team;
    long long rows = first_row(args, team->rank + 1) - first_row(args, team->rank);
    long long begin = rows * block->index / block->count;
    long long end = rows * (block->index + 1) / block->count;
    for (int q = 0; q < imx_schedule_chunks(s, 0) && begin < end; q++) {
        imx_tile own = { .rank = team->rank,
                         .chunk = team->rank * s->chunks + q,
                         .rank_row = begin,
                         .rows = (int)(end - begin),
                         .col = (long long)q * s->chunk_cols,
                         .cols = (int)imx_schedule_chunk_cols(s, q) };
        if (!imx_cpu_team_fold(args, block, &own))
            return 0;
    }
    return 1;
}

void imx_cpu_team_add(int dtype, void *to, const void *parts, size_t stride_bytes, int count,
                      int64_t elements)
{
    float sum[STRIP];
    size_t bytes = (size_t)(elements * imx_dtype_size(dtype));
    if (!elements || !imbrexd_check_read(parts, bytes, stride_bytes, (size_t)count) ||
        !imbrexd_check_write(to, bytes, bytes, 1))
        return;
    for (int64_t at = 0; at < elements; at += STRIP) {
        int64_t here = elements - at < STRIP ? elements - at : STRIP;
        imx_dtype_widen(dtype, imx_dtype_at(dtype, parts, at), sum, here);
        for (int r = 1; r < count; r++)
            imx_dtype_add(dtype,
                          imx_dtype_at(dtype, (const char *)parts + (size_t)r * stride_bytes, at),
                          sum, here);
        imx_dtype_narrow(dtype, sum, (char *)to + at * imx_dtype_size(dtype), here);
    }
}
