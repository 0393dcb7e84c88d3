/* tiling.c - Hopper's own form where its copy engine can read the operands, else the general. */
#include "tiling.h"

#include <stdbool.h>

#include "imbrex.h"
#include "kernels/dtype.h"
#include "schedule.h"

enum { ALIGNMENT = 16, SMALL_ROWS = 64 };
enum {
    GENERAL_TILE_SMALL = 64,
    GENERAL_TILE = 128,
    GENERAL_TILE_ODD = 224,
    GENERAL_TILE_WIDE = 256
};

static bool is_aligned(const imx_tiling_input *in)
{
    int64_t bytes = imx_dtype_size(in->dtype);
    return in->k * bytes % ALIGNMENT == 0 &&
           (in->layout == IMBREX_NK || in->n * bytes % ALIGNMENT == 0);
}

static bool is_16bit(int dtype)
{
    return dtype == IMBREX_BF16 || dtype == IMBREX_F16;
}

/* The copy engine takes aligned rows only; what leaves a tile is of 16 bits. */
static bool is_sm90(const imx_tiling_input *in)
{
    bool has = is_16bit(in->dtype) || (imx_dtype_eight(in->dtype) && is_16bit(in->out));
    return in->arch == 90 && has && is_aligned(in) && in->k > 0;
}

int imx_tiling_hooks(int arch, int64_t n, int64_t k, int dtype, int layout)
{
    const imx_tiling_input in = { .arch = arch, .n = n, .k = k, .dtype = dtype, .layout = layout };
    return is_sm90(&in);
}

bool imx_tiling_has_room(size_t shared_bytes)
{
    enum { LONG_WIDE = 3 * (GENERAL_TILE + GENERAL_TILE_WIDE) * 64 * 2, NOTES = 2048 };
    return shared_bytes >= LONG_WIDE + NOTES;
}

/* Whether tiles may have so many columns: f32, 8-bit numbers, whose sums are kept twice, and a
 * scattered product of b as [k, n] leave no registers for wide ones, and 224 columns come in long
 * stages only. */
static bool may_be(const imx_tiling_input *in, int cols)
{
    if (cols <= GENERAL_TILE)
        return true;
    if (imx_dtype_size(in->dtype) != 2 || !is_aligned(in))
        return false;
    if (cols == GENERAL_TILE_WIDE)
        return !(in->scatters && in->layout == IMBREX_KN);
    return !in->scatters && in->layout == IMBREX_NK && imx_tiling_has_room(in->shared_bytes);
}

/* Columns of tiles of 128 rows: those with which all waves take the least time, if the last is as
 * long as the others.  cost: of a column, in thousandths, as measured.  128 x 256 of a warp's
 * 64 x 64 ask shared memory for 5 bytes where 128 x 128 of 64 x 32 ask for 8, which is more than it
 * gives at the speed of the tensor cores. */
static int general_cols(const imx_tiling_input *in, int64_t rows)
{
    static const struct {
        int cols, cost;
    } candidates[] = { { GENERAL_TILE, 1290 },
                       { GENERAL_TILE_WIDE, 1000 },
                       { GENERAL_TILE_ODD, 1030 } };
    int64_t least = INT64_MAX;
    int best = GENERAL_TILE;
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        int cols = candidates[i].cols;
        int64_t tiles =
            in->ranks * imx_schedule_ceil(rows, GENERAL_TILE) * imx_schedule_ceil(in->n, cols);
        int64_t cost = imx_schedule_ceil(tiles, in->sms) * cols * candidates[i].cost;
        if (may_be(in, cols) && cost < least) {
            least = cost;
            best = cols;
        }
    }
    return best;
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
            .eight = imx_dtype_eight(in->dtype),
            .by_block = in->scaling == IMBREX_PER_BLOCK,
            .scatters = in->scatters,
            .hooks = in->hooks,
            .spanning = in->spanning,
            .summable = in->summable,
            .invariant = in->invariant,
            .deep = in->deep,
            .spans = in->spans,
            .pushes = in->pushes,
        };
        t.form = IMX_GEMM_SM90;
        t.sm90 = imx_sm90_tune(&sm90);
        t.tile_rows = t.sm90.tile_rows;
        t.tile_cols = t.sm90.tile_cols;
        t.group = t.sm90.group;
        return t;
    }
    int64_t rows = imx_schedule_ceil(in->m, in->ranks);
    bool small = rows <= SMALL_ROWS ||
                 (in->dtype == IMBREX_F32 && !t.aligned && !imx_tiling_has_room(in->shared_bytes));
    t.tile_rows = small ? GENERAL_TILE_SMALL : GENERAL_TILE;
    t.tile_cols = small ? GENERAL_TILE_SMALL : general_cols(in, rows);
    return t;
}
