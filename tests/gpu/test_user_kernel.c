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
#include <unistd.h>

#include "backends/cuda/nvrtc.h"
#include "callers.h"
#include "sanitized.h"
#include "shift.h"

enum { ROUNDS = 20, BLOCKS = SHIFT_BLOCKS };

/* ---- what it computes ------------------------------------------------------------------------ */

static int shift_rounds(imbrex_group *group, void *ctx)
{
    shift *s = calloc(1, sizeof *s);
    imbrex_stream other;
    int failed = shift_open(s, group, ctx);
    RANK_OK(imbrex_stream_create(group, &other));
    for (int round = 0; round < ROUNDS && !failed; round++) {
        imbrex_stream on = round % 3 ? NULL : other;
        failed = shift_fill(s, round, on) || shift_launch(s, on) || shift_check(s, round, on);
    }
    failed = failed || shift_launch(s, NULL);
    imbrex_kernel_destroy(s->kernel); /* which waits for it */
    free(s);
    return failed;
}

static void shifts(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        imbrex_kernel_desc kernel = { .resident = i == 1 ? BLOCKS : 2 };
        if (i == 2)
            kernel.entry = shift_entry;
        else
            kernel.source = shift_text;
        for (int ranks = 1; ranks <= 4; ranks += 3) {
            ranks_desc desc = { .size = ranks };
            assert_int_equal(ranks_run(&desc, shift_rounds, &kernel), 0);
        }
    }
    ranks_desc desc = { .size = 3, .processes = RANKS_PROCESSES };
    imbrex_kernel_desc kernel = { .source = shift_text };
    assert_int_equal(ranks_run(&desc, shift_rounds, &kernel), 0);
}

static void shifts_on_fake_gpus(void **state)
{
    (void)state;
    imbrex_kernel_desc kernel = { .source = shift_text };
    ranks_desc desc = { .size = 3 };
    assert_int_equal(fake_ranks_run(&desc, 3, shift_rounds, &kernel), 0);
}

/* ---- in a graph ------------------------------------------------------------------------------ */

static int captured(imbrex_group *group, void *ctx)
{
    shift *s = calloc(1, sizeof *s);
    imbrex_stream stream;
    fake_graph *graph;
    int failed = shift_open(s, group, ctx);
    RANK_OK(imbrex_stream_create(group, &stream));
    RANK_CHECK(fake_graph_begin(stream) == 0, "no capture");
    failed = failed || shift_launch(s, stream);
    RANK_CHECK(fake_graph_end(stream, &graph) == 0, "the capture failed");
    for (int round = 0; round < 5 && !failed; round++) {
        failed = shift_fill(s, round, stream);
        fake_graph_launch(graph, stream);
        failed = failed || shift_check(s, round, stream);
    }
    fake_graph_destroy(graph);
    free(s);
    return failed; /* the group takes the kernel along */
}

static void launches_are_captured(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    imbrex_kernel_desc kernel = { .source = shift_text };
    assert_int_equal(fake_ranks_run(&desc, 2, captured, &kernel), 0);
}

/* ---- what a wrong one is told ---------------------------------------------------------------- */

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

#define SEVEN_WORDS "-DA -DB\t-DC\n-DD -DE  -DF -DG "
static const char many_words[] =
    SEVEN_WORDS SEVEN_WORDS SEVEN_WORDS SEVEN_WORDS SEVEN_WORDS SEVEN_WORDS SEVEN_WORDS;

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
        { { .name = "shift", .source = shift_text, .options = many_words },
          IMBREX_INVALID,
          "desc.options has 49 words" },
        { { .name = "shift", .source = shift_text, .memory = (void *)rows },
          IMBREX_INVALID,
          "desc.memory" },
        { { .name = "shift", .source = shift_text, .reserved = { 1 } },
          IMBREX_UNSUPPORTED,
          "reserved" },
    };
    imbrex_kernel *kernel = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        said(imbrex_kernel_create(group, &rows[i].desc, &kernel), rows[i].status, rows[i].words);
    imbrex_kernel_desc desc = { .name = "shift", .source = shift_text };
    said(imbrex_kernel_create(group, NULL, &kernel), IMBREX_INVALID, "desc is NULL");
    said(imbrex_kernel_create(group, &desc, NULL), IMBREX_INVALID, "kernel is NULL");
    said(imbrex_kernel_create(NULL, &desc, &kernel), IMBREX_INVALID, "group is NULL");
    if (strcmp(device, "cuda") == 0) { /* the fake compiler sees a bare #error, and no more */
        imbrex_kernel_desc wrong = { .name = "wrong", .source = wrong_text, .file = "a/wrong.cu" };
        said(imbrex_kernel_create(group, &wrong, &kernel), IMBREX_INVALID,
             "kernel wrong for sm_90:\nkernel.cu(3): error: something else");
    }
    assert_null(kernel);
}

static void wrong_launches(imbrex_group *group, const char *device)
{
    imbrex_group *other = alone(device);
    imbrex_kernel_desc desc = { .name = "shift",
                                .source = shift_text,
                                .signals = SHIFT_SIGNALS,
                                .shared_bytes = SHIFT_SHARED };
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
    desc.source = wrong_text;
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "some where/wrong.c:1:");
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "some where/wrong.c:9:");
    desc.source = broken;
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
    char before[512], unseen[4096];
    const char *cc = getenv("IMBREX_CC");
    snprintf(before, sizeof before, "%s", cc ? cc : "");
    snprintf(unseen, sizeof unseen, "/* anew */\n%s", shift_text); /* not in the cache */
    setenv("IMBREX_CC", "/nowhere/cc", 1);
    said(create_and_leave(&(imbrex_kernel_desc){ .name = "shift", .source = unseen }),
         IMBREX_UNSUPPORTED, "/nowhere/cc");
    assert_int_equal(
        create_and_leave(&(imbrex_kernel_desc){ .name = "shift", .entry = shift_entry }),
        IMBREX_OK);
    setenv("IMBREX_CC", before, 1);
}

/* What older C lets pass, or the linker finds, is an error that names the caller's line, by every
 * compiler. */
static void careless_text(void **state)
{
    (void)state;
    static const struct {
        const char *line, *options, *says; /* says NULL: nothing is wrong */
    } rows[] = {
        { "*args->to = first(args->to);", "-Wall -Wextra -Werror", NULL },
        { "*args->to = nobody(args->from);", NULL, "careless.c:9:" },
        { "*args->to = first(5);", NULL, "careless.c:9:" },
        { "args->to = *args->to;", NULL, "careless.c:9:" },
        { "*args->to = first(args->x);", NULL, "careless.c:9:" },
        { "*args->to = first(args->from);", NULL, "careless.c:9:" },
        { "int nobody(void); *args->to = nobody();", "-Wl,--no-undefined", "to `nobody'" },
        { "*args->to = 1;", "-lnot_there_at_all", "find -lnot_there_at_all" },
    };
    static const char *const compilers[] = { "gcc", "clang", "" };
    char before[512], text[512], command[64];
    const char *cc = getenv("IMBREX_CC");
    snprintf(before, sizeof before, "%s", cc ? cc : "");
    for (size_t i = 0; i < 3 * sizeof rows / sizeof rows[0]; i++) {
        const char *compiler = compilers[i % 3], *says = rows[i / 3].says;
        snprintf(command, sizeof command, "%s --version >/dev/null 2>&1", compiler);
        if (*compiler && (SANITIZED || system(command) != 0))
            continue;
#ifdef __clang__ /* what its sanitizers call is in the program */
        if (SANITIZED && rows[i / 3].options && strstr(rows[i / 3].options, "undefined"))
            continue;
#endif
        setenv("IMBREX_CC", *compiler ? compiler : before, 1);
        snprintf(text, sizeof text,
                 "#include \"imbrex_device.h\"\n"
                 "typedef struct { int *to; const int *from; float *x; } careless_args;\n"
                 "static int first(int *of)\n"
                 "{\n"
                 "    return *of;\n"
                 "}\n"
                 "IMBREXD_KERNEL(careless, careless_args)\n"
                 "{\n"
                 "    %s (void)team, (void)args, (void)first; /* by %s */\n"
                 "}\n",
                 rows[i / 3].line, compiler);
        imbrex_kernel_desc desc = {
            .name = "careless", .source = text, .file = "careless.c", .options = rows[i / 3].options
        };
        imbrex_status status = create_and_leave(&desc);
        if (says)
            said(status, IMBREX_INVALID, says);
        else if (status != IMBREX_OK)
            fail_msg("%s", imbrex_error());
    }
    setenv("IMBREX_CC", before, 1);
}

static const char *source_of(const char *name)
{
    static char path[1024];
    const char *source = getenv("IMBREX_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/%s", source ? source : ".", name);
    return path;
}

/* Every numbered example is a kernel, too; one of these, "rs" around a product. */
static void compile_examples(imbrex_group *group)
{
    static const char *const names[] = {
        "pipe", "pull", "gather", "dispatch", "scatter", "add",
        "gemm", "add",  "ring",   "gather",   "rs",      "attend_and_merge",
    };
    enum { EXAMPLES = sizeof names / sizeof names[0] };
    static const imbrex_gemm_desc shape = { .m = 4096, .n = 4096, .k = 1024 };
    glob_t found;
    assert_int_equal(glob(source_of("examples/[0-9]*.c"), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, EXAMPLES);
    for (size_t i = 0; i < EXAMPLES; i++) {
        imbrex_kernel *kernel = NULL;
        imbrex_kernel_desc desc = { .name = names[i],
                                    .file = found.gl_pathv[i],
                                    .options = "-DKERNEL",
                                    .gemm = strcmp(names[i], "rs") == 0 ? &shape : NULL };
        if (imbrex_kernel_create(group, &desc, &kernel) != IMBREX_OK)
            fail_msg("%s", imbrex_error());
    }
    globfree(&found);
}

static void compiles_for_cpus(void **state)
{
    (void)state;
    imbrex_group *group = alone("cpu");
    compile_examples(group);
    imbrex_group_destroy(group);
}

/* A user's own build: nvcc takes the same headers, and what it makes for a GPU alone is loaded. */
static void nvcc_compiles(void **state)
{
    (void)state;
    static const char *const kinds[][2] = {
        { "-c -gencode=arch=compute_80,code=sm_80", "example.o" },
        { "-c -gencode=arch=compute_90a,code=sm_90a", "example.o" },
        { "-cubin -arch=sm_90a", "example.cubin" },
    };
    static const char path[] = "PATH=$PATH:/usr/local/cuda/bin; nvcc";
    char command[4096];
    snprintf(command, sizeof command, "%s --version >%s 2>&1", path, scratch_path("version"));
    if (SANITIZED || system(command) != 0) {
        print_message("there is no nvcc\n");
        skip();
    }
    for (int i = 0; i < 3; i++) {
        int length = snprintf(command, sizeof command, "%s -std=c++17 -x cu -DKERNEL %s -o %s",
                              path, kinds[i][0], scratch_path(kinds[i][1]));
        length += snprintf(command + length, sizeof command - (size_t)length, " -I %s",
                           source_of("include"));
        snprintf(command + length, sizeof command - (size_t)length, " %s",
                 source_of("examples/01_notify_wait.c"));
        if (system(command) != 0)
            fail_msg("%s", command);
    }
    fake_driver_install(0);
    imbrex_group *group = alone("compile:90");
    imbrex_kernel *kernel = NULL;
    imbrex_kernel_desc desc = { .name = "pipe", .file = scratch_path("example.cubin") };
    if (imbrex_kernel_create(group, &desc, &kernel) != IMBREX_OK)
        fail_msg("%s", imbrex_error());
    imbrex_kernel_destroy(kernel);
    desc.name = "drift";
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "has no kernel drift");
    imbrex_group_destroy(group);
}

static const char with_c[] = "#include <math.h>\n#include <string.h>\n"
                             "#include \"imbrex_device.h\"\n"
                             "typedef struct { float *to; float x; } with_c_args;\n"
                             "IMBREXD_KERNEL(with_c, with_c_args)\n"
                             "{\n"
                             "    float y = expf(args->x) + sqrtf(args->x);\n"
                             "    if (!imbrexd_check_write(args->to, sizeof y, 0, 1) ||\n"
                             "        !imbrexd_check_read(&args->x, sizeof y, 0, 1))\n"
                             "        return;\n"
                             "    memcpy(args->to, &y, sizeof y);\n"
                             "}\n";

static const char large[] = "#include \"imbrex_device.h\"\n"
                            "typedef struct { char bytes[300]; } large_args;\n"
                            "IMBREXD_KERNEL(large, large_args) { (void)args, (void)team; }\n";

/* For a GPU that is not here, by the real compiler. */
static void compiles_for_gpus(void **state)
{
    (void)state;
    if (SANITIZED || !callers_open_compiler()) {
        print_message("there is no NVRTC: %s\n", imbrex_error());
        skip();
    }
    static const char *const devices[] = { "compile:80", "compile:90" };
    for (int i = 0; i < 2; i++) {
        imbrex_group *group = alone_compiling(devices[i]);
        imbrex_kernel *kernel = NULL;
        imbrex_kernel_desc desc = { .name = "shift", .source = shift_text, .signals = 2 };
        imbrex_status status = imbrex_kernel_create(group, &desc, &kernel);
        if (status != IMBREX_OK)
            fail_msg("%s", imbrex_error());
        said(imbrex_launch(kernel, 1, 32, &desc, 0, NULL), IMBREX_UNSUPPORTED, "only compiles");
        imbrex_kernel_destroy(kernel);
        desc = (imbrex_kernel_desc){ .name = "with_c", .source = with_c };
        if (imbrex_kernel_create(group, &desc, &kernel) != IMBREX_OK)
            fail_msg("%s", imbrex_error());
        desc = (imbrex_kernel_desc){ .name = "wrong", .source = broken, .file = "a b/wrong.cu" };
        said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "a b/wrong.cu(9): error");
        desc.source = wrong_text;
        said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "a b/wrong.cu(1): error");
        said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "a b/wrong.cu(9): error");
        desc = (imbrex_kernel_desc){ .name = "drift", .source = with_c };
        said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "has no kernel drift");
        desc = (imbrex_kernel_desc){ .name = "large", .source = large };
        said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "300 bytes of args");
        if (i == 1)
            compile_examples(group);
        imbrex_group_destroy(group);
    }
}

/* ---- what is not there ----------------------------------------------------------------------- */

static const char outside_text[] =
    "#include \"imbrex_device.h\"\n"
    "typedef struct { char *at; int rank, index; } outside_args;\n"
    "IMBREXD_KERNEL(outside, outside_args)\n"
    "{\n"
    "    if (args->at)\n"
    "        *(char *)imbrexd_peer(team, args->rank, args->at) = 1;\n"
    "    else\n"
    "        imbrexd_signal_post(imbrexd_signal(team, args->rank, args->index), 1);\n"
    "}\n";

/* Errors and no crashes: the last row is what is there. */
static int asks_outside(imbrex_group *group, void *ctx)
{
    static const struct {
        bool none, other, signal; /* no desc.memory, another piece's address, a signal's */
        int past, rank, index;
        const char *says; /* NULL: nothing */
    } rows[] = {
        { .none = true, .says = "kernel outside calls imbrexd_peer and was made without desc" },
        { .other = true, .says = "which has 4096: one kernel reaches one piece" },
        { .past = 4096, .says = "for an address 4096 bytes from" },
        { .past = -1, .says = "for an address -1 bytes from" },
        { .rank = 2, .says = "imbrexd_peer for rank 2 of 2" },
        { .signal = true, .rank = -1, .says = "imbrexd_signal for rank -1 of 2" },
        { .signal = true, .index = 3, .says = "for signal 3, and desc.signals is 3" },
        { .signal = true, .index = -1, .says = "for signal -1, and" },
        { .past = 4094, .rank = 1, .index = 2 }, /* and the byte behind it, by rank 1 */
    };
    enum { ROWS = sizeof rows / sizeof rows[0] };
    int row = *(const int *)ctx % ROWS, rank = imbrex_group_rank(group);
    char *memory, *other;
    imbrex_kernel *kernel;
    RANK_OK(imbrex_mem_alloc(group, 4096, (void **)&memory));
    RANK_OK(imbrex_mem_alloc(group, 4096, (void **)&other));
    imbrex_kernel_desc desc = { .name = "outside",
                                .source = outside_text,
                                .memory = rows[row].none ? NULL : memory,
                                .signals = 3 };
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    struct {
        char *at;
        int rank, index;
    } args = { rows[row].signal  ? NULL
               : rows[row].other ? other
                                 : memory + rows[row].past + (rows[row].says ? 0 : rank),
               rows[row].rank, rows[row].index };
    imbrex_status status = imbrex_launch(kernel, 1, 1, &args, sizeof args, NULL);
    if (status == IMBREX_OK) /* no peer has been told before */
        status = imbrex_stream_sync(group, NULL);
    RANK_CHECK(status == (rows[row].says ? IMBREX_INVALID : IMBREX_OK), "row %d: %s", row,
               imbrex_status_name(status));
    RANK_CHECK(!rows[row].says || strstr(imbrex_error(), rows[row].says), "\"%s\", want \"%s\"",
               imbrex_error(), rows[row].says);
    return 0;
}

static void what_is_not_there(void **state)
{
    (void)state;
    for (int row = 0; row < 9; row++) {
        ranks_desc desc = { .size = 2 };
        assert_int_equal(ranks_run(&desc, asks_outside, &row), 0);
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
                                .signals = SHIFT_SIGNALS,
                                .shared_bytes = SHIFT_SHARED };
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
    return callers_begin(state, "shift", shift_entry);
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
        cmocka_unit_test(careless_text),
        cmocka_unit_test(compiles_for_cpus),
        cmocka_unit_test(compiles_for_gpus),
        cmocka_unit_test(nvcc_compiles),
        cmocka_unit_test(what_is_not_there),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(any_call_fails),
    };
    return cmocka_run_group_tests(tests, begin, callers_end);
}
