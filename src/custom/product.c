/* product.c - cuts the product of a kernel of the caller's as an operator's, and checks what a
 * launch multiplies. */
#include "product.h"

#include <stdlib.h>

#include "kernels/gemm/tiling.h"
#include "plan/descs.h"
#include "plan/plan.h"

/* Rows of a chunk if none are asked for; tiles then have rows of one rank only. */
enum { CHUNK_ROWS = 2048 };

/* What a kernel of the caller's is cut as: its rows come from all ranks, and go to their owners. */
static const imx_op kernel_op = {
    IMX_OP(kernel, "a caller's product", imbrex_gemm_desc, imx_gemm_desc, imx_gemm_desc),
    .blanks[1] = IMX_BLANK_OF_OTHERS(imbrex_gemm_desc, norm),
    .product = true,
    .scatters = true,
};

_Static_assert(sizeof(imx_gemm_user_args) <= IMX_ARGS_BYTES, "a launch has no room for them");

/* ---- create ---------------------------------------------------------------------------------- */

static imbrex_status check_desc(const imbrex_group *group, const imbrex_gemm_desc *d,
                                const char *name)
{
    const imx_request request = imx_request_of(&kernel_op, d);
    IMX_TRY(imx_request_check(group, &request, "desc.gemm", 1));
    if (d->algorithm)
        return imx_fail(IMBREX_INVALID,
                        "desc.gemm's algorithm is \"%s\": kernel %s's hooks are the algorithm; "
                        "want NULL",
                        d->algorithm, name);
    if (d->m_least)
        return imx_fail(IMBREX_INVALID,
                        "desc.gemm.m_least is %lld: kernel %s's product is cut in one way for all "
                        "m; want 0",
                        (long long)d->m_least, name);
    if (group->nodes.count > 1 || group->size > IMX_TEAM_MOST)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "kernel %s's product is for up to %d ranks of one node, and these are %d "
                        "on %d",
                        name, IMX_TEAM_MOST, group->size, group->nodes.count);
    return IMBREX_OK;
}

static imx_config cut(const imbrex_group *group, const imbrex_gemm_desc *d)
{
    const imx_request request = imx_request_of(&kernel_op, d);
    imx_tune_input input = imx_request_input(group, &request);
    input.hooks = true;
    if (!input.chunk_rows)
        input.chunk_rows = CHUNK_ROWS;
    return imx_tune_config(&input);
}

static imbrex_status create(imbrex_group *group, imx_product *p, const char *name)
{
    const imbrex_gemm_desc *d = &p->desc;
    const imx_target *target = group->target;
    imx_config config = cut(group, d);
    if (target->arch && !imx_tiling_hooks(target->arch, d->n, d->k, (int)d->dtype, (int)d->layout))
        return imx_fail(IMBREX_UNSUPPORTED,
                        "kernel %s's product of %s, n = %lld, k = %lld on an sm_%d: with hooks it "
                        "wants an sm_90, bf16 or f16, and rows of a and b of a multiple of 16 "
                        "bytes",
                        name, imx_dtype_name(d->dtype), (long long)d->n, (long long)d->k,
                        target->arch);
    p->band = config.band;
    p->blocks = config.blocks;
    p->args = (imx_gemm_args){
        .schedule = { .m = d->m,
                      .n = d->n,
                      .ranks = group->size,
                      .chunk_rows = config.chunk_rows,
                      .tile_rows = config.tile_rows,
                      .tile_cols = config.tile_cols,
                      .group = config.group,
                      .solo = group->size - 1,
                      .chunks = config.chunks },
        .k = d->k,
        .dtype = (int)d->dtype,
        .out = (int)d->dtype,
        .layout = (int)d->layout,
        .features = IMX_GEMM_GATHERS | IMX_GEMM_SCATTERS | IMX_GEMM_SCATTER_PUSH | IMX_GEMM_HOOKS |
                    (d->batch_invariant ? IMX_GEMM_INVARIANT : 0),
        .own = -1,
        .slices = 1,
        .slice_k = (int)d->k,
        .team = { .rank = group->rank, .size = group->size },
    };
    size_t words = (size_t)group->size * (size_t)config.chunks;
    return group->backend->memory_create(group->device, words * sizeof(uint32_t), &p->counters);
}

imbrex_status imx_product_create(imbrex_group *group, const imbrex_gemm_desc *desc,
                                 const char *name, imx_product **out)
{
    imx_product *p = NULL;
    IMX_TRY(check_desc(group, desc, name));
    IMX_TRY(imx_sys_alloc(1, sizeof *p, &p));
    p->desc = *desc;
    p->desc.dtype = imx_dtype_or(desc->dtype, IMBREX_BF16);
    imbrex_status status;
    IMX_GOTO(create(group, p, name));
    *out = p;
    return IMBREX_OK;
fail:
    imx_product_destroy(group, p);
    return status;
}

void imx_product_destroy(imbrex_group *group, imx_product *p)
{
    if (p && p->counters)
        group->backend->memory_release(p->counters);
    free(p);
}

int imx_product_fields(const imx_product *p, imx_field fields[IMX_PRODUCT_FIELDS])
{
    if (!p)
        return 0;
    const imx_request request = imx_request_of(&kernel_op, &p->desc);
    const imx_schedule *schedule = &p->args.schedule;
    int count = imx_request_fields(&request, "desc.gemm", fields);
    fields[count++] = (imx_field){ .name = "the rows of a chunk", .value = schedule->chunk_rows };
    fields[count++] = (imx_field){ .name = "the rows of a tile", .value = schedule->tile_rows };
    return count;
}

/* ---- launch ---------------------------------------------------------------------------------- */

static imbrex_status check_pointer(const imx_product *p, const imbrex_group *group,
                                   const char *name, int rank, const void *at)
{
    char word[16];
    imx_text what = { .at = word, .size = sizeof word };
    imx_text_add(&what, rank < 0 ? "%s" : "%s[%d]", name, rank);
    if (!at)
        return imx_fail(IMBREX_INVALID, "operands.%s is NULL", word);
    return imx_request_aligned(group, "operands", word, at, imx_dtype_bytes(p->desc.dtype), true);
}

static imbrex_status check_operands(const imx_product *p, const imbrex_group *group,
                                    const imbrex_gemm_operands *o)
{
    IMX_TRY(imx_status_need(o, "operands", "want a, b, and c of each rank"));
    int64_t m = imx_count(o->m, p->desc.m);
    if (m < 0 || m > p->desc.m)
        return imx_fail(IMBREX_INVALID, "operands.m is %lld: the kernel is for at most %lld",
                        (long long)o->m, (long long)p->desc.m);
    if (o->first < 0 || o->first >= group->size)
        return imx_fail(IMBREX_INVALID, "operands.first is %d: the group has ranks 0 to %d",
                        o->first, group->size - 1);
    IMX_TRY(imx_status_need_zero(o->reserved, sizeof o->reserved, "operands"));
    IMX_TRY(check_pointer(p, group, "a", -1, o->a));
    IMX_TRY(check_pointer(p, group, "b", -1, o->b));
    if (o->own)
        IMX_TRY(check_pointer(p, group, "own", -1, o->own));
    IMX_TRY(imx_status_need(o->c, "operands.c", "want where each rank's rows go"));
    for (int r = 0; r < group->size; r++)
        IMX_TRY(check_pointer(p, group, "c", r, o->c[r]));
    return IMBREX_OK;
}

imbrex_status imx_product_args(const imx_product *p, const imbrex_group *group,
                               const imbrex_gemm_operands *o, imx_gemm_args *args)
{
    IMX_TRY(check_operands(p, group, o));
    *args = p->args;
    args->schedule.m = imx_count(o->m, p->desc.m);
    args->schedule.first = o->first;
    args->schedule.band = o->own ? 0 : p->band; /* who gathers wants one rank after the other */
    args->own = o->own ? group->rank : -1;
    args->a = o->own ? o->own : o->a;
    args->gathered = o->a;
    args->b = o->b;
    args->counters = p->counters->base;
    for (int r = 0; r < group->size; r++)
        args->team.base[r] = o->c[r];
    return IMBREX_OK;
}
