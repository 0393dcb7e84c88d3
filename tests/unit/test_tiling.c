/* test_tiling.c - which tiles Hopper's kernel takes: the best or nearly so of those measured, and
 * the same for the plan that is cut and for the kernel that is launched; and which algorithm a plan
 * of few rows takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gemm/args.h"
#include "kernels/gemm/sm90_tile.h"
#include "kernels/gemm/sm90_tune.h"
#include "kernels/gemm/tiling.h"
#include "kernels/kernels.h"
#include "tune/tune.h"
#include "tuned.h"

#define BF16_NK IMBREX_BF16, IMBREX_BF16, IMBREX_NK, IMBREX_UNSCALED, false

enum { SMS = 132, SHARED_MOST = 231424 };

static void check(int64_t m, int64_t n, int64_t k, int ranks, int scatters, int tile_n)
{
    imx_sm90_input in = {
        .m = m, .n = n, .k = k, .ranks = ranks, .sms = SMS, .scatters = scatters
    };
    imx_sm90_config c = imx_sm90_tune(&in);
    if (c.tile_n != tile_n)
        fail_msg("m=%lld n=%lld k=%lld ranks=%d scatters=%d: %d columns, expected %d", (long long)m,
                 (long long)n, (long long)k, ranks, scatters, c.tile_n, tile_n);
    if (scatters && ranks > 1 && c.pingpong)
        fail_msg("m=%lld n=%lld: a tile for a peer is stored in one burst", (long long)m,
                 (long long)n);
    assert_in_range(c.shared_bytes, 1, SHARED_MOST);
}

/* Measured: docs/results.md.  Columns of a tile that may be any, and of one for peers. */
static const struct {
    int64_t m, n, k;
    int any, to_peers;
} shapes[] = {
    { 4096, 4096, 4096, 256, 256 }, { 8192, 7168, 8192, 176, 224 },  { 8192, 3584, 4096, 224, 224 },
    { 8192, 8192, 8192, 176, 224 }, { 4096, 14336, 4096, 176, 224 }, { 8192, 4096, 3584, 256, 256 },
    { 8192, 8192, 7168, 176, 224 }, { 2048, 7168, 8192, 176, 224 },
};

static void measured_shapes_take_what_was_best(void **state)
{
    (void)state;
    static const int ranks[] = { 1, 2, 4, 8 }; /* 256 rows divide all shares */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
            check(shapes[i].m, shapes[i].n, shapes[i].k, ranks[r], 0, shapes[i].any);
            check(shapes[i].m, shapes[i].n, shapes[i].k, ranks[r], 1,
                  ranks[r] > 1 ? shapes[i].to_peers : shapes[i].any);
        }
    }
    check(512, 7168, 8192, 1, 0, 224);
    check(16384, 12288, 12288, 1, 0, 256); /* where k is so long, in turns no more */
}

/* Some rows: tiles of 128 or 256 of them, as wide as leaves no block idle.  Measured on an H100. */
static void some_rows_fill_a_wave(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int scatters, ranks, rows, cols, split; /* rows, cols: of a tile */
    } some[] = {
        { 256, 7168, 4096, 0, 1, 256, 112, 1 }, { 256, 4096, 3584, 0, 1, 128, 64, 1 },
        { 256, 4096, 7168, 0, 1, 128, 128, 2 }, { 384, 4096, 7168, 0, 1, 128, 96, 1 },
        { 384, 8192, 7168, 0, 1, 128, 192, 1 }, { 640, 8192, 7168, 0, 1, 128, 160, 1 },
        { 512, 4096, 7168, 0, 1, 256, 128, 1 }, { 768, 8192, 7168, 0, 1, 256, 192, 1 },
        { 512, 4096, 7168, 1, 2, 128, 128, 1 }, { 640, 4096, 7168, 1, 2, 128, 192, 1 },
        { 512, 8192, 7168, 1, 2, 256, 256, 1 }, { 768, 4096, 7168, 0, 1, 256, 192, 1 },
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        imx_sm90_input in = { .m = some[i].m,
                              .n = some[i].n,
                              .k = some[i].k,
                              .ranks = some[i].ranks,
                              .sms = SMS,
                              .scatters = some[i].scatters };
        imx_sm90_config c = imx_sm90_tune(&in);
        if (c.tile_rows != some[i].rows || c.tile_cols != some[i].cols || c.split != some[i].split)
            fail_msg("row %zu: tiles of %d x %d by %d", i, c.tile_rows, c.tile_cols, c.split);
    }
    /* What goes to peers comes in pieces of 32 columns or more, and one at a time. */
    for (int64_t m = 300; m <= 2000; m += 10) {
        for (int64_t n = 1024; n <= 16384; n += 8 * 61) {
            imx_sm90_input in = {
                .m = m, .n = n, .k = 4096, .ranks = 2, .sms = SMS, .scatters = 1
            };
            imx_sm90_config c = imx_sm90_tune(&in);
            assert_true(c.tile_n % 32 == 0 && !c.pingpong && c.split == 1);
            assert_in_range(c.shared_bytes, 1, SHARED_MOST);
        }
    }
}

/* One row of tiles: narrow, or split between two blocks, so that all have as much of b to bring. */
static void few_rows_are_shared_out(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int b_kn, sends, cols, split; /* sends: to a peer */
    } rows[] = {
        { 16, 7168, 8192, 0, 0, 112, 2 },  { 64, 7168, 8192, 0, 0, 112, 2 },
        { 128, 7168, 8192, 0, 0, 112, 2 }, { 16, 8192, 7168, 0, 0, 64, 1 },
        { 64, 8192, 7168, 0, 0, 64, 1 },   { 128, 8192, 7168, 0, 0, 128, 2 },
        { 64, 4096, 4096, 0, 0, 64, 2 },   { 128, 4096, 4096, 0, 0, 64, 2 },
        { 128, 3584, 8192, 0, 0, 64, 2 },  { 65, 4096, 4096, 0, 0, 64, 2 },
        { 64, 14336, 8192, 0, 0, 112, 1 }, /* not two tiles for some blocks and one for others */
        { 16, 14336, 8192, 0, 0, 112, 1 }, { 64, 7168, 8192, 1, 0, 64, 1 },
        { 64, 4096, 64, 0, 0, 64, 1 }, /* the exchange takes longer than it saves */
        { 128, 7168, 8192, 1, 0, 112, 2 }, { 128, 7168, 8192, 0, 1, 64, 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        imx_sm90_input in = { .m = rows[i].m * (rows[i].sends ? 2 : 1),
                              .n = rows[i].n,
                              .k = rows[i].k,
                              .ranks = rows[i].sends ? 2 : 1,
                              .sms = SMS,
                              .b_kn = rows[i].b_kn,
                              .scatters = rows[i].sends };
        imx_sm90_config c = imx_sm90_tune(&in);
        if (c.tile_n != rows[i].cols || c.split != rows[i].split)
            fail_msg("m=%lld n=%lld k=%lld: %d columns by %d blocks, expected %d by %d",
                     (long long)in.m, (long long)in.n, (long long)in.k, c.tile_n, c.split,
                     rows[i].cols, rows[i].split);
        assert_in_range(c.shared_bytes, 1, SHARED_MOST);
        assert_in_range(c.stages, 4, 13);
        in.invariant = 1;
        assert_int_equal(imx_sm90_tune(&in).split, 1); /* k has one order, for any m */
    }
    check(256, 7168, 8192, 1, 0, 112);
    check(64, 14336, 8192, 1, 1, 112); /* of one rank nothing goes to peers */
    imx_sm90_input in = { .m = 64, .n = 4096, .k = 4096, .ranks = 1, .sms = SMS, .hooks = 1 };
    assert_int_equal(imx_sm90_tune(&in).split, 1); /* a hook has whole tiles */
    in = (imx_sm90_input){ .m = 64, .n = 4096, .k = 4096, .ranks = 1, .sms = 1 };
    assert_int_equal(imx_sm90_tune(&in).blocks, 1);
}

static imx_config plan_of(int64_t m, int64_t n, int64_t k, int scatters, int ranks, int arch)
{
    return tuned_on(m, n, k, scatters, ranks, arch, SMS);
}

static const imx_cuda_target sm90 = { .arch = 90, .shared_bytes_most = 232448 };

/* As a plan of so many ranks makes them. */
static imx_gemm_args args_of(const imx_config *plan, int64_t m, int64_t n, int64_t k, int ranks,
                             int features)
{
    return (imx_gemm_args){
        .schedule = { .m = m,
                      .n = n,
                      .ranks = plan->spanning ? 1 : ranks,
                      .chunk_rows = plan->chunk_rows,
                      .tile_rows = plan->tile_rows,
                      .tile_cols = plan->tile_cols,
                      .group = plan->group,
                      .chunks = plan->chunks,
                      .spans = plan->spans_chunks },
        .k = k,
        .dtype = IMBREX_BF16,
        .features = features | (plan->summable ? IMX_GEMM_SUMMABLE : 0) |
                    (plan->spanning && features & IMX_GEMM_SCATTERS ? IMX_GEMM_SPANNING : 0),
    };
}

static void plan_and_kernel_agree(int64_t m, int64_t n, int64_t k, int features)
{
    enum { RANKS = 4 };
    imx_config plan = plan_of(m, n, k, features & IMX_GEMM_SCATTERS, RANKS, 90);
    imx_gemm_args args = args_of(&plan, m, n, k, RANKS, features);
    imx_cuda_config kernel = { 0 };
    imx_kernel_gemm.cuda_config(&args, &sm90, SMS, &kernel);
    int tile_m = 0, tile_n = 0, cluster_m = 1;
    sscanf(strstr(kernel.options, "-DIMX_TILE_M="), "-DIMX_TILE_M=%d -DIMX_TILE_N=%d", &tile_m,
           &tile_n);
    sscanf(strstr(kernel.options, "-DIMX_CLUSTER_M="), "-DIMX_CLUSTER_M=%d", &cluster_m);
    int split = strstr(kernel.options, "-DIMX_SPLIT=2") ? 2 : 1;
    assert_int_equal(kernel.cluster, cluster_m * split);
    /* Those without a tile push all the same. */
    bool pushes = features & IMX_GEMM_PUSHES;
    int at_once = pushes ? (SMS - (kernel.threads > 384)) / kernel.cluster : plan.tiles_at_once;
    assert_int_equal(kernel.blocks, at_once * kernel.cluster);
    imx_cuda_launch launch = { 0 };
    imx_kernel_gemm.cuda_launch(&args, &kernel, &launch);
    int64_t needed = imx_schedule_tiles(&args.schedule) * kernel.cluster;
    assert_int_equal(launch.blocks, pushes ? kernel.blocks : imx_min(needed, kernel.blocks));
    assert_int_equal(tile_m * cluster_m, plan.tile_rows);
    assert_int_equal(tile_n, plan.tile_cols);
}

static void plans_and_kernels_agree(void **state)
{
    (void)state;
    static const int features[] = { IMX_GEMM_GATHERS, IMX_GEMM_GATHERS | IMX_GEMM_PUSHES,
                                    IMX_GEMM_SCATTERS, IMX_GEMM_SCATTERS | IMX_GEMM_SCATTER_PUSH,
                                    IMX_GEMM_SCATTERS | IMX_GEMM_REDUCE_PULL };
    static const int64_t ms[] = { 1, 65, 128, 152, 344, 512, 1000, 1025, 2048, 8192 };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t j = 0; j < sizeof ms / sizeof *ms; j++)
            for (size_t s = 0; s < sizeof features / sizeof *features; s++)
                plan_and_kernel_agree(ms[j], shapes[i].n, shapes[i].k, features[s]);
}

/* How many tiles the busiest block of a launch has. */
static int64_t tiles_of_a_block(const imx_gemm_args *args, const imx_cuda_config *kernel)
{
    imx_cuda_launch launch = { 0 };
    imx_kernel_gemm.cuda_launch(args, kernel, &launch);
    assert_in_range(launch.blocks, kernel->cluster, kernel->blocks);
    return imx_schedule_ceil(imx_schedule_tiles(&args->schedule), launch.blocks / kernel->cluster);
}

/* A kernel that lists its tiles once, made for m rows, is launched with any fewer. */
static void list_holds(int64_t m, int ranks, int sms, int reserved_sms, int features)
{
    enum { N = 7000, K = 512 };
    imx_config plan = tuned_on(m, N, K, features & IMX_GEMM_SCATTERS, ranks, 90, sms);
    imx_gemm_args args = args_of(&plan, m, N, K, ranks, features);
    imx_cuda_config kernel = { 0 };
    args.reserved_sms = reserved_sms;
    imx_kernel_gemm.cuda_config(&args, &sm90, sms, &kernel);
    bool once = strstr(kernel.options, "-DIMX_LISTED_ONCE");
    assert_true(kernel.blocks <= imx_max(sms - reserved_sms, kernel.cluster));
    if (m % ranks == 0)
        assert_int_equal(once, tiles_of_a_block(&args, &kernel) <= IMX_SM90_LISTED);
    for (int64_t fewer = m; once && fewer > 0; fewer -= fewer > 64 ? 37 : 1) {
        args.schedule.m = fewer;
        if (tiles_of_a_block(&args, &kernel) > IMX_SM90_LISTED)
            fail_msg("m=%lld, made for %lld, %d ranks, %d SMs: more tiles than are listed",
                     (long long)fewer, (long long)m, ranks, sms - reserved_sms);
    }
}

static void lists_hold_all_tiles(void **state)
{
    (void)state;
    static const int features[] = { IMX_GEMM_GATHERS, IMX_GEMM_GATHERS | IMX_GEMM_PUSHES,
                                    IMX_GEMM_SCATTERS };
    static const int64_t ms[] = { 1, 60, 127, 1029, 4097, 8192, 16390 };
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t s = 0; s < sizeof features / sizeof *features; s++)
            for (int ranks = 1; ranks <= 5; ranks++)
                for (int sms = 5; sms <= SMS; sms += 31)
                    list_holds(ms[i], ranks, sms, (int)s * 2, features[s]);
}

/* The form that every GPU runs. */
static void the_general_form_takes_wide_tiles_where_it_may(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int dtype, layout, scatters, rows, cols;
    } rows[] = {
        { 4096, 4096, 4096, IMBREX_BF16, IMBREX_NK, 0, 128, 256 },
        { 4096, 4096, 4096, IMBREX_F16, IMBREX_KN, 0, 128, 256 },
        { 4096, 4096, 4096, IMBREX_BF16, IMBREX_NK, 1, 128, 256 },
        { 4096, 4096, 4096, IMBREX_BF16, IMBREX_KN, 1, 128, 128 }, /* registers */
        { 4096, 4096, 4096, IMBREX_F32, IMBREX_NK, 0, 128, 128 },
        { 4096, 4096, 4095, IMBREX_BF16, IMBREX_NK, 0, 128, 128 }, /* alignment */
        { 512, 4096, 4096, IMBREX_BF16, IMBREX_NK, 0, 128, 128 },  /* one wave of half the width */
        { 512, 7168, 8192, IMBREX_BF16, IMBREX_NK, 0, 128, 224 },  /* 112 tiles or 128 */
        { 2048, 7168, 8192, IMBREX_BF16, IMBREX_NK, 0, 128, 224 }, /* four waves either way */
        { 2048, 7168, 8192, IMBREX_BF16, IMBREX_NK, 1, 128, 256 }, /* folded by whole warps */
        { 2048, 7168, 8192, IMBREX_BF16, IMBREX_KN, 0, 128, 256 },
        { 8192, 7168, 8192, IMBREX_BF16, IMBREX_NK, 0, 128, 256 },
        { 64, 65536, 4096, IMBREX_BF16, IMBREX_NK, 0, 64, 64 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        imx_tiling_input in = {
            .arch = 80,
            .shared_bytes = 166912,
            .m = rows[i].m,
            .n = rows[i].n,
            .k = rows[i].k,
            .dtype = rows[i].dtype,
            .layout = rows[i].layout,
            .ranks = 1,
            .sms = SMS,
            .scatters = rows[i].scatters,
        };
        imx_tiling t = imx_tiling_choose(&in);
        if (t.form != IMX_GEMM_SM80 || t.tile_rows != rows[i].rows || t.tile_cols != rows[i].cols)
            fail_msg("row %zu: tiles of %dx%d, expected %dx%d", i, t.tile_rows, t.tile_cols,
                     rows[i].rows, rows[i].cols);
    }
    imx_tiling_input little = { .arch = 80,
                                .shared_bytes = 101376,
                                .m = 512,
                                .n = 7168,
                                .k = 8192,
                                .dtype = IMBREX_BF16,
                                .layout = IMBREX_NK,
                                .ranks = 1,
                                .sms = SMS };
    assert_int_equal(imx_tiling_choose(&little).tile_cols, 256); /* not three stages of 64 */
}

/* Chunks of whole tiles hold the rows of the rank that has most, and ints hold them. */
static void the_largest_sizes_are_held(void **state)
{
    (void)state;
    for (int i = 0; i < 96; i++) {
        imx_tune_input input = {
            .shape = { i / 32 == 0 ? IMX_SIZE_MOST : 7, i / 32 == 1 ? IMX_SIZE_MOST : 7,
                       i / 32 == 2 ? IMX_SIZE_MOST : 7, BF16_NK },
            .product = true,
            .scatters = i % 2,
            .ranks = i / 2 % 2 ? 1 : 4,
            .arch = i / 4 % 2 ? 90 : 0,
            .rates = tuned_rates(),
            .chunk_rows = i / 8 % 2 ? IMX_SIZE_MOST : 0,
            .slow_wire = i / 16 % 2,
            .workers = SMS,
            .sharers = 1,
            .alike = true,
        };
        imx_config c = imx_tune_config(&input);
        int64_t rows = imx_ceil_div(input.shape.m, input.ranks);
        int64_t tiles = imx_ceil_div(input.shape.m, c.tile_rows) * c.tile_rows;
        if (c.tile_rows < 1 || c.tile_cols < 1 || c.chunk_rows < 1 || c.chunks < 1 ||
            (int64_t)c.chunk_rows * c.chunks < rows || tiles > INT32_MAX || c.slices < 1 ||
            (int64_t)c.slice_k * c.slices < input.shape.k)
            fail_msg("case %d: tiles of %d x %d, %d chunks of %d, %d slices of %d", i, c.tile_rows,
                     c.tile_cols, c.chunks, c.chunk_rows, c.slices, c.slice_k);
    }
}

/* Of a shape of bf16, and whether a plan of it is so. */
typedef struct choice {
    int64_t m, n, k;
    int scatters, ranks, arch, expected;
} choice;

static void check_choices(const choice *rows, size_t count,
                          bool (*is_so)(const imx_config *, const char *))
{
    for (size_t i = 0; i < count; i++) {
        const choice *r = &rows[i];
        imx_config c = plan_of(r->m, r->n, r->k, r->scatters, r->ranks, r->arch);
        imx_choice chosen = tuned_choice(r->m, r->n, r->k, r->scatters, r->ranks, r->arch, SMS);
        bool alone = c.reduce_push && strcmp(chosen.algorithm, "reduce_push") != 0; /* wrong */
        if (is_so(&c, chosen.algorithm) != r->expected || alone)
            fail_msg("row %zu: %s%s%s (%s)", i, chosen.algorithm, c.spanning ? ", spanning" : "",
                     c.reduce_push ? ", summed" : "", chosen.why);
    }
}

static bool goes_by_copy(const imx_config *c, const char *algorithm)
{
    (void)c;
    return strcmp(algorithm, "copy") == 0;
}

/* Of the rest, none do.  What peers' products do not cover counts: narrow ones take
 * longer to send than to make. */
static void many_rows_seldom_go_by_copy(void **state)
{
    (void)state;
    static const choice rows[] = {
        { 8192, 28672, 8192, 0, 4, 90, 0 }, { 8192, 28672, 8192, 0, 8, 90, 0 },
        { 8192, 8192, 28672, 0, 4, 90, 1 }, { 8192, 8192, 28672, 1, 4, 90, 0 },
        { 8192, 28672, 8192, 0, 2, 80, 1 }, { 8192, 8192, 28672, 1, 2, 80, 1 },
        { 8192, 1024, 8192, 0, 4, 90, 0 },  { 2048, 1024, 8192, 0, 2, 80, 0 },
        { 2048, 1024, 8192, 0, 4, 80, 0 },  { 2048, 1024, 8192, 0, 8, 80, 0 },
        { 8192, 1024, 4096, 0, 2, 80, 0 },  { 8192, 1024, 4096, 0, 4, 80, 1 },
        { 8192, 1024, 8192, 0, 8, 80, 1 },  { 2048, 1024, 8192, 1, 2, 80, 0 },
        { 2048, 1024, 8192, 1, 8, 80, 1 },
    };
    check_choices(rows, sizeof rows / sizeof *rows, goes_by_copy);
}

static bool goes_by_ll(const imx_config *c, const char *algorithm)
{
    (void)c;
    return strcmp(algorithm, "ll") == 0;
}

static bool is_spanning(const imx_config *c, const char *algorithm)
{
    (void)algorithm;
    return c->spanning;
}

/* A part for each wave of tiles that the kernel does not add up. */
static void few_rows_are_read_in_parts(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int ranks, arch, tile_cols, parts;
        int64_t part_cols;
    } rows[] = {
        { 640, 8192, 14336, 2, 90, 160, 2, 26 * 160 }, { 600, 8192, 1024, 8, 90, 160, 2, 26 * 160 },
        { 640, 65536, 8192, 2, 90, 176, 8, 47 * 176 }, { 256, 4096, 7168, 4, 80, 128, 1, 4096 },
        { 512, 1 << 20, 64, 4, 80, 256, 1, 1 << 20 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        imx_config c = plan_of(rows[i].m, rows[i].n, rows[i].k, 1, rows[i].ranks, rows[i].arch);
        if (!c.spanning || c.reduce_push || c.tile_cols != rows[i].tile_cols ||
            c.parts != rows[i].parts || c.part_cols != rows[i].part_cols)
            fail_msg("row %zu: spanning %d, sums %d, %d columns a tile, %d parts of %lld", i,
                     c.spanning, c.reduce_push, c.tile_cols, c.parts, (long long)c.part_cols);
    }
    assert_int_equal(plan_of(512, 8192, 7168, 1, 1, 90).tile_cols, 256); /* nobody reads */
}

static bool is_reduce_push(const imx_config *c, const char *algorithm)
{
    (void)algorithm;
    return c->reduce_push;
}

/* Nothing hides what ll sends, so it must be little; on CPUs it is not for choice. */
static void few_rows_go_by_ll(void **state)
{
    (void)state;
    static const choice rows[] = {
        { 1, 14336, 4096, 0, 4, 90, 1 },    { 64, 14336, 4096, 0, 4, 90, 1 },
        { 1024, 14336, 4096, 0, 4, 90, 0 }, { 8192, 14336, 4096, 0, 4, 90, 0 },
        { 64, 14336, 4096, 0, 4, 80, 1 },   { 64, 14336, 4096, 0, 4, 0, 0 },
        { 64, 14336, 4096, 0, 16, 90, 1 },  { 64, 14336, 4096, 0, 17, 90, 0 },
        { 1, 8192, 3584, 1, 4, 80, 1 },     { 8, 8192, 3584, 1, 4, 80, 1 },
        { 8, 8192, 3584, 1, 4, 90, 0 }, /* added up as they come */
        { 256, 8192, 3584, 1, 4, 90, 0 },   { 8192, 8192, 3584, 1, 4, 90, 0 },
        { 8, 8192, 3584, 1, 17, 90, 0 },    { 8, 8192, 3584, 1, 4, 0, 0 },
        { 4, 8192, 0, 0, 4, 90, 1 },        { 4, 8192, 0, 1, 4, 90, 0 }, /* which has none */
    };
    check_choices(rows, sizeof rows / sizeof rows[0], goes_by_ll);
}

/* Few rows make tiles span ranks, unless a rank's are tiles enough to hide how the next's come. */
static void few_rows_are_merged(void **state)
{
    (void)state;
    static const choice rows[] = {
        { 1025, 14336, 8192, 0, 2, 90, 0 },
        { 1024, 14336, 8192, 0, 2, 90, 0 },
        { 512, 14336, 8192, 0, 2, 90, 0 },
        { 1024, 8192, 4096, 0, 2, 90, 0 },
        { 1024, 4096, 4096, 0, 2, 90, 1 }, /* less than a wave */
        { 768, 14336, 8192, 0, 2, 90, 1 }, /* half a tile more of each */
        { 448, 14336, 8192, 0, 2, 90, 1 },
        { 1024, 7168, 8192, 0, 4, 90, 1 },
        { 1024, 16384, 8192, 0, 4, 90, 0 },
        { 64, 14336, 8192, 0, 2, 90, 1 },
        { 1024, 14336, 8192, 0, 2, 80, 1 }, /* whose warps push before they multiply */
        { 448, 8192, 14336, 1, 2, 90, 1 },
        { 512, 8192, 14336, 1, 2, 90, 1 }, /* a wave, which the kernel adds up */
        /* More waves apart, or tiles whose blocks do not read b together. */
        { 640, 8192, 14336, 1, 2, 90, 1 },
        { 768, 8192, 14336, 1, 2, 90, 1 },
        { 1000, 8192, 14336, 1, 2, 90, 0 },
        { 1024, 8192, 14336, 1, 2, 90, 0 },
        { 512, 4096, 7168, 1, 2, 90, 1 },
        { 640, 4096, 7168, 1, 2, 90, 1 },
        { 1024, 8192, 7168, 1, 4, 90, 1 },  /* apart, a rank's are half a wave */
        { 1025, 8192, 14336, 1, 2, 90, 1 }, /* 513 rows of a rank would be as many as 768 */
        { 640, 8192, 14336, 1, 2, 80, 0 },  /* not for Hopper's form */
    };
    check_choices(rows, sizeof rows / sizeof rows[0], is_spanning);
    imx_tune_input in = { .product = true, .ranks = 2, .arch = 90, .workers = SMS };
    in.rates = tuned_rates();
    in.memory_gb_s = 4917;
    in.shape = (imx_shape){ 512, 14336, 8192, BF16_NK };
    assert_true(imx_tune_config(&in).spanning); /* b would be read for each rank, */
    in.shape.k = 1024;                          /* here from the cache */
    assert_false(imx_tune_config(&in).spanning);
    in.shape = (imx_shape){ 656, 7168, 8192, BF16_NK };
    assert_false(imx_tune_config(&in).spanning);
    in.memory_gb_s = 3352; /* and there that takes longer */
    assert_true(imx_tune_config(&in).spanning);
}

/* Tiles that are all there at once, or made in turns, are added up by the kernel. */
static void few_rows_are_summed(void **state)
{
    (void)state;
    static const choice rows[] = {
        { 1, 8192, 3584, 1, 4, 90, 1 },    { 64, 8192, 3584, 1, 4, 90, 1 },
        { 128, 8192, 3584, 1, 2, 90, 1 },  { 129, 8192, 3584, 1, 2, 90, 1 },
        { 256, 8192, 7168, 1, 4, 90, 1 },  { 512, 8192, 7168, 1, 4, 90, 1 },
        { 512, 8192, 14336, 1, 2, 90, 1 }, { 768, 8192, 14336, 1, 2, 90, 1 },
        { 640, 8192, 14336, 1, 2, 90, 0 }, { 1024, 8192, 14336, 1, 2, 90, 0 },
        { 64, 8192, 3584, 1, 16, 90, 1 },  { 64, 8192, 3584, 1, 17, 90, 0 },
        { 64, 8192, 3584, 1, 1, 90, 0 },   { 64, 8192, 3584, 0, 4, 90, 0 },
        { 64, 8192, 3584, 1, 4, 80, 0 },   { 64, 8192, 3584, 1, 4, 0, 0 },
        { 64, 8192, 3583, 1, 4, 90, 0 }, /* not for Hopper's form */
        { 64, 32768, 8192, 1, 4, 90, 0 } /* two waves */
    };
    check_choices(rows, sizeof rows / sizeof rows[0], is_reduce_push);
    assert_int_equal(plan_of(256, 4096, 7168, 1, 2, 90).tile_rows, 128); /* by two blocks */
    imx_tune_input in = { .shape = { 64, 8192, 3584, BF16_NK },
                          .product = true,
                          .scatters = true,
                          .ranks = 3,
                          .arch = 90,
                          .rates = tuned_rates(),
                          .workers = SMS / 2,
                          .sharers = 2 };
    assert_false(imx_tune_config(&in).reduce_push); /* another rank may have its GPU for itself */
    in.alike = true;
    assert_true(imx_tune_config(&in).reduce_push);
    in.sms = SMS;
    assert_false(imx_tune_config(&in).reduce_push); /* more than this rank's share */
    in.shape = (imx_shape){ 512, 8192, 14336, BF16_NK };
    in.ranks = 2;
    in.workers = SMS;
    in.sharers = in.sms = 0;
    assert_int_equal(imx_tune_config(&in).tile_cols, 128);
    assert_int_equal(imx_tune_config(&in).parts, 2); /* waves */
    in.alike = false;
    in.ranks = 4;
    assert_true(imx_tune_config(&in).spanning);
    assert_in_range(imx_tune_config(&in).tile_cols, 64, 224); /* warps that read have no room */
}

static bool has_pairs(const imx_config *c, const char *algorithm)
{
    (void)algorithm;
    return c->band == 2;
}

/* Of a gather whose ranks have few rows and whose b is too large for the cache; their rows have to
 * come sooner, then. */
static void few_rows_are_walked_in_pairs(void **state)
{
    (void)state;
    static const choice rows[] = {
        { 2048, 7168, 8192, 0, 4, 90, 1 },
        { 4096, 3584, 8192, 0, 8, 90, 1 },
        { 2048, 7168, 8192, 0, 4, 80, 0 },
        { 4096, 7168, 8192, 0, 4, 90, 0 },
        { 2048, 1024, 8192, 0, 4, 90, 0 },
        { 1536, 4112, 4104, 0, 4, 90, 1 }, /* test_gpu_operators */
    };
    check_choices(rows, sizeof rows / sizeof rows[0], has_pairs);
    imx_config pairs = plan_of(2048, 7168, 8192, 0, 4, 90);
    imx_config apart = plan_of(4096, 7168, 8192, 0, 4, 90);
    assert_in_range(pairs.push_pace[1], 1, apart.push_pace[1] * 2 / 3);
}

/* Of a product that takes no time, too: ints hold no infinite ones. */
static void paces_are_held(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = { { 64, 0, 4096 }, { 0, 0, 4096 }, { 64, 4096, 0 } };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        imx_config c = plan_of(sizes[i][0], sizes[i][1], sizes[i][2], 0, 4, 90);
        if (c.push_pace[0] < 0 || c.push_pace[1] < 0)
            fail_msg("shape %zu: %d and %d cycles", i, c.push_pace[0], c.push_pace[1]);
    }
}

/* The rows of every rank, however m is cut, lie in as many groups as have room. */
static void groups_hold_all_rows(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 16; ranks++) {
        for (int m = 1; m <= 1024; m++) {
            for (int r = 0; r < ranks; r++) {
                int first = r * m / ranks, end = (r + 1) * m / ranks;
                int groups = end > first ? (end - 1) / IMX_SUM_ROWS - first / IMX_SUM_ROWS + 1 : 0;
                if (groups > imx_sum_groups(m, ranks))
                    fail_msg("m=%d ranks=%d: rank %d has %d groups", m, ranks, r, groups);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_general_form_takes_wide_tiles_where_it_may),
        cmocka_unit_test(measured_shapes_take_what_was_best),
        cmocka_unit_test(some_rows_fill_a_wave),
        cmocka_unit_test(few_rows_are_shared_out),
        cmocka_unit_test(plans_and_kernels_agree),
        cmocka_unit_test(lists_hold_all_tiles),
        cmocka_unit_test(the_largest_sizes_are_held),
        cmocka_unit_test(many_rows_seldom_go_by_copy),
        cmocka_unit_test(few_rows_go_by_ll),
        cmocka_unit_test(few_rows_are_merged),
        cmocka_unit_test(few_rows_are_read_in_parts),
        cmocka_unit_test(few_rows_are_summed),
        cmocka_unit_test(few_rows_are_walked_in_pairs),
        cmocka_unit_test(paces_are_held),
        cmocka_unit_test(groups_hold_all_rows),
    };
    return cmocka_run_group_tests_name("tiling", tests, NULL, NULL);
}
