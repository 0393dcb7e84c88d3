/* plan.c - makes plans: checked, agreed on, memory taken. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/live.h"
#include "base/log.h"
#include "base/siphash.h"
#include "tuning_cache.h"

/* ---- what all ranks do ----------------------------------------------------------------------- */

/* What was measured for a plan's variants, and for the first in words; travels as a note. */
typedef struct recalled {
    int32_t chunk_rows[IMX_VARIANTS]; /* 0: as the variant chooses */
    int8_t algorithm[IMX_VARIANTS];   /* which of the operator's, from 1; 0: nothing was measured */
    char why[IMX_AGREE_NOTE - 5 * IMX_VARIANTS];
} recalled;

_Static_assert(sizeof(recalled) == IMX_AGREE_NOTE, "it is sent as a note");

static void recall(const imbrex_plan *plan, const imx_request *r, recalled *out)
{
    for (int i = 0; i < plan->variant_count; i++) {
        imx_tuning_choice measured;
        imx_request of = *r;
        imx_text why = { .at = out->why, .size = i ? 0 : sizeof out->why };
        of.shape.m = plan->variants[i].shape.m;
        imx_tuning_cache_recall(plan->group, &of, &measured, &why);
        out->chunk_rows[i] = measured.chunk_rows;
        if (measured.algorithm)
            out->algorithm[i] = (int8_t)(1 + measured.algorithm - plan->op->algorithms);
    }
}

/* What was measured for a variant comes before what is expected. */
static imbrex_status decide(imbrex_plan *plan, const imx_request *r, const recalled *known)
{
    int64_t rows[IMX_VARIANTS];
    IMX_TRY(imx_request_check(plan->group, r, "desc", 0));
    plan->shape = r->shape;
    memcpy(plan->desc, r->desc, sizeof plan->desc);
    plan->variant_count = imx_variant_rows(plan->group, r, rows);
    for (int i = 0; i < plan->variant_count; i++) {
        imx_request of = *r;
        of.shape.m = rows[i];
        if (known->algorithm[i])
            of.algorithm = plan->op->algorithms[known->algorithm[i] - 1].name;
        if (known->chunk_rows[i])
            of.chunk_rows = known->chunk_rows[i];
        plan->variants[i].plan = plan;
        plan->variants[i].measured = known->algorithm[i];
        IMX_TRY(imx_variant_decide(&plan->variants[i], &of));
    }
    return IMBREX_OK;
}

/* Whether rows of spanning tiles of a sum are read by their owners, part by part. */
static bool reads_columns(const imx_variant *variant)
{
    const imx_op *op = variant->plan->op;
    const imx_config *config = &variant->config;
    return op->product && op->scatters && config->spanning && !config->reduce_push &&
           !config->alone;
}

/* What ranks must have alike of a variant. */
typedef struct cuts {
    int64_t algorithm, chunk_rows, tile_rows, tile_cols, spanning, part_cols;
} cuts;

static cuts cuts_of(const imx_variant *variant)
{
    const imx_algorithm *a = variant->algorithm;
    return (cuts){
        .algorithm = a ? a - variant->plan->op->algorithms + 1 : 0,
        .chunk_rows = variant->config.chunk_rows,
        .tile_rows = variant->config.tile_rows,
        .tile_cols = variant->config.tile_cols,
        .spanning = variant->config.spanning       ? 1
                    : variant->config.spans_chunks ? 2
                                                   : 0,
        .part_cols = a && reads_columns(variant) ? variant->config.part_cols : 0,
    };
}

enum { NAME_BYTES = 64 };

/* Adds one number for each variant for fewer rows.  Returns how many. */
static int add_fewer(const imbrex_plan *plan, char names[IMX_VARIANTS][NAME_BYTES],
                     imx_field *fields)
{
    static const uint64_t key[2] = { 5, 6 };
    int count = 0;
    for (int i = 1; i < plan->variant_count; i++) {
        const cuts all = cuts_of(&plan->variants[i]);
        snprintf(names[i], NAME_BYTES, "how runs of up to %lld rows are done",
                 (long long)plan->variants[i].shape.m);
        fields[count++] = (imx_field){ .name = names[i],
                                       .value = (int64_t)imx_siphash(key, &all, sizeof all),
                                       .hash = true };
    }
    return count;
}

static imbrex_status agree(const imbrex_plan *plan, const char *call, const imx_request *r,
                           imbrex_status mine, recalled *note)
{
    const char *algorithms[1 + IMX_ALGORITHMS] = { "NULL" };
    int count = 1, asked = 0;
    for (const imx_algorithm *a = plan->op->algorithms; a->name; a++) {
        if (mine == IMBREX_OK && r->algorithm && strcmp(r->algorithm, a->name) == 0)
            asked = count;
        algorithms[count++] = a->name;
    }
    const cuts first = cuts_of(&plan->variants[0]);
    const imx_field more[] = {
        { .of = "desc",
          .name = "algorithm",
          .value = asked,
          .words = algorithms,
          .words_count = count },
        { .name = "the algorithm (chosen, or IMBREX_ALGORITHM)",
          .value = first.algorithm,
          .words = algorithms,
          .words_count = count },
        { .name = "the rows of a chunk", .value = first.chunk_rows },
        { .name = "the rows of a tile", .value = first.tile_rows },
        { .name = "the columns of a tile", .value = first.tile_cols },
        { .name = "whether tiles have rows of several ranks (0 to 2)", .value = first.spanning },
        { .name = "the columns that are read at a time", .value = first.part_cols },
        { .name = "whether IMBREX_ALGORITHM leaves room for variants for fewer rows (0 or 1)",
          .value = plan->variant_count > 1 },
    };
    enum { MORE = sizeof more / sizeof *more };
    imx_field fields[IMX_AGREE_FIELDS];
    char names[IMX_VARIANTS][NAME_BYTES];
    _Static_assert(IMX_REQUEST_FIELDS + MORE + IMX_VARIANTS - 1 <= IMX_AGREE_FIELDS,
                   "ranks do not tell so much");
    int given = imx_request_fields(r, "desc", fields);
    memcpy(fields + given, more, sizeof more);
    given += MORE;
    given += add_fewer(plan, names, fields + given);
    return imx_agree_noted(plan->group, call, mine, fields, given, note);
}

/* Settles what the plan is, alike on all ranks.  Where nobody names an algorithm, what has been
 * measured comes before what is expected.  Only rank 0 reads the file of it, so its answer travels
 * with the first meeting; if there is one, all decide again and meet once more on that. */
static imbrex_status settle(imbrex_plan *plan, const char *call, const imx_request *r,
                            imbrex_status mine)
{
    static const recalled nothing;
    const imbrex_group *group = plan->group;
    recalled known = nothing; /* to rank 0; once they have met, to all */
    if (mine == IMBREX_OK)
        mine = decide(plan, r, &known);
    if (mine == IMBREX_OK && group->rank == 0 && group->size > 1 && !r->algorithm &&
        !group->env.algorithm[0])
        recall(plan, r, &known);
    IMX_TRY(agree(plan, call, r, mine, &known));
    if (memcmp(known.algorithm, nothing.algorithm, sizeof known.algorithm) != 0) {
        mine = decide(plan, r, &known);
        IMX_TRY(agree(plan, call, r, mine, &known));
    }
    imx_variant *first = &plan->variants[0];
    imx_text why = { .at = first->why, .size = sizeof first->why };
    why.length = first->measured ? 0 : strlen(first->why);
    if (known.why[0])
        imx_text_add(&why, "%s%s", first->measured ? "" : "; ", known.why);
    return IMBREX_OK;
}

/* ---- create ---------------------------------------------------------------------------------- */

static imbrex_status take_aux(imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    if (group->nodes.count > 1)
        plan->aux_count = IMX_AUX_NET + (int)imx_max(1, group->net_facts.lanes);
    for (int i = 0; i < plan->aux_count; i++) {
        imx_aux *aux = &plan->aux[i];
        IMX_TRY(group->backend->stream_create(group->device, &aux->stream));
        IMX_TRY(group->backend->event_create(group->device, &aux->event));
    }
    return IMBREX_OK;
}

static void drop_aux(imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    for (int i = 0; i < plan->aux_count; i++) {
        group->backend->stream_destroy(group->device, plan->aux[i].stream);
        group->backend->event_destroy(group->device, plan->aux[i].event);
    }
}

static imbrex_status take_streams(imbrex_plan *plan)
{
    const imx_backend *backend = plan->group->backend;
    imx_device *device = plan->group->device;
    IMX_TRY(backend->stream_create(device, &plan->comm));
    IMX_TRY(take_aux(plan));
    IMX_TRY(backend->event_create(device, &plan->fork));
    IMX_TRY(backend->event_create(device, &plan->join));
    return imx_stream_order_create(plan->group->backend, plan->group->device, &plan->order);
}

static void drop_streams(imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    group->backend->stream_destroy(group->device, plan->comm);
    drop_aux(plan);
    group->backend->event_destroy(group->device, plan->fork);
    group->backend->event_destroy(group->device, plan->join);
}

/* Gives each variant its regions. */
static void lay_out(imbrex_plan *plan)
{
    for (int i = 0; i < plan->variant_count; i++) {
        imx_variant *variant = &plan->variants[i];
        imx_variant_lay_out(variant);
        variant->shared_at = plan->shared_bytes;
        variant->local_at = plan->local_bytes;
        plan->shared_bytes += 2 * variant->offsets.buffer_bytes;
        plan->local_bytes += 2 * variant->offsets.local_bytes;
    }
}

static imbrex_status take_local(imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    IMX_TRY(group->backend->memory_create(group->device, plan->local_bytes, &plan->local));
    IMX_TRY(take_streams(plan));
    for (int i = 0; i < plan->variant_count; i++) {
        imx_variant *variant = &plan->variants[i];
        if (variant->algorithm->prepare)
            IMX_TRY(variant->algorithm->prepare(variant));
        if (plan->op->around)
            IMX_TRY(plan->op->around->prepare(variant));
    }
    return IMBREX_OK;
}

/* Tells a checker where signals and counters lie in the plan's local memory, and the caller where
 * they do in its shared one; returns how many places those are. */
static int own_memory(const imbrex_plan *plan, imx_words shared[IMX_WORDS_MOST])
{
    enum { SHARED = 3, LOCAL = 4 }; /* places of a buffer */
    imx_words local[IMX_WORDS_MOST];
    _Static_assert(2 * LOCAL * IMX_VARIANTS <= IMX_WORDS_MOST, "a checker has no such room");
    size_t credits = (size_t)plan->group->size * sizeof(uint64_t);
    for (int i = 0; i < 2 * plan->variant_count; i++) {
        const imx_variant *variant = &plan->variants[i / 2];
        const imx_offsets *o = &variant->offsets;
        size_t s = variant->shared_at + (size_t)(i % 2) * o->buffer_bytes;
        size_t l = variant->local_at + (size_t)(i % 2) * o->local_bytes;
        const imx_words in_shared[SHARED] = {
            { s, s + credits },
            { s + o->signals, s + o->signals + o->signal_count * sizeof(uint64_t) },
            { s + o->lines, s + o->lines + o->lines_bytes },
        };
        const imx_words in_local[LOCAL] = {
            { l, l + sizeof(uint64_t) },
            { l + o->done, l + o->done + o->done_count * sizeof(uint64_t) },
            { l + o->counters, l + o->counters + o->done_count * sizeof(uint32_t) },
            { l + o->ended, l + o->ended + sizeof(uint32_t) },
        };
        memcpy(shared + i * SHARED, in_shared, sizeof in_shared);
        memcpy(local + i * LOCAL, in_local, sizeof in_local);
    }
    imx_memory_own(plan->group, plan->local, local, 2 * LOCAL * plan->variant_count);
    return 2 * SHARED * plan->variant_count;
}

static imbrex_status create(imbrex_plan *plan, const char *call, const imx_request *r,
                            imbrex_plan **out)
{
    imbrex_status mine = imx_status_need(out, "plan", "want where to put it");
    if (mine == IMBREX_OK)
        mine = imx_net_check_number(plan->group, plan->group->objects[IMX_OF_LIBRARY].count + 1);
    IMX_TRY(settle(plan, call, r, mine));
    lay_out(plan);
    mine = take_local(plan);
    imx_words words[IMX_WORDS_MOST];
    int count = mine == IMBREX_OK ? own_memory(plan, words) : 0;
    imbrex_status status =
        imx_memory_alloc(plan->group, call, mine, plan->shared_bytes, words, count, &plan->shared);
    if (status != IMBREX_OK && plan->variant_count > 1)
        return imx_fail(status,
                        "%s (the plan has %d variants for fewer rows; desc.m_least = desc.m "
                        "makes none)",
                        imx_status_detail(), plan->variant_count - 1);
    return status;
}

/* Also of a plan that is made in part. */
static void destroy(imbrex_plan *plan)
{
    imbrex_group *group = plan->group;
    imx_status_mute(true);
    imx_live_remove(IMX_LIVE_PLAN, plan);
    imx_stream_order_destroy(&plan->order, plan->comm);
    drop_streams(plan);
    for (int i = 0; i < plan->variant_count * IMX_KERNELS; i++)
        group->backend->prepared_destroy(group->device,
                                         plan->variants[i / IMX_KERNELS].kernels[i % IMX_KERNELS]);
    imx_memory_free(group, plan->shared);
    if (!imx_net_stuck(group))
        group->backend->memory_release(plan->local);
    imx_object_remove(&group->objects[IMX_OF_LIBRARY], &plan->object);
    free(plan);
    imx_status_mute(false);
}

static void destroy_object(imx_object *object)
{
    destroy((imbrex_plan *)object);
}

/* Gives back memory that it can. */
static void forsake_object(imx_object *object)
{
    imbrex_plan *plan = (imbrex_plan *)object;
    imbrex_group *group = plan->group;
    imx_live_remove(IMX_LIVE_PLAN, plan);
    if (group->backend->forked_release)
        group->backend->memory_release(plan->local);
    imx_object_remove(&group->objects[IMX_OF_LIBRARY], object);
    free(plan);
}

const imx_object_kind imx_plan_kind = {
    .name = imx_plan_waits_name,
    .describe_wait = imx_plan_waits_describe,
    .describe_mismatch = imx_plan_waits_mismatch,
    .destroy = destroy_object,
    .forsake = forsake_object,
};

static void log_creation(const imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    char text[IMX_STATUS_BYTES / 2];
    if (!imx_log_wants(&group->env, group->rank, IMX_LOG_INFO))
        return;
    imbrex_plan_describe(plan, text, sizeof text);
    imx_log(group->rank, group->size, "plan: %s", text);
}

imbrex_status imx_plan_create_asked(imbrex_group *group, const char *call, const imx_request *r,
                                    imbrex_plan **out)
{
    imx_status_enter(call);
    IMX_ENTER(group);
    IMX_TRY(imx_fault_check(group)); /* a rank that is gone would not come to the meeting */
    imbrex_plan *plan = NULL;
    imbrex_status status = imx_sys_alloc(1, sizeof *plan, &plan);
    if (status == IMBREX_OK)
        status = imx_live_add(IMX_LIVE_PLAN, plan);
    if (status != IMBREX_OK) {
        free(plan);
        return imx_agree(group, call, status, NULL, 0);
    }
    plan->group = group;
    plan->op = r->op;
    imx_object_add(&group->objects[IMX_OF_LIBRARY], &plan->object);
    IMX_GOTO(create(plan, call, r, out));
    imx_object_made(&group->objects[IMX_OF_LIBRARY], &plan->object);
    log_creation(plan);
    *out = plan;
    return IMBREX_OK;
fail:
    destroy(plan);
    return status;
}

imbrex_status imx_plan_create(imbrex_group *group, const imx_op *op, const void *desc,
                              imbrex_plan **plan)
{
    const imx_request r = imx_request_of(op, desc);
    return imx_plan_create_asked(group, op->call, &r, plan);
}

/* A rank that names no operator still comes to the meeting, under the call's own name. */
imbrex_status imbrex_plan_create(imbrex_group *group, const char *op, const void *desc,
                                 size_t desc_bytes, imbrex_plan **plan)
{
    const imx_op *found = NULL;
    imx_status_enter(__func__);
    IMX_ENTER(group);
    imbrex_status status = imx_op_find(op, desc_bytes, &found);
    if (status == IMBREX_OK)
        return imx_plan_create(group, found, desc, plan);
    IMX_TRY(imx_fault_check(group));
    return imx_agree(group, __func__, status, NULL, 0);
}

void imbrex_plan_destroy(imbrex_plan *plan)
{
    IMX_CALL call = { 0 };
    if (imx_live_is(IMX_LIVE_PLAN, plan) && imx_call_await(&call, plan->group))
        destroy(plan);
}
