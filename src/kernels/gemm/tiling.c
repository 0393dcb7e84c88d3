/* tiling.c - Hopper's own form where its copy engine can read the operands, else the general. */
#include "tiling.h"

#include <stdbool.h>

#include "imbrex.h"

enum { ALIGNMENT = 16, SMALL_ROWS = 64 };
enum { GENERAL_TILE_SMALL = 64, GENERAL_TILE = 128, GENERAL_TILE_WIDE = 256 };

static bool is_aligned(const imx_tiling_input *in)
{
    int bytes = in->dtype == IMBREX_F32 ? 4 : 2;
    return in->k * bytes % ALIGNMENT == 0 &&
           (in->layout == IMBREX_NK || in->n * bytes % ALIGNMENT == 0);
}

/* The copy engine takes aligned rows only. */
static bool is_sm90(const imx_tiling_input *in)
{
    return in->arch == 90 && in->dtype != IMBREX_F32 && is_aligned(in) && in->k > 0 &&
           in->k <= INT32_MAX - 64; /* its steps are counted in 32 bits */
}

int imx_tiling_hooks(int arch, int64_t n, int64_t k, int dtype, int layout)
{
    const imx_tiling_input in = { .arch = arch, .n = n, .k = k, .dtype = dtype, .layout = layout };
    return is_sm90(&in);
}

/* 128 x 256 of a warp's 64 x 64 ask shared memory for 5 bytes where 128 x 128 of 64 x 32 ask for 8,
 * which is more than it gives at the speed of the tensor cores.  Not where that takes more
 * registers than there are (f32, and a scattered product of b as [k, n]), and not where it leaves
 * SMs without a tile. */
static bool is_wide(const imx_tiling_input *in, int64_t rows)
{
    int64_t tiles = in->ranks * ((rows + GENERAL_TILE - 1) / GENERAL_TILE) *
                    ((in->n + GENERAL_TILE_WIDE - 1) / GENERAL_TILE_WIDE);
    return in->dtype != IMBREX_F32 && is_aligned(in) &&
           !(in->scatters && in->layout == IMBREX_KN) && tiles >= in->sms;
}

imx_tiling imx_tiling_choose(const imx_tiling_input *in)
{
    imx_tiling t = { .form = IMX_GEMM_SM80, .aligned = is_aligned(in), .group = 8 };
    if (is_sm90(in)) {
        imx_sm90_input sm90 = {
            .m = in->m,
            .n = in->n,
            .k = in->k,
            .ranks = in->ranks,
            .sms = in->sms,
            .b_kn = in->layout == IMBREX_KN,
            .scatters = in->scatters,
            .hooks = in->hooks,
        };
        t.form = IMX_GEMM_SM90;
        t.sm90 = imx_sm90_tune(&sm90);
        t.tile_rows = t.sm90.tile_rows;
        t.tile_cols = t.sm90.tile_cols;
        t.group = t.sm90.group;
        return t;
    }
    /* Rows of f32 that are not aligned lie in shared memory twice. */
    int64_t rows = (in->m + in->ranks - 1) / in->ranks;
    bool room = in->arch == 80 || in->arch == 87 || (in->arch >= 90 && in->arch < 120);
    bool small = rows <= SMALL_ROWS || (in->dtype == IMBREX_F32 && !t.aligned && !room);
    t.tile_rows = t.tile_cols = small ? GENERAL_TILE_SMALL : GENERAL_TILE;
    if (!small && is_wide(in, rows))
        t.tile_cols = GENERAL_TILE_WIDE;
    return t;
}
