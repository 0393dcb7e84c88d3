/* request.c - what is asked of a plan: one form of both descs, and what is wrong with it. */
#include <string.h>

#include "plan.h"

imx_request imx_request_of_gemm(const imbrex_gemm_desc *d)
{
    if (!d)
        return (imx_request){ .reserved = NULL };
    return (imx_request){ .shape = { d->m, d->n, d->k, d->dtype, d->layout },
                          .algorithm = d->algorithm,
                          .chunk_rows = d->chunk_rows,
                          .sms = d->sms,
                          .m_least = d->m_least,
                          .reserved = d->reserved,
                          .reserved_bytes = sizeof d->reserved };
}

imx_request imx_request_of_coll(const imbrex_coll_desc *d)
{
    if (!d)
        return (imx_request){ .reserved = NULL };
    return (imx_request){ .shape = { d->m, d->n, 0, d->dtype, IMBREX_NK },
                          .algorithm = d->algorithm,
                          .chunk_rows = d->chunk_rows,
                          .sms = d->sms,
                          .reserved = d->reserved,
                          .reserved_bytes = sizeof d->reserved };
}

static imbrex_status check_size(const char *desc, const char *name, int64_t value, int least,
                                int most)
{
    if (value < least || value > most)
        return imx_fail(IMBREX_INVALID, "%s.%s is %lld: want from %d to %d", desc, name,
                        (long long)value, least, most);
    return IMBREX_OK;
}

static imbrex_status check_matrix(const char *desc, const char *name, int64_t rows, int64_t cols)
{
    if (cols && rows > ((int64_t)1 << IMX_ELEMENTS_MOST_LOG2) / cols)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "a matrix of %s.%s = %lld x %lld is too large: want "
                        "at most 2^%d elements",
                        desc, name, (long long)rows, (long long)cols, IMX_ELEMENTS_MOST_LOG2);
    return IMBREX_OK;
}

imbrex_status imx_request_check(const imbrex_group *group, const imx_op *op, const imx_request *r,
                                const char *desc, int least)
{
    IMX_TRY(imx_status_need(r->reserved, desc, "want the shape of the plan"));
    IMX_TRY(check_size(desc, "m", r->shape.m, least, IMX_SIZE_MOST));
    IMX_TRY(check_size(desc, "n", r->shape.n, least, IMX_SIZE_MOST));
    IMX_TRY(check_size(desc, "k", r->shape.k, least, IMX_SIZE_MOST));
    IMX_TRY(check_matrix(desc, "m x n", r->shape.m, r->shape.n));
    IMX_TRY(check_matrix(desc, "m x k", r->shape.m, r->shape.k));
    IMX_TRY(check_matrix(desc, "n x k", r->shape.n, r->shape.k));
    IMX_TRY(check_size(desc, "chunk_rows", r->chunk_rows, 0, INT32_MAX));
    if (r->sms < 0)
        return imx_fail(IMBREX_INVALID, "%s.sms is %d: want how many, or 0 for all", desc,
                        (int)r->sms);
    if ((unsigned)r->shape.dtype > IMBREX_F32)
        return imx_fail(IMBREX_INVALID, "%s.dtype is %d: want IMBREX_BF16, F16 or F32", desc,
                        (int)r->shape.dtype);
    if (op->product && (unsigned)r->shape.layout > IMBREX_KN)
        return imx_fail(IMBREX_INVALID, "%s.layout is %d: want IMBREX_NK or IMBREX_KN", desc,
                        (int)r->shape.layout);
    if (r->m_least < 0 || r->m_least > r->shape.m)
        return imx_fail(IMBREX_INVALID, "%s.m_least is %lld: want from 0 to %s.m, %lld", desc,
                        (long long)r->m_least, desc, (long long)r->shape.m);
    IMX_TRY(imx_status_need_zero(r->reserved, r->reserved_bytes, desc));
    if (r->sms > group->target->units_most)
        return imx_fail(IMBREX_UNSUPPORTED, "%s.sms is %d: %s has at most %d", desc, (int)r->sms,
                        group->device_name, group->target->units_most);
    return IMBREX_OK;
}

imbrex_status imx_request_aligned(const imbrex_group *group, const char *of, const char *name,
                                  const void *at, imbrex_dtype dtype, bool wide)
{
    size_t element = imx_dtype_bytes(dtype);
    int alignment = group->target->alignment;
    if ((uintptr_t)at % element)
        return imx_fail(IMBREX_INVALID, "%s.%s, %p, is not %zu-byte aligned", of, name, at,
                        element);
    if (wide && alignment && (uintptr_t)at % (uintptr_t)alignment)
        return imx_fail(IMBREX_UNSUPPORTED, "%s.%s, %p, is not %d-byte aligned, which %s needs", of,
                        name, at, alignment, group->backend->name);
    return IMBREX_OK;
}

imx_tune_input imx_request_input(const imbrex_group *group, const imx_op *op, const imx_request *r)
{
    return (imx_tune_input){
        .shape = r->shape,
        .product = op->product,
        .scatters = op->scatters,
        .ranks = group->size,
        .nodes = group->nodes.count,
        .net_units = group->net_facts.units,
        .chunk_rows = r->chunk_rows,
        .sms = r->sms,
        .arch = group->target->arch,
        .shared_bytes = group->target->shared_bytes,
        .memory_gb_s = group->memory_gb_s,
        .units = group->units,
        .sharers = group->sharers,
        .alike = group->alike,
        .slow_wire = group->env.cpu_link > 0,
    };
}

void imx_request_fields(const imx_request *r, bool nested, imx_field fields[IMX_REQUEST_FIELDS])
{
    static const char *const both[2][IMX_REQUEST_FIELDS] = {
        { "desc.m", "desc.n", "desc.k", "desc.dtype", "desc.layout", "desc.chunk_rows", "desc.sms",
          "desc.m_least" },
        { "desc.gemm.m", "desc.gemm.n", "desc.gemm.k", "desc.gemm.dtype", "desc.gemm.layout",
          "desc.gemm.chunk_rows", "desc.gemm.sms", "desc.gemm.m_least" },
    };
    static const char *const layouts[] = { "[n, k]", "[k, n]" };
    const char *const *names = both[nested];
    const imx_field all[IMX_REQUEST_FIELDS] = {
        { .name = names[0], .value = r->shape.m },
        { .name = names[1], .value = r->shape.n },
        { .name = names[2], .value = r->shape.k },
        { .name = names[3],
          .value = r->shape.dtype,
          .words = imx_dtype_names,
          .words_count = IMX_DTYPES },
        { .name = names[4], .value = r->shape.layout, .words = layouts, .words_count = 2 },
        { .name = names[5], .value = r->chunk_rows },
        { .name = names[6], .value = r->sms },
        { .name = names[7], .value = r->m_least },
    };
    memcpy(fields, all, sizeof all);
}
