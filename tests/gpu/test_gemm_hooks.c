/* test_gemm_hooks.c - kernels of the caller's around the library's product: on CPU ranks, on the
 * fake driver's GPUs and through the real compiler; what a wrong one is told. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/cuda/nvrtc.h"
#include "callers.h"
#include "group/group.h"
#include "hooks.h"
#include "sanitized.h"

/* ---- what it computes ------------------------------------------------------------------------ */

static int run_case(imbrex_group *group, void *ctx)
{
    return hooks_run(group, ctx);
}

static const hooks_case cases[] = {
    { .gemm = { .m = 100, .n = 64, .k = 48, .chunk_rows = 16 }, .text = true, .runs = 4 },
    { .gemm = { .m = 100, .n = 64, .k = 48, .chunk_rows = 16 }, .backwards = true, .runs = 4 },
    { .gemm = { .m = 33,
                .n = 70,
                .k = 24,
                .dtype = IMBREX_F16,
                .layout = IMBREX_KN,
                .chunk_rows = 4,
                .sms = 3 },
      .runs = 4 },
    { .gemm = { .m = 57, .n = 31, .k = 19, .dtype = IMBREX_F32, .chunk_rows = 8, .sms = 1 },
      .runs = 4 },
    { .gemm = { .m = 4, .n = 9, .k = 8, .chunk_rows = 8 }, .runs = 2 }, /* ranks without rows */
    { .gemm = { .m = 100, .n = 64, .k = 48, .chunk_rows = 16 },
      .text = true,
      .options = "-DHOOKS_SUM",
      .runs = 4 },
    { .gemm = { .m = 57, .n = 31, .k = 19, .dtype = IMBREX_F32, .chunk_rows = 8, .sms = 3 },
      .text = true,
      .backwards = true,
      .options = "-DHOOKS_SUM",
      .runs = 4 },
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void same_as_the_library(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks += 2) {
        for (int i = 0; i < CASES; i++) {
            ranks_desc desc = { .size = ranks };
            assert_int_equal(ranks_run(&desc, run_case, (void *)&cases[i]), 0);
        }
    }
    ranks_desc desc = { .size = 3, .processes = RANKS_PROCESSES };
    assert_int_equal(ranks_run(&desc, run_case, (void *)&cases[0]), 0);
}

static void same_on_fake_gpus(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        hooks_case c = cases[1];
        c.backwards = i;
        c.gemm.sms = 4;
        ranks_desc desc = { .size = 1 + 2 * i };
        assert_int_equal(fake_ranks_run(&desc, 3, run_case, &c), 0);
    }
}

/* Their PTX, with SUM and without; n = 44: element by element. */
static void same_as_they_are_compiled(void **state)
{
    (void)state;
    static const hooks_case compiled[] = {
        { .gemm = { .m = 300, .n = 64, .k = 64, .chunk_rows = 16 }, .options = "-DHOOKS_SUM" },
        { .gemm = { .m = 300, .n = 44, .k = 64, .chunk_rows = 16 },
          .backwards = true,
          .options = "-DHOOKS_SUM" },
        { .gemm = { .m = 300, .n = 64, .k = 64, .chunk_rows = 16 } },
    };
    if (SANITIZED || !fake_ranks_can_compile())
        skip();
    for (size_t i = 0; i < sizeof compiled / sizeof compiled[0]; i++) {
        hooks_case c = compiled[i];
        c.gemm.sms = 3;
        c.text = true;
        c.runs = 3;
        ranks_desc desc = { .size = 3 };
        assert_int_equal(fake_ranks_run_compiled(&desc, 3, 9, run_case, &c), 0);
    }
}

/* Rank 1 tries each launch with a stream of another GPU first, which its own refuses. */
static int refused_first(imbrex_group *group, void *ctx)
{
    hooks_case c = *(const hooks_case *)ctx;
    if (imbrex_group_rank(group) != 1)
        return hooks_run(group, &c);
    imbrex_group *other = alone("cuda:0");
    RANK_OK(imbrex_stream_create(other, &c.foreign));
    int failed = hooks_run(group, &c);
    imbrex_group_destroy(other);
    return failed;
}

static void refused_launches_do_not_count(void **state)
{
    (void)state;
    hooks_case c = cases[1];
    c.gemm.sms = 4;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(fake_ranks_run(&desc, 2, refused_first, &c), 0);
}

/* ---- what a checker sees --------------------------------------------------------------------- */

static const hooks_case wrong[] = {
    { .options = "-DHOOKS_NO_WAIT", .says = "orders it after that" },
    { .options = "-DHOOKS_NO_CREDIT", .says = "orders it after that" },
    { .options = "-DHOOKS_OLD_PARTS", .says = "orders it after that" },
    { .options = "-DHOOKS_SUM -DHOOKS_OLD_PARTS", .says = "orders it after that" },
};

static void mistakes_are_found(void **state)
{
    (void)state;
    setenv("IMBREX_CHECK", "1", 1);
    ranks_desc desc = { .size = 3 };
    for (int i = 0; i < CASES; i++) {
        hooks_case c = cases[i];
        c.text = true;
        assert_int_equal(ranks_run(&desc, run_case, &c), 0);
    }
    /* Thread sanitizer, under which there are no processes, says itself that they are races. */
    for (size_t i = 0; RANKS_PROCESSES && i < sizeof wrong / sizeof wrong[0]; i++) {
        hooks_case c = wrong[i];
        c.gemm = cases[0].gemm;
        c.text = true;
        c.runs = 6;
        assert_int_equal(ranks_run(&desc, run_case, &c), 0);
    }
    unsetenv("IMBREX_CHECK");
}

/* ---- what a wrong one is told ---------------------------------------------------------------- */

static const char plain[] = "#include \"imbrex_device.h\"\n"
                            "typedef struct { int x; } args_t;\n"
                            "IMBREXD_KERNEL(hooked, args_t) { (void)args; (void)team; }\n";
#define HOOKED(name, hooks)                          \
    "#include \"imbrex_gemm.h\"\n"                   \
    "typedef struct { int x; } args_t;\n" hooks "\n" \
    "#define IMBREXD_GEMM_NAME " name "\n"           \
    "#define IMBREXD_GEMM_ARGS args_t\n"             \
    "#include \"imbrex_gemm_kernel.h\"\n"
static const char absent[] = HOOKED("hooked", "#define IMBREXD_GEMM_DONE nobody");
static const char both[] =
    HOOKED("other", "IMBREXD_KERNEL(hooked, args_t) { (void)args; (void)team; }");
static const char nameless[] = "#include \"imbrex_gemm_kernel.h\"\n";

#define SHAPE .m = 64, .n = 64, .k = 64

static void wrong_kernels(imbrex_group *group, bool cuda)
{
    static const imbrex_gemm_desc shape = { SHAPE };
    static const struct {
        imbrex_gemm_desc gemm;
        imbrex_status status;
        const char *words;
    } rows[] = {
        { { .m = 64, .n = 64 }, IMBREX_INVALID, "desc.gemm.k is 0: want from 1 to" },
        { { .m = -1, .n = 64, .k = 64 }, IMBREX_INVALID, "desc.gemm.m is -1: want from 1 to" },
        { { SHAPE, .chunk_rows = -1 }, IMBREX_INVALID, "desc.gemm.chunk_rows is -1: want from 0" },
        { { SHAPE, .dtype = (imbrex_dtype)7 }, IMBREX_INVALID, "desc.gemm.dtype is 7" },
        { { SHAPE, .algorithm = "copy" }, IMBREX_INVALID, "hooks are the algorithm" },
        { { SHAPE, .m_least = 1 }, IMBREX_INVALID, "desc.gemm.m_least is 1: kernel" },
        { { SHAPE, .reserved = { 1 } }, IMBREX_UNSUPPORTED, "desc.gemm.reserved is not 0" },
        { { SHAPE, .sms = 1 << 20 }, IMBREX_UNSUPPORTED, "desc.gemm.sms is 1048576: " },
    };
    static const imbrex_gemm_desc odd[] = { { SHAPE, .dtype = IMBREX_F32 },
                                            { .m = 64, .n = 64, .k = 63 } };
    imbrex_kernel *kernel = NULL;
    imbrex_kernel_desc desc = { .name = "hooked", .file = hooks_file() };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        desc.gemm = &rows[i].gemm;
        said(imbrex_kernel_create(group, &desc, &kernel), rows[i].status, rows[i].words);
    }
    for (int i = 0; i < 2 && cuda; i++) {
        desc.gemm = &odd[i];
        said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_UNSUPPORTED, "wants an sm_90");
    }
    desc.gemm = &shape;
    desc.name = "other";
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "kernel other");
    assert_null(kernel);
}

/* error: of a compiler; hookless: where there is nothing. */
static void wrong_texts(imbrex_group *group, const char *error, const char *hookless)
{
    static const imbrex_gemm_desc shape = { SHAPE };
    imbrex_kernel *kernel = NULL;
    imbrex_kernel_desc desc = { .name = "hooked", .gemm = &shape, .file = "a/b.c" };
    desc.source = plain;
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "imbrex_gemm_kernel.h");
    desc.source = absent;
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "nobody");
    desc.source = both;
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "no hooks");
    desc.name = "other";
    desc.gemm = NULL;
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "desc.gemm");
    desc.name = "hooked";
    desc.gemm = &shape;
    desc.source = nameless;
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "IMBREXD_GEMM_NAME");
    desc.source = "int x = here;\n";
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, error);
    desc.source = "int x;\n";
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, hookless);
    assert_null(kernel);
}

static void wrong_launches(imbrex_group *group, const char *device)
{
    static const imbrex_gemm_desc shape = { SHAPE };
    static _Alignas(256) uint16_t room[64 * 64];
    imbrex_group *other = alone(device);
    imbrex_kernel *kernel = NULL;
    imbrex_stream foreign;
    imbrex_kernel_desc desc = { .name = "hooked", .file = hooks_file(), .gemm = &shape };
    void *c[] = { room }, *none[] = { NULL };
    const imbrex_gemm_operands good = { .a = room, .b = room, .c = c };
    const char args[256] = "";
    const size_t bytes = hooks_entry->args_bytes;
    assert_int_equal(imbrex_stream_create(other, &foreign), IMBREX_OK);
    if (imbrex_kernel_create(group, &desc, &kernel) != IMBREX_OK)
        fail_msg("%s", imbrex_error());
    const struct {
        imbrex_gemm_operands operands;
        imbrex_status status;
        const char *words;
    } rows[] = {
        { { .b = room, .c = c }, IMBREX_INVALID, "operands.a is NULL" },
        { { .a = room, .c = c }, IMBREX_INVALID, "operands.b is NULL" },
        { { .a = room, .b = room }, IMBREX_INVALID, "operands.c is NULL" },
        { { .a = room, .b = room, .c = none }, IMBREX_INVALID, "operands.c[0] is NULL" },
        { { .a = (char *)room + 1, .b = room, .c = c }, IMBREX_INVALID, "not 2-byte aligned" },
        { { .a = room, .b = room, .c = c, .m = 65 }, IMBREX_INVALID, "operands.m is 65" },
        { { .a = room, .b = room, .c = c, .m = -2 }, IMBREX_INVALID, "operands.m is -2" },
        { { .a = room, .b = room, .c = c, .first = 1 }, IMBREX_INVALID, "operands.first is 1" },
        { { .a = room, .b = room, .c = c, .reserved = { 1 } }, IMBREX_UNSUPPORTED, "reserved" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        said(imbrex_launch_gemm(kernel, &rows[i].operands, args, bytes, NULL), rows[i].status,
             rows[i].words);
    said(imbrex_launch_gemm(NULL, &good, args, bytes, NULL), IMBREX_INVALID, "kernel is NULL");
    said(imbrex_launch_gemm(kernel, NULL, args, bytes, NULL), IMBREX_INVALID, "operands is");
    said(imbrex_launch_gemm(kernel, &good, args, 8, NULL), IMBREX_INVALID, "args_bytes is 8");
    said(imbrex_launch_gemm(kernel, &good, NULL, bytes, NULL), IMBREX_INVALID, "args is NULL");
    said(imbrex_launch_gemm(kernel, &good, args, bytes, foreign), IMBREX_INVALID, "not one of");
    said(imbrex_launch(kernel, 1, 1, args, bytes, NULL), IMBREX_INVALID, "want imbrex_launch_gemm");
    assert_int_equal(imbrex_group_status(group), IMBREX_OK);
    imbrex_kernel_destroy(kernel);
    imbrex_group_destroy(other);
}

static void wrong_on_cpu(void **state)
{
    (void)state;
    imbrex_group *group = alone("cpu");
    imbrex_kernel *kernel = NULL;
    wrong_kernels(group, false);
    wrong_texts(group, "a/b.c:1:", "want IMBREXD_GEMM_NAME hooked");
    wrong_launches(group, "cpu");
    imbrex_kernel_desc desc = { .name = "hooked", .entry = hooks_entry };
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID, "want its desc.gemm");
    imbrex_group_destroy(group);
}

static void wrong_on_fake_gpus(void **state)
{
    (void)state;
    fake_driver_install(2);
    imbrex_group *group = alone("cuda:0");
    wrong_kernels(group, true);
    wrong_launches(group, "cuda:1");
    imbrex_group_destroy(group);
    assert_int_equal(fake_driver_live(), 0);
}

/* A meeting finds ranks that want different products. */
static int disagree(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_kernel *kernel;
    imbrex_gemm_desc shape = { SHAPE };
    shape.n += imbrex_group_rank(group);
    imbrex_kernel_desc desc = { .name = "hooked", .entry = hooks_entry, .gemm = &shape };
    imbrex_status status = imbrex_kernel_create(group, &desc, &kernel);
    RANK_CHECK(status == IMBREX_PEER && strstr(imbrex_error(), "desc.gemm.n"), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    return 0;
}

static const char bare[] = HOOKED("bare", "");

/* What the group has come to, once a launch that gave `status` can have failed it. */
static imbrex_status await_failure(const imbrex_group *group, imbrex_status status)
{
    enum { WAIT_MS = 5000 };
    for (int ms = 0; status == IMBREX_OK && ms < WAIT_MS; ms++) {
        usleep(1000);
        status = imbrex_group_status(group);
    }
    return status;
}

/* Launches of two kernels in another order on each rank, of one of them once more on rank 1: all is
 * well until one of them has other rows. */
static int other_rows(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { DIM = 64, LAUNCHES = 100 };
    _Alignas(256) uint16_t room[3][DIM * DIM] = { { 0 } };
    int rank = imbrex_group_rank(group);
    imbrex_gemm_desc shape = { SHAPE };
    imbrex_kernel_desc desc = { .name = "bare", .source = bare, .gemm = &shape };
    imbrex_kernel *kernels[2];
    for (int i = 0; i < 2; i++)
        RANK_OK(imbrex_kernel_create(group, &desc, &kernels[i]));
    void *c[] = { room[2], room[2] };
    imbrex_gemm_operands operands = { .a = room[0], .b = room[1], .c = c };
    const int args = 0;
    for (int i = 0; i < 2 * LAUNCHES + rank; i++) {
        int which = (i + rank) % 2;
        operands.m = 1 + (i / 2 + 9 * which) % DIM;
        RANK_OK(imbrex_launch_gemm(kernels[which], &operands, &args, sizeof args, NULL));
    }
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    operands.m = IMBREX_NONE; /* which counts, and launches nothing */
    RANK_OK(imbrex_launch_gemm(kernels[0], &operands, &args, sizeof args, NULL));
    operands.m = DIM - rank;
    imbrex_status status =
        await_failure(group, imbrex_launch_gemm(kernels[0], &operands, &args, sizeof args, NULL));
    RANK_CHECK(status == IMBREX_INVALID &&
                   strstr(imbrex_error(), "operands.m differs between ranks in a launch of kernel "
                                          "bare: "),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "64 on rank 0") && strstr(imbrex_error(), "63 on rank 1"),
               "%s", imbrex_error());
    return 0;
}

/* Rank 0 has launched another kernel as often before rank 1 launches the first: what rank 0 said of
 * that one is still there to compare with. */
static int other_rows_of_the_first(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { DIM = 64 };
    _Alignas(256) uint16_t room[3][DIM * DIM] = { { 0 } };
    int rank = imbrex_group_rank(group);
    imbrex_gemm_desc shape = { SHAPE };
    imbrex_kernel_desc desc = { .name = "bare", .source = bare, .gemm = &shape };
    imbrex_kernel *kernels[2];
    for (int i = 0; i < 2; i++)
        RANK_OK(imbrex_kernel_create(group, &desc, &kernels[i]));
    void *c[] = { room[2], room[2] };
    imbrex_gemm_operands operands = { .a = room[0], .b = room[1], .c = c, .m = DIM - rank };
    const int args = 0;
    for (int i = 0; i < 2 && rank == 0; i++)
        RANK_OK(imbrex_launch_gemm(kernels[i], &operands, &args, sizeof args, NULL));
    RANK_OK(imbrex_barrier(group, NULL));
    if (rank == 1) /* alone: rank 0's sync might come back when this one has failed already */
        RANK_OK(imbrex_stream_sync(group, NULL));
    imbrex_status status = IMBREX_OK;
    if (rank == 1)
        status = imbrex_launch_gemm(kernels[0], &operands, &args, sizeof args, NULL);
    status = await_failure(group, status);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "operands.m differs"), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    return 0;
}

/* A word of a launch has the lower bits of the kernel's number: one that was is not taken for a
 * later kernel's. */
static int one_of_8192(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { DIM = 64 };
    _Alignas(256) uint16_t room[3][DIM * DIM] = { { 0 } };
    const imbrex_gemm_desc shape = { SHAPE };
    const imbrex_kernel_desc desc = { .name = "bare", .source = bare, .gemm = &shape };
    void *c[] = { room[2], room[2] };
    imbrex_gemm_operands operands = { .a = room[0], .b = room[1], .c = c };
    const int args = 0;
    for (int i = 0; i < 2; i++) {
        imbrex_kernel *kernel;
        operands.m = 8 + i;
        RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
        RANK_OK(imbrex_launch_gemm(kernel, &operands, &args, sizeof args, NULL));
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        imbrex_kernel_destroy(kernel);
        group->objects[IMX_OF_CALLER].count +=
            IMX_AGREE_PLAN_MASK; /* as if so many had been made */
    }
    return 0;
}

static void ranks_that_disagree(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, one_of_8192, NULL), 0);
    assert_int_equal(ranks_run(&desc, disagree, NULL), 0);
    assert_int_equal(ranks_run(&desc, other_rows, NULL), 0);
    assert_int_equal(ranks_run(&desc, other_rows_of_the_first, NULL), 0);
}

/* ---- hooks that do what they must not -------------------------------------------------------- */

#define HOOK(name, type, more, body)                                                         \
    HOOKED("says", "IMBREXD_FN " type " hook(const args_t *args, const imbrexd_team *team, " \
                   "const imbrexd_gemm *gemm" more ") { (void)args; " body " }\n"            \
                   "#define IMBREXD_GEMM_" name " hook")
#define ROWS  ", int rank, int chunk"
#define SHARE ", unsigned thread, unsigned threads"

typedef struct saying {
    const char *source, *words;
} saying;

static int says(imbrex_group *group, void *ctx)
{
    const saying *s = ctx;
    enum { DIM = 64 };
    _Alignas(256) uint16_t room[3][DIM * DIM] = { { 0 } };
    const imbrex_gemm_desc shape = { SHAPE };
    const imbrex_kernel_desc desc = { .name = "says", .source = s->source, .gemm = &shape };
    void *c[] = { room[2], room[2] };
    const imbrex_gemm_operands operands = { .a = room[0], .b = room[1], .c = c };
    const int args = 0;
    imbrex_kernel *kernel;
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    imbrex_status status =
        await_failure(group, imbrex_launch_gemm(kernel, &operands, &args, sizeof args, NULL));
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), s->words), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    return 0;
}

/* 0 is what a hook says whose wait gave up; without that no result may pass for one.  What fewer
 * threads call on a GPU than it takes would hang there. */
static void hooks_that_do_what_they_must_not(void **state)
{
    (void)state;
    static const saying all[] = {
        { HOOK("BEGIN", "int", "", "return 0;"), "BEGIN of kernel says returned 0, but no wait" },
        { HOOK("WAIT", "int", ROWS, "return 0;"), "WAIT of kernel says returned 0, but no wait" },
        { HOOK("BESIDE", "int", SHARE, "return 0;"), "BESIDE of kernel says returned 0, but no" },
        { HOOK("ORDER", "unsigned", ", unsigned index", "return gemm->tiles + index;"),
          "ORDER of kernel says returned " },
        { HOOK("ORDER", "unsigned", ", unsigned index", "imbrexd_sync_warp(); return index;"),
          "ORDER of kernel says called what is for whole warps" },
        { HOOK("WAIT", "int", ROWS, "return imbrexd_wait_warp(team, team->epoch, 1, 0, -1);"),
          "WAIT of kernel says called what is for whole warps" },
        { HOOK("DONE", "void", ROWS, "imbrexd_put_warp_nbi(0, 0, 0);"),
          "DONE of kernel says called what is for whole warps" },
        { HOOK("BESIDE", "int", SHARE, "imbrexd_ll_pack_block(0, 0, 0, 1); return 1;"),
          "BESIDE of kernel says called what is for whole blocks" },
        { HOOK("BEGIN", "int", "", "return imbrexd_sync_all(team);"),
          "BEGIN of kernel says called what is for whole blocks" },
        { HOOK("END", "void", "", "memset(imbrexd_shared(), 1, 200000);"),
          "END of kernel says called what is for whole blocks" },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ranks_desc desc = { .size = 2 };
        saying s = all[i];
        assert_int_equal(ranks_run(&desc, says, &s), 0);
    }
}

/* ---- the real compiler ----------------------------------------------------------------------- */

static void compiles_for_gpus(void **state)
{
    (void)state;
    static const imbrex_gemm_desc shapes[] = {
        { .m = 8192, .n = 8192, .k = 2048 },
        { .m = 8192, .n = 8191, .k = 2048, .dtype = IMBREX_F16 },
        { .m = 60, .n = 4096, .k = 1024, .layout = IMBREX_KN },
    };
    if (SANITIZED || !callers_open_compiler()) {
        print_message("there is no NVRTC: %s\n", imbrex_error());
        skip();
    }
    imbrex_group *group = alone_compiling("compile:90");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        imbrex_kernel *kernel;
        imbrex_kernel_desc desc = { .name = "hooked", .file = hooks_file(), .gemm = &shapes[i] };
        if (imbrex_kernel_create(group, &desc, &kernel) != IMBREX_OK)
            fail_msg("%s", imbrex_error());
    }
    wrong_texts(group, "a/b.c(1): error", "desc.gemm wants hooks");
    imbrex_kernel *kernel;
    imbrex_kernel_desc desc = { .name = "other", .file = hooks_file(), .gemm = &shapes[0] };
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID,
         "has no hooks of kernel other");
    desc = (imbrex_kernel_desc){ .name = "hooked", .file = hooks_file() };
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID,
         "or the desc.gemm that it is");
    imbrex_group_destroy(group);
    group = alone_compiling("compile:80");
    desc.gemm = &shapes[0];
    said(imbrex_kernel_create(group, &desc, &kernel), IMBREX_UNSUPPORTED, "wants an sm_90");
    imbrex_group_destroy(group);
}

static int begin(void **state)
{
    return callers_begin(state, "hooked", hooks_entry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_the_library),
        cmocka_unit_test(same_on_fake_gpus),
        cmocka_unit_test(same_as_they_are_compiled),
        cmocka_unit_test(refused_launches_do_not_count),
        cmocka_unit_test(mistakes_are_found),
        cmocka_unit_test(wrong_on_cpu),
        cmocka_unit_test(wrong_on_fake_gpus),
        cmocka_unit_test(ranks_that_disagree),
        cmocka_unit_test(hooks_that_do_what_they_must_not),
        cmocka_unit_test(compiles_for_gpus),
    };
    return cmocka_run_group_tests(tests, begin, callers_end);
}
