/* cpu_team.h - what the GEMM kernel does on CPU ranks when it reaches its peers itself. */
#ifndef IMX_CPU_TEAM_H
#define IMX_CPU_TEAM_H

#include "args.h"

/* The epoch of this run. */
static inline uint64_t imx_cpu_team_epoch(const imx_gemm_args *args)
{
    return *args->epoch + (uint64_t)args->ahead;
}

/* The scales of row `row` of the tile's rows of a, where these have some. */
static inline const float *imx_cpu_team_scales(const imx_gemm_args *args, const imx_tile *tile,
                                               int64_t row)
{
    if (!(args->features & IMX_GEMM_GATHERS))
        return args->scale_a + (tile->row + row) * args->row_scales;
    if (tile->rank == args->own)
        return args->scale_a + (tile->rank_row + row) * args->row_scales;
    return args->gathered_scales + (tile->row + row) * args->row_scales;
}

/* Until the peer has read the previous epoch of its buffer; 0: give up. */
int imx_cpu_team_credit(const imx_gemm_args *args, const imbrexd_block *block, int rank);

/* Stores args.a into the peers' memory, chunk by chunk, each with its signal; 0: give up. */
int imx_cpu_team_push(const imx_gemm_args *args, const imbrexd_block *block);

/* Passes on to the rank before what is the tile's turn of its rows, [rows, k]; 0: give up. */
int imx_cpu_ring_pass(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile,
                      const void *rows);

/* Where SCATTER_PUSH puts the tile: in the owner's slot for this rank, at the tile's first element;
 * or where REDUCE_PULL keeps it. */
void *imx_cpu_team_slot(const imx_gemm_args *args, const imx_tile *tile);

/* All tiles of the chunk are stored: says so, to the owner or to all. */
void imx_cpu_team_post(const imx_gemm_args *args, const imx_tile *tile);

/* Where REDUCE_PUSH puts row `row` of the tile: in its owner's slot for this rank; with REDUCE_ALL
 * in its own one, from where it goes to the others. */
void *imx_cpu_team_row(const imx_gemm_args *args, const imx_tile *tile, long long row);

/* With REDUCE_PUSH, a tile whose rows are all in their slots: tells their owners, and makes c of
 * this rank's own once the peers have told; 0: give up. */
int imx_cpu_team_sum(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile);

/* With REDUCE_FAN, behind the block's tiles: its share of the sums that others have made; 0: give
 * up. */
int imx_cpu_team_take(const imx_gemm_args *args, const imbrexd_block *block);

/* A tile of this rank's own rows, whose product is in its slot: waits for the peers' parts and adds
 * them into c; 0: give up. */
int imx_cpu_team_fold(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile);

/* With REDUCE_PULL, behind the block's tiles: its share of this rank's rows, chunk by chunk as they
 * stand on all ranks; 0: give up. */
int imx_cpu_team_collect(const imx_gemm_args *args, const imbrexd_block *block);

/* imbrexd_gemm.add. */
void imx_cpu_team_add(int dtype, void *to, const void *parts, size_t stride_bytes, int count,
                      int64_t elements);

#endif /* IMX_CPU_TEAM_H */
