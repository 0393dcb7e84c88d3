/* test_route.c - the route kernel's CPU form against a plain loop: random ids, skewed ones, all to
 * one expert, all to none, any number; experts here, alignments and capacities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "imbrex_device.h"
#include "kernels/kernels.h"
#include "kernels/route/args.h"

enum { TOKENS = 300, TOP = 8, PAIRS = TOKENS * TOP, EXPERTS = 64, ALIGN = 128 };
enum { ROWS = PAIRS + EXPERTS * ALIGN, GUARD = 16 };

/* What the kernel writes, one behind the other, with words between that it must not touch. */
typedef struct outputs {
    int32_t before[GUARD];
    int32_t expert_begin[EXPERTS + 1 + GUARD], expert_rows[EXPERTS + GUARD];
    int32_t row_pair[ROWS + GUARD], pair_row[PAIRS + GUARD], pair_expert[PAIRS + GUARD];
    float weights[PAIRS + GUARD];
} outputs;

typedef struct route_case {
    imx_route_args args;
    int32_t ids[PAIRS];
    float weights[PAIRS];
    int32_t packed[2 * PAIRS];
    outputs have, want;
    imbrexd_fault fault;
    uint64_t abort;
} route_case;

static void run_kernel(route_case *c, int step)
{
    uint64_t *abort[] = { &c->abort };
    imbrexd_watch watch = { .abort = abort, .fault = &c->fault, .size = 1 };
    c->args.step = step;
    for (int i = 0; i < 3; i++) {
        imbrexd_block block = { .index = i, .count = 3, .watch = &watch };
        imx_kernel_route.cpu(&c->args, &block);
    }
}

/* Row by row: what the header of imbrex_moe.h says, and no more.  Returns how many there are. */
static int64_t place(const route_case *c, outputs *o)
{
    const imx_route_args *a = &c->args;
    int64_t row = 0, pairs = a->tokens * a->top_k;
    for (int32_t i = 0; i < a->rows; i++)
        o->row_pair[i] = -1;
    for (int64_t i = 0; i < pairs; i++) {
        o->pair_row[i] = -1;
        o->pair_expert[i] = c->ids[i] < 0 || c->ids[i] >= a->experts ? -1 : c->ids[i];
        o->weights[i] = a->weights_in ? c->weights[i] : 1;
    }
    for (int32_t e = 0; e < a->here; e++) {
        int64_t end = a->capacity ? (int64_t)(e + 1) * a->capacity : a->rows;
        row = a->capacity ? (int64_t)e * a->capacity : row;
        while (!a->capacity && row % a->align)
            row++;
        o->expert_begin[e] = (int32_t)(row < a->rows ? row : a->rows);
        o->expert_rows[e] = 0;
        for (int64_t i = 0; i < pairs; i++) {
            if (c->ids[i] != a->first + e)
                continue;
            if (row < end) {
                o->row_pair[row] = (int32_t)i;
                o->pair_row[i] = (int32_t)row;
                o->expert_rows[e]++;
            }
            row++;
        }
    }
    o->expert_begin[a->here] = (int32_t)(row < a->rows && !a->capacity ? row : a->rows);
    return row;
}

static int64_t pairs_of(const route_case *c, int32_t expert)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < (int64_t)c->args.tokens * c->args.top_k; i++)
        pairs += c->ids[i] == expert;
    return pairs;
}

static int64_t busiest(const route_case *c)
{
    int64_t most = 0;
    for (int32_t e = c->args.first; e < c->args.first + c->args.here; e++)
        most = pairs_of(c, e) > most ? pairs_of(c, e) : most;
    return most;
}

/* rows: what all experts together need.  With a capacity the first that has more fails. */
static void check_fault(const route_case *c, int64_t rows)
{
    const imx_route_args *a = &c->args;
    int64_t most = a->capacity ? a->capacity : a->rows;
    int32_t expert = a->capacity ? a->first : -1;
    while (a->capacity && expert < a->first + a->here && pairs_of(c, expert) <= most)
        expert++;
    if (a->capacity)
        rows = expert < a->first + a->here ? pairs_of(c, expert) : 0;
    assert_int_equal(c->fault.kind, rows > most ? IMBREXD_FAULT_ROWS : 0);
    assert_int_equal(c->abort, rows > most ? 1 : 0);
    if (rows <= most)
        return;
    assert_int_equal(c->fault.have, rows);
    assert_int_equal(c->fault.want, most);
    assert_int_equal(c->fault.point.plan, 3);
    assert_int_equal(c->fault.point.index, expert);
}

static void check_case(route_case *c)
{
    memset(&c->have, 0x5a, sizeof c->have);
    memset(&c->want, 0x5a, sizeof c->want);
    c->abort = 0;
    c->fault = (imbrexd_fault){ 0 };
    imx_route_args *a = &c->args;
    a->plan = 3;
    a->ids = c->ids;
    a->packed = c->packed;
    a->expert_begin = c->have.expert_begin;
    a->expert_rows = c->have.expert_rows;
    a->row_pair = c->have.row_pair;
    a->pair_row = c->have.pair_row;
    a->pair_expert = c->have.pair_expert;
    a->weights = c->have.weights;
    run_kernel(c, IMX_ROUTE_PACKS);
    run_kernel(c, IMX_ROUTE_ROUTES);
    int64_t rows = place(c, &c->want);
    assert_memory_equal(&c->have, &c->want, sizeof c->have);
    check_fault(c, rows);
}

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

enum { EVEN, SKEWED, TO_ONE, TO_NONE, ANY_NUMBER, TWICE, KINDS };

static int32_t id_of(int kind, int32_t pair, int32_t experts, uint32_t *state)
{
    uint32_t random = next(state);
    switch (kind) {
    case EVEN:
        return (int32_t)(random % (uint32_t)experts);
    case SKEWED: /* half of them to the first, a quarter to the next */
        for (int32_t e = 0; e < experts; e++)
            if (next(state) % 2)
                return e;
        return 0;
    case TO_ONE:
        return experts / 2;
    case TO_NONE:
        return -1;
    case ANY_NUMBER:
        return random % 3 ? (int32_t)(random << 8) : (int32_t)(random % 80) - 8;
    default:
        return (int32_t)((uint32_t)(pair / 2 * 7) % (uint32_t)experts);
    }
}

static void as_a_plain_loop(void **state)
{
    (void)state;
    static const struct {
        int32_t tokens, top_k, experts, first, here, align;
        int each; /* expert has a capacity */
    } shapes[] = {
        { 300, 8, 64, 0, 64, 16, 0 }, { 300, 8, 64, 16, 16, 128, 0 }, { 33, 2, 8, 5, 3, 1, 0 },
        { 1, 1, 1, 0, 1, 512, 0 },    { 40, 8, 3, 1, 0, 16, 0 },      { 0, 4, 8, 0, 8, 16, 0 },
        { 37, 3, 60, 45, 15, 4, 0 },  { 30, 8, 64, 8, 12, 1, 1 },     { 40, 8, 3, 1, 0, 16, 1 },
        { 9, 2, 5, 2, 3, 1, 1 },
    };
    route_case *c = malloc(sizeof *c);
    uint32_t random = 1;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int i = 0; i < KINDS * 2 * 4; i++) {
            int32_t pairs = shapes[s].tokens * shapes[s].top_k;
            *c = (route_case){ .args = { .tokens = shapes[s].tokens,
                                         .top_k = shapes[s].top_k,
                                         .experts = shapes[s].experts,
                                         .first = shapes[s].first,
                                         .here = shapes[s].here,
                                         .align = shapes[s].align } };
            for (int32_t p = 0; p < pairs; p++) {
                c->ids[p] = id_of(i % KINDS, p, shapes[s].experts, &random);
                c->weights[p] = (float)next(&random);
            }
            c->args.weights_in = i / KINDS % 2 ? c->weights : NULL;
            /* the worst case, just enough, one less, hardly any */
            int64_t worst = pairs + (int64_t)c->args.here * (c->args.align - 1);
            c->args.rows = (int32_t)(worst < ROWS ? worst : ROWS);
            int64_t needed = place(c, &c->want);
            int how = i / KINDS / 2;
            c->args.rows = (int32_t)(how == 0   ? c->args.rows
                                     : how == 1 ? needed
                                     : how == 2 ? (needed ? needed - 1 : 0)
                                                : needed / 3);
            if (shapes[s].each) {
                int64_t most = busiest(c);
                int64_t each[] = { pairs, most, most - 1, most / 3 };
                c->args.capacity = each[how] < 1 ? 1 : (int32_t)each[how];
                c->args.rows = c->args.here * c->args.capacity;
            }
            check_case(c);
        }
    }
    free(c);
}

/* Ids that fill it as badly as can be fit into what a plan takes if nobody says how much. */
static void worst_case(void **state)
{
    (void)state;
    route_case *c = calloc(1, sizeof *c);
    c->args =
        (imx_route_args){ .tokens = 64, .top_k = 1, .experts = 64, .here = 64, .align = ALIGN };
    for (int32_t p = 0; p < 64; p++)
        c->ids[p] = 63 - p;
    c->args.rows = 64 + 64 * (ALIGN - 1);
    check_case(c);
    assert_int_equal(c->fault.kind, 0);
    assert_int_equal(c->have.expert_begin[63], 63 * ALIGN);
    assert_int_equal(c->have.row_pair[63 * ALIGN], 0);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_a_plain_loop),
        cmocka_unit_test(worst_case),
    };
    return cmocka_run_group_tests_name("route", tests, NULL, NULL);
}
