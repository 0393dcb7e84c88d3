/* sm90_shape.h - what the grouped kernel for Hopper takes of shared memory: the launch and the
 * kernel agree on it.
 *
 *     stages x (a [tile_m, 64] | b [tile_n, 64]) | a piece of c for each consumer warp |
 *     barriers | the tile of each stage | this tile and the next | what is counted of tiles */
#ifndef IMX_GROUPED_SM90_SHAPE_H
#define IMX_GROUPED_SM90_SHAPE_H

#include "args.h"

enum {
    IMX_GROUPED_K = 64,       /* columns of a stage: 128 bytes, one swizzle */
    IMX_GROUPED_PIECE = 2048, /* 16 rows of 64 columns of c */
    IMX_GROUPED_INFO = 16,    /* what consumers are told of a tile */
    IMX_GROUPED_NOTES = 128,
    IMX_GROUPED_BEFORE = (3 * IMX_GROUPED_ORDERED + 1 + 3) / 4 * 16,
};

#define IMX_GROUPED_STAGE(tile_m, tile_n) (((tile_m) + (tile_n)) * IMX_GROUPED_K * 2)
#define IMX_GROUPED_REST(tile_m, stages)                                                          \
    ((tile_m) / 16 * IMX_GROUPED_PIECE + (stages) * (16 + IMX_GROUPED_INFO) + IMX_GROUPED_NOTES + \
     IMX_GROUPED_BEFORE)
#define IMX_GROUPED_SHARED(tile_m, tile_n, stages) \
    ((stages)*IMX_GROUPED_STAGE(tile_m, tile_n) + IMX_GROUPED_REST(tile_m, stages))

#endif /* IMX_GROUPED_SM90_SHAPE_H */
