/* sm90_shape.h - what the grouped kernel for Hopper takes of shared memory: the launch and the
 * kernel agree on it.
 *
 *     stages x (a [tile_m, 128 bytes] | b [tile_n, 128 bytes]) | pieces of c of consumer warps |
 *     barriers | the tile of each stage | of 8 bits: whose scales its rows have, two notes of each
 *     consumer warp | this tile and the next | what is counted of tiles */
#ifndef IMX_GROUPED_SM90_SHAPE_H
#define IMX_GROUPED_SM90_SHAPE_H

#include "args.h"

enum {
    IMX_GROUPED_ROW = 128,    /* bytes along k of a stage: one swizzle */
    IMX_GROUPED_PIECE = 2048, /* 16 rows of 64 columns of c */
    IMX_GROUPED_INFO = 16,    /* what consumers are told of a tile */
    IMX_GROUPED_NOTES = 128,
    IMX_GROUPED_BEFORE = (3 * IMX_GROUPED_ORDERED + 1 + 3) / 4 * 16,
};

/* element: bytes of one of a.  Of 8 bits a warp has room for all of a tile's pieces, else for
 * one. */
#define IMX_GROUPED_STAGE(tile_m, tile_n) (((tile_m) + (tile_n)) * IMX_GROUPED_ROW)
#define IMX_GROUPED_WARP(tile_n, element) \
    ((element) == 1 ? (tile_n) / 64 * IMX_GROUPED_PIECE + 2 * IMX_GROUPED_INFO : IMX_GROUPED_PIECE)
#define IMX_GROUPED_TOLD(tile_m, element) \
    (16 + IMX_GROUPED_INFO + ((element) == 1 ? (tile_m)*4 : 0))
#define IMX_GROUPED_SHARED(tile_m, tile_n, stages, element)                               \
    ((stages) * (IMX_GROUPED_STAGE(tile_m, tile_n) + IMX_GROUPED_TOLD(tile_m, element)) + \
     (tile_m) / 16 * IMX_GROUPED_WARP(tile_n, element) + IMX_GROUPED_NOTES + IMX_GROUPED_BEFORE)

#endif /* IMX_GROUPED_SM90_SHAPE_H */
