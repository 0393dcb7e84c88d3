/* matrix.h - a matrix that can be read piece by piece, in any dtype, from a mapped file or from
 * nowhere.  A buffer of one's own is a matrix too: { .rows, .cols, .dtype, .data } and matrix_copy
 * turn it into float32. */
#ifndef CLI_MATRIX_H
#define CLI_MATRIX_H

#include <stdint.h>

#include "imbrex.h"

/* A matrix[rows, cols], dense and row-major.  A random one has no data: element (row, col) is a
 * pure function of seed, row and col, so every rank makes just the piece it needs, and all ranks
 * together, however many, make the same matrix. */
typedef struct matrix {
    int64_t rows, cols;
    imbrex_dtype dtype; /* of data; a random one is born in float32 */
    const void *data;   /* any alignment; NULL: random */
    uint64_t seed;
    double scale; /* standard deviation of a random one */
} matrix;

matrix matrix_random(uint64_t seed, int64_t rows, int64_t cols, double scale);

/* Copies rows row0 up to row1 and columns col0 up to col1 to out, whose rows are stride elements of
 * dtype to apart.  Reads nothing else of the matrix.  Rounds to nearest, ties to even; what is too
 * large for float16 becomes infinity, and for e4m3 its largest number. */
void matrix_copy(const matrix *from, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
                 imbrex_dtype to, void *out, int64_t stride);

/* Fills memory of the group's device with elements of a random matrix, scale 1, and waits: with a
 * block of them, which the host makes, over and over. */
IMBREX_TRY matrix_fill(imbrex_group *group, void *to, imbrex_dtype dtype, int64_t elements,
                       uint64_t seed);

enum { MATRIX_DTYPES = 5 };
/* By imbrex_dtype; nobody asks for the first. */
extern const char *const matrix_dtype_names[MATRIX_DTYPES];

int64_t matrix_dtype_bytes(imbrex_dtype dtype);

#endif /* CLI_MATRIX_H */
