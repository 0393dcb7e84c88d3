/* tuner.c - imbrex_tune: times the real operator on all ranks in lockstep, keeps the fastest way.
 *
 *     each algorithm, as plans choose chunks   -> the fastest
 *     that one, with other sizes of chunks     -> the fastest, into the file
 *
 *     a field of candidates   make a plan each | warm | round: each in turn | round | ... | median
 *     one timing              meet | barrier | as many runs as fill a while | sync | max over ranks
 *
 * All numbers that decide anything are agreed on, so that all ranks come to the same decisions.
 *
 * Candidates run in a group of their own, of the same ranks on the same devices, which meet through
 * the caller's: a failed group stays failed, so that one that hangs costs its deadline and that
 * group, and the others go on in the next.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operands.h"
#include "tuning_cache.h"

static const char call[] = "imbrex_tune";

enum {
    WARM = 2, /* a plan's two buffers; the second tells how many runs fill a timing */
    ROUNDS = 5,
    FIELD_MOST = IMX_ALGORITHMS > 4 ? IMX_ALGORITHMS : 4,
    RUNS_MOST = 64
};

static const double FILL_US = 2000;
static const double LEAST_GAIN = 0.02; /* by which a size of chunks must beat the chosen one */

typedef struct candidate {
    const char *algorithm;
    int chunk_rows;
    imbrex_plan *plan; /* NULL: dropped, or not made yet */
    int runs;          /* of one timing */
    double us[ROUNDS];
    int timed; /* how many of them */
    bool out;  /* dropped */
} candidate;

/* What a rank brings of one timing. */
typedef struct timing {
    double us;
    int32_t status;
    int32_t over; /* the caller's group has failed */
} timing;

typedef struct tuning {
    imbrex_group *group; /* the caller's */
    imbrex_bootstrap through_it;
    imbrex_group *trial; /* where candidates run; NULL: it could not be made */
    const imx_op *op;
    imx_request request;
    imbrex_tune_progress progress;
    void *ctx;
    imx_operands operands;
    timing *each; /* [ranks] */
    candidate field[FIELD_MOST];
    int count;
    int fields;        /* done before this one */
    double done;       /* as it was told last */
    char figures[160]; /* of the algorithms, in words */
    char dropped[256]; /* why the latest was, */
    bool late;         /* and that it hung */
} tuning;

/* What a public call has left to say is this call's from here on. */
static imbrex_status take_over(imbrex_status status)
{
    char why[256];
    snprintf(why, sizeof why, "%s", imx_status_detail());
    imx_status_enter(call);
    return status == IMBREX_OK ? IMBREX_OK : imx_fail(status, "%s", why);
}

/* ---- where candidates run -------------------------------------------------------------------- */

static int allgather(void *group, const void *send, void *recv, size_t bytes)
{
    return imx_agree_allgather(group, send, recv, bytes) == IMBREX_OK ? 0 : 1;
}

/* Half of the time: ranks that a candidate does not hold meanwhile wait for those that it does. */
static imbrex_status open_trial(tuning *t)
{
    t->through_it = (imbrex_bootstrap){
        .rank = t->group->rank, .size = t->group->size, .allgather = allgather, .ctx = t->group
    };
    const imbrex_group_desc desc = {
        .bootstrap = &t->through_it,
        .device = t->group->device_name,
        .timeout_ms = t->group->timeout_ms > 1 ? t->group->timeout_ms / 2 : 1,
    };
    imbrex_status mine = take_over(imbrex_group_create(&desc, &t->trial));
    if (mine == IMBREX_OK && t->trial->env.log == IMX_LOG_INFO)
        t->trial->env.log = IMX_LOG_NOTHING; /* its plans are the tuner's, a line each */
    if (mine == IMBREX_OK)
        mine = imx_operands_create(t->trial, &t->request, &t->operands);
    return imx_agree(t->group, call, mine, NULL, 0);
}

static void close_trial(tuning *t)
{
    for (int i = 0; i < t->count; i++) {
        imbrex_plan_destroy(t->field[i].plan);
        t->field[i].plan = NULL;
    }
    imx_operands_destroy(&t->operands);
    t->operands = (imx_operands){ .group = NULL };
    imbrex_group_destroy(t->trial);
    t->trial = NULL;
}

/* ---- one timing ------------------------------------------------------------------------------ */

static double now_us(void)
{
    return (double)imbrexd_now_ns() * 1e-3;
}

static imbrex_status run(tuning *t, const candidate *c, double *us)
{
    imbrex_status status = imbrex_barrier(t->trial, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(t->trial, NULL);
    double begin = now_us();
    for (int i = 0; i < c->runs && status == IMBREX_OK; i++) {
        imx_given args;
        imx_operands_args(&t->operands, i, &args);
        status = imx_run_given(c->plan, &args, NULL);
    }
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(t->trial, NULL);
    *us = (now_us() - begin) / c->runs;
    return take_over(status);
}

/* Of one run on the slowest rank; the same number on all ranks.  *why[256]: if the candidate hung
 * on some rank and nothing else is wrong, that it did, in words; else "". */
static imbrex_status time_once(tuning *t, const candidate *c, double *us, char why[256])
{
    timing own = { .us = 0 };
    imbrex_status status = run(t, c, &own.us), over = imx_fault_check(t->group);
    if (over != IMBREX_OK)
        status = over;
    own.status = status;
    own.over = over != IMBREX_OK;
    status = imx_agree(t->group, call, status, NULL, 0);
    snprintf(why, 256, "%s", status == IMBREX_OK ? "" : imx_status_detail());
    imbrex_status met = imx_agree_allgather(t->group, &own, t->each, sizeof own);
    bool late = false, failed = false, gone = met != IMBREX_OK;
    *us = 0;
    for (int r = 0; r < t->group->size && met == IMBREX_OK; r++) {
        const timing *o = &t->each[r];
        *us = o->us > *us ? o->us : *us;
        late = late || o->status == IMBREX_TIMEOUT;
        failed = failed || (o->status != IMBREX_OK && o->status != IMBREX_TIMEOUT &&
                            o->status != IMBREX_PEER);
        gone = gone || o->over;
    }
    if (!gone && (status == IMBREX_OK || (late && !failed)))
        return IMBREX_OK;
    return imx_fail(status == IMBREX_OK ? met : status, "\"%s\" failed while it was timed%s: %s",
                    c->algorithm, gone ? ", and the group with it" : "", why);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const candidate *c)
{
    double sorted[ROUNDS];
    memcpy(sorted, c->us, sizeof sorted);
    qsort(sorted, (size_t)c->timed, sizeof sorted[0], ascending);
    return c->timed ? sorted[c->timed / 2] : 0;
}

/* ---- a field of candidates ------------------------------------------------------------------- */

static void tell(tuning *t, const candidate *c, const char *dropped, double done)
{
    t->done = done > t->done ? done : t->done;
    imbrex_tune_step step = {
        .algorithm = c->algorithm,
        .chunk_rows = c->chunk_rows,
        .us = dropped ? 0 : median(c),
        .dropped = dropped,
        .done = t->done,
    };
    if (t->progress)
        t->progress(t->ctx, &step);
}

static void add(tuning *t, const char *algorithm, int64_t chunk_rows)
{
    t->field[t->count++] =
        (candidate){ .algorithm = algorithm, .chunk_rows = (int)chunk_rows, .runs = 1 };
}

static void clear(tuning *t)
{
    for (int i = 0; i < t->count; i++)
        imbrex_plan_destroy(t->field[i].plan);
    t->count = 0;
}

/* A plan that is refused, or finds no memory, on one rank is made on none; whether the ranks are
 * still there shows in the next meeting. */
static imbrex_status make(tuning *t, candidate *c)
{
    imx_request request = t->request;
    request.algorithm = c->algorithm;
    if (c->chunk_rows)
        request.chunk_rows = c->chunk_rows;
    imbrex_status status = imx_plan_create_asked(t->trial, call, &request, &c->plan);
    if (status == IMBREX_OK)
        return status;
    snprintf(t->dropped, sizeof t->dropped, "%s", imx_status_detail());
    c->out = true;
    t->late = false;
    imx_status_enter(call);
    IMX_TRY(imx_fault_check(t->group));
    IMX_TRY(imx_agree(t->group, call, IMBREX_OK, NULL, 0));
    tell(t, c, t->dropped, 0.5 * t->fields);
    return IMBREX_OK;
}

/* Makes the group that candidates run in anew, and the plans that are left. */
static imbrex_status drop_late(tuning *t, candidate *late, const char *why)
{
    late->out = t->late = true;
    snprintf(t->dropped, sizeof t->dropped, "%s", why);
    tell(t, late, t->dropped, 0.5 * t->fields);
    close_trial(t);
    IMX_TRY(open_trial(t));
    for (int i = 0; i < t->count; i++) {
        if (!t->field[i].out)
            IMX_TRY(make(t, &t->field[i]));
    }
    return IMBREX_OK;
}

/* One more timing; the plan is NULL if that dropped it. */
static imbrex_status try(tuning *t, candidate *c, double *us)
{
    char why[256];
    IMX_TRY(time_once(t, c, us, why));
    return *why ? drop_late(t, c, why) : IMBREX_OK;
}

static imbrex_status warm(tuning *t, candidate *c)
{
    double us = 0;
    for (int i = 0; i < WARM && c->plan; i++)
        IMX_TRY(try(t, c, &us));
    double runs = us > 0 ? FILL_US / us : RUNS_MOST;
    c->runs = runs < 1 ? 1 : runs > RUNS_MOST ? RUNS_MOST : (int)runs;
    return IMBREX_OK;
}

static imbrex_status time_field(tuning *t)
{
    for (int i = 0; i < t->count; i++)
        IMX_TRY(make(t, &t->field[i]));
    for (int i = 0; i < t->count; i++)
        IMX_TRY(warm(t, &t->field[i]));
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < t->count; i++) {
            candidate *c = &t->field[i];
            double us;
            if (!c->plan)
                continue;
            IMX_TRY(try(t, c, &us));
            if (!c->plan)
                continue;
            c->us[c->timed++] = us;
            double part = (double)(round * t->count + i) / (ROUNDS * t->count);
            tell(t, c, NULL, 0.5 * (t->fields + part));
        }
    }
    t->fields++;
    return IMBREX_OK;
}

/* The first stands unless another is faster by more than `gain` of it; NULL: all were dropped. */
static const candidate *fastest(const tuning *t, double gain)
{
    const candidate *best = NULL;
    for (int i = 0; i < t->count; i++) {
        const candidate *c = &t->field[i];
        bool first = best == &t->field[0];
        if (c->plan && (!best || median(c) < median(best) * (first ? 1 - gain : 1)))
            best = c;
    }
    return best;
}

/* ---- the two fields -------------------------------------------------------------------------- */

static void note_figures(tuning *t, const candidate *best)
{
    imx_text text = { .at = t->figures, .size = sizeof t->figures };
    for (int i = 0; i < t->count; i++) {
        const candidate *c = &t->field[i];
        if (c->plan && c != best)
            imx_text_add(&text, ", %s %.1f", c->algorithm, median(c));
    }
}

static imbrex_status try_algorithms(tuning *t, candidate *best, imx_config *config)
{
    const char *name;
    for (int i = 0; (name = imx_variant_algorithm(t->group, t->op, i)); i++)
        add(t, name, 0);
    IMX_TRY(time_field(t));
    const candidate *found = fastest(t, 0);
    if (!found)
        return imx_fail(t->late ? IMBREX_TIMEOUT : IMBREX_UNSUPPORTED,
                        "no algorithm of %s could be %s here: %s", t->op->info.name,
                        t->late ? "timed" : "made", t->dropped);
    note_figures(t, found);
    *best = *found;
    *config = found->plan->variants[0].config;
    clear(t);
    return IMBREX_OK;
}

static bool has_chunks(const imx_op *op)
{
    for (int i = 0; i < op->info.desc_fields; i++)
        if (strcmp(op->info.desc[i].name, "chunk_rows") == 0)
            return true;
    return false;
}

/* Around the size that was chosen, unless the desc says one or tiles are cut as if all rows were
 * one rank's.  A chunk is whole tiles where tiles have a fixed form; a size that is asked for
 * leaves none with rows of several ranks. */
static imbrex_status try_chunks(tuning *t, candidate *best, const imx_config *config)
{
    int64_t rows = imx_ceil_div(t->request.shape.m, t->group->size), chunk = config->chunk_rows;
    int64_t least = t->group->target->arch ? config->tile_rows : 16;
    const int64_t sizes[] = { chunk / 4, chunk / 2, 2 * chunk };
    add(t, best->algorithm, 0);
    for (int i = 0; i < 3 && has_chunks(t->op) && !t->request.chunk_rows && !config->spanning;
         i++) {
        if (sizes[i] >= least && (sizes[i] < chunk || chunk < rows))
            add(t, best->algorithm, sizes[i]);
    }
    if (t->count > 1) {
        IMX_TRY(time_field(t));
        const candidate *found = fastest(t, LEAST_GAIN);
        if (!found)
            return imx_fail(t->late ? IMBREX_TIMEOUT : IMBREX_NO_MEMORY,
                            "a plan that could be %s could not be so again: %s",
                            t->late ? "timed" : "made", t->dropped);
        *best = *found;
    }
    clear(t);
    return IMBREX_OK;
}

static imbrex_status tune(tuning *t)
{
    candidate best = { .algorithm = NULL };
    imx_config config = { .chunk_rows = 0 };
    char figures[sizeof t->figures + 32];
    imx_text text = { .at = figures, .size = sizeof figures };
    IMX_TRY(try_algorithms(t, &best, &config));
    IMX_TRY(try_chunks(t, &best, &config));
    imx_text_add(&text, "%.1f us%s", median(&best), t->figures);
    imbrex_status mine = IMBREX_OK;
    if (t->group->rank == 0)
        mine =
            imx_tuning_cache_keep(t->group, &t->request, best.algorithm, best.chunk_rows, figures);
    IMX_TRY(imx_agree(t->group, call, mine, NULL, 0));
    tell(t, &best, NULL, 1);
    return IMBREX_OK;
}

/* ---- what is asked --------------------------------------------------------------------------- */

static imbrex_status check(const imbrex_group *group, tuning *t)
{
    const imx_op *op = t->op;
    IMX_TRY(imx_request_check(group, &t->request, "desc", 0));
    if (t->request.algorithm)
        return imx_fail(IMBREX_INVALID, "desc.algorithm is \"%s\": leave it NULL, to be chosen",
                        t->request.algorithm);
    for (int i = 0; i < op->info.desc_fields; i++) {
        const imbrex_field *field = &op->info.desc[i];
        bool size = field->flags & IMBREX_FIELD_REQUIRED && field->own[IMX_FIELD_KIND] == IMX_SIZE;
        int64_t value;
        memcpy(&value, t->request.desc + field->offset, size ? sizeof value : 0);
        if (size && value == 0)
            return imx_fail(IMBREX_INVALID, "desc.%s is 0: there is nothing to time", field->name);
    }
    if (!imx_variant_algorithm(group, op, 0))
        return imx_fail(IMBREX_UNSUPPORTED, "%s is for ranks of one node, and these are on %d",
                        op->info.name, group->nodes.count);
    if (!imx_backend_runs(group->backend))
        return imx_fail(IMBREX_UNSUPPORTED, "nothing can be timed on %s", group->device_name);
    if (group->size == 1)
        return imx_fail(IMBREX_UNSUPPORTED, "a group of one rank has nothing to choose");
    return group->rank == 0 ? imx_tuning_cache_check(group) : IMBREX_OK;
}

static imbrex_status meet(tuning *t, imbrex_status mine)
{
    const char *names[IMX_OPS_MOST];
    const imx_op *op;
    int ops = 0, own = 0;
    for (; (op = imx_op_at(ops)); ops++) {
        names[ops] = op->info.name;
        own = op == t->op ? ops : own;
    }
    imx_field fields[IMX_REQUEST_FIELDS + 1] = {
        { .name = "op", .value = own, .words = names, .words_count = ops },
    };
    int count = t->op ? 1 + imx_request_fields(&t->request, "desc", fields + 1) : 1;
    IMX_TRY(imx_agree(t->group, call, mine, fields, count));
    mine = imx_sys_alloc((size_t)t->group->size, sizeof *t->each, &t->each);
    IMX_TRY(imx_agree(t->group, call, mine, NULL, 0));
    return open_trial(t);
}

imbrex_status imbrex_tune(imbrex_group *group, const char *op, const void *desc, size_t desc_bytes,
                          imbrex_tune_progress progress, void *ctx)
{
    imx_status_enter(call);
    IMX_ENTER(group);
    IMX_TRY(imx_fault_check(group)); /* a rank that is gone would not come to the meeting */
    tuning t = { .group = group, .progress = progress, .ctx = ctx };
    imbrex_status status = imx_op_find(op, desc_bytes, &t.op);
    if (status == IMBREX_OK) {
        t.request = imx_request_of(t.op, desc);
        status = check(group, &t);
    }
    status = meet(&t, status);
    if (status == IMBREX_OK)
        status = tune(&t);
    close_trial(&t);
    free(t.each);
    return status;
}
