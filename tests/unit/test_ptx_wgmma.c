/* test_ptx_wgmma.c - products of a warpgroup of the fake GPU: operands laid into shared memory unit
 * by unit, or by the copy engine, against a product in float64 of integers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ptx_tensor.h"

enum { BASE = 1024, BYTES = 96 * 1024, B_AT = 32 * 1024, N_MOST = 256, K_MOST = 64 };

static _Alignas(1024) unsigned char memory[BYTES];
static const ptx_shared shared = { .bytes = memory, .base = BASE, .size = BYTES };

static int a[64][K_MOST], b[N_MOST][K_MOST];
static float d[128][128]; /* [register][thread] */
static ptx_register views[128];

static void draw(int matrix[][K_MOST], int rows, int most)
{
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < K_MOST; k++)
            matrix[i][k] = rand() % (2 * most + 1) - most;
}

static void new_operands(int most)
{
    draw(a, 64, most);
    draw(b, N_MOST, most);
    memset(memory, 0xff, sizeof memory);
    for (int r = 0; r < 128; r++) {
        views[r] = (ptx_register){ .at = (unsigned char *)d[r], .lane = 4, .warp = 128 };
        for (int t = 0; t < 128; t++)
            d[r][t] = (float)(r - t);
    }
}

/* Figure "WGMMA .m64nNk16 register fragment layout for accumulator matrix D". */
static float at(int row, int col)
{
    int thread = row / 16 * 32 + row % 8 * 4 + col % 8 / 2;
    return d[col / 8 * 4 + row % 16 / 8 * 2 + col % 2][thread];
}

static double before(int row, int col)
{
    int thread = row / 16 * 32 + row % 8 * 4 + col % 8 / 2;
    return col / 8 * 4 + row % 16 / 8 * 2 + col % 2 - thread;
}

static void check(int n, int k_from, int k_to, bool add, int sign)
{
    for (int i = 0; i < 64; i++) {
        for (int j = 0; j < n; j++) {
            double sum = add ? before(i, j) : 0.0;
            for (int k = k_from; k < k_to; k++)
                sum += sign * a[i][k] * b[j][k];
            if (at(i, j) != sum)
                fail_msg("n %d: [%d][%d] is %g, not %g", n, i, j, at(i, j), sum);
        }
    }
    for (int r = n / 2; r < 128; r++)
        for (int t = 0; t < 128; t++)
            assert_true(d[r][t] == (float)(r - t));
}

/* ---- layouts ------------------------------------------------------------------------------------
 *
 * The canonical layouts of the PTX ISA, in elements: row i of m or n, element k. */

typedef struct layout {
    bool mn;
    int span; /* of the swizzle, bytes; 16: none */
    uint32_t leading, stride;
} layout;

static uint32_t offset(const layout *l, uint32_t bytes, uint32_t i, uint32_t k)
{
    uint32_t per = 16 / bytes, c = (uint32_t)l->span / 16;
    uint32_t linear;
    if (l->mn && c == 1)
        linear = i % per * bytes + i / per * l->stride + k % 8 * 16 + k / 8 * l->leading;
    else if (l->mn)
        linear = i % per * bytes + i / per % c * 16 + i / (c * per) * l->leading + k % 8 * c * 16 +
                 k / 8 * l->stride;
    else if (c == 1)
        linear = i % 8 * 16 + i / 8 * l->stride + k % per * bytes + k / per * l->leading;
    else
        linear = i % 8 * c * 16 + i / 8 * l->stride + k * bytes;
    /* Swizzle<log2 c, 4, 3> */
    return linear ^ (linear / 128 % c * 16);
}

static void place(const layout *l, ptx_type type, unsigned char *to, int rows, int k_count,
                  int matrix[][K_MOST])
{
    uint32_t bytes = (uint32_t)ptx_bits(type) / 8;
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < k_count; k++) {
            uint32_t code = ptx_narrow(&(ptx_to){ .type = type }, matrix[i][k]);
            memcpy(to + offset(l, bytes, (uint32_t)i, (uint32_t)k), &code, bytes);
        }
    }
}

static uint64_t descriptor(const layout *l, uint32_t address)
{
    uint64_t swizzle = l->span == 128 ? 1 : l->span == 64 ? 2 : l->span == 32 ? 3 : 0;
    return address / 16 | (uint64_t)(l->leading / 16) << 16 | (uint64_t)(l->stride / 16) << 32 |
           swizzle << 62;
}

static uint32_t random_multiple(uint32_t of, uint32_t least)
{
    return of * (least + (uint32_t)(rand() % 2));
}

/* With gaps, so that each distance counts. */
static layout any_layout(bool mn, int span, int rows)
{
    uint32_t pattern = (uint32_t)span * 8;
    layout l = { .mn = mn, .span = span };
    if (span == 16 && mn) {
        l.stride = random_multiple(128, 2);
        l.leading = l.stride * (uint32_t)(rows / 8 + 1);
    } else if (span == 16) {
        l.leading = random_multiple(128, 1);
        l.stride = 3 * l.leading;
    } else if (mn) {
        l.stride = random_multiple(pattern, 1);
        l.leading = 2 * l.stride;
    } else {
        l.stride = random_multiple(pattern, 1);
    }
    return l;
}

typedef struct types {
    ptx_type a, b;
    int most;
} types;

static const types all_types[] = {
    { PTX_BF16, PTX_BF16, 100 }, { PTX_F16, PTX_F16, 100 }, { PTX_TF32, PTX_TF32, 100 },
    { PTX_E4M3, PTX_E4M3, 15 },  { PTX_E5M2, PTX_E4M3, 7 }, { PTX_E4M3, PTX_E5M2, 7 },
};

static void perform(const ptx_wgmma *w)
{
    ptx_why why;
    if (!ptx_wgmma_check(w, &why) || !ptx_wgmma_perform(w, &shared, &why))
        fail_msg("%s", why.text);
}

static void every_layout(void **state)
{
    (void)state;
    static const int spans[] = { 16, 32, 64, 128 };
    for (size_t i = 0; i < sizeof all_types / sizeof *all_types; i++) {
        const types *t = &all_types[i];
        int bits = ptx_bits(t->a), k = 256 / bits;
        for (int turns = 0; turns < (bits == 16 ? 4 : 1); turns++) {
            for (int s = 0; s < 16; s++) {
                int n = 8 * (1 + rand() % 12);
                layout la = any_layout(turns & 1, spans[s % 4], 64);
                layout lb = any_layout(turns & 2, spans[s / 4], n);
                new_operands(t->most);
                place(&la, t->a, memory, 64, k, a);
                place(&lb, t->b, memory + B_AT, n, k, b);
                perform(&(ptx_wgmma){ .n = n,
                                      .a_type = t->a,
                                      .b_type = t->b,
                                      .d = views,
                                      .a = descriptor(&la, BASE),
                                      .b = descriptor(&lb, BASE + B_AT),
                                      .add = s & 1,
                                      .a_sign = s & 2 ? -1 : 1,
                                      .b_sign = s & 4 ? -1 : 1,
                                      .a_mn = turns & 1,
                                      .b_mn = turns & 2 });
                check(n, 0, k, s & 1, !(s & 2) == !(s & 4) ? 1 : -1);
            }
        }
    }
}

/* Figure "WGMMA .m64nNk16 register fragment layout for matrix A", by its words. */
static void a_in_registers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all_types / sizeof *all_types; i++) {
        const types *t = &all_types[i];
        uint32_t held[4][128];
        ptx_register words[4];
        int bytes = ptx_bits(t->a) / 8, k = 32 / bytes, per = 4 / bytes;
        layout l = { .span = 128, .stride = 1024 };
        new_operands(t->most);
        place(&l, t->b, memory + B_AT, 64, k, b);
        for (int r = 0; r < 4; r++) {
            words[r] = (ptx_register){ .at = (unsigned char *)held[r], .lane = 4, .warp = 128 };
            for (int thread = 0; thread < 128; thread++) {
                int row = thread / 32 * 16 + thread % 32 / 4 + r % 2 * 8;
                held[r][thread] = 0;
                for (int e = 0; e < per; e++) {
                    int col = (thread % 4 + r / 2 * 4) * per + e;
                    held[r][thread] |= ptx_narrow(&(ptx_to){ .type = t->a }, a[row][col])
                                       << 8 * bytes * e;
                }
            }
        }
        perform(&(ptx_wgmma){ .n = 64,
                              .a_type = t->a,
                              .b_type = t->b,
                              .d = views,
                              .a_registers = words,
                              .b = descriptor(&l, BASE + B_AT),
                              .a_sign = 1,
                              .b_sign = 1 });
        check(64, 0, k, false, 1);
    }
}

/* ---- behind the copy engine ------------------------------------------------------------------ */

static uint16_t bf16(int x)
{
    return (uint16_t)ptx_narrow(&(ptx_to){ .type = PTX_BF16 }, x);
}

/* Rows of 128 bytes to shared memory at `to`. */
static void load(const uint16_t *from, uint64_t rows, uint64_t cols, int32_t x, int32_t y,
                 uint32_t box_rows, uint32_t to)
{
    _Alignas(64) unsigned char map[128];
    uint64_t sizes[] = { cols, rows }, strides[] = { 2 * cols };
    uint32_t box[] = { 64, box_rows }, steps[] = { 1, 1 }, bytes = 0;
    ptx_why why;
    if (!ptx_map_encode(map, 9, 2, from, sizes, strides, box, steps, 0, 3, 2, 0, &why) ||
        !ptx_map_load(map, 2, (int32_t[]){ x, y }, NULL, &shared, to, &bytes, &why))
        fail_msg("%s", why.text);
    assert_int_equal(bytes, box_rows * 128);
}

/* A tile as the kernels of products have it: 64 of k in rows of 128 bytes, four products along k by
 * descriptors that step 32 bytes, b [n, k] or, in atoms of 64 columns, [k, n]. */
static void tiles_of_the_copy_engine(void **state)
{
    (void)state;
    for (int kn = 0; kn < 2; kn++) {
        for (int n = 8; n <= N_MOST; n += 8) {
            static _Alignas(16) uint16_t rows_a[64][K_MOST], rows_b[N_MOST][K_MOST],
                rows_kn[K_MOST][N_MOST];
            uint32_t atoms = (uint32_t)(n + 63) / 64, leading = kn ? 64 * 128 : 0;
            new_operands(60);
            for (int k = 0; k < K_MOST; k++) {
                for (int i = 0; i < 64; i++)
                    rows_a[i][k] = bf16(a[i][k]);
                for (int i = 0; i < N_MOST; i++)
                    rows_b[i][k] = rows_kn[k][i] = bf16(b[i][k]);
            }
            load(rows_a[0], 64, K_MOST, 0, 0, 64, BASE);
            if (!kn)
                load(rows_b[0], N_MOST, K_MOST, 0, 0, (uint32_t)n, BASE + B_AT);
            for (uint32_t i = 0; kn && i < atoms; i++)
                load(rows_kn[0], K_MOST, N_MOST, (int32_t)(64 * i), 0, 64,
                     BASE + B_AT + i * leading);
            layout la = { .span = 128, .stride = 1024 };
            layout lb = { .mn = kn, .span = 128, .leading = leading, .stride = 1024 };
            for (uint32_t step = 0; step < 4; step++)
                perform(&(ptx_wgmma){ .n = n,
                                      .a_type = PTX_BF16,
                                      .b_type = PTX_BF16,
                                      .d = views,
                                      .a = descriptor(&la, BASE + 32 * step),
                                      .b = descriptor(&lb, BASE + B_AT + (kn ? 2048 : 32) * step),
                                      .add = true,
                                      .a_sign = 1,
                                      .b_sign = 1,
                                      .b_mn = kn });
            check(n, 0, 64, true, 1);
        }
    }
}

/* A row of d by stmatrix into swizzled rows, and by the copy engine to memory. */
static void results_go_back(void **state)
{
    (void)state;
    enum { N = 64 };
    static _Alignas(16) uint16_t c[64][N];
    _Alignas(64) unsigned char map[128];
    ptx_why why;
    new_operands(1);
    for (uint32_t w = 0; w < 4; w++) {
        for (int j = 0; j < N; j += 16) {
            uint32_t packed[4][32], address[32];
            ptx_register words[4];
            for (int r = 0; r < 4; r++) {
                words[r] = (ptx_register){ .at = (unsigned char *)packed[r], .lane = 4 };
                for (uint32_t lane = 0; lane < 32; lane++)
                    packed[r][lane] = ptx_narrow_two(&(ptx_to){ .type = PTX_BF16 },
                                                     d[j / 2 + 2 * r + 1][32 * w + lane],
                                                     d[j / 2 + 2 * r][32 * w + lane]);
            }
            for (uint32_t lane = 0; lane < 32; lane++) {
                uint32_t row = 16 * w + lane % 16, unit = (uint32_t)j / 8 + lane / 16;
                address[lane] = BASE + row * 128 + (unit ^ row % 8) * 16;
            }
            assert_true(ptx_stmatrix(4, false, &shared, address, words, &why));
        }
    }
    uint64_t sizes[] = { N, 64 }, strides[] = { 2 * N };
    uint32_t box[] = { N, 64 }, steps[] = { 1, 1 };
    assert_true(ptx_map_encode(map, 9, 2, c, sizes, strides, box, steps, 0, 3, 2, 0, &why));
    assert_true(ptx_map_store(map, 2, (int32_t[]){ 0, 0 }, NULL, &shared, BASE, &why));
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < N; j++)
            assert_int_equal(c[i][j], bf16((int)before(i, j)));
}

/* ---- what is refused ------------------------------------------------------------------------- */

static const layout rows = { .span = 128, .stride = 1024 };

static ptx_wgmma sound(void)
{
    return (ptx_wgmma){ .n = 64,
                        .a_type = PTX_BF16,
                        .b_type = PTX_BF16,
                        .d = views,
                        .a = descriptor(&rows, BASE),
                        .b = descriptor(&rows, BASE + B_AT),
                        .a_sign = 1,
                        .b_sign = 1 };
}

static bool works(const ptx_wgmma *w)
{
    ptx_why why = { "" };
    bool done = ptx_wgmma_perform(w, &shared, &why);
    assert_int_equal(done, !why.text[0]);
    return done;
}

static bool works_with_b(const layout *l, uint32_t address, bool mn)
{
    ptx_wgmma w = sound();
    w.b = descriptor(l, address);
    w.b_mn = mn;
    return works(&w);
}

static void products_that_are_none(void **state)
{
    (void)state;
    new_operands(1);
    memset(memory, 0, sizeof memory);
    ptx_wgmma w = sound();
    assert_true(works(&w));
    w.n = 12;
    assert_false(works(&w));
    w = sound();
    w.b_type = PTX_F16;
    assert_false(works(&w));
    w.a_type = w.b_type = PTX_E4M3;
    assert_true(works(&w));
    w.b_mn = true;
    assert_false(works(&w));
    w = sound();
    w.b_sign = 0;
    assert_false(works(&w));
    w = sound();
    w.b |= (uint64_t)1 << 49; /* a base offset */
    assert_false(works(&w));
    w = sound();
    w.b |= (uint64_t)1 << 14;
    assert_false(works(&w));

    layout odd = { .span = 128, .stride = 1024 + 128 }, apart = { .span = 64, .stride = 512 };
    assert_true(works_with_b(&rows, BASE + 96, false));
    assert_false(works_with_b(&rows, BASE + 112, false));
    assert_false(works_with_b(&rows, BASE + 128, false));
    assert_false(works_with_b(&odd, BASE, false));
    assert_true(works_with_b(&apart, BASE + 512, false));
    assert_false(works_with_b(&apart, BASE + 256, false));
    assert_true(works_with_b(&rows, BASE + BYTES - 8 * 1024, false));
    assert_false(works_with_b(&rows, BASE + BYTES - 7 * 1024, false));
    assert_false(works_with_b(&rows, BASE - 1024, false));
    apart.leading = 512;
    assert_true(works_with_b(&apart, BASE, true));
    apart.leading = 256;
    assert_false(works_with_b(&apart, BASE, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout),
        cmocka_unit_test(a_in_registers),
        cmocka_unit_test(tiles_of_the_copy_engine),
        cmocka_unit_test(results_go_back),
        cmocka_unit_test(products_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
