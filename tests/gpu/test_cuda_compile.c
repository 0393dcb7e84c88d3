/* test_cuda_compile.c - every kernel of the table, in the configurations that it can choose, goes
 * through the real compiler, where there is one: no GPU is needed.  Of each text's every two
 * options are seen together.  Registers that spill, local memory and too much shared memory are
 * failures.  What has not changed since its report went into compiled.txt is not compiled again.
 * An argument: only texts that are named so, as kernels/ll/; "keep": compiled.txt is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/cuda/cuda.h"
#include "backends/cuda/nvrtc.h"
#include "base/source.h"
#include "compile_jobs.h"
#include "compile_tiles.h"
#include "fake_nvrtc.h"
#include "kernels/activate/args.h"
#include "kernels/attend/args.h"
#include "kernels/combine/args.h"
#include "kernels/combine_ll/args.h"
#include "kernels/dispatch/args.h"
#include "kernels/dispatch_ll/args.h"
#include "kernels/gate/args.h"
#include "kernels/gemm/args.h"
#include "kernels/grouped/args.h"
#include "kernels/ll/args.h"
#include "kernels/merge/args.h"
#include "kernels/norm/args.h"
#include "kernels/push/args.h"
#include "kernels/reduce/args.h"
#include "kernels/route/args.h"
#include "limit.h"
#include "tune/tune.h"
#include "tuned.h"

enum { SKIP = 77, SHARED_SM80 = 166912, SHARED_SM86 = 101376, SHARED_SM90 = 232448 };

/* ---- what is to be compiled ------------------------------------------------------------------ */

enum { BLOCKS = 100, TARGETS = 2, LITTLE = 2 };

/* The last one, an older form on a GPU with less shared memory, for a few shapes. */
static const imx_cuda_target targets[TARGETS + 1] = { { 80, SHARED_SM80 },
                                                      { 90, SHARED_SM90 },
                                                      { 80, SHARED_SM86 } };

static bool traced; /* kernels that can write down what they do are compiled to do so */
static char tried[sizeof((imx_cuda_config *)0)->options]; /* options of the last one */

static void try_on(const imx_kernel *kernel, const void *args, const imx_cuda_target *target)
{
    static const char less[] = " -DIMX_LISTED_ONCE";
    imx_cuda_config config = { 0 };
    kernel->cuda_config(args, target, BLOCKS, &config);
    char *once = strstr(config.options, less);
    if (once &&
        compile_jobs_count() % 4) /* of those that leave code out, most are compiled with it */
        memmove(once, once + strlen(less), strlen(once + strlen(less)) + 1);
    if (traced && config.traces)
        strcat(config.options, " -DIMX_TRACE");
    memcpy(tried, config.options, sizeof tried);
    if (config.source) /* else this GPU has no form for this shape */
        compile_jobs_add(&config, target->arch, target->shared_bytes_most);
}

/* For both kinds of GPU: the older ones' shape is taken on the newer ones as well. */
static void try(const imx_kernel *kernel, const void *args)
{
    for (int i = 0; i < TARGETS; i++)
        try_on(kernel, args, &targets[i]);
}

/* For one of them: where neighbours differ little. */
static void try_either(const imx_kernel *kernel, const void *args, size_t number)
{
    try_on(kernel, args, &targets[number % TARGETS]);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void reduce(void **state)
{
    (void)state;
    static const int ranks[] = { 1, 2, 3, 4, 5, 6, 7, 8, 16 };
    for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++) {
        for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
            imx_reduce_args args = { .rows = 1000, .n = 1000, .dtype = dtype, .ranks = ranks[i] };
            try_either(&imx_kernel_reduce, &args, i + (size_t)dtype);
        }
    }
}

static void push(void **state)
{
    (void)state;
    static const int ranks[] = { 2, 3, 4, 5, 8, 16 };
    for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++) {
        for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
            for (int form = 0; form < 6; form++) {
                imx_push_args args = {
                    .dtype = dtype, .ranks = ranks[i], .how = form % 3, .lines = form / 3
                };
                bool whole = dtype == IMBREX_BF16 || ranks[i] % 8 == 0; /* others are between */
                if (whole && (args.how == IMX_PUSH_REDUCES || dtype == IMBREX_BF16))
                    try_either(&imx_kernel_push, &args, i + (size_t)(dtype + form / 3));
            }
            imx_push_args normed = { .dtype = dtype, .ranks = ranks[i], .norm.n = 8192 };
            if (i % 3 == 0)
                try(&imx_kernel_push, &normed);
        }
    }
}

/* Every number of ranks has its own number of units under way, every grid its own blocks. */
static void ll(void **state)
{
    (void)state;
    static const int ranks[] = { 2, 4, 6, 8, 16 };
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        for (int lines = 0; lines < 2; lines++) {
            imx_ll_args args = { .ranks = ranks[i], .lines = lines, .most = 64 << 20 };
            try(&imx_kernel_ll, &args);
            for (args.dtype = IMBREX_BF16; args.dtype <= IMBREX_F32; args.dtype++) {
                args.how = IMX_LL_REDUCES, args.norm.n = 0;
                try_either(&imx_kernel_ll, &args, i + (size_t)(lines + args.dtype));
                args.how = IMX_LL_FANS;
                try_either(&imx_kernel_ll, &args, i + (size_t)(lines + args.dtype));
                args.norm.n = IMX_LL_ROW_BYTES / (args.dtype == IMBREX_F32 ? 4 : 2); /* normed */
                args.row_bytes = IMX_LL_ROW_BYTES, args.pieces = i % 2 ? 1 : 8;
                args.piece_cols = imx_ll_piece_cols(args.norm.n, args.pieces);
                try_either(&imx_kernel_ll, &args, i / 2 + (size_t)args.dtype);
            }
        }
    }
}

static void activate(void **state)
{
    (void)state;
    imx_activate_args args = { .rows = 1000, .cols = 1000 };
    try(&imx_kernel_activate, &args);
}

static void norm(void **state)
{
    (void)state;
    imx_norm_args args = { .rows = 1000, .n = 1000 };
    try(&imx_kernel_norm, &args);
}

static void gate(void **state)
{
    (void)state;
    imx_gate_args args = { .tokens = 1000, .experts = 256, .top_k = 8 };
    try(&imx_kernel_gate, &args);
}

static void route(void **state)
{
    (void)state;
    imx_route_args args = { .tokens = 1000, .top_k = 8, .experts = 256, .here = 256 };
    try(&imx_kernel_route, &args);
    args.tokens = 1024; /* by a cluster, where there are any */
    try(&imx_kernel_route, &args);
}

/* Of few rows an expert and of many, b both ways, rows that begin at 16 bytes and anywhere. */
static void grouped(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * 2 * 2 * 3; i++) {
        int64_t k = i & 1 ? 999 : 1024;
        imx_grouped_args args = { .n = k, .k = k, .expected = i & 2 ? 16 : 1024 };
        args.layout = i & 4 ? IMBREX_KN : IMBREX_NK;
        args.dtype = args.out = IMBREX_BF16 + i / 8;
        try_either(&imx_kernel_grouped, &args, (size_t)(i ^ i / 2));
        if (args.dtype != IMBREX_F16 && args.layout == IMBREX_NK)
            try_on(&imx_kernel_grouped, &args, &targets[LITTLE]);
    }
}

/* Hopper's form: each size of tile. */
static void grouped_on_hopper(void **state)
{
    static const struct {
        int here, n, k, expected;
    } shapes[] = { { 128, 384, 2048, 8 },  { 8, 7168, 4096, 32 },   { 8, 7168, 4096, 2048 },
                   { 128, 384, 2048, 64 }, { 128, 384, 2048, 512 }, { 4, 128, 4096, 100 } };
    (void)state;
    for (int i = 0; i < 6 * 2 * 2; i++) {
        imx_grouped_args args = { .here = shapes[i / 4].here, .n = shapes[i / 4].n };
        args.k = shapes[i / 4].k, args.expected = shapes[i / 4].expected;
        args.layout = i & 1 ? IMBREX_KN : IMBREX_NK;
        args.dtype = args.out = i & 2 ? IMBREX_F16 : IMBREX_BF16;
        try_on(&imx_kernel_grouped, &args, &targets[1]);
        args.dtype = i % 5 ? IMBREX_E4M3 : IMBREX_E5M2, args.layout = IMBREX_NK;
        args.scaling = i % 3 ? 1 + i % 3 : 0;
        try_on(&imx_kernel_grouped, &args, &targets[i % 4 != 3]);
        assert_non_null(strstr(tried, "-DIMX_EIGHT="));
    }
}

static void dispatch(void **state)
{
    (void)state;
    imx_dispatch_args args = { .ranks = 4, .experts = 256, .top_k = 8, .n = 7168 };
    try(&imx_kernel_dispatch, &args);
    imx_dispatch_ll_args few = { .dispatch = args };
    few.dispatch.most = IMX_DISPATCH_LL_TOKENS / few.dispatch.ranks;
    try(&imx_kernel_dispatch_ll, &few);
}

static void combine(void **state)
{
    (void)state;
    imx_combine_args args = { .tokens = 1000, .n = 1000 };
    for (args.dtype = IMBREX_BF16; args.dtype <= IMBREX_F32; args.dtype++)
        try(&imx_kernel_combine, &args);
    imx_combine_ll_args few = { .own = 0 };
    for (few.combine.dtype = IMBREX_BF16; few.combine.dtype <= IMBREX_F32; few.combine.dtype++)
        try(&imx_kernel_combine_ll, &few);
}

static void merge(void **state)
{
    (void)state;
    for (int how = IMX_MERGE_PACKS; how <= IMX_MERGE_LL; how++) {
        for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++) {
            imx_merge_args args = { .how = how, .dtype = dtype, .dtype_to = dtype };
            try_either(&imx_kernel_merge, &args, (size_t)(how + dtype));
            args.dtype_to = IMBREX_F32; /* of a node */
            if (how == IMX_MERGE_MERGES)
                try_either(&imx_kernel_merge, &args, (size_t)dtype);
        }
    }
    imx_merge_args args = { .how = IMX_MERGE_MERGES, .dtype = IMBREX_F32, .dtype_to = IMBREX_BF16 };
    try_either(&imx_kernel_merge, &args, 1);
}

static void attend(void **state)
{
    (void)state;
    static const int shapes[][3] = { { 64, 64, 8 },    { 64, 64, 16 },   { 128, 128, 8 },
                                     { 128, 128, 16 }, { 256, 256, 8 },  { 256, 256, 16 },
                                     { 576, 512, 16 }, { 576, 512, 32 }, { 576, 512, 64 } };
    for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++) {
        for (int i = 0; i < 9; i++) {
            imx_attend_args args = { .dtype = dtype,
                                     .cache = dtype,
                                     .head_dim = shapes[i][0],
                                     .value_dim = shapes[i][1],
                                     .heads = shapes[i][2],
                                     .kv_heads = 1,
                                     .group = shapes[i][2],
                                     .queries = 1 };
            if (dtype == IMBREX_BF16)
                try(&imx_kernel_attend, &args);
            if (dtype == IMBREX_BF16 && (i == 0 || i == 2 || i == 6)) {
                imx_attend_args many = args; /* as many blocks of an SM as can be; runs of splits */
                many.sequences = 4096, many.splits = 4;
                try(&imx_kernel_attend, &many);
                many.cache = IMBREX_E4M3;
                try(&imx_kernel_attend, &many);
            }
            if (dtype == IMBREX_BF16 && (i == 2 || i == 3 || i == 6 || i == 7)) {
                imx_attend_args paged = args;
                paged.page = 16;
                try_on(&imx_kernel_attend, &paged, &targets[1]);
                paged.page = 8; /* its copy engine cannot */
                try_on(&imx_kernel_attend, &paged, &targets[1]);
            }
            if (dtype == IMBREX_F16 || (dtype == IMBREX_F32 && i % 2 == 0))
                try_either(&imx_kernel_attend, &args, (size_t)(dtype + i));
            args.cache = IMBREX_E4M3;
            if (i % 2 == 0)
                try_either(&imx_kernel_attend, &args, (size_t)(dtype + i / 2));
        }
    }
}

static int ranks = 4;

static imx_shape eight; /* what 8-bit products scale, give, and how they add up */

/* nodes: 0 is one, whose ranks are walked chunk by chunk. */
static void try_gemm(const int64_t *mnk, int dtype, int layout, int features, int target, int nodes)
{
    imbrex_dtype out = dtype > (int)IMBREX_F32 ? eight.out : (imbrex_dtype)dtype;
    imx_tune_input input = {
        .shape = { mnk[0], mnk[1], mnk[2], (imbrex_dtype)dtype, out, (imbrex_layout)layout,
                   eight.scaling, false },
        .product = true,
        .scatters = features & IMX_GEMM_SCATTERS,
        .ranks = ranks,
        .nodes = nodes,
        .chunk_rows = features & IMX_GEMM_FORWARDS ? 64 : 0, /* else tiles may span ranks */
        .arch = targets[target].arch,
        .shared_bytes = targets[target].shared_bytes_most,
        .rates = tuned_rates(),
        .workers = BLOCKS,
        .alike = true,
    };
    imx_config tuned = imx_tune_config(&input);
    features |= eight.fast_accumulation ? IMX_GEMM_FAST : 0;
    if (features & IMX_GEMM_SCATTER_PUSH && tuned.reduce_push)
        features = IMX_GEMM_SCATTERS | IMX_GEMM_REDUCE_PUSH;
    else if (features & IMX_GEMM_SCATTER_PUSH && tuned.spanning)
        features = IMX_GEMM_SCATTERS | IMX_GEMM_REDUCE_PULL;
    if (features & IMX_GEMM_SCATTERS && tuned.spanning)
        features |= IMX_GEMM_SPANNING;
    if (tuned.summable)
        features |= IMX_GEMM_SUMMABLE;
    imx_gemm_args args = {
        .schedule = { .m = mnk[0],
                      .n = mnk[1],
                      .chunk_cols = features & IMX_GEMM_REDUCE_PULL ? tuned.part_cols : 0,
                      .ranks = tuned.spanning ? 1 : ranks,
                      .chunk_rows = tuned.chunk_rows,
                      .tile_rows = tuned.tile_rows,
                      .tile_cols = tuned.tile_cols,
                      .group = tuned.group,
                      .chunks = tuned.chunks,
                      .local = nodes == 1 || tuned.spanning ? 0 : ranks / (nodes ? nodes : 1),
                      .spans = tuned.spans_chunks },
        .k = mnk[2],
        .dtype = dtype,
        .layout = layout,
        .out = out,
        .scaling = (int)eight.scaling,
        .features = features,
        .own = tuned.spanning ? -1 : 1,
        .slices = tuned.slices,
        .slice_k = tuned.slice_k,
        .team.size = ranks,
    };
    try_on(&imx_kernel_gemm, &args, &targets[target]);
}

static const int both[] = { IMX_GEMM_GATHERS, IMX_GEMM_GATHERS | IMX_GEMM_PUSHES, IMX_GEMM_SCATTERS,
                            IMX_GEMM_SCATTERS | IMX_GEMM_SCATTER_PUSH };

/* Shapes that call for different tiles and loads, as both operators ask for them. */
static void gemm(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {
        { 8192, 8192, 8192 }, { 8192, 3584, 4096 }, { 4096, 14336, 4096 }, { 512, 7168, 8192 },
        { 64, 4096, 4096 },   { 1, 4096, 4096 },    { 1000, 1001, 999 },   { 3, 5, 7 },
    };
    enum { SIDES = sizeof both / sizeof both[0], SHAPES = sizeof shapes / sizeof shapes[0] };
    for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++) {
        for (int layout = IMBREX_NK; layout <= IMBREX_KN; layout++) {
            bool whole = dtype == IMBREX_BF16 && layout == IMBREX_NK; /* else one each, of half */
            for (int i = whole ? 0 : (dtype + layout) % 2; i < SHAPES; i += whole ? 1 : 2) {
                for (int target = 0; target < TARGETS; target++)
                    for (int side = 0; side < (whole ? SIDES : 1); side++)
                        try_gemm(shapes[i], dtype, layout, both[(i + dtype + side) % SIDES], target,
                                 1);
            }
        }
    }
    for (int i = 0; i < 2 * TARGETS * 2; i++) /* over nodes */
        try_gemm(shapes[i / 4], IMBREX_BF16, IMBREX_NK, both[i % 2 * 2], i / 2 % 2, 2);
    for (int i = 0; i < SHAPES; i++) /* gemm_ar's copy */
        try_gemm(shapes[i], i % 3 == 2 ? IMBREX_F16 : IMBREX_BF16, i % 2 ? IMBREX_KN : IMBREX_NK,
                 IMX_GEMM_SCATTERS, i % TARGETS, 0);
    for (int i = 3; i < 7; i += 3)
        try_gemm(shapes[i], i > 3 ? IMBREX_F32 : IMBREX_BF16, IMBREX_NK, both[0], LITTLE, 1);
}

static void scaled(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {
        { 8192, 7168, 8192 }, { 64, 4096, 4096 },   { 500, 7, 16 },
        { 8192, 7680, 8192 }, { 8192, 1001, 4096 }, { 512, 7168, 8192 },
        { 300, 11264, 4096 }, { 8192, 4096, 4096 }, { 1000, 8192, 4096 },
    };
    int narrow = 0;
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]) * 16; i++) {
        eight = (imx_shape){ .scaling = (imbrex_scaling)(i / 4 % 4),
                             .out = (imbrex_dtype)(1 + (i + i / 8) % 3),
                             .fast_accumulation = i / 4 % 4 < 3 && (i + i / 4) % 5 == 0 };
        bool alone = i < 16 || i / 16 == 8; /* of 256 columns, and of 224 */
        ranks = alone ? 1 : 4;
        try_gemm(shapes[i / 16], i % 7 ? IMBREX_E4M3 : IMBREX_E5M2, IMBREX_NK,
                 alone ? 0 : both[i % 4], i == 19 ? LITTLE : i % 5 != 0, 1);
        assert_non_null(strstr(tried, "-DIMX_EIGHT="));
        if (i / 16 == 8 && eight.scaling != IMBREX_PER_BLOCK && strstr(tried, "-DIMX_WG_M="))
            narrow += strstr(tried, "-DIMX_TILE_N=224 ") != NULL;
    }
    assert_in_range(narrow, 6, 12);
    ranks = 4;
}

/* Rows that go to peers: by the copy engine where it costs no stage, by warps elsewhere. */
static void pushes(void **state)
{
    (void)state;
    static const struct {
        int64_t mnk[3];
        int layout;
        const char *tile, *buffers; /* of c */
        bool bulk;
    } rows[] = {
        { { 8192, 14336, 4096 }, IMBREX_NK, "-DIMX_TILE_N=224 ", "-DIMX_BUFFERS=2 ", true },
        { { 4096, 4096, 4096 }, IMBREX_NK, "-DIMX_TILE_N=176 ", "-DIMX_BUFFERS=1 ", true },
        { { 4096, 4096, 4096 }, IMBREX_KN, "-DIMX_TILE_N=176 ", "-DIMX_BUFFERS=1 ", false },
        { { 8192, 7168, 4096 }, IMBREX_NK, "-DIMX_TILE_N=256 ", "-DIMX_BUFFERS=1 ", true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        try_gemm(rows[i].mnk, IMBREX_BF16, rows[i].layout, IMX_GEMM_GATHERS | IMX_GEMM_PUSHES, 1,
                 1);
        if (!strstr(tried, rows[i].tile) || !strstr(tried, rows[i].buffers) ||
            !strstr(tried, "-DIMX_BULK") != !rows[i].bulk)
            fail_msg("row %zu: %s", i, tried);
    }
}

/* Own tiles that are added to the peers' parts, of so many ranks; and where rows are not units. */
static void folds(void **state)
{
    (void)state;
    static const int64_t whole[] = { 16384, 8192, 8192 }, odd[] = { 4000, 1001, 1000 };
    static const int numbers[] = { 2, 8, 16 };
    for (int i = 0; i < 3; i++) {
        ranks = numbers[i];
        for (int layout = IMBREX_NK; layout <= IMBREX_KN; layout++)
            try_gemm(whole, IMBREX_BF16, layout, IMX_GEMM_SCATTERS | IMX_GEMM_SCATTER_PUSH, 1, 1);
    }
    ranks = 4;
    try_gemm(odd, IMBREX_BF16, IMBREX_NK, IMX_GEMM_SCATTERS | IMX_GEMM_SCATTER_PUSH, 1, 1);
}

static void tiles(void **state)
{
    (void)state;
    assert_int_equal(compile_tiles_split(), 0);
    assert_int_equal(compile_tiles_deep(), 0);
    assert_int_equal(compile_tiles_turned(), 0);
    assert_int_equal(compile_tiles_tall(), 0);
}

/* Tiles that the kernel adds up: shared ones of every width, and such as take turns, of two ranks,
 * which have most under way. */
static void sums(void **state)
{
    (void)state;
    static const struct {
        int m, n, k;
        const char *is;
    } rows[] = {
        { 256, 3200, 4000, "-DIMX_TILE_N=64 -DIMX_WG_M=64 " },
        { 256, 3200, 8192, "-DIMX_CLUSTER_M=1 -DIMX_SPLIT=2 " },
        { 384, 3168, 8192, "-DIMX_TILE_N=96 -DIMX_WG_M=64 " },
        { 250, 5561, 8192, "-DIMX_TILE_N=112 -DIMX_WG_M=128 -DIMX_PINGPONG " },
        { 256, 6400, 8192, "-DIMX_TILE_N=128 -DIMX_WG_M=64 " },
        { 768, 6400, 8192, "-DIMX_TILE_N=128 -DIMX_WG_M=128 -DIMX_PINGPONG " },
        { 640, 3200, 8192, "-DIMX_TILE_N=160 -DIMX_WG_M=64 " },
        { 384, 6336, 8192, "-DIMX_TILE_N=192 -DIMX_WG_M=64 " },
        { 512, 5600, 8192, "-DIMX_TILE_N=224 -DIMX_WG_M=64 " },
        { 512, 6400, 32768, "-DIMX_TILE_N=256 -DIMX_WG_M=64 " },
        { 256, 8600, 8192, "-DIMX_TILE_N=192 -DIMX_WG_M=64 " }, /* not 176 in turns */
    };
    ranks = 2;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int64_t mnk[] = { rows[i].m, rows[i].n, rows[i].k };
        try_gemm(mnk, i % 4 == 2 ? IMBREX_F16 : IMBREX_BF16, IMBREX_NK,
                 IMX_GEMM_SCATTERS | IMX_GEMM_SCATTER_PUSH, 1, 1);
        if (!strstr(tried, "IMX_EPILOGUE_REDUCE_PUSH ") || !strstr(tried, rows[i].is))
            fail_msg("%d x %d: %s", rows[i].m, rows[i].n, tried);
    }
    ranks = 4;
}

/* Only where GPUs have copy engines of their own: on others there is no such kernel. */
static void ring(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {
        { 8192, 8192, 8192 }, { 8192, 3584, 4096 }, { 512, 7168, 8192 }, { 1000, 1001, 1000 }
    };
    int before = compile_jobs_count(), features = IMX_GEMM_GATHERS | IMX_GEMM_FORWARDS;
    for (int i = 0; i < 4; i++)
        try_gemm(shapes[i], IMBREX_BF16, IMBREX_NK, features, 0, 1);
    assert_int_equal(compile_jobs_count(), before);
    for (int i = 0; i < 6; i++)
        try_gemm(shapes[i < 4 ? i : 2 * i - 8], i < 4 ? IMBREX_BF16 : IMBREX_F16,
                 i < 4 ? IMBREX_NK : IMBREX_KN, features, 1, 1);
    assert_true(compile_jobs_count() > before);
}

/* What tells of itself must be as lean as what does not, and fit. */
static void traces(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = { { 8192, 8192, 8192 }, { 512, 7168, 8192 } };
    static const int features[] = { IMX_GEMM_GATHERS | IMX_GEMM_PUSHES, IMX_GEMM_SCATTERS,
                                    IMX_GEMM_SCATTERS | IMX_GEMM_SCATTER_PUSH };
    traced = true;
    for (int i = 0; i < 6; i++)
        try_gemm(shapes[i % 2], IMBREX_BF16, IMBREX_NK, features[i / 2], 1, 1);
    for (int i = 0; i < 3; i++)
        try_gemm(shapes[0], IMBREX_BF16, i ? IMBREX_NK : IMBREX_KN, features[i], 0, 1);
    imx_reduce_args sum = { .rows = 1000, .n = 1000, .dtype = IMBREX_BF16, .ranks = 4 };
    try_on(&imx_kernel_reduce, &sum, &targets[1]);
    imx_push_args shares = { .dtype = IMBREX_BF16, .ranks = 4, .how = IMX_PUSH_REDUCES };
    try_on(&imx_kernel_push, &shares, &targets[1]);
    traced = false;
    imx_cuda_config config;
    imx_cuda_clock_kernel.cuda_config(NULL, &targets[1], 1, &config);
    compile_jobs_add(&config, 90, SHARED_SM90);
}

/* Has to become resident beneath a kernel that fills the GPU but for 1024 registers and no shared
 * memory. */
static void signals(void **state)
{
    (void)state;
    imx_cuda_config config;
    imx_cuda_target target = { 90, SHARED_SM90 };
    imx_cuda_signals_kernel.cuda_config(NULL, &target, 1, &config);
    compile_jobs_add(&config, 90, SHARED_SM90)->slips_beneath = true;
}

/* What the cases before it have listed. */
static void all_compile_and_are_lean(void **state)
{
    (void)state;
    assert_int_equal(compile_jobs_run(), 0);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void errors_name_file_and_line(void **state)
{
    (void)state;
    const imx_source *source;
    void *cubin;
    size_t bytes;
    assert_int_equal(imx_source_expand("kernels/activate/sm80.cu", &source), IMBREX_OK);
    char *text = strdup(source->text);
    char *word = strstr(text, "expf(0");
    assert_non_null(word);
    memcpy(word, "eexp", 4);
    int line = 1;
    const char *file = imx_source_find("kernels/activate/sm80.cu")->text;
    for (const char *at = strstr(file, "expf(0"); at > file; at--)
        line += at[-1] == '\n';
    imbrex_status status =
        imx_nvrtc_compile("kernels/activate/sm80.cu", text, "", 90, &cubin, &bytes, NULL);
    free(text);
    char expected[64];
    snprintf(expected, sizeof expected, "activate/sm80.cu(%d): error", line);
    assert_int_equal(status, IMBREX_INTERNAL);
    if (!strstr(imbrex_error(), expected))
        fail_msg("no \"%s\" in: %s", expected, imbrex_error());
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm),
        cmocka_unit_test(ring),
        cmocka_unit_test(folds),
        cmocka_unit_test(tiles),
        cmocka_unit_test(sums),
        cmocka_unit_test(signals),
        cmocka_unit_test(reduce),
        cmocka_unit_test(push),
        cmocka_unit_test(ll),
        cmocka_unit_test(activate),
        cmocka_unit_test(norm),
        cmocka_unit_test(pushes),
        cmocka_unit_test(gate),
        cmocka_unit_test(route),
        cmocka_unit_test(grouped),
        cmocka_unit_test(grouped_on_hopper),
        cmocka_unit_test(combine),
        cmocka_unit_test(dispatch),
        cmocka_unit_test(scaled),
        cmocka_unit_test(merge),
        cmocka_unit_test(attend),
        cmocka_unit_test(traces),
        cmocka_unit_test(errors_name_file_and_line),
        cmocka_unit_test(all_compile_and_are_lean),
    };
    limit_s *= 5; /* three hundred kernels */
    const char *kept = getenv("IMBREX_CACHE_DIR");
    compile_jobs_keep = argc > 1 && strcmp(argv[1], "keep") == 0;
    compile_jobs_part = argc > 1 && !compile_jobs_keep ? argv[1] : "";
    if (!fake_nvrtc_keep_ptx(kept ? kept : "")) {
        printf("skipped: %s\n", imbrex_error());
        return SKIP;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
