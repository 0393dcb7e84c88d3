/* cpu.c - the grouped kernel on CPU ranks: tiles of all experts, by expert, column and row, of
 * which a block takes its share.  A tile's rows and columns are widened first:
 *
 *     scratch: | a [ROWS, k] | b [k, COLS] | c [ROWS, COLS] | a column of b [k] |
 */
#include <stdbool.h>
#include <string.h>

#include "args.h"
#include "imbrex_device.h"
#include "kernels/dtype.h"
#include "kernels/wait_points.h"
#include "order.h"

enum { ROWS = 64, COLS = 64, STEP = 256, AT_ONCE = 4, LANES = 16 };
enum { BLOCK = 128 /* under one scale, and one step of k */ };

void imx_grouped_cpu(const void *args, const imbrexd_block *block);
size_t imx_grouped_cpu_scratch(const void *args);

typedef struct panels {
    float *a, *b, *c, *column;
} panels;

size_t imx_grouped_cpu_scratch(const void *untyped)
{
    const imx_grouped_args *args = untyped;
    size_t k = (size_t)args->k;
    return sizeof(float) * (ROWS * k + k * COLS + ROWS * COLS + k);
}

static panels panels_in(const imx_grouped_args *args, void *scratch)
{
    panels p = { .a = scratch };
    p.b = p.a + ROWS * args->k;
    p.c = p.b + args->k * COLS;
    p.column = p.c + ROWS * COLS;
    return p;
}

/* A few rows of c += rows of a[.., k] * b[k, COLS], for `count` of k. */
#define MULTIPLY(attributes, name)                                                        \
    attributes static void name(const float *a, int64_t k, const float *b, int64_t count, \
                                float *c)                                                 \
    {                                                                                     \
        for (int col = 0; col < COLS; col += LANES) {                                     \
            float sum[AT_ONCE][LANES] = { { 0 } };                                        \
            for (int64_t i = 0; i < count; i++)                                           \
                for (int row = 0; row < AT_ONCE; row++)                                   \
                    for (int lane = 0; lane < LANES; lane++)                              \
                        sum[row][lane] += a[row * k + i] * b[i * COLS + col + lane];      \
            for (int row = 0; row < AT_ONCE; row++)                                       \
                for (int lane = 0; lane < LANES; lane++)                                  \
                    c[row * COLS + col + lane] += sum[row][lane];                         \
        }                                                                                 \
    }

MULTIPLY(, multiply)
#if defined(__x86_64__)
MULTIPLY(__attribute__((target("avx2"))), multiply_avx2) /* without fused ones: the same bits */
#endif

static void multiply_rows(const float *a, int64_t k, const float *b, int64_t count, float *c)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        multiply_avx2(a, k, b, count, c);
        return;
    }
#endif
    multiply(a, k, b, count, c);
}

/* One tile: rows of an expert, from `row` of c on. */
typedef struct tile {
    int64_t expert, row, rows, col, cols;
} tile;

static int dtype_of_b(const imx_grouped_args *args)
{
    return args->dtype == IMBREX_E5M2 ? IMBREX_E4M3 : args->dtype;
}

/* With top_k 0 the row itself; -1: none. */
static int64_t token_of(const imx_grouped_args *args, int64_t row)
{
    if (!args->top_k)
        return row;
    int64_t token = args->row_pair[row] < 0 ? -1 : args->row_pair[row] / args->top_k;
    return token < args->tokens ? token : -1;
}

static int64_t ceil_div(int64_t x, int64_t by)
{
    return (x + by - 1) / by;
}

/* NULL: no token's. */
static const void *row_of_a(const imx_grouped_args *args, int64_t row)
{
    if (!args->top_k)
        return imx_dtype_at(args->dtype, args->own, row * args->k);
    int64_t token = token_of(args, row), mine = token - args->own_first;
    if (token < 0)
        return NULL;
    if (mine >= 0 && mine < args->own_rows)
        return imx_dtype_at(args->dtype, args->own, mine * args->k);
    return imx_dtype_at(args->dtype, args->gathered, token * args->k);
}

/* Of expert e, within c. */
static int64_t first_row(const imx_grouped_args *args, int e)
{
    int64_t row = args->expert_begin[e];
    return row < 0 ? 0 : row < args->rows ? row : args->rows;
}

static int64_t rows_of(const imx_grouped_args *args, int e)
{
    int64_t rows = args->expert_rows[e], most = args->rows - first_row(args, e);
    return rows < 0 ? 0 : rows < most ? rows : most;
}

/* Rows and columns that there are not are 0. */
static void widen(const imx_grouped_args *args, const tile *t, const panels *p)
{
    int64_t k = args->k, n = args->n;
    size_t row_bytes = (size_t)(k * imx_dtype_size(args->dtype));
    memset(p->a + t->rows * k, 0, (size_t)((ROWS - t->rows) * k) * sizeof *p->a);
    for (int64_t i = 0; i < t->rows; i++) {
        const void *row = row_of_a(args, t->row + i);
        if (!row) {
            memset(p->a + i * k, 0, (size_t)k * sizeof *p->a);
            continue;
        }
        if (t->col == 0)
            imbrexd_check_read(row, row_bytes, row_bytes, 1);
        imx_dtype_widen(args->dtype, row, p->a + i * k, k);
    }
    int of_b = dtype_of_b(args);
    const void *b = imx_dtype_at(of_b, args->b, t->expert * n * k);
    memset(p->b, 0, (size_t)(k * COLS) * sizeof *p->b);
    for (int64_t i = 0; i < k && args->layout == IMBREX_KN; i++)
        imx_dtype_widen(of_b, imx_dtype_at(of_b, b, i * n + t->col), p->b + i * COLS, t->cols);
    for (int64_t j = 0; j < t->cols && args->layout == IMBREX_NK; j++) {
        imx_dtype_widen(of_b, imx_dtype_at(of_b, b, (t->col + j) * k), p->column, k);
        for (int64_t i = 0; i < k; i++)
            p->b[i * COLS + j] = p->column[i];
    }
}

/* ---- scales ---------------------------------------------------------------------------------- */

/* Of an element's row and column, and, PER_BLOCK, of that block of k. */
static float scale_of(const imx_grouped_args *args, const tile *t, int64_t row, int64_t col,
                      int64_t block)
{
    int64_t blocks = ceil_div(args->k, BLOCK), token = token_of(args, t->row + row);
    bool by_block = args->scaling == IMBREX_PER_BLOCK;
    if (token < 0)
        return 0;
    int64_t at = by_block ? (t->expert * ceil_div(args->n, BLOCK) + col / BLOCK) * blocks + block
                          : t->expert * args->n + col;
    return args->scale_a[token * args->scale_stride + (by_block ? block : 0)] * args->scale_b[at];
}

/* sum[cols] times scales, in a rounding of its own. */
static void scale(const imx_grouped_args *args, const tile *t, int64_t row, int64_t block,
                  float *sum)
{
    for (int64_t j = 0; j < t->cols; j++) {
        volatile float scaled = sum[j] * scale_of(args, t, row, t->col + j, block);
        sum[j] = scaled;
    }
}

/* A few rows of 8 bits, from `row` of the tile on. */
static void multiply_8bit(const imx_grouped_args *args, const tile *t, const panels *p, int64_t row)
{
    int64_t k = args->k, rows = t->rows - row < AT_ONCE ? t->rows - row : AT_ONCE;
    float *c = p->c + row * COLS;
    for (int64_t from = 0; from < k; from += BLOCK) {
        float sum[AT_ONCE * COLS] = { 0 };
        multiply_rows(p->a + row * k + from, k, p->b + from * COLS,
                      k - from < BLOCK ? k - from : BLOCK, sum);
        for (int64_t i = 0; i < rows && args->scaling == IMBREX_PER_BLOCK; i++)
            scale(args, t, row + i, from / BLOCK, sum + i * COLS);
        for (int64_t i = 0; i < rows * COLS; i++)
            c[i] += sum[i];
    }
    for (int64_t i = 0; i < rows && args->scaling == IMBREX_PER_ROW; i++)
        scale(args, t, row + i, 0, c + i * COLS);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static void one_tile(const imx_grouped_args *args, const tile *t, const panels *p)
{
    int64_t k = args->k;
    char *c = (char *)args->c + (t->row * args->n + t->col) * imx_dtype_size(args->out);
    size_t row_bytes = (size_t)(args->n * imx_dtype_size(args->out));
    imbrexd_check_write(c, (size_t)(t->cols * imx_dtype_size(args->out)), row_bytes,
                        (size_t)t->rows);
    widen(args, t, p);
    memset(p->c, 0, ROWS * COLS * sizeof *p->c);
    for (int64_t row = 0; row < t->rows; row += AT_ONCE) {
        if (imx_dtype_eight(args->dtype)) {
            multiply_8bit(args, t, p, row);
            continue;
        }
        for (int64_t from = 0; from < k; from += STEP)
            multiply_rows(p->a + row * k + from, k, p->b + from * COLS,
                          k - from < STEP ? k - from : STEP, p->c + row * COLS);
    }
    for (int64_t i = 0; i < t->rows; i++)
        imx_dtype_narrow(args->out, p->c + i * COLS, c + (size_t)i * row_bytes, t->cols);
}

/* Until the rows of all peers are here. */
static bool wait_for_all(const imx_grouped_args *args, const imbrexd_block *block)
{
    for (int r = 0; r < args->ranks; r++) {
        for (int q = 0; q < imx_grouped_chunks(args, r); q++) {
            imbrexd_wait_point point = { args->plan, IMX_POINT_CHUNK, r, q };
            if (!imbrexd_signal_wait(block->watch, &args->ready[r * args->chunks + q], *args->epoch,
                                     point))
                return false;
        }
    }
    return true;
}

static int64_t high_of(const imx_grouped_args *args, int e, bool late, imx_grouped_order *order)
{
    *order = imx_grouped_order_of(args, first_row(args, e), rows_of(args, e), ROWS);
    return late ? order->late : order->early;
}

/* A block's share of the early or of the late tiles of all experts. */
static void take_share(const imx_grouped_args *args, const imbrexd_block *block, bool late,
                       const panels *p)
{
    imx_grouped_order order;
    int64_t columns = ceil_div(args->n, COLS), all = 0, before = 0;
    for (int e = 0; e < args->here; e++)
        all += high_of(args, e, late, &order) * columns;
    int64_t first = all * block->index / block->count,
            end = all * (block->index + 1) / block->count;
    for (int e = 0; e < args->here && before < end; e++) {
        int64_t rows = rows_of(args, e), high = high_of(args, e, late, &order);
        int64_t last = end - before < high * columns ? end - before : high * columns;
        for (int64_t i = first > before ? first - before : 0; i < last; i++) {
            int64_t row = imx_grouped_tile(order.first, order.early, late, i % high) * ROWS;
            int64_t col = i / high * COLS;
            tile t = { .expert = e,
                       .row = first_row(args, e) + row,
                       .rows = rows - row < ROWS ? rows - row : ROWS,
                       .col = col,
                       .cols = args->n - col < COLS ? args->n - col : COLS };
            one_tile(args, &t, p);
        }
        before += high * columns;
    }
}

void imx_grouped_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_grouped_args *args = untyped;
    panels p = panels_in(args, block->scratch);
    take_share(args, block, false, &p);
    if (args->ready && wait_for_all(args, block))
        take_share(args, block, true, &p);
}
