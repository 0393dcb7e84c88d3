/* op.h - the operators that `imbrex bench` times, and their operands. */
#ifndef CLI_OP_H
#define CLI_OP_H

#include <stdbool.h>
#include <stdio.h>

#include "imbrex.h"

/* An operator with a plan, of sizes m, n and maybe k, or one of this tool's own. */
typedef struct bench_op {
    const char *name;
    const imbrex_op_info *info; /* NULL: it has no plan */
    bool product;               /* it multiplies by a b */
    bool a_is_shard;            /* a rank's a holds its own rows only */
    bool alone;   /* nothing travels: only the product of one rank, as its own group */
    bool meets;   /* ranks meet and no more: there is no shape, and no plan */
    bool experts; /* rows of a are tokens, each of which goes to several experts' b */
    bool states;  /* of attention: m sequences, a run takes imbrex_decode_args */
    bool cache;   /* and attends to n tokens of each on every rank: there is no merging alone */
    int moves;    /* how often a matrix must travel: its bytes, but for a rank's own share */
} bench_op;

/* Whether ranks have tokens of their own, as many each, for each other's whole experts. */
static inline bool bench_op_exchanges(const bench_op *op)
{
    return op->experts && !op->product;
}

/* NULL if there is none of that name. */
const bench_op *bench_op_find(const char *name);

typedef enum bench_ops {
    BENCH_OPS_ALL,
    BENCH_OPS_PLANS,   /* that have plans */
    BENCH_OPS_PRODUCTS /* and multiply */
} bench_ops;

/* Their names, with `between` between them. */
void bench_op_names(bench_ops which, const char *between, char *text, size_t size);

/* What is run: one rank's product as in imbrex_gemm_desc, or the whole matrix and k = 0. */
typedef struct bench_shape {
    const bench_op *op;
    int64_t m, n, k;
    imbrex_dtype dtype;
    imbrex_layout layout;
    imbrex_scaling scaling; /* of e4m3 */
    int chunk_rows, sms;    /* 0: chosen */
    int64_t m_least;        /* as in imbrex_gemm_desc */
    int64_t plan_m;         /* the chosen plan is for so many rows, and has variants; 0: for m */
    bool bias;
    bool norm;                           /* rows of c are normed, with a residual */
    int experts, top_k;                  /* where the operator has some */
    bool whole;                          /* ranks have whole experts */
    double skew;                         /* of the choice of experts; 0: all alike */
    int heads, kv_heads, head_dim, page; /* where the operator has states */
} bench_shape;

extern const char *const bench_layout_names[2];  /* by imbrex_layout */
extern const char *const bench_scaling_names[4]; /* by imbrex_scaling; nobody asks for the first */

/* Whether it has a norm. */
bool bench_op_norms(const bench_op *op);

/* The type of c and bias. */
imbrex_dtype bench_op_out(const bench_shape *shape);

/* How many scales there are of so many rows of a, and of a rank's b. */
int64_t bench_op_scales_of_a(const bench_shape *shape, int64_t rows);
int64_t bench_op_scales_of_b(const bench_shape *shape, int ranks);

/* What a product's plan, imbrex_tune and hooks for a product are told of a shape. */
imbrex_gemm_desc bench_op_desc(const bench_shape *shape, const char *algorithm);

/* Collective.  algorithm NULL: chosen. */
IMBREX_TRY bench_op_plan(imbrex_group *group, const bench_shape *shape, const char *algorithm,
                         imbrex_plan **plan);

/* Collective. */
IMBREX_TRY bench_op_tune(imbrex_group *group, const bench_shape *shape,
                         imbrex_tune_progress progress, void *ctx);

/* Collective.  The product of one rank of `ranks` alone: for a group of one rank. */
IMBREX_TRY bench_op_product(imbrex_group *alone, const bench_shape *shape, int ranks,
                            imbrex_plan **plan);

/* As so many ranks can have it. */
bench_shape bench_op_shape(const bench_shape *shape, int ranks);

/* Of an operator with experts: those of one rank, the most that one has; and rows that its products
 * have room for, in a group of that many ranks. */
int bench_op_experts(const bench_shape *shape, int ranks);
int64_t bench_op_rows(const bench_shape *shape);

/* Collective.  A plan that says where tokens go, and multiplies next to nothing: the operator that
 * gathers, of n = k = 1.  ranks: as above where the group is of one rank alone, else 0. */
IMBREX_TRY bench_op_router(imbrex_group *group, const bench_shape *shape, int ranks,
                           imbrex_plan **plan);

/* Work of one rank's product, on average, and bytes that a rank receives from its peers. */
double bench_op_flop(const bench_shape *shape, int ranks);
double bench_op_bytes(const bench_shape *shape, int ranks);

/* Of a cache, what a rank reads of it; and numbers of v: fewer than of k in MLA. */
double bench_op_cache_bytes(const bench_shape *shape);
int bench_op_value_dim(const bench_shape *shape);

enum { BENCH_OPS_TEXT = 512 }; /* room for all names */

#endif /* CLI_OP_H */
