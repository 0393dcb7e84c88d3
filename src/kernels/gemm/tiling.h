/* tiling.h - which form of the GEMM kernel a product takes on a GPU, and the tiles that follow from
 * it.  Pure: whoever cuts a plan's product and whoever launches it ask the same question. */
#ifndef IMX_TILING_H
#define IMX_TILING_H

#include <stdbool.h>

#include "sm90_tune.h"

typedef enum imx_gemm_form { IMX_GEMM_SM80, IMX_GEMM_SM90 } imx_gemm_form;

typedef struct imx_tiling_input {
    int arch;            /* compute capability, 90: of the form that is wanted */
    size_t shared_bytes; /* of the GPU's shared memory that a block may ask for */
    int64_t m, n, k;
    int dtype, layout; /* imbrex_dtype, imbrex_layout */
    int out, scaling;  /* of c; imbrex_scaling; where dtype is of 8 bits */
    int ranks;         /* how the rows are cut */
    int sms;           /* blocks that may run side by side */
    int scatters;      /* rows of c go to their owners */
    int hooks;         /* likewise, and also of one rank: with hooks of a caller's */
    int spanning;      /* likewise, and tiles have rows of several ranks */
    int summable;      /* spanning: the kernel may add the tiles up */
    int invariant;     /* k is added up as n and k alone decide */
    int deep;          /* of one rank, whose tiles four or eight blocks may make */
    int spans;         /* tiles may have rows of several ranks, of chunk after chunk */
    int pushes;        /* a goes to peers chunk by chunk; tiles are the same */
} imx_tiling_input;

typedef struct imx_tiling {
    imx_gemm_form form;
    int aligned;                     /* rows of a and b begin at multiples of 16 bytes */
    int tile_rows, tile_cols, group; /* of the schedule */
    imx_sm90_config sm90;            /* if that is the form */
} imx_tiling;

imx_tiling imx_tiling_choose(const imx_tiling_input *input);

/* Whether shared memory holds the general form's longest stages of its widest tiles. */
bool imx_tiling_has_room(size_t shared_bytes);

/* Whether a product has a form that takes a caller's hooks. */
int imx_tiling_hooks(int arch, int64_t n, int64_t k, int dtype, int layout);

#endif /* IMX_TILING_H */
