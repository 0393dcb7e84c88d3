/* rank.c - one rank: load, make the steps, time them, check, trace, report. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "job.h"
#include "measure.h"
#include "text.h"

enum { WARM = 2 };

/* All that a rank holds while it works; operands lie in symmetric memory. */
typedef struct rank_state {
    const decode_request *request;
    const decode_model *model;
    imbrex_group *group, *alone;
    share share;
    decode_shape shape;
    int rank, ranks;
    decode_operands on;
    cuda_timer *timer; /* NULL: the host's clock, on the groups' default streams */
    decode_step step, sequential, local;
    candidate candidates[DECODE_VERSIONS];
    cuda_graph *graphs[DECODE_VERSIONS];
    decode_result result;
    progress bar, *shown; /* shown: &bar on rank 0, else NULL */
} rank_state;

/* Bytes of elements of the model's dtype. */
static size_t bytes_of(const rank_state *s, int64_t elements)
{
    return (size_t)elements * (size_t)matrix_dtype_bytes(s->shape.dtype);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static imbrex_status make_steps(rank_state *s)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &one, .device = imbrex_group_device(s->group) };
    const char *algorithm = s->request->algorithm;
    decode_result *r = &s->result;
    TRY(imbrex_group_create(&desc, &s->alone));
    TRY(decode_step_create(s->group, s->alone, &s->shape, algorithm, true, &s->on, &s->step));
    TRY(decode_step_create(s->group, s->alone, &s->shape, "sequential", true, &s->on,
                           &s->sequential));
    TRY(decode_step_create(s->group, s->alone, &s->shape, NULL, false, &s->on, &s->local));
    imbrex_plan_describe(s->step.project, r->project, sizeof r->project);
    if (s->step.gather)
        imbrex_plan_describe(s->step.gather, r->gather, sizeof r->gather);
    imbrex_plan_describe(s->step.attend, r->attend, sizeof r->attend);
    imbrex_plan_describe(s->step.output, r->output, sizeof r->output);
    return share_barrier(s->group);
}

/* Where heads are shared out, attention has no peers in a step, either. */
static imbrex_status time_steps(rank_state *s)
{
    imbrex_group *attends = s->shape.by_heads ? s->alone : s->group;
    const candidate versions[DECODE_VERSIONS] = {
        [DECODE_ATTEND_OWN] = { "attend own", decode_step_attend, &s->local, s->alone, 1, 0 },
        [DECODE_ATTEND] = { "attend", decode_step_attend, &s->step, attends, 1, 0 },
        [DECODE_ALONE] = { "alone", decode_step_run, &s->local, s->alone, 1, 0 },
        [DECODE_SEQUENTIAL] = { "sequential", decode_step_run, &s->sequential, s->group, 1, 0 },
        [DECODE_STEP] = { "step", decode_step_run, &s->step, s->group, 1, 0 },
    };
    memcpy(s->candidates, versions, sizeof versions);
    /* What the others read is there. */
    TRY(decode_step_run(&s->step));
    TRY(imbrex_stream_sync(s->group, s->on.stream));
    if (s->timer)
        TRY(job_prepare_gpu(s->timer, &s->share, s->candidates, DECODE_VERSIONS, DECODE_STEP,
                            s->request->graph, s->graphs));
    TRY(measure_by(s->timer, &s->share, s->candidates, DECODE_VERSIONS, WARM,
                   (int)s->request->rounds, s->shown));
    for (int i = 0; i < DECODE_VERSIONS; i++)
        s->result.us[i] = s->candidates[i].us;
    return IMBREX_OK;
}

/* ---- y --------------------------------------------------------------------------------------- */

/* One more step, over a q, an o and a y of NaN so that what it leaves out is seen. */
static imbrex_status enqueue_again(rank_state *s, void *y)
{
    const candidate *step = &s->candidates[DECODE_STEP];
    size_t states = bytes_of(s, s->shape.batch * s->shape.heads * s->shape.head_dim);
    size_t bytes = bytes_of(s, s->shape.batch * s->shape.hidden);
    void *nothing = malloc(states + bytes);
    if (!nothing)
        return IMBREX_NO_MEMORY;
    memset(nothing, 0xff, states + bytes);
    imbrex_status status = imbrex_copy(s->group, s->on.q, nothing, states, s->on.stream);
    if (status == IMBREX_OK)
        status = imbrex_copy(s->group, s->on.o, nothing, states, s->on.stream);
    if (status == IMBREX_OK)
        status = imbrex_copy(s->group, s->on.y, nothing, bytes, s->on.stream);
    status = failure_drain(status, s->group, s->on.stream);
    free(nothing);
    TRY(status);
    TRY(step->enqueue(step->ctx));
    return imbrex_copy(s->group, y, s->on.y, bytes, s->on.stream);
}

/* y in host memory; the caller frees it. */
static imbrex_status collect(rank_state *s, void **host)
{
    *host = malloc(bytes_of(s, s->shape.batch * s->shape.hidden) + 1);
    if (!*host)
        return IMBREX_NO_MEMORY;
    return failure_drain(enqueue_again(s, *host), s->group, s->on.stream);
}

/* Each rank looks at its part of the rows. */
static imbrex_status check(rank_state *s, const void *y)
{
    int64_t b = s->shape.batch;
    int apart;
    TRY(job_compare(&s->share, y, bytes_of(s, s->shape.batch * s->shape.hidden), &apart));
    decode_error mine, *all = calloc((size_t)s->ranks, sizeof *all);
    bool ok = all && decode_check(s->request->reference, s->shape.dtype, b * s->rank / s->ranks,
                                  b * (s->rank + 1) / s->ranks, y, s->shown, &mine);
    imbrex_status status = ok ? share_all(&s->share, &mine, sizeof mine, all) : IMBREX_NO_MEMORY;
    decode_error sum = { 0 };
    for (int r = 0; r < s->ranks && status == IMBREX_OK; r++)
        decode_check_add(&sum, &all[r]);
    sum.apart = apart;
    s->result.error = sum;
    s->result.checked = true;
    free(all);
    return status;
}

/* ---- the picture ----------------------------------------------------------------------------- */

typedef struct traced_step {
    rank_state *state;
    decode_step *step;
} traced_step;

static imbrex_status run_traced(void *ctx)
{
    const traced_step *t = ctx;
    TRY(decode_step_run(t->step));
    return imbrex_stream_sync(t->state->group, t->state->on.stream);
}

/* On a GPU the step is made anew, while tracing is on: its kernels are then compiled to tell. */
static imbrex_status trace_step(rank_state *s, decode_step *step, const char *algorithm,
                                double median_us, spans *out)
{
    decode_step telling = { 0 };
    traced_step which = { s, s->timer ? &telling : step };
    const job_traced t = { { s->group, s->alone }, 2, &s->share, run_traced, &which };
    if (!s->timer)
        return job_trace(&t, median_us, out);
    TRY(job_trace_begin(&t));
    TRY(decode_step_create(s->group, s->alone, &s->shape, algorithm, true, &s->on, &telling));
    imbrex_status status = job_trace(&t, median_us, out);
    decode_step_destroy(&telling);
    return status;
}

static int picture(rank_state *s)
{
    spans step = { 0 }, sequential = { 0 };
    imbrex_status status =
        trace_step(s, &s->step, s->request->algorithm, s->result.us[DECODE_STEP], &step);
    if (status == IMBREX_OK)
        status = trace_step(s, &s->sequential, "sequential", s->result.us[DECODE_SEQUENTIAL],
                            &sequential);
    bool written = true;
    char error[512];
    if (status == IMBREX_OK && s->rank == 0)
        written = decode_write_timeline(&s->result, &step, &sequential, s->request->timeline, error,
                                        sizeof error);
    spans_free(&step);
    spans_free(&sequential);
    if (!written)
        text_say(stderr, "imbrex decode: %s\n", error);
    if (status != IMBREX_OK)
        failure_say("decode", s->group, status);
    return status == IMBREX_OK && written ? CLI_OK : CLI_FAILED;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static imbrex_status begin(rank_state *s)
{
    const decode_request *q = s->request;
    imbrex_group_desc desc = { .device = q->device };
    char why[200];
    TRY(imbrex_group_create(&desc, &s->group));
    s->rank = imbrex_group_rank(s->group);
    s->ranks = imbrex_group_size(s->group);
    if (!decode_shape_of(s->model, s->ranks, q->by_heads, &s->shape, why, sizeof why))
        return failure_note(IMBREX_UNSUPPORTED, "%s", why);
    s->result = (decode_result){
        .source = s->model->name,
        .ranks = s->ranks,
        .device = imbrex_group_device(s->group),
        .model = s->model,
        .shape = s->shape,
    };
    TRY(measure_clock(s->group, q->graph, &s->timer));
    s->on.stream = s->timer ? cuda_timer_stream(s->timer) : NULL;
    s->result.device_clock = s->timer != NULL;
    s->result.graph = q->graph;
    s->shown = s->rank == 0 ? &s->bar : NULL;
    progress_begin(s->shown, "decode", decode_operands_steps(s->model) + WARM + q->rounds);
    TRY(share_open(s->group, sizeof(decode_error), &s->share));
    TRY(decode_operands_load(s->group, s->model, &s->shape, s->shown, &s->on));
    TRY(make_steps(s));
    TRY(time_steps(s));
    progress_end(s->shown);
    return IMBREX_OK;
}

static imbrex_status finish(rank_state *s, int *code)
{
    const decode_request *q = s->request;
    void *y = NULL;
    imbrex_status status = IMBREX_OK;
    if (q->check || q->output)
        status = collect(s, &y);
    if (status == IMBREX_OK && q->check)
        status = check(s, y);
    bool wrong = s->result.checked && !decode_check_passed(&s->result.error, s->shape.dtype);
    if (status == IMBREX_OK && q->output && s->rank == 0)
        *code = job_write_y("decode", q->output, s->shape.dtype, s->shape.batch, s->shape.hidden, y,
                            wrong);
    free(y);
    if (status != IMBREX_OK)
        return status;
    if (q->timeline && picture(s) != CLI_OK)
        *code = CLI_FAILED;
    if (s->rank == 0)
        (q->json ? decode_print_json : decode_print_table)(&s->result);
    if (wrong)
        *code = CLI_FAILED;
    return IMBREX_OK;
}

int decode_rank(const decode_request *request)
{
    rank_state s = { .request = request, .model = request->model };
    int code = CLI_OK;
    imbrex_status status = begin(&s);
    if (status == IMBREX_OK)
        status = finish(&s, &code);
    if (status != IMBREX_OK) {
        progress_end(s.shown);
        failure_say("decode", s.group, status);
        code = cli_exit_code(status);
    }
    for (int i = 0; i < DECODE_VERSIONS; i++)
        cuda_graph_destroy(s.graphs[i]);
    decode_step_destroy(&s.local);
    decode_step_destroy(&s.sequential);
    decode_step_destroy(&s.step);
    imbrex_group_destroy(s.alone);
    imbrex_group_destroy(s.group);
    cuda_timer_close(s.timer);
    return code;
}
