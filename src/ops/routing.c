/* routing.c - ids as chance has them, and what route would make of them, for runs that are only
 * timed. */
#include "routing.h"

#include <string.h>

/* The same wherever it is asked for. */
static int32_t chosen(int64_t pair, int32_t experts)
{
    uint64_t x = ((uint64_t)pair + 1) * 0x9e3779b97f4a7c15;
    return (int32_t)((x >> 32) % (uint64_t)experts);
}

/* The expert of a pair, of those here; -1: it is elsewhere. */
static int32_t expert_here(const imx_route_args *route, int64_t pair)
{
    int32_t e = chosen(pair, route->experts) - route->first;
    return e >= 0 && e < route->here ? e : -1;
}

static int64_t pairs_of(const imx_route_args *route)
{
    return (int64_t)route->tokens * route->top_k;
}

/* Where experts begin, as kernels/route/args.h has it. */
static void place_experts(const imx_route_args *route, int32_t begin[IMX_ROUTE_EXPERTS + 1])
{
    int64_t row = 0, pairs = pairs_of(route);
    memset(begin, 0, ((size_t)route->here + 1) * sizeof *begin);
    for (int64_t i = 0; i < pairs; i++) {
        int32_t e = expert_here(route, i);
        if (e >= 0)
            begin[e]++;
    }
    for (int32_t e = 0; e <= route->here; e++) {
        int64_t next = row + (route->capacity ? route->capacity : begin[e]);
        begin[e] = (int32_t)imx_min(row, route->rows);
        if (!route->capacity && e + 1 < route->here)
            next = (next + route->align - 1) / route->align * route->align;
        row = next;
    }
}

void imx_routing_timed(const imbrex_field *operand, const imx_route_args *route, int64_t first,
                       int64_t count, int32_t *to)
{
    int32_t begin[IMX_ROUTE_EXPERTS + 1], end[IMX_ROUTE_EXPERTS + 1];
    bool routed = operand->own[IMX_FIELD_IN_ROUTING];
    bool rows = routed && operand->offset == offsetof(imbrex_routing, row_pair);
    bool places = routed && operand->offset == offsetof(imbrex_routing, pair_row);
    for (int64_t i = 0; i < count; i++) /* ids; experts of all pairs */
        to[i] = rows || places ? -1 : chosen(routed ? i : first + i, route->experts);
    if (!routed || operand->offset == offsetof(imbrex_routing, pair_expert))
        return;
    place_experts(route, begin);
    memcpy(end, begin, sizeof end);
    for (int64_t i = 0; i < pairs_of(route); i++) {
        int32_t e = expert_here(route, i);
        int32_t limit = route->capacity && e >= 0 ? begin[e] + route->capacity : route->rows;
        if (e < 0 || end[e] >= limit)
            continue;
        if (places)
            to[i] = end[e];
        if (rows)
            to[end[e]] = (int32_t)i;
        end[e]++;
    }
    if (operand->offset == offsetof(imbrex_routing, expert_begin))
        memcpy(to, begin, (size_t)count * sizeof *to);
    for (int32_t e = 0; operand->offset == offsetof(imbrex_routing, expert_rows) && e < route->here;
         e++)
        to[e] = end[e] - begin[e];
}
