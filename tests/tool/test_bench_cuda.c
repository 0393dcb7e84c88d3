/* test_bench_cuda.c - what `imbrex bench` and `imbrex mlp` do on a GPU, on fake ones: their clock
 * holds and times a stream, the product by cuBLASLt is row-major, all of it runs on several ranks
 * and in graphs. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/bench.h"
#include "cli.h"
#include "cuda.h"
#include "fake_calls.h"
#include "fake_cublas.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "launch.h"
#include "mlp/mlp.h"
#include "sanitized.h"

/* ---- The clock ------------------------------------------------------------------------------- */

enum { HELD = 1 + 1 + 2 /* a context, a stream, events */ };

static double host_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void the_clock_holds_and_times(void **state)
{
    (void)state;
    cuda_timer *timer;
    double us, begin = host_ms();
    assert_int_equal(cuda_timer_open("cuda:3", &timer), IMBREX_OK);
    assert_int_equal(fake_calls.live, HELD);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cuda_timer_hold(timer), IMBREX_OK);
        assert_int_equal(cuda_timer_begin(timer), IMBREX_OK);
        assert_int_equal(cuda_timer_end(timer), IMBREX_OK);
        cuda_timer_release(timer);
        cuda_timer_release(timer); /* harmless */
        assert_int_equal(cuda_timer_us(timer, &us), IMBREX_OK);
        assert_true(us == 1e3 * FAKE_ELAPSED_MS);
    }
    assert_true(host_ms() - begin < 2500); /* who is not released goes on after a second */
    begin = host_ms();
    assert_int_equal(cuda_timer_hold(timer), IMBREX_OK);
    fake_calls_join(); /* nobody releases it */
    assert_in_range((int)(host_ms() - begin), 900, 20000);
    cuda_timer_close(timer);
    assert_int_equal(fake_calls.live, 0);
}

static void a_clock_that_fails_says_why(void **state)
{
    (void)state;
    static const char *const calls[] = { "cuDeviceGet", "cuDevicePrimaryCtxRetain",
                                         "cuCtxSetCurrent", "cuEventCreate" };
    cuda_timer *timer = NULL;
    for (int i = 0; i < 4; i++) {
        fake_calls.failing = calls[i];
        assert_int_equal(cuda_timer_open("cuda:0", &timer), IMBREX_DEVICE);
        char expected[128];
        snprintf(expected, sizeof expected,
                 "cannot time on the GPU: %s says CUDA_ERROR_OUT_OF_MEMORY (2)", calls[i]);
        assert_string_equal(failure_text(IMBREX_DEVICE), expected);
        assert_null(timer);
        assert_int_equal(fake_calls.live, 0);
    }
    fake_calls.failing = NULL;
    assert_int_equal(cuda_timer_open("cpu:0", &timer), IMBREX_UNSUPPORTED);
    assert_string_equal(failure_text(IMBREX_UNSUPPORTED), "device cpu:0 has no clock of its own");
}

/* ---- cuBLASLt -------------------------------------------------------------------------------- */

static void a_product_is_row_major(void **state)
{
    (void)state;
    enum { M = 3, N = 4, K = 5 };
    const bench_op *op = bench_op_find("gemm");
    float a[M * K], b[N * K], c[M * N];
    char workspace[1];
    cublasLtHandle_t handle;
    assert_int_equal(cuda_blas_open(&handle), IMBREX_OK);
    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i % 7 - 3);
    for (int i = 0; i < N * K; i++)
        b[i] = (float)(i % 5 - 1);
    for (int order = IMBREX_NK; order <= IMBREX_KN; order++) {
        bench_shape shape = { .op = op, .m = M, .n = N, .k = K, .dtype = IMBREX_F32 };
        shape.layout = (imbrex_layout)order;
        cuda_blas_product product;
        fake_cublas.ways = 4;
        assert_int_equal(cuda_blas_prepare(handle, &shape, workspace, &product), IMBREX_OK);
        assert_int_equal(product.count, 2);
        const imbrex_args args = { .a = a, .b = b, .c = c };
        assert_int_equal(cuda_blas_run(&product, 1, &args, NULL), IMBREX_OK);
        assert_int_equal(fake_cublas.last_way, 2);
        for (int row = 0; row < M; row++)
            for (int col = 0; col < N; col++) {
                float sum = 0;
                for (int i = 0; i < K; i++)
                    sum += a[row * K + i] * (order == IMBREX_NK ? b[col * K + i] : b[i * N + col]);
                assert_int_equal((int)c[row * N + col], (int)sum);
            }
        cuda_blas_finish(&product);
    }
    cuda_blas_close(handle);
    assert_int_equal(fake_cublas.live, 0);
}

/* What a shape's bytes and its sizes follow from, read from an operator's row. */
static void rows_say_what_moves(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int product, a_is_shard, moves;
    } rows[] = { { "ag_gemm", 1, 1, 1 },        { "gemm_rs", 1, 0, 1 },
                 { "gemm_ar", 1, 0, 2 },        { "all_gather", 0, 1, 1 },
                 { "reduce_scatter", 0, 0, 1 }, { "all_reduce", 0, 0, 2 },
                 { "all_to_all", 0, 0, 1 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bench_op *op = bench_op_find(rows[i].name);
        assert_non_null(op);
        if (op->product != rows[i].product || op->a_is_shard != rows[i].a_is_shard ||
            op->moves != rows[i].moves || !op->info)
            fail_msg("%s: product %d, a is a shard %d, moves %d", op->name, op->product,
                     op->a_is_shard, op->moves);
    }
    char names[BENCH_OPS_TEXT];
    bench_op_names(BENCH_OPS_PRODUCTS, ",", names, sizeof names);
    assert_string_equal(names, "ag_gemm,gemm_rs,gemm_ar");
    assert_null(bench_op_find("gather"));
}

static void types_are_the_librarys(void **state)
{
    (void)state;
    static const int types[] = { [IMBREX_BF16] = 14, [IMBREX_F16] = 2, [IMBREX_F32] = 0 };
    cublasLtHandle_t handle;
    char workspace[1];
    assert_int_equal(cuda_blas_open(&handle), IMBREX_OK);
    for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++) {
        bench_shape shape = { .op = bench_op_find("gemm"), .m = 8, .n = 8, .k = 8 };
        shape.dtype = (imbrex_dtype)dtype;
        cuda_blas_product product;
        float zeros[64] = { 0 };
        const imbrex_args args = { .a = zeros, .b = zeros, .c = zeros };
        fake_cublas.ways = 1;
        assert_int_equal(cuda_blas_prepare(handle, &shape, workspace, &product), IMBREX_OK);
        assert_int_equal(cuda_blas_run(&product, 0, &args, NULL), IMBREX_OK);
        assert_int_equal(fake_cublas.type, types[dtype]);
        cuda_blas_finish(&product);
        fake_cublas.ways = 0;
        assert_int_equal(cuda_blas_prepare(handle, &shape, workspace, &product),
                         IMBREX_UNSUPPORTED);
        assert_string_equal(failure_text(IMBREX_UNSUPPORTED),
                            "cuBLASLt knows no way to compute this product");
        cuda_blas_finish(&product);
    }
    cuda_blas_close(handle);
    assert_int_equal(fake_cublas.live, 0);
}

/* ---- All of it, on fake GPUs ----------------------------------------------------------------- */

static bool is_clean(void)
{
    return fake_calls.live == 0 && fake_calls.graphs == 0 && fake_cublas.live == 0 &&
           fake_driver_live() == 0;
}

static int rank_main_of_bench(int rank, void *ctx)
{
    (void)rank;
    int code = bench_rank(ctx);
    return code ? code : is_clean() ? 0 : 99;
}

/* What rank 0 prints. */
static char *output_of(int (*run)(int rank, void *ctx), const void *request, int ranks)
{
    char path[] = "/tmp/imbrex-bench-XXXXXX";
    int file = mkstemp(path), out = dup(STDOUT_FILENO);
    launch_options launch = { .ranks = ranks, .output = LAUNCH_DIRECT, .grace_s = LAUNCH_GRACE_S };
    launch.timeout_s = 120;
    fflush(stdout);
    dup2(file, STDOUT_FILENO);
    int code = launch_ranks(&launch, run, (void *)request);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    off_t length = lseek(file, 0, SEEK_END);
    char *text = calloc(1, (size_t)length + 1);
    assert_int_equal(pread(file, text, (size_t)length, 0), length);
    close(out);
    close(file);
    unlink(path);
    assert_int_equal(code, 0);
    return text;
}

static void check_output(char *text, int lines, const char *const *words)
{
    int count = 0;
    for (char *at = text; (at = strchr(at, '\n')); at++)
        count++;
    if (count != lines)
        fail_msg("%d lines, not %d:\n%s", count, lines, text);
    for (; *words; words++)
        if (!strstr(text, *words))
            fail_msg("no %s in\n%s", *words, text);
    free(text);
}

static const bench_shape *shapes(void)
{
    static bench_shape list[3];
    static const char *const names[] = { "gemm", "ag_gemm", "gemm_rs" };
    for (int i = 0; i < 3; i++)
        list[i] = (bench_shape){
            .op = bench_op_find(names[i]), .m = 64, .n = 32, .k = 16, .dtype = IMBREX_F32
        };
    return list;
}

static bench_request request(void)
{
    return (bench_request){ .shapes = { NULL, shapes() },
                            .count = 3,
                            .device = "cuda",
                            .algorithms = { "copy" },
                            .algorithm_count = 1,
                            .peer = BENCH_PEER_CUBLAS,
                            .rounds = 2,
                            .warm = 1,
                            .json = true };
}

static void ranks_time_by_the_gpus_clock(void **state)
{
    (void)state;
    bench_request q = request();
    static const char *const words[] = { "\"clock\": \"gpu\"",
                                         "\"graph\": false",
                                         "\"base\": \"cublas\"",
                                         "\"name\": \"products\"",
                                         "\"name\": \"cublas\", \"plan\": null",
                                         "\"name\": \"sequential\"",
                                         "\"name\": \"copy\"",
                                         "\"op\": \"gemm\"",
                                         "\"op\": \"ag_gemm\"",
                                         "\"op\": \"gemm_rs\"",
                                         "\"calls_a_round\": 4,",
                                         "\"us\": 500, \"over\": 1",
                                         NULL };
    fake_cublas.ways = 4;
    fake_driver_install(2);
    check_output(output_of(rank_main_of_bench, &q, 2), 3, words);
}

static void ranks_replay_graphs(void **state)
{
    (void)state;
    bench_request q = request();
    static const char *const words[] = { "\"graph\": true", "\"calls_a_round\": 10,",
                                         "\"us\": 200, \"over\": 1", "\"name\": \"copy\"", NULL };
    q.graph = true;
    fake_cublas.ways = 1;
    fake_driver_install(2);
    check_output(output_of(rank_main_of_bench, &q, 2), 3, words);
}

/* What waits for what in a rank's process is in the cases above; ThreadSanitizer, which sees
 * nothing between processes, is spared those below. */
static void spare_threads(void)
{
    if (SANITIZED_THREADS)
        skip();
}

/* The product that every GPU runs, beside cuBLASLt. */
static void f16_in_the_general_form(void **state)
{
    (void)state;
    spare_threads();
    bench_request q = request();
    bench_shape shape = shapes()[0];
    shape.dtype = IMBREX_F16;
    q.shapes[true] = &shape;
    q.count = 1;
    static const char *const words[] = { "\"dtype\": \"f16\"", "\"base\": \"cublas\"",
                                         "tiles of 64x64", NULL };
    fake_cublas.ways = 1;
    fake_driver_install(1);
    setenv("IMBREX_CUDA_ARCH", "80", 1);
    check_output(output_of(rank_main_of_bench, &q, 1), 1, words);
    unsetenv("IMBREX_CUDA_ARCH");
}

static void our_own_product_is_a_yardstick(void **state)
{
    (void)state;
    spare_threads();
    bench_request q = request();
    static const char *const words[] = { "\"base\": \"products\"", NULL };
    q.peer = BENCH_PEER_NONE;
    fake_driver_install(1);
    check_output(output_of(rank_main_of_bench, &q, 1), 3, words);
}

/* Removes the file. */
static void check_drawing(const char *path, const char *const *words)
{
    static char drawn[1 << 20];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t length = fread(drawn, 1, sizeof drawn - 1, file);
    drawn[length] = 0;
    fclose(file);
    unlink(path);
    assert_in_range(length, 1000, sizeof drawn - 1);
    for (; *words; words++)
        if (!strstr(drawn, *words))
            fail_msg("no %s in the picture, of %zu bytes", *words, length);
}

static void a_call_is_drawn(void **state)
{
    (void)state;
    spare_threads();
    char path[] = "/tmp/imbrex-timeline-XXXXXX.svg";
    close(mkstemps(path, 4));
    bench_request q = request();
    static const char *const words[] = { "copy: one call, in us; ", "    rank 0    rank 1\n",
                                         "\n  sends to peers end", NULL };
    static const char *const drawn[] = { "rank 1", "kernel gemm", "to rank 1", NULL };
    q.json = false;
    q.timeline = path;
    q.shapes[true]++;
    q.count = 1;
    fake_cublas.ways = 1;
    fake_driver_install(2);
    char *text = output_of(rank_main_of_bench, &q, 2), *from = strstr(text, "copy: one call");
    assert_non_null(from);
    memmove(text, from, strlen(from) + 1);
    check_output(text, 30, words); /* of copy, and of sequential */
    check_drawing(path, drawn);
}

/* ---- The MLP --------------------------------------------------------------------------------- */

enum { MLP_ROUNDS = 3, MLP_WARM = 2, MLP_INNER = 4, VERSIONS = 3 };

static int rank_main_of_mlp(int rank, void *ctx)
{
    const mlp_request *q = ctx;
    int code = mlp_rank(q);
    int replays = q->graph ? VERSIONS * (MLP_WARM + MLP_ROUNDS) * MLP_INNER + 1 : 0;
    if (fake_calls.replays != replays)
        fprintf(stderr, "rank %d: %d replays, not %d\n", rank, fake_calls.replays, replays);
    return code ? code : fake_calls.replays != replays ? 98 : is_clean() ? 0 : 99;
}

/* With --graph what is timed, and what --check compares, are replays: it fails on the NaN that y
 * holds before if one does nothing. */
static void check_mlp(int experts, int lines)
{
    mlp_model model;
    st_error error;
    mlp_source source = {
        .shape = "40,72", .tokens = 24, .dtype = "bf16", .experts = experts, .top_k = 2
    };
    mlp_reference reference = { 0 };
    mlp_request q = { .model = &model, .device = "cuda", .check = true, .json = true };
    q.rounds = MLP_ROUNDS;
    q.reference = &reference;
    assert_true(mlp_model_open(&source, &model, &error));
    assert_true(mlp_reference_open(&source, &model, &reference, &error));
    static const struct {
        bool graph;
        const char *algorithm;
    } cases[] = { { false, NULL }, { true, NULL }, { true, "copy" } };
    for (int i = experts ? 1 : 0; i < (experts ? 2 : 3); i++) { /* of experts one */
        q.graph = cases[i].graph;
        q.algorithm = cases[i].algorithm;
        const char *const words[] = { "\"clock\": \"gpu\"",
                                      q.graph ? "\"graph\": true" : "\"graph\": false",
                                      "\"products_us\": 500,",
                                      "\"sequential_us\": 500,",
                                      "\"overlapped_us\": 500,",
                                      "\"passed\": true",
                                      NULL };
        fake_driver_install(2);
        char *text = output_of(rank_main_of_mlp, &q, 2);
        check_output(text, lines, words);
    }
    mlp_reference_close(&reference);
    mlp_model_close(&model);
}

static void an_mlp_is_timed_by_the_gpus_clock(void **state)
{
    (void)state;
    spare_threads();
    check_mlp(0, 38);
    check_mlp(5, 48);
}

static void an_mlp_is_drawn(void **state)
{
    (void)state;
    spare_threads();
    char path[] = "/tmp/imbrex-timeline-XXXXXX.svg";
    close(mkstemps(path, 4));
    mlp_model model;
    st_error error;
    mlp_source source = { .shape = "40,72", .tokens = 24, .dtype = "bf16" };
    mlp_request q = { .model = &model, .device = "cuda", .timeline = path, .rounds = 1 };
    static const char *const words[] = { "kernel gemm", "sequential", "overlapped", "rank 1",
                                         NULL };
    assert_true(mlp_model_open(&source, &model, &error));
    fake_driver_install(2);
    free(output_of(rank_main_of_mlp, &q, 2));
    check_drawing(path, words);
    mlp_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_clock_holds_and_times),
        cmocka_unit_test(a_clock_that_fails_says_why),
        cmocka_unit_test(a_product_is_row_major),
        cmocka_unit_test(rows_say_what_moves),
        cmocka_unit_test(types_are_the_librarys),
        cmocka_unit_test(ranks_time_by_the_gpus_clock),
        cmocka_unit_test(ranks_replay_graphs),
        cmocka_unit_test(f16_in_the_general_form),
        cmocka_unit_test(our_own_product_is_a_yardstick),
        cmocka_unit_test(a_call_is_drawn),
        cmocka_unit_test(an_mlp_is_timed_by_the_gpus_clock),
        cmocka_unit_test(an_mlp_is_drawn),
    };
    cuda = &fake_calls_table;
    cublas = &fake_cublas_calls;
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
