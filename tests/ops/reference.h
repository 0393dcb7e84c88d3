/* reference.h - the operators in float64, one loop each, and deterministic inputs. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <stdbool.h>

#include "imbrex.h"

/* One run of one operator; the row of the table that tests and benchmarks share. */
typedef struct op_case {
    const char *op; /* "ag_gemm" */
    int64_t m, n, k;
    imbrex_dtype dtype;
    imbrex_layout layout;
    const char *algorithm; /* or BY_TILES */
    int chunk_rows, sms;
    int64_t run_m; /* 0: m */
    int bias, gathered;
    imbrex_norm norm;       /* of operators that add up over ranks: what happens to the sum */
    int residual, in_place; /* h is then residual's memory, and c a's, where it may be */
    int input;              /* added to the numbers of all inputs: other values */
    int nodes;              /* 2 or more: sums of nodes are rounded too */
    int batch_invariant;
    int whole; /* small whole numbers: every sum is exact, so that its order does not matter */
} op_case;

/* Of gemm_rs: scatter_push, reduce_push or reduce_pull, whichever its tiles are for. */
#define BY_TILES "by tiles"

size_t element_bytes(imbrex_dtype dtype);
double element_get(imbrex_dtype dtype, const void *matrix, int64_t i);
void element_set(imbrex_dtype dtype, void *matrix, int64_t i, double value); /* rounds to nearest */

/* Value i of input number `input` ("a" of a rank, ...), about N(0,1)-sized, exact in dtype. */
double input_value(imbrex_dtype dtype, int input, int64_t i);
/* whole: rounded to whole numbers. */
void input_fill(imbrex_dtype dtype, int input, int whole, void *matrix, int64_t count);
void input_fill_from(imbrex_dtype dtype, int input, int whole, void *matrix, int64_t first,
                     int64_t count); /* the values from number `first` on */

/* The first element from `from` on, below count, that is not the same value in both, or -1. */
int64_t elements_differ(imbrex_dtype dtype, const void *x, const void *y, int64_t from,
                        int64_t count);

/* + rank; a: rank alone; the last two: alike on all ranks. */
enum { INPUT_B = 1000, INPUT_BIAS = 2000, INPUT_RESIDUAL = 3000, INPUT_GAMMA = 4000 };

/* Rank r's bias.  Each adds its own to its rows of c, so that who adds it shows; where all get all
 * rows, all have one. */
int input_bias(const op_case *c, int r);

int64_t rank_row(int64_t m, int ranks, int r);

/* Elements of each matrix of rank r in a run with m rows. */
typedef struct op_sizes {
    int64_t a, b, bias, c, gathered, residual, gamma, h, normed, scale;
} op_sizes;
op_sizes op_sizes_of(const op_case *c, int64_t m, int ranks, int r);

typedef struct reference_error {
    double have, want, within;
} reference_error;

/* Whether its operator adds up over ranks, so that a norm may follow; whether every rank gets all
 * rows of the sum. */
bool adds_up(const op_case *c);
bool sums_all(const op_case *c);

/* Whether a case has h, residual and the like. */
bool has_norm(const op_case *c);

/* The type of c. */
imbrex_dtype result_dtype(const op_case *c);

/* Whether `have` is rank r's c (h, where the case has a norm), of a run with m rows: -1, or the
 * first element that is not. */
int64_t reference_check(const op_case *c, int64_t m, int ranks, int r, const void *have,
                        reference_error *error);

/* Makes the plan that a case describes.  Collective; by BY_TILES it may meet three times. */
imbrex_status case_plan(imbrex_group *group, const op_case *c, imbrex_plan **plan);

#endif /* REFERENCE_H */
