/* tiles.cuh - which tiles there are of all experts, and where their rows of a lie: read from the
 * routing as a kernel runs, and never outside of what there is.
 *
 *     IMX_TILE_M, IMX_TILE_N   a whole tile
 *
 * Early tiles come before late ones (order.h).  They follow each other by expert, then by column,
 * then down the rows, so that blocks side by side read the same columns of b. */
#ifndef IMX_GROUPED_TILES_CUH
#define IMX_GROUPED_TILES_CUH

#include "../gemm/schedule.h"
#include "../wait_points.h"
#include "args.h"
#include "order.h"

#define IMX_GROUPED_FN static __device__ __forceinline__

typedef struct note {
    imx_tile tile;
    int expert;
    int late; /* it has others' tokens, which may not be here yet */
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

/* What a block counts for itself, in shared memory: rows of tiles ahead of each expert's early
 * ones, then of each one's late ones, and, with ready, each one's first early tile. */
enum { IMX_GROUPED_COUNTS = 3 * IMX_GROUPED_ORDERED + 1 };
static_assert(IMX_GROUPED_COUNTS > IMX_GROUPED_EXPERTS, "without ready, too");

IMX_GROUPED_FN int segments_of(const imx_grouped_args &args)
{
    return args.ready ? 2 * args.here : args.here;
}

/* By all threads of the block, which meet in between and behind it. */
IMX_GROUPED_FN void count_tiles(const imx_grouped_args &args, int32_t *before)
{
    int segments = segments_of(args);
    for (int e = threadIdx.x; e < args.here; e += blockDim.x) {
        imx_grouped_order order =
            imx_grouped_order_of(&args, first_row(args, e), rows_of(args, e), IMX_TILE_M);
        before[e + 1] = order.early;
        if (args.ready) {
            before[args.here + e + 1] = order.late;
            before[segments + 1 + e] = order.first;
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        int32_t sum = 0, lane = threadIdx.x;
        for (int at = 0; at < segments; at += 32) {
            int32_t upto = at + lane < segments ? before[at + lane + 1] : 0;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                int32_t other = __shfl_up_sync(0xffffffffu, upto, step);
                upto += lane >= step ? other : 0;
            }
            if (at + lane < segments)
                before[at + lane + 1] = sum + upto;
            sum += __shfl_sync(0xffffffffu, upto, 31);
        }
        if (lane == 0)
            before[0] = 0;
    }
    __syncthreads();
}

/* Tile number i, of the last segment that does not begin behind it; columns: of tiles. */
IMX_GROUPED_FN note tile_at(const imx_grouped_args &args, const int32_t *before, int64_t columns,
                            int64_t i)
{
    int32_t number = (int32_t)(i / columns);
    int segments = segments_of(args), low = 0, high = segments;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (before[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    bool late = low >= args.here;
    int e = late ? low - args.here : low;
    int32_t tall = before[low + 1] - before[low];
    int32_t first = args.ready ? before[segments + 1 + e] : 0;
    int64_t place = i - before[low] * columns;
    int64_t down = imx_grouped_tile(first, before[e + 1] - before[e], late, place % tall);
    int64_t row = down * IMX_TILE_M, col = place / tall * IMX_TILE_N;
    int64_t rows = rows_of(args, e) - row, cols = args.n - col;
    note found = {};
    found.expert = e;
    found.late = late;
    found.tile.row = first_row(args, e) + row;
    found.tile.col = col;
    found.tile.rows = (int)(rows < IMX_TILE_M ? rows : IMX_TILE_M);
    found.tile.cols = (int)(cols < IMX_TILE_N ? cols : IMX_TILE_N);
    return found;
}

/* By one warp: until the rows of all peers are here, or a wait gave up; then the group has failed,
 * and it does not matter what is read. */
IMX_GROUPED_FN void wait_for_all(const imx_grouped_args &args, const imbrexd_watch *watch)
{
    for (int r = 0; r < args.ranks; r++) {
        int chunks = imx_grouped_chunks(&args, r);
        for (int q = threadIdx.x % 32; q < chunks; q += 32) {
            imbrexd_wait_point point = { args.plan, IMX_POINT_CHUNK, r, q };
            if (!imbrexd_signal_wait(watch, &args.ready[r * args.chunks + q], *args.epoch, point))
                return;
        }
    }
}

/* Which row of a, or of its scales, a row of c is of: of all tokens, or with top_k 0 of own rows.
 * -1: none. */
IMX_GROUPED_FN int64_t source_of_row(const imx_grouped_args &args, int64_t row)
{
    if (!args.top_k)
        return row;
    int32_t pair = args.row_pair[row];
    int64_t token = pair < 0 ? -1 : pair / args.top_k;
    return token < args.tokens ? token : -1;
}

/* Of elements of so many bytes.  NULL: no token's. */
IMX_GROUPED_FN const char *row_of_a(const imx_grouped_args &args, int64_t row, int element)
{
    int64_t token = source_of_row(args, row), mine = token - args.own_first;
    if (!args.top_k)
        return (const char *)args.own + row * args.k * element;
    if (token < 0)
        return NULL;
    if (mine >= 0 && mine < args.own_rows)
        return (const char *)args.own + mine * args.k * element;
    return (const char *)args.gathered + token * args.k * element;
}

#endif /* IMX_GROUPED_TILES_CUH */
