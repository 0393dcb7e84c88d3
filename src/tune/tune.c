/* tune.c - tile and chunk sizes, and blocks, from the shape alone. */
#include "tune.h"

#include "cost.h"
#include "kernels/gemm/tiling.h"
#include "kernels/team.h"

/* Each call of a BLAS packs b again, which costs it about 1 + 36 / rows: few, tall tiles.  A slow
 * wire wants more chunks all the same, since nothing can hide the first of them. */
enum {
    CHUNK_ROWS_CPU = 1024,
    CHUNK_ROWS_WIRE = 512,  /* on an emulated wire */
    TILE_ROWS_MOST = 1024,  /* beyond this rows no longer help */
    TILE_COLS_F32 = 2048,   /* read and written in place */
    TILE_COLS_SHORT = 1024, /* bounds the panels that bf16 and f16 are widened into */
    TILE_COLS_LEAST = 256,
    CHUNK_BYTES_CPU = 1 << 20,  /* where nothing is multiplied */
    CHUNK_BYTES_CUDA = 4 << 20, /* a copy engine's chunk and flag cost 4 us beyond their bytes */
    CHUNK_ROWS_CUDA = 2048,     /* what is walked together anyway */
    PIECE_BYTES_CPU = 256 << 10,
    PIECE_BYTES_MOST = 1 << 30,
    PIECE_STEP = 16,
    PIECE_BYTES_CUDA = 16 << 10, /* a block's threads have them under way at once */
    /* Lines cost twice the bytes and save about 4 us of fences and signals; a processor only wants
     * to wait once. */
    LINE_BYTES_CPU = 16 << 10,
    LINE_BYTES_CUDA = 1 << 20,
    /* Bytes to 3 peers, and what they take at 380 GB/s, in words and in lines: 4 KB a rank 24 and
     * 13 KB, 0.06 and 0.03 us; 16 KB 98 and 52, 0.26 and 0.14; 64 KB 393 and 210, 1.03 and 0.55.
     * Lines cost a vote of a warp for each look.  To be measured. */
    LL_LINE_BYTES = 8 << 10,
    /* A product fills a multiprocessor's registers to the last warp: what waits on the second
     * stream meanwhile needs some of its own.  128 blocks are as fast as 132. */
    WORKERS_FOR_WAITS = 4,
    /* Up to so many rows in all, tiles have rows of several ranks: each rank's own would read all
     * of b again, and that is what a short product's time goes into.  On GPUs a then travels slice
     * by slice of k, under the first tiles' products, which begin with the first slice. */
    SPANNING_ROWS_CUDA = 1024,
    SLICED_ROWS_CUDA = 2048,     /* or so many, where that saves enough (SPANNING_US); */
    SUMMED_ROWS_CUDA = 8192,     /* of what is added up where that is expected to be sooner */
    SPANNING_SHARD_CUDA = 224,   /* of a rank; with more its own tiles may hide what is sent */
    SPANNING_SHARD_READ = 256,   /* where b is read again from memory, or, */
    SPANNING_GATHERED = 1120000, /* if that is slow, so many, by its GB/s */
    A_ELEMENTS_SPANNING = INT32_MAX,
    SPANNING_ROWS_CPU = 8, /* of a rank */
    PARTS_MOST = 8,        /* of c's columns that are read one by one */
    NETWORK_CHUNKS = 8,    /* of a rank's rows, that go to other nodes one by one */
    NETWORK_ROWS_LEAST = 32,
    /* What tiles with rows of several ranks must save; what sending may take of the product, in
     * percent.  Eleven shapes of two H200s: who saves 20 us or more and sends for 15 % or less is
     * 4 to 13 % faster, who saves 4 to 7 us 2 to 20 % slower, who sends for 38 % in between. */
    SPANNING_US = 10,
    SPANNING_PERCENT = 3,
    SPANNING_SENT_PERCENT = 25,
    ALONE_PERCENT = 5, /* what a product made alone must save */
    SLICES_MOST = 12,
    SLICE_BYTES_LEAST = 256 << 10, /* of a rank's rows; each slice costs a few microseconds, */
    SLICE_US_LEAST = 6,            /* and so long a part of the product hides it */
    SLICE_STEP = 64,
    /* b of more than this does not stay in a GPU's cache while the ranks' rows are gone through:
     * then as many ranks are taken together as this many rows allow.  Where rows arrive from the
     * ranks they are taken two by two behind the first peer's, so that no band waits for a rank
     * whose rows come much later; with more rows than this that gains nothing. */
    B_BYTES_CACHED = 32 << 20,
    BAND_ROWS = 2048,
    BAND_ROWS_GATHERED = 512,
};

static int clamp(int64_t value, int64_t least, int64_t most)
{
    return (int)imx_max(least, imx_min(value, most));
}

/* Rows of a piece, of as few as there can be of at most so many, cut evenly. */
static int64_t evenly(int64_t rows, int64_t most)
{
    return imx_ceil_div(rows, imx_ceil_div(rows, most));
}

/* Collectives only copy and add: a chunk is so many bytes. */
static int64_t rows_of_bytes(const imx_tune_input *in, int64_t bytes)
{
    int64_t row_bytes = in->shape.n * (int64_t)imx_dtype_bytes(in->shape.out);
    return imx_max(1, bytes / imx_max(1, row_bytes));
}

static void cut_pieces(const imx_tune_input *in, int64_t rows, imx_config *config)
{
    int64_t row_bytes = in->shape.n * (int64_t)imx_dtype_bytes(in->shape.out);
    int64_t chunk = imx_min(imx_min(in->chunk_rows, rows) * row_bytes, PIECE_BYTES_MOST);
    config->line_bytes = in->arch ? LINE_BYTES_CUDA : LINE_BYTES_CPU;
    config->piece_bytes = in->arch ? PIECE_BYTES_CUDA : PIECE_BYTES_CPU;
    config->ll_line_bytes = LL_LINE_BYTES;
    if (in->chunk_rows) { /* chunks were asked for */
        config->line_bytes = 0;
        config->piece_bytes = imx_ceil_div(imx_max(1, chunk), PIECE_STEP) * PIECE_STEP;
    }
}

/* What peers read of a product of spanning tiles that scatters: a part for each wave of its tiles,
 * `at_once`, so that one is read while the next is made.  What its kernel adds up travels tile by
 * tile, and its parts are the waves. */
static void cut_parts(const imx_tune_input *in, int64_t at_once, imx_config *config)
{
    int64_t columns = imx_ceil_div(in->shape.n, config->tile_cols);
    int64_t down = imx_ceil_div(in->shape.m, config->tile_rows);
    int64_t wave = imx_max(1, at_once / imx_max(1, down));
    wave = imx_max(wave, imx_ceil_div(columns, PARTS_MOST));
    config->part_cols = imx_max(1, imx_min(wave, columns)) * config->tile_cols;
    config->parts =
        (int)imx_max(1, config->reduce_push ? imx_ceil_div(columns * down, imx_max(1, at_once))
                                            : imx_ceil_div(in->shape.n, config->part_cols));
}

static bool is_spanning(const imx_tune_input *in, int64_t rows, int64_t rows_most)
{
    return in->product && in->ranks > 1 && in->nodes <= 1 && rows <= rows_most && !in->chunk_rows;
}

/* The network starts with the first chunk and ends after the last: of several, but not of such as
 * are over before they begin. */
static int64_t rows_of_network(int64_t rows, int64_t most)
{
    int64_t wanted = imx_ceil_div(rows, NETWORK_CHUNKS);
    return imx_min(most, imx_max(imx_min(rows, NETWORK_ROWS_LEAST), wanted));
}

static void slice(const imx_tune_input *in, int64_t count, int64_t step, imx_config *config)
{
    int64_t k = in->shape.k;
    count = clamp(count, 1, SLICES_MOST);
    if (!config->spanning || k < 2 * step)
        count = 1;
    int64_t columns = imx_ceil_div(imx_ceil_div(imx_max(k, 1), count), step) * step;
    config->slices = (int)imx_ceil_div(imx_max(k, 1), columns);
    config->slice_k = (int)columns;
}

static void cut_cpu(const imx_tune_input *in, int64_t rows, imx_config *config)
{
    const imx_shape *shape = &in->shape;
    int64_t all = imx_max(1, shape->m);
    /* Where memory is the wire there is little to hide, and each call of the BLAS costs. */
    int64_t spanning_rows = in->scatters || in->slow_wire ? SPANNING_ROWS_CPU : INT32_MAX;
    config->spanning = is_spanning(in, rows, spanning_rows);
    int64_t chunk = config->spanning ? all
                    : in->chunk_rows ? in->chunk_rows
                    : !in->product   ? rows_of_bytes(in, CHUNK_BYTES_CPU)
                    : in->nodes > 1  ? rows_of_network(rows, CHUNK_ROWS_CPU)
                    : in->slow_wire  ? CHUNK_ROWS_WIRE
                                     : CHUNK_ROWS_CPU;
    if (!in->chunk_rows && !config->spanning)
        chunk = evenly(rows, chunk); /* no call for a row that is left */
    chunk = imx_min(chunk, config->spanning ? all : rows);
    int64_t tiles = imx_ceil_div(chunk, config->spanning ? 2 * TILE_ROWS_MOST : TILE_ROWS_MOST);
    config->tile_rows = (int)imx_ceil_div(chunk, tiles);
    config->chunk_rows = (int)(tiles * config->tile_rows); /* whole tiles: maybe a little more */
    if (config->spanning)
        config->chunk_rows = (int)rows;
    slice(in, 2, 1, config);
    config->group = 1;

    /* A chunk has a tile for every block. */
    int64_t most = shape->dtype == IMBREX_F32 ? TILE_COLS_F32 : TILE_COLS_SHORT;
    int64_t share = imx_max(TILE_COLS_LEAST, imx_ceil_div(shape->n, config->blocks));
    config->tile_cols = clamp(shape->n, 1, imx_min(most, share));
    cut_parts(in, config->blocks, config);
}

/* Whether tiles of several ranks' rows may be added up by those who make them, who must all be
 * there at once.  How many blocks make a tile, and so how its parts travel, follows from the number
 * of blocks: all ranks must have as many. */
static bool is_summable(const imx_tune_input *in, int blocks)
{
    return in->scatters && in->ranks <= IMX_TEAM_MOST && in->alike && blocks <= in->workers;
}

/* Where tiles have rows of several ranks, slices of k are of 16 bits. */
static bool is_gathered_at_once(const imx_tune_input *in)
{
    return !in->scatters && imx_dtype_is_8bit(in->shape.dtype);
}

/* Where tiles end: with each rank's rows; nowhere, though rows come chunk by chunk; nowhere; nor do
 * they, and nothing leaves before all are made. */
typedef enum cuts { APART, OVER_CHUNKS, TOGETHER, ALONE } cuts;

/* Of the product on a GPU. */
static imx_tiling tiling_of(const imx_tune_input *in, int blocks, cuts how)
{
    int ranks = how >= TOGETHER ? 1 : in->ranks;
    bool scatters = in->scatters && how != ALONE;
    const imx_shape *shape = &in->shape;
    imx_tiling_input product = {
        .arch = in->arch,
        .shared_bytes = in->shared_bytes,
        .m = shape->m,
        .n = shape->n,
        .k = shape->k,
        .dtype = (int)shape->dtype,
        .layout = (int)shape->layout,
        .out = (int)shape->out,
        .scaling = (int)shape->scaling,
        .ranks = ranks,
        .sms = blocks,
        .scatters = scatters,
        .hooks = in->hooks,
        .invariant = in->invariant,
        .deep = in->deep,
        .spanning = scatters && ranks < in->ranks,
        .summable = scatters && ranks < in->ranks && is_summable(in, blocks),
        .spans = how == OVER_CHUNKS,
    };
    if (!in->product)
        return (imx_tiling){ .tile_rows = 1, .tile_cols = 1, .group = 1 };
    return imx_tiling_choose(&product);
}

static int tiles_at_once(const imx_tiling *t, int blocks)
{
    return t->form == IMX_GEMM_SM90 ? t->sm90.blocks / t->sm90.cluster : blocks;
}

static int64_t tiles_in(const imx_tiling *t, int64_t rows, int64_t n)
{
    return imx_ceil_div(rows, t->tile_rows) * imx_ceil_div(n, t->tile_cols);
}

/* Of the whole product. */
static bool are_one_wave(const imx_tune_input *in, const imx_tiling *t, int blocks)
{
    return tiles_in(t, in->shape.m, in->shape.n) <= tiles_at_once(t, blocks);
}

/* What a block of Hopper's form computes of so many tiles, as they come in waves. */
static int64_t elements_of_waves(const imx_tiling *t, int64_t tiles, int blocks)
{
    int64_t waves = imx_ceil_div(tiles, tiles_at_once(t, blocks));
    return waves * t->tile_rows * t->tile_cols / t->sm90.cluster;
}

/* How long a product that is cut so takes, in microseconds; rows: of a rank, the most. */
static double made_in(const imx_tune_input *in, const imx_tiling *t, cuts how, int64_t rows,
                      int blocks)
{
    int64_t m = in->shape.m, n = in->shape.n;
    int64_t tiles = how == APART ? tiles_in(t, rows, n) * in->ranks : tiles_in(t, m, n);
    double elements = (double)elements_of_waves(t, tiles, blocks);
    return imx_cost_made(in, elements * t->sm90.column_cost / 1000);
}

/* Where all tiles are there at once, or warps make them in turns: one that adds up waits for the
 * peers, and does nothing else meanwhile. */
static bool sums_tiles(const imx_tune_input *in, const imx_tiling *t, int blocks)
{
    if (t->form != IMX_GEMM_SM90 || !is_summable(in, blocks))
        return false;
    if (t->sm90.pingpong)
        return t->tile_cols <= IMX_SM90_SUM_TURNS;
    return are_one_wave(in, t, blocks);
}

/* Whether 8-bit rows of a, which without being cut all come before the first tile, may come beneath
 * a wave that has other ranks' tiles, too: if blocks that begin with these have a tile less. */
static bool are_late_ones_short(const imx_tune_input *in, const imx_tiling *t, int64_t own,
                                int blocks)
{
    int64_t last = own * in->ranks % tiles_at_once(t, blocks);
    return is_gathered_at_once(in) && last > 0 && last <= own;
}

/* Of rows that are few, but not very few, cutting at the ranks' rows is better where it takes no
 * more waves, or less time than what comes by slices of k, and those of one rank are a wave, under
 * which the next rank's come or the last one's leave: less only where peers would have to read what
 * they are to add up.  Where rows leave, two blocks must read b once: then there is room beside the
 * loads for what is stored to peers. */
static bool is_better_apart(const imx_tune_input *in, int64_t rows, int blocks)
{
    int64_t m = in->shape.m, n = in->shape.n;
    imx_tiling apart = tiling_of(in, blocks, APART), together = tiling_of(in, blocks, TOGETHER);
    int64_t own = tiles_in(&apart, rows, n);
    if (apart.form != IMX_GEMM_SM90)
        return in->scatters;
    if (in->scatters && apart.sm90.cluster_m == 1)
        return false;
    if (10 * own < 9 * tiles_at_once(&apart, blocks) &&
        !are_late_ones_short(in, &apart, own, blocks) &&
        (!in->scatters || sums_tiles(in, &together, blocks)))
        return false;
    if (!in->scatters)
        return made_in(in, &apart, APART, rows, blocks) <=
               imx_cost_sliced(in, made_in(in, &together, TOGETHER, rows, blocks));
    return elements_of_waves(&apart, own * in->ranks, blocks) <=
           elements_of_waves(&together, tiles_in(&together, m, n), blocks);
}

/* If the ranks' rows are gone through one after the other. */
static bool reads_b_again(const imx_tune_input *in)
{
    const imx_shape *s = &in->shape;
    return in->nodes <= 1 && s->n * s->k * (int64_t)imx_dtype_bytes(s->dtype) > B_BYTES_CACHED;
}

/* The same of more rows, where tiles of one rank's rows waste less of them, but what they send has
 * to wait for the next tile's products, which are short where k is. */
static bool is_better_summed(const imx_tune_input *in, int64_t rows, int blocks)
{
    if (!in->scatters || !is_spanning(in, in->shape.m, SUMMED_ROWS_CUDA))
        return false;
    imx_tiling apart = tiling_of(in, blocks, APART), together = tiling_of(in, blocks, TOGETHER);
    if (!sums_tiles(in, &together, blocks) || !together.sm90.pingpong)
        return false;
    double stored = made_in(in, &apart, APART, rows, blocks);
    double summed = made_in(in, &together, TOGETHER, rows, blocks);
    return imx_cost_summed(in, summed) < imx_cost_stored(in, stored);
}

/* Pushes of slices count in 32 bits. */
static bool may_slice(const imx_tune_input *in)
{
    return in->shape.m * in->shape.k <= A_ELEMENTS_SPANNING;
}

static bool is_worth_spanning(double cut, double whole)
{
    return cut - whole > SPANNING_US && 100 * (cut - whole) > SPANNING_PERCENT * cut;
}

/* Whether tiles that may have rows of several ranks are so many fewer that what it takes is worth
 * it.  The first ones are of own rows alone: there are some.  Copies of own rows that others' tiles
 * have too leave the scales of 8-bit ones behind. */
static bool is_better_over_chunks(const imx_tune_input *in, int64_t rows, int blocks)
{
    if (in->scatters || in->hooks || in->apart || imx_dtype_is_8bit(in->shape.dtype) ||
        !is_spanning(in, in->shape.m, INT64_MAX))
        return false;
    imx_tiling apart = tiling_of(in, blocks, APART), spans = tiling_of(in, blocks, OVER_CHUNKS);
    if (spans.form != IMX_GEMM_SM90 || rows < 2 * spans.tile_rows)
        return false;
    double cut = made_in(in, &apart, APART, rows, blocks);
    double whole = made_in(in, &spans, OVER_CHUNKS, rows, blocks);
    double sending = imx_cost_problem(in, NULL).sent / in->rates->store;
    return is_worth_spanning(cut, whole) && 100 * sending < SPANNING_SENT_PERCENT * whole;
}

/* Whether tiles of more rows that all come slice by slice are so many fewer that it is worth it. */
static bool is_better_sliced(const imx_tune_input *in, int64_t rows, int blocks)
{
    if (in->scatters || in->hooks || !in->slices || is_gathered_at_once(in) || !may_slice(in) ||
        !is_spanning(in, in->shape.m, SLICED_ROWS_CUDA))
        return false;
    cuts how = is_better_over_chunks(in, rows, blocks) ? OVER_CHUNKS : APART;
    imx_tiling together = tiling_of(in, blocks, TOGETHER), cut = tiling_of(in, blocks, how);
    if (together.form != IMX_GEMM_SM90)
        return false;
    double sliced = made_in(in, &together, TOGETHER, rows, blocks) +
                    imx_cost_problem(in, NULL).sent / in->rates->slices;
    return is_worth_spanning(made_in(in, &cut, how, rows, blocks), sliced);
}

static bool is_spanning_cuda(const imx_tune_input *in, int64_t rows, int blocks)
{
    bool by_memory =
        !in->scatters && !is_gathered_at_once(in) && in->memory_gb_s > 0 && reads_b_again(in);
    int share = by_memory ? (int)imx_max(SPANNING_SHARD_READ, SPANNING_GATHERED / in->memory_gb_s)
                          : SPANNING_SHARD_CUDA;
    if (!is_spanning(in, in->shape.m, SPANNING_ROWS_CUDA))
        return in->scatters ? is_better_summed(in, rows, blocks)
                            : is_better_sliced(in, rows, blocks);
    if (rows > share && is_better_apart(in, rows, blocks))
        return false;
    return in->scatters || may_slice(in);
}

/* Whether a product of turned tiles, which only one that is made alone has, takes so much less that
 * adding up may wait for it.  All algorithms add up k in one order: as many blocks make a tile. */
static bool is_better_alone(const imx_tune_input *in, cuts how, int64_t rows, int blocks)
{
    if (!in->behind || !in->alike || imx_dtype_is_8bit(in->shape.dtype) ||
        !is_spanning(in, in->shape.m, SPANNING_ROWS_CUDA))
        return false;
    imx_tiling alone = tiling_of(in, blocks, ALONE), beneath = tiling_of(in, blocks, how);
    if (alone.form != IMX_GEMM_SM90 || !alone.sm90.turned || alone.sm90.split != beneath.sm90.split)
        return false;
    double made = made_in(in, &beneath, how, rows, blocks);
    made = how == APART                       ? imx_cost_stored(in, made)
           : sums_tiles(in, &beneath, blocks) ? imx_cost_summed(in, made)
                                              : imx_cost_read(in, made);
    double behind = imx_cost_behind(in, made_in(in, &alone, ALONE, rows, blocks));
    return 100 * behind < (100 - ALONE_PERCENT) * made;
}

/* On a GPU the kernel's form says what a tile is, and chunks are whole tiles. */
static void cut_cuda(const imx_tune_input *in, int64_t rows, imx_config *config)
{
    const imx_shape *shape = &in->shape;
    config->reserved_sms = (int)imx_min(WORKERS_FOR_WAITS + in->net_workers, config->blocks - 1);
    /* Between ranks on one GPU it is multiprocessors that copy. */
    config->reserved_for_copies = in->sharers > 1 ? config->reserved_sms : 0;
    config->spanning = is_spanning_cuda(in, rows, config->blocks);
    config->spans_chunks = !config->spanning && is_better_over_chunks(in, rows, config->blocks);
    cuts how = config->spanning ? TOGETHER : config->spans_chunks ? OVER_CHUNKS : APART;
    config->alone = is_better_alone(in, how, rows, config->blocks);
    if (config->alone) {
        config->spanning = true;
        how = ALONE;
    }
    imx_tiling tiling = tiling_of(in, config->blocks, how);
    int64_t chunk = in->chunk_rows  ? in->chunk_rows
                    : !in->product  ? rows_of_bytes(in, CHUNK_BYTES_CUDA)
                    : in->nodes > 1 ? rows_of_network(rows, CHUNK_ROWS_CUDA)
                                    : CHUNK_ROWS_CUDA;
    config->tile_rows = tiling.tile_rows;
    config->tile_cols = tiling.tile_cols;
    config->group = tiling.group;
    if (config->spans_chunks) /* behind own rows: as many as come at about the same time */
        config->group =
            clamp(imx_max(rows, BAND_ROWS_GATHERED) / tiling.tile_rows, 1, tiling.group);
    config->pushes_beside = tiling.form == IMX_GEMM_SM90;
    config->halved = config->pushes_beside && tiling.sm90.halved;
    config->tiles_at_once = tiles_at_once(&tiling, config->blocks);
    config->summable = how == TOGETHER && is_summable(in, config->blocks);
    config->reduce_push = how == TOGETHER && sums_tiles(in, &tiling, config->blocks);
    cut_parts(in, config->pushes_beside ? config->tiles_at_once : INT32_MAX, config);
    config->chunk_rows =
        config->spanning
            ? (int)rows
            : (int)(imx_ceil_div(imx_min(chunk, rows), tiling.tile_rows) * tiling.tile_rows);
    int64_t element = (int64_t)imx_dtype_bytes(shape->dtype);
    int64_t slices = imx_min(rows * shape->k * element / SLICE_BYTES_LEAST,
                             (int64_t)fmin(imx_cost_product(in) / SLICE_US_LEAST, SLICES_MOST) + 1);
    config->passes = config->spanning && config->pushes_beside && element > 1;
    slice(in, config->passes ? slices : 1, SLICE_STEP, config);
    if (in->scatters && reads_b_again(in))
        config->band = clamp(BAND_ROWS / rows, 1, in->ranks);
    else if (config->pushes_beside && !config->spans_chunks && reads_b_again(in) &&
             rows <= BAND_ROWS_GATHERED)
        config->band = 2;
}

imx_config imx_tune_config(const imx_tune_input *in)
{
    imx_config config = { .blocks = clamp(in->sms ? in->sms : in->workers, 1, 1024),
                          .invariant = in->invariant,
                          .deep = in->deep };
    int64_t rows = imx_max(1, imx_ceil_div(in->shape.m, in->ranks)); /* the most that a rank owns */
    (in->arch ? cut_cuda : cut_cpu)(in, rows, &config);
    config.chunks = (int)imx_ceil_div(rows, config.chunk_rows);
    cut_pieces(in, rows, &config);
    if (in->arch && in->ranks > 1 && in->nodes <= 1)
        imx_cost_set_pace(in, &config);
    return config;
}

int64_t imx_tune_chunk_rows(const imx_config *config, int64_t rows)
{
    if (config->spanning || rows < 1)
        return config->chunk_rows;
    int64_t tiles = imx_ceil_div(evenly(rows, config->chunk_rows), config->tile_rows);
    return tiles * config->tile_rows;
}
