/* cpu.c - the route kernel on CPU ranks, all of it by block 0. */
#include <string.h>

#include "args.h"
#include "imbrex_device.h"

void imx_route_cpu(const void *args, const imbrexd_block *block);

static size_t packed_bytes(const imx_route_args *args)
{
    return (size_t)args->tokens * (size_t)imx_route_words(args->top_k, args->scales) *
           sizeof *args->packed;
}

static void pack(const imx_route_args *args)
{
    const float one = 1;
    int64_t top_k = args->top_k, words = imx_route_words(args->top_k, args->scales);
    imbrexd_check_write(args->packed, packed_bytes(args), 0, 1);
    for (int64_t i = 0; i < args->tokens * top_k; i++) {
        int32_t *to = args->packed + i / top_k * words + i % top_k;
        to[0] = args->ids[i];
        memcpy(&to[top_k], args->weights_in ? &args->weights_in[i] : &one, sizeof one);
    }
    for (int64_t token = 0; token < args->tokens && args->scales; token++)
        memcpy(args->packed + token * words + 2 * top_k, args->scales_in + token * args->scales,
               (size_t)args->scales * sizeof one);
}

/* Counts in expert_rows, and what is the pair's own. */
static void count_pairs(const imx_route_args *args)
{
    int64_t top_k = args->top_k, words = imx_route_words(args->top_k, args->scales);
    imbrexd_check_read(args->packed, packed_bytes(args), 0, 1);
    memset(args->expert_rows, 0, (size_t)args->here * sizeof *args->expert_rows);
    for (int64_t i = 0; i < args->tokens * top_k; i++) {
        const int32_t *at = args->packed + i / top_k * words + i % top_k;
        int32_t id = at[0];
        args->pair_expert[i] = id >= 0 && id < args->experts ? id : -1;
        memcpy(&args->weights[i], &at[top_k], sizeof *args->weights);
        if (id >= args->first && id - args->first < args->here)
            args->expert_rows[id - args->first]++;
    }
}

static int32_t cut(const imx_route_args *args, int64_t row)
{
    return row < args->rows ? (int32_t)row : args->rows;
}

static void fail(const imx_route_args *args, const imbrexd_block *block, int32_t expert,
                 int64_t rows, int64_t most)
{
    imbrexd_wait_point point = { .plan = args->plan, .rank = block->watch->rank, .index = expert };
    if (rows > most)
        imbrexd_fault_raise(block->watch, IMBREXD_FAULT_ROWS, point, (uint64_t)rows,
                            (uint64_t)most);
}

/* From counts to where experts begin; expert_rows becomes the next free row of each. */
static void place_experts(const imx_route_args *args, const imbrexd_block *block)
{
    int64_t row = 0;
    for (int32_t e = 0; e < args->here; e++) {
        int64_t next = row + args->expert_rows[e];
        if (args->capacity) {
            fail(args, block, args->first + e, args->expert_rows[e], args->capacity);
            next = row + args->capacity;
        } else if (e + 1 < args->here) {
            next = (next + args->align - 1) / args->align * args->align;
        }
        args->expert_begin[e] = args->expert_rows[e] = cut(args, row);
        row = next;
    }
    args->expert_begin[args->here] = cut(args, row);
    fail(args, block, -1, row, args->rows);
}

/* Behind the last row that an expert may have. */
static int32_t limit_of(const imx_route_args *args, int32_t e)
{
    return args->capacity ? args->expert_begin[e] + args->capacity : args->rows;
}

static void place_pairs(const imx_route_args *args)
{
    for (int32_t row = 0; row < args->rows; row++)
        args->row_pair[row] = -1;
    for (int32_t i = 0; i < args->tokens * args->top_k; i++) {
        int32_t id = args->pair_expert[i];
        args->pair_row[i] = -1;
        if (id < args->first || id - args->first >= args->here)
            continue;
        int32_t *next = &args->expert_rows[id - args->first];
        if (*next < limit_of(args, id - args->first)) {
            args->row_pair[*next] = i;
            args->pair_row[i] = (*next)++;
        }
    }
    for (int32_t e = 0; e < args->here; e++)
        args->expert_rows[e] -= args->expert_begin[e];
}

void imx_route_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_route_args *args = untyped;
    if (block->index)
        return;
    if (args->step == IMX_ROUTE_PACKS) {
        pack(args);
        return;
    }
    count_pairs(args);
    place_experts(args, block);
    place_pairs(args);
}
