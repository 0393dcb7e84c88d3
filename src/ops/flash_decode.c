/* flash_decode.c - attention of few queries over a cache whose tokens lie on all ranks: each rank
 * attends to its own, and the states that come of it are merged as merge_states does.
 *
 *     caller   | attend | merge_states' kernels and copies |
 *
 * Algorithms are those of merge_states and say how states travel.
 */
#include <math.h>
#include <stdio.h>

#include "kernels/attend/args.h"
#include "merge.h"

enum { ATTEND, MERGE }; /* kernels; of the merge several, from there on */

static const imbrex_decode_desc *desc_of(const imx_variant *variant)
{
    return (const void *)variant->plan->desc;
}

static bool is_mla(const imbrex_decode_desc *d)
{
    return d->head_dim != d->value_dim;
}

/* ---- attend ---------------------------------------------------------------------------------- */

/* Elements of a page, or of a sequence. */
static int64_t dense_stride(const imbrex_decode_desc *d)
{
    return (d->page ? d->page : d->context) * (int64_t)d->kv_heads * d->head_dim;
}

static int splits_of(const imbrex_decode_desc *d)
{
    return imx_attend_splits_room(d->context, d->kv_heads);
}

static bool on_gpu(const imx_variant *variant)
{
    return variant->plan->group->target->arch != 0;
}

static imx_attend_args attend_args(const imx_variant *variant, int64_t m)
{
    const imbrex_decode_desc *d = desc_of(variant);
    return (imx_attend_args){
        .heads = d->heads,
        .kv_heads = d->kv_heads,
        .group = d->heads / d->kv_heads,
        .head_dim = d->head_dim,
        .value_dim = d->value_dim,
        .queries = (int)imx_merge_queries(d),
        .page = d->page,
        .heads_first = d->heads_first,
        .dtype = (int)d->dtype,
        .cache = (int)d->cache,
        .plan = imx_variant_point(variant),
        .scale = d->scale != 0 ? d->scale : 1 / sqrtf((float)d->head_dim),
        .soft_cap = d->soft_cap,
        .sequences = m,
        .context = d->context,
        .splits = splits_of(d),
    };
}

/* Behind what the merge has in local data: states of this rank, then what splits come to. */
static size_t states_bytes(const imx_variant *variant)
{
    const imbrex_decode_desc *d = desc_of(variant);
    int64_t states = variant->shape.m * imx_merge_queries(d) * d->heads;
    int element = (int)imx_dtype_bytes(d->dtype);
    return imx_align((size_t)imx_merge_bytes(states, d->value_dim, element), 256);
}

static void add_states(const imx_variant *variant, imx_needs *needs)
{
    const imbrex_decode_desc *d = desc_of(variant);
    const imx_attend_args largest = attend_args(variant, variant->shape.m);
    size_t states = (size_t)(variant->shape.m * imx_merge_queries(d) * d->heads);
    size_t part = (size_t)(d->value_dim + 2) * sizeof(float);
    needs->local_bytes = imx_align(needs->local_bytes, 256) + states_bytes(variant);
    if (!on_gpu(variant))
        return;
    needs->local_bytes += states * (size_t)splits_of(d) * part;
    needs->done += 1 + (size_t)imx_attend_words(&largest);
}

static imbrex_status prepare_attend(imx_variant *variant)
{
    const imx_attend_args largest = attend_args(variant, variant->shape.m);
    return imx_variant_prepare(variant, ATTEND, &imx_kernel_attend, &largest);
}

/* A rank alone has all tokens, and its own states are the result, bit by bit. */
static bool is_merged(const imx_run *run)
{
    return run->ranks > 1 || run->decode->sinks;
}

/* merge: what the merge has of local data. */
static imbrex_status attend(const imx_run *run, const imx_needs *merge, imx_merge_states *states)
{
    const imbrex_decode_desc *d = desc_of(run->variant);
    const imbrex_decode_args *given = run->decode;
    imx_attend_args args = attend_args(run->variant, run->m);
    int64_t count = run->m * imx_merge_queries(d) * d->heads;
    char *o = (char *)imx_run_local(run) + imx_align(merge->local_bytes, 256);
    int64_t lse_at = imx_merge_lse_at(count, d->value_dim, (int)imx_dtype_bytes(d->dtype));
    *states = (imx_merge_states){ o, (const float *)(const void *)(o + lse_at) };
    args.natural = given->natural;
    args.page_count = given->page_count;
    args.cache_stride = given->cache_stride ? given->cache_stride : dense_stride(d);
    args.page_stride = given->page_stride;
    args.q = given->q;
    args.k = given->k;
    args.v = given->v;
    args.scale_k = given->scale_k;
    args.scale_v = given->scale_v;
    args.pages = given->pages;
    args.lengths = given->lengths;
    args.visible = given->visible;
    args.hidden = given->hidden;
    args.o = is_merged(run) ? o : given->o;
    args.lse = is_merged(run) ? (float *)(void *)(o + lse_at) : given->lse;
    args.parts = (float *)(void *)(o + states_bytes(run->variant));
    args.claims = (int32_t *)(imx_run_counters(run) + merge->done);
    args.counts = imx_run_counters(run) + merge->done + 1;
    return run->m ? imx_run_launch(run, run->stream, ATTEND, &args, sizeof args) : IMBREX_OK;
}

/* ---- sequential ------------------------------------------------------------------------------ */

static void lay_out_sequential(const imx_variant *variant, imx_needs *n)
{
    imx_merge_copies_needs(variant, n);
    add_states(variant, n);
}

static imbrex_status prepare_sequential(imx_variant *variant)
{
    IMX_TRY(prepare_attend(variant));
    return imx_merge_copies_prepare(variant, MERGE);
}

static imbrex_status run_sequential(const imx_run *run)
{
    imx_merge_states own;
    imx_needs merge = { 0 };
    imx_merge_copies_needs(run->variant, &merge);
    IMX_TRY(attend(run, &merge, &own));
    if (!is_merged(run))
        return IMBREX_OK;
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_merge_copies(run, MERGE, &own));
    return imx_run_end(run);
}

/* ---- store, ll ------------------------------------------------------------------------------- */

static void lay_out(const imx_variant *variant, int how, imx_needs *n)
{
    imx_merge_kernel_needs(variant, how, n);
    add_states(variant, n);
}

static imbrex_status prepare(imx_variant *variant, int how)
{
    IMX_TRY(prepare_attend(variant));
    return imx_merge_kernel_prepare(variant, MERGE, how);
}

static imbrex_status run_kernels(const imx_run *run, int how)
{
    imx_merge_states own;
    imx_needs merge = { 0 };
    imx_merge_kernel_needs(run->variant, how, &merge);
    IMX_TRY(attend(run, &merge, &own));
    return is_merged(run) ? imx_merge_kernel(run, MERGE, how, &own) : IMBREX_OK;
}

static void lay_out_store(const imx_variant *variant, imx_needs *n)
{
    lay_out(variant, IMX_MERGE_STORES, n);
}

static imbrex_status prepare_store(imx_variant *variant)
{
    return prepare(variant, IMX_MERGE_STORES);
}

static imbrex_status run_store(const imx_run *run)
{
    return run_kernels(run, IMX_MERGE_STORES);
}

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    lay_out(variant, IMX_MERGE_LL, n);
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    return prepare(variant, IMX_MERGE_LL);
}

static imbrex_status run_ll(const imx_run *run)
{
    return run_kernels(run, IMX_MERGE_LL);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

static void lay_out_nodes(const imx_variant *variant, imx_needs *n)
{
    imx_merge_nodes_needs(variant, n);
    add_states(variant, n);
}

static imbrex_status prepare_nodes(imx_variant *variant)
{
    IMX_TRY(prepare_attend(variant));
    return imx_merge_nodes_prepare(variant, MERGE);
}

static imbrex_status run_nodes(const imx_run *run, bool overlapped)
{
    imx_merge_states own;
    imx_needs merge = { 0 };
    imx_merge_nodes_needs(run->variant, &merge);
    IMX_TRY(attend(run, &merge, &own));
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_merge_nodes(run, MERGE, overlapped, &own));
    return imx_run_end(run);
}

static imbrex_status run_hierarchical(const imx_run *run)
{
    return run_nodes(run, true);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    return run_nodes(run, false);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

enum { GROUP = 16, GROUP_MLA = 128, PAGE = 1 << 20 }; /* at most */
enum { ITEMS = 16 * IMX_ATTEND_SPLITS }; /* of blocks, at most: of a sequence and head */

static imbrex_status check_dims(const imbrex_decode_desc *d)
{
    bool plain = d->head_dim == 64 || d->head_dim == 128 || d->head_dim == 256;
    bool mla = d->head_dim == 576 && d->value_dim == 512;
    if (!mla && (!plain || d->value_dim != d->head_dim))
        return imx_fail(IMBREX_UNSUPPORTED,
                        "desc.head_dim and desc.value_dim are %d and %d: want both 64, 128 or 256, "
                        "or 576 and 512",
                        d->head_dim, d->value_dim);
    if (mla && d->kv_heads != 1)
        return imx_fail(IMBREX_UNSUPPORTED, "desc.kv_heads is %d: want 1 with desc.head_dim 576",
                        d->kv_heads);
    return IMBREX_OK;
}

static imbrex_status check_heads(const imbrex_decode_desc *d)
{
    int most = is_mla(d) ? GROUP_MLA : GROUP;
    if (d->kv_heads < 1 || d->heads % d->kv_heads)
        return imx_fail(IMBREX_INVALID,
                        "desc.heads is %d and desc.kv_heads %d: want a multiple of it", d->heads,
                        d->kv_heads);
    if (d->heads / d->kv_heads > most)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "desc.heads is %d and desc.kv_heads %d: want at most %d heads for each of "
                        "the cache's",
                        d->heads, d->kv_heads, most);
    return IMBREX_OK;
}

static imbrex_status check(const imbrex_group *group, const imx_request *request)
{
    const imbrex_decode_desc *d = (const void *)request->desc;
    IMX_TRY(imx_merge_check(group, request));
    IMX_TRY(check_heads(d));
    IMX_TRY(check_dims(d));
    if (d->page < 0 || d->page > PAGE)
        return imx_fail(IMBREX_INVALID, "desc.page is %d: want from 0 to %d", d->page, PAGE);
    if (d->cache != d->dtype && d->cache != IMBREX_E4M3)
        return imx_fail(IMBREX_INVALID, "desc.cache is %s: want desc.dtype, %s, or e4m3",
                        imx_dtype_name(d->cache), imx_dtype_name(d->dtype));
    if (d->soft_cap < 0)
        return imx_fail(IMBREX_INVALID, "desc.soft_cap is negative: want 0 for none, or more");
    if (d->batch * d->kv_heads > INT32_MAX / ITEMS)
        return imx_fail(IMBREX_UNSUPPORTED, "desc.batch x kv_heads is %lld x %d: want at most %d",
                        (long long)d->batch, d->kv_heads, INT32_MAX / ITEMS);
    return IMBREX_OK;
}

static imbrex_status check_size(const char *name, int64_t value, int64_t least, const char *why)
{
    if (value < least)
        return imx_fail(IMBREX_INVALID, "args.%s is %lld: want at least %lld%s", name,
                        (long long)value, (long long)least, why);
    return IMBREX_OK;
}

static imbrex_status check_run(const imx_asked *asked, int64_t m)
{
    const imbrex_decode_desc *d = asked->desc;
    const imbrex_decode_args *args = asked->args;
    (void)m;
    if (args->cache_stride)
        IMX_TRY(check_size("cache_stride", args->cache_stride, dense_stride(d),
                           ", the elements of a page, or of a sequence where there are no pages"));
    IMX_TRY(check_size("page_count", args->page_count, 0, ""));
    IMX_TRY(check_size("page_stride", args->page_stride, 0, ""));
    if (!d->page && (args->page_count || args->page_stride))
        return imx_fail(IMBREX_INVALID,
                        "args.page_count and args.page_stride must be 0: desc.page is 0");
    return IMBREX_OK;
}

static imx_part part_of(const imx_op *op, const void *desc, const imbrex_field *operand,
                        const char **because)
{
    const imbrex_decode_desc *d = desc;
    size_t at = operand->offset;
    (void)op;
    if (at == offsetof(imbrex_decode_args, v) && is_mla(d)) {
        *because = "desc.value_dim is less than desc.head_dim, and v the beginning of k";
        return IMX_MUST_NOT;
    }
    if (at == offsetof(imbrex_decode_args, pages)) {
        *because = d->page ? "desc.page is not 0" : "desc.page is 0";
        return d->page ? IMX_MUST : IMX_MUST_NOT;
    }
    if (at == offsetof(imbrex_decode_args, scale_k) ||
        at == offsetof(imbrex_decode_args, scale_v)) {
        bool scaled = d->cache == IMBREX_E4M3;
        bool has = scaled && (at == offsetof(imbrex_decode_args, scale_k) || !is_mla(d));
        *because = scaled ? "desc.cache is e4m3" : "desc.cache is not e4m3";
        if (scaled && !has)
            *because = "v is the beginning of k, and scale_k its scale";
        return has ? IMX_MUST : IMX_MUST_NOT;
    }
    return IMX_AS_DECLARED;
}

/* ---- the operator ---------------------------------------------------------------------------- */

enum {
    ROWS = IMX_OF_OP,
    HEADS,
    OWN_HEADS,
    VALUES,
    DIM,
    QUERIES,
    PAGES, /* of the cache, or sequences */
    SECOND,
    THIRD, /* of a page: its tokens and heads, as they lie */
    PAGE_STRIDE,
    ONE
};

/* Of a run that is not known: the fewest that can be. */
static int64_t pages_of(const imx_asked *asked, int64_t m)
{
    const imbrex_decode_desc *d = asked->desc;
    const imbrex_decode_args *args = asked->args;
    return !d->page ? m : args ? args->page_count : 1;
}

static int64_t extent(const imx_asked *asked, int64_t m, int which)
{
    const imbrex_decode_desc *d = asked->desc;
    const imbrex_decode_args *args = asked->args;
    int64_t tokens = d->page ? d->page : d->context;
    switch (which) {
    case ROWS:
        return m * imx_merge_queries(d);
    case HEADS:
        return d->heads;
    case OWN_HEADS:
        return imx_merge_own_heads(asked);
    case VALUES:
        return d->value_dim;
    case DIM:
        return d->head_dim;
    case QUERIES:
        return imx_merge_queries(d);
    case PAGES:
        return pages_of(asked, m);
    case SECOND:
        return d->heads_first ? d->kv_heads : tokens;
    case THIRD:
        return d->heads_first ? tokens : d->kv_heads;
    case PAGE_STRIDE:
        return !d->page ? 0 : args ? args->page_stride : 1;
    default:
        return 1;
    }
}

static void timed_sizes(const imx_asked *asked, void *args)
{
    const imbrex_decode_desc *d = asked->desc;
    imbrex_decode_args *a = args;
    if (!d->page)
        return;
    a->page_stride = imx_ceil_div(d->context, d->page);
    a->page_count = d->batch * a->page_stride;
}

/* All tokens that there is room for; pages in no order. */
static void timed_integers(const imx_asked *asked, const imbrex_field *operand, int64_t count,
                           int32_t *to)
{
    enum { PRIME = 1000003 };
    const imbrex_decode_desc *d = asked->desc;
    bool pages = operand->offset == offsetof(imbrex_decode_args, pages);
    for (int64_t i = 0; i < count; i++)
        to[i] = (int32_t)(!pages ? d->context : count % PRIME ? i * PRIME % count : i);
}

static imbrex_dtype cache_of(const imx_asked *asked)
{
    return ((const imbrex_decode_desc *)asked->desc)->cache;
}

#define FIELD(field, ...) IMX_FIELD(imbrex_decode_desc, field, __VA_ARGS__)
#define SIZE(field, text) IMX_FIELD(imbrex_decode_args, field, IMX_SIZE, "int64", 0, text)

static const imbrex_field desc_rows[] = {
    FIELD(batch, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED | IMBREX_FIELD_RUN,
          "sequences of a run, at most"),
    FIELD(context, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED, "tokens of a sequence on one rank"),
    FIELD(heads, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED, "of q"),
    FIELD(kv_heads, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED, "of the cache"),
    FIELD(head_dim, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED, "of q and k"),
    FIELD(value_dim, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED, "of v and o"),
    FIELD(queries, IMX_COUNT, "int", 0, "rows of a sequence; 0: 1"),
    FIELD(page, IMX_COUNT, "int", 0, "tokens of a page; 0: there are no pages"),
    FIELD(heads_first, IMX_FLAG, "int", 0, "1: a page is [kv_heads, page, head_dim]"),
    FIELD(dtype, IMX_DTYPE, "dtype", 0, "of q and o"),
    { "cache",
      "cache",
      "of k and v; none: as dtype",
      NULL,
      offsetof(imbrex_decode_desc, cache),
      sizeof(imbrex_dtype),
      0,
      { IMX_DTYPE, IMX_MAY_BE_8_BIT },
      { 0 } },
    FIELD(replicate, IMX_FLAG, "int", 0, "1: each rank gets all heads, not its own alone"),
    FIELD(scale, IMX_REAL, "float", 0, "of scores; 0: 1/sqrt(head_dim)"),
    FIELD(soft_cap, IMX_REAL, "float", 0, "of scores; 0: none"),
    FIELD(algorithm, IMX_NAME, "string", 0, "how; none: chosen"),
    FIELD(sms, IMX_COUNT, "int", 0, "SMs or threads that a run may hold; 0: all"),
};

#define OPERAND(field, ...) IMX_OPERAND_OF(imbrex_decode_args, field, __VA_ARGS__)
#define OPTIONAL_IN         (IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL)

static const imbrex_field args_rows[] = {
    OPERAND(q, IMX_MATRIX, "matrix", IMBREX_FIELD_INPUT, false, IMX_APART, "[m, heads, head_dim]",
            "queries, alike on all ranks", ROWS, HEADS, DIM),
    OPERAND(k, IMX_RESULT, "result", IMBREX_FIELD_INPUT, false, IMX_APART,
            "[pages, page, kv_heads, head_dim]", "this rank's keys", PAGES, SECOND, THIRD, DIM),
    OPERAND(v, IMX_RESULT, "result", IMBREX_FIELD_INPUT, false, IMX_APART,
            "[pages, page, kv_heads, head_dim]", "this rank's values", PAGES, SECOND, THIRD, DIM),
    OPERAND(scale_k, IMX_FLOATS, "float32", OPTIONAL_IN, false, IMX_APART, "[1]", "of k", ONE),
    OPERAND(scale_v, IMX_FLOATS, "float32", OPTIONAL_IN, false, IMX_APART, "[1]", "of v", ONE),
    OPERAND(pages, IMX_I32, "int32", OPTIONAL_IN, false, IMX_APART, "[batch, page_stride]",
            "of each sequence here", IMX_ROWS, PAGE_STRIDE),
    OPERAND(lengths, IMX_I32, "int32", IMBREX_FIELD_INPUT, false, IMX_APART, "[batch]",
            "tokens of each sequence here", IMX_ROWS),
    OPERAND(visible, IMX_I32, "int32", OPTIONAL_IN, false, IMX_APART, "[batch, queries]",
            "how many of those each query sees", IMX_ROWS, QUERIES),
    OPERAND(hidden, IMX_I32, "int32", OPTIONAL_IN, false, IMX_APART, "[batch, queries]",
            "how many of the first it does not", IMX_ROWS, QUERIES),
    OPERAND(sinks, IMX_FLOATS, "float32", OPTIONAL_IN, false, IMX_APART, "[heads]",
            "scores of one more token without a value", HEADS),
    OPERAND(o, IMX_MATRIX, "matrix", IMBREX_FIELD_OUTPUT, false, IMX_APART,
            "[m, own heads, value_dim]", "softmax over all tokens, times v", ROWS, OWN_HEADS,
            VALUES),
    OPERAND(lse, IMX_FLOATS, "float32", IMBREX_FIELD_OUTPUT | IMBREX_FIELD_OPTIONAL, false,
            IMX_APART, "[m, own heads]", "its logarithm", ROWS, OWN_HEADS),
    IMX_FIELD(imbrex_decode_args, natural, IMX_FLAG, "int", 0, "1: lse to base e; 0: to base 2"),
    SIZE(page_count, "pages of k and v"),
    SIZE(cache_stride, "elements from page to page; 0: dense"),
    SIZE(page_stride, "from sequence to sequence in pages"),
    IMX_FIELD(imbrex_decode_args, batch, IMX_SIZE, "int64", IMBREX_FIELD_RUN,
              "sequences of this run; 0: all of the plan's"),
};

const imx_op imx_op_flash_decode = {
    IMX_OP_OF(flash_decode, "o = attention over a cache that lies on all ranks", imbrex_decode_desc,
              desc_rows, imbrex_decode_args, args_rows),
    .takes = &imx_args_decode,
    .width = imx_merge_width,
    .scatters = true,
    .check = check,
    .check_run = check_run,
    .part = part_of,
    .result = cache_of,
    .extent = extent,
    .timed_sizes = timed_sizes,
    .timed_integers = timed_integers,
    .algorithms = IMX_MERGE_ALGORITHMS(lay_out_sequential, lay_out_nodes),
};

imbrex_status imbrex_plan_flash_decode(imbrex_group *group, const imbrex_decode_desc *desc,
                                       imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_flash_decode, desc, plan);
}
