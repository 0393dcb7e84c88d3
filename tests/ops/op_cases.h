/* op_cases.h - the table of cases that every device must get right. */
#ifndef OP_CASES_H
#define OP_CASES_H

#include <stdbool.h>

#include "reference.h"

/* Operator i: those without a product first. */
const char *op_cases_op(int i);

/* Algorithm i of the case's operator; NULL: it has no more. */
const char *op_cases_algorithm(const op_case *c, int i);

/* Case number 0, 1, ...; false: there are no more.  c->algorithm is left NULL.
 * large: products of whole numbers that take many tiles of every kind, so many that a loop in
 * float64 would take too long: results of two devices are to be equal.
 * long: so large that those of two algorithms are; spanning: likewise, of ag_gemm by tiles with
 * rows of several ranks. */
bool op_cases_get(int number, op_case *c);
bool op_cases_get_large(int number, op_case *c);
bool op_cases_get_long(int number, op_case *c);
bool op_cases_get_spanning(int number, op_case *c);

/* 0: where it is known which of the last kind have such tiles by their plans, these do. */
int op_cases_check_spanning(imbrex_group *group);

/* Which of the table: a third of it is every operator's every shape, in one dtype each, and all
 * dtypes in turns; most of it is all, but of wide shapes a third; a ninth is every operator with
 * some of the shapes.  A sanitizer never gets more than a third. */
typedef enum op_part { OP_CASES_ALL, OP_CASES_MOST, OP_CASES_THIRD, OP_CASES_NINTH } op_part;

/* For ranks_run; ctx: an op_part, NULL is most.  Matrices are host memory. */
int op_cases_all(imbrex_group *group, void *ctx);
int op_cases_over_nodes(imbrex_group *group, void *ctx);
int op_cases_collectives(imbrex_group *group, void *ctx); /* those without a product */

/* Where ranks are in a table and what was given up, so that another group can go on after one that
 * failed.  Lies in memory that all ranks see. */
typedef struct op_place {
    int number, op, algorithm;
} op_place;

enum { OP_WALK_FAILURES = 3 }; /* groups, or wrong cases: then a walk stops */

typedef struct op_walk {
    int (*op_of)(int number);
    int from, to;      /* case to begin with, and to end before; to = 0: all.  Atomic */
    int64_t until_ns;  /* on rank 0's clock: no case begins after it; 0: there is time */
    int ended;         /* ranks that have come to the end; atomic */
    uint64_t given_up; /* a bit an operator's algorithm */
    int lost;          /* groups that failed */
    op_place at[16];   /* of each rank */
} op_walk;

void op_walk_table(op_walk *walk); /* begins one, of op_cases_get */
void op_walk_short(op_walk *walk); /* of op_cases_get, the first shape alone */
void op_walk_large(op_walk *walk); /* of op_cases_get_large */

/* Notes where the rank is; false: that algorithm was given up. */
bool op_walk_step(op_walk *walk, int rank, int number, int algorithm);

/* The rank has come to the end. */
void op_walk_end(op_walk *walk);

/* After a failure: unless all ranks came to the end, or it is the third, gives up the algorithm
 * that they had come to, and says whether to go on. */
bool op_walk_resume(op_walk *walk, int ranks);

/* Says on stderr what a plan is and what was run. */
void op_cases_describe(imbrex_group *group, imbrex_plan *plan, const op_case *c, int64_t m);

/* Makes the plan, or says why it cannot be: 0, or 1: the group has failed, or 2: it has not.  NULL
 * with 0: the library refused the algorithm, as it has to. */
int op_cases_plan(imbrex_group *group, const op_case *c, imbrex_plan **plan);

/* Those of op_norm_get; on_device (NULL: no): matrices are in memory of the group's device. */
int op_cases_normed(imbrex_group *group, void *on_device);

/* op_cases_all with matrices in memory of the group's device, of a walk (NULL: the whole table).
 * 1: the group has failed, or is to; 2: values were wrong, all cases were tried. */
int op_cases_device(imbrex_group *group, void *walk);

/* The same over several nodes. */
int op_cases_device_over_nodes(imbrex_group *group, void *walk);

#endif /* OP_CASES_H */
