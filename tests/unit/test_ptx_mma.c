/* test_ptx_mma.c - products of a warp of the fake GPU, and its matrices in shared memory, against
 * the PTX ISA's tables of fragments, written here element by element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ptx_tensor.h"

typedef struct registers {
    uint64_t slots[4][32]; /* of 64 bits, so that distances count */
    ptx_register views[4];
} registers;

static registers *init(registers *r)
{
    for (int i = 0; i < 4; i++)
        r->views[i] = (ptx_register){ .at = (unsigned char *)r->slots[i], .lane = 8 };
    memset(r->slots, 0xee, sizeof r->slots);
    return r;
}

static uint32_t word(const registers *r, int i, int lane)
{
    uint32_t w;
    memcpy(&w, &r->slots[i][lane], sizeof w);
    return w;
}

static void set_word(registers *r, int i, int lane, uint32_t w)
{
    memcpy(&r->slots[i][lane], &w, sizeof w);
}

/* Element i of a lane's fragment, in elements of so many bits. */
static void set_element(registers *r, int i, int lane, int bits, uint32_t x)
{
    int per_word = 32 / bits, at = i % per_word * bits;
    uint32_t mask = (uint32_t)((((uint64_t)1 << bits) - 1) << at);
    set_word(r, i / per_word, lane, (word(r, i / per_word, lane) & ~mask) | x << at);
}

static int draw(int from, int to)
{
    return from + rand() % (to - from + 1);
}

typedef struct shape {
    ptx_type a, b;
    int k, most; /* of an integer's size that all types have */
} shape;

static const shape shapes[] = {
    { PTX_F16, PTX_F16, 16, 100 },  { PTX_BF16, PTX_BF16, 16, 100 }, { PTX_F16, PTX_F16, 8, 100 },
    { PTX_BF16, PTX_BF16, 8, 100 }, { PTX_TF32, PTX_TF32, 8, 100 },  { PTX_TF32, PTX_TF32, 4, 100 },
    { PTX_E4M3, PTX_E4M3, 32, 15 }, { PTX_E5M2, PTX_E5M2, 32, 7 },   { PTX_E5M2, PTX_E4M3, 32, 7 },
    { PTX_E4M3, PTX_E5M2, 16, 7 },
};

/* The tables "Matrix fragments for mma.m16n8k..": the row of a (k of b) and the column of a of
 * element i, for a k of `large` 32 bytes or half of them. */
static void a_place(int bits, bool large, int lane, int i, int *row, int *col)
{
    int g = lane / 4, t = lane % 4;
    if (bits == 16) {
        *row = !large ? (i < 2 ? g : g + 8) : i < 2 || (i >= 4 && i < 6) ? g : g + 8;
        *col = t * 2 + (i & 1) + (i >= 4 ? 8 : 0);
    } else if (bits == 8) {
        *row = !large ? (i < 4 ? g : g + 8) : i < 4 || (i >= 8 && i < 12) ? g : g + 8;
        *col = t * 4 + (i & 3) + (i >= 8 ? 16 : 0);
    } else {
        *row = i == 0 || i == 2 ? g : g + 8;
        *col = i < 2 ? t : t + 4;
    }
}

static int b_row(int bits, int lane, int i)
{
    int t = lane % 4;
    return bits == 16  ? t * 2 + (i & 1) + (i >= 2 ? 8 : 0)
           : bits == 8 ? t * 4 + (i & 3) + (i >= 4 ? 16 : 0)
                       : t + i * 4;
}

static uint32_t code(ptx_type type, int x)
{
    uint32_t bits = ptx_narrow(&(ptx_to){ .type = type }, x);
    assert_true(ptx_widen(type, bits) == (float)x);
    return bits;
}

static void check_product(const shape *s)
{
    int a[16][32], b[32][8], bits = ptx_bits(s->a);
    bool large = s->k * bits == 256;
    registers ra, rb, rc, rd;
    for (int k = 0; k < s->k; k++) {
        for (int i = 0; i < 16; i++)
            a[i][k] = draw(-s->most, s->most);
        for (int i = 0; i < 8; i++)
            b[k][i] = draw(-s->most, s->most);
    }
    init(&ra), init(&rb), init(&rc), init(&rd);
    for (int lane = 0; lane < 32; lane++) {
        int row, col;
        for (int i = 0; i < (large ? 4 : 2) * 32 / bits; i++) {
            a_place(bits, large, lane, i, &row, &col);
            set_element(&ra, i, lane, bits, code(s->a, a[row][col]));
        }
        for (int i = 0; i < (large ? 2 : 1) * 32 / bits; i++)
            set_element(&rb, i, lane, bits, code(s->b, b[b_row(bits, lane, i)][lane / 4]));
        for (int i = 0; i < 4; i++) {
            float c = (float)(lane * 4 + i);
            memcpy(&rc.slots[i][lane], &c, sizeof c);
        }
    }
    ptx_why why;
    assert_true(ptx_mma(s->k, s->a, s->b, rd.views, ra.views, rb.views, rc.views, &why));
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            int row = i < 2 ? lane / 4 : lane / 4 + 8, col = lane % 4 * 2 + (i & 1);
            double sum = lane * 4 + i;
            for (int k = 0; k < s->k; k++)
                sum += a[row][k] * b[k][col];
            float d;
            memcpy(&d, &rd.slots[i][lane], sizeof d);
            if (d != sum)
                fail_msg("k %d, %d bits, lane %d, d%d: %g, not %g", s->k, bits, lane, i, d, sum);
        }
    }
}

static void products(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_product(&shapes[i]);
}

static void products_that_there_are_none_of(void **state)
{
    (void)state;
    registers r;
    ptx_why why;
    const ptx_register *v = init(&r)->views;
    assert_false(ptx_mma(16, PTX_F16, PTX_BF16, v, v, v, v, &why));
    assert_false(ptx_mma(32, PTX_F16, PTX_F16, v, v, v, v, &why));
    assert_false(ptx_mma(12, PTX_F16, PTX_F16, v, v, v, v, &why));
    assert_false(ptx_mma(16, PTX_TF32, PTX_TF32, v, v, v, v, &why));
    assert_string_equal(why.text, "mma: there is no m16n8k16 of 32 bits");
}

/* ---- matrices -------------------------------------------------------------------------------- */

enum { BASE = 1024, BYTES = 4096 };

static uint16_t memory[BYTES / 2];
static const ptx_shared shared = { .bytes = (unsigned char *)memory, .base = BASE, .size = BYTES };

/* A row of 16 bytes for each of 32 lanes, none twice, in no order. */
static void draw_rows(uint32_t address[32])
{
    for (uint32_t i = 0; i < 32; i++)
        address[i] = BASE + 16 * (i * 37 % 256);
}

static uint16_t *at(uint32_t address, int element)
{
    return &memory[(address - BASE) / 2 + (uint32_t)element];
}

static void matrices_come_and_go(void **state)
{
    (void)state;
    uint32_t address[32];
    ptx_why why;
    draw_rows(address);
    for (int trans = 0; trans < 2; trans++) {
        for (int count = 1; count <= 4; count *= 2) {
            registers r;
            init(&r);
            for (int i = 0; i < BYTES / 2; i++)
                memory[i] = (uint16_t)draw(0, 65535);
            assert_true(ptx_ldmatrix(count, trans, r.views, &shared, address, &why));
            for (int i = 0; i < 4; i++) {
                for (int lane = 0; lane < 32; lane++) {
                    int p = lane % 4 * 2;
                    uint32_t low, high;
                    if (trans) {
                        low = *at(address[8 * i + p], lane / 4);
                        high = *at(address[8 * i + p + 1], lane / 4);
                    } else {
                        low = *at(address[8 * i + lane / 4], p);
                        high = *at(address[8 * i + lane / 4], p + 1);
                    }
                    assert_int_equal(word(&r, i, lane), i < count ? high << 16 | low : 0xeeeeeeee);
                }
            }
            uint16_t kept[BYTES / 2];
            memcpy(kept, memory, sizeof kept);
            for (int i = 0; i < 8 * count; i++)
                memset(at(address[i], 0), 0, 16);
            assert_true(ptx_stmatrix(count, trans, &shared, address, r.views, &why));
            assert_memory_equal(kept, memory, sizeof kept);
        }
    }
}

static void a_matrix_turns(void **state)
{
    (void)state;
    registers r;
    init(&r);
    for (uint32_t lane = 0; lane < 32; lane++) /* element [i][j] is 8 i + j */
        set_word(&r, 0, (int)lane, (2 * lane + 1) << 16 | (2 * lane));
    ptx_movmatrix(r.views[0], r.views[0]);
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t i = lane / 4, j = lane % 4 * 2;
        assert_int_equal(word(&r, 0, (int)lane), (8 * (j + 1) + i) << 16 | (8 * j + i));
    }
}

static void rows_that_are_no_rows(void **state)
{
    (void)state;
    uint32_t address[32];
    registers r;
    ptx_why why;
    init(&r);
    draw_rows(address);
    assert_false(ptx_ldmatrix(3, false, r.views, &shared, address, &why));
    address[31] += 8;
    assert_true(ptx_ldmatrix(2, false, r.views, &shared, address, &why));
    assert_false(ptx_ldmatrix(4, false, r.views, &shared, address, &why));
    address[31] = BASE + BYTES;
    assert_false(ptx_ldmatrix(4, false, r.views, &shared, address, &why));
    address[31] = BASE - 16;
    assert_false(ptx_stmatrix(4, false, &shared, address, r.views, &why));
    address[31] = address[5];
    assert_true(ptx_ldmatrix(4, false, r.views, &shared, address, &why));
    assert_false(ptx_stmatrix(4, false, &shared, address, r.views, &why));
    assert_string_equal(why.text, "stmatrix: lanes 5 and 31 both write at 0xf90");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(products_that_there_are_none_of),
        cmocka_unit_test(matrices_come_and_go),
        cmocka_unit_test(a_matrix_turns),
        cmocka_unit_test(rows_that_are_no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
