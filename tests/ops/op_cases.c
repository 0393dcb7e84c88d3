/* op_cases.c - every operator x dtype x algorithm x odd shape against a float64 loop; all runs and
 * all algorithms give the same bits; nothing is written beside the outputs. */
#include "op_cases.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "imbrex_device.h"
#include "op_image.h"
#include "op_norm.h"
#include "plan/plan.h"
#include "ranks.h"

enum { OPS = 8, COLLECTIVES = 4, PRODUCTS = OPS - COLLECTIVES, AG_GEMM = COLLECTIVES, DTYPES = 3 };

/* Those without a product first. */
static const char *const ops[OPS] = {
    "all_gather",          "reduce_scatter", "all_reduce", "all_to_all",
    [AG_GEMM] = "ag_gemm", "gemm_rs",        "gemm_ar",    "gemm"
};

static bool was_named(const imx_op *op, const imx_algorithm *a)
{
    for (const imx_algorithm *b = op->algorithms; b < a; b++) {
        if (b->over_nodes == a->over_nodes && strcmp(b->name, a->name) == 0)
            return true;
    }
    return false;
}

const char *op_cases_op(int i)
{
    return ops[i];
}

const char *op_cases_algorithm(const op_case *c, int i)
{
    const imx_op *op;
    bool alone = strcmp(c->op, "gemm") == 0;
    int number = 0;
    while (strcmp(c->op, ops[number]) != 0)
        number++;
    if (imx_op_find(c->op, number < AG_GEMM ? sizeof(imbrex_coll_desc) : sizeof(imbrex_gemm_desc),
                    &op) != IMBREX_OK)
        return NULL;
    for (const imx_algorithm *a = op->algorithms; a->name; a++) {
        if (a->over_nodes == (c->nodes > 1 && !alone) && !was_named(op, a) && i-- == 0)
            return a->name;
    }
    return NULL;
}

/* Whether tiles have rows of several ranks: a plan by another algorithm says so. */
static bool is_spanning(imbrex_group *group, op_case c)
{
    imbrex_plan *plan;
    c.algorithm = "sequential";
    if (case_plan(group, &c, &plan) != IMBREX_OK)
        return false;
    imx_plan_facts facts = imx_describe_facts(plan);
    imbrex_plan_destroy(plan);
    return facts.spanning;
}

/* "ring" and "scatter_push" are not for tiles with rows of several ranks, "reduce_push" and
 * "reduce_pull" for no others, and "ring" on GPUs not for what their copy engine cannot take: then
 * they have to be refused; so have "ll" and the like where all ranks get all rows of a sum, but
 * each has its own of the residual. */
static bool is_refused(imbrex_group *group, const op_case *c)
{
    int ranks = imbrex_group_size(group);
    bool once =
        strncmp(c->algorithm, "ll", 2) == 0 || strncmp(c->algorithm, "reduce_push", 11) == 0;
    if (ranks > 1 && once && sums_all(c) && c->norm.shard_residual)
        return true;
    if (ranks > 1 && strcmp(c->algorithm, "scatter_push") == 0)
        return is_spanning(group, *c);
    if (ranks > 1 && strncmp(c->algorithm, "reduce_pu", 9) == 0) {
        op_case by_tiles = *c;
        imbrex_plan *plan;
        by_tiles.op = "gemm_rs"; /* gemm_ar's tiles are the same */
        by_tiles.algorithm = BY_TILES;
        if (case_plan(group, &by_tiles, &plan) != IMBREX_OK)
            return false;
        const char *fits = imx_describe_facts(plan).algorithm;
        imbrex_plan_destroy(plan);
        return strncmp(fits, c->algorithm, strlen(fits)) != 0; /* also "reduce_push2" */
    }
    if (strcmp(c->algorithm, "ring") != 0 || ranks == 1)
        return false;
    if (strncmp(imbrex_group_device(group), "cpu", 3) == 0)
        return c->chunk_rows == 0;
    if (group->target->arch != 90 || c->dtype == IMBREX_F32 || c->k == 0 || c->k % 8 ||
        (c->layout == IMBREX_KN && c->n % 8))
        return true;
    return !c->chunk_rows && is_spanning(group, *c);
}

/* ---- one case -------------------------------------------------------------------------------- */

/* Values that are wrong are counted and the walk goes on, so that ranks stay together; what ends a
 * group ends the walk, which another group may go on with.  After so many of either all is said:
 * each more may cost a deadline. */
enum { FINE, STUCK, WRONG };

static int check_values(imbrex_group *group, const op_case *c, int64_t m, const op_image *x)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    reference_error error;
    op_matrix sum = has_norm(c) ? op_image_h(c, x) : op_image_c(c, x);
    int64_t at = reference_check(c, m, ranks, r, x->host + sum.at, &error);
    if (has_norm(c) && at < 0 && op_norm_check(group, c, m, x))
        return 1;
    if (at >= 0) {
        op_image_complain("c[%lld, %lld] is %.9g, want %.9g within %.3g", (long long)(at / c->n),
                          (long long)(at % c->n), error.have, error.want, error.within);
        return 1;
    }
    if (!c->gathered)
        return 0;
    for (int64_t row = 0; row < m; row++) {
        int from = 0;
        while (row >= rank_row(m, ranks, from + 1))
            from++;
        for (int64_t i = 0; i < c->k; i++) {
            double want = input_value(c->dtype, from, (row - rank_row(m, ranks, from)) * c->k + i);
            double have = element_get(c->dtype, x->host + x->gathered.at, row * c->k + i);
            if (have == want)
                continue;
            op_image_complain("gathered[%lld, %lld] is %g, want %g", (long long)row, (long long)i,
                              have, want);
            return 1;
        }
    }
    return 0;
}

/* Of each algorithm: with the plan's m, with fewer rows, with the plan's again. */
enum { RUNS = 5, ROWS_OF_RUNS = RUNS - 1 };

/* Of one m: the image before a run, after the first, by its algorithm, and after another. */
typedef struct runs_of {
    op_image before, first, other;
    const char *algorithm;
} runs_of;

/* Of the whole image: outputs are as the first run's, and nothing else has changed. */
static int check_bits(const op_case *c, const runs_of *runs)
{
    size_t at;
    const char *matrix = op_image_differ(&runs->other, &runs->first, &at);
    if (matrix)
        op_image_complain("byte %zu of %s is not what it was by %s: %s differ in bits", at, matrix,
                          runs->algorithm,
                          c->algorithm == runs->algorithm ? "two runs" : "algorithms");
    return matrix != NULL;
}

static int check_run(imbrex_group *group, imbrex_plan *plan, const op_case *c, int64_t m,
                     const op_image *x, const runs_of *runs)
{
    if (op_image_upload(group, x))
        return STUCK;
    imbrex_args args = op_image_args(c, x, m);
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (op_image_download(group, x))
        return STUCK;
    if (!op_image_intact(x)) {
        op_image_complain("something was written beside a matrix");
        return WRONG;
    }
    bool wrong = x == &runs->other ? check_bits(c, runs) : check_values(group, c, m, x);
    return wrong ? WRONG : FINE;
}

static const char *const dtypes[] = { "default", "bf16", "f16", "f32" };

void op_cases_describe(imbrex_group *group, imbrex_plan *plan, const op_case *c, int64_t m)
{
    char line[400];
    imbrex_plan_describe(plan, line, sizeof line);
    op_image_complain("  in rank %d of %d, %s%s%s, run with m=%lld: %s", imbrex_group_rank(group),
                      imbrex_group_size(group), dtypes[c->dtype], c->bias ? ", bias" : "",
                      c->gathered ? ", gathered" : "", (long long)m, line);
}

int op_cases_plan(imbrex_group *group, const op_case *c, imbrex_plan **plan)
{
    bool refused = is_refused(group, c);
    *plan = NULL;
    imbrex_status status = case_plan(group, c, plan);
    if (status == IMBREX_OK && !refused)
        return FINE;
    if (status == IMBREX_UNSUPPORTED && refused && strstr(imbrex_error(), ": choose \""))
        return FINE;
    op_image_complain("rank %d of %d: %s%s %s", imbrex_group_rank(group), imbrex_group_size(group),
                      refused ? "want UNSUPPORTED, have " : "", imbrex_status_name(status),
                      imbrex_error());
    op_image_complain("  %s %s m=%lld n=%lld k=%lld b=%s %s", c->op, c->algorithm, (long long)c->m,
                      (long long)c->n, (long long)c->k, c->layout == IMBREX_NK ? "[n,k]" : "[k,n]",
                      dtypes[c->dtype]);
    return imbrex_group_status(group) == IMBREX_OK ? WRONG : STUCK;
}

static _Thread_local int rings; /* plans by "ring", of this rank */

static int check_algorithm(imbrex_group *group, const op_case *c, runs_of *runs, void *device)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group), worst = FINE;
    const int64_t rows_of_run[RUNS] = { c->m, c->m / 2, c->m - 1, 1, c->m };
    imbrex_plan *plan;
    int made = op_cases_plan(group, c, &plan);
    if (made != FINE || !plan)
        return made;
    rings += strcmp(c->algorithm, "ring") == 0;
    for (int i = 0; i < RUNS; i++) {
        int64_t m = rows_of_run[i];
        if ((m < 1 && i) || m > c->m)
            continue;
        runs_of *of = &runs[i % ROWS_OF_RUNS];
        op_image *x = of->first.host ? &of->other : &of->first;
        if (!of->before.host) {
            of->before = op_image_take(c, m, ranks, r, device);
            of->algorithm = c->algorithm;
        }
        op_image_copy(x, &of->before);
        int how = check_run(group, plan, c, m, x, of);
        if (how != FINE)
            op_cases_describe(group, plan, c, m);
        if (how == STUCK)
            return STUCK;
        worst = how > worst ? how : worst;
    }
    imbrex_plan_destroy(plan);
    return worst;
}

/* All algorithms, with the same bits. */
static int check_case(imbrex_group *group, op_case c, int number, void *device, op_walk *walk)
{
    runs_of runs[ROWS_OF_RUNS] = { 0 };
    int worst = FINE;
    for (int alg = 0; (c.algorithm = op_cases_algorithm(&c, alg)) && worst != STUCK; alg++) {
        if (walk && !op_walk_step(walk, imbrex_group_rank(group), number, alg))
            continue;
        int how = check_algorithm(group, &c, runs, device);
        worst = how == STUCK || !worst ? how : worst;
    }
    for (int i = 0; i < ROWS_OF_RUNS; i++) {
        op_image_drop(&runs[i].before);
        op_image_drop(&runs[i].first);
        op_image_drop(&runs[i].other);
    }
    return worst;
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef struct shape {
    int64_t m, n, k;
    int chunk_rows, sms, bias, gathered;
} shape;

static const shape shapes[] = {
    { 64, 24, 32, 8, 0, 0, 0 },                               /* even everywhere */
    { 61, 17, 13, 5, 0, 1, 1 },                               /* uneven everywhere */
    { 3, 5, 7, 0, 0, 0, 1 },                                  /* fewer rows than ranks */
    { 1, 1, 1, 1, 0, 1, 0 },       { 40, 33, 0, 4, 0, 1, 0 }, /* k = 0: only the bias */
    { 0, 8, 8, 0, 0, 0, 0 },                                  /* no rows */
    { 16, 0, 8, 0, 0, 0, 1 },                                 /* no columns */
    { 96, 40, 21, 7, 3, 1, 1 },                               /* several blocks */
    { 150, 1030, 9, 64, 2, 0, 0 },                            /* more columns than a tile */
    { 45, 19, 11, 0, 2, 1, 0 },                               /* few bytes, in no whole words */
    { 30, 2100, 16, 0, 2, 1, 0 }, /* few rows, columns that peers read in parts */
    { 26, 3400, 16, 0, 0, 0, 1 }, /* few rows, tiles that hold every multiprocessor of a fake GPU */
};

bool op_cases_get(int number, op_case *c)
{
    int s = number / (OPS * DTYPES), o = number / DTYPES % OPS, d = number % DTYPES;
    if (s >= (int)(sizeof shapes / sizeof shapes[0]))
        return false;
    const shape *x = &shapes[s];
    *c = (op_case){
        .op = ops[o],
        .m = x->m,
        .n = x->n,
        .k = o >= COLLECTIVES ? x->k : 0,
        .dtype = (imbrex_dtype)((int)IMBREX_BF16 + d),
        .layout = (s + d) % 2 ? IMBREX_KN : IMBREX_NK,
        .chunk_rows = x->chunk_rows,
        .sms = x->sms,
        .bias = x->bias && o >= COLLECTIVES,
        .gathered = x->gathered && o == AG_GEMM,
    };
    op_norm_set(c, s);
    return true;
}

/* For every form and tile of the kernels, on few multiprocessors and on many. */
static const op_case large[] = {
    { .m = 48, .n = 1536, .k = 512, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .bias = 1 },
    { .m = 200, .n = 712, .k = 264, .dtype = IMBREX_F16, .layout = IMBREX_KN, .gathered = 1 },
    { .m = 777, .n = 1000, .k = 200, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .chunk_rows = 64 },
    { .m = 640, .n = 1001, .k = 128, .dtype = IMBREX_F16, .layout = IMBREX_NK, .bias = 1 },
    { .m = 1500,
      .n = 1536,
      .k = 64,
      .dtype = IMBREX_F16,
      .layout = IMBREX_KN,
      .sms = 20,
      .bias = 1 },
    { .m = 1024, .n = 1536, .k = 64, .dtype = IMBREX_BF16, .layout = IMBREX_KN, .sms = 20 },
    { .m = 1500, .n = 640, .k = 320, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .gathered = 1 },
    { .m = 300, .n = 500, .k = 96, .dtype = IMBREX_F32, .layout = IMBREX_NK, .bias = 1 },
    { .m = 300, .n = 501, .k = 99, .dtype = IMBREX_F32, .layout = IMBREX_KN },
    { .m = 500, .n = 333, .k = 77, .dtype = IMBREX_BF16, .layout = IMBREX_KN, .bias = 1 },
    { .m = 2500, .n = 2304, .k = 64, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .bias = 1 },
    /* On 132 multiprocessors tiles with rows in one block of a cluster alone follow whole ones. */
    { .m = 2372, .n = 3072, .k = 64, .dtype = IMBREX_BF16, .layout = IMBREX_NK },
    /* Few rows, whose tiles two blocks make: k in an odd number of steps, turned, on few
     * multiprocessors. */
    { .m = 40, .n = 1500, .k = 4136, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .bias = 1 },
    { .m = 100, .n = 1000, .k = 4168, .dtype = IMBREX_F16, .layout = IMBREX_KN, .gathered = 1 },
    { .m = 10, .n = 520, .k = 16392, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .sms = 4 },
    /* Blocks with more tiles than are worked out at a time. */
    { .m = 2300, .n = 1800, .k = 136, .dtype = IMBREX_F16, .layout = IMBREX_NK, .sms = 6 },
    /* Few rows whose columns peers read in parts. */
    { .m = 400, .n = 3000, .k = 264, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .sms = 20 },
    { .m = 390,
      .n = 3001,
      .k = 136,
      .dtype = IMBREX_F16,
      .layout = IMBREX_NK,
      .sms = 20,
      .bias = 1 },
    { .m = 230, .n = 5000, .k = 72, .dtype = IMBREX_BF16, .layout = IMBREX_KN, .bias = 1 },
    /* Tiles of 224 columns in the form for all GPUs. */
    { .m = 512, .n = 1112, .k = 200, .dtype = IMBREX_F16, .layout = IMBREX_NK, .sms = 20 },
    { .m = 1400, .n = 712, .k = 1096, .dtype = IMBREX_F16, .layout = IMBREX_KN, .gathered = 1 },
    /* Few tiles of a long k, which eight blocks make where nothing else depends on them. */
    { .m = 150, .n = 520, .k = 4168, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .bias = 1 },
};

bool op_cases_get_large(int number, op_case *c)
{
    if (number >= PRODUCTS * (int)(sizeof large / sizeof large[0]))
        return false;
    *c = large[number / PRODUCTS];
    c->op = ops[COLLECTIVES + number % PRODUCTS];
    c->gathered = c->gathered && number % PRODUCTS == 0;
    c->residual = adds_up(c) && number / PRODUCTS % 3 != 1;
    c->in_place = number / PRODUCTS % 2;
    c->whole = 1;
    return true;
}

/* What the CPU would take too long for: chunks; a b that no cache holds, of ranks with few rows,
 * which are walked together in twos; few rows in slices, by wide tiles, too; a run that ends
 * beneath its last sums; sums of several rows and waves of tiles, read by peers, or added up by two
 * blocks, wide tiles, warps in turns. */
static const op_case long_ones[] = {
    { .op = "ag_gemm", .m = 1100, .n = 8184, .k = 2056, .gathered = 1, .whole = 1 },
    { .op = "ag_gemm", .m = 1200, .n = 4112, .k = 4104, .gathered = 1, .whole = 1 },
    { .op = "ag_gemm", .m = 1536, .n = 4112, .k = 4104, .gathered = 1, .whole = 1 },
    { .op = "ag_gemm", .m = 1300, .n = 4112, .k = 2056, .chunk_rows = 128, .whole = 1 },
    /* The rows of two ranks are three chunks, of which half as many in all make a longer one. */
    { .op = "ag_gemm", .m = 4097, .n = 520, .k = 264, .chunk_rows = 1024, .whole = 1 },
    { .op = "gemm_rs", .m = 4097, .n = 520, .k = 264, .chunk_rows = 1024, .whole = 1 },
    { .op = "gemm_ar", .m = 4097, .n = 520, .k = 264, .chunk_rows = 512, .bias = 1, .whole = 1 },
    { .op = "gemm_ar", .m = 530, .n = 5121, .k = 264, .bias = 1, .whole = 1 },
    { .op = "gemm_ar", .m = 3000, .n = 7168, .k = 264, .whole = 1 },
    { .op = "ag_gemm", .m = 250, .n = 1000, .k = 8200, .bias = 1, .whole = 1 },
    { .op = "ag_gemm", .m = 1000, .n = 4096, .k = 1544, .gathered = 1, .whole = 1 },
    { .op = "gemm_rs", .m = 250, .n = 4112, .k = 9000, .bias = 1, .whole = 1 },
    { .op = "gemm_rs", .m = 512, .n = 8192, .k = 520, .whole = 1 },
    { .op = "gemm_rs", .m = 1300, .n = 4112, .k = 8192, .bias = 1, .whole = 1 },
    { .op = "gemm_rs", .m = 390, .n = 3001, .k = 264, .dtype = IMBREX_F16, .whole = 1 },
    { .op = "gemm_rs", .m = 260, .n = 6144, .k = 2056, .whole = 1 },
    /* Of two ranks made alone, in turned tiles, and added up behind. */
    { .op = "gemm_rs", .m = 296, .n = 8192, .k = 7176, .bias = 1, .whole = 1 },
    { .op = "gemm_rs", .m = 530, .n = 5121, .k = 264, .bias = 1, .whole = 1 },
    /* Products that hold every multiprocessor while something else has to run beside them: few rows
     * and wide ones, in tiles of several ranks' rows and of each rank's, by every form. */
    { .op = "ag_gemm", .m = 100, .n = 20000, .k = 264, .gathered = 1, .whole = 1 },
    { .op = "ag_gemm", .m = 256, .n = 9472, .k = 520, .whole = 1 },
    { .op = "ag_gemm", .m = 560, .n = 9472, .k = 1032, .gathered = 1, .whole = 1 },
    { .op = "ag_gemm", .m = 896, .n = 7168, .k = 264, .bias = 1, .whole = 1 },
    { .op = "ag_gemm", .m = 600, .n = 9472, .k = 264, .layout = IMBREX_KN, .whole = 1 },
    { .op = "ag_gemm", .m = 512, .n = 7160, .k = 200, .dtype = IMBREX_F32, .whole = 1 },
    { .op = "ag_gemm", .m = 3000, .n = 7168, .k = 264, .gathered = 1, .whole = 1 },
    { .op = "gemm_rs", .m = 256, .n = 9472, .k = 520, .whole = 1 },
    { .op = "gemm_rs", .m = 896, .n = 7168, .k = 264, .layout = IMBREX_KN, .whole = 1 },
    { .op = "gemm_rs", .m = 512, .n = 7160, .k = 200, .dtype = IMBREX_F32, .whole = 1 },
    { .op = "gemm_rs", .m = 3000, .n = 7168, .k = 264, .bias = 1, .whole = 1 },
    { .op = "reduce_scatter", .m = 3000, .n = 7168, .whole = 1 },
    { .op = "all_gather", .m = 3000, .n = 7168, .whole = 1 },
    { .op = "all_reduce", .m = 3000, .n = 7168, .whole = 1 },
    { .op = "all_to_all", .m = 3000, .n = 7168, .whole = 1 },
};

bool op_cases_get_long(int number, op_case *c)
{
    if (number >= (int)(sizeof long_ones / sizeof long_ones[0]))
        return false;
    *c = long_ones[number];
    return true;
}

/* ---- the table on a device ------------------------------------------------------------------- */

static int table_op(int number)
{
    return number / DTYPES % OPS;
}

void op_walk_table(op_walk *walk)
{
    *walk = (op_walk){ .op_of = table_op };
}

void op_walk_short(op_walk *walk)
{
    *walk = (op_walk){ .op_of = table_op, .to = OPS * DTYPES };
}

static int large_op(int number)
{
    return COLLECTIVES + number % PRODUCTS;
}

void op_walk_large(op_walk *walk)
{
    *walk = (op_walk){ .op_of = large_op };
}

/* Whether case i is beyond the walk.  Rank 0 looks at the clock, before a case that nobody ends
 * without it: the others see the end when they come to the next one. */
static bool walk_is_over(imbrex_group *group, op_walk *walk, int i)
{
    int to = __atomic_load_n(&walk->to, __ATOMIC_ACQUIRE);
    if (!to && walk->until_ns && imbrex_group_rank(group) == 0 && imbrexd_now_ns() > walk->until_ns)
        __atomic_store_n(&walk->to, i + 1, __ATOMIC_RELEASE);
    return to && i >= to;
}

/* Of this program: walks without a place, whose group failed. */
static int *lost;

__attribute__((constructor)) static void share_with_processes(void)
{
    lost = mmap(NULL, sizeof *lost, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (lost == MAP_FAILED)
        abort();
}

/* Nine tenths of a table's bytes are in these. */
static bool is_wide(int number)
{
    return shapes[number].n > 1000;
}

/* A third is another one with each number of ranks and of nodes.  A sanitizer gets no more: to it
 * dtypes are the same accesses.  Wide shapes are more of those to ThreadSanitizer, which gets them
 * where others get most. */
static bool is_in(op_part part, int number, const imbrex_group *group)
{
    int at = number / (OPS * DTYPES), op = table_op(number), dtype = number % DTYPES;
    int turn = group->size + 2 * group->nodes.count;
    if (SANITIZED_THREADS && part >= OP_CASES_THIRD && is_wide(at))
        return false;
    if (part == OP_CASES_NINTH && (at / DTYPES + op + turn / 2) % DTYPES)
        return false;
    if (!SANITIZED && (part == OP_CASES_ALL || (part == OP_CASES_MOST && !is_wide(at))))
        return true;
    return (at + op + dtype + turn) % DTYPES == 2;
}

typedef struct op_selection {
    int last_op, nodes;
    op_part part;
} op_selection;

static int walk_all(imbrex_group *group, const op_selection *of, void *device, op_walk *walk)
{
    int worst = FINE, wrong = 0;
    op_case c;
    for (int i = walk ? walk->from : 0; op_cases_get(i, &c) && worst != STUCK; i++) {
        if (walk && walk_is_over(group, walk, i))
            break;
        if (table_op(i) >= of->last_op || !is_in(of->part, i, group))
            continue;
        c.nodes = of->nodes;
        int how = check_case(group, c, i, device, walk);
        worst = how == STUCK || !worst ? how : worst;
        wrong += how == WRONG;
        if (wrong == OP_WALK_FAILURES) {
            op_image_complain("%d cases are wrong: the rest is left out", wrong);
            if (walk)
                __atomic_store_n(&walk->lost, OP_WALK_FAILURES, __ATOMIC_RELAXED);
            return STUCK;
        }
    }
    if (walk && worst != STUCK)
        op_walk_end(walk);
    return worst;
}

/* What is refused everywhere is not tested anywhere. */
static bool wants_rings(const imbrex_group *group)
{
    return group->size > 1 && group->target->arch != 80;
}

static int check_all(imbrex_group *group, const op_selection *of, void *device, op_walk *walk)
{
    if (__atomic_load_n(lost, __ATOMIC_RELAXED) >= OP_WALK_FAILURES) {
        op_image_complain("the groups of %d tables failed: this one is left out", OP_WALK_FAILURES);
        return STUCK;
    }
    rings = 0;
    int worst = walk_all(group, of, device, walk);
    bool all = of->last_op == OPS && of->nodes == 1 && of->part != OP_CASES_NINTH;
    if (worst == FINE && !walk && all && wants_rings(group) && !rings) {
        op_image_complain("no case has tiles for \"ring\"");
        return WRONG;
    }
    if (worst == STUCK && !walk && imbrex_group_rank(group) == 0)
        __atomic_add_fetch(lost, 1, __ATOMIC_RELAXED); /* joins and waits order it */
    return worst;
}

static int check_part(imbrex_group *group, int last_op, int nodes, const void *part)
{
    op_selection of = { last_op, nodes, part ? *(const op_part *)part : OP_CASES_MOST };
    return check_all(group, &of, NULL, NULL);
}

int op_cases_all(imbrex_group *group, void *ctx)
{
    return check_part(group, OPS, 1, ctx);
}

int op_cases_over_nodes(imbrex_group *group, void *ctx)
{
    return check_part(group, OPS, 2, ctx);
}

int op_cases_collectives(imbrex_group *group, void *ctx)
{
    return check_part(group, COLLECTIVES, 1, ctx);
}

int op_cases_normed(imbrex_group *group, void *on_device)
{
    int worst = FINE;
    op_case c;
    void *device = NULL;
    for (int i = 0; op_norm_get(i, &c) && worst != STUCK; i++) {
        if (on_device)
            RANK_OK(imbrex_mem_alloc(group, op_image_bytes(&c, imbrex_group_size(group)), &device));
        int how = check_case(group, c, i, device, NULL);
        worst = how == STUCK || !worst ? how : worst;
        if (on_device)
            imbrex_mem_free(group, device);
    }
    return worst;
}

static int check_on_device(imbrex_group *group, int nodes, op_walk *walk)
{
    size_t most = 0;
    op_case c;
    void *device;
    for (int i = 0; op_cases_get(i, &c); i++) {
        size_t bytes = op_image_bytes(&c, imbrex_group_size(group));
        most = bytes > most ? bytes : most;
    }
    RANK_OK(imbrex_mem_alloc(group, most, &device));
    return check_all(group, &(op_selection){ OPS, nodes, OP_CASES_ALL }, device, walk);
}

int op_cases_device(imbrex_group *group, void *walk)
{
    return check_on_device(group, 1, walk);
}

int op_cases_device_over_nodes(imbrex_group *group, void *walk)
{
    return check_on_device(group, 2, walk);
}
