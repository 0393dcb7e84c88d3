/* tiles.cuh - which tiles there are of all experts, and where their rows of a lie: read from the
 * routing as a kernel runs, and never outside of what there is.
 *
 *     IMX_TILE_M, IMX_TILE_N   a whole tile
 *
 * Tiles follow each other by expert, then by column, then down the rows, so that blocks side by
 * side read the same columns of b. */
#ifndef IMX_GROUPED_TILES_CUH
#define IMX_GROUPED_TILES_CUH

#include "../gemm/schedule.h"
#include "args.h"

#define IMX_GROUPED_FN static __device__ __forceinline__

typedef struct note {
    imx_tile tile;
    int expert;
} note;

IMX_GROUPED_FN int64_t first_row(const imx_grouped_args &args, int e)
{
    int64_t row = args.expert_begin[e];
    return row < 0 ? 0 : row < args.rows ? row : args.rows;
}

IMX_GROUPED_FN int64_t rows_of(const imx_grouped_args &args, int e)
{
    int64_t rows = args.expert_rows[e], most = args.rows - first_row(args, e);
    return rows < 0 ? 0 : rows < most ? rows : most;
}

/* By the first warp, 32 experts at a time: before[e] = rows of tiles ahead of expert e's. */
IMX_GROUPED_FN void count_tiles(const imx_grouped_args &args, int32_t *before)
{
    int32_t sum = 0, lane = threadIdx.x;
    for (int at = 0; at < args.here; at += 32) {
        int e = at + lane;
        int32_t upto =
            e < args.here ? (int32_t)((rows_of(args, e) + IMX_TILE_M - 1) / IMX_TILE_M) : 0;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int32_t other = __shfl_up_sync(0xffffffffu, upto, step);
            upto += lane >= step ? other : 0;
        }
        if (e < args.here)
            before[e + 1] = sum + upto;
        sum += __shfl_sync(0xffffffffu, upto, 31);
    }
    if (lane == 0)
        before[0] = 0;
}

/* Tile number i, of the last expert that does not begin behind it. */
IMX_GROUPED_FN note tile_at(const imx_grouped_args &args, const int32_t *before, int64_t columns,
                            int64_t i)
{
    int32_t number = (int32_t)(i / columns);
    int low = 0, high = args.here;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (before[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    int64_t tall = before[low + 1] - before[low], place = i - before[low] * columns;
    int64_t row = place % tall * IMX_TILE_M, col = place / tall * IMX_TILE_N;
    int64_t rows = rows_of(args, low) - row, cols = args.n - col;
    note found = {};
    found.expert = low;
    found.tile.row = first_row(args, low) + row;
    found.tile.col = col;
    found.tile.rows = (int)(rows < IMX_TILE_M ? rows : IMX_TILE_M);
    found.tile.cols = (int)(cols < IMX_TILE_N ? cols : IMX_TILE_N);
    return found;
}

/* Of elements of so many bytes.  NULL: no token's. */
IMX_GROUPED_FN const char *row_of_a(const imx_grouped_args &args, int64_t row, int element)
{
    if (!args.top_k)
        return (const char *)args.own + row * args.k * element;
    int32_t pair = args.row_pair[row];
    int64_t token = pair < 0 ? -1 : pair / args.top_k, mine = token - args.own_first;
    if (token < 0 || token >= args.tokens)
        return NULL;
    if (mine >= 0 && mine < args.own_rows)
        return (const char *)args.own + mine * args.k * element;
    return (const char *)args.gathered + token * args.k * element;
}

#endif /* IMX_GROUPED_TILES_CUH */
