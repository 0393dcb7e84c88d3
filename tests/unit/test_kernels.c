/* test_kernels.c - the CPU kernels, block by block, against float64 and against themselves. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/dtype.h"
#include "kernels/gemm/args.h"
#include "kernels/kernels.h"
#include "kernels/push/args.h"
#include "kernels/reduce/args.h"

static const int dtypes[] = { IMBREX_BF16, IMBREX_F16, IMBREX_F32 };
static const char *const dtype_names[] = { "default", "bf16", "f16", "f32" };
static const double dtype_steps[] = { 0, 0x1p-8, 0x1p-11, 0x1p-24 }; /* half a step, relative */

/* ---- Memory with guards, random values ------------------------------------------------------- */

enum { GUARD = 256, GUARD_BYTE = 0xa5 };

/* bytes of memory between two guards, all filled with the guard's byte, off the alignment of
 * anything but an element. */
static char *guarded_new(size_t bytes)
{
    char *raw = malloc(bytes + 2 * GUARD + 4);
    assert_non_null(raw);
    memset(raw, GUARD_BYTE, bytes + 2 * GUARD + 4);
    return raw + GUARD + 4;
}

static void guarded_check(const char *ptr, size_t bytes)
{
    for (int i = 1; i <= GUARD; i++) {
        assert_int_equal((unsigned char)ptr[-i], GUARD_BYTE);
        assert_int_equal((unsigned char)ptr[bytes + (size_t)i - 1], GUARD_BYTE);
    }
}

static void guarded_free(char *ptr)
{
    free(ptr - GUARD - 4);
}

static uint32_t random_state = 1;

static float random_float(void)
{
    random_state = random_state * 1664525 + 1013904223;
    return (float)(int32_t)random_state * 0x1p-31f;
}

static float element(int dtype, const void *array, int64_t i)
{
    if (dtype == IMBREX_BF16)
        return imx_dtype_from_bf16(((const uint16_t *)array)[i]);
    if (dtype == IMBREX_F16)
        return imx_dtype_from_f16(((const uint16_t *)array)[i]);
    return ((const float *)array)[i];
}

static char *random_new(int dtype, int64_t count)
{
    char *ptr = guarded_new((size_t)(count * imx_dtype_size(dtype)));
    for (int64_t i = 0; i < count; i++) {
        float x = random_float();
        imx_dtype_narrow(dtype, &x, ptr + i * imx_dtype_size(dtype), 1);
    }
    return ptr;
}

/* ---- A rank's surroundings ------------------------------------------------------------------- */

static uint64_t abort_words[16];
static uint64_t *const abort_list[16] = { &abort_words[0], &abort_words[1], &abort_words[2],
                                          &abort_words[3] };
static imbrexd_fault fault;
static imbrexd_watch watch;

static int set_up(void **state)
{
    (void)state;
    memset(abort_words, 0, sizeof abort_words);
    memset(&fault, 0, sizeof fault);
    watch = (imbrexd_watch){ .abort = abort_list,
                             .fault = &fault,
                             .rank = 1,
                             .size = 4,
                             .spins = 100,
                             .timeout_ns = 10000000000 };
    return 0;
}

/* Runs a kernel's blocks one after another. */
static void run_blocks(const imx_kernel *kernel, const void *args, int count, imbrexd_trace *trace)
{
    size_t bytes = kernel->cpu_scratch ? kernel->cpu_scratch(args) : 0;
    char *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(scratch);
    memset(scratch + bytes, GUARD_BYTE, 64);
    for (int i = 0; i < count; i++) {
        imbrexd_block block = { .index = i,
                                .count = count,
                                .stream = 5,
                                .watch = &watch,
                                .scratch = bytes ? scratch : NULL,
                                .trace = trace };
        kernel->cpu(args, &block);
    }
    for (int i = 0; i < 64; i++)
        assert_int_equal((unsigned char)scratch[bytes + (size_t)i], GUARD_BYTE);
    free(scratch);
}

/* ---- GEMM ------------------------------------------------------------------------------------ */

typedef struct gemm_case {
    imx_gemm_args args;
    char *a, *b, *bias, *c;
    size_t c_bytes;
} gemm_case;

/* Sizes of the tiles are small so that small products have many. */
static gemm_case gemm_new(int dtype, int layout, bool bias, int64_t m, int64_t n, int64_t k)
{
    gemm_case g = { .args = { .schedule = { .m = m,
                                            .n = n,
                                            .ranks = 3,
                                            .first = 1,
                                            .chunk_rows = 16,
                                            .tile_rows = 8,
                                            .tile_cols = 24,
                                            .group = 2,
                                            .chunks = (int)(m / 3 / 16 + 2) },
                              .k = k,
                              .dtype = dtype,
                              .out = dtype,
                              .layout = layout,
                              .own = -1,
                              .slices = 1,
                              .plan = 9 } };
    g.a = random_new(dtype, m * k);
    g.b = random_new(dtype, n * k);
    g.bias = random_new(dtype, n);
    g.c_bytes = (size_t)(m * n * imx_dtype_size(dtype));
    g.c = guarded_new(g.c_bytes);
    g.args.a = g.a;
    g.args.b = g.b;
    g.args.bias = bias ? g.bias : NULL;
    g.args.c = g.c;
    return g;
}

static void gemm_free(gemm_case *g)
{
    guarded_free(g->a);
    guarded_free(g->b);
    guarded_free(g->bias);
    guarded_free(g->c);
}

static void gemm_check(const gemm_case *g)
{
    const imx_gemm_args *p = &g->args;
    int64_t m = p->schedule.m, n = p->schedule.n, k = p->k;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double want = p->bias ? element(p->dtype, g->bias, j) : 0, size = fabs(want);
            for (int64_t x = 0; x < k; x++) {
                int64_t at = p->layout == IMBREX_NK ? j * k + x : x * n + j;
                double product =
                    (double)element(p->dtype, g->a, i * k + x) * element(p->dtype, g->b, at);
                want += product;
                size += fabs(product);
            }
            double have = element(p->dtype, g->c, i * n + j);
            double allowed =
                dtype_steps[p->dtype] * fabs(want) + (double)(k + 2) * 0x1p-23 * size + 0x1p-25;
            if (!(fabs(have - want) <= allowed))
                fail_msg("%s layout %d m %lld n %lld k %lld: c[%lld, %lld] is %.9g, not %.9g "
                         "(+- %.3g)",
                         dtype_names[p->dtype], p->layout, (long long)m, (long long)n, (long long)k,
                         (long long)i, (long long)j, have, want, allowed);
        }
    guarded_check(g->c, g->c_bytes);
}

/* What c holds, which is then as new. */
static char *gemm_take(gemm_case *g)
{
    char *c = malloc(g->c_bytes);
    assert_non_null(c);
    memcpy(c, g->c, g->c_bytes);
    memset(g->c, GUARD_BYTE, g->c_bytes);
    return c;
}

static void gemm_is_right_and_the_same_in_any_split(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = { { 1, 1, 1 },    { 1, 1, 0 },    { 5, 3, 0 },
                                         { 1, 37, 19 },  { 2, 24, 7 },   { 67, 53, 31 },
                                         { 48, 48, 64 }, { 97, 1, 130 }, { 33, 25, 300 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int c = 0; c < 12; c++) {
            gemm_case g = gemm_new(dtypes[c % 3], c / 3 % 2 ? IMBREX_KN : IMBREX_NK, c / 6,
                                   shapes[i][0], shapes[i][1], shapes[i][2]);
            run_blocks(&imx_kernel_gemm, &g.args, 1, NULL);
            gemm_check(&g);
            char *whole = gemm_take(&g);
            g.args.schedule.first = 2;
            run_blocks(&imx_kernel_gemm, &g.args, 3, NULL);
            assert_memory_equal(g.c, whole, g.c_bytes);
            guarded_check(g.c, g.c_bytes);
            free(whole);
            gemm_free(&g);
        }
}

static void gemm_of_nothing_writes_nothing(void **state)
{
    (void)state;
    uint64_t epoch = 1, done[8] = { 0 };
    uint32_t counters[8] = { 0 };
    for (int i = 0; i < 2; i++) {
        gemm_case g = gemm_new(IMBREX_BF16, IMBREX_NK, false, i ? 5 : 0, i ? 0 : 5, 3);
        g.args.epoch = &epoch;
        g.args.done = done;
        g.args.counters = counters;
        run_blocks(&imx_kernel_gemm, &g.args, 2, NULL);
        guarded_check(g.c, 0);
        assert_int_equal(done[0], 0);
        gemm_free(&g);
    }
}

/* Own rows from a, the others from gathered: the bits of the whole product.  What gathered holds in
 * the place of own rows is not looked at. */
static void gemm_takes_own_rows_from_a(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int own = 0; own < 3; own++) {
            gemm_case g = gemm_new(dtypes[d], IMBREX_NK, true, 70, 50, 33);
            run_blocks(&imx_kernel_gemm, &g.args, 1, NULL);
            char *whole = gemm_take(&g);

            const imx_schedule *s = &g.args.schedule;
            size_t row_bytes = (size_t)(g.args.k * imx_dtype_size(dtypes[d]));
            size_t at = (size_t)imx_schedule_row(s, own) * row_bytes;
            size_t bytes = (size_t)imx_schedule_rows(s, own) * row_bytes;
            char *mine = guarded_new(bytes);
            memcpy(mine, g.a + at, bytes);
            memset(g.a + at, 0xff, bytes); /* NaN */
            g.args.own = own;
            g.args.features = own < 0 ? 0 : IMX_GEMM_GATHERS;
            g.args.gathered = g.a;
            g.args.a = mine;
            run_blocks(&imx_kernel_gemm, &g.args, 2, NULL);
            assert_memory_equal(g.c, whole, g.c_bytes);
            guarded_free(mine);
            free(whole);
            gemm_free(&g);
        }
}

/* Whichever block finishes a chunk posts, once the chunk is whole, with the value of epoch. */
static void gemm_posts_each_chunk_when_it_is_done(void **state)
{
    (void)state;
    gemm_case g = gemm_new(IMBREX_F16, IMBREX_KN, false, 100, 50, 8);
    const imx_schedule *s = &g.args.schedule;
    uint64_t epoch = 41, *done = calloc((size_t)(s->chunks * 3), sizeof *done);
    uint32_t *counters = calloc((size_t)(s->chunks * 3), sizeof *counters);
    assert_non_null(done);
    assert_non_null(counters);
    g.args.epoch = &epoch;
    g.args.done = done;
    g.args.counters = counters;

    for (int run = 0; run < 2; run++, epoch++) {
        imbrexd_block block = { .count = 2, .watch = &watch };
        block.scratch = aligned_alloc(64, (imx_kernel_gemm.cpu_scratch(&g.args) + 63) / 64 * 64);
        assert_non_null(block.scratch);
        imx_kernel_gemm.cpu(&g.args, &block); /* every other tile: every chunk has more than one */
        for (int i = 0; i < s->chunks * 3; i++)
            assert_int_equal(done[i], run ? (done[i] ? 41 : 0) : 0);
        block.index = 1;
        imx_kernel_gemm.cpu(&g.args, &block);
        for (int r = 0; r < 3; r++)
            for (int q = 0; q < s->chunks; q++) {
                bool exists = q < imx_schedule_chunks(s, r);
                assert_int_equal(done[r * s->chunks + q], exists ? epoch : 0);
                assert_int_equal(counters[r * s->chunks + q], 0);
            }
        free(block.scratch);
    }
    gemm_check(&g);
    free(done);
    free(counters);
    gemm_free(&g);
}

static int64_t held[5]; /* see imbrexd_watch */

/* Posts rank 0's chunks, and once somebody waits for rank 2 all others, some milliseconds apart. */
static void *post_late(void *ready)
{
    const struct timespec nap = { .tv_nsec = 3000000 };
    for (int i = 0; i < 2; i++)
        imbrexd_signal_post((uint64_t *)ready + i, 7);
    while (!__atomic_load_n(&held[2], __ATOMIC_RELAXED))
        nanosleep(&nap, NULL);
    for (int i = 2; i < 12; i++) {
        nanosleep(&nap, NULL);
        imbrexd_signal_post((uint64_t *)ready + i, 7);
    }
    return NULL;
}

/* 3 ranks of 32 rows, 2 chunks each, of 4 that chunk numbers leave room for.  Own is rank 1; then
 * comes rank 2, whose first chunk is late and whose second is there from the start. */
static void gemm_waits_for_chunks_and_records_it(void **state)
{
    (void)state;
    gemm_case g = gemm_new(IMBREX_F32, IMBREX_NK, false, 96, 50, 8);
    uint64_t epoch = 7, ready[3 * 8] = { 0 };
    imbrex_span spans[64] = { { 0 } };
    imbrexd_trace trace = { .spans = spans, .capacity = 64 };
    assert_int_equal(g.args.schedule.chunks, 4);
    g.args.own = 1;
    g.args.features = IMX_GEMM_GATHERS;
    g.args.a = g.a + 32 * 8 * 4;
    g.args.gathered = g.a;
    g.args.epoch = &epoch;
    g.args.ready = ready;
    pthread_t thread;
    memset(held, 0, sizeof held);
    watch.waiting = held;
    ready[2 * 4 + 1] = 7; /* no wait to record */
    assert_int_equal(pthread_create(&thread, NULL, post_late, ready), 0);
    run_blocks(&imx_kernel_gemm, &g.args, 1, &trace);
    pthread_join(thread, NULL);
    gemm_check(&g);

    int tiles = (int)imx_schedule_tiles(&g.args.schedule), waits = 0;
    for (size_t i = 0; i < trace.count; i++) {
        const imbrex_span *span = &spans[i];
        assert_int_equal(span->stream, 5);
        assert_int_equal(span->lane, 1);
        assert_true(span->begin_ns > 0 && span->end_ns >= span->begin_ns);
        if (span->kind == IMBREX_SPAN_WAIT) {
            assert_string_equal(span->name, "wait");
            assert_true(span->peer == 0 || span->peer == 2);
            assert_true(span->index >= 0 && span->index < 2);
            assert_false(span->peer == 2 && span->index == 1);
            waits++;
        } else {
            assert_int_equal(span->kind, IMBREX_SPAN_TILE);
            assert_string_equal(span->name, "tile");
            assert_int_equal(span->index, (int)i - waits);
            assert_int_equal(span->peer, imx_schedule_tile(&g.args.schedule, span->index).rank);
        }
    }
    assert_int_equal(trace.count, tiles + waits);
    assert_true(waits >= 1); /* for rank 2; rank 0's are posted before they are needed */
    gemm_free(&g);
}

/* Rank 2's second chunk never comes: the wait's deadline names it, and no later tile is touched. */
static void gemm_gives_up_at_the_deadline(void **state)
{
    (void)state;
    gemm_case g = gemm_new(IMBREX_BF16, IMBREX_NK, false, 96, 50, 8);
    uint64_t epoch = 7, ready[3 * 8] = { 0 }, done[3 * 8] = { 0 };
    uint32_t counters[3 * 8] = { 0 };
    int stride = g.args.schedule.chunks;
    for (int i = 0; i < 3 * stride; i++)
        ready[i] = i == 2 * stride + 1 ? 6 : 7;
    g.args.own = 3; /* none of them */
    g.args.epoch = &epoch;
    g.args.ready = ready;
    g.args.done = done;
    g.args.counters = counters;
    watch.timeout_ns = 20000000;
    run_blocks(&imx_kernel_gemm, &g.args, 1, NULL);
    assert_int_equal(fault.state, 2);
    assert_int_equal(fault.kind, IMBREXD_FAULT_DEADLINE);
    assert_int_equal(fault.point.plan, 9);
    assert_int_equal(fault.point.what, IMX_POINT_CHUNK);
    assert_int_equal(fault.point.rank, 2);
    assert_int_equal(fault.point.index, 1);
    assert_int_equal(fault.have, 6);
    assert_int_equal(fault.want, 7);
    assert_int_equal(done[2 * stride], 7);
    assert_int_equal(done[2 * stride + 1], 0);
    assert_int_equal(done[0], 0);
    for (size_t i = 80 * 50 * 2; i < g.c_bytes; i++) /* rows of the chunk that is missing */
        assert_int_equal((unsigned char)g.c[i], GUARD_BYTE);
    gemm_free(&g);
}

/* ---- Reduce ---------------------------------------------------------------------------------- */

/* One element at a time, in the order that the contract gives. */
static void reduce_one(const imx_reduce_args *p, int64_t row, int64_t col, void *out)
{
    volatile float sum = 0;
    for (int r = 0; r < p->ranks; r++) {
        const char *from = r == p->own ? p->own_part : (const char *)p->slots + r * p->slot_bytes;
        float x = element(p->dtype, from, row * p->n + col);
        sum = r ? sum + x : x;
    }
    if (p->bias)
        sum = sum + element(p->dtype, p->bias, col);
    float rounded = sum;
    imx_dtype_narrow(p->dtype, &rounded, out, 1);
}

static imx_reduce_args reduce_new(int dtype, int ranks, int64_t rows, int64_t n)
{
    int64_t bytes = rows * n * imx_dtype_size(dtype) + 32;
    return (imx_reduce_args){ .rows = rows,
                              .n = n,
                              .dtype = dtype,
                              .ranks = ranks,
                              .own = ranks / 2,
                              .chunk_rows = 4,
                              .chunks = (int)(rows / 4) + 2,
                              .plan = 3,
                              .every = 1,
                              .slots = random_new(dtype, ranks * bytes / imx_dtype_size(dtype)),
                              .own_part = random_new(dtype, rows * n),
                              .slot_bytes = bytes,
                              .c = guarded_new((size_t)(rows * n * imx_dtype_size(dtype))) };
}

static void reduce_free(imx_reduce_args *p)
{
    guarded_free((char *)p->slots);
    guarded_free((char *)p->own_part);
    guarded_free(p->c);
}

static void reduce_adds_in_rank_order(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = { { 0, 5 },  { 5, 0 },    { 1, 1 },     { 4, 16 },
                                         { 13, 7 }, { 3, 1024 }, { 11, 1025 }, { 5, 3000 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int c = 0; c < 24; c++) {
            static const int ranks[] = { 1, 2, 5, 8 };
            int dtype = dtypes[c % 3];
            int64_t size = imx_dtype_size(dtype);
            imx_reduce_args p = reduce_new(dtype, ranks[c / 3 % 4], shapes[i][0], shapes[i][1]);
            char *bias = random_new(dtype, p.n);
            p.bias = c / 12 ? bias : NULL;
            for (int blocks = 1; blocks <= 3; blocks += 2) {
                memset(p.c, GUARD_BYTE, (size_t)(p.rows * p.n * size));
                run_blocks(&imx_kernel_reduce, &p, blocks, NULL);
                guarded_check(p.c, (size_t)(p.rows * p.n * size));
                for (int64_t x = 0; x < p.rows * p.n; x++) {
                    uint32_t want = 0, have = 0;
                    reduce_one(&p, x / p.n, x % p.n, &want);
                    memcpy(&have, (char *)p.c + x * size, (size_t)size);
                    assert_int_equal(have, want);
                }
            }
            guarded_free(bias);
            reduce_free(&p);
        }
}

/* One rank's part of chunk 2 is missing: chunks 0 and 1 are written, nothing after. */
static void reduce_gives_up_at_the_deadline(void **state)
{
    for (int missing = 0; missing < 3; missing += 2) {
        set_up(state);
        imx_reduce_args p = reduce_new(IMBREX_F32, 3, 14, 20);
        uint64_t epoch = 5, arrived[3 * 8] = { 0 };
        p.epoch = &epoch;
        p.arrived = arrived;
        for (int i = 0; i < 3 * p.chunks; i++) /* own is rank 1 */
            arrived[i] = i / p.chunks == 1 || i == missing * p.chunks + 2 ? 0 : 5;
        watch.timeout_ns = 20000000;
        run_blocks(&imx_kernel_reduce, &p, 1, NULL);
        assert_int_equal(fault.state, 2);
        assert_int_equal(fault.point.plan, 3);
        assert_int_equal(fault.point.what, IMX_POINT_PART);
        assert_int_equal(fault.point.rank, missing);
        assert_int_equal(fault.point.index, 2);
        for (int64_t x = 0; x < 14 * 20; x++) {
            float want, have = ((float *)p.c)[x];
            memset(&want, GUARD_BYTE, sizeof want);
            if (x < 8 * 20)
                reduce_one(&p, x / 20, x % 20, &want);
            assert_memory_equal(&have, &want, 4);
        }
        reduce_free(&p);
    }
}

/* A peer's memory is written again when the peer is done with what was there: with the latest epoch
 * before, of all that have the same place, and with no later one, for which it would wait long. */
static void credits_are_of_who_had_the_place(void **state)
{
    (void)state;
    enum { OTHERS = 3 };
    char data[8192];
    imx_push_args args = { .lines_at = 64, .line_bytes = 96, .team = { .size = OTHERS } };
    for (int r = 0; r < OTHERS; r++)
        args.team.base[r] = data;
    for (uint64_t epoch = 1; epoch < 10; epoch++) {
        uint64_t ago = 1;
        args.lines = 0; /* chunks have one place */
        assert_int_equal(imx_push_credit(&args, epoch), epoch - 1);
        args.lines = 1;
        while (imx_push_lines(&args, 0, 1, epoch - ago) != imx_push_lines(&args, 0, 1, epoch))
            ago++;
        assert_int_equal(imx_push_credit(&args, epoch), epoch > ago ? epoch - ago : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(credits_are_of_who_had_the_place),
        cmocka_unit_test_setup(gemm_is_right_and_the_same_in_any_split, set_up),
        cmocka_unit_test_setup(gemm_of_nothing_writes_nothing, set_up),
        cmocka_unit_test_setup(gemm_takes_own_rows_from_a, set_up),
        cmocka_unit_test_setup(gemm_posts_each_chunk_when_it_is_done, set_up),
        cmocka_unit_test_setup(gemm_waits_for_chunks_and_records_it, set_up),
        cmocka_unit_test_setup(gemm_gives_up_at_the_deadline, set_up),
        cmocka_unit_test_setup(reduce_adds_in_rank_order, set_up),
        cmocka_unit_test(reduce_gives_up_at_the_deadline),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
