/* test_shards.c - elements, random matrices and the parts of an MLP's weights that ranks own. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mlp/mlp.h"

/* Memory of exactly this size, so that a sanitizer sees the first byte beyond it. */
static void *room(int64_t elements, imbrex_dtype dtype)
{
    void *memory = malloc((size_t)(elements * matrix_dtype_bytes(dtype)) + (elements == 0));
    assert_non_null(memory);
    return memory;
}

/* ---- Elements -------------------------------------------------------------------------------- */

/* One element through matrix_copy, from a byte that no dtype is aligned to. */
static void convert(imbrex_dtype from, const void *in, imbrex_dtype to, void *out)
{
    unsigned char unaligned[8];
    memcpy(unaligned + 1, in, (size_t)matrix_dtype_bytes(from));
    matrix one = { .rows = 1, .cols = 1, .dtype = from, .data = unaligned + 1 };
    matrix_copy(&one, 0, 1, 0, 1, to, out, 1);
}

static double half_value(imbrex_dtype dtype, unsigned bits)
{
    int fraction_bits = dtype == IMBREX_F16 ? 10 : 7, bias = dtype == IMBREX_F16 ? 15 : 127;
    int exponent = (int)(bits & 0x7fff) >> fraction_bits;
    double fraction = bits & ((1u << fraction_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 2 * bias + 1)
        return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

/* Every 16-bit number, and the float32 numbers half-way to the next and just beside that. */
static void test_conversions(void **state)
{
    (void)state;
    static const imbrex_dtype halves[] = { IMBREX_BF16, IMBREX_F16 };
    for (int d = 0; d < 2; d++) {
        for (unsigned bits = 0; bits < 0x10000; bits++) {
            uint16_t half = (uint16_t)bits, back;
            double value = half_value(halves[d], bits);
            float wide;
            convert(halves[d], &half, IMBREX_F32, &wide);
            convert(IMBREX_F32, &wide, halves[d], &back);
            if (isnan(value)) {
                assert_true(isnan(wide) && isnan(half_value(halves[d], back)));
                continue;
            }
            if ((double)wide != value || back != half)
                fail_msg("0x%04x is %g, not %g; back 0x%04x", bits, (double)wide, value, back);
            if (isinf(value))
                continue;
            double next = half_value(halves[d], bits + 1);
            if (isinf(next)) /* where the next would be if the exponents went on */
                next = 2 * value - half_value(halves[d], bits - 1);
            float middle = (float)((value + next) / 2);
            float below = nextafterf(middle, (float)value), above = nextafterf(middle, (float)next);
            uint16_t even = (uint16_t)(bits + (bits & 1)), got;
            convert(IMBREX_F32, &middle, halves[d], &got);
            assert_int_equal(got, even);
            convert(IMBREX_F32, &below, halves[d], &got);
            assert_int_equal(got, bits);
            if (isfinite(above)) {
                convert(IMBREX_F32, &above, halves[d], &got);
                assert_int_equal(got, bits + 1);
            }
        }
    }
}

static void test_copy_reads_a_piece(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 2500, STRIDE = 2400 };
    float *data = room(ROWS * COLS, IMBREX_F32);
    for (int i = 0; i < ROWS * COLS; i++)
        data[i] = (float)(i % 251) - 125;
    matrix whole = { .rows = ROWS, .cols = COLS, .dtype = IMBREX_F32, .data = data };
    for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++) {
        unsigned char *out = room(3 * STRIDE, (imbrex_dtype)dtype);
        size_t bytes = (size_t)matrix_dtype_bytes((imbrex_dtype)dtype);
        memset(out, 0xab, 3 * STRIDE * bytes);
        matrix_copy(&whole, 1, 4, 100, 2400, (imbrex_dtype)dtype, out, STRIDE);
        for (int row = 0; row < 3; row++) {
            for (int col = 0; col < STRIDE; col++) {
                float value;
                const unsigned char *at = out + (size_t)(row * STRIDE + col) * bytes;
                if (col >= 2300) {
                    assert_int_equal(*at, 0xab);
                    continue;
                }
                convert((imbrex_dtype)dtype, at, IMBREX_F32, &value);
                assert_true(value == data[(row + 1) * COLS + col + 100]);
            }
        }
        free(out);
    }
    matrix tall = { .rows = INT64_MAX, .cols = 0, .data = data };
    matrix_copy(&tall, 0, INT64_MAX, 0, 0, IMBREX_F32, NULL, 0);
    free(data);
}

static void test_random(void **state)
{
    (void)state;
    enum { ROWS = 300, COLS = 400 };
    matrix a = matrix_random(1, ROWS, COLS, 0.5), b = matrix_random(2, ROWS, COLS, 0.5);
    float *x = room(ROWS * COLS, IMBREX_F32), *y = room(ROWS * COLS, IMBREX_F32);
    matrix_copy(&a, 0, ROWS, 0, COLS, IMBREX_F32, x, COLS);
    matrix_copy(&b, 0, ROWS, 0, COLS, IMBREX_F32, y, COLS);
    double sum = 0, squares = 0, with_other = 0, with_right = 0, with_below = 0;
    int beyond = 0;
    for (int i = 0; i < ROWS * COLS; i++) {
        sum += x[i];
        squares += (double)x[i] * x[i];
        with_other += (double)x[i] * y[i];
        with_right += (double)x[i] * x[(i + 1) % (ROWS * COLS)];
        with_below += (double)x[i] * x[(i + COLS) % (ROWS * COLS)];
        beyond += fabsf(x[i]) > 1; /* two deviations: 4.6 % of a normal distribution */
        assert_true(fabsf(x[i]) <= 0.5f * 3.4642f);
    }
    double n = ROWS * COLS, noise = 4 / sqrt(n); /* four deviations of an average of n */
    assert_true(fabs(sum / n / 0.5) < noise);
    assert_true(fabs(squares / n / 0.25 - 1) < noise * 1.5);
    assert_true(fabs(with_other / n / 0.25) < noise);
    assert_true(fabs(with_right / n / 0.25) < noise);
    assert_true(fabs(with_below / n / 0.25) < noise);
    assert_true(beyond > 0.040 * n && beyond < 0.052 * n);

    float piece[2][3];
    matrix_copy(&a, 7, 9, 398, 400, IMBREX_F32, piece, 3);
    assert_true(piece[0][0] == x[7 * COLS + 398] && piece[1][1] == x[8 * COLS + 399]);

    /* The same on every machine, for good: figures in the records depend on it. */
    static const uint32_t first[] = { 0x3d5317fc, 0xbe88ab6d, 0x3eb6dddf, 0x3dd85efc };
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        assert_int_equal(bits, first[i]);
    }
    free(x);
    free(y);
}

/* ---- Shards ---------------------------------------------------------------------------------- */

/* A matrix of whole numbers that every dtype holds, in from. */
static matrix numbered(int64_t rows, int64_t cols, int seed, imbrex_dtype from)
{
    float *data = room(rows * cols, IMBREX_F32);
    void *own = room(rows * cols, from);
    for (int64_t i = 0; i < rows * cols; i++)
        data[i] = (float)((i * 31 + seed) % 255 + 1);
    matrix_copy(&(matrix){ .rows = rows, .cols = cols, .dtype = IMBREX_F32, .data = data }, 0, rows,
                0, cols, from, own, cols);
    free(data);
    return (matrix){ .rows = rows, .cols = cols, .dtype = from, .data = own };
}

static float element(imbrex_dtype dtype, const void *data, int64_t index)
{
    float value;
    convert(dtype, (const char *)data + index * matrix_dtype_bytes(dtype), IMBREX_F32, &value);
    return value;
}

/* Element (row, col) of the matrix, or 0 outside it. */
static float at_or_zero(const matrix *from, int64_t row, int64_t col)
{
    if (row >= from->rows || col >= from->cols)
        return 0;
    return element(from->dtype, from->data, row * from->cols + col);
}

static void check_shards(const mlp_weights *mlp, int ranks, imbrex_dtype to)
{
    int64_t width = (mlp->ffn + ranks - 1) / ranks, hidden = mlp->hidden;
    void *gate_up = room(2 * width * hidden, to), *down = room(hidden * width, to);
    assert_int_equal(shard_width(mlp->ffn, ranks), width);
    for (int rank = 0; rank < ranks; rank++) {
        memset(gate_up, 0xff, (size_t)(2 * width * hidden * matrix_dtype_bytes(to)));
        memset(down, 0xff, (size_t)(hidden * width * matrix_dtype_bytes(to)));
        shard_gate_up(mlp, rank, ranks, to, gate_up);
        shard_down(mlp, rank, ranks, to, down);
        for (int64_t f = 0; f < width; f++) {
            for (int64_t h = 0; h < hidden; h++) {
                int64_t feature = rank * width + f;
                float gate = at_or_zero(&mlp->gate, feature, h);
                float up = at_or_zero(&mlp->up, feature, h);
                float back = at_or_zero(&mlp->down, h, feature);
                assert_true(element(to, gate_up, f * hidden + h) == gate);
                assert_true(element(to, gate_up, (width + f) * hidden + h) == up);
                assert_true(element(to, down, h * width + f) == back);
            }
        }
    }
    free(gate_up);
    free(down);
}

static void check_rows(const matrix *x, int ranks, imbrex_dtype to)
{
    int64_t at = 0;
    for (int rank = 0; rank < ranks; rank++) {
        int64_t begin = shard_first_row(x->rows, rank, ranks);
        int64_t end = shard_first_row(x->rows, rank + 1, ranks);
        assert_int_equal(begin, rank * x->rows / ranks);
        void *out = room((end - begin) * x->cols, to);
        shard_rows(x, rank, ranks, to, out);
        for (int64_t i = 0; i < (end - begin) * x->cols; i++)
            assert_true(element(to, out, i) == element(x->dtype, x->data, begin * x->cols + i));
        at += end - begin;
        free(out);
    }
    assert_int_equal(at, x->rows);
}

static void test_shards(void **state)
{
    (void)state;
    static const int ranks[] = { 1, 2, 3, 4, 8 };
    static const int64_t ffns[] = { 0, 1, 3, 9, 16, 29 };
    for (int r = 0; r < 5; r++) {
        for (int f = 0; f < 6; f++) {
            for (int pair = 0; pair < 9; pair++) {
                imbrex_dtype from = (imbrex_dtype)(IMBREX_BF16 + pair / 3);
                imbrex_dtype to = (imbrex_dtype)(IMBREX_BF16 + pair % 3);
                int64_t ffn = ffns[f], hidden = 7;
                mlp_weights mlp = { .hidden = hidden,
                                    .ffn = ffn,
                                    .gate = numbered(ffn, hidden, 1, from),
                                    .up = numbered(ffn, hidden, 2, from),
                                    .down = numbered(hidden, ffn, 3, from) };
                check_shards(&mlp, ranks[r], to);
                check_rows(&mlp.gate, ranks[r], to);
                free((void *)mlp.gate.data);
                free((void *)mlp.up.data);
                free((void *)mlp.down.data);
            }
        }
    }
    mlp_weights none = { .ffn = 5 };
    shard_gate_up(&none, 0, 2, IMBREX_F32, NULL);
    shard_down(&none, 0, 2, IMBREX_F32, NULL);
}

/* Of weights of 8 bits: a feature's scale goes with the feature, a block's with its block. */
static void check_scales(const mlp_weights *mlp, int ranks)
{
    const bool blocks = mlp->fp8.scaling == IMBREX_PER_BLOCK;
    const int64_t grain = blocks ? 128 : 1, width = shard_features(mlp, ranks);
    const int64_t up = blocks ? width / 128 : width, cols = mlp->fp8.gate.cols;
    const int64_t down_rows = mlp->fp8.down.rows, down_cols = blocks ? up : 1;
    assert_true(width * ranks >= mlp->ffn && width % (blocks ? 128 : 16) == 0);
    float *first = room(2 * up * cols, IMBREX_F32),
          *second = room(down_rows * down_cols, IMBREX_F32);
    for (int rank = 0; rank < ranks; rank++) {
        assert_int_equal(shard_gate_up_scales(mlp, rank, ranks, NULL), 2 * up * cols);
        assert_int_equal(shard_gate_up_scales(mlp, rank, ranks, first), 2 * up * cols);
        assert_int_equal(shard_down_scales(mlp, rank, ranks, NULL), down_rows * down_cols);
        shard_down_scales(mlp, rank, ranks, second);
        for (int64_t i = 0; i < up * cols; i++) {
            int64_t row = rank * (width / grain) + i / cols, col = i % cols;
            bool inside = row * grain < mlp->ffn; /* up has one for all of its rows, if any */
            assert_true(first[i] == at_or_zero(&mlp->fp8.gate, row, col));
            assert_true(first[up * cols + i] == (blocks   ? at_or_zero(&mlp->fp8.up, row, col)
                                                 : inside ? at_or_zero(&mlp->fp8.up, 0, 0)
                                                          : 0));
        }
        for (int64_t i = 0; i < down_rows * down_cols; i++)
            assert_true(second[i] == at_or_zero(&mlp->fp8.down, i / down_cols,
                                                (blocks ? rank * up : 0) + i % down_cols));
    }
    free(first);
    free(second);
}

static void test_scales(void **state)
{
    (void)state;
    mlp_weights mlp = { .hidden = 200, .ffn = 300 };
    mlp.fp8 = (mlp_fp8){ .scaling = IMBREX_PER_ROW,
                         .gate = numbered(300, 1, 1, IMBREX_F32),
                         .up = numbered(1, 1, 2, IMBREX_BF16),
                         .down = numbered(200, 1, 3, IMBREX_F32) };
    mlp_weights blocks = mlp;
    blocks.fp8 = (mlp_fp8){ .scaling = IMBREX_PER_BLOCK,
                            .gate = numbered(3, 2, 1, IMBREX_F32),
                            .up = numbered(3, 2, 2, IMBREX_BF16),
                            .down = numbered(2, 3, 3, IMBREX_F32) };
    for (int ranks = 1; ranks < 8; ranks++) {
        check_scales(&mlp, ranks);
        check_scales(&blocks, ranks);
    }
    const matrix *all[] = { &mlp.fp8.gate,    &mlp.fp8.up,    &mlp.fp8.down,
                            &blocks.fp8.gate, &blocks.fp8.up, &blocks.fp8.down };
    for (int i = 0; i < 6; i++)
        free((void *)all[i]->data);
}

/* However many ranks, their parts of random weights make the same matrices. */
static void test_random_shards(void **state)
{
    (void)state;
    enum { HIDDEN = 6, FFN = 11, WIDTH = 4, RANKS = 3 };
    mlp_weights mlp = shard_random_weights(HIDDEN, FFN);
    float all[2 * FFN][HIDDEN], all_down[HIDDEN][FFN];
    shard_gate_up(&mlp, 0, 1, IMBREX_F32, all);
    shard_down(&mlp, 0, 1, IMBREX_F32, all_down);
    assert_true(all[0][0] != all[FFN][0] && all[0][0] != all_down[0][0]);
    for (int rank = 0; rank < RANKS; rank++) {
        float part[2 * WIDTH][HIDDEN], down[HIDDEN][WIDTH];
        shard_gate_up(&mlp, rank, RANKS, IMBREX_F32, part);
        shard_down(&mlp, rank, RANKS, IMBREX_F32, down);
        for (int f = 0; f < WIDTH; f++) {
            for (int h = 0; h < HIDDEN; h++) {
                int feature = rank * WIDTH + f;
                bool inside = feature < FFN;
                assert_true(part[f][h] == (inside ? all[feature][h] : 0));
                assert_true(part[WIDTH + f][h] == (inside ? all[FFN + feature][h] : 0));
                assert_true(down[h][f] == (inside ? all_down[h][feature] : 0));
            }
        }
    }
    matrix x = shard_random_input(5, HIDDEN);
    assert_true(x.rows == 5 && x.cols == HIDDEN && x.scale == 1);
    assert_true(fabs(mlp.down.scale - 1 / sqrt(FFN)) < 1e-15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversions), cmocka_unit_test(test_copy_reads_a_piece),
        cmocka_unit_test(test_random),      cmocka_unit_test(test_shards),
        cmocka_unit_test(test_scales),      cmocka_unit_test(test_random_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
