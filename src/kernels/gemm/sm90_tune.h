/* sm90_tune.h - from a product's shape to how sm90.cu or sm90_eight.cu is built and launched: pure,
 * printable. */
#ifndef IMX_SM90_TUNE_H
#define IMX_SM90_TUNE_H

#include <stddef.h>
#include <stdint.h>

/* Columns, at most, of a tile that warps which take turns add up: wide ones would spill. */
enum { IMX_SM90_SUM_TURNS = 128 };

/* What the choice depends on. */
typedef struct imx_sm90_input {
    int64_t m, n, k; /* of the whole product */
    int ranks;       /* how the rows are cut; at least 1 */
    int sms;         /* blocks that may run side by side */
    int b_kn;        /* b is [k, n] */
    int eight;       /* a and b are of 8 bits: sm90_eight.cu */
    int by_block;    /* likewise, and blocks of both have scales */
    int scatters;    /* tiles go to their rows' owners */
    int hooks;       /* likewise, and also of one rank */
    int spanning;    /* likewise, and tiles have rows of several ranks, which may come and read */
    int summable;    /* spanning: the kernel may add them up, instead */
    int invariant;   /* k is added up in one order, whatever m is: by one block */
    int deep;        /* four or eight blocks may make a tile */
    int spans;       /* tiles end where they end, and not where the ranks' rows do */
    int pushes;      /* a's rows go to peers, chunk by chunk, beneath the product */
} imx_sm90_input;

/* The names are those of sm90.cu's options. */
typedef struct imx_sm90_config {
    int tile_m, tile_n;       /* of a block */
    int wg_m;                 /* rows of a warpgroup, or columns of a turned tile */
    int turned;               /* the tile is made as its transpose */
    int pingpong;             /* warpgroups take turns */
    int stages;               /* of 128 bytes along k */
    int cluster_m;            /* blocks of a cluster, below each other */
    int split;                /* blocks, 1, 2, 4 or 8, that make a tile together: a cluster's */
    int buffers;              /* pieces of c a warp has room for, 1 or 2; of 8 bits half or more */
    int halved;               /* half a tile has to leave before there is room for all of it */
    int bulk;                 /* the copy engine pushes, by way of shared memory */
    int cluster;              /* blocks of a cluster in all */
    int group;                /* tile rows walked down before the next column: imx_schedule.group */
    int tile_rows, tile_cols; /* of a cluster: imx_schedule's */
    int column_cost;          /* of a column of the tile, in thousandths of a wide one's */
    int room;                 /* blocks that may be there at once */
    int blocks, threads;
    size_t shared_bytes;
} imx_sm90_config;

imx_sm90_config imx_sm90_tune(const imx_sm90_input *input);

/* Dynamic shared memory that the kernel lays out for this config. */
size_t imx_sm90_tune_shared_bytes(const imx_sm90_config *config, int b_kn);

/* Columns of c that one store of the kernel takes: the box of map c is 16 rows by these.  Of a
 * turned tile rows, which go without a map. */
int imx_sm90_tune_piece_cols(const imx_sm90_config *config);

/* The config as the compiler's options, "-DIMX_TILE_M=128 ...".  Returns what snprintf does. */
int imx_sm90_tune_options(const imx_sm90_config *config, char *text, size_t size);

#endif /* IMX_SM90_TUNE_H */
