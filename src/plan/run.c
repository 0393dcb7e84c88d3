/* run.c - what an operator may do while it enqueues a run: addresses, copies, posts, waits; and the
 * call that starts one. */
#include <string.h>

#include "base/live.h"
#include "base/nvtx.h"
#include "plan.h"

int64_t imx_run_row(const imx_run *run, int rank)
{
    return imx_team_row(run->m, run->ranks, rank);
}

int64_t imx_run_rows(const imx_run *run, int rank)
{
    return imx_run_row(run, rank + 1) - imx_run_row(run, rank);
}

int imx_run_chunks(const imx_run *run, int rank)
{
    if (run->variant->config.spanning)
        return 1; /* also where there are no rows: whoever waits, waits for all */
    return (int)imx_ceil_div(imx_run_rows(run, rank), imx_variant_chunk_rows(run->variant, run->m));
}

int64_t imx_run_chunk_rows(const imx_run *run, int rank, int q)
{
    int64_t chunk = imx_variant_chunk_rows(run->variant, run->m);
    return imx_min(chunk, imx_run_rows(run, rank) - q * chunk);
}

static void *shared_at(const imx_run *run, int rank, size_t offset)
{
    return imx_memory_at(run->plan->shared, rank, run->shared_at + offset);
}

static void *local_at(const imx_run *run, size_t offset)
{
    return (char *)run->plan->local->base + run->local_at + offset;
}

void *imx_run_data(const imx_run *run, int rank)
{
    return shared_at(run, rank, run->variant->offsets.data + run->data_at);
}

uint64_t *imx_run_signal(const imx_run *run, int rank)
{
    return (uint64_t *)shared_at(run, rank, run->variant->offsets.signals) + run->signals_at;
}

void *imx_run_local(const imx_run *run)
{
    return local_at(run, run->variant->offsets.local);
}

uint64_t *imx_run_done(const imx_run *run)
{
    return (uint64_t *)local_at(run, run->variant->offsets.done) + run->done_at;
}

uint32_t *imx_run_counters(const imx_run *run)
{
    return (uint32_t *)local_at(run, run->variant->offsets.counters) + run->done_at;
}

uint32_t *imx_run_ended(const imx_run *run)
{
    if (run->done_at) /* beside its epoch */
        return imx_run_counters(run) - 1;
    return local_at(run, run->variant->offsets.ended);
}

imx_team imx_run_team(const imx_run *run)
{
    const imx_offsets *o = &run->variant->offsets;
    size_t signals = o->signals + run->signals_at * sizeof(uint64_t);
    imx_team team = {
        .rank = run->rank,
        .size = run->ranks,
        .signals = (int64_t)(signals - run->credits_at),
        .data = (int64_t)(o->data + run->data_at - run->credits_at),
    };
    for (int r = 0; r < run->ranks && r < IMX_TEAM_MOST; r++)
        team.base[r] = shared_at(run, r, run->credits_at);
    return team;
}

static imbrex_status hand_over(const imx_run *run, imx_event *event, imbrex_stream from,
                               imbrex_stream to)
{
    const imbrex_group *group = run->plan->group;
    IMX_TRY(group->backend->event_record(group->device, event, from));
    return group->backend->event_wait(group->device, event, to);
}

imbrex_status imx_run_hand_over(const imx_run *run, const imx_aux *aux, imbrex_stream to)
{
    return hand_over(run, aux->event, aux->stream, to);
}

imbrex_status imx_run_fork(const imx_run *run)
{
    const imbrex_plan *plan = run->plan;
    IMX_TRY(hand_over(run, plan->fork, run->stream, plan->comm));
    for (int i = 0; i < plan->aux_count; i++)
        IMX_TRY(
            plan->group->backend->event_wait(plan->group->device, plan->fork, plan->aux[i].stream));
    return IMBREX_OK;
}

imbrex_status imx_run_join(const imx_run *run)
{
    const imbrex_plan *plan = run->plan;
    for (int i = 0; i < plan->aux_count; i++)
        IMX_TRY(imx_run_hand_over(run, &plan->aux[i], run->stream));
    return hand_over(run, plan->join, plan->comm, run->stream);
}

imbrex_status imx_run_copy(const imx_run *run, imbrex_stream stream, void *dst, const void *src,
                           size_t bytes, int rank)
{
    const imbrex_group *group = run->plan->group;
    run->plan->sent_inside += rank == run->rank ? 0 : bytes;
    return bytes ? group->backend->copy(group->device, dst, src, bytes, rank, stream) : IMBREX_OK;
}

static imbrex_status signals(const imx_run *run, imbrex_stream stream, const imx_signal_op *ops,
                             int count)
{
    const imbrex_group *group = run->plan->group;
    return group->backend->signals(group->device, ops, count, stream);
}

static imx_signal_op post_to(const imx_run *run, int peer, uint64_t *at)
{
    return (imx_signal_op){
        .kind = IMX_POST,
        .signal = at,
        .word = run->epoch,
        .point = { .plan = imx_variant_point(run->variant), .rank = peer, .index = -1 },
    };
}

imbrex_status imx_run_post(const imx_run *run, imbrex_stream stream, uint64_t *at, int rank)
{
    const imx_signal_op op = post_to(run, rank, at);
    return signals(run, stream, &op, 1);
}

static imx_signal_op wait_for(const imx_run *run, uint64_t *at, int what, int rank, int index)
{
    return (imx_signal_op){
        .kind = IMX_WAIT,
        .signal = at,
        .word = run->epoch,
        .point = { .plan = imx_variant_point(run->variant),
                   .what = what,
                   .rank = rank,
                   .index = index },
    };
}

imbrex_status imx_run_wait(const imx_run *run, imbrex_stream stream, uint64_t *at, int what,
                           int rank, int index)
{
    const imx_signal_op op = wait_for(run, at, what, rank, index);
    return signals(run, stream, &op, 1);
}

static uint64_t *credit(const imx_run *run, int holder, int giver)
{
    return (uint64_t *)shared_at(run, holder, run->credits_at) + giver;
}

imbrex_status imx_run_step(const imx_run *run, imbrex_stream stream, int lane,
                           const imx_transfer *transfers, int count)
{
    const imbrex_group *group = run->plan->group;
    imx_net_op ops[IMX_NET_OPS];
    imx_signal_op posts[IMX_NET_OPS];
    int moved = 0, raised = 0;
    for (int i = 0; i < count; i++) {
        const imx_transfer *t = &transfers[i];
        if (t->op.bytes)
            ops[moved++] = t->op;
        if (t->signal)
            posts[raised++] = post_to(run, run->rank, t->signal);
        run->plan->sent_between += t->op.receives ? 0 : t->op.bytes;
    }
    if (moved)
        IMX_TRY(
            group->net_kind->step(group->net, run->plan->object.number, lane, ops, moved, stream));
    return raised ? signals(run, stream, posts, raised) : IMBREX_OK;
}

imbrex_status imx_run_launch(const imx_run *run, imbrex_stream stream, int kernel, const void *args,
                             size_t args_bytes)
{
    const imbrex_group *group = run->plan->group;
    return group->backend->launch(group->device, run->variant->kernels[kernel], args, args_bytes,
                                  stream);
}

imbrex_status imx_run_gemm(const imx_run *run, int kernel, const imx_gemm_args *args)
{
    if (!run->m || !run->variant->shape.n)
        return IMBREX_OK;
    return imx_run_launch(run, run->stream, kernel, args, sizeof *args);
}

/* Signals of one call, which on some devices is a kernel's launch. */
typedef struct batch {
    int count;
    imx_signal_op ops[IMX_SIGNALS_MOST];
} batch;

static imbrex_status flush(const imx_run *run, batch *b)
{
    int count = b->count;
    b->count = 0;
    return count ? signals(run, run->stream, b->ops, count) : IMBREX_OK;
}

static imbrex_status add(const imx_run *run, batch *b, imx_signal_op op)
{
    b->ops[b->count++] = op;
    return b->count == (int)(sizeof b->ops / sizeof b->ops[0]) ? flush(run, b) : IMBREX_OK;
}

/* The ranks of this node, which write each other's memory; 0: oneself, 1: the next one. */
static int local_peers(const imx_run *run)
{
    return run->plan->group->nodes.ranks;
}

static int local_peer(const imx_run *run, int i)
{
    return imx_nodes_mate(&run->plan->group->nodes, i);
}

imbrex_status imx_run_begin(const imx_run *run)
{
    batch b;
    b.count = 0;
    if (run->ranks == 1)
        return IMBREX_OK; /* nobody compares epoch with anything */
    imx_signal_op advance = post_to(run, run->rank, run->epoch);
    advance.add = 1;
    IMX_TRY(add(run, &b, advance));
    for (int i = 1; i < local_peers(run); i++) {
        int peer = local_peer(run, i);
        imx_signal_op wait =
            wait_for(run, credit(run, run->rank, peer), IMX_POINT_CREDIT, peer, -1);
        wait.add = UINT64_MAX; /* -1: the epoch before this one */
        wait.beside = true;
        IMX_TRY(add(run, &b, wait));
    }
    return flush(run, &b);
}

imbrex_status imx_run_meet(const imx_run *run, int mine, int stride, int what)
{
    batch b;
    b.count = 0;
    for (int i = 1; i < local_peers(run); i++) {
        int peer = local_peer(run, i);
        IMX_TRY(add(run, &b, post_to(run, peer, imx_run_signal(run, peer) + mine)));
    }
    for (int i = 1; i < local_peers(run); i++) {
        int peer = local_peer(run, i);
        uint64_t *at = imx_run_signal(run, run->rank) + (size_t)peer * (size_t)stride;
        imx_signal_op wait = wait_for(run, at, what, peer, 0);
        wait.beside = i > 1;
        IMX_TRY(add(run, &b, wait));
    }
    return flush(run, &b);
}

imbrex_status imx_run_end(const imx_run *run)
{
    batch b;
    b.count = 0;
    for (int i = 1; i < local_peers(run); i++) {
        int peer = local_peer(run, i);
        IMX_TRY(add(run, &b, post_to(run, peer, credit(run, peer, run->rank))));
    }
    return flush(run, &b);
}

/* ---- the call -------------------------------------------------------------------------------- */

static imbrex_status enqueue(const imx_run *run)
{
    imbrex_plan *plan = run->plan;
    /* Runs follow each other also when they are on different streams: a plan's kernels and second
     * stream are there once. */
    const imx_around *around = plan->op->around;
    IMX_TRY(imx_stream_order_take(&plan->order, run->stream));
    IMX_TRY(around ? around->run(run) : run->variant->algorithm->run(run));
    return imx_stream_order_end(&plan->order, run->stream);
}

/* No event says when the part that is enqueued is done with the plan's memory. */
static imbrex_status give_up(const imx_run *run, imbrex_status status)
{
    const imbrex_plan *plan = run->plan;
    imbrex_stream streams[2 + IMX_AUXES] = { run->stream, plan->comm };
    for (int i = 0; i < plan->aux_count; i++)
        streams[2 + i] = plan->aux[i].stream;
    return imx_fault_give_up(plan->group, imx_variant_point(run->variant), status, streams,
                             2 + plan->aux_count);
}

/* type: what args are. */
static imbrex_status run_plan(imbrex_plan *plan, const imx_args_type *type, const void *args,
                              imbrex_stream stream)
{
    imx_status_enter(type->run);
    IMX_TRY(imx_live_need(IMX_LIVE_PLAN, plan));
    IMX_ENTER_WORK(plan->group);
    IMX_TRY(imx_fault_check(plan->group));
    IMX_TRY(imx_group_runs(plan->group));
    if (type != imx_args_type_of(plan->op))
        return imx_fail(IMBREX_INVALID, "plan is %s's, which %s runs", plan->op->info.name,
                        imx_args_type_of(plan->op)->run);
    IMX_TRY(imx_status_need(args, "args", "want the matrices of the run"));
    const int64_t asked_rows = imx_args_rows(plan->op, args);
    const int64_t m = imx_count(asked_rows, plan->shape.m);
    const imx_asked asked = { plan->group, plan->op, &plan->shape, plan->desc, args };
    IMX_TRY(imx_args_check(&asked, m));
    IMX_TRY(imx_stream_find(plan->group, &stream));
    IMX_TRY(imx_net_check_stream(plan->group, stream));
    int64_t alike = plan->op->own_rows ? 0 : m;
    IMX_TRY(imx_agree_run(plan->group, plan->object.number, alike));
    if (asked_rows == IMBREX_NONE && !plan->op->own_rows)
        return IMBREX_OK; /* no rank has rows */
    imx_variant *variant = imx_variant_of(plan, m);
    size_t buffer = variant->runs++ % 2;
    imx_run run = {
        .plan = plan,
        .variant = variant,
        .given = args,
        .stream = stream,
        .m = m,
        .rank = plan->group->rank,
        .ranks = plan->group->size,
        .shared_at = variant->shared_at + buffer * variant->offsets.buffer_bytes,
        .local_at = variant->local_at + buffer * variant->offsets.local_bytes,
    };
    run.epoch = local_at(&run, 0);
    plan->sent_inside = plan->sent_between = 0;
    imx_nvtx_begin(plan->op->info.name, m, variant->algorithm->name);
    imbrex_status status = enqueue(&run);
    imx_nvtx_end();
    return status == IMBREX_OK ? IMBREX_OK : give_up(&run, status);
}

imbrex_status imx_run_given(imbrex_plan *plan, const void *args, imbrex_stream stream)
{
    return run_plan(plan, imx_args_type_of(plan->op), args, stream);
}

imbrex_status imbrex_plan_run(imbrex_plan *plan, const imbrex_args *args, imbrex_stream stream)
{
    return run_plan(plan, &imx_args_usual, args, stream);
}

imbrex_status imbrex_plan_run_decode(imbrex_plan *plan, const imbrex_decode_args *args,
                                     imbrex_stream stream)
{
    return run_plan(plan, &imx_args_decode, args, stream);
}
