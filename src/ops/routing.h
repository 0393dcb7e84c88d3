/* routing.h - where pairs lie, as an operator's args have it: written by who gathers tokens, read
 * by who sums them. */
#ifndef IMX_ROUTING_H
#define IMX_ROUTING_H

#include "kernels/route/args.h"
#include "plan/op.h"

/* Dimensions of operands, which an operator's `extent` computes. */
enum {
    IMX_ROUTING_TOP_K = IMX_OF_OP,
    IMX_ROUTING_HERE,     /* experts here */
    IMX_ROUTING_BEGINS,   /* one more */
    IMX_ROUTING_CAPACITY, /* rows */
    IMX_ROUTING_PAIRS,    /* of all ranks' tokens */
    IMX_ROUTING_OTHERS    /* from here on the operator's own */
};

/* by_row: more flags of what says which rows an expert has, for who does not read that. */
#define IMX_ROUTING_ROWS(flags, by_row)                                                          \
    IMX_FIELD(imbrex_args, routing, IMX_STRUCT, "struct", 0, "where pairs lie"),                 \
        IMX_OPERAND_IN_ROUTING(expert_begin, IMX_I32, "int32", (flags) | (by_row),               \
                               "[experts here + 1]", "first row of each expert, and behind all", \
                               IMX_ROUTING_BEGINS),                                              \
        IMX_OPERAND_IN_ROUTING(expert_rows, IMX_I32, "int32", (flags) | (by_row),                \
                               "[experts here]", "rows of each expert", IMX_ROUTING_HERE),       \
        IMX_OPERAND_IN_ROUTING(row_pair, IMX_I32, "int32", (flags) | (by_row), "[capacity]",     \
                               "pair of each row; -1: none", IMX_ROUTING_CAPACITY),              \
        IMX_OPERAND_IN_ROUTING(pair_row, IMX_I32, "int32", flags, "[pairs]",                     \
                               "row of each pair; -1: not here", IMX_ROUTING_PAIRS),             \
        IMX_OPERAND_IN_ROUTING(pair_expert, IMX_I32, "int32", flags, "[pairs]",                  \
                               "expert of each pair; -1: none", IMX_ROUTING_PAIRS),              \
        IMX_OPERAND_IN_ROUTING(weights, IMX_FLOATS, "float32", flags, "[pairs]",                 \
                               "weight of each pair", IMX_ROUTING_PAIRS)

/* For imx_op.timed_integers: ids of pairs from number `first` on, `count` of them, which are evenly
 * distributed; or what of the routing follows from all such ids.  route: as a run has it, but for
 * addresses. */
void imx_routing_timed(const imbrex_field *operand, const imx_route_args *route, int64_t first,
                       int64_t count, int32_t *to);

#endif /* IMX_ROUTING_H */
