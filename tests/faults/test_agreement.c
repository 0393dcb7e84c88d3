/* test_agreement.c - calls in which one rank differs: all ranks hear what differs and on whom, none
 * waits for ever, and the group goes on, unless it was in a run; and wrong arguments, of which only
 * their rank hears. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "base/imx.h"
#include "imbrex_device.h"
#include "ranks.h"
#include "reference.h"

enum { ODD = 1, TIMEOUT_MS = 5000 };

static int expect(const char *what, imbrex_status status, imbrex_status want, const char *part)
{
    RANK_CHECK(status == want, "%s: %s, want %s: %s", what, imbrex_status_name(status),
               imbrex_status_name(want), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), part), "%s: '%s' has no '%s'", what, imbrex_error(), part);
    return 0;
}

/* The group still works: one product, and its values. */
static int works(imbrex_group *group)
{
    op_case c = { .op = "gemm_rs", .m = 13, .n = 5, .k = 6, .dtype = IMBREX_F32, .chunk_rows = 2 };
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    float a[13 * 6], b[5 * 6], out[13 * 5];
    op_sizes n = op_sizes_of(&c, c.m, ranks, r);
    input_fill(c.dtype, r, 0, a, n.a);
    input_fill(c.dtype, INPUT_B + r, 0, b, n.b);
    imbrex_plan *plan;
    RANK_OK(case_plan(group, &c, &plan));
    RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .b = b, .c = out }, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    reference_error error;
    int64_t wrong = reference_check(&c, c.m, ranks, r, out, &error);
    RANK_CHECK(wrong < 0, "c[%d] is %g, want %g", (int)wrong, error.have, error.want);
    imbrex_plan_destroy(plan);
    return 0;
}

/* ---- descs that differ ----------------------------------------------------------------------- */

static const imbrex_gemm_desc plain = { .m = 64, .n = 32, .k = 16, .chunk_rows = 8, .sms = 1 };

/* One field of the odd rank's desc, and what the sentence must say. */
static imbrex_gemm_desc differ(int field, const char **says)
{
    static const char *const names[] = {
        "desc.m",
        "desc.n",
        "desc.k",
        "desc.dtype differs between ranks: bf16 on rank 0, f16 on rank 1",
        "desc.layout differs between ranks: [n, k] on rank 0, [k, n] on rank 1",
        "desc.algorithm differs between ranks: sequential on rank 0, copy on rank 1",
        "desc.chunk_rows",
        "desc.sms",
        "desc.m_least differs between ranks: 0 on rank 0, 1 on rank 1"
    };
    imbrex_gemm_desc d = plain;
    d.m += field == 0;
    d.n += field == 1;
    d.k += field == 2;
    d.dtype = field == 3 ? IMBREX_F16 : d.dtype;
    d.layout = field == 4 ? IMBREX_KN : d.layout;
    d.algorithm = field == 5 ? "copy" : "sequential";
    d.chunk_rows += field == 6;
    d.sms += field == 7;
    d.m_least += field == 8;
    *says = names[field];
    return d;
}

static imbrex_status plan_gemm(imbrex_group *group, int op, const imbrex_gemm_desc *d,
                               imbrex_plan **plan)
{
    const imbrex_coll_desc coll = { .m = d->m,
                                    .n = d->n,
                                    .dtype = d->dtype,
                                    .algorithm = d->algorithm,
                                    .chunk_rows = d->chunk_rows,
                                    .sms = d->sms };
    switch (op) {
    case 0:
        return imbrex_plan_all_gather(group, &coll, plan);
    case 1:
        return imbrex_plan_reduce_scatter(group, &coll, plan);
    case 2:
        return imbrex_plan_ag_gemm(group, d, plan);
    default:
        return imbrex_plan_gemm_rs(group, d, plan);
    }
}

static int descs(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    for (int op = 0; op < 4; op++) {
        for (int field = 0; field < 9; field++) {
            if (op < 2 && (field == 2 || field == 4 || field == 8))
                continue; /* no k, no layout, nothing for fewer rows */
            const char *says;
            imbrex_gemm_desc odd = differ(field, &says), even = plain;
            even.algorithm = "sequential";
            imbrex_plan *plan = (void *)&plain;
            imbrex_status status = plan_gemm(group, op, rank == ODD ? &odd : &even, &plan);
            if (expect(says, status, IMBREX_PEER, says) || expect(says, status, status, "rank 1"))
                return 1;
            RANK_CHECK(plan == (void *)&plain, "%s: the output was written", says);
        }
    }
    imbrex_gemm_desc asked = plain; /* what the others' choice may be, too */
    for (int i = 0; i < 2; i++) {
        asked.algorithm = rank == ODD ? (i ? "copy" : "store") : NULL;
        imbrex_plan *plan;
        if (expect("an algorithm", plan_gemm(group, 2, &asked, &plan), IMBREX_PEER,
                   "desc.algorithm differs between ranks: NULL on rank 0, "))
            return 1;
    }
    void *memory;
    if (expect("mem_alloc", imbrex_mem_alloc(group, rank == ODD ? 100 : 200, &memory), IMBREX_PEER,
               "imbrex_mem_alloc: bytes differs between ranks: 200 on rank 0, 100 on rank 1"))
        return 1;
    return works(group);
}

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct kernel_args {
    int *at;
} kernel_args;

IMBREXD_KERNEL(nothing, kernel_args)
{
    (void)args, (void)team;
}

IMBREXD_KERNEL(naught, kernel_args)
{
    (void)args, (void)team;
}

static const char text[] = "#include \"imbrex_device.h\"\n"
                           "typedef struct { int *at; } kernel_args;\n"
                           "IMBREXD_KERNEL(nothing, kernel_args) { (void)args, (void)team; }\n";

static _Thread_local bool lacks_memory;

static void *no_memory_once(size_t count, size_t bytes)
{
    bool lacks = lacks_memory;
    lacks_memory = false;
    return lacks ? NULL : calloc(count, bytes);
}

/* Another piece of the same size, another kernel with args of the same size. */
static int kernels_alike(imbrex_group *group, const imbrex_kernel_desc *desc)
{
    bool odd = imbrex_group_rank(group) == ODD;
    char other_text[sizeof text + 1];
    void *same = NULL;
    imbrex_kernel *kernel = NULL;
    imbrex_kernel_desc other = *desc;
    if (expect("a piece that is none", imbrex_mem_alloc(group, odd ? 0 : 4096, &same),
               odd ? IMBREX_INVALID : IMBREX_PEER, "bytes is 0"))
        return 1;
    RANK_OK(imbrex_mem_alloc(group, 4096, &same));
    other.memory = odd ? same : desc->memory;
    if (expect("a piece of the same size", imbrex_kernel_create(group, &other, &kernel),
               IMBREX_PEER,
               "the number of desc.memory's imbrex_mem_alloc differs between ranks: 1 on rank 0, "
               "3 on rank 1"))
        return 1;
    other = *desc;
    other.name = odd ? "naught" : desc->name;
    other.entry = odd ? IMBREXD_ENTRY(naught) : desc->entry;
    if (expect("another name", imbrex_kernel_create(group, &other, &kernel), IMBREX_PEER,
               "desc.name or the kernel's text differs between rank 0 and rank 1; all ranks"))
        return 1;
    snprintf(other_text, sizeof other_text, "%s\n", text);
    other = *desc;
    other.entry = NULL;
    other.source = odd ? other_text : text;
    if (expect("another text", imbrex_kernel_create(group, &other, &kernel), IMBREX_PEER,
               "desc.name or the kernel's text differs between rank 0 and rank 1; all ranks"))
        return 1;
    other.source = text;
    other.options = odd ? "-DX=1" : "-DX=2";
    if (expect("other options", imbrex_kernel_create(group, &other, &kernel), IMBREX_PEER,
               "desc.options differs between rank 0 and rank 1; all ranks must pass the same"))
        return 1;
    other.options = NULL;
    other.shared_bytes = odd ? 256 : 0;
    if (expect("other shared bytes", imbrex_kernel_create(group, &other, &kernel), IMBREX_PEER,
               "desc.shared_bytes differs between ranks: 0 on rank 0, 256 on rank 1"))
        return 1;
    other.shared_bytes = 0;
    other.resident = odd ? 2 : 1;
    if (expect("other blocks", imbrex_kernel_create(group, &other, &kernel), IMBREX_PEER,
               "desc.resident differs between ranks: 1 on rank 0, 2 on rank 1"))
        return 1;
    other.resident = 0;
    other.memory = same;
    RANK_OK(imbrex_kernel_create(group, &other, &kernel));
    return 0;
}

static int kernels(imbrex_group *group, void *ctx)
{
    (void)ctx;
    bool odd = imbrex_group_rank(group) == ODD;
    char *memory, *larger;
    imbrex_kernel *kernel = NULL;
    RANK_OK(imbrex_mem_alloc(group, 4096, (void **)&memory));
    RANK_OK(imbrex_mem_alloc(group, 8192, (void **)&larger));
    imbrex_kernel_desc desc = {
        .name = "nothing", .entry = IMBREXD_ENTRY(nothing), .signals = 4, .memory = memory
    };
    imbrex_kernel_desc signals = desc, none = desc, other = desc;
    signals.signals += odd;
    if (expect("signals", imbrex_kernel_create(group, &signals, &kernel), IMBREX_PEER,
               "desc.signals differs between ranks: 4 on rank 0, 5 on rank 1"))
        return 1;
    none.memory = odd ? NULL : memory;
    if (expect("no memory", imbrex_kernel_create(group, &none, &kernel), IMBREX_PEER,
               "desc.memory's piece differs between ranks: 4096 on rank 0, 0 on rank 1"))
        return 1;
    other.memory = odd ? larger : memory;
    if (expect("another piece", imbrex_kernel_create(group, &other, &kernel), IMBREX_PEER,
               "desc.memory's piece differs between ranks: 4096 on rank 0, 8192 on rank 1"))
        return 1;
    if (kernels_alike(group, &desc))
        return 1;
    lacks_memory = odd;
    if (expect("a rank without memory", imbrex_kernel_create(group, &desc, &kernel),
               odd ? IMBREX_NO_MEMORY : IMBREX_PEER, odd ? "memory" : "rank 1 failed: "))
        return 1;
    kernel_args args = { NULL };
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    RANK_OK(imbrex_launch(kernel, 1, 1, &args, sizeof args, NULL));
    return works(group);
}

/* ---- a rank elsewhere, a rank with a wrong desc ---------------------------------------------- */

static int elsewhere(imbrex_group *group, void *ctx)
{
    (void)ctx;
    bool odd = imbrex_group_rank(group) == ODD;
    void *memory;
    imbrex_plan *plan;
    const char *both = "imbrex_plan_ag_gemm on rank 0, imbrex_mem_alloc on rank 1";
    if (expect("another call",
               odd ? imbrex_mem_alloc(group, 64, &memory) : plan_gemm(group, 2, &plain, &plan),
               IMBREX_PEER, both) ||
        expect("another operator", plan_gemm(group, odd ? 3 : 2, &plain, &plan), IMBREX_PEER,
               "imbrex_plan_ag_gemm on rank 0, imbrex_plan_gemm_rs on rank 1"))
        return 1;
    imbrex_gemm_desc wrong = plain;
    wrong.m = odd ? -7 : wrong.m;
    if (expect("wrong m", plan_gemm(group, 3, &wrong, &plan), odd ? IMBREX_INVALID : IMBREX_PEER,
               odd ? "imbrex_plan_gemm_rs: desc.m is -7" : "rank 1 failed: desc.m is -7"))
        return 1;
    if (expect("0 bytes", imbrex_mem_alloc(group, odd ? 0 : 64, &memory),
               odd ? IMBREX_INVALID : IMBREX_PEER, "bytes is 0"))
        return 1;
    if (expect("too much memory", imbrex_mem_alloc(group, (size_t)1 << 60, &memory),
               IMBREX_NO_MEMORY, "1152921504606846976 bytes"))
        return 1;
    return works(group);
}

/* ---- groups ---------------------------------------------------------------------------------- */

typedef struct group_case {
    imbrex_group_desc desc; /* of the odd rank */
    const char *variable, *value;
    imbrex_status odd, others;
    const char *says;
} group_case;

static const group_case group_cases[] = {
    { { .timeout_ms = 4000 },
      NULL,
      NULL,
      IMBREX_PEER,
      IMBREX_PEER,
      "desc.timeout_ms, or IMBREX_TIMEOUT_MS, differs" },
    { { .timeout_ms = -1 }, NULL, NULL, IMBREX_INVALID, IMBREX_PEER, "desc.timeout_ms is -1" },
    { { .timeout_ms = INT64_MAX }, NULL, NULL, IMBREX_INVALID, IMBREX_PEER, "desc.timeout_ms is" },
    { { .device = "banana" }, NULL, NULL, IMBREX_INVALID, IMBREX_PEER, "\"banana\"" },
    { { .device = "" }, NULL, NULL, IMBREX_INVALID, IMBREX_PEER, "\"\"" },
    { { .device = "cpu:7" }, NULL, NULL, IMBREX_INVALID, IMBREX_PEER, "cpu:7 does not exist" },
    { { .device = "cpu:x" }, NULL, NULL, IMBREX_INVALID, IMBREX_PEER, "\"cpu:x\"" },
    { { .reserved = { 0, 0, 5 } }, NULL, NULL, IMBREX_UNSUPPORTED, IMBREX_PEER, "reserved" },
    { { 0 }, "IMBREX_CHAOS", "often", IMBREX_INVALID, IMBREX_PEER, "IMBREX_CHAOS is \"often\"" },
    { { 0 }, "IMBREX_CHAOS", "99999999999", IMBREX_INVALID, IMBREX_PEER, "IMBREX_CHAOS is 99" },
    { { 0 }, "IMBREX_CPU_LINK", "1e-300", IMBREX_INVALID, IMBREX_PEER, "IMBREX_CPU_LINK is" },
    { { 0 }, "IMBREX_CPU_THREADS", "0", IMBREX_INVALID, IMBREX_PEER, "IMBREX_CPU_THREADS is 0" },
};

static int make_groups(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const group_case *g = ctx;
    imbrex_group *group = (void *)&plain;
    imbrex_group_desc desc = { 0 };
    if (rank == ODD)
        desc = g->desc;
    desc.bootstrap = bootstrap;
    desc.timeout_ms = desc.timeout_ms ? desc.timeout_ms : TIMEOUT_MS;
    if (rank == ODD && g->variable)
        setenv(g->variable, g->value, 1);
    imbrex_status want = rank == ODD ? g->odd : g->others;
    if (expect(g->says, imbrex_group_create(&desc, &group), want, "imbrex_group_create: ") ||
        expect(g->says, want, want, g->says))
        return 1;
    RANK_CHECK(group == (void *)&plain, "the output was written");
    if (g->variable)
        unsetenv(g->variable);
    desc = (imbrex_group_desc){ .bootstrap = bootstrap, .timeout_ms = TIMEOUT_MS };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = works(group);
    imbrex_group_destroy(group);
    return failed;
}

static int no_swap(void *ctx, const void *send, void *recv, size_t bytes)
{
    (void)ctx, (void)send, (void)recv, (void)bytes;
    return 42;
}

static void bootstraps(void **state)
{
    (void)state;
    const struct {
        imbrex_bootstrap b;
        imbrex_status want;
        const char *says;
    } cases[] = {
        { { 2, 2, no_swap, NULL, 0, { 0 } }, IMBREX_INVALID, "desc.bootstrap says rank 2 of 2" },
        { { -1, 2, no_swap, NULL, 0, { 0 } }, IMBREX_INVALID, "desc.bootstrap says rank -1 of 2" },
        { { 0, 0, no_swap, NULL, 0, { 0 } }, IMBREX_INVALID, "desc.bootstrap says rank 0 of 0" },
        { { 0, 2, NULL, NULL, 0, { 0 } }, IMBREX_INVALID, "desc.bootstrap.allgather is NULL" },
        { { 0, 2, no_swap, NULL, 0, { 1 } },
          IMBREX_UNSUPPORTED,
          "desc.bootstrap.reserved is not 0" },
        { { 0, 2, no_swap, NULL, 0, { 0 } }, IMBREX_PEER, "allgather returned 42 on rank 0" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        imbrex_group *group;
        imbrex_group_desc desc = { .bootstrap = &cases[i].b };
        assert_int_equal(
            expect(cases[i].says, imbrex_group_create(&desc, &group), cases[i].want, cases[i].says),
            0);
    }
}

/* ---- runs that differ ------------------------------------------------------------------------ */

typedef struct mismatch {
    bool other_plan, odd_is_late;
} mismatch;

enum { ROWS = 12, COLS = 4 };

/* Whoever is early waits in its stream for a peer that will never post what it should. */
static int runs(imbrex_group *group, void *ctx)
{
    const mismatch *x = ctx;
    bool odd = imbrex_group_rank(group) == ODD;
    float a[ROWS * COLS] = { 0 }, c[ROWS * COLS];
    imbrex_plan *plans[2];
    imbrex_coll_desc desc = { .m = ROWS, .n = COLS, .dtype = IMBREX_F32 };
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plans[0]));
    RANK_OK(imbrex_plan_reduce_scatter(group, &desc, &plans[1]));
    imbrex_args args = { .a = a, .c = c };
    RANK_OK(imbrex_plan_run(plans[0], &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));

    int64_t begin_ns = imbrexd_now_ns();
    if (odd == x->odd_is_late)
        usleep(100000);
    args.m = odd && !x->other_plan ? ROWS - 1 : 0;
    imbrex_status status = imbrex_plan_run(plans[odd && x->other_plan], &args, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    const char *parts[] = { "args.m differs between ranks in a run of all_gather (plan 1): ",
                            "12 on rank ", "11 on rank 1", "; all ranks must pass the same",
                            "(noticed by rank " };
    if (x->other_plan) {
        parts[0] = "ranks run different plans: ";
        parts[1] = "all_gather (plan 1) on rank ";
        parts[2] = "reduce_scatter (plan 2) on rank 1";
        parts[3] = "; all ranks must run the same plans in the same order";
    }
    for (int i = 0; i < 5; i++) {
        if (expect("runs that differ", status, IMBREX_INVALID, parts[i]))
            return 1;
    }
    RANK_CHECK(took_ms < patient(2000), "heard of it after %lld ms", (long long)took_ms);
    return expect("later", imbrex_barrier(group, NULL), IMBREX_INVALID, parts[0]);
}

/* Many runs, none of which differs: ranks far ahead or behind are no alarm. */
static int many_runs(imbrex_group *group, void *ctx)
{
    (void)ctx;
    float a[ROWS * COLS] = { 0 }, c[ROWS * COLS];
    imbrex_plan *plans[2];
    imbrex_coll_desc desc = { .m = ROWS, .n = COLS, .dtype = IMBREX_F32 };
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plans[0]));
    RANK_OK(imbrex_plan_reduce_scatter(group, &desc, &plans[1]));
    for (int i = 0; i < 500; i++) {
        imbrex_args args = { .a = a, .c = c, .m = 1 + i % ROWS };
        if (i % 100 == 30 * imbrex_group_rank(group))
            usleep(20000);
        RANK_OK(imbrex_plan_run(plans[i / 3 % 2], &args, NULL));
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void on_2_and_3(rank_main run)
{
    for (int i = 0; i < 4; i++) {
        ranks_desc desc = { .size = 2 + i / 2, .processes = i % 2, .timeout_ms = TIMEOUT_MS };
        assert_int_equal(ranks_run(&desc, run, NULL), 0);
    }
}

static void descs_differ(void **state)
{
    (void)state;
    on_2_and_3(descs);
}

static void kernels_differ(void **state)
{
    (void)state;
    imx_sys.calloc = no_memory_once; /* before there are threads */
    on_2_and_3(kernels);
    imx_sys.calloc = calloc;
}

static void a_rank_is_elsewhere(void **state)
{
    (void)state;
    on_2_and_3(elsewhere);
}

static void run_mismatch(bool other_plan)
{
    for (int i = 0; i < 8; i++) {
        mismatch x = { .other_plan = other_plan, .odd_is_late = i / 4 };
        ranks_desc desc = { .size = 2 + i / 2 % 2,
                            .processes = i % 2 && RANKS_PROCESSES,
                            .timeout_ms = TIMEOUT_MS };
        assert_int_equal(ranks_run(&desc, runs, &x), 0);
    }
}

static void rows_differ(void **state)
{
    (void)state;
    run_mismatch(false);
}

static void plans_differ(void **state)
{
    (void)state;
    run_mismatch(true);
}

/* Ranks that may use fewer processors, or less of a GPU, than others: plans are cut for the fewest,
 * and so alike. */
static int with_own_threads(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const imbrex_gemm_desc desc = { .m = 600, .n = 700, .k = 64, .dtype = IMBREX_F32 };
    imbrex_group_desc group_desc = { .bootstrap = bootstrap, .device = "cpu" };
    imbrex_group *group;
    imbrex_plan *plan;
    (void)ctx;
    setenv("IMBREX_CPU_THREADS", rank == ODD ? "3" : "1", 1);
    RANK_OK(imbrex_group_create(&group_desc, &group));
    for (int op = 0; op < 4; op++)
        RANK_OK(plan_gemm(group, op, &desc, &plan));
    int failed = works(group);
    imbrex_group_destroy(group);
    return failed;
}

static void threads_may_differ(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip(); /* threads have one environment */
    ranks_desc desc = { .size = 3, .processes = true };
    assert_int_equal(ranks_run_bare(&desc, with_own_threads, NULL), 0);
}

static void runs_are_alike(void **state)
{
    (void)state;
    on_2_and_3(many_runs);
}

static void group_descs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof group_cases / sizeof group_cases[0]; i++) {
        group_case g = group_cases[i];
        ranks_desc desc = { .size = 3, .processes = true };
        assert_int_equal(ranks_run_bare(&desc, make_groups, &g), 0);
        desc.processes = false;
        if (!g.variable) /* threads have one environment */
            assert_int_equal(ranks_run_bare(&desc, make_groups, &g), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descs_differ),        cmocka_unit_test(kernels_differ),
        cmocka_unit_test(a_rank_is_elsewhere), cmocka_unit_test(rows_differ),
        cmocka_unit_test(plans_differ),        cmocka_unit_test(runs_are_alike),
        cmocka_unit_test(threads_may_differ),  cmocka_unit_test(group_descs),
        cmocka_unit_test(bootstraps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
