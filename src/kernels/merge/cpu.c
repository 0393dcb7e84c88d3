/* cpu.c - the merge kernel on CPU ranks: blocks take rows, or units of rows, in turn; what travels
 * with flags is block 0's. */
#include <math.h>

#include "kernels/dtype.h"
#include "weigh.h"

void imx_merge_cpu(const void *args, const imbrexd_block *block);
size_t imx_merge_cpu_scratch(const void *args);

enum { STRIP = 1024 }; /* numbers of a head at a time: value_dim's most */

typedef struct merge {
    const imx_merge_args *args;
    const imbrexd_block *block;
    int element;
    uint64_t epoch;
} merge;

static int first_head(const merge *p, int owner)
{
    return imx_merge_head(p->args->replicate, p->args->heads, p->args->ranks, owner);
}

static int head_count(const merge *p, int owner)
{
    return imx_merge_heads(p->args->replicate, p->args->heads, p->args->ranks, owner);
}

/* ---- states ---------------------------------------------------------------------------------- */

typedef struct state {
    const void *o;
    float lse;
} state;

/* This rank's own, of all its heads. */
static state own_state(const merge *p, int64_t row, int64_t head)
{
    const imx_merge_args *x = p->args;
    int64_t at = row * x->own_heads + head;
    return (state){ (const char *)x->own_o + at * x->value_dim * p->element, x->own_lse[at] };
}

/* Number `at` of a slot of so many. */
static state slot_state(const merge *p, const char *slot, int64_t states, int64_t at)
{
    const imx_merge_args *x = p->args;
    const float *lse = (const void *)(slot + imx_merge_lse_at(states, x->value_dim, p->element));
    return (state){ slot + at * x->value_dim * p->element, lse[at] };
}

/* Head number `head` of `to` in that row, of these sources. */
static void merge_state(const merge *p, const state *from, int64_t row, int head)
{
    const imx_merge_args *x = p->args;
    float lse[IMX_MERGE_SOURCES], weight[IMX_MERGE_SOURCES], most, sum[STRIP], room[STRIP];
    const float *sink = x->sinks ? &x->sinks[x->first + head] : NULL;
    int64_t at = row * x->count + head;
    for (int i = 0; i < x->sources; i++)
        lse[i] = from[i].lse;
    float all = imx_merge_weigh(x->natural, lse, x->sources, sink, weight, &most);
    memset(sum, 0, sizeof sum);
    for (int i = 0; i < x->sources; i++) {
        if (weight[i] == 0)
            continue;
        const float *o = imx_dtype_floats(x->dtype, from[i].o, room, x->value_dim);
        for (int j = 0; j < x->value_dim; j++)
            sum[j] += weight[i] * o[j];
    }
    for (int j = 0; j < x->value_dim; j++)
        sum[j] *= imx_merge_share(all);
    imx_dtype_narrow(x->dtype_to, sum,
                     (char *)x->to + at * x->value_dim * imx_dtype_size(x->dtype_to), x->value_dim);
    if (x->lse_to)
        x->lse_to[at] = imx_merge_lse(x->natural, all, most);
}

/* All heads of a row, from slots of this rank's heads. */
static void merge_row(const merge *p, const char *slots, int64_t row)
{
    const imx_merge_args *x = p->args;
    int64_t states = x->rows * x->count;
    for (int head = 0; head < x->count; head++) {
        state from[IMX_MERGE_SOURCES];
        for (int i = 0; i < x->sources; i++)
            from[i] = i == x->own
                          ? own_state(p, row, x->own_first + head)
                          : slot_state(p, slots + i * x->slot_bytes, states, row * x->count + head);
        merge_state(p, from, row, head);
    }
}

static void merge_rows(const merge *p)
{
    const imx_merge_args *x = p->args;
    size_t states = (size_t)(x->rows * x->count);
    size_t lse_at = (size_t)imx_merge_lse_at((int64_t)states, x->value_dim, p->element);
    size_t to_bytes = states * (size_t)(x->value_dim * imx_dtype_size(x->dtype_to));
    if (p->block->index == 0) {
        imbrexd_check_write(x->to, to_bytes, 0, 1);
        if (x->lse_to)
            imbrexd_check_write(x->lse_to, states * sizeof(float), 0, 1);
    }
    if (p->block->index == 0 && x->slots) {
        for (int i = 0; i < x->sources; i++) {
            char *slot = x->slots + i * x->slot_bytes;
            if (i != x->own)
                imbrexd_check_read(slot, lse_at + states * sizeof(float), 0, 1);
        }
    }
    for (int64_t row = p->block->index; row < x->rows; row += p->block->count)
        merge_row(p, x->slots, row);
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* The owner's heads of a row into its slot. */
static void pack_row(const merge *p, char *slot, int owner, int64_t row)
{
    const imx_merge_args *x = p->args;
    int64_t count = head_count(p, owner), states = x->rows * count;
    const int64_t each = (int64_t)x->value_dim * p->element, bytes = count * each;
    char *o = slot + row * bytes;
    float *lse = (void *)(slot + imx_merge_lse_at(states, x->value_dim, p->element));
    for (int64_t head = 0; head < count; head++) {
        state from = own_state(p, row, first_head(p, owner) + head);
        if (imx_merge_counts(from.lse)) /* else nobody reads it either */
            memcpy(o + head * each, from.o, (size_t)each);
        lse[row * count + head] = from.lse;
    }
}

static void pack_rows(const merge *p)
{
    const imx_merge_args *x = p->args;
    for (int owner = 0; owner < (x->replicate ? 1 : x->ranks); owner++) {
        char *slot = x->slots + owner * x->slot_bytes;
        int64_t states = x->rows * head_count(p, owner);
        if (owner == x->rank && !x->replicate)
            continue;
        if (p->block->index == 0) /* what counts as nothing, too: it travels as it is */
            imbrexd_check_write(slot, (size_t)imx_merge_bytes(states, x->value_dim, p->element), 0,
                                1);
        for (int64_t row = p->block->index; row < x->rows; row += p->block->count)
            pack_row(p, slot, owner, row);
    }
}

/* ---- stores ---------------------------------------------------------------------------------- */

static int64_t unit_end(const merge *p, int64_t unit)
{
    int64_t end = (unit + 1) * p->args->unit_rows;
    return end < p->args->rows ? end : p->args->rows;
}

static char *slot_at(const merge *p, int holder, int of)
{
    return imx_team_data(&p->args->team, holder) + of * p->args->slot_bytes;
}

static int wait(const merge *p, const uint64_t *signal, uint64_t value, int what, int rank,
                int64_t index)
{
    imbrexd_wait_point point = {
        .plan = p->args->plan, .what = what, .rank = rank, .index = (int32_t)index
    };
    return imbrexd_signal_wait(p->block->watch, signal, value, point);
}

/* What a unit of an owner's slot has, for the checker. */
static void tell_unit(const merge *p, char *slot, int owner, int64_t unit, int writes)
{
    int64_t first = unit * p->args->unit_rows, rows = unit_end(p, unit) - first;
    int64_t count = head_count(p, owner), each = p->args->value_dim * (int64_t)p->element;
    char *lse = slot + imx_merge_lse_at(p->args->rows * count, p->args->value_dim, p->element) +
                first * count * (int64_t)sizeof(float);
    char *o = slot + first * count * each;
    size_t o_bytes = (size_t)(rows * count * each);
    size_t lse_bytes = (size_t)(rows * count) * sizeof(float);
    (void)(writes ? imbrexd_check_write(o, o_bytes, 0, 1) : imbrexd_check_read(o, o_bytes, 0, 1));
    (void)(writes ? imbrexd_check_write(lse, lse_bytes, 0, 1)
                  : imbrexd_check_read(lse, lse_bytes, 0, 1));
}

static void store_unit(const merge *p, int64_t unit)
{
    const imx_merge_args *x = p->args;
    for (int i = 1; i < x->ranks; i++) {
        int to = (x->rank + i) % x->ranks;
        char *slot = slot_at(p, to, x->rank);
        if (!head_count(p, to))
            continue;
        tell_unit(p, slot, to, unit, 1);
        for (int64_t row = unit * x->unit_rows; row < unit_end(p, unit); row++)
            pack_row(p, slot, to, row);
        imbrexd_signal_post(imx_team_signal(&x->team, to, x->rank * x->units + unit), p->epoch);
    }
}

/* 0: give up. */
static int merge_unit(const merge *p, int64_t unit)
{
    const imx_merge_args *x = p->args;
    for (int i = 1; i < x->ranks && x->count; i++) {
        int from = (x->rank + x->ranks - i) % x->ranks;
        const uint64_t *signal = imx_team_signal(&x->team, x->rank, from * x->units + unit);
        if (!wait(p, signal, p->epoch, IMX_POINT_PART, from, unit))
            return 0;
        tell_unit(p, slot_at(p, x->rank, from), x->rank, unit, 0);
    }
    for (int64_t row = unit * x->unit_rows; row < unit_end(p, unit); row++)
        merge_row(p, slot_at(p, x->rank, 0), row);
    return 1;
}

static void by_stores(const merge *p)
{
    const imx_merge_args *x = p->args;
    for (int i = 1; i < x->ranks; i++) {
        int from = (x->rank + i) % x->ranks;
        if (!wait(p, imx_team_credit(&x->team, x->rank, from), p->epoch - 1, IMX_POINT_CREDIT, from,
                  -1))
            return;
    }
    for (int64_t u = p->block->index; u * x->unit_rows < x->rows; u += p->block->count)
        store_unit(p, u);
    for (int64_t u = p->block->index; u * x->unit_rows < x->rows; u += p->block->count) {
        if (!merge_unit(p, u))
            return;
    }
    imx_team_end(&x->team, x->epoch, p->epoch, x->ended, p->block->count);
}

/* ---- words with flags ------------------------------------------------------------------------ */

enum { HALF = 4 }; /* bytes of data in a word */

static int64_t state_words(const merge *p)
{
    return 2 * imx_merge_units(p->args->value_dim, p->element);
}

/* relaxed: data and flag are one word. */
static void send_word(const merge *p, uint64_t *word, uint32_t data)
{
    imbrexd_store_relaxed(word, p->epoch << 32 | data);
}

static int take_word(const merge *p, const uint64_t *word, int from, uint32_t *data)
{
    imbrexd_wait_point point = {
        .plan = p->args->plan, .what = IMX_POINT_PART, .rank = from, .index = -1
    };
    return imbrexd_ll_wait(p->block->watch, word, (uint32_t)p->epoch, point, data);
}

static void send_state(const merge *p, uint64_t *word, state from)
{
    int64_t bytes = (int64_t)p->args->value_dim * p->element;
    uint32_t data;
    memcpy(&data, &from.lse, sizeof data);
    send_word(p, &word[0], data);
    send_word(p, &word[1], 0);
    for (int64_t i = 0; i + 2 < state_words(p); i++) {
        int64_t left = bytes - i * HALF;
        data = 0;
        if (left > 0 && imx_merge_counts(from.lse))
            memcpy(&data, (const char *)from.o + i * HALF, left < HALF ? (size_t)left : HALF);
        send_word(p, &word[i + 2], data);
    }
}

/* o: room for it. */
static int take_state(const merge *p, const uint64_t *word, int from, char *o, state *to)
{
    uint32_t data;
    for (int64_t i = 0; i < state_words(p); i++) {
        if (!take_word(p, &word[i], from, &data))
            return 0;
        if (i == 0)
            memcpy(&to->lse, &data, sizeof data);
        else if (i > 1)
            memcpy(o + (i - 2) * HALF, &data, HALF);
    }
    to->o = o;
    return 1;
}

static void send_states(const merge *p, int to)
{
    const imx_merge_args *x = p->args;
    uint64_t *word = &imx_merge_part(x, to, x->rank, p->epoch)->first;
    int count = head_count(p, to);
    if (!count)
        send_word(p, word, 0);
    for (int64_t row = 0; row < x->rows; row++)
        for (int head = 0; head < count; head++, word += state_words(p))
            send_state(p, word, own_state(p, row, first_head(p, to) + head));
}

static int take_nothing(const merge *p)
{
    const imx_merge_args *x = p->args;
    uint32_t data;
    for (int from = 0; from < x->ranks; from++)
        if (from != x->rank &&
            !take_word(p, &imx_merge_part(x, x->rank, from, p->epoch)->first, from, &data))
            return 0;
    return 1;
}

/* Of an o as it is taken out of its words. */
static int64_t o_bytes(const imx_merge_args *args)
{
    int element = (int)imx_dtype_size(args->dtype);
    return (imx_merge_units(args->value_dim, element) - 1) * 2 * HALF;
}

size_t imx_merge_cpu_scratch(const void *untyped)
{
    const imx_merge_args *args = untyped;
    return args->how == IMX_MERGE_LL ? (size_t)(args->ranks * o_bytes(args)) : 0;
}

static void by_words(const merge *p)
{
    const imx_merge_args *x = p->args;
    char *room = p->block->scratch;
    for (int i = 1; i < x->ranks; i++)
        send_states(p, (x->rank + i) % x->ranks);
    if (!x->count && !take_nothing(p))
        return;
    for (int64_t at = 0; at < x->rows * x->count; at++) {
        state from[IMX_TEAM_MOST];
        int64_t row = at / x->count;
        int head = (int)(at % x->count);
        for (int r = 0; r < x->ranks; r++) {
            const uint64_t *word =
                &imx_merge_part(x, x->rank, r, p->epoch)->first + at * state_words(p);
            if (r == x->rank)
                from[r] = own_state(p, row, x->own_first + head);
            else if (!take_state(p, word, r, room + r * o_bytes(x), &from[r]))
                return;
        }
        merge_state(p, from, row, head);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

void imx_merge_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_merge_args *args = untyped;
    merge p = { .args = args, .block = block, .element = (int)imx_dtype_size(args->dtype) };
    switch (args->how) {
    case IMX_MERGE_PACKS:
        pack_rows(&p);
        return;
    case IMX_MERGE_MERGES:
        merge_rows(&p);
        return;
    case IMX_MERGE_STORES:
        p.epoch = *args->epoch + 1;
        by_stores(&p);
        return;
    default:
        if (block->index)
            return;
        p.epoch = ++*args->uses;
        by_words(&p);
    }
}
