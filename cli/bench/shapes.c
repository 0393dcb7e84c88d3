/* shapes.c - one table of options for two commands, so that sizes, type and ranks that are not
 * given are the same for both; and lists of shapes, split at commas, semicolons and lines. */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "matrix.h"

/* ---- The options ----------------------------------------------------------------------------- */

const option *bench_words_options(bench_words *w, const option *own)
{
    const double largest = 1 << 24;
    const option rows[BENCH_WORDS_ROWS] = {
        { "m", 0, .integer = &w->m, .metavar = "M", .min = 1, .max = largest,
          .help = "rows, of all ranks together (1024; on a GPU 4096)" },
        { "n", 0, .integer = &w->n, .metavar = "N", .min = 1, .max = largest,
          .help = "columns of one rank's c (1024; on a GPU 4096)" },
        { "k", 0, .integer = &w->k, .metavar = "K", .min = 1, .max = largest,
          .help = "inner size of one rank's product (1024; on a GPU 4096)" },
        { "dtype", 0, .text = &w->dtype, .metavar = "TYPE", .choices = "bf16|f16|f32|e4m3",
          .help = "bf16, f16, f32 or, of products, e4m3 (f32; on a GPU bf16)" },
        { "scaling", 0, .text = &w->scaling, .metavar = "HOW", .choices = "tensor|row|block",
          .help = "what has a scale of e4m3: a tensor, a row or a block of 128 (row)" },
        { "layout", 0, .text = &w->layout, .metavar = "ORDER", .choices = "nk|kn",
          .help = "how b lies: nk or kn (nk)" },
        { "shapes", 0, .text = &w->sizes, .metavar = "LIST",
          .help = "several: m,n,k;m,n,k;... or a file with one m,n,k a line;\n"
                  "op:m,n,k is for one operator alone" },
        { "total", 0, .flag = &w->total,
          .help = "n of a product that gathers, k of one that sums over ranks, are\nof all of them "
                  "together" },
        { "experts", 0, .integer = &w->experts, .metavar = "E", .min = 1, .max = 1024,
          .help = "of mixtures of experts: of all ranks together (8); m is tokens then" },
        { "top-k", 0, .integer = &w->top_k, .metavar = "K", .min = 1, .max = 64,
          .help = "experts of a token (2)" },
        { "expert-parallel", 0, .text = &w->parallel, .metavar = "HOW", .choices = "tensor|whole",
          .help = "every rank has a part of every expert, or whole ones (tensor)" },
        { "skew", 0, .real = &w->skew, .metavar = "S", .min = 0, .max = 8,
          .help = "expert e is chosen as if in proportion to 1 / (e + 1)^S (0)" },
        { "heads", 0, .integer = &w->heads, .metavar = "H", .min = 1, .max = 65536,
          .help = "of attention's q (64); m is sequences then, and n tokens that a rank\nhas of "
                  "each" },
        { "kv-heads", 0, .integer = &w->kv_heads, .metavar = "H", .min = 1, .max = 65536,
          .help = "of its cache (8)" },
        { "head-dim", 0, .integer = &w->head_dim, .metavar = "D", .min = 1, .max = 1024,
          .help = "of its heads (128); 576 is MLA" },
        { "page", 0, .integer = &w->page, .metavar = "N", .min = 0, .max = 1 << 20,
          .help = "tokens of a page of its cache (0: no pages)" },
        { "chunk-rows", 0, .integer = &w->chunk_rows, .metavar = "N", .min = 0, .max = largest,
          .help = "rows that travel under one signal, rounded up to whole\n"
                  "tiles (0: chosen)" },
        { "norm", 0, .flag = &w->norm,
          .help = "of sums over ranks: add a residual and norm the rows" },
        { "sms", 0, .integer = &w->sms, .metavar = "N", .min = 0, .max = 1024,
          .help = "SMs, or threads on cpu, of a rank (0: chosen)" },
        { .more = own },
    };
    memcpy(w->rows, rows, sizeof rows);
    return w->rows;
}

/* A CPU is to be done soon, a GPU to have work for all of it. */
bench_shape bench_words_shape(const bench_words *w, bool gpu)
{
    const int64_t size = gpu ? 4096 : 1024;
    const int64_t rows = w->plan_m && w->plan_m < size ? w->plan_m : size;
    const char *dtype = w->dtype ? w->dtype : gpu ? "bf16" : "f32";
    bool scaled = strcmp(dtype, "e4m3") == 0;
    const char *scaling = w->scaling ? w->scaling : scaled ? "row" : "unscaled";
    return (bench_shape){
        .m = w->m ? w->m : rows,
        .n = w->n ? w->n : size,
        .k = w->k ? w->k : size,
        .dtype = (imbrex_dtype)options_index(matrix_dtype_names, MATRIX_DTYPES, dtype),
        .layout = (imbrex_layout)(w->layout ? options_index(bench_layout_names, 2, w->layout) : 0),
        .scaling = (imbrex_scaling)options_index(bench_scaling_names, 4, scaling),
        .chunk_rows = (int)w->chunk_rows,
        .sms = (int)w->sms,
        .experts = w->experts ? (int)w->experts : 8,
        .top_k = w->top_k ? (int)w->top_k : 2,
        .whole = w->parallel && strcmp(w->parallel, "whole") == 0,
        .skew = w->skew,
        .heads = w->heads ? (int)w->heads : 64,
        .kv_heads = w->kv_heads ? (int)w->kv_heads : 8,
        .head_dim = w->head_dim ? (int)w->head_dim : 128,
        .page = (int)w->page,
        .bias = w->bias,
        .norm = w->norm,
    };
}

/* ---- Lists of shapes ------------------------------------------------------------------------- */

enum { OPS_MOST = 16, SIZE_MOST = 1 << 24 };

typedef struct reader {
    const options_page *page;
    const bench_words *words;
    const bench_op *ops[OPS_MOST];
    int op_count;
    bench_shapes *out;
} reader;

static const bench_op *find_op(reader *r, const char *name)
{
    char names[BENCH_OPS_TEXT];
    const bench_op *op = bench_op_find(name);
    bench_op_names(r->words->plans ? BENCH_OPS_PLANS : BENCH_OPS_ALL, ", ", names, sizeof names);
    if (!op)
        options_wrong(r->page, "no operator '%s': want one of %s", name, names);
    return op;
}

static bool read_ops(reader *r, char *list)
{
    char *rest = NULL;
    for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        const bench_op *op = find_op(r, word);
        if (!op)
            return false;
        if (r->op_count == OPS_MOST) {
            options_wrong(r->page, "more than %d operators", OPS_MOST);
            return false;
        }
        r->ops[r->op_count++] = op;
    }
    return true;
}

/* sizes NULL: the words'. */
static bool set(reader *r, const bench_op *op, const int64_t *sizes, bool gpu, bench_shape *shape)
{
    int ranks = r->words->total && r->words->ranks ? (int)r->words->ranks : 1;
    *shape = bench_words_shape(r->words, gpu);
    shape->op = op;
    shape->m = op->meets ? 1 : sizes ? sizes[0] : shape->m;
    shape->n = op->meets ? 1 : sizes ? sizes[1] : shape->n;
    shape->k = !op->product ? 0 : sizes ? sizes[2] : shape->k;
    shape->m_least = r->words->plans || op->experts || op->states
                         ? 0
                         : shape->m; /* who compiles may run any; bench runs m */
    shape->plan_m = op->meets || op->alone ? 0 : r->words->plan_m;
    shape->whole = shape->whole || bench_op_exchanges(op);
    if (r->words->scaling && shape->dtype != IMBREX_E4M3) {
        options_wrong(r->page, "--scaling %s: only e4m3 is scaled", r->words->scaling);
        return false;
    }
    if (shape->norm && !bench_op_norms(op)) {
        options_wrong(r->page, "--norm: %s adds up no rows over ranks", op->name);
        return false;
    }
    if (shape->dtype == IMBREX_E4M3 && !op->product) {
        options_wrong(r->page, "--dtype e4m3: %s does not multiply", op->name);
        return false;
    }
    if (op->experts && shape->scaling == IMBREX_PER_TENSOR) {
        options_wrong(r->page, "--scaling tensor: %s has row and block", op->name);
        return false;
    }
    if (shape->plan_m && shape->plan_m < shape->m) {
        options_wrong(r->page, "--plan-m %lld: a shape has %lld rows", (long long)shape->plan_m,
                      (long long)shape->m);
        return false;
    }
    bool whole = op->alone || !op->product || (op->experts && shape->whole);
    int64_t *cut = whole ? NULL : op->a_is_shard ? &shape->n : &shape->k;
    if (cut && *cut % ranks) {
        options_wrong(r->page, "--total: %s = %lld does not divide by %d ranks",
                      op->a_is_shard ? "n" : "k", (long long)*cut, ranks);
        return false;
    }
    if (cut)
        *cut /= ranks;
    return true;
}

static bool add(reader *r, const bench_op *op, const int64_t *sizes)
{
    int at = r->out->count;
    if (at == BENCH_SHAPES) {
        options_wrong(r->page, "more than %d shapes", BENCH_SHAPES);
        return false;
    }
    r->out->count++;
    return set(r, op, sizes, false, &r->out->list[false][at]) &&
           set(r, op, sizes, true, &r->out->list[true][at]);
}

/* "m,n,k" or "m,n", or with blanks; returns how many, 0: something else. */
static int read_sizes(const char *text, int64_t sizes[3])
{
    int count = 0;
    while (count < 3) {
        char *end;
        errno = 0;
        long long size = strtoll(text, &end, 10);
        if (end == text || errno || size < 1 || size > SIZE_MOST)
            return 0;
        sizes[count++] = size;
        text = end + strspn(end, " \t\r");
        if (!*text)
            return count;
        text += *text == ',';
    }
    return 0;
}

static bool add_item(reader *r, const char *item)
{
    const char *colon = strchr(item, ':');
    char name[32] = "";
    int64_t sizes[3] = { 0 };
    if (colon)
        snprintf(name, sizeof name, "%.*s", (int)(colon - item), item);
    const bench_op *only = colon ? find_op(r, name) : NULL;
    if (colon && !only)
        return false;
    int given = read_sizes(colon ? colon + 1 : item, sizes);
    int ops = only ? 1 : r->op_count;
    for (int i = 0; i < ops && given >= 2; i++) {
        const bench_op *op = only ? only : r->ops[i];
        if (op->product && given < 3)
            given = 0;
        else if (!add(r, op, sizes))
            return false;
    }
    if (given < 2 || ops == 0)
        options_wrong(r->page, "shape '%s': want m,n,k%s, sizes from 1 to %d", item,
                      ops ? "" : " after an operator and a colon", SIZE_MOST);
    return given >= 2 && ops > 0;
}

static bool add_items(reader *r, char *text)
{
    char *rest = NULL;
    for (char *item = strtok_r(text, ";\n", &rest); item; item = strtok_r(NULL, ";\n", &rest)) {
        char *comment = strchr(item, '#');
        if (comment)
            *comment = '\0';
        item += strspn(item, " \t\r");
        if (*item && !add_item(r, item))
            return false;
    }
    return true;
}

static bool has_shape(const bench_shapes *shapes, const bench_op *op)
{
    for (int i = 0; i < shapes->count; i++)
        if (shapes->list[0][i].op == op)
            return true;
    return false;
}

/* NULL, after a sentence, if not all of it can be read. */
static char *read_file(reader *r, const char *path)
{
    enum { BYTES_MOST = 1 << 16 };
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(BYTES_MOST + 1) : NULL;
    size_t bytes = text ? fread(text, 1, BYTES_MOST + 1, file) : 0;
    bool good = text && !ferror(file) && bytes <= BYTES_MOST;
    if (good)
        text[bytes] = '\0';
    else if (bytes > BYTES_MOST)
        options_wrong(r->page, "--shapes: %s has more than %d bytes: name a smaller file", path,
                      BYTES_MOST);
    else
        options_wrong(r->page, "--shapes: cannot read %s: %s", path, strerror(errno));
    if (file)
        fclose(file);
    if (good)
        return text;
    free(text);
    return NULL;
}

static bool read_sizes_of(reader *r, const char *sizes)
{
    bool list = strpbrk(sizes, ",;") && strpbrk(sizes, "0123456789") && !strchr(sizes, '/');
    char *text = list ? strdup(sizes) : read_file(r, sizes);
    if (list && !text)
        options_wrong(r->page, "out of memory");
    bool good = text && add_items(r, text);
    free(text);
    if (good && r->out->count == 0)
        options_wrong(r->page, "--shapes: there is no shape in %s", sizes);
    return good && r->out->count > 0;
}

int bench_shapes_read(const options_page *page, const bench_words *words, const char *ops,
                      bench_shapes *out)
{
    reader r = { .page = page, .words = words, .out = out };
    char products[BENCH_OPS_TEXT], all[BENCH_OPS_TEXT];
    bench_op_names(BENCH_OPS_PRODUCTS, ",", products, sizeof products);
    bench_op_names(BENCH_OPS_ALL, ", ", all, sizeof all);
    char *names = strdup(ops ? ops : words->plans ? products : "");
    if (!names)
        return options_wrong(page, "out of memory");
    bool good = read_ops(&r, names);
    free(names);
    out->count = 0;
    if (good && words->sizes)
        good = read_sizes_of(&r, words->sizes);
    else if (good && r.op_count == 0)
        return options_wrong(page, "which operator? One of %s", all);
    for (int i = 0; i < r.op_count && good; i++) {
        const bench_op *op = r.ops[i];
        if (!words->sizes)
            good = add(&r, op, NULL);
        else if (ops && !has_shape(out, op))
            return options_wrong(page, "--shapes has none for %s: add one, or leave %s out",
                                 op->name, op->name);
    }
    return good ? 0 : OPTIONS_WRONG;
}
