/* args.c - the operands of a run, as its operator's rows have them, and what is wrong with them. */
#include "args.h"

#include <string.h>

#include "kernels/team.h"
#include "request.h"

/* Every operand that some operator has. */
static const imx_blank usual[] = {
    IMX_BLANK(imbrex_args, a),        IMX_BLANK(imbrex_args, b),
    IMX_BLANK(imbrex_args, bias),     IMX_BLANK(imbrex_args, c),
    IMX_BLANK(imbrex_args, gathered), IMX_BLANK(imbrex_args, residual),
    IMX_BLANK(imbrex_args, gamma),    IMX_BLANK(imbrex_args, h),
    IMX_BLANK(imbrex_args, normed),   IMX_BLANK(imbrex_args, scale_c),
    IMX_BLANK(imbrex_args, ids),      IMX_BLANK(imbrex_args, weights),
    IMX_BLANK(imbrex_args, routing),  IMX_BLANK(imbrex_args, scale_a),
    IMX_BLANK(imbrex_args, scale_b),
};

/* Rows of a run are one of them. */
static const imx_blank usual_sizes[] = { IMX_BLANK(imbrex_args, m), IMX_BLANK(imbrex_args, own) };

static const imx_blank decode[] = {
    IMX_BLANK(imbrex_decode_args, q),           IMX_BLANK(imbrex_decode_args, k),
    IMX_BLANK(imbrex_decode_args, v),           IMX_BLANK(imbrex_decode_args, scale_k),
    IMX_BLANK(imbrex_decode_args, scale_v),     IMX_BLANK(imbrex_decode_args, pages),
    IMX_BLANK(imbrex_decode_args, lengths),     IMX_BLANK(imbrex_decode_args, visible),
    IMX_BLANK(imbrex_decode_args, hidden),      IMX_BLANK(imbrex_decode_args, o_partial),
    IMX_BLANK(imbrex_decode_args, lse_partial), IMX_BLANK(imbrex_decode_args, sinks),
    IMX_BLANK(imbrex_decode_args, o),           IMX_BLANK(imbrex_decode_args, lse),
};

const imx_args_type imx_args_usual = {
    .run = "imbrex_plan_run",
    .pointers = usual,
    .pointer_count = sizeof usual / sizeof *usual,
    .sizes = usual_sizes,
    .size_count = sizeof usual_sizes / sizeof *usual_sizes,
    .reserved = IMX_BLANK(imbrex_args, reserved),
};

const imx_args_type imx_args_decode = {
    .run = "imbrex_plan_run_decode",
    .pointers = decode,
    .pointer_count = sizeof decode / sizeof *decode,
    .reserved = IMX_BLANK(imbrex_decode_args, reserved),
};

static const void *pointer_at(const void *from, size_t at)
{
    const void *pointer;
    memcpy(&pointer, (const char *)from + at, sizeof pointer);
    return pointer;
}

static bool is_in_routing(const imbrex_field *operand)
{
    return operand->own[IMX_FIELD_IN_ROUTING];
}

static const void *operand_at(const imbrex_args *args, const imbrex_field *operand)
{
    return pointer_at(is_in_routing(operand) ? (const void *)args->routing : args, operand->offset);
}

const imbrex_field *imx_args_of_run(const imx_op *op)
{
    const imbrex_field *field = op->info.args;
    while (!(field->flags & IMBREX_FIELD_RUN))
        field++;
    return field;
}

static int64_t size_at(const void *args, size_t at)
{
    int64_t size;
    memcpy(&size, (const char *)args + at, sizeof size);
    return size;
}

int64_t imx_args_rows(const imx_op *op, const void *args)
{
    return size_at(args, imx_args_of_run(op)->offset);
}

/* Of scales of a product's a and b. */
static int64_t scale_extent(const imx_shape *s, int64_t rows, int which)
{
    int64_t per = which == IMX_SCALE_B_ROWS ? s->n : rows;
    if (which == IMX_SCALE_COLS)
        return s->scaling == IMBREX_PER_BLOCK ? imx_ceil_div(s->k, IMX_SCALING_BLOCK)
                                              : IMX_NO_EXTENT;
    if (s->scaling == IMBREX_PER_TENSOR)
        return 1;
    return which == IMX_SCALE_B_ROWS && s->scaling == IMBREX_PER_BLOCK
               ? imx_ceil_div(per, IMX_SCALING_BLOCK)
               : per;
}

static int64_t extent_of(const imx_asked *asked, int64_t m, int which)
{
    const imx_shape *s = asked->shape;
    int rank = asked->group->rank, ranks = asked->group->size;
    switch (which) {
    case IMX_ROWS:
        return m;
    case IMX_OWN_ROWS:
        return imx_team_row(m, ranks, rank + 1) - imx_team_row(m, ranks, rank);
    case IMX_N:
        return s->n;
    case IMX_K:
        return s->k;
    case IMX_B_ROWS:
        return s->layout == IMBREX_NK ? s->n : s->k;
    case IMX_B_COLS:
        return s->layout == IMBREX_NK ? s->k : s->n;
    case IMX_SCALE_OWN_ROWS:
        return scale_extent(s, extent_of(asked, m, IMX_OWN_ROWS), which);
    case IMX_SCALE_ROWS:
    case IMX_SCALE_COLS:
    case IMX_SCALE_B_ROWS:
        return scale_extent(s, m, which);
    default:
        return asked->op->extent(asked, m, which);
    }
}

int imx_args_dims(const imx_asked *asked, const imbrex_field *operand, int64_t m,
                  int64_t dims[IMX_DIMS])
{
    int count = 0;
    const signed char *extents = operand->own + IMX_FIELD_DIMS;
    for (; count < IMX_DIMS && extents[count] != IMX_END; count++) {
        dims[count] = extent_of(asked, m, extents[count]);
        if (dims[count] == IMX_NO_EXTENT)
            break;
    }
    return count;
}

int64_t imx_args_elements(const imx_asked *asked, const imbrex_field *operand, int64_t m)
{
    int64_t dims[IMX_DIMS], elements = 1;
    int count = imx_args_dims(asked, operand, m, dims);
    for (int i = 0; i < count; i++)
        elements *= dims[i];
    return elements;
}

imbrex_dtype imx_args_dtype(const imx_asked *asked, const imbrex_field *operand)
{
    switch (operand->own[IMX_FIELD_KIND]) {
    case IMX_RESULT:
        return asked->op->result(asked);
    case IMX_FLOATS:
        return IMBREX_F32;
    case IMX_OUT:
        return asked->shape->out;
    case IMX_WEIGHTS:
        return asked->shape->dtype == IMBREX_E5M2 ? IMBREX_E4M3 : asked->shape->dtype;
    default:
        return asked->shape->dtype;
    }
}

size_t imx_args_element_bytes(const imx_asked *asked, const imbrex_field *operand)
{
    return operand->own[IMX_FIELD_KIND] == IMX_I32
               ? sizeof(int32_t)
               : imx_dtype_bytes(imx_args_dtype(asked, operand));
}

/* Of a product's scales. */
static imx_part scale_part(imbrex_scaling scaling, const char **because)
{
    *because = scaling ? "desc.scaling says how a and b are scaled" : "desc.scaling is 0";
    return scaling ? IMX_MUST : IMX_MUST_NOT;
}

imx_part imx_args_part(const imx_asked *asked, const imbrex_field *operand, const char **because)
{
    const imx_op *op = asked->op;
    bool scale = operand->offset == offsetof(imbrex_args, scale_a) ||
                 operand->offset == offsetof(imbrex_args, scale_b);
    if (op->scaled && scale)
        return scale_part(asked->shape->scaling, because);
    imx_part part = op->part ? op->part(op, asked->desc, operand, because) : IMX_AS_DECLARED;
    if (part != IMX_AS_DECLARED)
        return part;
    return operand->flags & IMBREX_FIELD_OPTIONAL ? IMX_MAY : IMX_MUST;
}

/* An operand of a run: where it lies, and how far it reaches. */
typedef struct extent {
    const imbrex_field *operand;
    const void *at;
    int64_t elements;
    size_t element_bytes, bytes;
} extent;

static bool is_listed(const imx_op *op, size_t at)
{
    const imbrex_field *row = op->info.args, *end = row + op->info.args_fields;
    while (row < end && (row->offset != at || is_in_routing(row)))
        row++;
    return row < end;
}

static imbrex_status check_unlisted(const imx_op *op, const void *args)
{
    const imx_args_type *type = imx_args_type_of(op);
    IMX_TRY(
        imx_status_need_zero((const char *)args + type->reserved.at, type->reserved.bytes, "args"));
    for (int i = 0; i < type->pointer_count; i++) {
        size_t at = type->pointers[i].at;
        if (pointer_at(args, at) && !is_listed(op, at))
            return imx_fail(IMBREX_INVALID, "args.%s must be NULL for %s", type->pointers[i].name,
                            op->info.name);
    }
    for (int i = 0; i < type->size_count; i++) {
        int64_t size = size_at(args, type->sizes[i].at);
        if (size && imx_args_of_run(op)->offset != type->sizes[i].at)
            return imx_fail(IMBREX_INVALID, "args.%s is %lld: must be 0 for %s, which has args.%s",
                            type->sizes[i].name, (long long)size, op->info.name,
                            imx_args_of_run(op)->name);
    }
    return IMBREX_OK;
}

/* Where the operator has one. */
static imbrex_status check_routing(const imx_op *op, const imbrex_args *args)
{
    for (int i = 0; i < op->info.args_fields; i++) {
        if (!is_in_routing(&op->info.args[i]))
            continue;
        IMX_TRY(imx_status_need(args->routing, "args.routing", "want where pairs lie"));
        return imx_status_need_zero(args->routing->reserved, sizeof args->routing->reserved,
                                    "args.routing");
    }
    return IMBREX_OK;
}

static imbrex_status check_there(const imx_asked *asked, const extent *x)
{
    const char *because = NULL, *name = x->operand->name;
    imx_part part = imx_args_part(asked, x->operand, &because);
    if (part == IMX_MUST_NOT && x->at)
        return imx_fail(IMBREX_INVALID, "args.%s must be NULL: %s", name, because);
    if (x->at || !x->elements || part != IMX_MUST)
        return IMBREX_OK;
    return imx_fail(IMBREX_INVALID, "args.%s is NULL: want %lld elements%s%s", name,
                    (long long)x->elements, because ? ", since " : "", because ? because : "");
}

/* Whether both are the same memory, and the operator allows that. */
static bool is_in_place(const extent *x, const extent *out)
{
    int may_be = out->operand->own[IMX_FIELD_MAY_BE];
    bool fine =
        (may_be & IMX_MAY_BE_A && x->operand->offset == offsetof(imbrex_args, a)) ||
        (may_be & IMX_MAY_BE_RESIDUAL && x->operand->offset == offsetof(imbrex_args, residual));
    return fine && !is_in_routing(x->operand) && x->at == out->at &&
           x->element_bytes == out->element_bytes;
}

/* Of an output and what comes before it in the operator's row, or an input behind it. */
static imbrex_status check_apart(const extent *all, int count)
{
    for (int o = 0; o < count; o++) {
        if (!(all[o].operand->flags & IMBREX_FIELD_OUTPUT))
            continue;
        for (int i = 0; i < count; i++) {
            bool pair = i < o || (i > o && !(all[i].operand->flags & IMBREX_FIELD_OUTPUT));
            if (pair && imx_overlap(all[i].at, all[i].bytes, all[o].at, all[o].bytes) &&
                !is_in_place(&all[i], &all[o]))
                return imx_fail(IMBREX_INVALID, "args.%s overlaps args.%s", all[o].operand->name,
                                all[i].operand->name);
        }
    }
    return IMBREX_OK;
}

imbrex_status imx_args_check(const imx_asked *asked, int64_t m)
{
    const imx_op *op = asked->op;
    const void *args = asked->args;
    extent all[IMX_OPERANDS]; /* that have bytes */
    int count = 0;
    if (m < 0 || m > asked->shape->m)
        return imx_fail(IMBREX_INVALID,
                        "args.%s is %lld: want at most desc.%s, %lld, 0 for all of it or -1 "
                        "(IMBREX_NONE)",
                        imx_args_of_run(op)->name, (long long)m, imx_request_of_run(op)->name,
                        (long long)asked->shape->m);
    IMX_TRY(check_unlisted(op, args));
    IMX_TRY(check_routing(op, args));
    if (op->check_run)
        IMX_TRY(op->check_run(asked, m));
    for (int i = 0; i < op->info.args_fields; i++) {
        const imbrex_field *row = &op->info.args[i];
        if (!imx_args_is_operand(row))
            continue;
        extent *x = &all[count];
        *x = (extent){ .operand = row,
                       .at = operand_at(args, row),
                       .elements = imx_args_elements(asked, row, m),
                       .element_bytes = imx_args_element_bytes(asked, row) };
        x->bytes = (size_t)x->elements * x->element_bytes;
        IMX_TRY(check_there(asked, x));
        count += x->at && x->elements;
    }
    IMX_TRY(check_apart(all, count));
    for (int i = 0; i < count; i++) {
        const extent *x = &all[i];
        IMX_TRY(imx_request_aligned(asked->group, "args", x->operand->name, x->at, x->element_bytes,
                                    x->operand->own[IMX_FIELD_WIDE]));
    }
    return IMBREX_OK;
}
