/* args.c - what is wrong with the operands of a run, as its operator's row has them. */
#include <string.h>

#include "plan.h"

/* Every operand that some operator has. */
static const struct {
    const char *name;
    size_t at;
} fields[] = {
    { "a", offsetof(imbrex_args, a) },
    { "b", offsetof(imbrex_args, b) },
    { "bias", offsetof(imbrex_args, bias) },
    { "c", offsetof(imbrex_args, c) },
    { "gathered", offsetof(imbrex_args, gathered) },
};

static const void *pointer_at(const imbrex_args *args, size_t at)
{
    const void *pointer;
    memcpy(&pointer, (const char *)args + at, sizeof pointer);
    return pointer;
}

static int64_t extent_of(const imbrex_group *group, imx_extent extent, const imx_shape *s,
                         int64_t m)
{
    int rank = group->rank, ranks = group->size;
    switch (extent) {
    case IMX_ROWS:
        return m;
    case IMX_OWN_ROWS:
        return imx_team_row(m, ranks, rank + 1) - imx_team_row(m, ranks, rank);
    case IMX_N:
        return s->n;
    case IMX_K:
        return s->k;
    case IMX_ONE:
        break;
    }
    return 1;
}

int64_t imx_args_elements(const imbrex_group *group, const imx_operand *o, const imx_shape *s,
                          int64_t m)
{
    return extent_of(group, o->rows, s, m) * extent_of(group, o->cols, s, m);
}

/* An operand of a run: where it lies and how many elements it has. */
typedef struct extent {
    const imx_operand *operand;
    const void *at;
    int64_t elements;
} extent;

static bool overlap(const extent *x, const extent *y, size_t bytes)
{
    return imx_overlap(x->at, (size_t)x->elements * bytes, y->at, (size_t)y->elements * bytes);
}

static imbrex_status check_unlisted(const imx_op *op, const imbrex_args *args)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const imx_operand *o = op->operands;
        while (o->name && o->at != fields[i].at)
            o++;
        if (!o->name && pointer_at(args, fields[i].at))
            return imx_fail(IMBREX_INVALID, "args.%s must be NULL for %s", fields[i].name,
                            op->name);
    }
    return IMBREX_OK;
}

static imbrex_status check_there(const extent *x)
{
    if (x->at || !x->elements || x->operand->flags & IMX_OPTIONAL)
        return IMBREX_OK;
    return imx_fail(IMBREX_INVALID, "args.%s is NULL: want %lld elements", x->operand->name,
                    (long long)x->elements);
}

/* Of an output and what comes before it in the operator's row, or an input behind it. */
static imbrex_status check_apart(const extent *all, int count, size_t bytes)
{
    for (int o = 0; o < count; o++) {
        if (!(all[o].operand->flags & IMX_OUT))
            continue;
        for (int i = 0; i < count; i++) {
            bool pair = i < o || (i > o && !(all[i].operand->flags & IMX_OUT));
            if (pair && overlap(&all[i], &all[o], bytes))
                return imx_fail(IMBREX_INVALID, "args.%s overlaps args.%s", all[o].operand->name,
                                all[i].operand->name);
        }
    }
    return IMBREX_OK;
}

imbrex_status imx_args_check(const imbrex_plan *plan, const imbrex_args *args, int64_t m)
{
    const imx_op *op = plan->op;
    const imx_shape *s = &plan->shape;
    extent all[IMX_OPERANDS];
    int count = 0;
    if (m < 0 || m > s->m)
        return imx_fail(IMBREX_INVALID,
                        "args.m is %lld: want at most desc.m, %lld, or 0 for all of it",
                        (long long)m, (long long)s->m);
    IMX_TRY(imx_status_need_zero(args->reserved, sizeof args->reserved, "args"));
    IMX_TRY(check_unlisted(op, args));
    for (const imx_operand *o = op->operands; o->name; o++) {
        extent *x = &all[count++];
        *x = (extent){ o, pointer_at(args, o->at), imx_args_elements(plan->group, o, s, m) };
        IMX_TRY(check_there(x));
    }
    IMX_TRY(check_apart(all, count, imx_dtype_bytes(s->dtype)));
    for (int i = 0; i < count; i++) {
        if (all[i].elements)
            IMX_TRY(imx_request_aligned(plan->group, "args", all[i].operand->name, all[i].at,
                                        s->dtype, all[i].operand->flags & IMX_WIDE));
    }
    return IMBREX_OK;
}
