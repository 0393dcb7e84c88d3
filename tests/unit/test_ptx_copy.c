/* test_ptx_copy.c - the fake GPU's copy engine and barriers: boxes of tensors of every rank against
 * a copy element by element, and what the driver and the engine refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ptx_tensor.h"

enum { BASE = 1024, BYTES = 64 * 1024, TENSOR = 1 << 16, MOST = 5 };

static unsigned char memory[BYTES];
static const ptx_shared shared = { .bytes = memory, .base = BASE, .size = BYTES };
static _Alignas(128) unsigned char tensor[TENSOR], expected[TENSOR];
static _Alignas(64) unsigned char map[128];

/* All that the engine may look at. */
static uint64_t reach_from, reach_to;

static void *find(void *context, uint64_t address, uint64_t bytes, bool writes)
{
    (void)writes;
    bool within = address >= reach_from && bytes <= reach_to - address && address < reach_to;
    assert_ptr_equal(context, tensor);
    return within ? (void *)(uintptr_t)address : NULL;
}

static const ptx_memory reach = { .find = find, .context = tensor };

/* ---- boxes ----------------------------------------------------------------------------------- */

typedef struct box_case {
    int dtype, swizzle;
    uint32_t rank, element, box[MOST], steps[MOST];
    uint64_t sizes[MOST], strides[MOST - 1];
} box_case;

static uint32_t among(uint32_t from, uint32_t to)
{
    return from + (uint32_t)rand() % (to - from + 1);
}

static box_case any_case(void)
{
    static const struct {
        int dtype;
        uint32_t bytes;
    } kinds[] = { { 0, 1 }, { 9, 2 }, { 6, 2 }, { 7, 4 }, { 8, 8 } };
    uint32_t kind = among(0, 4);
    box_case c = { .dtype = kinds[kind].dtype,
                   .element = kinds[kind].bytes,
                   .rank = among(1, MOST),
                   .swizzle = (int)among(0, 3) };
    uint64_t stride = 0;
    uint32_t row = c.swizzle ? 16u << c.swizzle : 16 * among(1, 8);
    for (uint32_t i = 0; i < c.rank; i++) {
        c.box[i] = i ? among(1, c.rank > 3 ? 3 : 9) : row / c.element;
        c.sizes[i] = i ? among(1, c.rank > 3 ? 4 : 12) : among(1, 160 / c.element);
        c.steps[i] = 1;
        stride = i ? stride * c.sizes[i] : (c.sizes[0] * c.element + 15) / 16 * 16;
        stride += 16 * among(0, 1);
        if (i + 1 < c.rank)
            c.strides[i] = stride;
    }
    return c;
}

static bool encode(const box_case *c, ptx_why *why)
{
    return ptx_map_encode(map, c->dtype, c->rank, tensor, c->sizes, c->strides, c->box, c->steps, 0,
                          c->swizzle, 2, 0, why);
}

/* Where element e of the box at x is in shared memory, and in the tensor or -1.  The engine moves
 * units of 16 bytes within what the swizzle spans, by the row of 128 bytes. */
static int64_t place(const box_case *c, const int32_t *x, uint32_t e, uint32_t *there)
{
    static const uint32_t every[] = { 1, 4, 2, 1 }; /* rows of its own a step of the pattern has */
    static const uint32_t rows[] = { 1, 2, 4, 8 };
    uint32_t bytes = e * c->element, row_bytes = c->box[0] * c->element;
    uint32_t row = bytes / row_bytes, unit = bytes % row_bytes / 16;
    if (c->swizzle)
        unit ^= row / every[c->swizzle] % rows[c->swizzle];
    *there = row * row_bytes + unit * 16 + bytes % 16;
    int64_t at = 0;
    for (uint32_t i = 0; i < c->rank; i++) {
        int64_t index = x[i] + (int64_t)(e % c->box[i]);
        e /= c->box[i];
        if (index < 0 || index >= (int64_t)c->sizes[i])
            return -1;
        at += index * (int64_t)(i ? c->strides[i - 1] : c->element);
    }
    return at;
}

static void fill(unsigned char *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)(1 + rand() % 255);
}

static void boxes_come_and_go(void **state)
{
    (void)state;
    for (int turn = 0; turn < 200; turn++) {
        box_case c = any_case();
        uint32_t elements = 1, bytes, at = among(0, 3) * 1024;
        int32_t x[MOST];
        ptx_why why = { "" };
        if (!encode(&c, &why))
            fail_msg("%s", why.text);
        for (uint32_t i = 0; i < c.rank; i++) {
            elements *= c.box[i];
            x[i] = (int32_t)among(0, (uint32_t)c.sizes[i] + c.box[i]) - (int32_t)c.box[i];
        }
        reach_from = (uintptr_t)tensor;
        reach_to = reach_from + (c.rank > 1 ? c.sizes[c.rank - 1] * c.strides[c.rank - 2]
                                            : c.sizes[0] * c.element);

        fill(tensor, TENSOR);
        memset(memory, 0xee, sizeof memory);
        assert_true(ptx_map_load(map, c.rank, x, &reach, &shared, BASE + at, &bytes, &why));
        assert_int_equal(bytes, elements * c.element);
        for (uint32_t e = 0; e < elements; e++) {
            static const unsigned char zeros[8] = { 0 };
            uint32_t there;
            int64_t from = place(&c, x, e, &there);
            if (memcmp(memory + at + there, from < 0 ? zeros : tensor + from, c.element) != 0)
                fail_msg("element %u is wrong", (unsigned)e);
        }
        for (uint32_t i = 0; i < BYTES; i++)
            if ((i < at || i >= at + bytes) && memory[i] != 0xee)
                fail_msg("byte %u is not the box's", (unsigned)i);

        fill(memory, sizeof memory);
        memcpy(expected, tensor, TENSOR);
        assert_true(ptx_map_store(map, c.rank, x, &reach, &shared, BASE + at, &why));
        for (uint32_t e = 0; e < elements; e++) {
            uint32_t there;
            int64_t to = place(&c, x, e, &there);
            if (to >= 0)
                memcpy(expected + to, memory + at + there, c.element);
        }
        assert_memory_equal(tensor, expected, TENSOR);
    }
}

static const box_case plain = {
    .dtype = 9,
    .swizzle = 3,
    .rank = 2,
    .element = 2,
    .box = { 64, 8 },
    .steps = { 1, 1 },
    .sizes = { 100, 20 },
    .strides = { 208 },
};

static void boxes_that_are_refused(void **state)
{
    (void)state;
    int32_t x[3] = { 0, 0, 0 };
    uint32_t bytes;
    ptx_why why;
    memset(map, 0, sizeof map);
    assert_false(ptx_map_load(map, 2, x, NULL, &shared, BASE, &bytes, &why));
    assert_false(ptx_map_prefetch(map, 2, &why));
    assert_true(encode(&plain, &why));
    assert_true(ptx_map_prefetch(map, 2, &why));
    assert_true(ptx_map_load(map, 2, x, NULL, &shared, BASE, &bytes, &why));
    assert_false(ptx_map_load(map, 3, x, NULL, &shared, BASE, &bytes, &why));
    assert_false(ptx_map_load(map, 2, x, NULL, &shared, BASE + 64, &bytes, &why));
    assert_false(ptx_map_load(map, 2, x, NULL, &shared, BASE + BYTES - 896, &bytes, &why));
    assert_false(ptx_map_store(map, 2, x, NULL, &shared, BASE - 1024, &why));
    reach_from = (uintptr_t)tensor, reach_to = reach_from + 8 * 208 - 100;
    assert_false(ptx_map_load(map, 2, x, &reach, &shared, BASE, &bytes, &why));
    x[1] = -1;
    assert_true(ptx_map_load(map, 2, x, &reach, &shared, BASE, &bytes, &why));
}

static void refuse(const box_case *c)
{
    ptx_why why = { "" };
    assert_false(encode(c, &why));
    assert_string_not_equal(why.text, "");
}

/* The plain one, but for this. */
#define REFUSED(but)        \
    do {                    \
        box_case c = plain; \
        c.but;              \
        refuse(&c);         \
    } while (0)

static void maps_that_are_refused(void **state)
{
    (void)state;
    ptx_why why;
    REFUSED(dtype = 13);
    REFUSED(dtype = -1);
    REFUSED(rank = 0);
    REFUSED(rank = 6);
    REFUSED(sizes[1] = 0);
    REFUSED(sizes[0] = ((uint64_t)1 << 32) + 1);
    REFUSED(strides[0] = 200);
    REFUSED(strides[0] = (uint64_t)1 << 40);
    REFUSED(box[1] = 0);
    REFUSED(box[1] = 257);
    REFUSED(box[0] = 4);
    REFUSED(box[0] = 72);
    REFUSED(box[0] = 32);
    REFUSED(steps[1] = 9);
    REFUSED(swizzle = 4);
    assert_false(ptx_map_encode(map + 16, 9, 2, tensor, plain.sizes, plain.strides, plain.box,
                                plain.steps, 0, 3, 2, 0, &why));
    assert_false(ptx_map_encode(map, 9, 2, tensor + 8, plain.sizes, plain.strides, plain.box,
                                plain.steps, 0, 3, 2, 0, &why));
    assert_false(ptx_map_encode(map, 9, 2, tensor, plain.sizes, plain.strides, plain.box,
                                plain.steps, 1, 3, 2, 0, &why));
}

/* ---- without a map --------------------------------------------------------------------------- */

static void bytes_come_and_go(void **state)
{
    (void)state;
    uint64_t at = (uintptr_t)tensor;
    ptx_why why;
    fill(tensor, TENSOR);
    memset(memory, 0xee, sizeof memory);
    reach_from = at, reach_to = at + 4096;
    assert_true(ptx_bulk_load(&shared, BASE + 16, &reach, at + 32, 4064, &why));
    assert_memory_equal(memory + 16, tensor + 32, 4064);
    assert_int_equal(memory[15], 0xee);
    assert_int_equal(memory[16 + 4064], 0xee);
    assert_true(ptx_bulk_store(&reach, at, &shared, BASE + 32, 1024, &why));
    assert_memory_equal(tensor, memory + 32, 1024);
    assert_true(ptx_bulk_pass(&shared, BASE + 8192, &shared, BASE, 48, &why));
    assert_memory_equal(memory + 8192, memory, 48);
    assert_false(ptx_bulk_load(&shared, BASE + 16, &reach, at + 48, 4064, &why));
    assert_false(ptx_bulk_load(&shared, BASE + 8, NULL, at, 64, &why));
    assert_false(ptx_bulk_load(&shared, BASE, NULL, at + 8, 64, &why));
    assert_false(ptx_bulk_store(NULL, at, &shared, BASE, 8, &why));
    assert_false(ptx_bulk_pass(&shared, BASE + BYTES - 16, &shared, BASE, 32, &why));

    for (uint32_t size = 4; size <= 16; size *= 2) {
        for (uint32_t filled = 0; filled <= size; filled++) {
            static const unsigned char zeros[16] = { 0 };
            memset(memory, 0xee, 64);
            assert_true(ptx_copy_async(&shared, BASE + 16, &reach, at + 16, size, filled, &why));
            assert_memory_equal(memory + 16, tensor + 16, filled);
            assert_memory_equal(memory + 16 + filled, zeros, size - filled);
            assert_int_equal(memory[16 + size], 0xee);
        }
        assert_false(ptx_copy_async(&shared, BASE + 2, NULL, at, size, size, &why));
        assert_false(ptx_copy_async(&shared, BASE, NULL, at + 2, size, 0, &why));
    }
    assert_false(ptx_copy_async(&shared, BASE, NULL, at, 12, 12, &why));
    assert_false(ptx_copy_async(&shared, BASE, NULL, at, 8, 9, &why));
    assert_false(ptx_copy_async(&shared, BASE, &reach, at + 4096, 16, 1, &why));
    assert_true(ptx_copy_async(&shared, BASE, &reach, at + 4096, 16, 0, &why)); /* reads nothing */
}

/* ---- barriers -------------------------------------------------------------------------------- */

enum { BAR = BASE + 64 };

static ptx_why said;

static bool over(uint32_t parity)
{
    bool is = false;
    assert_true(ptx_barrier_parity_over(&shared, BAR, parity, &is, &said));
    return is;
}

static void new_barrier(uint32_t arrivals)
{
    memset(memory, 0, sizeof memory);
    assert_true(ptx_barrier_init(&shared, BAR, arrivals, &said));
}

static bool arrive(uint32_t arrivals, uint32_t bytes)
{
    return ptx_barrier_arrive(&shared, BAR, arrivals, bytes, NULL, &said);
}

static bool complete(uint32_t bytes)
{
    return ptx_barrier_complete(&shared, BAR, bytes, &said);
}

static void phases_end_by_arrivals_and_bytes(void **state)
{
    (void)state;
    uint64_t token;
    bool is;
    new_barrier(3);
    assert_true(over(1) && !over(0));
    assert_true(ptx_barrier_arrive(&shared, BAR, 1, 0, &token, &said));
    assert_true(ptx_barrier_over(&shared, BAR, token, &is, &said) && !is);
    assert_true(arrive(2, 0));
    assert_true(over(0) && !over(1));
    assert_true(ptx_barrier_over(&shared, BAR, token, &is, &said) && is);

    assert_true(complete(32)); /* before anybody said so */
    assert_true(arrive(1, 96));
    assert_true(arrive(2, 0));
    assert_true(!over(1));
    ptx_barrier_describe(&shared, BAR, &said);
    assert_string_equal(said.text, "phase of parity 1: 0 of 3 arrivals and 64 bytes to come");
    assert_true(complete(48) && !over(1));
    assert_true(complete(16) && over(1));

    assert_true(ptx_barrier_expect(&shared, BAR, 16, &said));
    assert_true(arrive(3, 0) && !over(0));
    uint32_t words[] = { 1, 2, 3, 4 };
    assert_true(ptx_store_async(&shared, BASE + 128, words, 4, BAR, &said));
    assert_memory_equal(memory + 128, words, sizeof words);
    assert_true(over(0));
    assert_false(ptx_store_async(&shared, BASE + 136, words, 4, BAR, &said));
    assert_false(ptx_store_async(&shared, BASE + 128, words, 3, BAR, &said));
}

static void what_a_barrier_cannot_be(void **state)
{
    (void)state;
    new_barrier(2);
    assert_false(ptx_barrier_init(&shared, BAR, 2, &said));
    assert_true(ptx_barrier_end(&shared, BAR, &said));
    assert_false(ptx_barrier_end(&shared, BAR, &said));
    assert_false(arrive(1, 0));
    assert_false(ptx_barrier_init(&shared, BAR, 0, &said));
    assert_false(ptx_barrier_init(&shared, BAR, PTX_BARRIER_MOST + 1, &said));
    assert_false(ptx_barrier_init(&shared, BAR + 4, 1, &said));
    assert_true(ptx_barrier_init(&shared, BAR, PTX_BARRIER_MOST, &said));
    assert_true(arrive(PTX_BARRIER_MOST, PTX_BARRIER_MOST));
    assert_false(ptx_barrier_expect(&shared, BAR, 1, &said));
    assert_true(complete(PTX_BARRIER_MOST) && over(0));

    new_barrier(2);
    assert_false(arrive(3, 0));
    assert_string_equal(said.text, "mbarrier: 3 arrive at 0x440, where 2 of 2 are pending");
    assert_true(arrive(1, 0) && complete(16));
    assert_false(arrive(1, 0)); /* nobody expects them */
    assert_true(arrive(1, 32));
    assert_false(complete(32));
    assert_false(ptx_barrier_parity_over(&shared, BAR, 2, &(bool){ false }, &said));
    memset(memory, 0xff, sizeof memory);
    assert_false(arrive(1, 0));
    assert_false(ptx_barrier_over(&shared, BAR, 0, &(bool){ false }, &said));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_come_and_go),
        cmocka_unit_test(boxes_that_are_refused),
        cmocka_unit_test(maps_that_are_refused),
        cmocka_unit_test(bytes_come_and_go),
        cmocka_unit_test(phases_end_by_arrivals_and_bytes),
        cmocka_unit_test(what_a_barrier_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
