/* stream.c - the public calls that enqueue one thing: checks, then the backend. */
#include "stream.h"

#include <stdio.h>
#include <string.h>

#include "call.h"
#include "fault.h"
#include "kernels/activate/args.h"
#include "kernels/norm/args.h"
#include "kernels/wait_points.h"
#include "memory.h"
#include "net.h"

imbrex_status imbrex_stream_create(imbrex_group *group, imbrex_stream *stream)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(imx_status_need(stream, "stream", "want where to put it"));
    return group->backend->stream_create(group->device, stream);
}

void imbrex_stream_destroy(imbrex_group *group, imbrex_stream stream)
{
    IMX_CALL call = { 0 };
    if (!imx_call_await(&call, group))
        return;
    imx_status_mute(true);
    if (imx_stream_find(group, &stream) == IMBREX_OK && stream != group->stream)
        group->backend->stream_destroy(group->device, stream);
    imx_status_mute(false);
}

imbrex_status imbrex_stream_sync(imbrex_group *group, imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(imx_stream_find(group, &stream));
    IMX_TRY(group->backend->stream_sync(group->device, stream));
    return imx_fault_check(group);
}

/* Before anything is enqueued: the group has not failed, and the stream is one of its own. */
static imbrex_status get_ready(const imbrex_group *group, imbrex_stream *stream)
{
    IMX_TRY(imx_fault_check(group));
    return imx_stream_find(group, stream);
}

imbrex_status imx_stream_copy(const imbrex_group *group, void *dst, const void *src, size_t bytes,
                              int rank, imbrex_stream stream)
{
    const imx_backend *backend = group->backend;
    return (backend->copy_any ? backend->copy_any : backend->copy)(group->device, dst, src, bytes,
                                                                   rank, stream);
}

static imbrex_status check_copy(const void *dst, const void *src, size_t bytes)
{
    if (bytes && (!dst || !src))
        return imx_fail(IMBREX_INVALID, "%s is NULL", dst ? "src" : "dst");
    if (bytes > PTRDIFF_MAX)
        return imx_fail(IMBREX_INVALID, "bytes is %zu: want at most %td", bytes,
                        (ptrdiff_t)PTRDIFF_MAX);
    if (imx_overlap(dst, bytes, src, bytes))
        return imx_fail(IMBREX_INVALID, "dst, %p and %zu bytes, overlaps src, %p", dst, bytes, src);
    return IMBREX_OK;
}

imbrex_status imbrex_copy(imbrex_group *group, void *dst, const void *src, size_t bytes,
                          imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(get_ready(group, &stream));
    IMX_TRY(check_copy(dst, src, bytes));
    return imx_stream_copy(group, dst, src, bytes, group->rank, stream);
}

static imbrex_status need_here(const imbrex_group *group, int rank)
{
    const imx_nodes *nodes = &group->nodes;
    if (imx_nodes_here(nodes, rank))
        return IMBREX_OK;
    return imx_fail(IMBREX_UNSUPPORTED,
                    "rank %d is on node %d (%s), and rank %d on node %d (%s): memory is reached "
                    "within a node only",
                    rank, nodes->of[rank], nodes->name[nodes->of[rank]], group->rank, nodes->own,
                    nodes->name[nodes->own]);
}

imbrex_status imbrex_put(imbrex_group *group, void *dst, const void *src, size_t bytes, int rank,
                         imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER_WORK(group);
    IMX_TRY(get_ready(group, &stream));
    void *peer;
    IMX_TRY(imx_memory_find(group, "dst", dst, bytes, rank, &peer));
    IMX_TRY(need_here(group, rank));
    IMX_TRY(check_copy(peer, src, bytes));
    return imx_stream_copy(group, peer, src, bytes, rank, stream);
}

static imbrex_status find_signal(imbrex_group *group, const uint64_t *signal, int rank,
                                 uint64_t **peer)
{
    if ((uintptr_t)signal % sizeof *signal)
        return imx_fail(IMBREX_INVALID, "signal, %p, is not 8-byte aligned", (const void *)signal);
    void *found;
    IMX_TRY(imx_memory_find(group, "signal", signal, sizeof *signal, rank, &found));
    IMX_TRY(need_here(group, rank));
    *peer = found;
    return IMBREX_OK;
}

imbrex_status imbrex_signal_post(imbrex_group *group, uint64_t *signal, uint64_t value, int rank,
                                 imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER_WORK(group);
    IMX_TRY(get_ready(group, &stream));
    imx_signal_op op = { .kind = IMX_POST, .add = value, .point = { .rank = rank, .index = -1 } };
    IMX_TRY(find_signal(group, signal, rank, &op.signal));
    return group->backend->signals(group->device, &op, 1, stream);
}

imbrex_status imbrex_signal_wait(imbrex_group *group, const uint64_t *signal, uint64_t value,
                                 imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(get_ready(group, &stream));
    imx_signal_op op = {
        .kind = IMX_WAIT,
        .add = value,
        .point = { .what = IMX_POINT_USER, .rank = -1, .index = -1 },
    };
    IMX_TRY(find_signal(group, signal, group->rank, &op.signal));
    return group->backend->signals(group->device, &op, 1, stream);
}

/* All of a node tell all: one post and one wait a peer, all posts at once, then all waits.  R is
 * small inside a node, and this is one latency; a dissemination barrier would be log2(R).
 * *begun: a part is enqueued. */
static imbrex_status meet_in_node(imbrex_group *group, imbrex_stream stream, bool *begun)
{
    const imx_nodes *nodes = &group->nodes;
    imx_meeting *own = imx_meeting_of(group, group->rank);
    imx_signal_op ops[IMX_SIGNALS_MOST];
    int count = 0;
    ops[count++] = (imx_signal_op){
        .kind = IMX_POST,
        .signal = &own->epoch,
        .word = &own->epoch,
        .add = 1,
        .point = { .rank = group->rank, .index = -1 },
    };
    for (int kind = IMX_POST; kind <= IMX_WAIT; kind++) {
        for (int i = 1; i < nodes->ranks; i++) {
            int peer = imx_nodes_mate(nodes, i);
            ops[count++] = (imx_signal_op){
                .kind = (imx_signal_kind)kind,
                .signal = kind == IMX_POST ? &imx_meeting_of(group, peer)->arrived[group->rank]
                                           : &own->arrived[peer],
                .word = &own->epoch,
                .point = { .what = IMX_POINT_BARRIER, .rank = peer, .index = -1 },
                .beside = kind == IMX_POST || i > 1,
            };
            if (count < IMX_SIGNALS_MOST)
                continue;
            IMX_TRY(group->backend->signals(group->device, ops, count, stream));
            *begun = true;
            count = 0;
        }
    }
    if (count)
        IMX_TRY(group->backend->signals(group->device, ops, count, stream));
    *begun = true;
    return IMBREX_OK;
}

/* Over nodes: each node meets, then their first ranks do, then each node again, to hear of it. */
static imbrex_status meet(imbrex_group *group, imbrex_stream stream, bool *begun)
{
    IMX_TRY(meet_in_node(group, stream, begun));
    if (group->nodes.count == 1)
        return IMBREX_OK;
    IMX_TRY(imx_net_meet(group, stream));
    return meet_in_node(group, stream, begun);
}

imbrex_status imbrex_barrier(imbrex_group *group, imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER_WORK(group);
    IMX_TRY(get_ready(group, &stream));
    IMX_TRY(imx_net_check_stream(group, stream));
    bool begun = false;
    imbrex_status status = meet(group, stream, &begun);
    return status == IMBREX_OK || !begun ? status : imx_fault_give_up(group, 0, status, &stream, 1);
}

/* ---- one at a time --------------------------------------------------------------------------- */

/* With the group, not at its first use: nothing may be loaded while kernels of this or another rank
 * wait for each other. */
imbrex_status imx_stream_begin(imbrex_group *group)
{
    imx_activate_args any = { 0 };
    if (group->nodes.count > 1)
        IMX_TRY(imx_stream_order_create(group->backend, group->device, &group->exchange_order));
    IMX_TRY(imx_stream_order_create(group->backend, group->device, &group->activate_order));
    IMX_TRY(imx_stream_order_create(group->backend, group->device, &group->norm_order));
    imx_norm_args rows = { 0 };
    IMX_TRY(group->backend->prepare(group->device, &imx_kernel_norm, &rows, group->workers,
                                    &group->norm));
    return group->backend->prepare(group->device, &imx_kernel_activate, &any, group->workers,
                                   &group->activate);
}

void imx_stream_end(imbrex_group *group)
{
    imx_stream_order_destroy(&group->exchange_order, group->stream);
    imx_stream_order_destroy(&group->activate_order, group->stream);
    imx_stream_order_destroy(&group->norm_order, group->stream);
    if (group->norm)
        group->backend->prepared_destroy(group->device, group->norm);
    if (group->activate)
        group->backend->prepared_destroy(group->device, group->activate);
}

/* ---- between nodes --------------------------------------------------------------------------- */

/* Whether the ranks can be joined by every engine: NCCL's communicators have one rank a node. */
static imbrex_status check_other(const imbrex_group *group, int i, int rank)
{
    const imx_nodes *nodes = &group->nodes;
    if (rank < 0 || rank >= group->size)
        return imx_fail(IMBREX_INVALID, "transfers[%d].rank is %d: the group has ranks 0 to %d", i,
                        rank, group->size - 1);
    int node = nodes->of[rank], number = rank - nodes->first[node];
    if (node == nodes->own)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "transfers[%d].rank is %d, which is on this rank's node (%s): use "
                        "imbrex_put there",
                        i, rank, nodes->name[node]);
    if (number != nodes->local)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "transfers[%d].rank is %d, number %d within its node, and this rank is "
                        "number %d within its own: want the same number",
                        i, rank, number, nodes->local);
    return IMBREX_OK;
}

static imbrex_status check_transfer(imbrex_group *group, int i, const imbrex_transfer *t,
                                    imx_net_op *op)
{
    char what[32];
    void *own;
    IMX_TRY(check_other(group, i, t->rank));
    snprintf(what, sizeof what, "transfers[%d]", i);
    IMX_TRY(imx_status_need_zero(t->reserved, sizeof t->reserved, what));
    if (t->bytes && !t->send == !t->recv)
        return imx_fail(IMBREX_INVALID, "transfers[%d].send and .recv are %s: want one of them", i,
                        t->send ? "both given" : "both NULL");
    if (t->bytes > PTRDIFF_MAX)
        return imx_fail(IMBREX_INVALID, "transfers[%d].bytes is %zu: want at most %td", i, t->bytes,
                        (ptrdiff_t)PTRDIFF_MAX);
    snprintf(what, sizeof what, "transfers[%d].recv", i);
    if (t->bytes && t->recv)
        IMX_TRY(imx_memory_find(group, what, t->recv, t->bytes, group->rank, &own));
    *op = (imx_net_op){ .receives = t->recv != NULL,
                        .rank = t->rank,
                        .at = t->recv ? t->recv : (void *)(uintptr_t)t->send,
                        .bytes = t->bytes };
    return IMBREX_OK;
}

static imbrex_status check_overlap(const imx_net_op *ops, int count)
{
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            if ((ops[i].receives || ops[j].receives) &&
                imx_overlap(ops[i].at, ops[i].bytes, ops[j].at, ops[j].bytes))
                return imx_fail(IMBREX_INVALID,
                                "two transfers overlap, at %p and %p, with %zu and "
                                "%zu bytes, and one receives",
                                ops[j].at, ops[i].at, ops[j].bytes, ops[i].bytes);
        }
    }
    return IMBREX_OK;
}

imbrex_status imbrex_exchange(imbrex_group *group, const imbrex_transfer *transfers, int count,
                              imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER_WORK(group);
    IMX_TRY(get_ready(group, &stream));
    if (count < 0 || count > IMX_NET_OPS)
        return imx_fail(IMBREX_INVALID, "count is %d: want from 0 to %d", count, IMX_NET_OPS);
    if (count)
        IMX_TRY(imx_status_need(transfers, "transfers", "want count of them"));
    imx_net_op ops[IMX_NET_OPS];
    int moved = 0;
    for (int i = 0; i < count; i++) {
        IMX_TRY(check_transfer(group, i, &transfers[i], &ops[moved]));
        moved += transfers[i].bytes > 0;
    }
    IMX_TRY(check_overlap(ops, moved));
    if (!moved)
        return IMBREX_OK;
    if (!group->net)
        return imx_fail(IMBREX_UNSUPPORTED, "device %s only compiles: it sends nothing",
                        group->device_name);
    IMX_TRY(imx_net_check_stream(group, stream));
    IMX_TRY(imx_stream_order_take(&group->exchange_order, stream));
    IMX_TRY(group->net_kind->step(group->net, IMX_NET_EXCHANGES, 0, ops, moved, stream));
    return imx_stream_order_end(&group->exchange_order, stream);
}

/* ---- activations ----------------------------------------------------------------------------- */

static imbrex_status check_activation(const imbrex_activation *desc)
{
    IMX_TRY(imx_status_need(desc, "desc", "want what to compute"));
    IMX_TRY(imx_status_need_zero(desc->reserved, sizeof desc->reserved, "desc"));
    if ((unsigned)desc->kind > IMBREX_RELU2)
        return imx_fail(IMBREX_INVALID,
                        "desc.kind is %d: want IMBREX_SILU, GELU, GELU_TANH, RELU or RELU2",
                        (int)desc->kind);
    if (desc->gated != 0 && desc->gated != 1)
        return imx_fail(IMBREX_INVALID, "desc.gated is %d: want 0 or 1", desc->gated);
    if ((unsigned)desc->quant > IMBREX_PER_BLOCK)
        return imx_fail(IMBREX_INVALID,
                        "desc.quant is %d: want IMBREX_UNSCALED, PER_TENSOR, PER_ROW or PER_BLOCK",
                        (int)desc->quant);
    if (desc->power_of_two != 0 && desc->power_of_two != 1)
        return imx_fail(IMBREX_INVALID, "desc.power_of_two is %d: want 0 or 1", desc->power_of_two);
    if (desc->power_of_two && desc->quant != IMBREX_PER_ROW && desc->quant != IMBREX_PER_BLOCK)
        return imx_fail(IMBREX_INVALID, "desc.power_of_two is 1 and desc.quant computes no scales: "
                                        "want IMBREX_PER_ROW or PER_BLOCK");
    return IMBREX_OK;
}

static imbrex_status check_sizes(const imx_activate_args *args)
{
    if ((unsigned)args->dtype > IMBREX_F32)
        return imx_fail(IMBREX_INVALID, "dtype is %d: want IMBREX_BF16, F16 or F32", args->dtype);
    if (args->rows < 0 || args->cols < 0)
        return imx_fail(IMBREX_INVALID, "rows is %lld, cols is %lld: want from 0",
                        (long long)args->rows, (long long)args->cols);
    return imx_status_elements(NULL, "rows x cols", args->rows, args->cols);
}

static size_t scales_of(const imx_activate_args *args)
{
    switch ((imbrex_scaling)args->quant) {
    case IMBREX_PER_TENSOR:
        return 1;
    case IMBREX_PER_ROW:
        return (size_t)args->rows;
    case IMBREX_PER_BLOCK:
        return (size_t)args->rows * (size_t)imx_ceil_div(args->cols, IMX_SCALE_BLOCK);
    default:
        return 0;
    }
}

/* Of an activation that has elements; out_bytes: of out. */
static imbrex_status check_scales(const imx_activate_args *args, size_t in_bytes, size_t out_bytes)
{
    const float *scales = args->scales;
    size_t bytes = scales_of(args) * sizeof *scales;
    if (!args->quant)
        return IMBREX_OK;
    if (args->cols > IMX_SCALE_COLUMNS)
        return imx_fail(IMBREX_UNSUPPORTED, "cols is %lld: want at most %d where out is quantised",
                        (long long)args->cols, IMX_SCALE_COLUMNS);
    if (!scales)
        return imx_fail(IMBREX_INVALID, "scales is NULL: want %zu, since desc.quant is not 0",
                        scales_of(args));
    if ((uintptr_t)scales % sizeof *scales)
        return imx_fail(IMBREX_INVALID, "scales, %p, is not %zu-byte aligned", (const void *)scales,
                        sizeof *scales);
    bool in = imx_overlap(scales, bytes, args->in, in_bytes);
    if (in || imx_overlap(scales, bytes, args->out, out_bytes))
        return imx_fail(IMBREX_INVALID, "scales, %p and %zu bytes, overlaps %s",
                        (const void *)scales, bytes, in ? "in" : "out");
    if (args->rows_here && imx_overlap(args->rows_here, sizeof *args->rows_here, scales, bytes))
        return imx_fail(IMBREX_INVALID, "rows_here, %p, lies in scales, %p and %zu bytes",
                        (const void *)args->rows_here, (const void *)scales, bytes);
    return IMBREX_OK;
}

static imbrex_status check_activate(const imx_activate_args *args)
{
    IMX_TRY(check_sizes(args));
    size_t element = imx_dtype_bytes((imbrex_dtype)args->dtype);
    size_t to = args->quant ? imx_dtype_bytes(IMBREX_E4M3) : element;
    size_t elements = (size_t)(args->rows * args->cols), bytes = elements * to;
    size_t in_bytes = (args->gated ? 2 : 1) * elements * element;
    if (!args->quant && args->scales)
        return imx_fail(IMBREX_INVALID, "scales is %p: want NULL, nothing is scaled",
                        (const void *)args->scales);
    if ((uintptr_t)args->rows_here % sizeof *args->rows_here)
        return imx_fail(IMBREX_INVALID, "rows_here, %p, is not %zu-byte aligned",
                        (const void *)args->rows_here, sizeof *args->rows_here);
    if (!bytes)
        return IMBREX_OK;
    if (!args->in || !args->out)
        return imx_fail(IMBREX_INVALID, "%s is NULL", args->in ? "out" : "in");
    uintptr_t in = (uintptr_t)args->in, out = (uintptr_t)args->out;
    if (in % element || out % to)
        return imx_fail(IMBREX_INVALID, "%s, %p, is not %zu-byte aligned",
                        in % element ? "in" : "out", in % element ? args->in : args->out,
                        in % element ? element : to);
    if (imx_overlap(args->in, in_bytes, args->out, bytes))
        return imx_fail(IMBREX_INVALID, "out, %p and %zu bytes, overlaps in, %p and %zu bytes",
                        args->out, bytes, args->in, in_bytes);
    if (args->rows_here && imx_overlap(args->rows_here, sizeof *args->rows_here, args->out, bytes))
        return imx_fail(IMBREX_INVALID, "rows_here, %p, lies in out, %p and %zu bytes",
                        (const void *)args->rows_here, args->out, bytes);
    return check_scales(args, in_bytes, bytes);
}

static imbrex_status enqueue_activate(imbrex_group *group, const imx_activate_args *args,
                                      imbrex_stream stream)
{
    IMX_TRY(check_activate(args));
    IMX_TRY(imx_stream_order_take(&group->activate_order, stream));
    IMX_TRY(group->backend->launch(group->device, group->activate, args, sizeof *args, stream));
    return imx_stream_order_end(&group->activate_order, stream);
}

imbrex_status imbrex_activate(imbrex_group *group, const imbrex_activation *desc, int64_t rows,
                              int64_t cols, const void *in, void *out, float *scales,
                              const int32_t *rows_here, imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(get_ready(group, &stream));
    IMX_TRY(check_activation(desc));
    imx_activate_args args = {
        .rows = rows,
        .cols = cols,
        .kind = (int)desc->kind,
        .gated = desc->gated,
        .dtype = (int)imx_dtype_or(desc->dtype, IMBREX_BF16),
        .in = in,
        .out = out,
        .quant = (int)desc->quant,
        .power_of_two = desc->power_of_two,
        .scales = scales,
        .rows_here = rows_here,
    };
    return enqueue_activate(group, &args, stream);
}

imbrex_status imbrex_silu_mul(imbrex_group *group, imbrex_dtype dtype, int64_t rows, int64_t cols,
                              const void *in, void *out, imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(get_ready(group, &stream));
    imx_activate_args args = {
        .rows = rows,
        .cols = cols,
        .kind = IMBREX_SILU,
        .gated = 1,
        .dtype = (int)imx_dtype_or(dtype, IMBREX_BF16),
        .in = in,
        .out = out,
    };
    return enqueue_activate(group, &args, stream);
}
