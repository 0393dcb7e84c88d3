/* op.c - operators as their rows say, and what follows from a shape. */
#include "candidates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "matrix.h"

const char *const bench_layout_names[2] = { "nk", "kn" };
const char *const bench_scaling_names[4] = { "unscaled", "tensor", "row", "block" };

/* ---- what a row says ------------------------------------------------------------------------- */

static const imbrex_field *field_of(const imbrex_field *fields, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static const imbrex_field *desc_field(const imbrex_op_info *info, const char *name)
{
    return field_of(info->desc, info->desc_fields, name);
}

/* Whether the first dimension of an operand is so long, "m". */
static bool reaches(const imbrex_op_info *info, const char *operand, const char *rows)
{
    const imbrex_field *field = field_of(info->args, info->args_fields, operand);
    size_t length = strlen(rows);
    return field && field->shape && strncmp(field->shape + 1, rows, length) == 0 &&
           strchr(",]", field->shape[1 + length]);
}

/* m, n and k are all that it must be told; or tokens, n, k, experts and top_k; or rank_tokens, n,
 * experts and top_k; or what makes states of attention. */
static bool has_our_sizes(const imbrex_op_info *info)
{
    static const char *const ours[] = { "m",        "n",           "k",        "tokens",  "experts",
                                        "top_k",    "rank_tokens", "batch",    "context", "heads",
                                        "kv_heads", "head_dim",    "value_dim" };
    for (int i = 0; i < info->desc_fields; i++) {
        bool known = !(info->desc[i].flags & IMBREX_FIELD_REQUIRED);
        for (size_t j = 0; j < sizeof ours / sizeof *ours; j++)
            known = known || strcmp(info->desc[i].name, ours[j]) == 0;
        if (!known)
            return false;
    }
    if (desc_field(info, "value_dim"))
        return true;
    bool rows = desc_field(info, "m") || desc_field(info, "rank_tokens") ||
                (desc_field(info, "tokens") && desc_field(info, "k"));
    return rows && desc_field(info, "n") && field_of(info->args, info->args_fields, "a") &&
           field_of(info->args, info->args_fields, "c");
}

/* Own rows of a that all ranks need move once, rows of c of which each rank has a part or a sum
 * once: an operator whose c is all rows of sums moves twice. */
static bench_op from_row(const imbrex_op_info *info)
{
    bench_op op = {
        .name = info->name,
        .info = info,
        .product = desc_field(info, "k") != NULL,
        .a_is_shard = reaches(info, "a", "rows") || reaches(info, "a", "own"),
        .experts = desc_field(info, "experts") != NULL,
    };
    op.states = desc_field(info, "value_dim") != NULL;
    op.cache = desc_field(info, "context") && field_of(info->args, info->args_fields, "k");
    op.moves = op.experts ? 1 : !op.a_is_shard + reaches(info, "c", "m");
    return op;
}

/* ---- all of them ----------------------------------------------------------------------------- */

enum { OPS_MOST = 34 };
static bench_op ops[OPS_MOST];
static int op_count;

static const bench_op own_ops[] = {
    { .name = "gemm", .product = true, .alone = true },
    { .name = "barrier", .meets = true },
};
enum { OWN_OPS = sizeof own_ops / sizeof *own_ops };

static void read_rows(void)
{
    const imbrex_op_info *info;
    if (op_count)
        return;
    for (int i = 0; (info = imbrex_op(i)) && op_count < OPS_MOST - OWN_OPS; i++) {
        bool own = false;
        for (int j = 0; j < OWN_OPS; j++)
            own = own || strcmp(info->name, own_ops[j].name) == 0;
        if (has_our_sizes(info) && !own)
            ops[op_count++] = from_row(info);
    }
    for (int j = 0; j < OWN_OPS; j++)
        ops[op_count++] = own_ops[j];
}

const bench_op *bench_op_find(const char *name)
{
    read_rows();
    for (int i = 0; i < op_count; i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}

void bench_op_names(bench_ops which, const char *between, char *text, size_t size)
{
    size_t length = 0;
    read_rows();
    if (size)
        *text = '\0';
    for (int i = 0; i < op_count && length < size; i++) {
        const bench_op *op = &ops[i];
        if (which == BENCH_OPS_ALL || (which == BENCH_OPS_PLANS && op->alone) ||
            (op->info && (which == BENCH_OPS_PLANS || (op->product && !op->experts))))
            length += (size_t)snprintf(text + length, size - length, "%s%s", length ? between : "",
                                       op->name);
    }
}

/* ---- plans ----------------------------------------------------------------------------------- */

imbrex_gemm_desc bench_op_desc(const bench_shape *s, const char *algorithm)
{
    return (imbrex_gemm_desc){
        .m = s->m,
        .n = s->n,
        .k = s->k,
        .dtype = s->dtype,
        .layout = s->layout,
        .scaling = s->scaling,
        .algorithm = algorithm,
        .chunk_rows = s->chunk_rows,
        .sms = s->sms,
        .m_least = s->m_least,
    };
}

/* What the desc has of these; the rest is 0.  NULL: no memory. */
static void *desc_of(const imbrex_op_info *info, int ranks, const imbrex_gemm_desc *from,
                     const bench_shape *s)
{
    const int whole = s->whole, rms = s->norm, value_dim = bench_op_value_dim(s);
    const int64_t each = from->m / ranks;
    const struct {
        const char *name;
        const void *value;
        size_t bytes;
    } fields[] = {
        { "m", &from->m, sizeof from->m },
        { "n", &from->n, sizeof from->n },
        { "k", &from->k, sizeof from->k },
        { "dtype", &from->dtype, sizeof from->dtype },
        { "layout", &from->layout, sizeof from->layout },
        { "scaling", &from->scaling, sizeof from->scaling },
        { "algorithm", &from->algorithm, sizeof from->algorithm },
        { "chunk_rows", &from->chunk_rows, sizeof from->chunk_rows },
        { "sms", &from->sms, sizeof from->sms },
        { "m_least", &from->m_least, sizeof from->m_least },
        { "tokens", &from->m, sizeof from->m },
        { "rank_tokens", &each, sizeof each },
        { "experts", &s->experts, sizeof s->experts },
        { "top_k", &s->top_k, sizeof s->top_k },
        { "parallel", &whole, sizeof whole },
        { "batch", &from->m, sizeof from->m },
        { "context", &from->n, sizeof from->n },
        { "heads", &s->heads, sizeof s->heads },
        { "kv_heads", &s->kv_heads, sizeof s->kv_heads },
        { "head_dim", &s->head_dim, sizeof s->head_dim },
        { "value_dim", &value_dim, sizeof value_dim },
        { "page", &s->page, sizeof s->page },
        { "norm.rms", &rms, sizeof rms },
    };
    char *desc = calloc(1, info->desc_bytes);
    for (size_t i = 0; desc && i < sizeof fields / sizeof *fields; i++) {
        const imbrex_field *field = desc_field(info, fields[i].name);
        if (field && field->bytes == fields[i].bytes)
            memcpy(desc + field->offset, fields[i].value, field->bytes);
    }
    return desc;
}

static imbrex_status create(imbrex_group *group, const imbrex_op_info *info,
                            const imbrex_gemm_desc *from, const bench_shape *s, imbrex_plan **plan)
{
    void *desc = desc_of(info, imbrex_group_size(group), from, s);
    if (!desc)
        return IMBREX_NO_MEMORY;
    imbrex_status status = imbrex_plan_create(group, info->name, desc, info->desc_bytes, plan);
    free(desc);
    return status;
}

/* The row of a product without peers. */
static const imbrex_op_info *product_row(void)
{
    const imbrex_op_info *info;
    for (int i = 0; (info = imbrex_op(i)) && strcmp(info->name, "gemm") != 0; i++)
        ;
    return info;
}

imbrex_status bench_op_plan(imbrex_group *group, const bench_shape *s, const char *algorithm,
                            imbrex_plan **plan)
{
    imbrex_gemm_desc desc = bench_op_desc(s, algorithm);
    if (s->plan_m && !algorithm) {
        desc.m = s->plan_m;
        desc.m_least = 0;
    }
    return create(group, s->op->alone ? product_row() : s->op->info, &desc, s, plan);
}

imbrex_status bench_op_tune(imbrex_group *group, const bench_shape *s,
                            imbrex_tune_progress progress, void *ctx)
{
    const imbrex_op_info *info = s->op->info;
    const imbrex_gemm_desc from = bench_op_desc(s, NULL);
    void *desc = desc_of(info, imbrex_group_size(group), &from, s);
    if (!desc)
        return IMBREX_NO_MEMORY;
    imbrex_status status = imbrex_tune(group, info->name, desc, info->desc_bytes, progress, ctx);
    free(desc);
    return status;
}

/* ---- experts --------------------------------------------------------------------------------- */

bench_shape bench_op_shape(const bench_shape *s, int ranks)
{
    bench_shape shape = *s;
    if (bench_op_exchanges(s->op))
        shape.m = (s->m + ranks - 1) / ranks * ranks;
    return shape;
}

int bench_op_experts(const bench_shape *s, int ranks)
{
    return s->whole ? (s->experts + ranks - 1) / ranks : s->experts;
}

int64_t bench_op_rows(const bench_shape *s)
{
    enum { ALIGN = 16 }; /* of experts' rows in a plan */
    return s->m * s->top_k + (int64_t)s->experts * ALIGN;
}

/* As one rank of several would have them, for that rank alone. */
static bench_shape alone_of(const bench_shape *s, int ranks)
{
    bench_shape alone = *s;
    alone.experts = bench_op_experts(s, ranks);
    alone.whole = false;
    return alone;
}

imbrex_status bench_op_router(imbrex_group *group, const bench_shape *s, int ranks,
                              imbrex_plan **plan)
{
    bench_shape shape = ranks ? alone_of(s, ranks) : *s;
    imbrex_gemm_desc desc = bench_op_desc(&shape, "sequential");
    desc.n = desc.k = 1;
    desc.dtype = bench_op_out(s); /* where pairs lie has nothing to do with it */
    desc.scaling = IMBREX_UNSCALED;
    read_rows();
    const bench_op *op = ops;
    while (!op->experts || !op->a_is_shard)
        op++;
    return create(group, op->info, &desc, &shape, plan);
}

imbrex_status bench_op_product(imbrex_group *alone, const bench_shape *s, int ranks,
                               imbrex_plan **plan)
{
    const bench_shape shape = alone_of(s, ranks);
    imbrex_gemm_desc desc = bench_op_desc(s, "sequential");
    desc.chunk_rows = 0;
    bool own = s->op->experts || s->op->cache;
    return create(alone, own ? s->op->info : product_row(), &desc, &shape, plan);
}

/* ---- norms ----------------------------------------------------------------------------------- */

bool bench_op_norms(const bench_op *op)
{
    return op->info && desc_field(op->info, "norm.rms");
}

/* ---- 8-bit products -------------------------------------------------------------------------- */

enum { SCALE_BLOCK = 128 };

static int64_t blocks(int64_t count)
{
    return (count + SCALE_BLOCK - 1) / SCALE_BLOCK;
}

imbrex_dtype bench_op_out(const bench_shape *s)
{
    return s->dtype == IMBREX_E4M3 ? IMBREX_BF16 : s->dtype;
}

int64_t bench_op_scales_of_a(const bench_shape *s, int64_t rows)
{
    const int64_t counts[] = { 0, 1, rows, rows * blocks(s->k) };
    return counts[s->scaling];
}

int64_t bench_op_scales_of_b(const bench_shape *s, int ranks)
{
    const int64_t counts[] = { 0, 1, s->n, blocks(s->n) * blocks(s->k) };
    return counts[s->scaling] * (s->op->experts ? bench_op_experts(s, ranks) : 1);
}

/* ---- what a run takes ------------------------------------------------------------------------ */

double bench_op_flop(const bench_shape *s, int ranks)
{
    double pairs = s->op->experts ? (double)s->top_k / (s->whole ? ranks : 1) : 1;
    return 2.0 * pairs * (double)s->m * (double)s->n * (double)s->k;
}

/* On average: a rank's own shard of what travels stays where it is.  Of tokens that go to experts,
 * if all are chosen alike, those that have one on the rank. */
double bench_op_bytes(const bench_shape *s, int ranks)
{
    double state = bench_op_value_dim(s) * (double)matrix_dtype_bytes(s->dtype) + sizeof(float);
    if (s->op->states) /* of own heads, from all others */
        return (double)s->m * s->heads / ranks * state * (ranks - 1);
    double wanted = bench_op_exchanges(s->op) ? 1 - pow(1 - 1.0 / ranks, s->top_k) : 1;
    bool of_a = s->op->product && s->op->a_is_shard;
    int64_t width = of_a ? s->k : s->n;
    int64_t element = matrix_dtype_bytes(of_a ? s->dtype : bench_op_out(s));
    return wanted * s->op->moves * (double)s->m * (double)width * (double)element * (ranks - 1) /
           ranks;
}

int bench_op_value_dim(const bench_shape *s)
{
    return s->head_dim == 576 ? 512 : s->head_dim;
}

double bench_op_cache_bytes(const bench_shape *s)
{
    int matrices = bench_op_value_dim(s) == s->head_dim ? 2 : 1;
    return s->op->cache ? matrices * (double)s->m * (double)s->n * s->kv_heads * s->head_dim *
                              (double)matrix_dtype_bytes(s->dtype)
                        : 0;
}
