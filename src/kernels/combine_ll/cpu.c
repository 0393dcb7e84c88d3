/* cpu.c - the combine_ll kernel on CPU ranks, all of it by block 0: sums of places into local
 * parts, lines to their owners, lines into local slots, and the sum of those. */
#include <stdbool.h>

#include "args.h"
#include "kernels/dtype.h"
#include "kernels/ll/cpu_lines.h"

void imx_combine_ll_cpu(const void *args, const imbrexd_block *block);
void imx_combine_cpu(const void *args, const imbrexd_block *block);

typedef struct combine_ll {
    const imx_combine_ll_args *args;
    const imbrexd_block *block;
    int64_t row_bytes;
    char *parts, *slots;
    uint64_t epoch;
} combine_ll;

/* One step of the combine kernel, by this block alone. */
static void run_step(const combine_ll *p, imx_combine_args *step)
{
    imbrexd_block alone = *p->block;
    alone.index = 0;
    alone.count = 1;
    imx_combine_cpu(step, &alone);
}

static void add_places(const combine_ll *p)
{
    imx_combine_args step = p->args->combine;
    step.step = IMX_COMBINE_PLACES;
    step.stores = 0;
    step.to = p->parts;
    run_step(p, &step);
}

/* A line that says that this rank has come, and the owner's tokens that have a row here. */
static void send_to(const combine_ll *p, int owner)
{
    const imx_combine_args *c = &p->args->combine;
    int64_t first = imx_team_row(c->tokens, c->ranks, owner);
    int64_t end = imx_team_row(c->tokens, c->ranks, owner + 1);
    imx_ll_send_lines(imx_combine_ll_part(p->args, owner, c->own, p->epoch), NULL, 0, p->epoch);
    for (int64_t t = first; t < end; t++) {
        const char *part = p->parts + t * p->row_bytes;
        if (!imx_combine_is_on(c, t, c->own))
            continue;
        imbrexd_check_read(part, (size_t)p->row_bytes, 0, 1);
        imx_ll_send_lines(
            imx_combine_ll_token(p->args, owner, c->own, p->epoch, t - first, p->row_bytes), part,
            p->row_bytes, p->epoch);
    }
}

/* 0: give up. */
static int take_from(const combine_ll *p, int from)
{
    const imx_combine_args *c = &p->args->combine;
    const imbrexd_watch *watch = p->block->watch;
    imbrexd_wait_point point = {
        .plan = p->args->plan, .what = IMX_POINT_PART, .rank = from, .index = -1
    };
    char *slot = p->slots + from * p->args->most * p->row_bytes;
    if (!imx_ll_wait_lines(imx_combine_ll_part(p->args, c->own, from, p->epoch), 0, p->epoch, watch,
                           point))
        return 0;
    for (int64_t t = 0; t < p->args->own; t++) {
        const imx_ll_unit *lines =
            imx_combine_ll_token(p->args, c->own, from, p->epoch, t, p->row_bytes);
        if (!imx_combine_is_on(c, c->first + t, from))
            continue;
        imbrexd_check_write(slot + t * p->row_bytes, (size_t)p->row_bytes, 0, 1);
        if (!imx_ll_take_lines(lines, slot + t * p->row_bytes, p->row_bytes, p->epoch, watch,
                               point))
            return 0;
    }
    return 1;
}

static void add_ranks(const combine_ll *p)
{
    imx_combine_args step = p->args->combine;
    step.step = IMX_COMBINE_RANKS;
    step.tokens = p->args->own;
    step.begin = 0;
    step.end = step.ranks;
    step.slots = p->slots;
    step.slot_bytes = p->args->most * p->row_bytes;
    step.own_part = p->parts + step.first * p->row_bytes;
    run_step(p, &step);
}

void imx_combine_ll_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_combine_ll_args *args = untyped;
    const imx_combine_args *c = &args->combine;
    if (block->index)
        return;
    combine_ll p = { .args = args, .block = block, .parts = args->local, .epoch = ++*args->uses };
    p.row_bytes = c->n * imx_dtype_size(c->dtype);
    p.slots = p.parts + c->tokens * p.row_bytes;
    add_places(&p);
    for (int i = 1; i < c->ranks; i++)
        send_to(&p, (c->own + i) % c->ranks);
    for (int i = 1; i < c->ranks; i++) {
        if (!take_from(&p, (c->own + c->ranks - i) % c->ranks))
            return;
    }
    add_ranks(&p);
}
