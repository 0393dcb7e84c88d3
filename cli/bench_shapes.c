/* bench_shapes.c - splits lists at commas, semicolons and lines. */
#include "bench_shapes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPES_MOST = 256, OPS_MOST = 16, SIZE_MOST = 1 << 24 };

typedef struct reader {
    const bench_op *ops[OPS_MOST];
    int op_count, total;
    bool asked, plans; /* asked: the operators are the command line's */
    const bench_shape *like;
    bench_shapes *out;
    char *wrong;
    size_t size;
} reader;

static const bench_op *find_op(reader *r, const char *name)
{
    char names[128];
    const bench_op *op = bench_op_find(name);
    bench_op_names(r->plans, names, sizeof names);
    if (!op)
        snprintf(r->wrong, r->size, "no operator '%s': want one of %s", name, names);
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
            snprintf(r->wrong, r->size, "more than %d operators", OPS_MOST);
            return false;
        }
        r->ops[r->op_count++] = op;
    }
    return true;
}

static bool add(reader *r, const bench_op *op, const int64_t sizes[3])
{
    if (r->out->count == SHAPES_MOST) {
        snprintf(r->wrong, r->size, "more than %d shapes", SHAPES_MOST);
        return false;
    }
    bench_shape shape = *r->like;
    shape.op = op;
    shape.m = op->meets ? 1 : sizes[0];
    shape.n = op->meets ? 1 : sizes[1];
    shape.k = op->product ? sizes[2] : 0;
    int64_t *cut = op->alone || !op->product ? NULL : op->a_is_share ? &shape.n : &shape.k;
    if (cut && *cut % r->total) {
        snprintf(r->wrong, r->size, "--total: %s = %lld does not divide by %d ranks",
                 op->a_is_share ? "n" : "k", (long long)*cut, r->total);
        return false;
    }
    if (cut)
        *cut /= r->total;
    r->out->list[r->out->count++] = shape;
    return true;
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
        snprintf(r->wrong, r->size, "shape '%s': want m,n,k%s, sizes from 1 to %d", item,
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
        if (shapes->list[i].op == op)
            return true;
    return false;
}

/* NULL, with a sentence in r->wrong, if not all of it can be read. */
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
        snprintf(r->wrong, r->size, "--shapes: %s has more than %d bytes: name a smaller file",
                 path, BYTES_MOST);
    else
        snprintf(r->wrong, r->size, "--shapes: cannot read %s: %s", path, strerror(errno));
    if (file)
        fclose(file);
    if (good)
        return text;
    free(text);
    return NULL;
}

static bool read_all(reader *r, const char *sizes)
{
    const bench_shape *like = r->like;
    const int64_t given[3] = { like->m, like->n, like->k };
    for (int i = 0; i < r->op_count && !sizes; i++)
        if (!add(r, r->ops[i], given))
            return false;
    if (!sizes) {
        snprintf(r->wrong, r->size, "which operator? \"ag_gemm\" is one");
        return r->out->count > 0;
    }
    bool list = strpbrk(sizes, ",;") && strpbrk(sizes, "0123456789") && !strchr(sizes, '/');
    char *text = list ? strdup(sizes) : read_file(r, sizes);
    bool good = text && add_items(r, text);
    free(text);
    if (good && r->out->count == 0) {
        snprintf(r->wrong, r->size, "--shapes: there is no shape in %s", sizes);
        good = false;
    }
    for (int i = 0; i < r->op_count && r->asked && good; i++) {
        good = has_shape(r->out, r->ops[i]);
        if (!good)
            snprintf(r->wrong, r->size, "--shapes has none for %s: add one, or leave %s out",
                     r->ops[i]->name, r->ops[i]->name);
    }
    return good;
}

bool bench_shapes_read(const char *ops, const char *sizes, const bench_shape *like, int total,
                       bool plans, bench_shapes *out, char *wrong, size_t size)
{
    *out = (bench_shapes){ .list = calloc(SHAPES_MOST, sizeof *out->list) };
    reader r = { .total = total,
                 .asked = ops != NULL,
                 .plans = plans,
                 .like = like,
                 .out = out,
                 .wrong = wrong,
                 .size = size };
    char *names = strdup(ops ? ops : plans ? "ag_gemm,gemm_rs" : "");
    snprintf(wrong, size, "out of memory");
    bool good = names && out->list && read_ops(&r, names) && read_all(&r, sizes);
    free(names);
    if (good)
        return true;
    free(out->list);
    *out = (bench_shapes){ 0 };
    return false;
}
