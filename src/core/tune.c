/* tune.c - tile and chunk sizes, blocks, and the algorithm, from the shape alone. */
#include "tune.h"

enum {
    CHUNKS_WANTED = 8,           /* a rank: the first chunk is what nothing can hide */
    CHUNK_ROWS_LEAST = 64,       /* below this a product re-reads b too often to run at speed */
    TILE_ROWS_MOST = 512,        /* beyond this rows no longer help */
    TILE_COLS_MOST = 1024,       /* bounds the float32 panels that bf16 and f16 are widened into */
    OVERLAP_BYTES_LEAST = 32768, /* a shard that travels faster than a thread wakes up */
};

static int clamp(int64_t value, int64_t least, int64_t most)
{
    return (int)imx_max(least, imx_min(value, most));
}

imx_config imx_tune_config(const imx_tune_input *in)
{
    imx_config config = { .group = 1 };
    const imx_shape *shape = &in->shape;
    int64_t rows = imx_max(1, imx_ceil_div(shape->m, in->ranks)); /* the most that a rank owns */

    int64_t chunk = in->chunk_rows;
    if (!chunk)
        chunk = imx_max(CHUNK_ROWS_LEAST, imx_ceil_div(rows, CHUNKS_WANTED));
    chunk = imx_min(chunk, rows);
    int64_t tiles = imx_ceil_div(chunk, TILE_ROWS_MOST);
    config.tile_rows = (int)imx_ceil_div(chunk, tiles);
    config.chunk_rows = (int)(tiles * config.tile_rows); /* whole tiles: a little more than asked */
    config.chunks = (int)imx_ceil_div(rows, config.chunk_rows);
    config.tile_cols = clamp(shape->n, 1, TILE_COLS_MOST);
    config.blocks = clamp(in->sms ? in->sms : in->units, 1, 1024);

    int64_t width = in->product && shape->k < shape->n ? shape->k : shape->n;
    int64_t shard_bytes = rows * width * (int64_t)imx_dtype_bytes(shape->dtype);
    if (in->ranks == 1) {
        config.algorithm = "sequential";
        config.why = "there is no peer to send to";
    } else if (shard_bytes < OVERLAP_BYTES_LEAST) {
        config.algorithm = "sequential";
        config.why = "a shard is sent sooner than a second stream starts";
    } else {
        config.algorithm = "copy";
        config.why = "sending runs beside the rest";
    }
    return config;
}
