/* test_bench_cuda.c - what `imbrex bench` does on a GPU, on fake ones: its clock holds and times a
 * stream, its product by cuBLASLt is row-major, all of it runs on several ranks and in graphs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench_error.h"
#include "bench_rank.h"
#include "cuda_blas.h"
#include "cuda_calls.h"
#include "cuda_graph.h"
#include "cuda_timer.h"
#include "fake_cublas.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "fake_stream.h"
#include "launch.h"

/* ---- A driver -------------------------------------------------------------------------------- */

enum { ELAPSED_MS = 2, HELD = 1 + 1 + 2 /* a context, a stream, events */ };

static struct {
    int live, records, graphs;
    const char *failing;
    pthread_t holder;
    bool held;
} driver;

static int fails(const char *call)
{
    return driver.failing && strcmp(driver.failing, call) == 0 ? 2 : 0;
}

static int init(unsigned flags)
{
    return (int)flags;
}

static int error_name(int error, const char **name)
{
    *name = "CUDA_ERROR_OUT_OF_MEMORY";
    return error != 2;
}

static int device_get(int *gpu, int index)
{
    *gpu = 10 + index;
    return fails("cuDeviceGet");
}

static int retain(CUcontext *context, int gpu)
{
    if (fails("cuDevicePrimaryCtxRetain"))
        return 2;
    *context = (CUcontext)(uintptr_t)gpu;
    driver.live++;
    return 0;
}

static int release(int gpu)
{
    assert_in_range(gpu, 10, 20);
    driver.live--;
    return 0;
}

static int set_current(CUcontext context)
{
    assert_non_null(context);
    return fails("cuCtxSetCurrent");
}

static int stream_create(imbrex_stream *stream, unsigned flags)
{
    assert_int_equal(flags, 1); /* CU_STREAM_NON_BLOCKING */
    driver.live++;
    return fake_stream_create((CUstream *)stream);
}

static int stream_destroy(imbrex_stream stream)
{
    driver.live--;
    fake_stream_destroy((CUstream)stream);
    return 0;
}

static int event_create(CUevent *event, unsigned flags)
{
    assert_int_equal(flags, 0);
    if (fails("cuEventCreate"))
        return 2;
    *event = malloc(1);
    driver.live++;
    return 0;
}

static int event_destroy(CUevent event)
{
    free(event);
    driver.live--;
    return 0;
}

static int event_record(CUevent event, imbrex_stream stream)
{
    assert_non_null(stream);
    assert_non_null(event);
    driver.records++;
    return fails("cuEventRecord");
}

/* The stream is idle: what held it must have let it go. */
static void join(void)
{
    if (driver.held)
        pthread_join(driver.holder, NULL);
    driver.held = false;
}

static int event_elapsed(float *ms, CUevent begin, CUevent end)
{
    assert_ptr_not_equal(begin, end);
    join();
    *ms = ELAPSED_MS;
    return fails("cuEventElapsedTime");
}

typedef struct host_call {
    void (*function)(void *ctx);
    void *ctx;
} host_call;

static void *call_back(void *ctx)
{
    host_call call = *(host_call *)ctx;
    free(ctx);
    call.function(call.ctx);
    return NULL;
}

static int launch_host(imbrex_stream stream, void (*function)(void *), void *ctx)
{
    assert_non_null(stream);
    host_call *call = malloc(sizeof *call);
    *call = (host_call){ function, ctx };
    join();
    driver.held = true;
    return pthread_create(&driver.holder, NULL, call_back, call);
}

static int capture_begin(imbrex_stream stream, int mode)
{
    assert_int_equal(mode, 1);
    return fake_graph_begin(stream);
}

static int capture_end(imbrex_stream stream, CUgraph *graph)
{
    driver.graphs++;
    return fake_graph_end(stream, (fake_graph **)graph);
}

static int instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    *out = (CUgraphExec)graph;
    return (int)flags || fails("cuGraphInstantiate");
}

static int graph_launch(CUgraphExec graph, imbrex_stream stream)
{
    fake_graph_launch((fake_graph *)graph, stream);
    return 0;
}

static int exec_destroy(CUgraphExec graph)
{
    assert_non_null(graph);
    return 0;
}

static int graph_destroy(CUgraph graph)
{
    fake_graph_destroy((fake_graph *)graph);
    driver.graphs--;
    return 0;
}

static const cuda_calls fake_calls = {
    .cuInit = init,
    .cuGetErrorName = error_name,
    .cuDeviceGet = device_get,
    .cuDevicePrimaryCtxRetain = retain,
    .cuDevicePrimaryCtxRelease = release,
    .cuCtxSetCurrent = set_current,
    .cuStreamCreate = stream_create,
    .cuStreamDestroy = stream_destroy,
    .cuEventCreate = event_create,
    .cuEventDestroy = event_destroy,
    .cuEventRecord = event_record,
    .cuEventElapsedTime = event_elapsed,
    .cuLaunchHostFunc = launch_host,
    .cuStreamBeginCapture = capture_begin,
    .cuStreamEndCapture = capture_end,
    .cuGraphInstantiate = instantiate,
    .cuGraphLaunch = graph_launch,
    .cuGraphExecDestroy = exec_destroy,
    .cuGraphDestroy = graph_destroy,
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void the_clock_holds_and_times(void **state)
{
    (void)state;
    cuda_timer *timer;
    double us, begin = now_ms();
    assert_int_equal(cuda_timer_open("cuda:3", &timer), IMBREX_OK);
    assert_int_equal(driver.live, HELD);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cuda_timer_hold(timer), IMBREX_OK);
        assert_int_equal(cuda_timer_begin(timer), IMBREX_OK);
        assert_int_equal(cuda_timer_end(timer), IMBREX_OK);
        cuda_timer_release(timer);
        cuda_timer_release(timer); /* harmless */
        assert_int_equal(cuda_timer_us(timer, &us), IMBREX_OK);
        assert_true(us == 1e3 * ELAPSED_MS);
    }
    assert_true(now_ms() - begin < 900);
    begin = now_ms();
    assert_int_equal(cuda_timer_hold(timer), IMBREX_OK);
    join(); /* nobody releases it */
    assert_in_range((int)(now_ms() - begin), 900, 20000);
    cuda_timer_close(timer);
    assert_int_equal(driver.live, 0);
}

static void a_clock_that_fails_says_why(void **state)
{
    (void)state;
    static const char *const calls[] = { "cuDeviceGet", "cuDevicePrimaryCtxRetain",
                                         "cuCtxSetCurrent", "cuEventCreate" };
    cuda_timer *timer = NULL;
    for (int i = 0; i < 4; i++) {
        driver.failing = calls[i];
        assert_int_equal(cuda_timer_open("cuda:0", &timer), IMBREX_DEVICE);
        char expected[128];
        snprintf(expected, sizeof expected,
                 "cannot time on the GPU: %s says CUDA_ERROR_OUT_OF_MEMORY (2)", calls[i]);
        assert_string_equal(bench_error(IMBREX_DEVICE), expected);
        assert_null(timer);
        assert_int_equal(driver.live, 0);
    }
    driver.failing = NULL;
    assert_int_equal(cuda_timer_open("cpu:0", &timer), IMBREX_UNSUPPORTED);
    assert_string_equal(bench_error(IMBREX_UNSUPPORTED), "device cpu:0 has no clock of its own");
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
        assert_string_equal(bench_error(IMBREX_UNSUPPORTED),
                            "cuBLASLt knows no way to compute this product");
        cuda_blas_finish(&product);
    }
    cuda_blas_close(handle);
    assert_int_equal(fake_cublas.live, 0);
}

/* ---- All of it, on fake GPUs ----------------------------------------------------------------- */

static int rank_main_of_bench(int rank, void *ctx)
{
    (void)rank;
    int code = bench_rank(ctx);
    bool clean =
        driver.live == 0 && driver.graphs == 0 && fake_cublas.live == 0 && fake_driver_live() == 0;
    return code ? code : clean ? 0 : 99;
}

/* What rank 0 prints. */
static char *output_of(const bench_request *request, int ranks)
{
    char path[] = "/tmp/imbrex-bench-XXXXXX";
    int file = mkstemp(path), out = dup(STDOUT_FILENO);
    launch_options launch = { .ranks = ranks, .output = LAUNCH_DIRECT, .grace_s = LAUNCH_GRACE_S };
    launch.timeout_s = 120;
    fflush(stdout);
    dup2(file, STDOUT_FILENO);
    int code = launch_ranks(&launch, rank_main_of_bench, (void *)request);
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
    return (bench_request){ .shapes = shapes(),
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
    check_output(output_of(&q, 2), 3, words);
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
    check_output(output_of(&q, 2), 3, words);
}

/* The product that every GPU runs, beside cuBLASLt. */
static void f16_in_the_general_form(void **state)
{
    (void)state;
    bench_request q = request();
    bench_shape shape = shapes()[0];
    shape.dtype = IMBREX_F16;
    q.shapes = &shape;
    q.count = 1;
    static const char *const words[] = { "\"dtype\": \"f16\"", "\"base\": \"cublas\"",
                                         "tiles of 64x64", NULL };
    fake_cublas.ways = 1;
    fake_driver_install(1);
    setenv("IMBREX_CUDA_ARCH", "80", 1);
    check_output(output_of(&q, 1), 1, words);
    unsetenv("IMBREX_CUDA_ARCH");
}

static void our_own_product_is_a_yardstick(void **state)
{
    (void)state;
    bench_request q = request();
    static const char *const words[] = { "\"base\": \"products\"", NULL };
    q.peer = BENCH_PEER_NONE;
    fake_driver_install(1);
    check_output(output_of(&q, 1), 3, words);
}

static void a_call_is_drawn(void **state)
{
    (void)state;
    char path[] = "/tmp/imbrex-timeline-XXXXXX.svg";
    close(mkstemps(path, 4));
    bench_request q = request();
    static const char *const words[] = { "copy: one call, us", "\n   0 ", "\n   1 ", NULL };
    q.json = false;
    q.timeline = path;
    q.shapes += 1;
    q.count = 1;
    fake_cublas.ways = 1;
    fake_driver_install(2);
    char *text = output_of(&q, 2), *from = strstr(text, "copy: one call");
    assert_non_null(from);
    memmove(text, from, strlen(from) + 1);
    check_output(text, 4, words);
    static char drawn[1 << 20];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t length = fread(drawn, 1, sizeof drawn - 1, file);
    assert_in_range(length, 1000, sizeof drawn - 1);
    assert_non_null(strstr(drawn, "rank 1"));
    assert_non_null(strstr(drawn, "kernel gemm"));
    assert_non_null(strstr(drawn, "to rank 1"));
    fclose(file);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_clock_holds_and_times),
        cmocka_unit_test(a_clock_that_fails_says_why),
        cmocka_unit_test(a_product_is_row_major),
        cmocka_unit_test(types_are_the_librarys),
        cmocka_unit_test(ranks_time_by_the_gpus_clock),
        cmocka_unit_test(ranks_replay_graphs),
        cmocka_unit_test(f16_in_the_general_form),
        cmocka_unit_test(our_own_product_is_a_yardstick),
        cmocka_unit_test(a_call_is_drawn),
    };
    cuda = &fake_calls;
    cublas = &fake_cublas_calls;
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
