/* cpu.c - the GEMM kernel on CPU ranks: a block takes every count-th tile of the schedule's order.
 *
 *     block 0 of 3   | tile 0 | tile 3 | wait for chunk 1 | tile 6 |
 *     block 1 of 3   | tile 1 | tile 4 |         | tile 7 |
 *     block 2 of 3   | tile 2 | tile 5 | tile 8 |               the last tile of a chunk posts done
 *
 * float32 goes from a and b into c by BLAS.  The short types are widened first, a panel of a and
 * one of b at a time, and a panel stays while the next tiles need it again:
 *
 *     scratch: | a [tile_rows, k] | b [tile_cols, k] or [k, tile_cols] | c [tile_rows, tile_cols] |
 *              | of 8-bit types the sums of 128 of k [tile_rows, tile_cols] |
 *
 * Each tile is one BLAS call of the same shape whichever block makes it, so its bits are the same.
 */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "args.h"
#include "blas.h"
#include "cpu_team.h"
#include "kernels/dtype.h"

/* What this block has in float32; row and col of the tile that a and b were widened for. */
typedef struct panels {
    float *a, *b, *c, *sums;
    long long row, col;
} panels;

/* In floats, so that the next panel starts on a cache line of its own. */
static size_t panel_floats(int64_t rows, int64_t cols)
{
    return ((size_t)rows * (size_t)cols + 15) / 16 * 16;
}

static void one_thread(void)
{
    imx_blas_threads(1); /* the blocks are the threads */
}

void imx_gemm_cpu(const void *args, const imbrexd_block *block);
size_t imx_gemm_cpu_scratch(const void *args);

size_t imx_gemm_cpu_scratch(const void *untyped)
{
    /* Asked when a plan is made: before the process's first product. */
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, one_thread);

    const imx_gemm_args *args = untyped;
    const imx_schedule *s = &args->schedule;
    if (args->dtype == IMBREX_F32)
        return 0;
    return sizeof(float) *
           (panel_floats(s->tile_rows, args->k) + panel_floats(s->tile_cols, args->k) +
            (imx_dtype_eight(args->dtype) ? 2 : 1) * panel_floats(s->tile_rows, s->tile_cols));
}

static panels panels_in(const imx_gemm_args *args, void *scratch)
{
    const imx_schedule *s = &args->schedule;
    panels p = { .a = scratch, .row = -1, .col = -1 };
    if (args->dtype != IMBREX_F32) {
        p.b = p.a + panel_floats(s->tile_rows, args->k);
        p.c = p.b + panel_floats(s->tile_cols, args->k);
        p.sums = p.c + panel_floats(s->tile_rows, s->tile_cols);
    }
    return p;
}

static void add_span(const imbrexd_block *block, imbrex_span_kind kind, const char *name,
                     int64_t begin_ns, int peer, long long index)
{
    imbrex_span span = { .begin_ns = begin_ns,
                         .end_ns = imbrexd_now_ns(),
                         .kind = kind,
                         .stream = block->stream,
                         .lane = block->index + 1,
                         .peer = peer,
                         .index = (int32_t)index };
    memcpy(span.name, name, strlen(name) + 1);
    imbrexd_trace_add(block->trace, &span);
}

static int wait_signal(const imx_gemm_args *args, const imbrexd_block *block,
                       const uint64_t *signal, int what, int rank, int number)
{
    uint64_t epoch = imx_cpu_team_epoch(args);
    imbrexd_wait_point point = { .plan = args->plan, .what = what, .rank = rank, .index = number };

    /* Only asks whether to record a wait; the wait itself loads again, with acquire. */
    if (!block->trace || __atomic_load_n(signal, __ATOMIC_RELAXED) >= epoch)
        return imbrexd_signal_wait(block->watch, signal, epoch, point);
    int64_t begin_ns = imbrexd_now_ns();
    int arrived = imbrexd_signal_wait(block->watch, signal, epoch, point);
    add_span(block, IMBREX_SPAN_WAIT, "wait", begin_ns, rank, number);
    return arrived;
}

static bool is_own(const imx_gemm_args *args, const imx_tile *tile)
{
    return imx_schedule_is_of(&args->schedule, tile, args->own);
}

/* What the tile waits for: its chunk, its rows', or its strip of the ring. */
static int arrival_of(const imx_gemm_args *args, const imx_tile *tile)
{
    if (args->schedule.spans)
        return (int)(tile->row / args->schedule.tile_rows);
    if (args->features & IMX_GEMM_FORWARDS)
        return imx_ring_strip(&args->schedule, tile->rank, (int)tile->rank_row, 0);
    return tile->chunk;
}

/* One signal after the other, of one rank that passes rows on. */
static int wait_strip(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile)
{
    int strip = arrival_of(args, tile), from = imx_ring_from(&args->schedule);
    for (int i = 0; i < args->slices; i++) {
        if (!wait_signal(args, block, &args->ready[imx_ring_signal(strip, args->slices, i)],
                         IMX_POINT_PASS, from, (int)tile->row))
            return 0;
    }
    return 1;
}

/* Of all ranks whose rows the tile has, chunk by chunk; of own rows, for its edges. */
static int wait_chunks(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile)
{
    const imx_schedule *s = &args->schedule;
    for (int c = tile->chunk; c <= tile->last; c = imx_schedule_next_chunk(s, c)) {
        int rank = c / s->chunks, number = rank == args->own ? 0 : c - rank * s->chunks;
        if (!wait_signal(args, block, &args->ready[rank * s->chunks + number], IMX_POINT_CHUNK,
                         rank, number))
            return 0;
    }
    return 1;
}

/* Until the tile's rows of a have arrived; 0: give up. */
static int wait_rows(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile)
{
    if (args->features & IMX_GEMM_FORWARDS)
        return wait_strip(args, block, tile);
    if (args->own >= 0)
        return wait_chunks(args, block, tile);
    for (int i = 0; i < args->slices * args->team.size; i++) {
        if (!wait_signal(args, block, &args->ready[i], IMX_POINT_CHUNK, i % args->team.size, 0))
            return 0;
    }
    return 1;
}

/* The tile's rows of a, [rows, k]. */
static const void *rows_of_a(const imx_gemm_args *args, const imx_tile *tile)
{
    if (!(args->features & IMX_GEMM_GATHERS))
        return imx_dtype_at(args->dtype, args->a, tile->row * args->k);
    if (is_own(args, tile))
        return imx_dtype_at(args->dtype, args->a, tile->rank_row * args->k);
    return imx_dtype_at(args->dtype, args->gathered, tile->row * args->k);
}

/* The tile's columns of b into p->b: [cols, k], or [k, cols]. */
static void widen_b(const imx_gemm_args *args, const imx_tile *tile, panels *p)
{
    int64_t k = args->k, n = args->schedule.n;
    if (args->layout == IMBREX_NK) {
        int dtype = args->dtype == IMBREX_E5M2 ? IMBREX_E4M3 : args->dtype;
        imx_dtype_widen(dtype, imx_dtype_at(dtype, args->b, tile->col * k), p->b, tile->cols * k);
        return;
    }
    for (int64_t i = 0; i < k; i++)
        imx_dtype_widen(args->dtype, imx_dtype_at(args->dtype, args->b, i * n + tile->col),
                        p->b + i * tile->cols, tile->cols);
}

/* A BLAS adds up a tile as its shape has it. */
static void multiply(const imx_gemm_args *args, int64_t rows, int64_t cols, const float *a,
                     const float *b, int64_t ldb, float *c, int64_t ldc)
{
    (args->features & IMX_GEMM_INVARIANT ? imx_blas_plain : imx_blas_sgemm)(
        (imbrex_layout)args->layout, rows, cols, args->k, a, args->k, b, ldb, c, ldc);
}

/* The tile's rows and columns into p->a and p->b, if they are not there. */
static void widen(const imx_gemm_args *args, const imx_tile *tile, panels *p)
{
    int64_t k = args->k;
    if (p->row != tile->row)
        imx_dtype_widen(args->dtype, rows_of_a(args, tile), p->a, tile->rows * k);
    if (p->col != tile->col)
        widen_b(args, tile, p);
    p->row = tile->row;
    p->col = tile->col;
}

static void product_short(const imx_gemm_args *args, const imx_tile *tile, panels *p)
{
    int64_t k = args->k;
    widen(args, tile, p);
    multiply(args, tile->rows, tile->cols, p->a, p->b, args->layout == IMBREX_NK ? k : tile->cols,
             p->c, tile->cols);
}

/* ---- 8-bit types ----------------------------------------------------------------------------- */

enum { STEP = 128 }; /* of k, whose products are added up before they are scaled */

/* Adds the sums of 128 of k, number `step` of them, where these are scaled each. */
static void add_blocks(const imx_gemm_args *args, const imx_tile *tile, int64_t step, panels *p)
{
    int64_t steps = imx_schedule_ceil(args->k, STEP);
    for (int64_t row = 0; row < tile->rows; row++) {
        float scale = imx_cpu_team_scales(args, tile, row)[step];
        for (int64_t col = 0; col < tile->cols; col++) {
            float s = scale * args->scale_b[(tile->col + col) / STEP * steps + step];
            p->c[row * tile->cols + col] += s * p->sums[row * tile->cols + col];
        }
    }
}

static void add_sums(const imx_tile *tile, panels *p)
{
    for (int64_t i = 0; i < (int64_t)tile->rows * tile->cols; i++)
        p->c[i] += p->sums[i];
}

/* Scales of whole sums. */
static void scale_sums(const imx_gemm_args *args, const imx_tile *tile, float *c)
{
    bool by_row = args->scaling == IMBREX_PER_ROW;
    for (int64_t row = 0; row < tile->rows; row++) {
        float scale = by_row ? *imx_cpu_team_scales(args, tile, row) : *args->scale_a;
        for (int64_t col = 0; col < tile->cols; col++) {
            float s = scale * args->scale_b[by_row ? tile->col + col : 0];
            c[row * tile->cols + col] *= s;
        }
    }
}

/* Products of two 8-bit numbers are exact in float32, and the plain product adds those of one
 * element in the order of k: so no tile changes a bit, nor does a multiplication that is fused with
 * an addition. */
static void product_8bit(const imx_gemm_args *args, const imx_tile *tile, panels *p)
{
    int64_t k = args->k;
    widen(args, tile, p);
    memset(p->c, 0, (size_t)tile->rows * (size_t)tile->cols * sizeof *p->c);
    for (int64_t at = 0; at < k; at += STEP) {
        int64_t depth = k - at < STEP ? k - at : STEP;
        imx_blas_plain(IMBREX_NK, tile->rows, tile->cols, depth, p->a + at, k, p->b + at, k,
                       p->sums, tile->cols);
        if (args->scaling == IMBREX_PER_BLOCK)
            add_blocks(args, tile, at / STEP, p);
        else
            add_sums(tile, p);
    }
    if (args->scaling == IMBREX_PER_TENSOR || args->scaling == IMBREX_PER_ROW)
        scale_sums(args, tile, p->c);
}

static void product_f32(const imx_gemm_args *args, const imx_tile *tile, float *c)
{
    int64_t k = args->k, n = args->schedule.n;
    bool nk = args->layout == IMBREX_NK;
    const float *b = args->b;
    multiply(args, tile->rows, tile->cols, rows_of_a(args, tile),
             b + (nk ? tile->col * k : tile->col), nk ? k : n, c, n);
}

/* c[rows, cols] += bias[cols], which starts at the tile's first column. */
static void add_bias(const imx_gemm_args *args, const imx_tile *tile, float *c, int64_t ldc)
{
    const void *bias = imx_dtype_at(args->out, args->bias, tile->col);
    for (int64_t i = 0; i < tile->rows; i++)
        imx_dtype_add(args->out, bias, c + i * ldc, tile->cols);
}

/* Where the tile goes: into c, to the owner of its rows, or to where others read it. */
static void *destination(const imx_gemm_args *args, const imx_tile *tile)
{
    if (args->features & (IMX_GEMM_SCATTER_PUSH | IMX_GEMM_REDUCE_PULL))
        return imx_cpu_team_slot(args, tile);
    return (char *)args->c + (tile->row * args->schedule.n + tile->col) * imx_dtype_size(args->out);
}

static void compute(const imx_gemm_args *args, const imx_tile *tile, panels *p)
{
    int64_t n = args->schedule.n;
    bool sums = args->features & IMX_GEMM_REDUCE_PUSH;
    bool biased = args->bias && !sums && /* else after the sum */
                  !(args->features & (IMX_GEMM_SCATTER_PUSH | IMX_GEMM_REDUCE_PULL));
    void *c = destination(args, tile);
    if (args->dtype == IMBREX_F32) {
        product_f32(args, tile, c);
        if (biased)
            add_bias(args, tile, c, n);
        return;
    }
    (imx_dtype_eight(args->dtype) ? product_8bit : product_short)(args, tile, p);
    if (biased)
        add_bias(args, tile, p->c, tile->cols);
    for (int64_t i = 0; i < tile->rows; i++)
        imx_dtype_narrow(args->out, p->c + i * tile->cols,
                         sums ? imx_cpu_team_row(args, tile, tile->row + i)
                              : (char *)c + i * n * imx_dtype_size(args->out),
                         tile->cols);
}

/* Whether the tile is the chunk's last. */
static int count_tile(const imx_gemm_args *args, const imx_tile *tile)
{
    const imx_schedule *s = &args->schedule;
    int number = tile->chunk - tile->rank * s->chunks;
    uint32_t tiles = (uint32_t)imx_schedule_chunk_tiles(s, tile->rank, number);
    return imbrexd_counter_last(&args->counters[tile->chunk], tiles);
}

/* Before the tile's first store, if it goes into memory of others or others read it: until they
 * have read what was there; 0: give up. */
static int wait_readers(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile)
{
    if (!(args->features & IMX_GEMM_SCATTERS))
        return 1;
    if (args->features & IMX_GEMM_SCATTER_PUSH)
        return imx_cpu_team_credit(args, block, tile->rank);
    for (int r = 0; r < args->team.size; r++) {
        if (!imx_cpu_team_credit(args, block, r))
            return 0;
    }
    return 1;
}

/* What the tile's product reads and writes in memory that others reach. */
static void declare(const imx_gemm_args *args, const imx_tile *tile)
{
    size_t element = (size_t)imx_dtype_size(args->out);
    size_t row_bytes = (size_t)(args->k * imx_dtype_size(args->dtype));
    size_t scale_bytes = (size_t)args->row_scales * sizeof(float);
    imbrexd_check_read(rows_of_a(args, tile), row_bytes, row_bytes, (size_t)tile->rows);
    if (args->row_scales)
        imbrexd_check_read(imx_cpu_team_scales(args, tile, 0), scale_bytes, scale_bytes,
                           (size_t)tile->rows);
    for (int i = 0; i < tile->rows && args->features & IMX_GEMM_REDUCE_PUSH; i++)
        imbrexd_check_write(imx_cpu_team_row(args, tile, tile->row + i),
                            (size_t)tile->cols * element, 0, 1);
    if (args->features & IMX_GEMM_REDUCE_PUSH)
        return;
    imbrexd_check_write(destination(args, tile), (size_t)tile->cols * element,
                        (size_t)args->schedule.n * element, (size_t)tile->rows);
}

static void one_product(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile,
                        long long index, panels *p)
{
    int64_t begin_ns = block->trace ? imbrexd_now_ns() : 0;
    declare(args, tile);
    compute(args, tile, p);
    if (block->trace)
        add_span(block, IMBREX_SPAN_TILE, "tile", begin_ns, tile->rank, index);
}

static int one_tile(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile,
                    long long index, panels *p)
{
    bool folds = args->features & IMX_GEMM_SCATTER_PUSH && tile->rank == args->team.rank;
    if (!wait_readers(args, block, tile))
        return 0;
    one_product(args, block, tile, index, p);
    if (folds)
        return imx_cpu_team_fold(args, block, tile);
    if (args->features & IMX_GEMM_REDUCE_PUSH)
        return imx_cpu_team_sum(args, block, tile);
    if ((args->done || args->features & (IMX_GEMM_SCATTER_PUSH | IMX_GEMM_REDUCE_PULL)) &&
        count_tile(args, tile))
        imx_cpu_team_post(args, tile);
    return 1;
}

/* ---- with hooks of the caller's -------------------------------------------------------------- */

static imbrexd_gemm gemm_of(const imx_gemm_args *args)
{
    const imx_schedule *s = &args->schedule;
    return (imbrexd_gemm){ .m = s->m,
                           .n = s->n,
                           .k = args->k,
                           .ranks = s->ranks,
                           .first = s->first,
                           .chunk_rows = s->chunk_rows,
                           .chunks = s->chunks,
                           .dtype = args->dtype,
                           .tiles = (uint32_t)imx_schedule_tiles(s),
                           .add = imx_cpu_team_add };
}

/* A tile of own rows becomes their sum; 0: gave up. */
static int sum_own(const imx_gemm_user_args *args, const imbrexd_gemm *gemm, const imx_tile *tile)
{
    const imx_user_args *user = &args->user;
    int chunk = tile->chunk - tile->rank * gemm->chunks;
    imbrexd_gemm_sum sum = { 0 };
    if (!imx_user_goes_on(user, IMBREXD_HOOK_SUM,
                          user->hooks->sum(user->args, &user->team, gemm, chunk, &sum)))
        return 0;
    for (int i = 0; i < tile->rows; i++) {
        size_t at =
            (size_t)((tile->rank_row + i) * gemm->n + tile->col) * imx_dtype_size(gemm->dtype);
        gemm->add(gemm->dtype, (char *)sum.to + at, (const char *)sum.parts + at, sum.stride_bytes,
                  gemm->ranks, tile->cols);
    }
    return 1;
}

/* Those that hooked_tiles has made, behind all of them, so that any order will do; 0: gave up. */
static int sum_own_tiles(const imx_gemm_user_args *args, const imbrexd_gemm *gemm,
                         const imbrexd_block *block, int count)
{
    const imx_user_args *user = &args->user;
    const imx_schedule *s = &args->gemm.schedule;
    for (long long i = block->index; i < gemm->tiles; i += count) {
        unsigned index = user->hooks->order(user->args, &user->team, gemm, (unsigned)i);
        imx_tile tile = imx_schedule_tile(s, index);
        if (tile.rank == user->team.rank && !sum_own(args, gemm, &tile))
            return 0;
    }
    return 1;
}

/* Tiles index, index + count, ...; 0: gave up. */
static int hooked_tiles(const imx_gemm_user_args *args, const imbrexd_gemm *gemm,
                        const imbrexd_block *block, int count)
{
    const imx_user_args *user = &args->user;
    const struct imbrexd_hooks *hooks = user->hooks;
    const imx_schedule *s = &args->gemm.schedule;
    panels p = panels_in(&args->gemm, block->scratch);
    long long tiles = imx_schedule_tiles(s);
    int waited = -1;
    if (block->index < tiles &&
        !imx_user_goes_on(user, IMBREXD_HOOK_BEGIN, hooks->begin(user->args, &user->team, gemm)))
        return 0;
    for (long long i = block->index; i < tiles; i += count) {
        unsigned index = hooks->order(user->args, &user->team, gemm, (unsigned)i);
        if (index >= tiles) {
            imbrexd_wait_point point = { .plan = user->team.kernel,
                                         .rank = user->team.rank,
                                         .index = IMBREXD_HOOK_ORDER };
            imbrexd_fault_raise(&user->team.watch, IMBREXD_FAULT_HOOK, point, index,
                                (uint64_t)tiles);
            return 0;
        }
        imx_tile tile = imx_schedule_tile(s, index);
        int chunk = tile.chunk - tile.rank * s->chunks;
        if (tile.rank != args->gemm.own && tile.chunk != waited &&
            !imx_user_goes_on(user, IMBREXD_HOOK_WAIT,
                              hooks->wait(user->args, &user->team, gemm, tile.rank, chunk)))
            return 0;
        waited = tile.rank != args->gemm.own ? tile.chunk : waited;
        one_product(&args->gemm, block, &tile, i, &p);
        if (count_tile(&args->gemm, &tile))
            hooks->done(user->args, &user->team, gemm, tile.rank, chunk);
    }
    return !hooks->sum || sum_own_tiles(args, gemm, block, count);
}

/* One block more than multiply runs beside the product: on a GPU those are warps. */
static void run_hooked(const imx_gemm_user_args *args, const imbrexd_block *block)
{
    const imx_user_args *user = &args->user;
    const struct imbrexd_hooks *hooks = user->hooks;
    const imbrexd_gemm gemm = gemm_of(&args->gemm);
    int count = block->count - (hooks->beside != NULL);
    uint64_t *epoch = (uint64_t *)user->team.epoch;
    hooks->enter(block);
    if (block->index < count
            ? !hooked_tiles(args, &gemm, block, count)
            : !imx_user_goes_on(user, IMBREXD_HOOK_BESIDE,
                                hooks->beside(user->args, &user->team, &gemm, 0, 1)))
        return;
    if (!imbrexd_counter_last((uint32_t *)(epoch + 1),
                              (uint32_t)block->count)) /* behind the epoch */
        return;
    hooks->end(user->args, &user->team, &gemm);
    *epoch += 1;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

void imx_gemm_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_gemm_args *args = untyped;
    if (args->features & IMX_GEMM_HOOKS) {
        run_hooked(untyped, block);
        return;
    }
    const imx_schedule *s = &args->schedule;
    panels p = panels_in(args, block->scratch);
    long long tiles = imx_schedule_tiles(s);
    int waited = -1;

    /* One block for all: on a CPU the blocks may well run one after the other. */
    if (args->features & IMX_GEMM_PUSHES && block->index == 0 && !imx_cpu_team_push(args, block))
        return;
    for (long long i = block->index; i < tiles; i += block->count) {
        imx_tile tile = imx_schedule_tile(s, i);
        int arrival = arrival_of(args, &tile);
        if (args->ready && !is_own(args, &tile) && arrival != waited) {
            if (!wait_rows(args, block, &tile))
                return;
            waited = arrival;
        }
        if (args->features & IMX_GEMM_FORWARDS &&
            !imx_cpu_ring_pass(args, block, &tile, rows_of_a(args, &tile)))
            return;
        if (!one_tile(args, block, &tile, i, &p))
            return;
    }
    if (args->features & IMX_GEMM_REDUCE_FAN && !imx_cpu_team_take(args, block))
        return;
    if (args->features & IMX_GEMM_REDUCE_PULL && !imx_cpu_team_collect(args, block))
        return;
    if (args->ended)
        imx_team_end(&args->team, args->epoch, imx_cpu_team_epoch(args), args->ended, block->count);
}
