/* scaled_input.h - what scaled_cases.c runs: cases, their elements and scales, and in float64 what
 * comes of them. */
#ifndef SCALED_INPUT_H
#define SCALED_INPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "imbrex.h"

/* What elements and scales are like. */
typedef enum scaled_kind {
    USUAL,     /* any finite numbers */
    TINY,      /* products of scales of about 2^-100 */
    HUGE_ONES, /* 2^70 */
    OPPOSITE,  /* scales of a of 2^100, of b of 2^-100 */
    ZEROS,     /* elements and scales that are 0 */
    LARGEST,   /* all elements are the largest, of either sign */
    NANS       /* elements and scales that are no numbers, and infinities where there are some */
} scaled_kind;

typedef struct scaled_case {
    const char *op;
    int64_t m, n, k;
    imbrex_dtype dtype, out;
    imbrex_scaling scaling;
    scaled_kind kind;
    int bias, chunk_rows, sms, fast;
    enum { ANYWHERE, CPU_ONLY, GPU_ONLY } where;
    bool again;  /* as INVARIANT, and what sums over ranks as NORMED */
    bool hopper; /* scaled_where's */
} scaled_case;

enum {
    OF_A,
    OF_B = 100,
    OF_BIAS = 200,
    OF_GAMMA = 250,
    OF_SCALE_A = 300,
    OF_SCALE_B = 400
}; /* + rank */

imbrex_dtype scaled_dtype_of_b(const scaled_case *c);

/* Element i, and scale i, of what `of` names. */
uint8_t scaled_code(const scaled_case *c, imbrex_dtype dtype, int of, int64_t i);
float scaled_scale(const scaled_case *c, int of, int64_t i);

/* How many there are of so many rows of a, and of b; 0: none. */
int64_t scaled_scales_of_a(const scaled_case *c, int64_t rows);
int64_t scaled_scales_of_b(const scaled_case *c);

/* Whose numbers rank r's a and its scales have: those of a gather are one matrix's, and one scale
 * of a tensor is alike on all ranks. */
int scaled_of_a(const scaled_case *c, int r);
int scaled_of_scale_a(const scaled_case *c, int r);

bool scaled_gathers(const scaled_case *c);
bool scaled_sums_ranks(const scaled_case *c);

/* ---- in float64 ------------------------------------------------------------------------------ */

/* One matrix as numbers, and the scales that its elements have, [rows, k] each. */
typedef struct scaled_matrix {
    double *value, *scale;
} scaled_matrix;

/* Of one element of c: its value, and what the error of one is counted from. */
typedef struct scaled_total {
    double value, magnitude, partials; /* of all, of |products|, of |ranks' parts| */
} scaled_total;

enum { RANKS_MOST = 4, ROWS_MOST = 1024 };

/* What rank r's c is made of: a and b of each rank that has a part in it. */
typedef struct scaled_parts {
    int first, end; /* ranks */
    scaled_matrix a[RANKS_MOST], b[RANKS_MOST];
} scaled_parts;

scaled_parts scaled_parts_of(const scaled_case *c, int ranks, int r);
void scaled_drop_parts(scaled_parts *x);

scaled_total scaled_sum_of(const scaled_case *c, const scaled_parts *x, int64_t row, int64_t col);

/* Whether an element of c is what it may be, and how far off it may be. */
bool scaled_is_right(const scaled_case *c, double have, const scaled_total *want, int nodes,
                     double *within);

#endif /* SCALED_INPUT_H */
