/* scaled_cases.c - as the header says. */
#include "scaled_cases.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "op_cases.h"
#include "ranks.h"
#include "sanitized.h"
#include "scaled_input.h"

/* ---- one run --------------------------------------------------------------------------------- */

enum { A, SCALES_A, B, SCALES_B, BIAS, GAMMA, C, H, GATHERED, MATRICES };
enum { GUARD = 256, FILL = 0xff };

typedef struct bench {
    imbrex_group *group;
    const scaled_case *c;
    int ranks, r, nodes, plans;
    size_t at[MATRICES + 1];
    char *device, *host;
    scaled_parts parts;
    uint8_t *codes; /* of a, all rows, and behind it b */
    char *all;      /* c of all rows, as far as they are known, */
    bool known[ROWS_MOST];
} bench;

static int64_t first_row(const bench *b, int64_t m)
{
    return rank_row(m, b->ranks, b->r);
}

static int64_t own_rows(const bench *b, int64_t m)
{
    return rank_row(m, b->ranks, b->r + 1) - first_row(b, m);
}

static bool scatters(const bench *b)
{
    return strcmp(b->c->op, "gemm_rs") == 0;
}

static void lay_out(bench *b)
{
    const scaled_case *c = b->c;
    size_t e = element_bytes(c->out), m = (size_t)c->m, n = (size_t)c->n, k = (size_t)c->k;
    const size_t bytes[MATRICES] = {
        [A] = m * k,        [SCALES_A] = sizeof(float) * (size_t)scaled_scales_of_a(c, c->m),
        [B] = n * k,        [SCALES_B] = sizeof(float) * (size_t)scaled_scales_of_b(c),
        [BIAS] = n * e,     [GAMMA] = n * e,
        [C] = m * n * e,    [H] = m * n * e,
        [GATHERED] = m * k,
    };
    b->at[0] = GUARD;
    for (int i = 0; i < MATRICES; i++)
        b->at[i + 1] = (b->at[i] + bytes[i] + 2 * GUARD - 1) / GUARD * GUARD;
}

static uint8_t *codes_of(const scaled_case *c, int r)
{
    int64_t of_a_rows = c->m * c->k;
    uint8_t *codes = malloc((size_t)(of_a_rows + c->n * c->k) + 1);
    for (int64_t i = 0; i < of_a_rows; i++)
        codes[i] = scaled_code(c, c->dtype, OF_A + scaled_of_a(c, r), i);
    for (int64_t i = 0; i < c->n * c->k; i++)
        codes[of_a_rows + i] = scaled_code(c, scaled_dtype_of_b(c), OF_B + r, i);
    return codes;
}

static void fill(const bench *b, int64_t m)
{
    const scaled_case *c = b->c;
    int64_t first = scaled_gathers(c) ? first_row(b, m) : 0,
            rows = scaled_gathers(c) ? own_rows(b, m) : m;
    int64_t skipped = c->scaling == IMBREX_PER_TENSOR ? 0 : scaled_scales_of_a(c, first);
    int of = scaled_of_a(c, b->r);
    float *scales = (float *)(void *)(b->host + b->at[SCALES_A]);
    memset(b->host, FILL, b->at[MATRICES]);
    memcpy(b->host + b->at[A], b->codes + first * c->k, (size_t)(rows * c->k));
    memcpy(b->host + b->at[B], b->codes + c->m * c->k, (size_t)(c->n * c->k));
    for (int64_t i = 0; i < scaled_scales_of_a(c, rows); i++)
        scales[i] = scaled_scale(c, scaled_of_scale_a(c, of), skipped + i);
    scales = (float *)(void *)(b->host + b->at[SCALES_B]);
    for (int64_t i = 0; i < scaled_scales_of_b(c); i++)
        scales[i] = scaled_scale(c, OF_SCALE_B + b->r, i);
    input_fill(c->out, OF_BIAS, 0, b->host + b->at[BIAS], c->n);
    input_fill(c->out, OF_GAMMA, 0, b->host + b->at[GAMMA], c->n);
}

static void *matrix_at(const bench *b, int i, bool wanted)
{
    return wanted ? b->device + b->at[i] : NULL;
}

static int run(const bench *b, imbrex_plan *plan, int64_t m, bool normed)
{
    const scaled_case *c = b->c;
    fill(b, m);
    RANK_OK(imbrex_copy(b->group, b->device, b->host, b->at[MATRICES], NULL));
    const imbrex_args args = { .a = matrix_at(b, A, true),
                               .b = matrix_at(b, B, true),
                               .bias = matrix_at(b, BIAS, c->bias),
                               .c = matrix_at(b, C, true),
                               .gathered = matrix_at(b, GATHERED, scaled_gathers(c) && c->bias),
                               .scale_a = matrix_at(b, SCALES_A, c->scaling),
                               .scale_b = matrix_at(b, SCALES_B, c->scaling),
                               .gamma = matrix_at(b, GAMMA, normed),
                               .h = matrix_at(b, H, normed),
                               .m = m };
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(b->group, NULL));
    RANK_OK(imbrex_copy(b->group, b->host, b->device, b->at[MATRICES], NULL));
    RANK_OK(imbrex_stream_sync(b->group, NULL));
    return 0;
}

static int complain(const bench *b, const char *algorithm, int64_t m, const char *what)
{
    const scaled_case *c = b->c;
    fprintf(
        stderr,
        "%s: rank %d of %d, %s by %s, m=%lld of %lld n=%lld k=%lld, dtype %d to %d, scaling %d, "
        "values %d\n",
        what, b->r, b->ranks, c->op, algorithm, (long long)m, (long long)c->m, (long long)c->n,
        (long long)c->k, (int)c->dtype, (int)c->out, (int)c->scaling, (int)c->kind);
    return 1;
}

/* In bits, but for those of what is no number. */
static bool rows_differ(const scaled_case *c, const char *x, const char *y)
{
    size_t e = element_bytes(c->out);
    for (int64_t i = 0; i < c->n; i++) {
        bool nans = isnan(element_get(c->out, x, i)) && isnan(element_get(c->out, y, i));
        if (!nans && memcmp(x + (size_t)i * e, y + (size_t)i * e, e) != 0)
            return true;
    }
    return false;
}

/* c or h of a run of m rows: of rows that no run gave yet against float64, of others bit by bit. */
static int check(bench *b, const char *algorithm, int64_t m, int of)
{
    const scaled_case *c = b->c;
    int64_t first = scatters(b) ? first_row(b, m) : 0, rows = scatters(b) ? own_rows(b, m) : m;
    size_t row_bytes = (size_t)c->n * element_bytes(c->out);
    const char *have = b->host + b->at[of];
    for (int64_t row = 0; row < rows; row++) {
        char *kept = b->all + (size_t)(first + row) * row_bytes;
        const char *is = have + (size_t)row * row_bytes;
        if (b->known[first + row]) {
            if (rows_differ(c, kept, is))
                return complain(b, algorithm, m, "a row has other bits than before");
            continue;
        }
        b->known[first + row] = true;
        memcpy(kept, is, row_bytes);
        if (row % b->ranks != b->r && !scatters(b))
            continue; /* another rank's to look at */
        for (int64_t col = 0; col < c->n; col++) {
            scaled_total want = scaled_sum_of(c, &b->parts, first + row, col);
            double within, x = element_get(c->out, is, col);
            if (scaled_is_right(c, x, &want, b->nodes, &within))
                continue;
            fprintf(stderr, "c[%lld, %lld] is %.9g, want %.9g within %.3g\n",
                    (long long)(first + row), (long long)col, x, want.value, within);
            return complain(b, algorithm, m, "a wrong value");
        }
    }
    for (size_t i = (size_t)rows * row_bytes; i < b->at[of + 1] - b->at[of]; i++)
        if ((unsigned char)have[i] != FILL)
            return complain(b, algorithm, m, "something was written behind c or h");
    for (int64_t i = 0; i < m * c->k && scaled_gathers(c) && c->bias; i++)
        if ((uint8_t)b->host[b->at[GATHERED] + (size_t)i] != b->codes[i])
            return complain(b, algorithm, m, "gathered is not all of a");
    return 0;
}

/* c is the RMSNorm of h, which was checked: but for its rounding. */
static int check_norm(const bench *b, const char *algorithm, int64_t m)
{
    const scaled_case *c = b->c;
    double unit = c->out == IMBREX_F32 ? 0x1p-20 : c->out == IMBREX_F16 ? 0x1p-10 : 0x1p-7;
    for (int64_t row = 0; row < (scatters(b) ? own_rows(b, m) : m); row++) {
        double squares = 0;
        for (int64_t col = 0; col < c->n; col++) {
            double h = element_get(c->out, b->host + b->at[H], row * c->n + col);
            squares += h * h;
        }
        for (int64_t col = 0; col < c->n; col++) {
            double h = element_get(c->out, b->host + b->at[H], row * c->n + col);
            double gamma = input_value(c->out, OF_GAMMA, col);
            double want = h / sqrt(squares / (double)c->n + 1e-6) * gamma;
            double x = element_get(c->out, b->host + b->at[C], row * c->n + col);
            if (fabs(x - want) <= unit * fabs(want) + 0x1p-22)
                continue;
            fprintf(stderr, "c[%lld, %lld] is %.9g, want %.9g\n", (long long)row, (long long)col, x,
                    want);
            return complain(b, algorithm, m, "a wrong norm");
        }
    }
    return 0;
}

/* Products whose bits are to be those of any other plan, and sums that are normed, are asked for
 * apart: of fewer rows also. */
typedef enum manner { PLAIN, INVARIANT, NORMED } manner;

static int try_algorithm(bench *b, const char *algorithm, manner how)
{
    const scaled_case *c = b->c;
    const int64_t m_of[] = { c->m, c->m / 2, how ? 0 : 1, how ? 0 : c->m - 1, how ? 0 : c->m };
    const imbrex_gemm_desc desc = { .m = c->m,
                                    .n = c->n,
                                    .k = c->k,
                                    .dtype = c->dtype,
                                    .out = c->out,
                                    .scaling = c->scaling,
                                    .fast_accumulation = c->fast,
                                    .batch_invariant = how == INVARIANT,
                                    .norm.rms = how == NORMED,
                                    .algorithm = algorithm,
                                    .chunk_rows = c->chunk_rows,
                                    .sms = c->sms };
    imbrex_plan *plan;
    imbrex_status status = imbrex_plan_create(b->group, c->op, &desc, sizeof desc, &plan);
    if (status == IMBREX_UNSUPPORTED && strstr(imbrex_error(), ": choose \""))
        return 0; /* for other tiles */
    RANK_OK(status);
    b->plans++;
    for (size_t i = 0; i < sizeof m_of / sizeof *m_of; i++) {
        if (m_of[i] < 1)
            continue;
        if (run(b, plan, m_of[i], how == NORMED) ||
            check(b, algorithm, m_of[i], how == NORMED ? H : C))
            return 1;
        if (how == NORMED && check_norm(b, algorithm, m_of[i]))
            return 1;
    }
    imbrex_plan_destroy(plan);
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define BF16   IMBREX_BF16
#define F16    IMBREX_F16
#define F32    IMBREX_F32
#define E4M3   IMBREX_E4M3
#define E5M2   IMBREX_E5M2
#define TENSOR IMBREX_PER_TENSOR
#define ROW    IMBREX_PER_ROW
#define BLOCK  IMBREX_PER_BLOCK

/* Edges of n and k that are no multiples of 128, few rows and chunks of several, several blocks. */
static const scaled_case cases[] = {
    { .m = 33,
      .n = 137,
      .k = 272,
      .dtype = E4M3,
      .scaling = BLOCK,
      .chunk_rows = 5,
      .bias = 1,
      .again = true },
    { .m = 22, .n = 130, .k = 400, .dtype = E4M3, .scaling = BLOCK, .out = F32, .sms = 2 },
    { .m = 24,
      .n = 129,
      .k = 1168,
      .dtype = E5M2,
      .scaling = BLOCK,
      .out = F16,
      .chunk_rows = 8,
      .sms = 2 },
    { .m = 27,
      .n = 33,
      .k = 272,
      .dtype = E4M3,
      .scaling = ROW,
      .out = F32,
      .chunk_rows = 4,
      .bias = 1,
      .again = true },
    { .m = 18,
      .n = 140,
      .k = 160,
      .dtype = E5M2,
      .scaling = ROW,
      .out = F32,
      .sms = 3,
      .where = CPU_ONLY },
    { .m = 3,
      .n = 5,
      .k = 16,
      .dtype = E4M3,
      .scaling = ROW,
      .out = F16,
      .bias = 1,
      .where = CPU_ONLY },
    { .m = 24, .n = 40, .k = 128, .dtype = E4M3, .scaling = TENSOR, .fast = 1, .chunk_rows = 3 },
    { .m = 19,
      .n = 17,
      .k = 48,
      .dtype = E4M3,
      .scaling = TENSOR,
      .out = F32,
      .bias = 1,
      .where = CPU_ONLY },
    { .m = 20, .n = 24, .k = 144, .dtype = E4M3, .out = F32, .chunk_rows = 2 },
    { .m = 8, .n = 9, .k = 0, .dtype = E4M3, .scaling = BLOCK, .bias = 1 },
    { .m = 17,
      .n = 50,
      .k = 256,
      .dtype = E4M3,
      .scaling = BLOCK,
      .kind = TINY,
      .where = CPU_ONLY },
    { .m = 17, .n = 50, .k = 256, .dtype = E4M3, .scaling = BLOCK, .kind = HUGE_ONES },
    { .m = 18,
      .n = 30,
      .k = 144,
      .dtype = E4M3,
      .scaling = ROW,
      .kind = OPPOSITE,
      .chunk_rows = 2 },
    { .m = 10,
      .n = 150,
      .k = 272,
      .dtype = E4M3,
      .scaling = BLOCK,
      .kind = ZEROS,
      .out = F32,
      .where = CPU_ONLY },
    { .m = 18, .n = 30, .k = 144, .dtype = E5M2, .scaling = ROW, .kind = ZEROS, .chunk_rows = 3 },
    { .m = 13, .n = 18, .k = 1040, .dtype = E4M3, .scaling = BLOCK, .kind = LARGEST, .out = F32 },
    { .m = 21, .n = 34, .k = 208, .dtype = E4M3, .scaling = ROW, .kind = LARGEST, .chunk_rows = 4 },
    { .m = 24, .n = 140, .k = 272, .dtype = E4M3, .scaling = BLOCK, .kind = NANS, .chunk_rows = 4 },
    { .m = 40,
      .n = 60,
      .k = 48,
      .dtype = E5M2,
      .scaling = ROW,
      .kind = NANS,
      .out = F32,
      .where = CPU_ONLY },
    /* Tiles of several ranks' rows and of one's, several a block, more of k than a block holds. */
    { .m = 520, .n = 400, .k = 1040, .dtype = E4M3, .scaling = BLOCK, .sms = 4, .where = GPU_ONLY },
    /* Alone of 224 columns. */
    { .m = 300, .n = 440, .k = 272, .dtype = E4M3, .scaling = ROW, .sms = 6, .where = GPU_ONLY },
    { .m = 301, .n = 203, .k = 656, .dtype = E4M3, .scaling = BLOCK, .sms = 2, .where = GPU_ONLY },
    { .m = 400,
      .n = 320,
      .k = 528,
      .dtype = E4M3,
      .scaling = ROW,
      .out = F16,
      .bias = 1,
      .sms = 6,
      .chunk_rows = 128,
      .where = GPU_ONLY },
    { .m = 300,
      .n = 200,
      .k = 400,
      .dtype = E5M2,
      .scaling = TENSOR,
      .fast = 1,
      .sms = 2,
      .where = GPU_ONLY },
    { .m = 70,
      .n = 264,
      .k = 2064,
      .dtype = E4M3,
      .scaling = BLOCK,
      .bias = 1,
      .again = true,
      .where = GPU_ONLY },
};

static bool is_for(const scaled_case *c, const scaled_where *where)
{
    return c->where == ANYWHERE || (c->where == GPU_ONLY) == where->gpu;
}

static int try_case(imbrex_group *group, scaled_case c, int nodes)
{
    bench b = { .group = group,
                .c = &c,
                .ranks = imbrex_group_size(group),
                .r = imbrex_group_rank(group),
                .nodes = nodes };
    c.out = c.out ? c.out : BF16;
    lay_out(&b);
    RANK_OK(imbrex_mem_alloc(group, b.at[MATRICES], (void **)&b.device));
    b.host = malloc(b.at[MATRICES]);
    b.all = malloc((size_t)(c.m * c.n) * sizeof(float) + 1);
    b.parts = scaled_parts_of(&c, b.ranks, b.r);
    b.codes = codes_of(&c, b.r);
    const op_case of = { .op = c.op, .nodes = nodes };
    const char *algorithm;
    int failed = 0;
    int manners = 1 + (c.again ? 1 + scaled_sums_ranks(&c) : 0);
    for (int how = PLAIN; how < manners && !failed; how++) {
        b.plans = 0;
        for (int i = 0; !failed && (algorithm = op_cases_algorithm(&of, i)); i++)
            failed = try_algorithm(&b, algorithm, (manner)how);
        RANK_CHECK(failed || b.plans, "%s had no algorithm", c.op);
    }
    scaled_drop_parts(&b.parts);
    free(b.codes);
    free(b.host);
    free(b.all);
    imbrex_mem_free(group, b.device);
    return failed;
}

static int try_all(imbrex_group *group, int nodes, const scaled_where *where)
{
    int ranks = imbrex_group_size(group);
    static const char *const ops[] = { "gemm", "ag_gemm", "gemm_rs", "gemm_ar" };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t op = nodes > 1; op < sizeof ops / sizeof *ops; op++) {
            scaled_case c = cases[i];
            c.op = ops[op];
            c.hopper = where->hopper;
            if (!is_for(&c, where) || (where->op && strcmp(where->op, c.op) != 0))
                continue;
            if (where->some && op && (i + op + (size_t)((ranks + 1) / 2 + nodes)) % 2)
                continue;
            if (try_case(group, c, nodes))
                return 1;
        }
    return 0;
}

int scaled_cases(imbrex_group *group, void *ctx)
{
    static const scaled_where all = { .some = SANITIZED };
    return try_all(group, 1, ctx ? ctx : &all);
}

int scaled_cases_over_nodes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    return try_all(group, 2, &(scaled_where){ .some = SANITIZED });
}
