/* launch.c - the GEMM kernel's table row, and how each of its forms is launched on GPUs. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "blas.h"
#include "kernels/dtype.h"
#include "kernels/kernels.h"
#include "rooms.h"
#include "sm90_tile.h"
#include "tiling.h"

void imx_gemm_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_gemm_cpu_scratch(const void *args);

/* imx_cuda_config.kept */
enum { FORM, A_BOX_ROWS, B_BOX_ROWS, C_BOX_COLS /* 0: c has no map */ };

enum { OPERAND_MAPS = 6 };

enum { ATOM_BYTES = 128 }; /* of a row, that the copy engine brings at once */

static imx_tiling tiling_of(const imx_gemm_args *args, const imx_cuda_target *target, int blocks)
{
    const imx_schedule *s = &args->schedule;
    imx_tiling_input input = {
        .arch = target->arch,
        .shared_bytes = target->shared_bytes_most,
        .m = s->m,
        .n = s->n,
        .k = args->k,
        .dtype = args->dtype,
        .layout = args->layout,
        .out = args->out,
        .scaling = args->scaling,
        .ranks = s->ranks,
        .sms = blocks,
        .scatters = (args->features & IMX_GEMM_SCATTERS) != 0,
        .hooks = (args->features & IMX_GEMM_HOOKS) != 0,
        .invariant = (args->features & IMX_GEMM_INVARIANT) != 0,
        .deep = (args->features & IMX_GEMM_DEEP) != 0,
        .spanning = (args->features & IMX_GEMM_SPANNING) != 0,
        .summable = (args->features & IMX_GEMM_SUMMABLE) != 0,
        .spans = s->spans,
        .pushes = args->features & IMX_GEMM_PUSHES && args->own >= 0,
    };
    return imx_tiling_choose(&input);
}

/* What comes before a product of these features, as policies.h names it.  What of it a run does is
 * seen at each launch, by whether its pointers are set. */
static const char *prologue_of(const imx_gemm_args *args, imx_gemm_form form)
{
    bool all = args->own < 0 && form == IMX_GEMM_SM90; /* rows of all ranks in a tile */
    if (args->features & IMX_GEMM_HOOKS)
        return "HOOKS";
    if (args->features & IMX_GEMM_SCATTERS)
        return "NONE";
    if (args->features & IMX_GEMM_PUSHES)
        return !all ? "PUSH" : imx_dtype_eight(args->dtype) ? "PUSH_ALL" : "SLICES";
    if (args->features & IMX_GEMM_FORWARDS)
        return "RING";
    if (all)
        return "WAIT_ALL";
    return args->schedule.ranks == 1 && args->own >= 0 ? "NONE" : "WAIT";
}

/* And what comes behind it. */
static const char *epilogue_of(const imx_gemm_args *args)
{
    if (args->features & IMX_GEMM_HOOKS)
        return "HOOKS";
    if (args->features & IMX_GEMM_SCATTER_PUSH)
        return "SCATTER_PUSH";
    if (args->features & IMX_GEMM_REDUCE_PUSH)
        return args->features & IMX_GEMM_REDUCE_ALL   ? "REDUCE_PUSH -DIMX_REDUCE_ALL"
               : args->features & IMX_GEMM_REDUCE_FAN ? "REDUCE_PUSH -DIMX_REDUCE_FAN"
                                                      : "REDUCE_PUSH";
    if (args->features & IMX_GEMM_REDUCE_PULL)
        return "REDUCE_PULL -DIMX_CHUNK_COLS";
    return args->features & IMX_GEMM_SCATTERS ? "POST" : "STORE";
}

/* Both, as options of either form. */
static void say_policies(const imx_gemm_args *args, imx_gemm_form form, char *text, size_t size)
{
    snprintf(text, size, " -DIMX_PROLOGUE=IMX_PROLOGUE_%s -DIMX_EPILOGUE=IMX_EPILOGUE_%s%s",
             prologue_of(args, form), epilogue_of(args),
             args->features & IMX_GEMM_HOOKS ? " -DIMX_HOOKS" : "");
}

/* Own tiles are added to what comes from the peers, by who makes them. */
static bool folds(const imx_gemm_args *args)
{
    return args->features & IMX_GEMM_SCATTER_PUSH && !(args->features & IMX_GEMM_HOOKS);
}

/* How many of `blocks`, which are wanted, there may be: whole clusters, at least one, which leave
 * as much of the GPU as they are to. */
static int blocks_of(const imx_gemm_args *args, int blocks, int units, int cluster)
{
    int most = units - args->reserved_sms < blocks ? units - args->reserved_sms : blocks;
    return most > cluster ? most / cluster * cluster : cluster;
}

/* Whether none of so many blocks has more tiles than a list holds, of as many rows or fewer. */
static bool is_listed_once(const imx_gemm_args *args, const imx_sm90_config *c, int blocks)
{
    const imx_schedule *s = &args->schedule;
    int64_t cuts = s->spans ? 1 : s->ranks;
    int64_t down = imx_schedule_ceil(imx_schedule_ceil(s->m, cuts), c->tile_rows);
    int64_t tiles = cuts * down * imx_schedule_ceil(s->n, c->tile_cols);
    return imx_schedule_ceil(tiles, blocks / c->cluster) <= IMX_SM90_LISTED;
}

static int atom(const imx_gemm_args *args)
{
    return ATOM_BYTES / (int)imx_dtype_size(args->dtype);
}

/* Options of 8-bit a and b, in either form. */
static void say_8bit(const imx_gemm_args *args, char *text, size_t size)
{
    text[0] = 0;
    if (imx_dtype_eight(args->dtype))
        snprintf(text, size, " -DIMX_EIGHT=%d -DIMX_SCALING=%d", args->dtype, args->scaling);
}

static void config_sm90(const imx_gemm_args *args, const imx_tiling *tiling, int units,
                        imx_cuda_config *config)
{
    const imx_sm90_config *c = &tiling->sm90;
    /* A block that has no tile pushes all the same: else few would bring all of the rows. */
    int wanted = args->features & IMX_GEMM_PUSHES ? c->room : c->blocks;
    *config = (imx_cuda_config){
        .source =
            imx_dtype_eight(args->dtype) ? "kernels/gemm/sm90_eight.cu" : "kernels/gemm/sm90.cu",
        .entry = "imx_gemm",
        .blocks = blocks_of(args, wanted, units, c->cluster),
        .cluster = c->cluster,
        .threads = c->threads,
        .early = true,
        .traces = !(args->features & IMX_GEMM_HOOKS),
        .shared_bytes = c->shared_bytes,
        .kept[FORM] = IMX_GEMM_SM90,
        .kept[A_BOX_ROWS] = c->tile_m,
        .kept[B_BOX_ROWS] = (args->layout == IMBREX_KN ? atom(args) : c->tile_n) / c->cluster_m,
        .kept[C_BOX_COLS] = c->turned ? 0 : imx_sm90_tune_piece_cols(c),
    };
    char ranks[48] = "", of_8bit[64], policies[128];
    say_8bit(args, of_8bit, sizeof of_8bit);
    say_policies(args, IMX_GEMM_SM90, policies, sizeof policies);
    if (imx_dtype_eight(args->dtype) && args->features & IMX_GEMM_FAST &&
        args->scaling != IMBREX_PER_BLOCK)
        strcat(of_8bit, " -DIMX_FAST");
    if (args->features & (IMX_GEMM_REDUCE_PULL | IMX_GEMM_REDUCE_PUSH))
        snprintf(ranks, sizeof ranks, " -DIMX_RANKS=1 -DIMX_PARTS=%d", args->team.size);
    else if (args->features & IMX_GEMM_SCATTER_PUSH || args->schedule.ranks == 1)
        snprintf(ranks, sizeof ranks, " -DIMX_RANKS=%d", args->schedule.ranks);
    int length = imx_sm90_tune_options(c, config->options, sizeof config->options);
    snprintf(config->options + length, sizeof config->options - (size_t)length,
             " -DIMX_SHARED_BYTES=%zu%s%s%s%s%s%s%s%s%s", c->shared_bytes, of_8bit,
             args->out == IMBREX_F16 ? " -DIMX_F16" : "",
             args->layout == IMBREX_KN ? " -DIMX_B_KN" : "",
             args->schedule.n % 8 ? " -DIMX_C_PLAIN" : "",
             args->schedule.local ? " -DIMX_NODES" : "", args->schedule.spans ? " -DIMX_SPANS" : "",
             policies, ranks, is_listed_once(args, c, config->blocks) ? " -DIMX_LISTED_ONCE" : "");
}

/* Stages of 64 columns of k take half the barriers: for small tiles, and for wide ones where the
 * GPU has the room and the product, of b as [n, k] and not scattered, the registers. */
static bool has_long_stages(const imx_gemm_args *args, const imx_tiling *tiling, size_t shared)
{
    if (!tiling->aligned || args->dtype == IMBREX_F32)
        return false;
    if (args->schedule.tile_cols > 128)
        return args->layout == IMBREX_NK && !(args->features & IMX_GEMM_SCATTERS) &&
               imx_tiling_has_room(shared);
    return args->schedule.tile_rows == 64;
}

/* Three or four stages in shared memory; two and a ring of copies where rows are not aligned. */
static void config_sm80(const imx_gemm_args *args, const imx_tiling *tiling,
                        const imx_cuda_target *target, int blocks, imx_cuda_config *config)
{
    const imx_schedule *s = &args->schedule;
    bool f32 = args->dtype == IMBREX_F32, small = s->tile_rows == 64, wide = s->tile_cols > 128;
    bool aligned = tiling->aligned, eight = imx_dtype_eight(args->dtype);
    int element = (int)imx_dtype_size(args->dtype);
    int warp_n = wide ? s->tile_cols / 4 : 32, warp_m = small ? 32 : 64;
    int tile_k = eight ? 128 : has_long_stages(args, tiling, target->shared_bytes_most) ? 64 : 32;
    int stages = !aligned ? 2 : f32 || eight || (wide && tile_k == 64) ? 3 : 4;
    /* As sm80_shape.cuh lays it out: where rows are not aligned they come with a unit more. */
    int stage = (s->tile_rows + s->tile_cols) * tile_k * element;
    int b_rows = args->layout == IMBREX_KN ? tile_k : s->tile_cols;
    int raw = stage + (s->tile_rows + b_rows) * 16;
    *config = (imx_cuda_config){
        .source = "kernels/gemm/sm80.cu",
        .entry = "imx_gemm_sm80",
        .blocks = blocks_of(args, blocks, blocks, 1),
        .cluster = 1,
        .threads = s->tile_rows / warp_m * (s->tile_cols / warp_n) * 32,
        .early = target->arch >= 90,
        .traces = true,
        .shared_bytes = (size_t)(aligned ? stages * stage : 2 * stage + stages * raw),
        .kept[FORM] = IMX_GEMM_SM80,
    };
    char of_8bit[64], policies[128];
    say_8bit(args, of_8bit, sizeof of_8bit);
    say_policies(args, IMX_GEMM_SM80, policies, sizeof policies);
    snprintf(config->options, sizeof config->options,
             "-DIMX_DTYPE=%d -DIMX_TILE_M=%d -DIMX_TILE_N=%d -DIMX_WARP_M=%d -DIMX_WARP_N=%d "
             "-DIMX_TILE_K=%d -DIMX_STAGES=%d -DIMX_SHARED_BYTES=%zu%s%s%s%s%s",
             args->out, s->tile_rows, s->tile_cols, warp_m, warp_n, tile_k, stages,
             config->shared_bytes, aligned ? " -DIMX_ALIGNED" : "",
             args->layout == IMBREX_KN ? " -DIMX_B_KN" : "", s->local ? " -DIMX_NODES" : "",
             policies, of_8bit);
}

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_gemm_args *args = largest;
    imx_tiling tiling = tiling_of(args, target, blocks);
    bool is_sm90 =
        tiling.form == IMX_GEMM_SM90 &&
        !(imx_dtype_eight(args->dtype) && args->features & (IMX_GEMM_FORWARDS | IMX_GEMM_HOOKS));
    if (is_sm90)
        config_sm90(args, &tiling, blocks, config);
    else if (!(args->features & (IMX_GEMM_FORWARDS | IMX_GEMM_HOOKS)))
        config_sm80(args, &tiling, target, blocks, config);
    else /* Hopper's form has those */
        config->wants = "rows that go on from rank to rank want a GPU of compute capability 9.0, "
                        "bf16 or f16, and rows of a and b that are multiples of 16 bytes: choose "
                        "\"store\"";
}

static imx_tensor_map map_of(int dtype, int bytes, const void *at, int64_t rows, int64_t cols,
                             int box_rows, int box_cols)
{
    return (imx_tensor_map){
        .address = rows ? at : NULL,
        .rows = rows,
        .cols = cols,
        .stride_bytes = cols * bytes,
        .box_rows = box_rows,
        .box_cols = box_cols,
        .dtype = dtype,
        .swizzle_bytes = box_cols % 32 ? 0 : box_cols * bytes,
    };
}

/* Of a or b, whose boxes have 128 bytes of each row. */
static imx_tensor_map operand_map(const imx_gemm_args *args, const void *at, int64_t rows,
                                  int64_t cols, int box_rows)
{
    return map_of(args->dtype, (int)imx_dtype_size(args->dtype), at, rows, cols, box_rows,
                  atom(args));
}

/* Of c or parts of it. */
static imx_tensor_map c_map(const imx_gemm_args *args, const void *at, int64_t rows, int box_rows,
                            int box_cols)
{
    return map_of(args->out, 2, at, rows, args->schedule.n, box_rows, box_cols);
}

/* Where rows of the owner go, also if that is this rank: [rows, n]. */
static const void *slot_of(const imx_gemm_args *args, int owner)
{
    const imx_team *team = &args->team;
    return imx_team_data(team, owner) + team->rank * args->slot_bytes;
}

/* All parts of own rows, of which a block takes as many rows as it has of a. */
static imx_tensor_map parts_map(const imx_gemm_args *args, int box_rows, int box_cols)
{
    const imx_team *team = &args->team;
    imx_tensor_map map = c_map(args, imx_team_data(team, team->rank),
                               imx_schedule_rows(&args->schedule, team->rank), box_rows, box_cols);
    map.planes = team->size;
    map.plane_bytes = args->slot_bytes;
    return map;
}

static void add_c_maps(const imx_gemm_args *args, int box_rows, int box_cols,
                       imx_cuda_launch *launch)
{
    const imx_schedule *s = &args->schedule;
    bool stores = args->features & IMX_GEMM_SCATTER_PUSH,
         collects = args->features & IMX_GEMM_REDUCE_PULL;
    int64_t rows = folds(args) ? imx_schedule_rows(s, args->team.rank) : s->m;
    const void *c = collects ? imx_team_data(&args->team, args->team.rank) : args->c;
    if (folds(args) || !stores)
        launch->maps[launch->map_count++] = c_map(args, c, rows, 16, box_cols);
    if (folds(args))
        launch->maps[launch->map_count++] = parts_map(args, box_rows, box_cols);
    for (int r = 0; stores && r < args->team.size; r++)
        launch->maps[launch->map_count++] =
            c_map(args, slot_of(args, r), imx_schedule_rows(s, r), 16, box_cols);
}

/* Where rows go on to, at each step of the ring but the last: one owner's rows, and none beyond
 * them, which come at another time. */
static void add_pass_maps(const imx_gemm_args *args, int box_rows, imx_cuda_launch *launch)
{
    const imx_schedule *s = &args->schedule;
    const char *to = imx_team_data(&args->team, imx_ring_to(s));
    for (int step = 0; step < s->ranks - 1; step++) {
        int owner = imx_schedule_rank(s, step);
        launch->maps[launch->map_count++] = operand_map(
            args, to + imx_schedule_row(s, owner) * args->k * (int)imx_dtype_size(args->dtype),
            imx_schedule_rows(s, owner), args->k, box_rows);
    }
}

/* Of whole tiles, and of those at the edges: NULL where there are none. */
static void add_operand_maps(const imx_gemm_args *args, int a_rows, int b_rows,
                             imx_cuda_launch *launch)
{
    const imx_schedule *s = &args->schedule;
    bool kn = args->layout == IMBREX_KN;
    bool own = args->features & IMX_GEMM_GATHERS && args->own >= 0;
    int64_t own_rows = own ? imx_schedule_rows(s, args->own) : s->m;
    int a_edge = (int)imx_sm90_edge_rows(s, (unsigned)a_rows), b_edge = 0;
    if (!kn)
        b_edge = (int)imx_sm90_edge_cols((unsigned)s->n, (unsigned)s->tile_cols, (unsigned)b_rows);
    for (int edge = 0; edge < 2; edge++) {
        imx_tensor_map *maps = &launch->maps[launch->map_count];
        int a_box = edge ? a_edge : a_rows, b_box = edge ? b_edge : b_rows;
        maps[0] = operand_map(args, a_box ? args->a : NULL, own_rows, args->k, a_box);
        maps[1] = operand_map(args, a_box ? args->gathered : NULL, s->m, args->k, a_box);
        maps[2] = operand_map(args, b_box ? args->b : NULL, kn ? args->k : s->n,
                              kn ? s->n : args->k, b_box);
        launch->map_count += OPERAND_MAPS / 2;
    }
}

static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_gemm_args *args = untyped;
    const imx_schedule *s = &args->schedule;
    int64_t tiles = imx_schedule_tiles(s) * config->cluster;
    bool all = args->features & IMX_GEMM_PUSHES || tiles > config->blocks;
    launch->blocks = all ? config->blocks : (int)tiles;
    if (config->kept[FORM] != IMX_GEMM_SM90)
        return;
    const int *box = config->kept;
    add_operand_maps(args, box[A_BOX_ROWS], box[B_BOX_ROWS], launch);
    if (box[C_BOX_COLS] && s->n % 8 == 0 &&
        !(args->features & IMX_GEMM_REDUCE_PUSH)) /* else by ordinary stores */
        add_c_maps(args, box[A_BOX_ROWS], box[C_BOX_COLS], launch);
    if (args->features & IMX_GEMM_FORWARDS) {
        if (launch->map_count == OPERAND_MAPS) /* also where there is none of c */
            launch->maps[launch->map_count++].address = NULL;
        add_pass_maps(args, box[A_BOX_ROWS], launch);
    }
}

const imx_kernel imx_kernel_gemm = {
    .name = "gemm",
    .cpu = imx_gemm_cpu,
    .cpu_scratch = imx_gemm_cpu_scratch,
    .cpu_info = imx_blas_name,
    .cpu_ready = imx_gemm_rooms_ready,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
