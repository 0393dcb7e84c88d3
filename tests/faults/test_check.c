/* test_check.c - the protocol checker: silent on every operator and algorithm, and it finds each
 * mistake that a device seeds which stands before the CPU's and drops, moves or changes work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "op_cases.h"
#include "plan/plan.h"
#include "ranks.h"

enum { RUNS = 5, RANKS_MOST = 8 };

/* Which says itself that a mistake is a data race, and fails the test for it.  The checker's locks
 * hide from it what operators do: it sees the checker alone, which three ranks are enough for. */
enum { UNDER_TSAN = SANITIZED_THREADS };

/* ---- the mistakes ---------------------------------------------------------------------------- */

typedef enum mistake {
    NONE,
    MISSING_WAIT,
    MISSING_CREDIT,
    FLAG_FIRST,
    WRONG_CHUNK,
    EARLY_CREDIT,
    WRONG_HALF,
    STALE_EPOCH,
    SECOND_WRITER,
    LOWERED,
    COUNTER_OFF,
    CYCLE,
    SHORT_COPY,
    LOST_CREDIT,
    NO_GATHER,
    NO_PRODUCT,
    STRAY_SIGNAL,
    STRAY_WAIT,
    STRAY_COUNTER,
    MISTAKES
} mistake;

typedef struct seed {
    const char *name, *op, *algorithm;
    const char *says; /* a part of the sentence */
    const char * or ; /* or of this one, if the other side comes second; NULL: there is no other */
} seed;

static const char unordered[] = "no signal orders it after that",
                  unread[] = "no credit orders it after that",
                  nowhere[] = "where the plan has none", unwritten[] = "which nobody has written",
                  held[] = "that nobody will satisfy";

static const seed seeds[MISTAKES] = {
    [MISSING_WAIT] = { "a missing wait", "all_gather", "copy", unordered, unwritten },
    [MISSING_CREDIT] = { "a missing credit", "all_gather", "copy", unread, unordered },
    [FLAG_FIRST] = { "a flag before its data", "ag_gemm", "copy", unordered, unwritten },
    [WRONG_CHUNK] = { "a wrong chunk", "ag_gemm", "copy", unwritten, unordered },
    [EARLY_CREDIT] = { "an early credit", "reduce_scatter", "copy", unread, unordered },
    [WRONG_HALF] = { "the wrong half", "reduce_scatter", "copy", unwritten, NULL },
    [STALE_EPOCH] = { "a stale epoch", "all_gather", "copy", unordered, unwritten },
    [SECOND_WRITER] = { "a second writer", "all_gather", "sequential", "has two writers", NULL },
    [LOWERED] = { "a lowered signal", "ag_gemm", "copy", "lowers the signal", NULL },
    [COUNTER_OFF] = { "a counter off by one", "gemm_rs", "copy", unordered, unwritten },
    [CYCLE] = { "a wait cycle", "all_gather", "copy", held, NULL },
    [SHORT_COPY] = { "a short copy", "gemm_rs", "copy", unwritten, NULL },
    [LOST_CREDIT] = { "a credit that is never given", "gemm_rs", "copy", held, NULL },
    [NO_GATHER] = { "a gather that is left out", "ag_gemm", "ll", unwritten, NULL },
    [STRAY_SIGNAL] = { "a signal behind the last", "all_gather", "copy", nowhere, NULL },
    [STRAY_WAIT] = { "a wait behind the last signal", "ag_gemm", "copy", nowhere, NULL },
    [STRAY_COUNTER] = { "a counter behind the last", "gemm_rs", "copy", nowhere, NULL },
    [NO_PRODUCT] = { "a product that is left out", "gemm_rs", "ll", unwritten, NULL },
};

/* What a rank's device knows besides the CPU's. */
typedef struct faulty {
    mistake what;
    imbrex_plan *plan;
    int copies; /* to peers, so far */
    bool kept;  /* a copy, for later: */
    void *dst;
    const void *src;
    size_t bytes;
    int rank;
} faulty;

static _Thread_local faulty here; /* of the rank that enqueues */

static imbrex_status plain(imx_device *device, imx_signal_op op, imbrex_stream stream)
{
    return imx_backend_cpu.signals(device, &op, 1, stream);
}

/* The only one of a plan on CPU ranks. */
static const imx_variant *variant(void)
{
    return &here.plan->variants[0];
}

static uint64_t *credit_of(int holder, int giver)
{
    size_t buffer = (size_t)((variant()->runs - 1) % 2) * variant()->offsets.buffer_bytes;
    return (uint64_t *)imx_memory_at(here.plan->shared, holder, buffer) + giver;
}

/* In the padding between signals and data, where it does no harm. */
static uint64_t *behind_signals(int rank, bool own)
{
    const imx_offsets *o = &variant()->offsets;
    size_t buffer = (size_t)((variant()->runs - 1) % 2) * o->buffer_bytes;
    uint64_t *first =
        imx_memory_at(here.plan->shared, own ? here.plan->group->rank : rank, buffer + o->signals);
    return first + o->signal_count;
}

static bool is_credit(const imx_signal_op *op)
{
    int own = here.plan->group->rank;
    return op->kind == IMX_POST && op->point.rank != own &&
           op->signal == credit_of(op->point.rank, own);
}

static bool is_share(const imx_signal_op *op)
{
    return op->kind == IMX_WAIT &&
           (op->point.what == IMX_POINT_CHUNK || op->point.what == IMX_POINT_PART);
}

static imbrex_status one_signal(imx_device *device, imx_signal_op op, imbrex_stream stream)
{
    bool wait = op.kind == IMX_WAIT, credit = wait && op.point.what == IMX_POINT_CREDIT;
    bool data = !wait && op.point.rank != here.plan->group->rank && !is_credit(&op);
    imx_signal_op more = op;
    more.kind = IMX_POST;
    if (here.what == MISSING_WAIT && is_share(&op))
        return IMBREX_OK;
    if (here.what == MISSING_CREDIT && credit)
        return IMBREX_OK;
    if (here.what == LOST_CREDIT && is_credit(&op))
        return IMBREX_OK;
    if ((here.what == STRAY_SIGNAL && data && op.point.rank != here.plan->group->rank) ||
        (here.what == STRAY_WAIT && is_share(&op)))
        op.signal = behind_signals(op.point.rank, wait);
    if (here.what == STALE_EPOCH && is_share(&op))
        op.add = UINT64_MAX;
    if (here.what == EARLY_CREDIT && credit) {
        more.signal = credit_of(op.point.rank, here.plan->group->rank);
        more.add = 0;
        IMX_TRY(plain(device, more, stream));
    }
    IMX_TRY(plain(device, op, stream));
    if (here.what == SECOND_WRITER && is_share(&op)) {
        more.point.rank = here.plan->group->rank;
        return plain(device, more, stream);
    }
    if (here.what == LOWERED && data) {
        more.add = UINT64_MAX;
        return plain(device, more, stream);
    }
    if (here.kept && data) {
        here.kept = false;
        return imx_backend_cpu.copy(device, here.dst, here.src, here.bytes, here.rank, stream);
    }
    return IMBREX_OK;
}

static imbrex_status signals(imx_device *device, const imx_signal_op *ops, int count,
                             imbrex_stream stream)
{
    for (int i = 0; i < count; i++)
        IMX_TRY(one_signal(device, ops[i], stream));
    return IMBREX_OK;
}

/* All ranks wait for what comes before they send anything. */
static imbrex_status wait_first(imx_device *device, int rank, imbrex_stream stream)
{
    const imbrex_plan *plan = here.plan;
    int buffer = (int)((variant()->runs - 1) % 2);
    imx_signal_op op = {
        .kind = IMX_WAIT,
        .signal = imx_memory_at(plan->shared, plan->group->rank,
                                (size_t)buffer * variant()->offsets.buffer_bytes +
                                    variant()->offsets.signals),
        .word = (uint64_t *)((char *)plan->local->base +
                             (size_t)buffer * variant()->offsets.local_bytes),
        .point = { .plan = plan->object.number, .what = IMX_POINT_CHUNK, .rank = rank, .index = 0 },
    };
    op.signal += rank * variant()->config.chunks;
    return plain(device, op, stream);
}

static imbrex_status copy(imx_device *device, void *dst, const void *src, size_t bytes, int rank,
                          imbrex_stream stream)
{
    const imbrex_plan *plan = here.plan;
    if (rank == plan->group->rank)
        return imx_backend_cpu.copy(device, dst, src, bytes, rank, stream);
    int number = here.copies++;
    if (here.what == CYCLE && number == 0)
        IMX_TRY(wait_first(device, rank, stream));
    if (here.what == WRONG_CHUNK && number == 0)
        dst = (char *)dst + bytes;
    if (here.what == WRONG_HALF)
        dst =
            (char *)dst + (int64_t)variant()->offsets.buffer_bytes * (variant()->runs % 2 ? 1 : -1);
    if (here.what == SHORT_COPY)
        bytes -= 2;
    if (here.what == FLAG_FIRST) {
        here.kept = true;
        here.dst = dst;
        here.src = src;
        here.bytes = bytes;
        here.rank = rank;
        return IMBREX_OK;
    }
    return imx_backend_cpu.copy(device, dst, src, bytes, rank, stream);
}

/* The counter of the chunk that leaves first begins at one. */
static imbrex_status launch(imx_device *device, imx_prepared *prepared, const void *args,
                            size_t bytes, imbrex_stream stream)
{
    static const uint32_t one = 1;
    const imx_gemm_args *gemm = args;
    bool product = bytes == sizeof *gemm;
    if (here.what == (product ? NO_PRODUCT : NO_GATHER) && variant()->runs == 2)
        return IMBREX_OK; /* of the other buffer than the first run's */
    if (here.what == STRAY_COUNTER && product && gemm->counters) {
        imx_gemm_args moved = *gemm;
        moved.counters =
            (uint32_t *)(void *)((char *)gemm->counters +
                                 variant()->offsets.done_count * sizeof *gemm->counters);
        return imx_backend_cpu.launch(device, prepared, &moved, bytes, stream);
    }
    if (here.what == COUNTER_OFF && product && gemm->counters && here.copies == 0) {
        int next = (here.plan->group->rank + 1) % here.plan->group->size;
        IMX_TRY(imx_backend_cpu.copy(device, gemm->counters + next * gemm->schedule.chunks, &one,
                                     sizeof one, here.plan->group->rank, stream));
    }
    return imx_backend_cpu.launch(device, prepared, args, bytes, stream);
}

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct job {
    op_case c;
    mistake what;
    imbrex_status status;
    char said[RANKS_MOST][900];
} job;

/* Back to back, so that runs overlap. */
static imbrex_status run_all(imbrex_group *group, const op_case *c, imbrex_plan *plan)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    op_sizes n = op_sizes_of(c, c->m, ranks, rank);
    int64_t operands = n.a + n.b + n.c + n.gathered + n.residual + n.gamma;
    float *room = calloc((size_t)operands + 1, sizeof *room);
    float *norm = room + operands - n.residual - n.gamma;
    imbrex_args args = {
        .a = room,
        .b = c->k ? room + n.a : NULL,
        .c = room + n.a + n.b,
        .gathered = c->gathered ? room + n.a + n.b + n.c : NULL,
        .residual = n.residual ? norm : NULL,
        .h = n.residual ? norm : NULL,
        .gamma = n.gamma ? norm + n.residual : NULL,
    };
    /* With one row most ranks send nothing, and credits alone say who has read what. */
    const int64_t rows[RUNS] = { c->m, 1, c->m, c->m - 5, c->m };
    imbrex_status status = IMBREX_OK;
    for (int run = 0; run < RUNS && status == IMBREX_OK; run++) {
        args.m = rows[run];
        status = imbrex_plan_run(plan, &args, NULL);
    }
    imbrex_status synced = imbrex_stream_sync(group, NULL);
    free(room);
    return status == IMBREX_OK ? synced : status;
}

static op_case case_of(const char *op, const char *algorithm)
{
    bool product = strstr(op, "gemm") != NULL, ll = algorithm && strcmp(algorithm, "ll") == 0;
    return (op_case){ .op = op,
                      .m = 45,
                      .n = product ? 1100 : 24, /* two tiles wide */
                      /* ll: in lines, since waits for words tell of no plan; and not into the
                       * caller's memory, of which the checker knows nothing */
                      .k = !product ? 0
                           : ll     ? 700
                                    : 6,
                      .dtype = product ? IMBREX_BF16 : IMBREX_F32,
                      .algorithm = algorithm,
                      .chunk_rows = 4,
                      .gathered = strcmp(op, "ag_gemm") == 0 && !ll };
}

typedef struct cut {
    int chunk_rows; /* 0: tiles span ranks where they may */
    int blocks;     /* which race for the tiles of one rank */
} cut;

/* In turns, so that each number of ranks and each algorithm meets each of them. */
static const cut cuts[] = { { 0, 1 }, { 0, 3 }, { 4, 3 } };
enum { CUTS = sizeof cuts / sizeof cuts[0] };

static int silent(imbrex_group *group, void *ctx)
{
    (void)ctx;
    static const char *const ops[] = { "all_gather", "reduce_scatter", "ag_gemm", "gemm_rs",
                                       "all_reduce", "all_to_all",     "gemm_ar" };
    for (int o = 0; o < 7; o++) {
        op_case c = case_of(ops[o], NULL);
        const int64_t n = c.n;
        c.gathered = c.gathered && imbrex_group_rank(group) % 2 == 0; /* each rank's own affair */
        for (int i = 0; (c.algorithm = op_cases_algorithm(&c, i)); i++) {
            imbrex_plan *plan;
            const cut *as = &cuts[(o + i + imbrex_group_size(group)) % CUTS];
            c.chunk_rows = as->chunk_rows;
            c.sms = as->blocks;
            c.residual = c.norm.rms = adds_up(&c) && i % 2;
            /* All of c goes to all ranks, and the checker knows each line of it. */
            c.n = strcmp(c.op, "gemm_ar") == 0 && strncmp(c.algorithm, "ll", 2) == 0 ? 90 : n;
            if (op_cases_plan(group, &c, &plan))
                return 1;
            if (!plan)
                continue;
            RANK_OK(run_all(group, &c, plan));
            imbrex_plan_destroy(plan);
        }
    }
    return 0;
}

static int seeded(imbrex_group *group, void *ctx)
{
    job *j = ctx;
    imx_backend device = imx_backend_cpu;
    device.copy = copy;
    device.signals = signals;
    device.launch = launch;
    imbrex_plan *plan;
    RANK_OK(case_plan(group, &j->c, &plan));
    here = (faulty){ .what = j->what, .plan = plan };
    group->backend = &device;
    imbrex_status status = run_all(group, &j->c, plan);
    group->backend = &imx_backend_cpu;
    int rank = imbrex_group_rank(group);
    snprintf(j->said[rank], sizeof j->said[rank], "%s: %s", imbrex_status_name(status),
             status == IMBREX_OK ? "" : imbrex_error());
    return 0; /* the group has failed: its plan goes with it */
}

/* The caller's own mistake: rank 1 takes what rank 0 puts there, and does not wait for it.  Whoever
 * comes second notices. */
static int callers(imbrex_group *group, void *ctx)
{
    bool *waits = ctx;
    char *memory, out[64] = "", in[64] = "data";
    RANK_OK(imbrex_mem_alloc(group, 128, (void **)&memory));
    uint64_t *signal = (uint64_t *)(memory + 64);
    if (imbrex_group_rank(group) == 0) {
        RANK_OK(imbrex_put(group, memory, in, sizeof in, 1, NULL));
        if (*waits)
            RANK_OK(imbrex_signal_post(group, signal, 1, 1, NULL));
    } else {
        if (*waits)
            RANK_OK(imbrex_signal_wait(group, signal, 1, NULL));
        RANK_OK(imbrex_copy(group, out, memory, sizeof out, NULL));
    }
    imbrex_status status = imbrex_stream_sync(group, NULL);
    for (int i = 0; !*waits && status == IMBREX_OK && i < 10000; i++) {
        usleep(1000);
        status = imbrex_group_status(group);
    }
    RANK_CHECK(status == (*waits ? IMBREX_OK : IMBREX_INVALID), "%s", imbrex_status_name(status));
    RANK_CHECK(*waits || strstr(imbrex_error(), "orders it after that"), "%s", imbrex_error());
    RANK_OK(*waits ? imbrex_barrier(group, NULL) : IMBREX_OK);
    return 0;
}

/* ---- a caller's kernel ----------------------------------------------------------------------- */

/* What each rank has goes to the next one's inbox, and out of it.  Signal 0: it is there, 1: it may
 * come again, 2: nobody's. */
static const char pass_text[] =
    "#include \"imbrex_device.h\"\n"
    "enum { NO_CREDIT = 1, FLAG_FIRST, NO_WAIT, EARLY_CREDIT, CYCLE, LOWERED, TWO_WRITERS, PAST,\n"
    "       LESS, BY_HAND, HOST_READS, ANYBODY, BEYOND };\n"
    "typedef struct { const int *in; int *inbox, *out; } pass_args;\n"
    "IMBREXD_KERNEL(pass, pass_args)\n"
    "{\n"
    "    int next = (team->rank + 1) % team->size;\n"
    "    int before = (team->rank + team->size - 1) % team->size;\n"
    "    uint64_t epoch = imbrexd_epoch(team), *own = imbrexd_signal(team, team->rank, 0);\n"
    "    uint64_t *there = imbrexd_signal(team, next, 0), *back = imbrexd_signal(team, before, "
    "1);\n"
    "    if (DOES < NO_CREDIT || (DOES > NO_CREDIT && DOES < BY_HAND)) {\n"
    "        if (!imbrexd_wait(team, own + 1, epoch - 1, next))\n"
    "            return;\n"
    "    } else if (DOES == BY_HAND) {\n"
    "        while (imbrexd_load_acquire(own + 1) < epoch - 1)\n"
    "            imbrexd_yield(0);\n"
    "    }\n"
    "    if ((DOES == CYCLE && !imbrexd_wait(team, own, epoch, before)) ||\n"
    "        (DOES == ANYBODY && !imbrexd_wait(team, own, epoch, -1)))\n"
    "        return;\n"
    "    if (DOES == FLAG_FIRST)\n"
    "        imbrexd_signal_post(there, epoch);\n"
    "    if ((DOES == PAST || DOES == BEYOND) && team->rank > 0) /* ends with rank 0's mistake */\n"
    "        (void)imbrexd_wait(team, own + 2, epoch, 0);\n"
    "    char *to = (char *)imbrexd_peer(team, next, args->inbox);\n"
    "    imbrexd_put_block(DOES == BEYOND ? to + 8192 : to, args->in, DOES == PAST ? 8192 : 64);\n"
    "    if (DOES == LESS) {\n"
    "        imbrexd_signal_add(there, 2);\n"
    "        imbrexd_signal_add(there, (uint64_t)-1);\n"
    "    } else if (DOES == BY_HAND) {\n"
    "        imbrexd_quiet();\n"
    "        imbrexd_store_release(there, epoch);\n"
    "        while (imbrexd_load_acquire(own) < epoch)\n"
    "            imbrexd_yield(0);\n"
    "    } else if (DOES != FLAG_FIRST) {\n"
    "        imbrexd_notify_block(there, epoch, IMBREXD_SET);\n"
    "    }\n"
    "    if (DOES == LOWERED)\n"
    "        imbrexd_signal_post(there, epoch - 1);\n"
    "    if (DOES == TWO_WRITERS) {\n"
    "        imbrexd_signal_post(own + 2, epoch);\n"
    "        imbrexd_signal_post(there + 2, epoch);\n"
    "    }\n"
    "    if (DOES == EARLY_CREDIT)\n"
    "        imbrexd_signal_post(back, epoch);\n"
    "    if (DOES != NO_WAIT && DOES != BY_HAND && !imbrexd_wait(team, own, epoch, before))\n"
    "        return;\n"
    "    if (DOES == HOST_READS)\n"
    "        return;\n"
    "    imbrexd_get_block(args->out, args->inbox, 64);\n"
    "    if (DOES == BY_HAND)\n"
    "        imbrexd_red_release(back, 1);\n"
    "    else if (DOES != EARLY_CREDIT)\n"
    "        imbrexd_notify_block(back, epoch, IMBREXD_SET);\n"
    "}\n";

enum { PASSES = 8, HOST_READS = 11 };

static const struct {
    const char *name, *says, * or ; /* says NULL: nothing is wrong */
} passes[] = {
    { "a kernel as it should be", NULL, NULL },
    { "a kernel's missing credit", unread, unordered },
    { "a kernel's flag before its data", unordered, unread },
    { "a kernel's missing wait", unordered, unread },
    { "a kernel's early credit", unread, unordered },
    { "a wait cycle of kernels", held, NULL },
    { "a kernel's lowered signal", "lowers signal ", NULL },
    { "a kernel's second writer", "has two writers", NULL },
    { "a kernel's put past the end", "past its end", NULL },
    { "a counter that a kernel lowers", "lowers signal ", NULL },
    { "a kernel with loads and stores of its own", NULL, NULL },
    { "a kernel that only waits for what the host reads", NULL, NULL },
    { "a wait cycle of kernels that do not say for whom", "waits for whoever comes", NULL },
    { "a kernel's put beyond the end", "bytes 8192 to 8256 of 4096 of rank 1's memory (at ", NULL },
};

static int passing(imbrex_group *group, void *ctx)
{
    int does = *(const int *)ctx, host[16];
    char options[32];
    void *in, *inbox, *out;
    RANK_OK(imbrex_mem_alloc(group, 8192, &in));
    RANK_OK(imbrex_mem_alloc(group, 4096, &inbox));
    RANK_OK(imbrex_mem_alloc(group, 4096, &out));
    snprintf(options, sizeof options, "-DDOES=%d", does);
    imbrex_kernel *kernel;
    imbrex_kernel_desc desc = {
        .name = "pass", .source = pass_text, .options = options, .memory = inbox, .signals = 3
    };
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    void *args[] = { in, inbox, out };
    imbrex_status status = IMBREX_OK;
    for (int run = 0; run < PASSES && status == IMBREX_OK; run++) {
        status = imbrex_launch(kernel, 1, 1, args, sizeof args, NULL);
        if (status == IMBREX_OK && does == HOST_READS)
            status = imbrex_copy(group, host, inbox, sizeof host, NULL);
        if (status == IMBREX_OK && does == HOST_READS)
            status = imbrex_barrier(group, NULL);
    }
    imbrex_status synced = imbrex_stream_sync(group, NULL);
    status = status == IMBREX_OK ? synced : status;
    const char *says = passes[does].says, * or = passes[does].or ;
    bool fits = says ? status == IMBREX_INVALID && strstr(imbrex_error(), "IMBREX_CHECK: ") &&
                           (strstr(imbrex_error(), says) || (or &&strstr(imbrex_error(), or))) &&
                           strstr(imbrex_error(), "pass")
                     : status == IMBREX_OK;
    RANK_CHECK(fits, "%s: %s, \"%s\", want \"%s\"", passes[does].name, imbrex_status_name(status),
               status == IMBREX_OK ? "" : imbrex_error(), says ? says : "");
    return 0;
}

static void kernels_of_callers(void **state)
{
    (void)state;
    for (int does = 0; does < (int)(sizeof passes / sizeof passes[0]); does++) {
        ranks_desc desc = { .size = 2 + does % 2 };
        if (!UNDER_TSAN || !passes[does].says)
            assert_int_equal(ranks_run(&desc, passing, &does), 0);
    }
}

/* ---- the tests ------------------------------------------------------------------------------- */

/* A sanitizer gets fewer numbers of ranks than the release build: the least, three and most. */
static bool is_taken(int ranks, int least)
{
    return !SANITIZED || ranks == 3 || (!UNDER_TSAN && (ranks == least || ranks == RANKS_MOST));
}

static void originals(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS_MOST; ranks++)
        if (is_taken(ranks, 1))
            assert_int_equal(ranks_run(&(ranks_desc){ .size = ranks }, silent, NULL), 0);
}

static bool fits(const seed *s, const char *said)
{
    return strstr(said, "IMBREX_INTERNAL") && strstr(said, "IMBREX_CHECK: ") &&
           strstr(said, s->op) && (strstr(said, s->says) || (s->or &&strstr(said, s->or)));
}

static void mistakes(void **state)
{
    (void)state;
    int missed = 0;
    if (UNDER_TSAN)
        skip();
    for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
        for (int what = NONE + 1; what < MISTAKES && is_taken(ranks, 2); what++) {
            const seed *s = &seeds[what];
            job j = { .c = case_of(s->op, s->algorithm), .what = (mistake)what };
            ranks_desc desc = { .size = ranks };
            assert_int_equal(ranks_run(&desc, seeded, &j), 0);
            for (int r = 0; r < ranks; r++) {
                if (fits(s, j.said[r]))
                    continue;
                fprintf(stderr, "%s among %d ranks: rank %d has \"%s\", want \"%s\"\n", s->name,
                        ranks, r, j.said[r], s->says);
                missed++;
            }
        }
    }
    assert_int_equal(missed, 0);
}

static void puts_and_copies(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    for (int waits = UNDER_TSAN; waits < 2; waits++)
        assert_int_equal(ranks_run(&desc, callers, &(bool){ waits }), 0);
}

/* Whose peers it cannot see, it does not watch. */
static int apart(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)rank, (void)bootstrap, (void)ctx;
    imbrex_group *group;
    imbrex_group_desc desc = { .device = "cpu", .timeout_ms = 20000 };
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status == IMBREX_UNSUPPORTED || status == IMBREX_PEER, "%s",
               imbrex_status_name(status));
    RANK_CHECK(strstr(imbrex_error(), "IMBREX_CHECK"), "%s", imbrex_error());
    return 0;
}

static void processes(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    ranks_desc desc = { .size = 2, .processes = true };
    assert_int_equal(ranks_run_bare(&desc, apart, NULL), 0);
}

int main(void)
{
    setenv("IMBREX_CHECK", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(originals),       cmocka_unit_test(mistakes),
        cmocka_unit_test(puts_and_copies), cmocka_unit_test(kernels_of_callers),
        cmocka_unit_test(processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
