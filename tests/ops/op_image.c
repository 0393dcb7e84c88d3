/* op_image.c - lays out, fills, moves and inspects the matrices of a run. */
#include "op_image.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "kept.h"
#include "ranks.h"

/* Whoever reads a guard shows it; matrices begin where vectors of every device may. */
enum { GUARD = 64, FILL = 0xFF, ALIGNMENT = 256 };

static op_matrix place(op_image *x, int64_t elements, size_t element)
{
    op_matrix m = { .at = x->bytes, .bytes = (size_t)elements * element };
    x->bytes = (m.at + m.bytes + GUARD + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return m;
}

static op_image lay_out(const op_case *c, const op_sizes *n)
{
    size_t e = element_bytes(c->dtype);
    op_image x = { .bytes = ALIGNMENT };
    x.a = place(&x, n->a, e);
    x.b = place(&x, n->b, e);
    x.bias = place(&x, n->bias, e);
    x.c = place(&x, n->c, element_bytes(result_dtype(c)));
    x.gathered = place(&x, n->gathered, e);
    x.residual = place(&x, n->residual, e);
    x.gamma = place(&x, n->gamma, e);
    x.h = place(&x, n->h, e);
    x.normed = place(&x, n->normed, e);
    x.scale = place(&x, n->scale, sizeof(float));
    return x;
}

size_t op_image_bytes(const op_case *c, int ranks)
{
    size_t most = 0;
    for (int r = 0; r < ranks; r++) {
        op_sizes n = op_sizes_of(c, c->m, ranks, r);
        size_t bytes = lay_out(c, &n).bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* A rank with own rows alone has its part of the residual. */
static void fill_norm(const op_case *c, int64_t m, int ranks, int r, const op_sizes *n,
                      const op_image *x)
{
    bool own = !sums_all(c) || c->norm.shard_residual;
    int64_t first = own ? rank_row(m, ranks, r) * c->n : 0;
    input_fill_from(c->dtype, INPUT_RESIDUAL + c->input, c->whole, x->host + x->residual.at, first,
                    n->residual);
    input_fill(c->dtype, INPUT_GAMMA + c->input, c->whole, x->host + x->gamma.at, n->gamma);
    if (c->norm.quant == IMBREX_PER_TENSOR)
        memcpy(x->host + x->scale.at, &(float){ 0.02f }, sizeof(float));
}

op_matrix op_image_h(const op_case *c, const op_image *x)
{
    return c->in_place && c->residual ? x->residual : x->h;
}

op_matrix op_image_c(const op_case *c, const op_image *x)
{
    bool may = strcmp(c->op, "all_reduce") == 0 && !c->norm.quant;
    return c->in_place && may ? x->a : x->c;
}

static void *of_device(const op_image *x, op_matrix m)
{
    return m.bytes ? x->device + m.at : NULL;
}

op_image op_image_take(const op_case *c, int64_t m, int ranks, int r, void *device)
{
    op_sizes n = op_sizes_of(c, m, ranks, r);
    op_image x = lay_out(c, &n);
    x.host = kept_take(x.bytes);
    x.device = device ? device : x.host;
    memset(x.host, FILL, x.bytes);
    int input = c->input + r;
    input_fill(c->dtype, input, c->whole, x.host + x.a.at, n.a);
    input_fill(c->dtype, INPUT_B + input, c->whole, x.host + x.b.at, n.b);
    input_fill(c->dtype, c->input + input_bias(c, r), c->whole, x.host + x.bias.at, n.bias);
    fill_norm(c, m, ranks, r, &n, &x);
    return x;
}

void op_image_copy(op_image *x, const op_image *of)
{
    char *host = x->host ? x->host : kept_take(of->bytes);
    *x = *of;
    x->host = host;
    x->device = of->device == of->host ? host : of->device;
    memcpy(x->host, of->host, x->bytes);
}

void op_image_drop(op_image *x)
{
    kept_drop(x->host);
    x->host = NULL;
}

static int move(imbrex_group *group, const op_image *x, char *to, const char *from)
{
    if (x->device == x->host)
        return 0;
    RANK_OK(imbrex_copy(group, to, from, x->bytes, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

int op_image_upload(imbrex_group *group, const op_image *x)
{
    return move(group, x, x->device, x->host);
}

int op_image_download(imbrex_group *group, const op_image *x)
{
    return move(group, x, x->host, x->device);
}

imbrex_args op_image_args(const op_case *c, const op_image *x, int64_t m)
{
    return (imbrex_args){
        .a = x->a.bytes ? x->device + x->a.at : NULL,
        .b = x->b.bytes ? x->device + x->b.at : NULL,
        .bias = c->bias ? x->device + x->bias.at : NULL,
        .c = x->device + op_image_c(c, x).at,
        .gathered = c->gathered ? x->device + x->gathered.at : NULL,
        .residual = of_device(x, x->residual),
        .gamma = of_device(x, x->gamma),
        .h = of_device(x, op_image_h(c, x)),
        .normed = of_device(x, x->normed),
        .scale_c = of_device(x, x->scale),
        .m = m,
    };
}

enum { COMPLAINTS = 30 };

void op_image_complain(const char *format, ...)
{
    static int count; /* atomic */
    int before = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
    char line[600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (before < COMPLAINTS) /* in one piece: ranks complain at once */
        fprintf(stderr, "    %s\n", line);
    else if (before == COMPLAINTS)
        fprintf(stderr, "    and more than is shown here\n");
}

static bool is_fill(const char *host, size_t from, size_t to)
{
    for (size_t at = from; at < to; at++) {
        if ((unsigned char)host[at] != FILL)
            return false;
    }
    return true;
}

bool op_image_intact(const op_image *x)
{
    const op_matrix all[] = { x->a,     x->b, x->bias,   x->c,     x->gathered,    x->residual,
                              x->gamma, x->h, x->normed, x->scale, { x->bytes, 0 } };
    size_t at = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!is_fill(x->host, at, all[i].at))
            return false;
        at = all[i].at + all[i].bytes;
    }
    return true;
}

const char *op_image_differ(const op_image *x, const op_image *y, size_t *at)
{
    const struct {
        const char *name;
        op_matrix of;
    } all[] = { { "a", x->a },
                { "b", x->b },
                { "bias", x->bias },
                { "c", x->c },
                { "gathered", x->gathered },
                { "residual", x->residual },
                { "gamma", x->gamma },
                { "h", x->h },
                { "normed", x->normed },
                { "scale", x->scale } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *one = x->host + all[i].of.at, *other = y->host + all[i].of.at;
        if (memcmp(one, other, all[i].of.bytes) == 0)
            continue;
        for (*at = 0; one[*at] == other[*at];)
            ++*at;
        return all[i].name;
    }
    return NULL;
}
