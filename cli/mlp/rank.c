/* rank.c - one rank: load, make the blocks, time them, check, trace, report. */
#include "mlp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "measure.h"
#include "text.h"

enum { WARM = 2 };
enum { PRODUCTS, SEQUENTIAL, OVERLAPPED, VERSIONS };

/* All that a rank holds while it works; the blocks' operands lie in symmetric memory. */
typedef struct rank_state {
    const mlp_request *request;
    const mlp_model *model;
    imbrex_group *group, *alone; /* alone: this rank by itself, for the products without peers */
    share share;
    mlp_shape shape;
    int rank, ranks;
    int64_t row0, rows;
    mlp_loaded on;
    mlp_choice choice; /* of all tokens, on the host */
    cuda_timer *timer; /* NULL: the host's clock, on the groups' default streams */
    imbrex_stream stream;
    mlp_block overlapped, sequential, products;
    candidate candidates[VERSIONS];
    cuda_graph *graphs[VERSIONS];
    mlp_result result;
    progress bar, *shown; /* shown: &bar on rank 0, else NULL */
} rank_state;

/* What all tokens chose in the overlapped version's last run: pairs of each rank are in the result
 * then. */
static imbrex_status look_at_choice(rank_state *s)
{
    const mlp_expert_set *set = &s->shape.routed;
    size_t pairs = (size_t)(s->shape.tokens * set->gate.top_k);
    if (!s->choice.ids) {
        s->choice.ids = malloc(pairs * sizeof *s->choice.ids + 1);
        s->choice.weights = malloc(pairs * sizeof *s->choice.weights + 1);
    }
    if (!s->choice.ids || !s->choice.weights)
        return IMBREX_NO_MEMORY;
    TRY(moe_block_choice(&s->overlapped, s->choice.ids, s->choice.weights));
    moe_count_pairs(set, s->ranks, s->shape.tokens, s->choice.ids, s->result.pairs,
                    &s->result.most_of_expert);
    return IMBREX_OK;
}

/* For the products alone: the ids that a first run chooses, as this rank's experts number them. */
static imbrex_status choose_once(rank_state *s, mlp_operands *all)
{
    const mlp_expert_set *set = &s->shape.routed;
    size_t bytes = (size_t)(s->shape.tokens * set->gate.top_k) * sizeof(int32_t);
    void *ids;
    TRY(mlp_block_run(&s->overlapped));
    TRY(look_at_choice(s));
    moe_keep_own(set, s->shape.tokens, s->choice.ids);
    TRY(imbrex_mem_alloc(s->alone, bytes ? bytes : 1, &ids));
    imbrex_status status = imbrex_copy(s->alone, ids, s->choice.ids, bytes, NULL);
    all->routed.ids = ids;
    return failure_drain(status, s->alone, NULL);
}

static imbrex_status make_blocks(rank_state *s)
{
    const mlp_request *q = s->request;
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &one, .device = imbrex_group_device(s->group) };
    const bool experts = s->shape.routed.experts > 0;
    mlp_operands all = s->on.all;
    TRY(imbrex_group_create(&desc, &s->alone));
    TRY(mlp_block_create(s->group, &s->shape, q->algorithm, 0, &s->on.own, &s->overlapped));
    TRY(mlp_block_create(s->group, &s->shape, "sequential", 0, &s->on.own, &s->sequential));
    if (experts)
        TRY(choose_once(s, &all));
    TRY(mlp_block_create(s->alone, &s->shape, "sequential", 1, &all, &s->products));
    const mlp_block *b = &s->overlapped;
    imbrex_plan_describe(experts ? b->routed.gate_up : b->gate_up, s->result.gate_up,
                         sizeof s->result.gate_up);
    imbrex_plan_describe(experts ? b->routed.down : b->down, s->result.down, sizeof s->result.down);
    return share_barrier(s->group);
}

static imbrex_status time_blocks(rank_state *s)
{
    const candidate versions[VERSIONS] = {
        [PRODUCTS] = { "products", mlp_block_run, &s->products, s->alone, 1, 0 },
        [SEQUENTIAL] = { "sequential", mlp_block_run, &s->sequential, s->group, 1, 0 },
        [OVERLAPPED] = { "overlapped", mlp_block_run, &s->overlapped, s->group, 1, 0 },
    };
    memcpy(s->candidates, versions, sizeof versions);
    if (s->timer)
        TRY(job_prepare_gpu(s->timer, &s->share, s->candidates, VERSIONS, OVERLAPPED,
                            s->request->graph, s->graphs));
    TRY(measure_by(s->timer, &s->share, s->candidates, VERSIONS, WARM, (int)s->request->rounds,
                   s->shown));
    s->result.products_us = s->candidates[PRODUCTS].us;
    s->result.sequential_us = s->candidates[SEQUENTIAL].us;
    s->result.overlapped_us = s->candidates[OVERLAPPED].us;
    return IMBREX_OK;
}

/* One more call of the overlapped version, over a y of NaN; `whole` then gathers all rows, where
 * each rank has its own. */
static imbrex_status enqueue_whole(rank_state *s, imbrex_plan *whole, void *host, size_t bytes)
{
    const candidate *overlapped = &s->candidates[OVERLAPPED];
    const bool replicated = s->shape.replicated;
    const imbrex_args args = { .a = s->on.own_y, .c = s->on.all_y };
    size_t own = (size_t)(s->rows * s->shape.hidden * matrix_dtype_bytes(s->shape.dtype));
    size_t mine = replicated ? bytes : own;
    memset(host, 0xff, mine);
    TRY(imbrex_copy(s->group, s->on.own.y, host, mine, s->stream));
    TRY(overlapped->enqueue(overlapped->ctx));
    if (!replicated)
        TRY(imbrex_plan_run(whole, &args, s->stream));
    return imbrex_copy(s->group, host, s->on.all_y, bytes, s->stream);
}

/* The overlapped version's y, all ranks' rows, in host memory; the caller frees it. */
static imbrex_status collect(rank_state *s, void **host)
{
    imbrex_coll_desc desc = { .m = s->shape.tokens, .n = s->shape.hidden, .dtype = s->shape.dtype };
    imbrex_plan *whole;
    TRY(imbrex_plan_all_gather(s->group, &desc, &whole));
    size_t bytes = (size_t)(s->shape.tokens * s->shape.hidden * matrix_dtype_bytes(s->shape.dtype));
    *host = malloc(bytes + 1);
    imbrex_status status = *host ? enqueue_whole(s, whole, *host, bytes) : IMBREX_NO_MEMORY;
    status = failure_drain(status, s->group, s->stream);
    imbrex_plan_destroy(whole);
    return status;
}

static imbrex_status check(rank_state *s, const char *y)
{
    int apart = 0;
    const mlp_choice own = mlp_choice_from(&s->choice, s->shape.routed.gate.top_k, s->row0);
    const size_t bytes =
        (size_t)(s->shape.tokens * s->shape.hidden * matrix_dtype_bytes(s->shape.dtype));
    if (s->shape.replicated)
        TRY(job_compare(&s->share, y, bytes, &apart));
    mlp_error mine, *all = calloc((size_t)s->ranks, sizeof *all);
    const mlp_model *m = s->model;
    const char *at =
        y + (size_t)(s->row0 * s->shape.hidden) * (size_t)matrix_dtype_bytes(s->shape.dtype);
    bool ok = all && mlp_check(s->request->reference, &m->x, s->shape.dtype, s->row0, s->rows, at,
                               &own, s->shown, &mine);
    imbrex_status status = ok ? share_all(&s->share, &mine, sizeof mine, all) : IMBREX_NO_MEMORY;
    mlp_error sum = { 0 };
    for (int r = 0; r < s->ranks && status == IMBREX_OK; r++)
        mlp_check_add(&sum, &all[r]);
    sum.apart = apart;
    s->result.error = sum;
    s->result.checked = true;
    free(all);
    return status;
}

/* ---- the picture ----------------------------------------------------------------------------- */

typedef struct traced_block {
    rank_state *state;
    mlp_block *block;
} traced_block;

static imbrex_status run_traced(void *ctx)
{
    const traced_block *t = ctx;
    TRY(mlp_block_run(t->block));
    return imbrex_stream_sync(t->state->group, t->state->stream);
}

/* On a GPU the block is made anew, while tracing is on: its kernels are then compiled to tell. */
static imbrex_status trace_block(rank_state *s, mlp_block *block, const char *algorithm,
                                 double median_us, spans *out)
{
    mlp_block telling = { 0 };
    traced_block which = { s, s->timer ? &telling : block };
    const job_traced t = { { s->group }, 1, &s->share, run_traced, &which };
    if (!s->timer)
        return job_trace(&t, median_us, out);
    TRY(job_trace_begin(&t));
    TRY(mlp_block_create(s->group, &s->shape, algorithm, 0, &block->on, &telling));
    imbrex_status status = job_trace(&t, median_us, out);
    mlp_block_destroy(&telling);
    return status;
}

static int picture(rank_state *s)
{
    spans overlapped = { 0 }, sequential = { 0 };
    imbrex_status status =
        trace_block(s, &s->overlapped, s->request->algorithm, s->result.overlapped_us, &overlapped);
    if (status == IMBREX_OK)
        status = trace_block(s, &s->sequential, "sequential", s->result.sequential_us, &sequential);
    bool written = true;
    char error[512];
    if (status == IMBREX_OK && s->rank == 0)
        written = mlp_write_timeline(&s->result, &overlapped, &sequential, s->request->timeline,
                                     error, sizeof error);
    spans_free(&overlapped);
    spans_free(&sequential);
    if (!written)
        text_say(stderr, "imbrex mlp: %s\n", error);
    if (status != IMBREX_OK)
        failure_say("mlp", s->group, status);
    return status == IMBREX_OK && written ? CLI_OK : CLI_FAILED;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static imbrex_status begin(rank_state *s)
{
    const mlp_request *q = s->request;
    const mlp_model *m = s->model;
    imbrex_group_desc desc = { .device = q->device };
    TRY(imbrex_group_create(&desc, &s->group));
    s->rank = imbrex_group_rank(s->group);
    s->ranks = imbrex_group_size(s->group);
    s->shape = mlp_shape_of(m, q->replicated, q->whole, s->rank, s->ranks);
    s->row0 = shard_first_row(m->x.rows, s->rank, s->ranks);
    s->rows = shard_first_row(m->x.rows, s->rank + 1, s->ranks) - s->row0;
    s->result = (mlp_result){
        .source = m->name,
        .ranks = s->ranks,
        .device = imbrex_group_device(s->group),
        .tokens = m->x.rows,
        .hidden = m->weights.hidden,
        .ffn = m->weights.ffn,
        .dtype = m->dtype,
        .bound = m->weights.fp8.scaling != IMBREX_UNSCALED ? IMBREX_E4M3 : m->dtype,
        .scaling = m->weights.fp8.scaling,
        .fixed = m->weights.fp8.fixed,
        .replicated = q->replicated,
        .activation = mlp_config_activations[m->weights.activation],
        .activation_from = m->activation_from,
        .gated = !m->weights.ungated,
        .experts = m->experts.count,
        .top_k = m->experts.gate.top_k,
        .whole = q->whole,
        .shared = m->experts.shared.ffn,
        .biases = shard_has_up_bias(&m->weights) || m->weights.down_bias.rows,
        .residual = m->after.residual.rows > 0,
        .norm = q->norm,
    };
    TRY(measure_clock(s->group, q->graph, &s->timer));
    s->stream = s->timer ? cuda_timer_stream(s->timer) : NULL;
    s->result.device_clock = s->timer != NULL;
    s->result.graph = q->graph;
    s->shown = s->rank == 0 ? &s->bar : NULL;
    progress_begin(s->shown, "mlp", mlp_operands_steps(m) + WARM + q->rounds);
    TRY(share_open(s->group, sizeof(mlp_error), &s->share));
    TRY(mlp_operands_load(s->group, m, &s->shape, s->stream, s->shown, &s->on));
    s->result.pairs = calloc((size_t)s->ranks, sizeof *s->result.pairs);
    if (!s->result.pairs)
        return IMBREX_NO_MEMORY;
    TRY(make_blocks(s));
    TRY(time_blocks(s));
    progress_end(s->shown);
    return IMBREX_OK;
}

static imbrex_status finish(rank_state *s, int *code)
{
    const mlp_request *q = s->request;
    void *y = NULL;
    imbrex_status status = IMBREX_OK;
    if (q->check || q->output)
        status = collect(s, &y);
    if (status == IMBREX_OK && q->check && s->choice.ids)
        status = look_at_choice(s);
    if (status == IMBREX_OK && q->check)
        status = check(s, y);
    bool wrong = s->result.checked && !mlp_check_passed(&s->result.error, s->result.bound);
    if (status == IMBREX_OK && q->output && s->rank == 0)
        *code = job_write_y("mlp", q->output, s->shape.dtype, s->shape.tokens, s->shape.hidden, y,
                            wrong);
    free(y);
    if (status != IMBREX_OK)
        return status;
    if (q->timeline && picture(s) != CLI_OK)
        *code = CLI_FAILED;
    if (s->rank == 0)
        (q->json ? mlp_print_json : mlp_print_table)(&s->result);
    if (wrong)
        *code = CLI_FAILED;
    return IMBREX_OK;
}

int mlp_rank(const mlp_request *request)
{
    rank_state s = { .request = request, .model = request->model };
    int code = CLI_OK;
    imbrex_status status = begin(&s);
    if (status == IMBREX_OK)
        status = finish(&s, &code);
    if (status != IMBREX_OK) {
        progress_end(s.shown);
        failure_say("mlp", s.group, status);
        code = cli_exit_code(status);
    }
    for (int i = 0; i < VERSIONS; i++)
        cuda_graph_destroy(s.graphs[i]);
    mlp_block_destroy(&s.products);
    mlp_block_destroy(&s.sequential);
    mlp_block_destroy(&s.overlapped);
    imbrex_group_destroy(s.alone);
    imbrex_group_destroy(s.group);
    cuda_timer_close(s.timer);
    free(s.choice.ids);
    free(s.choice.weights);
    free(s.result.pairs);
    return code;
}
