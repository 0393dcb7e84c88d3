/* test_cuda_ahead.c - device "compile:90" and `imbrex compile`, with a fake compiler: plans fill
 * the kernel cache without a GPU, say what came of each kernel and what was chosen, and do not
 * run. */
#define _GNU_SOURCE
#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/cuda/cuda.h"
#include "bench/bench.h"
#include "cli.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "matrix.h"
#include "plan/plan.h"
#include "reference.h"
#include "sanitized.h"
#include "scratch.h"

static imbrex_status make_group(const char *device, imbrex_group **group)
{
    imbrex_bootstrap alone = { .size = 1 };
    return imbrex_group_create(&(imbrex_group_desc){ .bootstrap = &alone, .device = device },
                               group);
}

static void plans_fill_the_cache(void **state)
{
    (void)state;
    op_case c = { .op = "gemm_rs", .m = 512, .n = 256, .k = 320, .algorithm = "copy" };
    imbrex_group *group;
    imbrex_plan *plan;
    char line[600];
    int compiled = 0;
    fake_driver_install(0);
    for (int round = 0; round < 2; round++) {
        const char *gemm = round ? "; gemm: was in the cache; "
                                 : "; gemm: compiled, 128 registers, 1024 bytes spilled; ";
        assert_int_equal(make_group("compile:90", &group), IMBREX_OK);
        assert_string_equal(imbrex_group_device(group), "compile:90");
        assert_int_equal(case_plan(group, &c, &plan), IMBREX_OK);
        imbrex_plan_describe(plan, line, sizeof line);
        if (!strstr(line, gemm))
            fail_msg("'%s' does not say '%s'", line, gemm);
        if (round == 0)
            compiled = fake_driver_compiled();
        assert_int_equal(fake_driver_compiled(), compiled);
        assert_in_range(compiled, 2, 100); /* gemm, reduce, and what a group has ready */
        imbrex_group_destroy(group);
    }
    assert_int_equal(fake_driver_live(), 0);
}

static void nothing_runs(void **state)
{
    (void)state;
    op_case c = { .op = "all_gather", .m = 8, .n = 8 };
    imbrex_group *group;
    imbrex_plan *plan;
    char a[256] = "", b[256];
    fake_driver_install(0);
    assert_int_equal(make_group("compile:90", &group), IMBREX_OK);
    assert_int_equal(case_plan(group, &c, &plan), IMBREX_OK);
    assert_int_equal(imbrex_copy(group, b, a, sizeof a, NULL), IMBREX_UNSUPPORTED);
    assert_non_null(strstr(imbrex_error(), "only compiles"));
    imbrex_args args = { .a = a, .c = b };
    for (int i = 0; i < 2; i++) { /* which fails the call, and not the group */
        assert_int_equal(imbrex_plan_run(plan, &args, NULL), IMBREX_UNSUPPORTED);
        assert_non_null(strstr(imbrex_error(), "device compile:90 only compiles"));
        assert_int_equal(imbrex_group_status(group), IMBREX_OK);
    }
    assert_int_equal(case_plan(group, &c, &plan), IMBREX_OK);
    imbrex_group_destroy(group);
}

static int passes_rows_on(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)rank, (void)ctx;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "compile:80" };
    imbrex_gemm_desc ring = { 8192, 256, 320, IMBREX_BF16, .algorithm = "ring" };
    imbrex_group *group;
    imbrex_plan *plan;
    RANK_OK(imbrex_group_create(&desc, &group));
    imbrex_status status = imbrex_plan_ag_gemm(group, &ring, &plan);
    RANK_CHECK(status == IMBREX_UNSUPPORTED, "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "no form for this shape on sm_80: rows that go on") &&
                   strstr(imbrex_error(), "choose \"store\""),
               "%s", imbrex_error());
    imbrex_group_destroy(group);
    return 0;
}

/* The kernel says what its form would want. */
static void what_has_no_form_says_why(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    fake_driver_install(0);
    assert_int_equal(ranks_run_bare(&desc, passes_rows_on, NULL), 0);
}

static void other_devices_are_refused(void **state)
{
    (void)state;
    static const char *const devices[] = { "compile", "compile:70", "compile:91" };
    char said[100];
    imbrex_group *group;
    fake_driver_install(0);
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        assert_int_equal(make_group(devices[i], &group), IMBREX_UNSUPPORTED);
        snprintf(said, sizeof said, "\"%s\" names no GPU to compile for: want \"compile:90\"",
                 devices[i]);
        assert_non_null(strstr(imbrex_error(), said));
    }
    setenv("IMBREX_CUDA_ARCH", "50", 1);
    assert_int_equal(make_group("compile:90", &group), IMBREX_INVALID);
    assert_non_null(strstr(imbrex_error(), "IMBREX_CUDA_ARCH is 50: want from 80 to the GPU's 90"));
    setenv("IMBREX_CUDA_ARCH", "90", 1);
    assert_int_equal(make_group("compile:80", &group), IMBREX_INVALID);
    unsetenv("IMBREX_CUDA_ARCH");
}

/* A group of two, of which this is one: all that a plan asks of the other is what it asks here. */
static int echo(void *ctx, const void *send, void *recv, size_t bytes)
{
    (void)ctx;
    memcpy(recv, send, bytes);
    memcpy((char *)recv + bytes, send, bytes);
    return 0;
}

/* As measured on H200s: in Hopper's form warps of their own send, in the general one those that
 * multiply, which takes longer than copies do (docs/experiments.md). */
static void each_form_has_its_choice(void **state)
{
    (void)state;
    static const struct {
        const char *device, *op, *chosen;
    } rows[] = {
        { "compile:90", "gemm_rs", "scatter_push" },
        { "compile:90", "ag_gemm", "store" },
        { "compile:80", "gemm_rs", "copy" },
        { "compile:80", "ag_gemm", "copy" },
    };
    imbrex_bootstrap two = { .size = 2, .allgather = echo };
    fake_driver_install(0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        op_case c = { .op = rows[i].op, .m = 8192, .n = 4096, .k = 7168, .dtype = IMBREX_BF16 };
        imbrex_group_desc desc = { .bootstrap = &two, .device = rows[i].device };
        imbrex_group *group;
        imbrex_plan *plan;
        assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_OK);
        assert_int_equal(case_plan(group, &c, &plan), IMBREX_OK);
        imx_plan_facts facts = imx_describe_facts(plan);
        if (strcmp(facts.algorithm, rows[i].chosen) != 0 || facts.measured)
            fail_msg("row %zu: '%s', want '%s'", i, facts.algorithm, rows[i].chosen);
        imbrex_group_destroy(group);
    }
}

/* As measured on two H200s, 64 heads of 128: by words up to 1 MB to a peer (docs/decode.md). */
static void states_go_as_words_while_they_are_few(void **state)
{
    (void)state;
    static const struct {
        int sequences, replicate;
        const char *chosen;
    } rows[] = {
        { 1, 0, "ll" },  { 8, 1, "ll" },      { 128, 0, "ll" },
        { 64, 1, "ll" }, { 512, 0, "store" }, { 256, 1, "store" },
    };
    imbrex_bootstrap two = { .size = 2, .allgather = echo };
    imbrex_group_desc desc = { .bootstrap = &two, .device = "compile:90" };
    fake_driver_install(0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        imbrex_decode_desc d = { .batch = rows[i].sequences,
                                 .heads = 64,
                                 .value_dim = 128,
                                 .dtype = IMBREX_BF16,
                                 .replicate = rows[i].replicate };
        imbrex_group *group;
        imbrex_plan *plan;
        assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_OK);
        if (imbrex_plan_merge_states(group, &d, &plan))
            fail_msg("row %zu: %s", i, imbrex_error());
        const char *chosen = imx_describe_facts(plan).algorithm;
        if (strcmp(chosen, rows[i].chosen) != 0)
            fail_msg("row %zu: '%s', want '%s'", i, chosen, rows[i].chosen);
        imbrex_group_destroy(group);
    }
}

/* ---- files that are there already ------------------------------------------------------------ */

/* In the file, and as large as they are: clang's sanitizer would add to their sizes. */
#if SANITIZED_ADDRESSES && defined(__clang__)
#define KEPT __attribute__((used, no_sanitize("address")))
#else
#define KEPT __attribute__((used))
#endif

/* This program's own file is a cubin but for its machine: an entry and its args, args alone, args
 * of what is no function, args too large. */
KEPT static char imbrexd_args_there[24], imbrexd_args_alone[8];
KEPT static char imbrexd_args_datum[8], datum[8], imbrexd_args_large[300];

KEPT static void there(void) {}

KEPT static void large(void) {}

static int make_files(void **state)
{
    /* As NVRTC 12.4 and 13.0 write them. */
    static const struct {
        const char *name;
        unsigned char abi;
        Elf64_Word flags;
    } forms[] = {
        { "sm_90a-7.cubin", 7, 0x5a0d5a },   { "sm_90a-8.cubin", 8, 0x6005a04 },
        { "sm_80-7.cubin", 7, 0x500550 },    { "sm_80-8.cubin", 8, 0x6005004 },
        { "sm_100a-8.cubin", 8, 0x6006402 },
    };
    char program[4096] = "";
    size_t bytes = 0;
    if (scratch_make(state) || readlink("/proc/self/exe", program, sizeof program - 1) <= 0 ||
        symlink(program, scratch_path("host.cubin")))
        return -1;
    unsigned char *all = scratch_read("host.cubin", &bytes);
    const Elf64_Half machine = EM_CUDA;
    memcpy(all + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof machine);
    scratch_write("x.cubin", all, bytes);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        all[EI_ABIVERSION] = forms[i].abi;
        memcpy(all + offsetof(Elf64_Ehdr, e_flags), &forms[i].flags, sizeof forms[i].flags);
        scratch_write(forms[i].name, all, bytes);
    }
    free(all);
    scratch_write("text.cubin", "there", 5);
    scratch_write("ptx.cubin", "// made\n.version 8.0\n", 21);
    return 0;
}

static void a_file_has_to_have_the_kernel(void **state)
{
    (void)state;
    static const char *const says[][3] = {
        { "x.cubin", "there", NULL },
        { "x.cubin", "nowhere", "x.cubin has no kernel nowhere" },
        { "x.cubin", "alone", "or the desc.gemm that it is hooks for" },
        { "x.cubin", "datum", "x.cubin has no kernel datum" },
        { "x.cubin", "large", "kernel large takes 300 bytes of args" },
        { "host.cubin", "there", "host.cubin is not for GPUs: want what nvcc -cubin makes" },
        { "text.cubin", "there", "text.cubin is not for GPUs: want what nvcc -cubin makes" },
        { "ptx.cubin", "there", NULL }, /* nobody looks into it */
        { "sm_90a-7.cubin", "there", NULL },
        { "sm_90a-8.cubin", "there", NULL },
        { "sm_80-7.cubin", "there", "sm_80-7.cubin is for an sm_80, not for an sm_90: want nvcc" },
        { "sm_80-8.cubin", "there", "is for an sm_80, not for an sm_90: want nvcc -arch=sm_90" },
        { "sm_100a-8.cubin", "there", "is for an sm_100, not for an sm_90" },
    };
    imbrex_group *group;
    imbrex_kernel *kernel;
    fake_driver_install(0);
    assert_int_equal(make_group("compile:90", &group), IMBREX_OK);
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++) {
        imbrex_kernel_desc desc = { .name = says[i][1], .file = scratch_path(says[i][0]) };
        imbrex_status status = imbrex_kernel_create(group, &desc, &kernel);
        if (status != (says[i][2] ? IMBREX_INVALID : IMBREX_OK) ||
            (says[i][2] && !strstr(imbrex_error(), says[i][2])))
            fail_msg("%s: %s '%s'", says[i][1], imbrex_status_name(status), imbrex_error());
    }
    imbrex_group_destroy(group);

    assert_int_equal(make_group("cpu", &group), IMBREX_OK);
    imbrex_kernel_desc desc = { .name = "there", .file = scratch_path("x.cubin") };
    assert_int_equal(imbrex_kernel_create(group, &desc, &kernel), IMBREX_INVALID);
    assert_non_null(strstr(imbrex_error(), "x.cubin is compiled already, for GPUs perhaps: CPU"));
    imbrex_group_destroy(group);
}

/* Nothing is read that is not there: the allocation is as long as the piece. */
static void a_file_may_be_cut_off(void **state)
{
    (void)state;
    size_t bytes = 0, found = 0, cuts = 0;
    unsigned char *all = scratch_read("x.cubin", &bytes);
    assert_true(imx_cuda_cubin_find(all, bytes, "imbrexd_args_there", false, &found));
    assert_int_equal(found, sizeof imbrexd_args_there);
    for (size_t cut = 0; cut < bytes; cut += cut < 200 ? 1 : bytes / 97, cuts++) {
        char *piece = malloc(cut ? cut : 1);
        memcpy(piece, all, cut);
        assert_false(imx_cuda_cubin_find(piece, cut, "imbrexd_args_there", false, &found));
        free(piece);
    }
    assert_true(cuts > 200);
    free(all);
}

#define COMMAND(...) \
    cli_compile(sizeof((char *[]){ __VA_ARGS__ }) / sizeof(char *), (char *[]){ __VA_ARGS__, NULL })

static void the_command_compiles(void **state)
{
    (void)state;
    char name[] = "compile", ops[] = "ag_gemm", alone[] = "gemm", arch[] = "--device=sm_90a";
    char shapes[] = "--shapes=640,384,448;640,384,512", old[] = "--device=sm_70",
         what[] = "--device=h";
    fake_driver_install(0);
    assert_int_equal(COMMAND(name, ops, arch, shapes), CLI_OK);
    int first = fake_driver_compiled();
    assert_in_range(first, 1, 3);
    assert_int_equal(COMMAND(name, ops, arch, shapes), CLI_OK);
    assert_int_equal(fake_driver_compiled(), first);
    char both[] = "--algorithm=store,sequential", wrong[] = "--algorithm=sequential,best";
    assert_int_equal(COMMAND(name, ops, arch, shapes, both), CLI_OK);
    assert_in_range(fake_driver_compiled(), first + 1, 3 * first);
    assert_int_equal(COMMAND(name, ops, arch, shapes, wrong), CLI_USAGE);
    char other[] = "--shapes=gemm_rs:640,384,448"; /* of the usual two, one may be left out */
    assert_int_equal(COMMAND(name, arch, other), CLI_OK);
    assert_int_equal(COMMAND(name, ops, arch, other), CLI_USAGE);
    assert_int_equal(COMMAND(name, ops, old), CLI_USAGE);
    assert_int_equal(COMMAND(name, ops, what), CLI_USAGE);
    assert_int_equal(COMMAND(name, alone, arch, shapes), CLI_OK);
}

/* What the command says of one operator without options. */
static void plain(char *ops, char *said, size_t size)
{
    char name[] = "compile";
    int file = scratch_log(), out = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(file, STDOUT_FILENO);
    int code = COMMAND(name, ops);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    ssize_t bytes = pread(file, said, size - 1, 0);
    said[bytes < 0 ? 0 : bytes] = '\0';
    close(out);
    close(file);
    assert_int_equal(code, CLI_OK);
}

static void plain_is_what_bench_runs_on_gpus(void **state)
{
    (void)state;
    const options_page page = { .command = "bench" };
    bench_words words = { .ranks = BENCH_WORDS_RANKS };
    bench_shapes shapes;
    char ops[] = "ag_gemm", said[2048], want[256];
    fake_driver_install(0);
    plain(ops, said, sizeof said);
    assert_int_equal(bench_shapes_read(&page, &words, ops, &shapes), 0);
    assert_int_equal(shapes.count, 1);
    const bench_shape *gpu = &shapes.list[true][0], *cpu = &shapes.list[false][0];
    snprintf(want, sizeof want, "ag_gemm m=%lld n=%lld k=%lld b=[n,k] %s, %d ranks on compile",
             (long long)gpu->m, (long long)gpu->n, (long long)gpu->k,
             matrix_dtype_names[gpu->dtype], BENCH_WORDS_RANKS);
    if (strncmp(said, want, strlen(want)) != 0)
        fail_msg("'%s' does not begin with '%s'", said, want);
    assert_int_equal(gpu->m, 4096);
    assert_int_equal(gpu->dtype, IMBREX_BF16);
    assert_int_equal(cpu->m, 1024);
    assert_int_equal(cpu->dtype, IMBREX_F32);

    words = (bench_words){ .k = 64, .ranks = 4, .dtype = "f16", .total = true };
    assert_int_equal(bench_shapes_read(&page, &words, ops, &shapes), 0);
    const int64_t n[] = { 256, 1024 };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(shapes.list[i][0].n, n[i]);
        assert_int_equal(shapes.list[i][0].k, 64);
        assert_int_equal(shapes.list[i][0].dtype, IMBREX_F16);
    }
}

/* On the fake driver, whose compiler takes anything, and by the real one for CPU ranks. */
static void the_command_tries_kernels(void **state)
{
    (void)state;
    static const char text[] = "#include \"imbrex_device.h\"\n"
                               "typedef struct { int *to; } try_args;\n"
                               "IMBREXD_KERNEL(try, try_args) { *args->to = team->rank + X; }\n";
    static const struct {
        const char *name, *more[3];
        int code;
    } rows[] = {
        { ":try", { "--device=sm_90a" }, CLI_OK },
        { ":try", { "--device=cpu", "--options=-DX=1" }, CLI_OK },
        { ":try", { "--device=cpu" }, CLI_FAILED },
        { ":other", { "--device=cpu", "--options=-DX=1" }, CLI_FAILED },
        { ":try", { "--device=cpu", "--options=-DX=1", "--gemm" }, CLI_FAILED }, /* no hooks */
        { "x:try", { "--device=cpu" }, CLI_FAILED },                             /* no such file */
        { ":try", { "--device=h100" }, CLI_USAGE },
        { ":try", { "--total" }, CLI_USAGE },
        { ":try", { "ag_gemm" }, CLI_USAGE },
        { ":", { NULL }, CLI_USAGE },
        { "", { NULL }, CLI_USAGE },
        { NULL, { "--gemm" }, CLI_USAGE },
    };
    scratch_write("try.c", text, sizeof text - 1);
    fake_driver_install(0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char words[5][256] = { "compile" }, *argv[6] = { words[0] };
        int argc = 1;
        if (rows[i].name) {
            snprintf(words[1], sizeof words[1], "--kernel=%s%s", scratch_path("try.c"),
                     rows[i].name);
            argv[argc++] = words[1];
        }
        for (int j = 0; j < 3 && rows[i].more[j]; j++, argc++) {
            snprintf(words[2 + j], sizeof words[2 + j], "%s", rows[i].more[j]);
            argv[argc] = words[2 + j];
        }
        int code = cli_compile(argc, argv);
        if (code != rows[i].code)
            fail_msg("row %zu: %d, want %d", i, code, rows[i].code);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_fill_the_cache),
        cmocka_unit_test(nothing_runs),
        cmocka_unit_test(what_has_no_form_says_why),
        cmocka_unit_test(other_devices_are_refused),
        cmocka_unit_test(each_form_has_its_choice),
        cmocka_unit_test(states_go_as_words_while_they_are_few),
        cmocka_unit_test_setup_teardown(a_file_has_to_have_the_kernel, make_files, scratch_remove),
        cmocka_unit_test_setup_teardown(a_file_may_be_cut_off, make_files, scratch_remove),
        cmocka_unit_test(the_command_compiles),
        cmocka_unit_test(plain_is_what_bench_runs_on_gpus),
        cmocka_unit_test_setup_teardown(the_command_tries_kernels, scratch_make, scratch_remove),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
