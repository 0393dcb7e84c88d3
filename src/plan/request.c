/* request.c - what is asked of a plan, read from a desc by its rows, and what is wrong with it. */
#include "request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYOUTS = 2, SCALINGS = 4, EXPERTS = 2 };
static const char *const layouts[LAYOUTS] = { "[n, k]", "[k, n]" };
static const char *const scalings[SCALINGS] = { "UNSCALED", "PER_TENSOR", "PER_ROW", "PER_BLOCK" };
static const char *const experts[EXPERTS] = { "EXPERTS_TENSOR", "EXPERTS_WHOLE" };

/* ---- reading --------------------------------------------------------------------------------- */

static int kind_of(const imbrex_field *field)
{
    return field->own[IMX_FIELD_KIND];
}

/* Of a float: its bits. */
static int64_t number_at(const void *desc, const imbrex_field *field)
{
    int64_t wide;
    int narrow;
    if (kind_of(field) == IMX_SIZE) {
        memcpy(&wide, (const char *)desc + field->offset, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)desc + field->offset, sizeof narrow);
    return narrow;
}

static bool is_named(const imbrex_field *field, const char *name)
{
    return strcmp(field->name, name) == 0;
}

static double real_at(const void *desc, const imbrex_field *field)
{
    float value;
    memcpy(&value, (const char *)desc + field->offset, sizeof value);
    return (double)value;
}

/* 0 where the operator's desc has none of that name. */
static int64_t number_named(const imx_op *op, const void *desc, const char *name)
{
    for (int i = 0; i < op->info.desc_fields; i++) {
        if (is_named(&op->info.desc[i], name))
            return number_at(desc, &op->info.desc[i]);
    }
    return 0;
}

const imbrex_field *imx_request_of_run(const imx_op *op)
{
    const imbrex_field *field = op->info.desc;
    while (!(field->flags & IMBREX_FIELD_RUN))
        field++;
    return field;
}

static const char *algorithm_of(const imx_op *op, const void *desc)
{
    const char *name = NULL;
    for (int i = 0; i < op->info.desc_fields; i++) {
        if (kind_of(&op->info.desc[i]) == IMX_NAME)
            memcpy(&name, (const char *)desc + op->info.desc[i].offset, sizeof name);
    }
    return name;
}

static bool is_dtype(const imbrex_field *field)
{
    return kind_of(field) == IMX_DTYPE || kind_of(field) == IMX_WIRE;
}

/* What DEFAULT stands for: ranks agree on that. */
static void set_dtypes(imx_request *r)
{
    const imbrex_op_info *info = &r->op->info;
    imbrex_dtype dtype = (imbrex_dtype)number_named(r->op, r->desc, "dtype");
    dtype = imx_dtype_or(dtype, IMBREX_BF16);
    for (int i = 0; i < info->desc_fields; i++) {
        const imbrex_field *field = &info->desc[i];
        imbrex_dtype is = (imbrex_dtype)number_at(r->desc, field);
        bool others = !is_named(field, "dtype") && imx_dtype_is_8bit(dtype);
        is = imx_dtype_or(is, others ? IMBREX_BF16 : dtype);
        if (is_dtype(field))
            memcpy(r->desc + field->offset, &is, sizeof is);
    }
}

imx_request imx_request_of(const imx_op *op, const void *desc)
{
    imx_request r = { .op = op, .given = desc != NULL };
    if (!desc)
        return r;
    memcpy(r.desc, desc, op->info.desc_bytes);
    desc = r.desc;
    set_dtypes(&r);
    r.shape = (imx_shape){
        .m = number_at(desc, imx_request_of_run(op)),
        .n = op->width ? op->width(desc) : number_named(op, desc, "n"),
        .k = number_named(op, desc, "k"),
        .dtype = (imbrex_dtype)number_named(op, desc, "dtype"),
        .layout = (imbrex_layout)number_named(op, desc, "layout"),
        .scaling = (imbrex_scaling)number_named(op, desc, "scaling"),
        .fast_accumulation = number_named(op, desc, "fast_accumulation") != 0,
    };
    imbrex_dtype out = (imbrex_dtype)number_named(op, desc, "out");
    r.shape.out = imx_dtype_or(out, r.shape.dtype);
    r.algorithm = algorithm_of(op, desc);
    r.chunk_rows = (int)number_named(op, desc, "chunk_rows");
    r.sms = (int)number_named(op, desc, "sms");
    r.m_least = number_named(op, desc, "m_least");
    return r;
}

/* ---- what is wrong --------------------------------------------------------------------------- */

/* The last of the types that it may be. */
static imbrex_dtype most_of(const imx_op *op, const imbrex_field *field)
{
    if (op->scaled && is_named(field, "dtype"))
        return IMBREX_E5M2;
    return field->own[IMX_FIELD_WIDE] == IMX_MAY_BE_8_BIT ? IMBREX_E4M3 : IMBREX_F32;
}

static imbrex_status check_dtype(const char *desc, const imbrex_field *field, int64_t value,
                                 imbrex_dtype most)
{
    const char *rest = most == IMBREX_E5M2   ? ", F32, E4M3 or E5M2"
                       : most == IMBREX_E4M3 ? ", F32 or E4M3"
                                             : " or F32";
    if ((uint64_t)value > (uint64_t)most)
        return imx_fail(IMBREX_INVALID, "%s.%s is %d: want IMBREX_BF16, F16%s", desc, field->name,
                        (int)value, rest);
    return IMBREX_OK;
}

static imbrex_status check_field(const imx_request *r, const char *desc, const imbrex_field *field,
                                 int least)
{
    int64_t value = number_at(r->desc, field);
    const char *text;
    char name[80];
    switch (kind_of(field)) {
    case IMX_SIZE:
        return imx_status_range(desc, field->name, value,
                                field->flags & IMBREX_FIELD_REQUIRED ? least : 0, IMX_SIZE_MOST);
    case IMX_COUNT:
        return imx_status_range(desc, field->name, value, 0, INT32_MAX);
    case IMX_FLAG:
    case IMX_EXPERTS:
        return imx_status_range(desc, field->name, value, 0, 1);
    case IMX_NAME:
        memcpy(&text, r->desc + field->offset, sizeof text);
        snprintf(name, sizeof name, "%s.%s", desc, field->name);
        return imx_status_need_place(text, 0, name);
    case IMX_REAL:
        if (!isfinite(real_at(r->desc, field)))
            return imx_fail(IMBREX_INVALID, "%s.%s is %g: want a finite number", desc, field->name,
                            real_at(r->desc, field));
        return IMBREX_OK;
    case IMX_DTYPE:
        return check_dtype(desc, field, value, most_of(r->op, field));
    case IMX_WIRE:
        if ((uint64_t)value > IMBREX_E4M3)
            return imx_fail(IMBREX_INVALID, "%s.%s is %d: want IMBREX_E4M3, or what dtype is", desc,
                            field->name, (int)value);
        return IMBREX_OK;
    case IMX_SCALES:
        return imx_status_range(desc, field->name, value, IMBREX_UNSCALED, IMBREX_PER_BLOCK);
    case IMX_LAYOUT:
        if ((uint64_t)value > IMBREX_KN)
            return imx_fail(IMBREX_INVALID, "%s.%s is %d: want IMBREX_NK or IMBREX_KN", desc,
                            field->name, (int)value);
        return IMBREX_OK;
    default:
        return IMBREX_OK;
    }
}

/* What products of other types must leave alone. */
static imbrex_status check_unscaled(const imx_shape *s, const char *desc)
{
    if (s->scaling)
        return imx_fail(IMBREX_INVALID, "%s.scaling is %d and %s.dtype %s: want 0, %s", desc,
                        (int)s->scaling, desc, imx_dtype_name(s->dtype),
                        "scales are for E4M3 and E5M2");
    if (s->fast_accumulation)
        return imx_fail(IMBREX_INVALID, "%s.fast_accumulation is 1 and %s.dtype %s: want 0, %s",
                        desc, desc, imx_dtype_name(s->dtype), "it is for E4M3 and E5M2");
    if (s->out != s->dtype)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "%s.out is %s and %s.dtype %s: want the same, or a dtype of 8 bits", desc,
                        imx_dtype_name(s->out), desc, imx_dtype_name(s->dtype));
    return IMBREX_OK;
}

/* Of products whose a and b have 8 bits: both are read along k, 16 bytes at a time. */
static imbrex_status check_scaled(const imx_shape *s, const char *desc)
{
    if (!imx_dtype_is_8bit(s->dtype))
        return check_unscaled(s, desc);
    if (s->layout != IMBREX_NK)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "%s.layout is IMBREX_KN and %s.dtype %s: want IMBREX_NK, 8-bit products "
                        "read both operands along k",
                        desc, desc, imx_dtype_name(s->dtype));
    if (s->k % 16)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "%s.k is %lld and %s.dtype %s: want a multiple of 16, rows of 8-bit "
                        "elements are read by so many",
                        desc, (long long)s->k, desc, imx_dtype_name(s->dtype));
    if (s->fast_accumulation && s->scaling == IMBREX_PER_BLOCK)
        return imx_fail(IMBREX_INVALID,
                        "%s.fast_accumulation is 1 and %s.scaling PER_BLOCK: want 0, its sums are "
                        "scaled every %d of k",
                        desc, desc, IMX_SCALING_BLOCK);
    return IMBREX_OK;
}

/* Reserved words come last: what is wrong in a field says more. */
static imbrex_status check_blank(const imx_request *r, const char *desc, const imx_blank *blank)
{
    for (size_t i = 0; i < blank->bytes; i++) {
        if (!r->desc[blank->at + i])
            continue;
        if (blank->of_others)
            return imx_fail(IMBREX_INVALID, "%s.%s must be 0 for %s", desc, blank->name,
                            r->op->info.name);
        return imx_status_reserved(desc, blank->name);
    }
    return IMBREX_OK;
}

imbrex_status imx_request_check(const imbrex_group *group, const imx_request *r, const char *desc,
                                int least)
{
    const imx_op *op = r->op;
    IMX_TRY(imx_status_need(r->given ? r : NULL, desc, "want the shape of the plan"));
    for (int i = 0; i < op->info.desc_fields; i++)
        IMX_TRY(check_field(r, desc, &op->info.desc[i], least));
    IMX_TRY(imx_status_elements(desc, "m x n", r->shape.m, r->shape.n));
    IMX_TRY(imx_status_elements(desc, "m x k", r->shape.m, r->shape.k));
    IMX_TRY(imx_status_elements(desc, "n x k", r->shape.n, r->shape.k));
    if (r->m_least > r->shape.m)
        return imx_fail(IMBREX_INVALID, "%s.m_least is %lld: want from 0 to %s.m, %lld", desc,
                        (long long)r->m_least, desc, (long long)r->shape.m);
    if (op->product || op->scaled)
        IMX_TRY(op->scaled ? check_scaled(&r->shape, desc) : check_unscaled(&r->shape, desc));
    if (op->check)
        IMX_TRY(op->check(group, r));
    for (int i = 0; i < IMX_BLANKS; i++)
        IMX_TRY(check_blank(r, desc, &op->blanks[i]));
    if (r->sms > group->target->workers_most)
        return imx_fail(IMBREX_UNSUPPORTED, "%s.sms is %d: %s has at most %d", desc, r->sms,
                        group->device_name, group->target->workers_most);
    return IMBREX_OK;
}

/* to: a power of two. */
static bool is_aligned(const void *at, size_t to)
{
    return !((uintptr_t)at & (to - 1));
}

imbrex_status imx_request_aligned(const imbrex_group *group, const char *of, const char *name,
                                  const void *at, size_t element, bool wide)
{
    int alignment = group->target->alignment;
    if (!is_aligned(at, element))
        return imx_fail(IMBREX_INVALID, "%s.%s, %p, is not %zu-byte aligned", of, name, at,
                        element);
    if (wide && alignment && !is_aligned(at, (size_t)alignment))
        return imx_fail(IMBREX_UNSUPPORTED, "%s.%s, %p, is not %d-byte aligned, which %s needs", of,
                        name, at, alignment, group->backend->name);
    return IMBREX_OK;
}

/* ---- what follows ---------------------------------------------------------------------------- */

static imbrex_norm norm_of(const imx_request *r)
{
    imbrex_norm norm = { 0 };
    if (r->op->norm_at && r->given)
        memcpy(&norm, r->desc + r->op->norm_at, sizeof norm);
    return norm;
}

imx_tune_input imx_request_input(const imbrex_group *group, const imx_request *r)
{
    const imx_asked asked = { .group = group, .op = r->op, .shape = &r->shape, .desc = r->desc };
    const imbrex_norm norm = norm_of(r);
    imx_tune_input input = {
        .shape = r->shape,
        .product = r->op->product,
        .scatters = r->op->scatters,
        .shard_residual = norm.shard_residual,
        .norms = norm.rms || norm.quant,
        .invariant = number_named(r->op, r->desc, "batch_invariant") != 0,
        .deep = r->op->alone && group->sharers == 1 && !r->sms,
        .ranks = r->op->alone ? 1 : group->size,
        .nodes = r->op->alone ? 1 : group->nodes.count,
        .net_workers = group->net_facts.workers,
        .chunk_rows = r->chunk_rows,
        .sms = r->sms,
        .arch = group->target->arch,
        .shared_bytes = group->target->shared_bytes,
        .memory_gb_s = group->memory_gb_s,
        .rates = &group->rates,
        .workers = group->workers,
        .sharers = group->sharers,
        .alike = group->alike,
        .whole_lines = group->whole_lines,
        .slow_wire = group->env.cpu_link > 0,
    };
    if (r->op->spread)
        r->op->spread(&asked, &input);
    return input;
}

/* Those that every sentence has words for. */
static bool is_common(const imbrex_field *field)
{
    static const char *const names[] = { "n", "k", "chunk_rows", "sms", "m_least" };
    bool common = field->flags & IMBREX_FIELD_RUN;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        common = common || is_named(field, names[i]);
    return common;
}

/* What need not be given is left out where it is 0. */
void imx_request_add_own(const imx_op *op, const void *desc, imx_text *text)
{
    for (int i = 0; i < op->info.desc_fields; i++) {
        const imbrex_field *field = &op->info.desc[i];
        int64_t value = number_at(desc, field);
        if (is_common(field) || (!value && !(field->flags & IMBREX_FIELD_REQUIRED)))
            continue;
        switch (kind_of(field)) {
        case IMX_SIZE:
        case IMX_COUNT:
        case IMX_FLAG:
        case IMX_SCALES:
        case IMX_EXPERTS:
            imx_text_add(text, " %s=%lld", field->name, (long long)value);
            break;
        case IMX_REAL:
            imx_text_add(text, " %s=%.9g", field->name, real_at(desc, field));
            break;
        case IMX_DTYPE:
            if (value != number_named(op, desc, "dtype"))
                imx_text_add(text, " %s=%s", field->name, imx_dtype_name((imbrex_dtype)value));
            break;
        case IMX_WIRE:
            if (value == IMBREX_E4M3 && !op->scatters) /* sums come back in dtype */
                imx_text_add(text, " %s=%s", field->name, imx_dtype_name((imbrex_dtype)value));
            break;
        default:
            break;
        }
    }
}

int imx_request_fields(const imx_request *r, const char *desc, imx_field fields[IMX_REQUEST_FIELDS])
{
    int count = 0;
    for (int i = 0; i < r->op->info.desc_fields; i++) {
        const imbrex_field *field = &r->op->info.desc[i];
        imx_field *f = &fields[count];
        if (kind_of(field) == IMX_NAME)
            continue;
        *f = (imx_field){ .of = desc, .name = field->name };
        if (is_dtype(field)) {
            f->words = imx_dtype_names;
            f->words_count = IMX_DTYPES;
        } else if (kind_of(field) == IMX_LAYOUT) {
            f->words = layouts;
            f->words_count = LAYOUTS;
        } else if (kind_of(field) == IMX_SCALES) {
            f->words = scalings;
            f->words_count = SCALINGS;
        } else if (kind_of(field) == IMX_EXPERTS) {
            f->words = experts;
            f->words_count = EXPERTS;
        }
        f->value = number_at(r->desc, field);
        f->real = kind_of(field) == IMX_REAL;
        count++;
    }
    return count;
}
