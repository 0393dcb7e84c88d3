/* decode_cases.c - inputs and results are one piece of memory on the host, and on the device. */
#include "decode_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "decode_reference.h"
#include "ranks.h"
#include "reference.h"
#include "sanitized.h"

enum { QUERIES_MOST = 8, ALGORITHMS = 3, RANKS_MOST = 4 };

static const decode_case cases[] = {
    { 4, 2, 64, 64, 1, 16, 0, F32, F32, 70, 0, 0, 0, 0, 0, 0, 0, 3 },
    { 4, 1, 64, 64, 1, 1, 0, BF16, BF16, 40, 0, 0, 0, 0, 0, 1, 1, 3 },
    { 16, 1, 128, 128, 1, 32, 1, F16, F16, 600, 0, 0, 0, 0, 1, 0, 0, 3 },
    { 6, 3, 256, 256, 2, 7, 1, F32, F32, 65, 24, 0.05f, 5, 1, 1, 0, 1, 3 },
    { 5, 5, 64, 64, 1, 0, 0, BF16, BF16, 300, 0, 0, 0, 0, 0, 0, 0, 3 },
    { 4, 2, 64, 64, 8, 0, 1, F32, F32, 90, 64, 0, 0, 1, 0, 1, 0, 3 },
    { 8, 1, 576, 512, 1, 64, 0, BF16, BF16, 130, 0, 0.07f, 0, 0, 0, 0, 0, 3 },
    { 4, 2, 128, 128, 1, 16, 0, BF16, E4M3, 100, 0, 0, 0, 0, 0, 0, 0, 3 },
    { 16, 2, 128, 128, 1, 16, 0, BF16, BF16, 600, 0, 0, 0, 0, 0, 0, 0, 3 }, /* several splits */
    { 8, 1, 64, 64, 2, 0, 1, F16, F16, 700, 0, 0, 0, 1, 1, 0, 1, 3 },
    { 16, 1, 128, 128, 4, 5, 0, BF16, BF16, 90, 3, 0, 4, 1, 0, 0, 0, 3 }, /* off 16 bytes */
    { 6, 2, 256, 256, 1, 16, 1, BF16, BF16, 300, 0, 0, 0, 0, 0, 0, 0, 3 },
    { 20, 1, 576, 512, 2, 64, 0, BF16, BF16, 140, 0, 0.07f, 0, 1, 0, 0, 0, 3 },
    { 9, 1, 576, 512, 2, 16, 0, F16, F16, 70, 4, 0.07f, 0, 0, 1, 0, 1, 3 },
    { 2, 1, 64, 64, 1, 2, 0, BF16, BF16, 6, 0, 0, 0, 0, 0, 0, 0, 1100 }, /* sequences */
    { 2, 2, 64, 64, 1, 0, 0, BF16, BF16, 140, 0, 0, 0, 0, 0, 0, 0, 60 }, /* claimed */
    { 3, 1, 576, 512, 2, 16, 0, F32, E4M3, 64, 0, 0.02f, 0, 1, 0, 0, 0, 3 },
    { 2, 1, 64, 64, 1, 0, 0, BF16, BF16, 6, 0, 0, 0, 0, 0, 0, 0, 1100 },      /* without pages */
    { 6, 2, 64, 64, 2, 16, 0, BF16, BF16, 70, 3, 0, 0, 1, 0, 0, 0, 3 },       /* off 16 bytes */
    { 4, 2, 64, 64, 2, 16, 0, BF16, BF16, 600, 0, 0, 0, APART, 0, 0, 0, 40 }, /* some whole */
    { 16, 1, 576, 512, 1, 16, 0, BF16, BF16, 390, 0, 0.07f, 0, 0, 0, 0, 0, 8 },
    { 3, 1, 576, 512, 2, 0, 0, F16, F16, 330, 0, 0.07f, 2, APART, 0, 0, 0, 8 },
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- this rank's memory ---------------------------------------------------------------------- */

/* On the host; the same lies at `device` + what it lies behind `host`. */
typedef struct inputs {
    char *host, *device;
    size_t bytes;
    char *o, *q, *k, *v;
    float *lse, *sinks, *scales;
    int32_t *pages, *lengths, *visible, *hidden;
    int64_t per_sequence, page_count, stride;
} inputs;

static size_t cache_bytes(const decode_case *c)
{
    return c->cache == E4M3 ? 1 : element_bytes(c->cache);
}

static int32_t page_of(const inputs *x, int s, int64_t j)
{
    return (int32_t)((s * x->per_sequence + j) * 11 % x->page_count); /* not in order */
}

static void put_token(const decode_case *c, const inputs *x, int r, int s, int64_t t)
{
    int64_t tokens = c->page ? c->page : c->context, in = c->page ? t % c->page : t;
    int64_t base = (c->page ? page_of(x, s, t / c->page) : s) * x->stride;
    for (int h = 0; h < c->kv_heads; h++) {
        int64_t row = c->heads_first ? h * tokens + in : in * c->kv_heads + h;
        for (int i = 0; i < c->head_dim; i++) {
            int64_t at = base + row * c->head_dim + i;
            int64_t value = (((int64_t)s * c->context + t) * c->kv_heads + h) * c->head_dim + i;
            for (int v = 0; v < (x->v ? 2 : 1); v++) {
                char *to = v ? x->v : x->k;
                if (c->cache == E4M3)
                    to[at] = (char)decode_code((v ? 60 : 20) + r, value);
                else
                    element_set(c->cache, to, at, decode_cache_value(c, v, r, s, t, h, i));
            }
        }
    }
}

static int take_memory(imbrex_group *group, const decode_case *c, inputs *x)
{
    size_t rows = (size_t)(c->batch * c->queries), heads = rows * (size_t)c->heads;
    size_t cache = (size_t)(x->page_count * x->stride) * cache_bytes(c);
    const size_t bytes[] = {
        heads * (size_t)c->value_dim * element_bytes(c->dtype),
        heads * sizeof(float),
        heads * (size_t)c->head_dim * element_bytes(c->dtype),
        cache,
        c->head_dim == c->value_dim ? cache : 0,
        (size_t)c->heads * sizeof(float),
        2 * sizeof(float),
        (size_t)(c->batch * x->per_sequence) * sizeof(int32_t),
        (size_t)c->batch * sizeof(int32_t),
        rows * sizeof(int32_t),
        rows * sizeof(int32_t),
    };
    enum { PIECES = sizeof bytes / sizeof *bytes };
    char *at[PIECES];
    void *device;
    for (int i = 0; i < PIECES; i++)
        x->bytes += (bytes[i] + 255) / 256 * 256;
    RANK_OK(imbrex_mem_alloc(group, x->bytes, &device));
    x->device = device;
    x->host = calloc(1, x->bytes);
    at[0] = x->host;
    for (int i = 1; i < PIECES; i++)
        at[i] = at[i - 1] + (bytes[i - 1] + 255) / 256 * 256;
    x->o = at[0];
    x->lse = (float *)(void *)at[1];
    x->q = at[2];
    x->k = at[3];
    x->v = bytes[4] ? at[4] : NULL;
    x->sinks = (float *)(void *)at[5];
    x->scales = (float *)(void *)at[6];
    x->pages = (int32_t *)(void *)at[7];
    x->lengths = (int32_t *)(void *)at[8];
    x->visible = (int32_t *)(void *)at[9];
    x->hidden = (int32_t *)(void *)at[10];
    return 0;
}

/* What is no token's is NaN, and what no token needs of a page table, also if APART, no page. */
static int take(imbrex_group *group, const decode_case *c, inputs *x)
{
    int r = imbrex_group_rank(group);
    int64_t rows = c->batch * c->queries, tokens = c->page ? c->page : c->context;
    *x = (inputs){ .per_sequence = c->page ? (c->context + c->page - 1) / c->page : 1 };
    x->page_count = c->batch * x->per_sequence + 1;
    x->page_count += x->page_count % 11 == 0;
    x->stride = tokens * c->kv_heads * c->head_dim + c->gap;
    if (take_memory(group, c, x))
        return 1;
    memset(x->k, c->cache == E4M3 ? 0x7f : 0xff, (size_t)((char *)x->sinks - x->k));
    x->scales[0] = decode_scale_k;
    x->scales[1] = decode_scale_v;
    for (int64_t i = 0; i < rows * c->heads * c->head_dim; i++)
        element_set(c->dtype, x->q, i, decode_q_value(c, i));
    for (int s = 0; s < c->batch; s++) {
        x->lengths[s] = (int32_t)decode_length(c, r, s);
        for (int64_t j = 0; j < x->per_sequence; j++)
            x->pages[s * x->per_sequence + j] =
                j * tokens < x->lengths[s] && !(c->windows == APART && x->lengths[s] > 512 &&
                                                j * tokens >= 160 && j * tokens < 256)
                    ? page_of(x, s, j)
                    : (int32_t)(j % 2 ? -7 : 1 << 30);
        for (int64_t t = 0; t < x->lengths[s]; t++)
            put_token(c, x, r, s, t);
        for (int j = 0; j < c->queries; j++) {
            x->visible[s * c->queries + j] = decode_visible(c, r, s, j);
            x->hidden[s * c->queries + j] = decode_hidden(c, r, s, j);
        }
    }
    for (int h = 0; h < c->heads; h++)
        x->sinks[h] = decode_sink(h);
    return 0;
}

static int upload(imbrex_group *group, const inputs *x)
{
    RANK_OK(imbrex_copy(group, x->device, x->host, x->bytes, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static int fetch_results(imbrex_group *group, const inputs *x)
{
    RANK_OK(imbrex_copy(group, x->host, x->device, (size_t)(x->q - x->host), NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void drop(imbrex_group *group, inputs *x)
{
    imbrex_mem_free(group, x->device);
    free(x->host);
}

/* Where it is on the device. */
static void *there(const inputs *x, const void *host)
{
    return x->device + ((const char *)host - x->host);
}

static imbrex_decode_args args_of(const decode_case *c, const inputs *x)
{
    const bool scaled = c->cache == E4M3;
    return (imbrex_decode_args){
        .q = there(x, x->q),
        .k = there(x, x->k),
        .v = x->v ? there(x, x->v) : NULL,
        .scale_k = scaled ? there(x, x->scales) : NULL,
        .scale_v = scaled && x->v ? there(x, x->scales + 1) : NULL,
        .page_count = c->page ? x->page_count : 0,
        .cache_stride = c->gap ? x->stride : 0,
        .page_stride = c->page ? x->per_sequence : 0,
        .pages = c->page ? there(x, x->pages) : NULL,
        .lengths = there(x, x->lengths),
        .visible = c->windows ? there(x, x->visible) : NULL,
        .hidden = c->windows ? there(x, x->hidden) : NULL,
        .sinks = c->sinks ? there(x, x->sinks) : NULL,
        .natural = c->natural,
        .o = there(x, x->o),
        .lse = there(x, x->lse),
    };
}

static imbrex_decode_desc desc_of(const decode_case *c, const char *algorithm)
{
    return (imbrex_decode_desc){
        .batch = c->batch,
        .context = c->context,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .value_dim = c->value_dim,
        .queries = c->queries == 1 ? 0 : c->queries,
        .page = c->page,
        .heads_first = c->heads_first,
        .dtype = c->dtype,
        .cache = c->cache == c->dtype ? IMBREX_DTYPE_DEFAULT : c->cache,
        .replicate = c->replicate,
        .scale = c->scale,
        .soft_cap = c->soft_cap,
        .algorithm = algorithm,
        .sms = 2,
    };
}

/* ---- what it is to be ------------------------------------------------------------------------ */

static int check_heads(imbrex_group *group, const decode_case *c, const inputs *x,
                       const char *algorithm, decode_seen *common)
{
    static const double half_steps[] = { 0, 0x1p-8, 0x1p-11, 0x1p-24 };
    int ranks = imbrex_group_size(group), rank = imbrex_group_rank(group);
    int first = c->replicate ? 0 : (int)rank_row(c->heads, ranks, rank);
    int own = c->replicate ? c->heads : (int)rank_row(c->heads, ranks, rank + 1) - first;
    for (int64_t at = 0; at < c->batch * c->queries * own; at++) {
        decode_want w = decode_expect(c, ranks, at / own, first + (int)(at % own), common);
        for (int i = 0; i < c->value_dim; i++) {
            double have = element_get(c->dtype, x->o, at * c->value_dim + i);
            double within =
                half_steps[c->dtype] * (2.1 * fabs(w.o[i]) + 2 * w.size) + 2e-5 * w.size;
            RANK_CHECK(fabs(have - w.o[i]) <= within + 1e-30,
                       "%s, case %d, rank %d of %d: o[%d, %d] is %.9g, not %.9g", algorithm,
                       (int)(c - cases), rank, ranks, (int)at, i, have, w.o[i]);
        }
        double have = x->lse[at];
        RANK_CHECK(have == w.lse || fabs(have - w.lse) <= 2e-5 * (1 + fabs(w.lse)),
                   "%s, case %d, rank %d of %d: lse[%d] is %.9g, not %.9g", algorithm,
                   (int)(c - cases), rank, ranks, (int)at, have, w.lse);
    }
    return 0;
}

static int check_results(imbrex_group *group, const decode_case *c, const inputs *x,
                         const char *algorithm)
{
    size_t tokens = (size_t)(imbrex_group_size(group) * c->context);
    decode_seen common = { malloc(tokens * (size_t)c->head_dim * sizeof(double)),
                           malloc(tokens * (size_t)c->value_dim * sizeof(double)), -1, 0 };
    int failed = check_heads(group, c, x, algorithm, &common);
    free(common.k);
    free(common.v);
    return failed;
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* Sequence s by itself has the bits that it has among others. */
static int check_alone(imbrex_group *group, imbrex_plan *plan, const decode_case *c,
                       const inputs *x, const char *all, int s)
{
    int ranks = imbrex_group_size(group), rank = imbrex_group_rank(group);
    int own = c->replicate
                  ? c->heads
                  : (int)(rank_row(c->heads, ranks, rank + 1) - rank_row(c->heads, ranks, rank));
    size_t bytes = (size_t)(c->queries * own * c->value_dim) * element_bytes(c->dtype);
    size_t q = (size_t)(s * c->queries * c->heads * c->head_dim) * element_bytes(c->dtype);
    imbrex_decode_args args = args_of(c, x);
    args.batch = 1;
    args.q = (const char *)args.q + q;
    args.pages = c->page ? args.pages + s * x->per_sequence : NULL;
    args.lengths += s;
    args.visible = c->windows ? args.visible + s * c->queries : NULL;
    args.hidden = c->windows ? args.hidden + s * c->queries : NULL;
    if (!c->page) {
        size_t cache = (size_t)(s * x->stride) * cache_bytes(c);
        args.k = (const char *)args.k + cache;
        args.v = x->v ? (const char *)args.v + cache : NULL;
    }
    RANK_OK(imbrex_plan_run_decode(plan, &args, NULL));
    if (fetch_results(group, x))
        return 1;
    RANK_CHECK(memcmp(x->o, all + (size_t)s * bytes, bytes) == 0, "case %d: other bits alone",
               (int)(c - cases));
    return 0;
}

static int check_case(imbrex_group *group, const decode_case *c)
{
    static const char *const one[] = { "sequential", "store", "ll" };
    static const char *const several[] = { "sequential", "hierarchical", NULL };
    int ranks = imbrex_group_size(group), failed = 0;
    bool over_nodes = imbrex_group_node(group, ranks - 1) > 0;
    inputs x;
    if (take(group, c, &x))
        return 1;
    size_t bytes =
        (size_t)(c->batch * c->queries * c->heads * c->value_dim) * element_bytes(c->dtype);
    char *first = calloc(1, bytes);
    for (int a = 0; a < ALGORITHMS && (over_nodes ? several : one)[a] && !failed; a++) {
        const char *algorithm = (over_nodes ? several : one)[a];
        imbrex_decode_desc desc = desc_of(c, algorithm);
        imbrex_decode_args args = args_of(c, &x);
        imbrex_plan *plan;
        memset(x.o, 0, bytes);
        if (upload(group, &x))
            return 1;
        RANK_OK(imbrex_plan_flash_decode(group, &desc, &plan));
        for (int run = 0; run < 3; run++)
            RANK_OK(imbrex_plan_run_decode(plan, &args, NULL));
        if (fetch_results(group, &x))
            return 1;
        if (a == 0) {
            memcpy(first, x.o, bytes);
            failed = check_results(group, c, &x, algorithm);
        }
        RANK_CHECK(memcmp(first, x.o, bytes) == 0, "case %d: other bits by %s", (int)(c - cases),
                   algorithm);
        failed = failed || check_alone(group, plan, c, &x, first, 0) ||
                 check_alone(group, plan, c, &x, first, (int)c->batch - 1);
        imbrex_plan_destroy(plan);
    }
    if (!failed)
        drop(group, &x);
    free(first);
    return failed;
}

/* Sanitizers take ten times as long: some of the cases, others of each number of ranks. */
int decode_cases(imbrex_group *group, void *ctx)
{
    int step = SANITIZED ? 5 : 1;
    (void)ctx;
    for (int i = imbrex_group_size(group) % step; i < CASES; i += step)
        if (check_case(group, &cases[i]))
            return 1;
    return 0;
}

/* ---- what is wrong --------------------------------------------------------------------------- */

#define REFUSED(call, status, part)                                                    \
    do {                                                                               \
        imbrex_status was_ = (call);                                                   \
        RANK_CHECK(was_ == (status) && strstr(imbrex_error(), (part)), "%s: %s",       \
                   imbrex_status_name(was_), was_ == IMBREX_OK ? "" : imbrex_error()); \
    } while (0)

int decode_mistakes(imbrex_group *group, void *ctx)
{
    const decode_case *c = &cases[0];
    imbrex_decode_desc bad = desc_of(c, NULL);
    imbrex_plan *plan;
    (void)ctx;
    bad.heads = 5;
    REFUSED(imbrex_plan_flash_decode(group, &bad, &plan), IMBREX_INVALID,
            "desc.heads is 5 and desc.kv_heads 2: want a multiple");
    bad.heads = 34;
    REFUSED(imbrex_plan_flash_decode(group, &bad, &plan), IMBREX_UNSUPPORTED,
            "want at most 16 heads for each");
    bad = desc_of(c, NULL);
    bad.head_dim = bad.value_dim = 80;
    REFUSED(imbrex_plan_flash_decode(group, &bad, &plan), IMBREX_UNSUPPORTED,
            "desc.head_dim and desc.value_dim are 80 and 80: want both 64, 128 or 256, or 576 and");
    bad = desc_of(c, NULL);
    bad.cache = IMBREX_BF16;
    REFUSED(imbrex_plan_flash_decode(group, &bad, &plan), IMBREX_INVALID,
            "desc.cache is bf16: want desc.dtype, f32, or e4m3");
    bad = desc_of(c, NULL);
    bad.dtype = IMBREX_E4M3;
    REFUSED(imbrex_plan_flash_decode(group, &bad, &plan), IMBREX_INVALID,
            "desc.dtype is 4: want IMBREX_BF16, F16 or F32");
    const imbrex_decode_desc good = desc_of(c, NULL);
    RANK_OK(imbrex_plan_flash_decode(group, &good, &plan));
    inputs x;
    if (take(group, c, &x))
        return 1;
    imbrex_decode_args args = args_of(c, &x);
    args.scale_k = &decode_scale_k;
    REFUSED(imbrex_plan_run_decode(plan, &args, NULL), IMBREX_INVALID,
            "args.scale_k must be NULL: desc.cache is not e4m3");
    args = args_of(c, &x);
    args.pages = NULL;
    REFUSED(imbrex_plan_run_decode(plan, &args, NULL), IMBREX_INVALID, "args.pages is NULL: want");
    args = args_of(c, &x);
    args.cache_stride = 64;
    REFUSED(imbrex_plan_run_decode(plan, &args, NULL), IMBREX_INVALID,
            "args.cache_stride is 64: want at least 2048");
    args = args_of(c, &x);
    args.o_partial = args.q;
    REFUSED(imbrex_plan_run_decode(plan, &args, NULL), IMBREX_INVALID,
            "args.o_partial must be NULL for flash_decode");
    args = args_of(c, &x);
    args.o = there(&x, x.k);
    REFUSED(imbrex_plan_run_decode(plan, &args, NULL), IMBREX_INVALID, "args.o overlaps args.k");
    imbrex_plan_destroy(plan);
    drop(group, &x);
    return 0;
}

/* Rank 1's lengths or pages are out of range: all hear of it.  From 4 on the same of 16 bits; 8: it
 * has no pages and no tokens, which is right. */
int decode_out_of_range(imbrex_group *group, void *ctx)
{
    static const char *const sentences[] = {
        "sequence 2 has a length of 71 there: want from 0 to 70",
        "sequence 0 has a length of -1 there", "sequence 0 has page 1000000 there: want from 0 to",
        "sequence 2 has a length of 70 there: want from 0 to 0"
    };
    const int number = *(const int *)ctx, which = number == 8 ? 3 : number % 4;
    decode_case of = cases[0];
    const decode_case *const c = &of;
    of.dtype = of.cache = number >= 4 ? BF16 : F32;
    const imbrex_decode_desc desc = desc_of(c, "store");
    imbrex_plan *plan;
    inputs x;
    if (take(group, c, &x))
        return 1;
    imbrex_decode_args args = args_of(c, &x);
    if (imbrex_group_rank(group) == 1) {
        if (which < 2)
            x.lengths[which ? 0 : 2] = which ? -1 : 71;
        if (which == 2) {
            x.lengths[0] = 1;
            x.pages[0] = 1000000;
        }
        if (which == 3) {
            args.page_count = 0;
            args.k = args.v = NULL;
            memset(x.lengths, 0, (size_t)c->batch * sizeof *x.lengths);
            x.lengths[2] = number == 8 ? 0 : 70;
        }
    }
    for (int64_t i = x.per_sequence * 2; i < x.per_sequence * 3; i++)
        x.pages[i] = x.pages[i] < 0 || x.pages[i] >= x.page_count ? 0 : x.pages[i];
    if (upload(group, &x))
        return 1;
    RANK_OK(imbrex_plan_flash_decode(group, &desc, &plan));
    imbrex_status status = imbrex_plan_run_decode(plan, &args, NULL);
    for (int i = 0; status == IMBREX_OK && i < (number == 8 ? 1 : 20000); i++) {
        status = imbrex_stream_sync(group, NULL);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    RANK_CHECK(number == 8 ? status == IMBREX_OK
                           : (status == IMBREX_INVALID && strstr(imbrex_error(), "rank 1") &&
                              strstr(imbrex_error(), "flash_decode (plan 1)") &&
                              strstr(imbrex_error(), sentences[which])),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    free(x.host);
    return 0;
}

/* A score that is no number is not passed over. */
int decode_not_a_number(imbrex_group *group, void *ctx)
{
    const decode_case *c = &cases[0];
    const imbrex_decode_desc desc = desc_of(c, "ll");
    imbrex_plan *plan;
    inputs x;
    if (take(group, c, &x))
        return 1;
    imbrex_decode_args args = args_of(c, &x);
    int own = (int)(rank_row(c->heads, 2, imbrex_group_rank(group) + 1) -
                    rank_row(c->heads, 2, imbrex_group_rank(group)));
    (void)ctx;
    if (imbrex_group_rank(group) == 0) /* sequence 0 has 70 tokens there */
        element_set(c->cache, x.k, page_of(&x, 0, 1) * x.stride, NAN);
    if (upload(group, &x))
        return 1;
    RANK_OK(imbrex_plan_flash_decode(group, &desc, &plan));
    RANK_OK(imbrex_plan_run_decode(plan, &args, NULL));
    if (fetch_results(group, &x))
        return 1;
    for (int head = 0; head < 2 * own; head++) { /* of sequences 0 and 1 */
        bool bad = isnan(element_get(c->dtype, x.o, head * c->value_dim));
        RANK_CHECK(bad == (imbrex_group_rank(group) == 0 && head < own), "head %d is %s", head,
                   bad ? "NaN" : "none");
    }
    imbrex_plan_destroy(plan);
    drop(group, &x);
    return 0;
}
