/* dispatch_cases.h - dispatch and combine, run on whatever ranks, against plain loops: where rows
 * lie and what they are, bit for bit; sums in the order that docs/moe.md has, bit for bit, and
 * against float64. */
#ifndef DISPATCH_CASES_H
#define DISPATCH_CASES_H

#include <stdbool.h>
#include <stddef.h>

#include "imbrex.h"
#include "lent.h"

/* How tokens choose experts. */
enum {
    DISPATCH_EVEN,
    DISPATCH_SKEWED,
    DISPATCH_TO_ONE,
    DISPATCH_TO_NONE,
    DISPATCH_ANY_NUMBER,
    DISPATCH_TWICE,
    DISPATCH_KINDS
};

typedef struct exchange {
    imbrex_dispatch_desc desc;
    int ids, weights, residual;
    char *arena; /* memory of the device, where it cannot read the host's; else NULL */
} exchange;

/* What a rank gives and gets in one run. */
typedef struct exchange_run {
    const exchange *x;
    int run, rank, ranks, first, here; /* experts */
    int node_ranks;                    /* ranks of a node */
    int64_t own, pairs, capacity;
    lent_sizes sizes;
    imbrex_routing routing, given;       /* given: to the runs */
    int32_t *ids, *want_row, *want_pair; /* of pairs; of rows */
    int32_t *want_expert, *want_rank;    /* of pairs: -1 where there is none */
    float *weights, *scales;
    char *a, *c, *rows, *residual, *sum;
} exchange_run;

/* Operands of run number `run`, from 0 to 3, where dispatch has that capacity. */
exchange_run exchange_take(const exchange *x, int run, imbrex_group *group, int64_t capacity);
void exchange_drop(exchange_run *b);

/* dispatch's come first. */
imbrex_args exchange_dispatch_args(exchange_run *b, lent *l);
imbrex_args exchange_combine_args(exchange_run *b, lent *l);

/* In a rank: four runs of both operators, each rank with its own number of tokens; 0 if all is
 * right. */
int exchange_run_all(imbrex_group *group, const exchange *x);

/* A rank's function: every so-many-th case of the table, *(int *)ctx. */
int exchange_every_case(imbrex_group *group, void *ctx);

/* The same on a device that does not read the host's memory. */
int exchange_on_device(imbrex_group *group, void *ctx);

#endif /* DISPATCH_CASES_H */
