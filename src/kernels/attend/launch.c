/* launch.c - the attend kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_attend_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { PLAIN_THREADS = 256 };
enum { BLOCK_BYTES = 1 << 10 }; /* of a block, the driver's */

/* By tensor cores: of a block. */
typedef struct form {
    int threads, rows, stages, beside;         /* beside: blocks of an SM, the most at first */
    size_t stage_bytes, other_bytes, declared; /* declared: at most */
} form;

static size_t room_for(const form *f, size_t bytes)
{
    size_t taken = f->other_bytes + f->declared;
    return bytes > taken ? (bytes - taken) / f->stage_bytes : 0;
}

/* sm80_tensor.cuh: four warps, each with tiles of 16 tokens' k and v, and q of two splits.  Small
 * forms of 16 bits can do with the registers that three blocks leave each other.  While one ends a
 * split the others load; but of fewer rounds of blocks the last one is too large a part. */
static form heads_form(const imx_attend_args *args, int arch, int sms)
{
    enum { FOUR = 4, TOKENS = 16, BESIDE = 3, ROUNDS_LEAST = 4 };
    int64_t splits = imx_attend_counts(args) * args->splits;
    bool many = splits >= (int64_t)ROUNDS_LEAST * BESIDE * sms;
    size_t dim = (size_t)args->head_dim, element = args->cache == IMBREX_E4M3 ? 1 : 2;
    int all = args->queries * args->group, rows = all <= 8 ? 8 : imx_attend_rows(args);
    return (form){
        .threads = FOUR * 32,
        .rows = rows,
        .beside = many && all <= 8 && dim <= 128 && element == 2 && arch >= 90 ? BESIDE : 2,
        .stage_bytes = FOUR * TOKENS * 2 * dim * element,
        .other_bytes = 2 * (size_t)rows * dim * 2,
        .declared = 5 << 10,
    };
}

/* sm80_mla.cuh: tiles of 32 tokens' k, and as many rows as there are. */
static form mla_form(const imx_attend_args *args)
{
    enum { TOKENS = 32 };
    int all = args->queries * args->heads, warps = all <= 32 ? 8 : 16;
    form f = { .threads = warps * 32, .rows = all <= 16 ? 16 : all <= 32 ? 32 : 64, .beside = 1 };
    size_t rows = (size_t)f.rows, row = (size_t)args->head_dim * 2;
    size_t products = (size_t)warps * 8 * (TOKENS + 8) * sizeof(float);
    f.declared = 5 << 10;
    f.stage_bytes = TOKENS * row;
    f.other_bytes = rows * row + products + rows * (TOKENS * 2 + 16);
    return f;
}

/* stages 0: plain arithmetic.  Of several blocks of an SM, as many bytes are to be under way as its
 * memory needs to be busy: with more of them it is slower. */
static form choose(const imx_attend_args *args, const imx_cuda_target *target, int sms)
{
    enum { STAGES_LEAST = 2, STAGES_MOST = 6, UNDER_WAY = 64 << 10 };
    bool mla = args->head_dim != args->value_dim;
    form f = { .threads = PLAIN_THREADS, .rows = 1, .beside = 1 };
    bool eight = args->cache == IMBREX_E4M3 && !mla && target->arch >= 90; /* who can widen them */
    if (args->dtype == IMBREX_F32 || (args->cache != args->dtype && !eight))
        return f;
    form tensor = mla ? mla_form(args) : heads_form(args, target->arch, sms);
    for (; tensor.beside; tensor.beside--) {
        size_t blocks = (size_t)tensor.beside;
        size_t room = (target->shared_bytes_most + BLOCK_BYTES) / blocks - BLOCK_BYTES;
        size_t stages = room_for(&tensor, room), most = STAGES_MOST;
        if (blocks > 1)
            most = 1 + (UNDER_WAY / blocks + tensor.stage_bytes - 1) / tensor.stage_bytes;
        tensor.stages = (int)(stages < most ? stages : most);
        if (tensor.stages >= STAGES_LEAST)
            return tensor;
    }
    return f;
}

/* ---- Hopper: sm90_tensor.cuh, sm90_mla.cuh --------------------------------------------------- */

enum { BESIDE, BOX_ROWS, MLA_ROWS }; /* of kept */

/* Tokens that lie in a row of a page, whichever they are; 0: too few. */
static int box_rows(const imx_attend_args *args)
{
    enum { STEP = 64, TOKENS = 16 };
    return args->page % STEP == 0 ? STEP : args->page % TOKENS == 0 ? TOKENS : 0;
}

static bool is_for_hopper(const imx_attend_args *args, const imx_cuda_target *target)
{
    bool eight = args->cache == IMBREX_E4M3;
    return target->arch == 90 && args->dtype != IMBREX_F32 &&
           (eight || args->cache == args->dtype) && args->head_dim == args->value_dim &&
           (size_t)args->head_dim * (eight ? 1 : 2) % 128 == 0 && box_rows(args) > 0;
}

static bool is_mla_for_hopper(const imx_attend_args *args, const imx_cuda_target *target)
{
    enum { ROWS_MOST = 32 }; /* sums of more want more registers than there are */
    return target->arch == 90 && args->dtype != IMBREX_F32 && args->cache == args->dtype &&
           args->head_dim != args->value_dim && args->queries * args->heads <= ROWS_MOST &&
           box_rows(args) > 0;
}

/* A slot is of 64 tokens' k, or v.  Two blocks an SM where both have slots enough: while one ends a
 * split the other attends to tokens. */
static void config_sm90(const imx_attend_args *args, const imx_cuda_target *target, int sms,
                        imx_cuda_config *config)
{
    enum { FOUR = 4, SLOTS_LEAST = 4, SLOTS_MOST = 12, HEADS = 4736 /* bytes, sm90_tensor.cuh */ };
    int all = args->queries * args->group, rows = all <= 8 ? 8 : imx_attend_rows(args);
    size_t dim = (size_t)args->head_dim, element = args->cache == IMBREX_E4M3 ? 1 : 2;
    size_t slot = 64 * dim * element, left = FOUR * 8 * dim * 4;
    size_t q = (size_t)rows * dim * 2, shared = 0;
    int beside = 2, slots = 0;
    for (;; beside--) {
        size_t room = (target->shared_bytes_most + BLOCK_BYTES) / (size_t)beside - BLOCK_BYTES;
        for (slots = SLOTS_MOST; slots >= 2; slots--) {
            shared = (size_t)slots * slot + left + (size_t)(slots / 2 + 1) * q + HEADS;
            if (shared <= room)
                break;
        }
        if (slots >= SLOTS_LEAST || beside == 1)
            break;
    }
    *config = (imx_cuda_config){
        .source = "kernels/attend/sm90.cu",
        .entry = "imx_attend",
        .blocks = sms,
        .cluster = 1,
        .threads = (FOUR + 2) * 32,
        .early = true,
        .shared_bytes = shared,
        .kept = { [BESIDE] = beside, [BOX_ROWS] = box_rows(args) },
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_DTYPE=%d -DIMX_CACHE=%d -DIMX_DIM=%d -DIMX_VALUES=%d -DIMX_THREADS=%d "
             "-DIMX_SLOTS=%d -DIMX_BESIDE=%d -DIMX_ROWS=%d -DIMX_BOX=%d -DIMX_SHARED_BYTES=%zu",
             args->dtype, args->cache, args->head_dim, args->value_dim, FOUR * 32, slots, beside,
             rows, box_rows(args), shared);
}

enum { MLA_SLOT_BLOCKS = 3 }; /* of 128 bytes of 64 tokens' rows: three slots are a tile */

/* sm90_mla.cuh: as many slots as there is room for.  Blocks take runs of splits where sequences are
 * many: 32 and more are faster by that, and 8 are not.  More rows leave no registers for it. */
static void config_sm90_mla(const imx_attend_args *args, const imx_cuda_target *target, int sms,
                            imx_cuda_config *config)
{
    enum { EIGHT = 8, FOUR = 4, SLOTS_MOST = 9, SLOT = MLA_SLOT_BLOCKS * 64 * 128, ROOM = 8 << 10 };
    enum { MANY = 16 /* sequences */ };
    int rows = args->queries * args->heads <= 16 ? 16 : 32;
    bool runs = rows == 16 && args->sequences >= MANY;
    size_t others = (size_t)rows * (size_t)args->head_dim * 2 + ROOM;
    size_t slots = (target->shared_bytes_most - others) / SLOT;
    slots = slots < SLOTS_MOST ? slots : SLOTS_MOST;
    *config = (imx_cuda_config){
        .source = "kernels/attend/sm90.cu",
        .entry = "imx_attend",
        .blocks = sms < IMX_ATTEND_BLOCKS ? sms : IMX_ATTEND_BLOCKS,
        .cluster = 1,
        .threads = (EIGHT + (runs ? FOUR : 1)) * 32,
        .early = true,
        .shared_bytes = slots * SLOT + others,
        .kept = { [BESIDE] = 1, [BOX_ROWS] = box_rows(args), [MLA_ROWS] = rows },
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_DTYPE=%d -DIMX_CACHE=%d -DIMX_DIM=%d -DIMX_VALUES=%d -DIMX_THREADS=%d "
             "-DIMX_SLOTS=%zu -DIMX_BESIDE=1 -DIMX_ROWS=%d -DIMX_BOX=%d -DIMX_RUNS=%d "
             "-DIMX_SHARED_BYTES=%zu",
             args->dtype, args->cache, args->head_dim, args->value_dim, EIGHT * 32, slots, rows,
             box_rows(args), runs, config->shared_bytes);
}

/* A page, or a sequence, is a plane: | tokens | with a column for each head, or head by head. */
static imx_tensor_map map_of(const imx_attend_args *args, const void *at, int rows)
{
    int64_t tokens = args->page ? args->page : args->context, dim = args->head_dim;
    int64_t element = args->cache == IMBREX_E4M3 ? 1 : 2;
    int64_t planes = args->page ? args->page_count : args->sequences;
    int64_t stride = args->cache_stride * element;
    bool direct = ((uintptr_t)at | (uintptr_t)stride) % 16 == 0 && planes > 0 && tokens > 0;
    return (imx_tensor_map){
        .address = direct ? at : NULL,
        .rows = args->heads_first ? args->kv_heads * tokens : tokens,
        .cols = args->heads_first ? dim : args->kv_heads * dim,
        .stride_bytes = (args->heads_first ? dim : args->kv_heads * dim) * element,
        .planes = planes,
        .plane_bytes = stride,
        .box_rows = rows,
        .box_cols = (int)(128 / element),
        .box_blocks = (int)(dim * element / 128),
        .dtype = args->cache,
        .swizzle_bytes = 128,
    };
}

/* Of MLA: rows of q of all queries. */
static imx_tensor_map map_of_q(const imx_attend_args *args, int rows)
{
    int64_t all = args->sequences * args->queries * args->heads,
            bytes = (int64_t)args->head_dim * 2;
    return (imx_tensor_map){
        .address = (uintptr_t)args->q % 16 == 0 && all > 0 ? args->q : NULL,
        .rows = all,
        .cols = args->head_dim,
        .stride_bytes = bytes,
        .planes = 1,
        .plane_bytes = all * bytes,
        .box_rows = rows,
        .box_cols = 64,
        .box_blocks = (int)(bytes / 128),
        .dtype = args->dtype,
        .swizzle_bytes = 128,
    };
}

/* ---- the row --------------------------------------------------------------------------------- */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_attend_args *args = largest;
    if (is_for_hopper(args, target)) {
        config_sm90(args, target, blocks, config);
        return;
    }
    if (is_mla_for_hopper(args, target)) {
        config_sm90_mla(args, target, blocks, config);
        return;
    }
    const form f = choose(args, target, blocks);
    *config = (imx_cuda_config){
        .source = "kernels/attend/sm80.cu",
        .entry = "imx_attend",
        .blocks = blocks,
        .cluster = 1,
        .threads = f.threads,
        .early = target->arch >= 90,
        .shared_bytes = f.stages ? (size_t)f.stages * f.stage_bytes + f.other_bytes : 0,
        .kept = { [BESIDE] = f.beside },
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_DTYPE=%d -DIMX_CACHE=%d -DIMX_DIM=%d -DIMX_VALUES=%d -DIMX_THREADS=%d "
             "-DIMX_STAGES=%d -DIMX_BESIDE=%d -DIMX_ROWS=%d",
             args->dtype, args->cache, args->head_dim, args->value_dim, f.threads, f.stages,
             f.beside, f.rows);
}

/* A block a split of a head of the cache: blocks do not wait for each other, but those of MLA on
 * Hopper, which meet at their end for a time. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_attend_args *args = untyped;
    int64_t wanted = imx_attend_counts(args) * args->splits;
    int64_t most = (int64_t)config->blocks * config->kept[BESIDE];
    launch->blocks = (int)(wanted < most ? wanted : most);
    if (config->kept[MLA_ROWS]) {
        enum { WHOLE = 64 };
        launch->map_count = 2;
        launch->maps[0] = map_of(args, args->k, config->kept[BOX_ROWS]);
        launch->maps[0].box_blocks = config->kept[BOX_ROWS] == WHOLE ? MLA_SLOT_BLOCKS : 1;
        launch->maps[1] = map_of_q(args, config->kept[MLA_ROWS]);
    } else if (config->kept[BOX_ROWS]) {
        launch->map_count = 2;
        launch->maps[0] = map_of(args, args->k, config->kept[BOX_ROWS]);
        launch->maps[1] = map_of(args, args->v, config->kept[BOX_ROWS]);
    }
}

const imx_kernel imx_kernel_attend = {
    .name = "attend",
    .cpu = imx_attend_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
