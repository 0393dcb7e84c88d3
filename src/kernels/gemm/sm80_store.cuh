/* sm80_store.cuh - sm80.cu's tiles from registers to where they belong: c, or with scatter_push the
 * owner of their rows; own rows take the peers' parts on the way.  With reduce_pull tiles stay
 * in this rank's data, and in the end each rank reads its own rows of all ranks'. */
#ifndef IMX_SM80_STORE_CUH
#define IMX_SM80_STORE_CUH

#include "sm80_ptx.cuh"
#include "team.cuh"

/* A thread's part of a tile. */
typedef float sums[PARTS_M][PARTS_N][4];

IMX_FN int lane_of(void)
{
    return threadIdx.x % 32;
}

/* First row and column of this warp in its tile. */
IMX_FN int warp_row(void)
{
    return (int)threadIdx.x / 32 / WARPS_N * IMX_WARP_M;
}

IMX_FN int warp_col(void)
{
    return (int)threadIdx.x / 32 % WARPS_N * IMX_WARP_N;
}

/* Beyond n it does not matter. */
IMX_FN void add_bias(sums &c, const imx_gemm_args &args, const imx_tile &tile)
{
    if (!args.bias)
        return;
    int first = warp_col() + lane_of() % 4 * 2;
#pragma unroll
    for (int j = 0; j < PARTS_N; j++) {
        int col = first + j * 8;
        float b0 = 0, b1 = 0;
        if (col < tile.cols)
            b0 = imx_vector_get(IMX_DTYPE, args.bias, tile.col + col);
        if (col + 1 < tile.cols)
            b1 = imx_vector_get(IMX_DTYPE, args.bias, tile.col + col + 1);
#pragma unroll
        for (int i = 0; i < PARTS_M; i++) {
            c[i][j][0] += b0, c[i][j][1] += b1;
            c[i][j][2] += b0, c[i][j][3] += b1;
        }
    }
}

/* Element by element: any alignment, any edge. */
IMX_FN void store_elements(const sums &c, char *corner, int64_t n, const imx_tile &tile)
{
    int row = warp_row() + lane_of() / 4, col = warp_col() + lane_of() % 4 * 2;
    int rows = tile.rows - row, cols = tile.cols - col;
    char *to = corner + (row * n + col) * ELEMENT;
#pragma unroll
    for (int i = 0; i < PARTS_M * 2; i++, to += 8 * n * ELEMENT) {
        if (i * 8 >= rows)
            continue;
#pragma unroll
        for (int j = 0; j < PARTS_N; j++) {
            if (j * 8 < cols)
                imx_vector_put(IMX_DTYPE, to, j * 8, c[i / 2][j][i % 2 * 2]);
            if (j * 8 + 1 < cols)
                imx_vector_put(IMX_DTYPE, to, j * 8 + 1, c[i / 2][j][i % 2 * 2 + 1]);
        }
    }
}

#if IMX_IS_F32

/* Rows of c begin at multiples of 16 bytes: two elements at a time. */
IMX_FN void store_vectors(const sums &c, char *corner, int64_t n, const imx_tile &tile)
{
    int row = warp_row() + lane_of() / 4, col = warp_col() + lane_of() % 4 * 2;
    int rows = tile.rows - row, cols = tile.cols - col;
    float *to = (float *)corner + row * n + col;
#pragma unroll
    for (int i = 0; i < PARTS_M * 2; i++, to += 8 * n) {
#pragma unroll
        for (int j = 0; j < PARTS_N; j++) {
            if (i * 8 < rows && j * 8 < cols)
                *(float2 *)(to + j * 8) =
                    make_float2(c[i / 2][j][i % 2 * 2], c[i / 2][j][i % 2 * 2 + 1]);
        }
    }
}

#else

/* Lane t of each four has word t of four fragments, and gets the four words of fragment t. */
IMX_FN uint4 turn(uint32_t (&w)[4])
{
    int lane = lane_of();
#pragma unroll
    for (int far = 1; far <= 2; far *= 2) {
        bool upper = lane & far;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & far)
                continue;
            uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + far], far);
            w[i] = upper ? got : w[i];
            w[i + far] = upper ? w[i + far] : got;
        }
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Rows of c begin at multiples of 16 bytes: eight elements at a time. */
IMX_FN void store_vectors(const sums &c, char *corner, int64_t n, const imx_tile &tile)
{
    int row = warp_row() + lane_of() / 4, col = warp_col() + lane_of() % 4 * 8;
    int rows = tile.rows - row, cols = tile.cols - col;
    char *to = corner + (row * n + col) * ELEMENT;
#pragma unroll
    for (int i = 0; i < PARTS_M * 2; i++, to += 8 * n * ELEMENT) {
#pragma unroll
        for (int j = 0; j < PARTS_N; j += 4) {
            uint32_t words[4] = { 0, 0, 0, 0 };
#pragma unroll
            for (int q = 0; q < 4 && j + q < PARTS_N; q++)
                words[q] = imx_vector_word(IMX_DTYPE, c[i / 2][j + q][i % 2 * 2],
                                           c[i / 2][j + q][i % 2 * 2 + 1]);
            uint4 v = turn(words);
            if (i * 8 < rows && j * 8 < cols && j + lane_of() % 4 < PARTS_N)
                *(uint4 *)(to + j * 8 * ELEMENT) = v;
        }
    }
}

#endif

/* The matrix that the tile is part of, from the tile's first element on. */
IMX_FN char *corner_of(const imx_gemm_args &args, const imx_tile &tile)
{
    int64_t n = args.schedule.n, row = tile.row;
    char *home = (char *)args.c;
    if (SCATTER_PUSH) {
        row = tile.rank_row;
        home = imx_team_data(&args.team, tile.rank) + args.team.rank * args.slot_bytes;
    } else if (REDUCE_PULL) {
        home = imx_team_data(&args.team, args.team.rank);
    }
    return home + (row * n + tile.col) * ELEMENT;
}

IMX_FN void store_tile(sums &c, const imx_gemm_args &args, const imx_tile &tile)
{
    int64_t n = args.schedule.n;
    char *corner = corner_of(args, tile);
    if (!PEERS_SEE)
        add_bias(c, args, tile);
    if (imx_vector_aligned(corner) && n % PER_UNIT == 0)
        store_vectors(c, corner, n, tile);
    else
        store_elements(c, corner, n, tile);
}

/* Rank r's part of own rows, [own rows, n]. */
IMX_FN const char *part_of(const imx_gemm_args &args, int r)
{
    if (SCATTER_PUSH)
        return imx_team_data(&args.team, args.team.rank) + r * args.slot_bytes;
    int64_t first = team_row(args, args.team.rank);
    return imx_team_data(&args.team, r) + first * args.schedule.n * ELEMENT;
}

/* One element of c: the parts of all ranks, then bias and residual. */
IMX_FN void fold_element(const imx_gemm_args &args, int64_t at, int64_t col)
{
    float sum = imx_vector_get(IMX_DTYPE, part_of(args, 0), at);
    for (int r = 1; r < args.team.size; r++)
        sum += imx_vector_get(IMX_DTYPE, part_of(args, r), at);
    if (args.bias)
        sum += imx_vector_get(IMX_DTYPE, args.bias, col);
    if (args.residual)
        sum += imx_vector_get(IMX_DTYPE, args.residual, at);
    imx_vector_put(IMX_DTYPE, args.c, at, sum);
}

/* 16 bytes of it. */
IMX_FN void fold_unit(const imx_gemm_args &args, int64_t at, int64_t col)
{
    enum { AT_ONCE = 4 };
    float sum[PER_UNIT];
#pragma unroll 1
    for (int first = 0; first < args.team.size; first += AT_ONCE) {
        uint4 part[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (first + j < args.team.size)
                part[j] = imx_vector_load(part_of(args, first + j) + at * ELEMENT);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (first + j < args.team.size)
                imx_vector_add(IMX_DTYPE, sum, part[j], first + j == 0);
        }
    }
#pragma unroll
    for (int i = 0; i < PER_UNIT && args.bias; i++)
        sum[i] += imx_vector_get(IMX_DTYPE, args.bias, col + i);
    if (args.residual)
        imx_vector_add(IMX_DTYPE, sum, imx_vector_load((const char *)args.residual + at * ELEMENT),
                       false);
    *(uint4 *)((char *)args.c + at * ELEMENT) = imx_vector_narrow(IMX_DTYPE, sum);
}

/* Up to PER_UNIT elements of an own row, from col on and before `end`. */
IMX_FN void fold_span(const imx_gemm_args &args, int64_t row, int64_t col, int64_t end)
{
    int64_t n = args.schedule.n, at = row * n + col;
    bool aligned = imx_vector_aligned(args.c) && n % PER_UNIT == 0;
    if (aligned && col < end)
        fold_unit(args, at, col);
    for (int i = 0; i < PER_UNIT && col + i < end && !aligned; i++)
        fold_element(args, at + i, col + i);
}

/* All threads, once all parts of the tile of own rows stand: the barrier has told all.  A call of
 * its own, so that what it needs takes no registers from the product. */
static __device__ __noinline__ void fold_tile(const imx_gemm_args &args, const imx_tile &tile)
{
    enum { UNITS = IMX_TILE_N / PER_UNIT };
    int thread = (int)thread_here();
    int64_t col = tile.col + thread % UNITS * PER_UNIT;
#pragma unroll 1
    for (int row = thread / UNITS; row < tile.rows; row += THREADS / UNITS)
        fold_span(args, tile.rank_row + row, col, tile.col + tile.cols);
}

#endif /* IMX_SM80_STORE_CUH */
