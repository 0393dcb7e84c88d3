/* config.h - what a choice depends on, the shape and all else, and how an operator is cut by it. */
#ifndef IMX_CONFIG_H
#define IMX_CONFIG_H

#include "base/imx.h"
#include "rates.h"

typedef struct imx_shape {
    int64_t m, n, k;    /* k is 0 where there is no product */
    imbrex_dtype dtype; /* of a and b: with E5M2 b is E4M3 */
    imbrex_dtype out;   /* of c, and of what is added to it */
    imbrex_layout layout;
    imbrex_scaling scaling; /* of a and b */
    bool fast_accumulation;
} imx_shape;

/* Floats of scales that travel with a row of a. */
static inline int64_t imx_shape_row_scales(const imx_shape *shape)
{
    return shape->scaling == IMBREX_PER_ROW     ? 1
           : shape->scaling == IMBREX_PER_BLOCK ? imx_ceil_div(shape->k, IMX_SCALING_BLOCK)
                                                : 0;
}

/* What the choice depends on beside the shape. */
typedef struct imx_tune_input {
    imx_shape shape;
    bool product;        /* the operator multiplies */
    bool shard_residual; /* of sums: each rank has its own rows of it */
    bool norms;          /* likewise: rows are normed or quantised behind them */
    bool scatters;       /* c goes to its rows' owners; else a comes from them */
    bool hooks;          /* the product is of a caller's kernel */
    bool invariant;      /* a row's bits do not depend on m */
    bool deep;           /* of one rank, which has a GPU to itself: four or eight blocks, which have
                            to be near each other, may make a tile */
    int ranks;
    int nodes;              /* that they are on */
    int net_workers;        /* of the device, that the engine between nodes takes */
    int64_t chunk_rows;     /* asked for; 0: choose */
    int64_t sms;            /* likewise */
    int arch;               /* of the GPU; 0: the CPU */
    size_t shared_bytes;    /* see imx_target */
    int memory_gb_s;        /* likewise, of the slowest */
    const imx_rates *rates; /* of a GPU */
    int workers;            /* blocks that the device has room for, of this rank's */
    int sharers;            /* ranks on the device */
    bool alike;             /* all ranks have as many workers */
    bool whole_lines;       /* lines arrive as they were stored (ll/args.h) */
    bool slow_wire;         /* ranks are far apart for what they compute */
    bool apart;         /* asked for by a name: what passes on chunks, each of one rank's rows */
    bool slices;        /* an algorithm that may be taken has slices come beneath the product, */
    bool behind;        /* or adds up behind a product made alone */
    int experts;        /* of a rank that multiplies each of them by rows of its own; else 0 */
    double expert_rows; /* of all of them, where ids are spread evenly */
} imx_tune_input;

typedef struct imx_config {
    int chunk_rows; /* the most; of a run: imx_tune_chunk_rows */
    int tile_rows, tile_cols, group;
    int chunks;        /* most chunks of any rank */
    bool spans_chunks; /* not spanning, but tiles may have rows of several ranks all the same */
    bool spanning;     /* ranks have so few rows that tiles have rows of several: one chunk each */
    bool invariant;    /* these two as in imx_tune_input */
    bool deep;
    bool summable;     /* spanning: the kernel of a product that scatters may add it up, */
    bool reduce_push;  /* and does (IMX_GEMM_REDUCE_PUSH) */
    bool alone;        /* spanning: the product is one rank's alone, and added up behind it */
    int64_t part_cols; /* spanning: columns of c that travel, or that others come to read, while the
                          next ones are made, */
    int parts;         /* and how many times; if the kernel adds up: waves of tiles */
    int slices,
        slice_k; /* spanning: columns of a that travel under one signal, and how many times */
    int band;    /* ranks that are walked together */
    int reserved_for_copies; /* of the blocks, where copies must run beside a product */
    int tiles_at_once;       /* of a product on a GPU */
    bool pushes_beside;  /* the kernel that multiplies pushes rows beneath its products; else all
                            its warps do, before the first tile */
    bool passes;         /* spanning: rows of a go slice by slice, by way of an inbox */
    bool halved;         /* half of each tile leaves before the next one's products begin */
    int push_pace[2];    /* clock cycles, on a GPU, for 64 KB that a product's kernel pushes, to the
                          peer that needs them first and to the others; spanning: [0] between the
                          begins of slices; 0: any */
    int64_t piece_bytes; /* where a kernel only moves rows: what travels under one signal */
    int64_t line_bytes;  /* and the most, to all peers, that travels in lines (push/args.h) */
    int64_t ll_line_bytes; /* where data carries its flags: shares from here on do so in lines, if
                              these arrive whole (ll/args.h) */
    int reserved_sms;      /* of the blocks, where kernels of a second stream must run beside a
                         product */
    int blocks;
} imx_config;

#endif /* IMX_CONFIG_H */
