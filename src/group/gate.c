/* gate.c - imbrex_topk_gate: a router's logits become ids and weights, on this rank alone. */
#include "gate.h"

#include <float.h>

#include "call.h"
#include "fault.h"
#include "kernels/gate/args.h"
#include "stream.h"

/* With the group: see imx_stream_begin. */
imbrex_status imx_gate_begin(imbrex_group *group)
{
    imx_gate_args any = { 0 };
    IMX_TRY(imx_stream_order_create(group->backend, group->device, &group->gate_order));
    return group->backend->prepare(group->device, &imx_kernel_gate, &any, group->workers,
                                   &group->gate);
}

void imx_gate_end(imbrex_group *group)
{
    imx_stream_order_destroy(&group->gate_order, group->stream);
    if (group->gate)
        group->backend->prepared_destroy(group->device, group->gate);
}

static imbrex_status check_groups(const imbrex_gate *g)
{
    IMX_TRY(imx_status_range("gate", "groups", g->groups, 0, g->experts));
    IMX_TRY(imx_status_range("gate", "group_best", g->group_best, 0, 2));
    if (!g->groups && g->top_groups)
        return imx_fail(IMBREX_INVALID, "gate.top_groups is %d, but gate.groups is 0: want both",
                        g->top_groups);
    if (!g->groups)
        return IMBREX_OK;
    if (g->experts % g->groups)
        return imx_fail(IMBREX_INVALID, "gate.groups is %d: want a divisor of gate.experts, %d",
                        g->groups, g->experts);
    IMX_TRY(imx_status_range("gate", "top_groups", g->top_groups, 1, g->groups));
    int left = g->top_groups * (g->experts / g->groups);
    if (left < g->top_k)
        return imx_fail(IMBREX_INVALID,
                        "gate.top_groups is %d, of %d experts each: gate.top_k, %d, wants more",
                        g->top_groups, g->experts / g->groups, g->top_k);
    return IMBREX_OK;
}

static imbrex_status check_gate(const imbrex_gate *g)
{
    IMX_TRY(imx_status_need(g, "gate", "want how tokens choose their experts"));
    IMX_TRY(imx_status_range("gate", "experts", g->experts, 1, IMX_GATE_EXPERTS));
    IMX_TRY(imx_status_range("gate", "top_k", g->top_k, 1, imx_min(g->experts, IMX_GATE_PLACES)));
    IMX_TRY(imx_status_range("gate", "sigmoid", g->sigmoid, 0, 1));
    IMX_TRY(imx_status_range("gate", "renormalize", g->renormalize, 0, 1));
    IMX_TRY(check_groups(g));
    if (!(g->scale >= 0 && g->scale <= FLT_MAX))
        return imx_fail(IMBREX_INVALID, "gate.scale is %g: want a finite number from 0",
                        (double)g->scale);
    if ((unsigned)g->dtype > IMBREX_F32)
        return imx_fail(IMBREX_INVALID, "gate.dtype is %d: want IMBREX_BF16, F16 or F32",
                        (int)g->dtype);
    return imx_status_need_zero(g->reserved, sizeof g->reserved, "gate");
}

/* A matrix that the call reads or writes. */
typedef struct matrix {
    const char *name;
    const void *at;
    size_t bytes, element;
} matrix;

static imbrex_status check_matrix(const matrix *m)
{
    if (m->bytes && !m->at)
        return imx_fail(IMBREX_INVALID, "%s is NULL: want %zu bytes", m->name, m->bytes);
    if ((uintptr_t)m->at % m->element)
        return imx_fail(IMBREX_INVALID, "%s, %p, is not %zu-byte aligned", m->name, m->at,
                        m->element);
    return IMBREX_OK;
}

/* The last two are outputs. */
static imbrex_status check_matrices(const imx_gate_args *a)
{
    enum { COUNT = 4, OUTPUTS = 2 };
    size_t pairs = (size_t)a->tokens * (size_t)a->top_k;
    size_t element = imx_dtype_bytes((imbrex_dtype)a->dtype), experts = (size_t)a->experts;
    const matrix all[COUNT] = {
        { "logits", a->logits, (size_t)a->tokens * experts * element, element },
        { "bias", a->bias, a->bias ? experts * sizeof *a->bias : 0, sizeof *a->bias },
        { "ids", a->ids, pairs * sizeof *a->ids, sizeof *a->ids },
        { "weights", a->weights, pairs * sizeof *a->weights, sizeof *a->weights },
    };
    for (int i = 0; i < COUNT; i++) {
        IMX_TRY(check_matrix(&all[i]));
        for (int j = 0; j < i && i >= COUNT - OUTPUTS; j++) {
            if (imx_overlap(all[i].at, all[i].bytes, all[j].at, all[j].bytes))
                return imx_fail(IMBREX_INVALID,
                                "%s, %p and %zu bytes, overlaps %s, %p and %zu bytes", all[i].name,
                                all[i].at, all[i].bytes, all[j].name, all[j].at, all[j].bytes);
        }
    }
    return IMBREX_OK;
}

imbrex_status imbrex_topk_gate(imbrex_group *group, const imbrex_gate *gate, int64_t tokens,
                               const void *logits, const float *bias, int32_t *ids, float *weights,
                               imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(imx_fault_check(group));
    IMX_TRY(imx_stream_find(group, &stream));
    IMX_TRY(check_gate(gate));
    IMX_TRY(imx_status_range(NULL, "tokens", tokens, 0,
                             ((int64_t)1 << IMX_ELEMENTS_MOST_LOG2) / gate->experts));
    imx_gate_args args = {
        .tokens = tokens,
        .experts = gate->experts,
        .top_k = gate->top_k,
        .sigmoid = gate->sigmoid,
        .renormalize = gate->renormalize,
        .groups = gate->groups ? gate->groups : 1,
        .top_groups = gate->groups ? gate->top_groups : 1,
        .group_best = gate->group_best ? gate->group_best : 1,
        .scale = gate->scale != 0 ? gate->scale : 1,
        .dtype = (int)gate->dtype,
        .logits = logits,
        .bias = bias,
        .ids = ids,
        .weights = weights,
    };
    IMX_TRY(check_matrices(&args));
    if (!tokens)
        return IMBREX_OK;
    IMX_TRY(imx_stream_order_take(&group->gate_order, stream));
    IMX_TRY(group->backend->launch(group->device, group->gate, &args, sizeof args, stream));
    return imx_stream_order_end(&group->gate_order, stream);
}
