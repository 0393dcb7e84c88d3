/* test_user_kernel.c - kernels of the caller's: compiled at run time or with the program, on CPU
 * ranks and on the fake driver's GPUs; what a wrong one is told. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/cuda/nvrtc.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "imbrex_device.h"
#include "scratch.h"

/* The same kernel as code of this program and as text. */
#define BOTH(...)                    \
    __VA_ARGS__                      \
    static const char shift_text[] = \
        "#include \"imbrex_device.h\"\n#line 1 \"shift\"\n" #__VA_ARGS__;

/* out[n] of every rank = in[n] of the rank before it, by way of inbox, symmetric.  Block b sends
 * and receives its share under signal b; signal blocks + b says that it was read. */
BOTH(
    typedef struct shift_args {
        const int *in;
        int *out;
        int *inbox;
        int n;
    } shift_args;

    IMBREXD_KERNEL(shift, shift_args) {
        int b = imbrexd_block_index(), blocks = imbrexd_block_count(), ranks = team->size;
        int first = args->n * b / blocks, count = args->n * (b + 1) / blocks - first;
        int next = (team->rank + 1) % ranks, before = (team->rank + ranks - 1) % ranks;
        size_t bytes = (size_t)count * sizeof(int);
        uint64_t use = imbrexd_use(team);
        imbrexd_site sent = { team->kernel, IMBREXD_SITE_SIGNAL, before, b };
        imbrexd_site read = { team->kernel, IMBREXD_SITE_SIGNAL, next, blocks + b };
        int *shared = (int *)imbrexd_shared();
        uint64_t *own = imbrexd_signal(team, team->rank, 0);

        for (int i = 0; i < count; i++)
            shared[i] = args->in[first + i];
        if (!imbrexd_signal_wait(&team->watch, own + blocks + b, use - 1, read))
            return;
        imbrexd_put_block(imbrexd_peer(team, next, args->inbox + first), shared, bytes);
        imbrexd_signal_post(imbrexd_signal(team, next, b), use);
        if (!imbrexd_signal_wait(&team->watch, own + b, use, sent))
            return;
        imbrexd_put_block(args->out + first, args->inbox + first, bytes);
        imbrexd_signal_post(imbrexd_signal(team, before, blocks + b), use);
    })

enum { N = 1000, BLOCKS = 5, LAUNCHES = 20, SHARED = (N / BLOCKS + 1) * sizeof(int) };

/* ---- what it computes ------------------------------------------------------------------------ */

typedef struct way {
    imbrex_kernel_desc desc;
    bool cuda;
} way;

static int value(int rank, int launch, int i)
{
    return rank * 1000003 + launch * 4001 + i;
}

static int check(const int *out, int before, int launch)
{
    for (int i = 0; i < N; i++)
        RANK_CHECK(out[i] == value(before, launch, i), "launch %d: out[%d] is %d, want %d", launch,
                   i, out[i], value(before, launch, i));
    return 0;
}

static int shift_round(imbrex_group *group, void *ctx)
{
    const way *w = ctx;
    int rank = imbrex_group_rank(group), size = imbrex_group_size(group), failed = 0;
    void *inbox;
    int *in = malloc(N * sizeof *in), *out = calloc(N, sizeof *out);
    RANK_OK(imbrex_mem_alloc(group, N * sizeof(int), &inbox));
    imbrex_kernel_desc desc = w->desc;
    desc.memory = (int *)inbox + 3; /* any address of it */
    desc.signals = 2 * BLOCKS;
    desc.shared_bytes = SHARED;
    imbrex_kernel *kernel;
    imbrex_stream other;
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    RANK_OK(imbrex_stream_create(group, &other));
    shift_args args = { .in = in, .out = out, .inbox = inbox, .n = N };
    for (int launch = 0; launch < LAUNCHES && !failed; launch++) {
        imbrex_stream on = launch % 3 ? NULL : other;
        for (int i = 0; i < N; i++)
            in[i] = value(rank, launch, i);
        RANK_OK(imbrex_launch(kernel, BLOCKS, 256, &args, sizeof args, on));
        RANK_OK(imbrex_stream_sync(group, on));
        failed = check(out, (rank + size - 1) % size, launch);
    }
    RANK_OK(imbrex_launch(kernel, BLOCKS, 32, &args, sizeof args, NULL));
    imbrex_kernel_destroy(kernel); /* which waits for it */
    free(in);
    free(out);
    return failed;
}

static void shifts(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        way w = { .desc = { .name = "shift" } };
        if (i == 2)
            w.desc.entry = IMBREXD_ENTRY(shift);
        else
            w.desc.source = shift_text;
        w.desc.resident = i == 1 ? BLOCKS : 2;
        for (int ranks = 1; ranks <= 4; ranks += 3) {
            ranks_desc desc = { .size = ranks };
            assert_int_equal(ranks_run(&desc, shift_round, &w), 0);
        }
    }
    ranks_desc desc = { .size = 3, .processes = RANKS_PROCESSES };
    way w = { .desc = { .name = "shift", .source = shift_text } };
    assert_int_equal(ranks_run(&desc, shift_round, &w), 0);
}

static void shifts_on_fake_gpus(void **state)
{
    (void)state;
    way w = { .desc = { .name = "shift", .source = shift_text }, .cuda = true };
    ranks_desc desc = { .size = 3 };
    assert_int_equal(fake_ranks_run(&desc, 3, shift_round, &w), 0);
}

/* ---- in a graph ------------------------------------------------------------------------------ */

static int captured(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group), size = imbrex_group_size(group), failed = 0;
    void *inbox;
    static int in[2][N], out[2][N];
    RANK_OK(imbrex_mem_alloc(group, N * sizeof(int), &inbox));
    imbrex_kernel_desc desc = { .name = "shift",
                                .source = shift_text,
                                .memory = inbox,
                                .signals = 2 * BLOCKS,
                                .shared_bytes = SHARED };
    imbrex_kernel *kernel;
    imbrex_stream stream;
    fake_graph *graph;
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    RANK_OK(imbrex_stream_create(group, &stream));
    shift_args args = { .in = in[rank], .out = out[rank], .inbox = inbox, .n = N };
    RANK_CHECK(fake_graph_begin(stream) == 0, "no capture");
    RANK_OK(imbrex_launch(kernel, BLOCKS, 64, &args, sizeof args, stream));
    RANK_CHECK(fake_graph_end(stream, &graph) == 0, "the capture failed");
    for (int launch = 0; launch < 5 && !failed; launch++) {
        for (int i = 0; i < N; i++)
            in[rank][i] = value(rank, launch, i);
        fake_graph_launch(graph, stream);
        RANK_OK(imbrex_stream_sync(group, stream));
        failed = check(out[rank], (rank + size - 1) % size, launch);
    }
    fake_graph_destroy(graph);
    return failed; /* the group takes the kernel along */
}

static void launches_are_captured(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(fake_ranks_run(&desc, 2, captured, NULL), 0);
}

/* ---- what a wrong one is told ---------------------------------------------------------------- */

static imbrex_group *alone(const char *device)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group *group = NULL;
    imbrex_group_desc desc = { .bootstrap = &one, .device = device, .timeout_ms = 300 };
    assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_OK);
    return group;
}

static void said(imbrex_status got, imbrex_status want, const char *words)
{
    if (got != want || !strstr(imbrex_error(), words))
        fail_msg("%s: %s\nwant %s with \"%s\"", imbrex_status_name(got), imbrex_error(),
                 imbrex_status_name(want), words);
}

static const char broken[] = "#include \"imbrex_device.h\"\n"
                             "typedef struct { int x; } args_t;\n"
                             "IMBREXD_KERNEL(wrong, args_t)\n"
                             "{\n"
                             "    int y = args->x;\n"
                             "#ifdef SAY\n"
                             "#error SAY was said\n"
                             "#endif\n"
                             "    y = args->z;\n"
                             "}\n";

static void wrong_descs(imbrex_group *group, const char *device)
{
    static const struct {
        imbrex_kernel_desc desc;
        imbrex_status status;
        const char *words;
    } rows[] = {
        { { .source = shift_text }, IMBREX_INVALID, "desc.name is NULL" },
        { { .name = "a-b", .source = shift_text }, IMBREX_INVALID, "\"a-b\"" },
        { { .name = "shift" }, IMBREX_INVALID, "desc.source" },
        { { .name = "drift", .source = shift_text }, IMBREX_INVALID, "no kernel drift" },
        { { .name = "shift", .file = "/nowhere/x.cu" }, IMBREX_INVALID, "/nowhere/x.cu" },
        { { .name = "shift", .source = shift_text, .signals = -1 }, IMBREX_INVALID, "signals" },
        { { .name = "shift", .source = shift_text, .resident = 2000 }, IMBREX_INVALID, "resident" },
        { { .name = "shift", .source = shift_text, .shared_bytes = 232449 },
          IMBREX_INVALID,
          "shared_bytes" },
        { { .name = "shift", .source = shift_text, .memory = (void *)rows },
          IMBREX_INVALID,
          "desc.memory" },
        { { .name = "shift", .source = shift_text, .reserved = { 1 } },
          IMBREX_UNSUPPORTED,
          "reserved[0]" },
    };
    imbrex_kernel *kernel = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        said(imbrex_kernel_create(group, &rows[i].desc, &kernel), rows[i].status, rows[i].words);
    imbrex_kernel_desc desc = { .name = "shift", .source = shift_text };
    said(imbrex_kernel_create(group, NULL, &kernel), IMBREX_INVALID, "desc is NULL");
    said(imbrex_kernel_create(group, &desc, NULL), IMBREX_INVALID, "kernel is NULL");
    said(imbrex_kernel_create(NULL, &desc, &kernel), IMBREX_INVALID, "group is NULL");
    if (strcmp(device, "cuda") == 0) { /* the fake compiler sees a bare #error, and no more */
        imbrex_kernel_desc wrong = { .name = "wrong", .source = "#error\n", .file = "a/wrong.cu" };
        said(imbrex_kernel_create(group, &wrong, &kernel), IMBREX_INVALID,
             "kernel wrong for sm_90:\nkernel.cu(3): error: something else");
    }
    assert_null(kernel);
}

static void wrong_launches(imbrex_group *group, const char *device)
{
    imbrex_group *other = alone(device);
    imbrex_kernel_desc desc = {
        .name = "shift", .source = shift_text, .signals = 2 * BLOCKS, .shared_bytes = SHARED
    };
    imbrex_kernel *kernel = NULL;
    imbrex_stream foreign;
    int in[1] = { 7 }, out[1] = { 0 }, inbox[1];
    shift_args args = { in, out, inbox, 1 };
    assert_int_equal(imbrex_stream_create(other, &foreign), IMBREX_OK);
    assert_int_equal(imbrex_kernel_create(group, &desc, &kernel), IMBREX_OK);
    said(imbrex_launch(NULL, 1, 32, &args, sizeof args, NULL), IMBREX_INVALID, "kernel is NULL");
    said(imbrex_launch(kernel, 0, 32, &args, sizeof args, NULL), IMBREX_INVALID, "grid is 0");
    said(imbrex_launch(kernel, 1, 0, &args, sizeof args, NULL), IMBREX_INVALID, "block is 0");
    said(imbrex_launch(kernel, 1, 1025, &args, sizeof args, NULL), IMBREX_INVALID, "1 to 1024");
    said(imbrex_launch(kernel, 1, 32, &args, sizeof args - 4, NULL), IMBREX_INVALID, "takes 32");
    said(imbrex_launch(kernel, 1, 32, NULL, sizeof args, NULL), IMBREX_INVALID, "args is NULL");
    said(imbrex_launch(kernel, 1, 32, &args, sizeof args, foreign), IMBREX_INVALID, "not one of");
    assert_int_equal(imbrex_group_status(group), IMBREX_OK);
    imbrex_kernel_destroy(kernel);
    said(imbrex_launch(kernel, 1, 32, &args, sizeof args, NULL), IMBREX_INVALID, "destroyed");
    imbrex_kernel_destroy(NULL);
    imbrex_group_destroy(other);
}

static void wrong_on_cpu(void **state)
{
    (void)state;
    imbrex_group *group = alone("cpu");
    wrong_descs(group, "cpu");
    wrong_launches(group, "cpu");
    imbrex_kernel *kernel;
    imbrex_kernel_desc desc = { .name = "wrong", .source = broken, .file = "some where/wrong.c" };
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "some where/wrong.c:9:");
    desc.options = "-DSAY";
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "some where/wrong.c:7:");
    desc.options = "-DSAY=$(touch,hacked);touch hacked"; /* there is no shell */
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "not compile kernel wrong");
    assert_int_not_equal(access("hacked", F_OK), 0);
    imbrex_group_destroy(group);
}

static void wrong_on_fake_gpus(void **state)
{
    (void)state;
    fake_driver_install(2);
    imbrex_group *group = alone("cuda:0");
    wrong_descs(group, "cuda");
    wrong_launches(group, "cuda:1");
    imbrex_group_destroy(group);
    assert_int_equal(fake_driver_live(), 0);
}

/* ---- compilers ------------------------------------------------------------------------------- */

static imbrex_status create_and_leave(const imbrex_kernel_desc *desc)
{
    imbrex_group *group = alone("cpu");
    imbrex_kernel *kernel;
    imbrex_status status = imbrex_kernel_create(group, desc, &kernel);
    imbrex_group_destroy(group);
    return status;
}

static void without_a_compiler(void **state)
{
    (void)state;
    char before[512], unseen[sizeof shift_text + 20];
    const char *cc = getenv("IMBREX_CC");
    snprintf(before, sizeof before, "%s", cc ? cc : "");
    snprintf(unseen, sizeof unseen, "/* anew */\n%s", shift_text); /* not in the cache */
    setenv("IMBREX_CC", "/nowhere/cc", 1);
    said(create_and_leave(&(imbrex_kernel_desc){ .name = "shift", .source = unseen }),
         IMBREX_UNSUPPORTED, "/nowhere/cc");
    assert_int_equal(
        create_and_leave(&(imbrex_kernel_desc){ .name = "shift", .entry = IMBREXD_ENTRY(shift) }),
        IMBREX_OK);
    setenv("IMBREX_CC", before, 1);
}

/* A compiler that notes each of its runs. */
static int runs(void)
{
    size_t bytes = 0;
    unsigned char *log = scratch_read("log", &bytes);
    free(log);
    return (int)bytes;
}

static void what_is_kept(void **state)
{
    (void)state;
    const char *cc = getenv("IMBREX_CC");
    char script[1024], before[512];
    snprintf(before, sizeof before, "%s", cc ? cc : "");
    snprintf(script, sizeof script, "#!/bin/sh\nprintf x >>%s\nexec %s \"$@\"\n",
             scratch_path("log"), *before ? before : "cc");
    scratch_write("log", "", 0);
    scratch_write("cc", script, strlen(script));
    assert_int_equal(chmod(scratch_path("cc"), 0700), 0);
    setenv("IMBREX_CC", scratch_path("cc"), 1);
    static const char text[] = "#include \"imbrex_device.h\"\n#include \"mine.h\"\n"
                               "IMBREXD_KERNEL(kept, kept_args) { *args->out = VALUE; }\n";
    static const char *const headers[] = {
        "typedef struct { int *out; } kept_args;\n#define VALUE 1\n",
        "typedef struct { int *out; } kept_args;\n#define VALUE 2\n",
    };
    scratch_write("kept.c", text, sizeof text - 1);
    for (int i = 0; i < 4; i++) { /* new, kept; its header has changed: new, kept */
        scratch_write("mine.h", headers[i / 2], strlen(headers[i / 2]));
        imbrex_group *group = alone("cpu");
        imbrex_kernel *kernel;
        imbrex_kernel_desc desc = { .name = "kept", .file = scratch_path("kept.c") };
        int out = 0, *at = &out;
        imbrex_status status = imbrex_kernel_create(group, &desc, &kernel);
        if (status != IMBREX_OK)
            fail_msg("%s", imbrex_error());
        assert_int_equal(imbrex_launch(kernel, 1, 1, &at, sizeof at, NULL), IMBREX_OK);
        assert_int_equal(imbrex_stream_sync(group, NULL), IMBREX_OK);
        assert_int_equal(out, i / 2 + 1);
        assert_int_equal(runs(), i / 2 + 1);
        imbrex_group_destroy(group);
    }
    setenv("IMBREX_CC", before, 1);
}

/* Sanitizers need not see the compilers' work. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static const char *source_of(const char *name)
{
    static char path[1024];
    const char *source = getenv("IMBREX_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/%s", source ? source : ".", name);
    return path;
}

/* Every numbered example is a kernel, too. */
static void compile_examples(imbrex_group *group)
{
    glob_t found;
    assert_int_equal(glob(source_of("examples/[0-9]*.c"), 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 5);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        imbrex_kernel *kernel = NULL;
        imbrex_kernel_desc desc = { .name = "any",
                                    .file = found.gl_pathv[i],
                                    .options = "-DKERNEL" };
        if (imbrex_kernel_create(group, &desc, &kernel) != IMBREX_OK)
            fail_msg("%s", imbrex_error());
    }
    globfree(&found);
}

/* A user's own build: nvcc takes the same headers. */
static void nvcc_compiles(void **state)
{
    (void)state;
    static const char *const archs[] = { "arch=compute_80,code=sm_80",
                                         "arch=compute_90a,code=sm_90a" };
    static const char path[] = "PATH=$PATH:/usr/local/cuda/bin; nvcc";
    char command[4096];
    snprintf(command, sizeof command, "%s --version >%s 2>&1", path, scratch_path("version"));
    if (SANITIZED || system(command) != 0) {
        print_message("there is no nvcc\n");
        skip();
    }
    for (int i = 0; i < 2; i++) {
        int length = snprintf(command, sizeof command,
                              "%s -std=c++17 -x cu -DKERNEL -cubin -gencode=%s -o %s", path,
                              archs[i], scratch_path("example.cubin"));
        length += snprintf(command + length, sizeof command - (size_t)length, " -I %s",
                           source_of("include"));
        snprintf(command + length, sizeof command - (size_t)length, " %s",
                 source_of("examples/01_notify_wait.c"));
        if (system(command) != 0)
            fail_msg("%s", command);
    }
}

/* For a GPU that is not here, by the real compiler. */
static void compiles_for_gpus(void **state)
{
    (void)state;
    imx_nvrtc = NULL;
    if (SANITIZED || imx_nvrtc_open("") != IMBREX_OK) {
        print_message("%s\n", imbrex_error());
        skip();
    }
    static const char *const devices[] = { "compile:80", "compile:90" };
    for (int i = 0; i < 2; i++) {
        imbrex_group *group = alone(devices[i]);
        imbrex_kernel *kernel = NULL;
        imbrex_kernel_desc desc = { .name = "shift", .source = shift_text, .signals = 2 };
        imbrex_status status = imbrex_kernel_create(group, &desc, &kernel);
        if (status != IMBREX_OK)
            fail_msg("%s", imbrex_error());
        said(imbrex_launch(kernel, 1, 32, &desc, 0, NULL), IMBREX_UNSUPPORTED, "only compiles");
        imbrex_kernel_destroy(kernel);
        desc = (imbrex_kernel_desc){ .name = "wrong", .source = broken, .file = "a b/wrong.cu" };
        said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "a b/wrong.cu(9): error");
        if (i == 1)
            compile_examples(group);
        imbrex_group_destroy(group);
    }
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* Rank 1 launches nothing: what rank 0 is told names kernel and signal. */
static int nobody_sends(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int in[BLOCKS] = { 0 }, out[BLOCKS];
    void *inbox;
    imbrex_kernel *kernel;
    RANK_OK(imbrex_mem_alloc(group, sizeof in, &inbox));
    imbrex_kernel_desc desc = { .name = "shift",
                                .source = shift_text,
                                .memory = inbox,
                                .signals = 2 * BLOCKS,
                                .shared_bytes = SHARED };
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    shift_args args = { in, out, inbox, BLOCKS };
    imbrex_status status;
    if (imbrex_group_rank(group) == 0) {
        RANK_OK(imbrex_launch(kernel, BLOCKS, 32, &args, sizeof args, NULL));
        status = imbrex_stream_sync(group, NULL);
        RANK_CHECK(status == IMBREX_TIMEOUT, "%s", imbrex_status_name(status));
    } else {
        while ((status = imbrex_group_status(group)) == IMBREX_OK)
            usleep(1000);
        RANK_CHECK(status == IMBREX_PEER, "%s", imbrex_status_name(status));
    }
    RANK_CHECK(strstr(imbrex_error(), "in kernel shift") && strstr(imbrex_error(), "of rank 1") &&
                   strstr(imbrex_error(), "is 0, not yet 1"),
               "%s", imbrex_error());
    return 0;
}

static void deadlines(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .timeout_ms = 200 };
    assert_int_equal(ranks_run(&desc, nobody_sends, NULL), 0);
    assert_int_equal(fake_ranks_run(&desc, 2, nobody_sends, NULL), 0);
}

/* ---- the n-th call of the driver fails ------------------------------------------------------- */

static void any_call_fails(void **state)
{
    (void)state;
    fake_driver_install(1);
    bool went_well = false;
    for (int n = 1; !went_well; n++) {
        imbrex_group *group = alone("cuda");
        imbrex_kernel_desc desc = { .name = "shift", .source = shift_text, .signals = 2 };
        imbrex_kernel *kernel = NULL;
        int word = 1;
        shift_args args = { &word, &word, &word, 0 };
        fake_driver_fail(n);
        imbrex_status status = imbrex_kernel_create(group, &desc, &kernel);
        if (status == IMBREX_OK)
            status = imbrex_launch(kernel, 1, 32, &args, sizeof args, NULL);
        went_well = !fake_driver_failed();
        fake_driver_fail(0);
        if (went_well != (status == IMBREX_OK))
            fail_msg("call %d: %s: %s", n, imbrex_status_name(status), imbrex_error());
        imbrex_group_destroy(group);
        assert_int_equal(fake_driver_live(), 0);
        assert_in_range(n, 1, 200);
    }
}

static int begin(void **state)
{
    fake_ranks_begin();
    fake_driver_add_kernel("shift", IMBREXD_ENTRY(shift));
    return scratch_make(state);
}

static int finish(void **state)
{
    fake_ranks_end();
    return scratch_remove(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shifts),
        cmocka_unit_test(shifts_on_fake_gpus),
        cmocka_unit_test(launches_are_captured),
        cmocka_unit_test(wrong_on_cpu),
        cmocka_unit_test(wrong_on_fake_gpus),
        cmocka_unit_test(without_a_compiler),
        cmocka_unit_test(what_is_kept),
        cmocka_unit_test(compiles_for_gpus),
        cmocka_unit_test(nvcc_compiles),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(any_call_fails),
    };
    return cmocka_run_group_tests(tests, begin, finish);
}
