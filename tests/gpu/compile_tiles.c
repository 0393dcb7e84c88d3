/* compile_tiles.c - as the header says. */
#include "compile_tiles.h"

#include <stdio.h>
#include <string.h>

#include "backends/cuda/cuda.h"
#include "compile_jobs.h"
#include "kernels/gemm/args.h"
#include "kernels/kernels.h"

enum { BLOCKS = 100 };

static const imx_cuda_target target = { 90, 232448 };

/* Most of those that leave code out are compiled with it. */
static void add(imx_cuda_config *config)
{
    char *once = strstr(config->options, " -DIMX_LISTED_ONCE"); /* the last */
    if (once && compile_jobs_count() % 4)
        *once = 0;
    compile_jobs_add(config, target.arch, target.shared_bytes_most);
}

/* 1, and says so: these are not the tiles that were asked for. */
static int other_tiles(int rows, int cols, const imx_cuda_config *config)
{
    fprintf(stderr, "%d x %d: %s\n", rows, cols, config->options);
    return 1;
}

/* Tiles of every width that two blocks make together, for few rows and not so few. */
int compile_tiles_split(void)
{
    static const int ms[] = { 64, 128, 16 };
    int others = 0;
    for (int cols = 64; cols <= 128; cols += 16) {
        for (int i = 0; i < (cols == 80 ? 3 : 2); i++) {
            int m = ms[i];
            imx_gemm_args args = {
                .schedule = { .m = m,
                              .n = BLOCKS / 2 * cols,
                              .ranks = 1,
                              .chunk_rows = m,
                              .tile_rows = m,
                              .tile_cols = cols,
                              .group = 1,
                              .chunks = 1 },
                .k = 16384,
                .dtype = cols == 112 ? IMBREX_F16 : IMBREX_BF16,
                .layout = cols == 96 ? IMBREX_KN : IMBREX_NK,
                .features = IMX_GEMM_GATHERS,
            };
            char width[40];
            imx_cuda_config config = { 0 };
            snprintf(width, sizeof width, "-DIMX_TILE_N=%d ", cols);
            imx_kernel_gemm.cuda_config(&args, &target, BLOCKS, &config);
            if (!strstr(config.options, width) || !strstr(config.options, "-DIMX_SPLIT"))
                others += other_tiles(m, cols, &config);
            add(&config);
            args.features = IMX_GEMM_SCATTERS | IMX_GEMM_REDUCE_PUSH;
            args.team.size = 4;
            imx_kernel_gemm.cuda_config(&args, &target, BLOCKS, &config);
            add(&config);
        }
    }
    return others;
}

/* Tiles that four and eight blocks make together, upright and turned. */
int compile_tiles_deep(void)
{
    enum { SMS = 132 };
    static const struct {
        int m, n, k, split;
    } products[] = {
        { 48, 1151, 2064, 4 },  { 511, 136, 1536, 4 }, { 257, 640, 6568, 4 },
        { 1328, 136, 8192, 4 }, { 100, 904, 3280, 4 }, { 48, 512, 4096, 8 },
        { 251, 512, 14336, 8 }, { 150, 767, 8192, 8 }, { 500, 352, 4032, 8 },
    };
    int others = 0;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        int m = products[i].m;
        bool f16 = i % 4 == 3;
        imx_gemm_args args = {
            .schedule = { .m = m,
                          .n = products[i].n,
                          .ranks = 1,
                          .chunk_rows = m,
                          .tile_rows = m,
                          .tile_cols = 64,
                          .group = 1,
                          .chunks = 1 },
            .k = products[i].k,
            .dtype = f16 ? IMBREX_F16 : IMBREX_BF16,
            .out = f16 ? IMBREX_F16 : IMBREX_BF16,
            .layout = i % 4 == 2 ? IMBREX_KN : IMBREX_NK,
            .features = IMX_GEMM_GATHERS | IMX_GEMM_DEEP,
        };
        char split[24];
        imx_cuda_config config = { 0 };
        snprintf(split, sizeof split, "-DIMX_SPLIT=%d ", products[i].split);
        imx_kernel_gemm.cuda_config(&args, &target, SMS, &config);
        if (!strstr(config.options, split))
            others += other_tiles(m, products[i].n, &config);
        add(&config);
    }
    return others;
}

/* Of a block: so many rows by so many columns. */
typedef struct one_tile {
    int rows, cols, split, cluster, ranks;
} one_tile;

/* A product of which each rank's rows are a tile high, and each block has one. */
static int try_tile(const one_tile *t, bool turned, size_t number)
{
    int rows = t->rows * t->cluster, down = t->ranks * t->cluster;
    bool f16 = number % 4 == 3, apart = t->ranks > 1;
    imx_gemm_args args = {
        .schedule = { .m = (int64_t)rows * t->ranks,
                      .n = (BLOCKS - 4) / t->split / down * t->cols - (number % 5 == 4), /* odd */
                      .ranks = t->ranks,
                      .chunk_rows = rows,
                      .tile_rows = rows,
                      .tile_cols = t->cols,
                      .group = 1,
                      .chunks = 1 },
        .k = t->split > 1 ? 65536 : 4096,
        .dtype = f16 ? IMBREX_F16 : IMBREX_BF16,
        .out = f16 ? IMBREX_F16 : IMBREX_BF16,
        .layout = number % 5 == 3 ? IMBREX_KN : IMBREX_NK,
        .features = (turned ? 0 : IMX_GEMM_INVARIANT) | IMX_GEMM_GATHERS |
                    (number % 2 ? IMX_GEMM_PUSHES : 0),
        .own = !apart && (number % 2 || number % 3) ? -1 : 0,
        .slices = 4,
        .slice_k = 4096,
        .team.size = 4,
    };
    char tile[80];
    snprintf(tile, sizeof tile, "-DIMX_TILE_M=%d -DIMX_TILE_N=%d -DIMX_WG_M=64 ", t->rows, t->cols);
    imx_cuda_config config = { 0 };
    imx_kernel_gemm.cuda_config(&args, &target, BLOCKS, &config);
    if (!strstr(config.options, tile) || !strstr(config.options, "-DIMX_SPLIT") != (t->split < 2) ||
        !strstr(config.options, "-DIMX_TURNED") != !turned)
        return other_tiles(t->rows, t->cols, &config);
    add(&config);
    return 0;
}

/* Turned tiles: of each width the highest, where registers are fewest, and others. */
int compile_tiles_turned(void)
{
    static const int tiles[][3] = {
        { 136, 128, 1 }, { 168, 128, 1 }, { 200, 128, 1 }, { 224, 128, 1 }, { 208, 128, 1 },
        { 224, 128, 1 }, { 152, 64, 1 },  { 224, 64, 1 },  { 144, 192, 1 }, { 160, 192, 1 },
        { 152, 192, 1 }, { 160, 192, 1 }, { 144, 64, 2 },  { 208, 64, 2 },  { 224, 128, 2 },
    };
    int others = 0;
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        one_tile t = { tiles[i][0], tiles[i][1], tiles[i][2], 1, 1 };
        others += try_tile(&t, true, i);
    }
    return others;
}

/* Of 192 rows, by three warpgroups, which are not turned where bits may not depend on m. */
int compile_tiles_tall(void)
{
    static const one_tile tiles[] = {
        { 192, 160, 1, 1, 1 }, { 192, 160, 1, 1, 1 }, { 192, 128, 1, 1, 1 }, { 192, 64, 1, 1, 1 },
        { 192, 128, 1, 1, 1 }, { 192, 96, 1, 1, 1 },  { 192, 160, 1, 2, 2 }, { 192, 160, 1, 1, 4 },
        { 192, 64, 1, 1, 1 },  { 192, 128, 1, 1, 4 },
    };
    int others = 0;
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++)
        others += try_tile(&tiles[i], false, i);
    return others;
}
