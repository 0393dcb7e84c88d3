/* launch.c - the grouped kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/dtype.h"
#include "kernels/kernels.h"
#include "sm90_shape.h"

void imx_grouped_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_grouped_cpu_scratch(const void *args);

/* imx_cuda_config.kept */
enum { TILE_N }; /* of Hopper's form; 0: the general one */

static bool is_anywhere(const imx_grouped_args *args)
{
    int64_t element = (int64_t)imx_dtype_size(args->dtype);
    return args->k * element % 16 || (args->layout == IMBREX_KN && args->n * element % 16);
}

/* Options of 8-bit a and b, in either form. */
static void say_8bit(const imx_grouped_args *args, char *text, size_t size)
{
    text[0] = 0;
    if (imx_dtype_eight(args->dtype))
        snprintf(text, size, " -DIMX_EIGHT=%d -DIMX_SCALING=%d", args->dtype, args->scaling);
}

/* ---- Hopper ---------------------------------------------------------------------------------- */

static int element_of(const imx_grouped_args *args)
{
    return (int)imx_dtype_size(args->dtype);
}

static int columns_of_stage(const imx_grouped_args *args)
{
    return IMX_GROUPED_ROW / element_of(args);
}

static bool is_for_hopper(const imx_grouped_args *args, const imx_cuda_target *target)
{
    return target->arch == 90 && args->dtype != IMBREX_F32 && args->out != IMBREX_F32 &&
           args->k > 0 && args->k * element_of(args) % 16 == 0 && args->n % 8 == 0;
}

/* Cycles of the product by tiles of that size, on so many blocks.  A stage takes what its products
 * take, or what the cache brings a block of it; experts' last rows fill half a tile. */
static double cycles_of(const imx_grouped_args *args, int tile_m, int tile_n, int blocks)
{
    enum { PRODUCTS = 32, BRINGS = 44, A_TILE = 2000 }; /* a cycle, of 64 columns; bytes; cycles */
    double high = (double)args->expected / tile_m + 0.5;
    double columns = (double)((args->n + tile_n - 1) / tile_n);
    double tiles = args->here * (high > 1 ? high : 1) * columns;
    double products = (double)tile_m * tile_n / PRODUCTS;
    double brings = (double)IMX_GROUPED_STAGE(tile_m, tile_n) / BRINGS;
    double steps = (double)((args->k - 1) / columns_of_stage(args) + 1);
    int64_t rounds = (int64_t)(tiles / blocks) + 1;
    return (double)rounds * (steps * (products > brings ? products : brings) + A_TILE);
}

static void config_sm90(const imx_grouped_args *args, int blocks, imx_cuda_config *config)
{
    enum { SHARED_MOST = 230400, STAGES_MOST = 12 }; /* a wait of one warp fits beside it */
    static const struct {
        int m, n;
        bool for_8bit; /* whose sums are kept twice */
    } sizes[] = { { 64, 128, true },  { 64, 192, false }, { 64, 256, false },
                  { 128, 128, true }, { 128, 192, true }, { 128, 256, false } };
    int best = 0, stages = STAGES_MOST, element = element_of(args);
    char of_8bit[48];
    for (int i = 1; i < (int)(sizeof sizes / sizeof *sizes); i++)
        if ((element > 1 || sizes[i].for_8bit) &&
            cycles_of(args, sizes[i].m, sizes[i].n, blocks) <
                cycles_of(args, sizes[best].m, sizes[best].n, blocks))
            best = i;
    int tile_m = sizes[best].m, tile_n = sizes[best].n;
    while (IMX_GROUPED_SHARED(tile_m, tile_n, stages, element) > SHARED_MOST)
        stages--;
    say_8bit(args, of_8bit, sizeof of_8bit);
    *config = (imx_cuda_config){
        .source = element == 1 ? "kernels/grouped/sm90_eight.cu" : "kernels/grouped/sm90.cu",
        .entry = "imx_grouped",
        .blocks = blocks,
        .cluster = 1,
        .threads = 128 + 128 * (tile_m / 64),
        .early = true,
        .shared_bytes = (size_t)IMX_GROUPED_SHARED(tile_m, tile_n, stages, element),
        .kept[TILE_N] = tile_n,
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_TILE_M=%d -DIMX_TILE_N=%d -DIMX_STAGES=%d -DIMX_SHARED_BYTES=%zu%s%s%s", tile_m,
             tile_n, stages, config->shared_bytes, args->out == IMBREX_F16 ? " -DIMX_F16" : "",
             args->layout == IMBREX_KN ? " -DIMX_B_KN" : "", of_8bit);
}

/* All experts' b, a plane each. */
static imx_tensor_map map_of_b(const imx_grouped_args *args, int tile_n)
{
    bool kn = args->layout == IMBREX_KN;
    int64_t rows = kn ? args->k : args->n, cols = kn ? args->n : args->k;
    int64_t element = element_of(args);
    return (imx_tensor_map){
        .address = args->here && rows && cols ? args->b : NULL,
        .rows = rows,
        .cols = cols,
        .stride_bytes = cols * element,
        .planes = args->here,
        .plane_bytes = rows * cols * element,
        .box_rows = kn ? columns_of_stage(args) : tile_n,
        .box_cols = columns_of_stage(args),
        .dtype = args->dtype,
        .swizzle_bytes = 128,
    };
}

/* ---- others ---------------------------------------------------------------------------------- */

/* A tile, of warps that make warp_rows x 32 of it, out of stages of tile_k columns of a. */
typedef struct shape {
    int rows, cols, warp_rows, tile_k, stages;
} shape;

/* Where experts have few rows reading b takes the time, and half a tile would be for nothing.  Sums
 * of f32 take twice the shared memory. */
static shape shape_of(const imx_grouped_args *args)
{
    static const shape few = { 64, 128, 32, 64, 3 }, many = { 128, 128, 64, 32, 4 },
                       f32 = { 64, 64, 32, 32, 3 }, eight = { 64, 128, 32, 128, 3 };
    enum { FEW = 128 };
    if (imx_dtype_eight(args->dtype))
        return eight;
    if (args->dtype == IMBREX_F32)
        return f32;
    return args->expected <= FEW ? few : many;
}

static void config_sm80(const imx_grouped_args *args, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    shape s = shape_of(args);
    size_t row = (size_t)s.tile_k * imx_dtype_size(args->dtype);
    char of_8bit[48];
    say_8bit(args, of_8bit, sizeof of_8bit);
    *config = (imx_cuda_config){
        .source = "kernels/grouped/sm80.cu",
        .entry = "imx_grouped",
        .blocks = blocks,
        .cluster = 1,
        .threads = s.rows / s.warp_rows * (s.cols / 32) * 32,
        .early = target->arch >= 90,
        .shared_bytes = (size_t)(s.stages * (s.rows + s.cols)) * row,
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_DTYPE=%d -DIMX_TILE_M=%d -DIMX_TILE_N=%d -DIMX_WARP_M=%d -DIMX_WARP_N=32 "
             "-DIMX_TILE_K=%d -DIMX_STAGES=%d -DIMX_SHARED_BYTES=%zu -DIMX_ALIGNED%s%s%s",
             args->out, s.rows, s.cols, s.warp_rows, s.tile_k, s.stages, config->shared_bytes,
             is_anywhere(args) ? " -DIMX_ANYWHERE" : "",
             args->layout == IMBREX_KN ? " -DIMX_B_KN" : "", of_8bit);
}

/* ---- the row --------------------------------------------------------------------------------- */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_grouped_args *args = largest;
    int most = blocks > args->reserved_sms ? blocks - args->reserved_sms : 1;
    if (is_for_hopper(args, target))
        config_sm90(args, most, config);
    else
        config_sm80(args, target, most, config);
}

/* How many tiles there are, only the device knows. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    launch->blocks = config->blocks;
    launch->map_count = config->kept[TILE_N] != 0;
    if (launch->map_count)
        launch->maps[0] = map_of_b(untyped, config->kept[TILE_N]);
}

const imx_kernel imx_kernel_grouped = {
    .name = "grouped",
    .cpu = imx_grouped_cpu,
    .cpu_scratch = imx_grouped_cpu_scratch,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
