/* cpu.c - the dispatch_ll kernel on CPU ranks, all of it by block 0: tokens into local slots, lines
 * to those who want them, lines into local slots, and the rest as dispatch and route do it. */
#include <stdbool.h>

#include "args.h"
#include "kernels/ll/cpu_lines.h"

void imx_dispatch_ll_cpu(const void *args, const imbrexd_block *block);
size_t imx_dispatch_ll_cpu_scratch(const void *args);
void imx_dispatch_cpu(const void *args, const imbrexd_block *block);
void imx_route_cpu(const void *args, const imbrexd_block *block);

typedef struct dispatch_ll {
    const imx_dispatch_ll_args *args;
    const imbrexd_block *block; /* as if it were alone */
    imx_dispatch_args slots;    /* local ones */
    char *room;                 /* for a rank's words, or a token as it travels */
    uint64_t epoch;
} dispatch_ll;

size_t imx_dispatch_ll_cpu_scratch(const void *untyped)
{
    const imx_dispatch_args *args = &((const imx_dispatch_ll_args *)untyped)->dispatch;
    int64_t words = imx_dispatch_ll_words(args), row = imx_dispatch_ll_row(args);
    return (size_t)(words < row ? row : words);
}

static int64_t number_of(const dispatch_ll *p, int rank, int64_t token)
{
    return rank * (int64_t)p->slots.most + token;
}

/* Whether `rank` has an expert of the token, whose ids are in its slot. */
static bool is_for(const dispatch_ll *p, int64_t number, int rank)
{
    const int32_t *ids = imx_dispatch_packed(&p->slots, 0, number);
    for (int place = 0; place < p->slots.top_k; place++) {
        if (imx_dispatch_target(&p->args->dispatch, ids[place]) == rank)
            return true;
    }
    return false;
}

/* ---- out of slots, into slots ---------------------------------------------------------------- */

/* Between the room and the slots of a rank: ids, or the weights behind them. */
static void move_words(const dispatch_ll *p, int rank, bool weights, bool out)
{
    size_t bytes = (size_t)p->slots.top_k * sizeof(int32_t);
    for (int64_t t = 0; t < p->slots.most; t++) {
        int32_t *slot = imx_dispatch_packed(&p->slots, 0, number_of(p, rank, t)) +
                        (weights ? p->slots.top_k : 0);
        char *at = p->room + (size_t)t * bytes;
        (void)(out ? imbrexd_check_read(slot, bytes, 0, 1)
                   : imbrexd_check_write(slot, bytes, 0, 1));
        memcpy(out ? (void *)at : (void *)slot, out ? (void *)slot : (void *)at, bytes);
    }
}

static void move_token(const dispatch_ll *p, int64_t number, bool out)
{
    size_t bytes = (size_t)p->slots.row_bytes;
    size_t scales = (size_t)imx_dispatch_blocks(&p->slots) * sizeof(float);
    char *row = imx_dispatch_row(&p->slots, 0, number);
    float *scale = imx_dispatch_scales(&p->slots, 0, number);
    (void)(out ? imbrexd_check_read(row, bytes, 0, 1) : imbrexd_check_write(row, bytes, 0, 1));
    memcpy(out ? p->room : row, out ? row : p->room, bytes);
    if (!scales)
        return;
    (void)(out ? imbrexd_check_read(scale, scales, 0, 1)
               : imbrexd_check_write(scale, scales, 0, 1));
    memcpy(out ? (void *)(p->room + bytes) : (void *)scale,
           out ? (void *)scale : (void *)(p->room + bytes), scales);
}

/* ---- the wire -------------------------------------------------------------------------------- */

static void send_to(const dispatch_ll *p, int to)
{
    const imx_dispatch_args *slots = &p->slots;
    imx_ll_unit *part = imx_dispatch_ll_part(p->args, to, slots->rank, p->epoch);
    int64_t words = imx_dispatch_ll_words(slots);
    move_words(p, slots->rank, false, true);
    imx_ll_send_lines(part, p->room, words, p->epoch);
    move_words(p, slots->rank, true, true);
    imx_ll_send_lines(part + imx_dispatch_ll_weights(slots), p->room, words, p->epoch);
    for (int64_t t = 0; t < slots->tokens; t++) {
        int64_t number = number_of(p, slots->rank, t);
        if (!is_for(p, number, to))
            continue;
        move_token(p, number, true);
        imx_ll_send_lines(part + imx_dispatch_ll_token(slots, t), p->room,
                          imx_dispatch_ll_row(slots), p->epoch);
    }
}

/* Lines into the room; 0: give up. */
static int take(const dispatch_ll *p, int from, int64_t unit, int64_t bytes)
{
    imbrexd_wait_point point = {
        .plan = p->args->plan, .what = IMX_POINT_CHUNK, .rank = from, .index = -1
    };
    return imx_ll_take_lines(imx_dispatch_ll_part(p->args, p->slots.rank, from, p->epoch) + unit,
                             p->room, bytes, p->epoch, p->block->watch, point);
}

static int take_from(const dispatch_ll *p, int from)
{
    const imx_dispatch_args *slots = &p->slots;
    int64_t words = imx_dispatch_ll_words(slots);
    if (!take(p, from, 0, words))
        return 0;
    move_words(p, from, false, false);
    if (!take(p, from, imx_dispatch_ll_weights(slots), words))
        return 0;
    move_words(p, from, true, false);
    for (int64_t t = 0; t < slots->most; t++) {
        int64_t number = number_of(p, from, t);
        if (!is_for(p, number, slots->rank))
            continue;
        if (!take(p, from, imx_dispatch_ll_token(slots, t), imx_dispatch_ll_row(slots)))
            return 0;
        move_token(p, number, false);
    }
    return 1;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

void imx_dispatch_ll_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_dispatch_ll_args *args = untyped;
    imbrexd_block alone = *block;
    if (block->index)
        return;
    alone.count = 1;
    dispatch_ll p = { .args = args,
                      .block = &alone,
                      .slots = args->dispatch,
                      .room = block->scratch,
                      .epoch = ++*args->uses };
    int rank = p.slots.rank, ranks = p.slots.ranks;
    p.slots.stores = 0;
    p.slots.step = IMX_DISPATCH_SENDS;
    imx_dispatch_cpu(&p.slots, &alone);
    for (int i = 1; i < ranks; i++)
        send_to(&p, (rank + i) % ranks);
    for (int i = 1; i < ranks; i++) {
        if (!take_from(&p, (rank + ranks - i) % ranks))
            return;
    }
    imx_route_args route = args->route;
    route.packed = (int32_t *)p.slots.data[0];
    imx_route_cpu(&route, &alone);
    p.slots.step = IMX_DISPATCH_TAKES;
    imx_dispatch_cpu(&p.slots, &alone);
}
