/* plan.c - makes plans: checked, agreed on, memory taken. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/live.h"
#include "measured.h"

/* ---- what was asked -------------------------------------------------------------------------- */

/* As imx_op_algorithm, and for how the ranks are spread. */
static const imx_algorithm *fitting(const imbrex_group *group, const imx_algorithm *a,
                                    const char *name)
{
    bool over_nodes = group->nodes.count > 1;
    while ((a = imx_op_algorithm(a, name)) && a->over_nodes != over_nodes)
        a++;
    return a;
}

const char *imx_plan_algorithm(const imbrex_group *group, const imx_op *op, int i)
{
    bool over_nodes = group->nodes.count > 1;
    const char *last = "";
    for (const imx_algorithm *a = op->algorithms; a->name; a++) {
        if (a->over_nodes != over_nodes || strcmp(a->name, last) == 0)
            continue;
        if (i-- == 0)
            return a->name;
        last = a->name;
    }
    return NULL;
}

static imbrex_status fail_unknown(const imbrex_plan *plan, const char *source, const char *name)
{
    char list[96] = "";
    const char *known;
    imx_text text = { .at = list, .size = sizeof list };
    imbrex_status status = IMBREX_INVALID;
    for (int i = 0; (known = imx_plan_algorithm(plan->group, plan->op, i)); i++)
        imx_text_add(&text, "%s\"%s\"", i ? ", " : "", known);
    const imx_op *op;
    for (int i = 0; (op = imx_op_at(i)); i++) {
        if (imx_op_algorithm(op->algorithms, name))
            status = IMBREX_UNSUPPORTED;
    }
    return imx_fail(status, "%s is \"%.64s\": %s has %s here", source, name, plan->op->info.name,
                    list);
}

/* The algorithm is there, but not for how the ranks are spread. */
static imbrex_status fail_spread(const imbrex_plan *plan, const char *source, const char *name)
{
    const imx_nodes *nodes = &plan->group->nodes;
    if (nodes->count == 1)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "%s is \"%s\", which is for ranks on several nodes, and these are on one",
                        source, name);
    return imx_fail(IMBREX_UNSUPPORTED,
                    "%s is \"%s\", which is for ranks of one node, and these are on %d: "
                    "\"hierarchical\" and \"sequential\" are for several",
                    source, name, nodes->count);
}

static imbrex_status check_nodes(const imbrex_plan *plan)
{
    const imx_nodes *nodes = &plan->group->nodes;
    if (nodes->count == 1)
        return IMBREX_OK;
    if (!imx_plan_algorithm(plan->group, plan->op, 0))
        return imx_fail(IMBREX_UNSUPPORTED, "%s is for ranks of one node, and these are on %d",
                        plan->op->info.name, nodes->count);
    if (nodes->equal)
        return IMBREX_OK;
    char sizes[128];
    imx_text text = { .at = sizes, .size = sizeof sizes };
    imx_nodes_sizes(nodes, &text);
    return imx_fail(IMBREX_UNSUPPORTED,
                    "the nodes have %s ranks: %s wants as many on each of several nodes", sizes,
                    plan->op->info.name);
}

static imbrex_status check_kernel(const imbrex_plan *plan, const char *source, const char *name)
{
    const imbrex_group *group = plan->group;
    if (group->env.cpu_link > 0 && group->size > 1)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "%s is \"%s\", whose stores the wire of IMBREX_CPU_LINK would not slow: "
                        "unset one of them",
                        source, name);
    if (group->size > IMX_TEAM_MOST)
        return imx_fail(IMBREX_UNSUPPORTED, "%s is \"%s\", which is for up to %d ranks, not %d",
                        source, name, IMX_TEAM_MOST, group->size);
    return IMBREX_OK;
}

static imbrex_status find_algorithm(imbrex_plan *plan, const imx_tune_input *input,
                                    const char *source, const char *name)
{
    const imbrex_group *group = plan->group;
    const imx_algorithm *all = plan->op->algorithms, *a = imx_op_algorithm(all, name);
    char why_not[256] = "";
    imx_text text = { .at = why_not, .size = sizeof why_not };
    if (!imx_plan_algorithm(group, plan->op, 0))
        return check_nodes(plan);
    if (!a)
        return fail_unknown(plan, source, name);
    plan->called = a->name;
    if (!(a = fitting(group, a, name)))
        return fail_spread(plan, source, name);
    IMX_TRY(check_nodes(plan));
    if (a->by_kernel)
        IMX_TRY(check_kernel(plan, source, name));
    if (group->size == 1)
        a = fitting(group, all, "sequential");
    const imx_problem problem = imx_cost_problem(input, &plan->config);
    while (a && a->can && !a->can(&problem, &text)) {
        text.length = 0;
        a = fitting(group, a + 1, name);
    }
    plan->algorithm = a;
    return a ? IMBREX_OK : imx_fail(IMBREX_UNSUPPORTED, "%s is \"%s\", %s", source, name, why_not);
}

/* The desc's word counts first, then the environment's, then what is expected. */
static imbrex_status choose(imbrex_plan *plan, const imx_request *r, const imx_tune_input *input)
{
    const imx_env *env = &plan->group->env;
    const char *source = "desc.algorithm", *name = r->algorithm;
    if (!name && env->algorithm[0]) {
        source = "IMBREX_ALGORITHM";
        name = env->algorithm;
    }
    imx_choice choice = imx_choose(plan->op, input, &plan->config);
    imx_text why = { .at = plan->why, .size = sizeof plan->why };
    imx_text_add(&why, "%s", name ? source : choice.why);
    return find_algorithm(plan, input, source, name ? name : choice.algorithm);
}

/* ---- create ---------------------------------------------------------------------------------- */

static imbrex_status decide(imbrex_plan *plan, const imx_request *r)
{
    const imbrex_group *group = plan->group;
    IMX_TRY(imx_request_check(group, r, "desc", 0));
    const imx_tune_input input = imx_request_input(group, r);
    plan->shape = r->shape;
    memcpy(plan->desc, r->desc, sizeof plan->desc);
    plan->config = imx_tune_config(&input);
    return choose(plan, r, &input);
}

/* Steps that hold any run to less than what sequential takes, also between them: by a plan for 1024
 * rows 700 take more. */
static const int64_t fewer_steps[IMX_FEWER] = { 64, 128, 256, 384, 512, 768, 1024, 2048 };

/* The rows of plan number i for fewer of what is asked for; 0: there is none. */
static int64_t fewer_rows(const imbrex_group *group, const imx_request *r, int i)
{
    int64_t rows = fewer_steps[i];
    bool chooses = !r->algorithm && !group->env.algorithm[0] && !r->chunk_rows;
    bool gpus = group->target->arch && group->nodes.count == 1;
    bool fits = rows >= r->m_least && rows <= r->shape.m * 3 / 4;
    return r->op->product && chooses && gpus && fits ? rows : 0;
}

static bool has_fewer(const imbrex_group *group, const imx_request *r)
{
    bool has = false;
    for (int i = 0; i < IMX_FEWER; i++)
        has = has || fewer_rows(group, r, i) > 0;
    return has;
}

/* Whether merged rows of a sum are read by their owners, part by part. */
static bool reads_columns(const imbrex_plan *plan)
{
    return plan->op->product && plan->op->scatters && plan->config.merged && !plan->config.sums;
}

static imbrex_status agree(imbrex_plan *plan, const char *call, const imx_request *r,
                           imbrex_status mine, imx_measured *note)
{
    const char *algorithms[1 + IMX_ALGORITHMS] = { "NULL" };
    int count = 1, asked = 0;
    for (const imx_algorithm *a = plan->op->algorithms; a->name; a++) {
        if (mine == IMBREX_OK && r->algorithm && strcmp(r->algorithm, a->name) == 0)
            asked = count;
        algorithms[count++] = a->name;
    }
    const imx_field more[] = {
        { .of = "desc",
          .name = "algorithm",
          .value = asked,
          .words = algorithms,
          .words_count = count },
        { .name = "the algorithm (chosen, or IMBREX_ALGORITHM)",
          .value = plan->algorithm ? plan->algorithm - plan->op->algorithms + 1 : 0,
          .words = algorithms,
          .words_count = count },
        { .name = "the rows of a chunk", .value = plan->config.chunk_rows },
        { .name = "the rows of a tile", .value = plan->config.tile_rows },
        { .name = "the columns of a tile", .value = plan->config.tile_cols },
        { .name = "whether tiles have rows of several ranks (0 or 1)",
          .value = plan->config.merged },
        { .name = "the columns that are read at a time",
          .value = reads_columns(plan) ? plan->config.part_cols : 0 },
        { .name = "whether IMBREX_ALGORITHM leaves room for plans for fewer rows (0 or 1)",
          .value = mine == IMBREX_OK && !plan->whole && has_fewer(plan->group, r) },
    };
    imx_field fields[IMX_AGREE_FIELDS];
    _Static_assert(IMX_REQUEST_FIELDS + sizeof more / sizeof *more <= IMX_AGREE_FIELDS,
                   "ranks do not tell so much");
    int given = imx_request_fields(r, "desc", fields);
    memcpy(fields + given, more, sizeof more);
    return imx_agree_noted(plan->group, call, mine, fields,
                           given + (int)(sizeof more / sizeof *more), note);
}

/* Settles what the plan is, alike on all ranks.  Where nobody names an algorithm, what has been
 * measured comes before what is expected.  Only rank 0 reads the file of it, so its answer travels
 * with the first meeting; if there is one, all decide again, as if the desc had asked for it, and
 * meet once more on that. */
static imbrex_status settle(imbrex_plan *plan, const char *call, const imx_request *r,
                            imbrex_status mine)
{
    const imbrex_group *group = plan->group;
    imx_measured known = { .chunk_rows = 0 }; /* to rank 0; once they have met, to all */
    if (mine == IMBREX_OK)
        mine = decide(plan, r);
    if (mine == IMBREX_OK && group->rank == 0 && group->size > 1 && !r->algorithm &&
        !group->env.algorithm[0])
        imx_measured_recall(group, r, &known);
    IMX_TRY(agree(plan, call, r, mine, &known));
    if (known.algorithm[0]) {
        imx_request measured = *r;
        measured.algorithm = known.algorithm;
        measured.chunk_rows = known.chunk_rows ? known.chunk_rows : r->chunk_rows;
        mine = decide(plan, &measured);
        snprintf(plan->why, sizeof plan->why, "%s", known.why);
        plan->measured = true;
        return agree(plan, call, &measured, mine, &known);
    }
    imx_text why = { .at = plan->why, .size = sizeof plan->why, .length = strlen(plan->why) };
    if (known.why[0])
        imx_text_add(&why, "; %s", known.why);
    return IMBREX_OK;
}

enum { ALIGNMENT = 256 };

static imx_offsets lay_out(const imbrex_plan *plan)
{
    imx_needs needs = { 0 };
    plan->algorithm->layout(plan, &needs);
    imx_offsets o = { 0 };
    o.signal_count = needs.signals;
    o.done_count = needs.done;
    o.signals = imx_align((size_t)plan->group->size * sizeof(uint64_t), ALIGNMENT);
    o.data = imx_align(o.signals + needs.signals * sizeof(uint64_t), ALIGNMENT);
    o.lines = o.data + needs.lines_at;
    o.lines_bytes = needs.lines_bytes;
    o.half_bytes = imx_align(o.data + needs.data_bytes, ALIGNMENT);
    o.done = ALIGNMENT;
    o.counters = imx_align(o.done + needs.done * sizeof(uint64_t), ALIGNMENT);
    o.ended = imx_align(o.counters + needs.done * sizeof(uint32_t), ALIGNMENT);
    o.local = imx_align(o.ended + sizeof(uint32_t), ALIGNMENT);
    o.local_bytes = imx_align(o.local + needs.local_bytes, ALIGNMENT);
    return o;
}

static imbrex_status take_sides(imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    if (group->nodes.count > 1)
        plan->side_count = IMX_SIDE_NET + (int)imx_max(1, group->net_facts.lanes);
    for (int i = 0; i < plan->side_count; i++) {
        imx_side *side = &plan->sides[i];
        IMX_TRY(group->backend->stream_create(group->device, &side->stream));
        IMX_TRY(group->backend->event_create(group->device, &side->event));
    }
    return IMBREX_OK;
}

static void drop_sides(imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    for (int i = 0; i < plan->side_count; i++) {
        group->backend->stream_destroy(group->device, plan->sides[i].stream);
        group->backend->event_destroy(group->device, plan->sides[i].event);
    }
}

static imbrex_status take_streams(imbrex_plan *plan)
{
    const imx_backend *backend = plan->group->backend;
    imx_device *device = plan->group->device;
    IMX_TRY(backend->stream_create(device, &plan->comm));
    IMX_TRY(take_sides(plan));
    IMX_TRY(backend->event_create(device, &plan->fork));
    IMX_TRY(backend->event_create(device, &plan->join));
    return imx_turn_create(plan->group, &plan->turn);
}

/* Of one node: without sides. */
static void share_streams(imbrex_plan *plan)
{
    plan->comm = plan->whole->comm;
    plan->fork = plan->whole->fork;
    plan->join = plan->whole->join;
}

static void drop_streams(imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    group->backend->stream_destroy(group->device, plan->comm);
    drop_sides(plan);
    group->backend->event_destroy(group->device, plan->fork);
    group->backend->event_destroy(group->device, plan->join);
}

static imbrex_status take_local(imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    IMX_TRY(
        group->backend->memory_create(group->device, 2 * plan->offsets.local_bytes, &plan->local));
    if (plan->whole)
        share_streams(plan);
    else
        IMX_TRY(take_streams(plan));
    return plan->algorithm->prepare ? plan->algorithm->prepare(plan) : IMBREX_OK;
}

/* Of one half after the other. */
static void own(const imbrex_group *group, const imx_memory *memory, size_t half_bytes,
                const imx_words *words, int count)
{
    imx_words both[IMX_WORDS_MOST];
    for (int i = 0; i < 2 * count; i++) {
        size_t from = i < count ? 0 : half_bytes;
        both[i] = (imx_words){ from + words[i % count].from, from + words[i % count].to };
    }
    imx_memory_own(group, memory, both, 2 * count);
}

/* What a checker is told of the plan's memory. */
static void own_memory(const imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    const imx_offsets *o = &plan->offsets;
    const imx_words shared[] = {
        { 0, (size_t)group->size * sizeof(uint64_t) },
        { o->signals, o->signals + o->signal_count * sizeof(uint64_t) },
        { o->lines, o->lines + o->lines_bytes },
    };
    const imx_words local[] = {
        { 0, sizeof(uint64_t) },
        { o->done, o->done + o->done_count * sizeof(uint64_t) },
        { o->counters, o->counters + o->done_count * sizeof(uint32_t) },
        { o->ended, o->ended + sizeof(uint32_t) },
    };
    own(group, plan->local, o->local_bytes, local, 4);
    own(group, plan->shared->memory[group->rank], o->half_bytes, shared, 3);
}

static imbrex_status create(imbrex_plan *plan, const char *call, const imx_request *r,
                            imbrex_plan **out)
{
    imbrex_status mine = imx_status_need(out, "plan", "want where to put it");
    if (mine == IMBREX_OK)
        mine = imx_net_check_number(plan->group, plan->group->plan_count + 1);
    IMX_TRY(settle(plan, call, r, mine));
    plan->offsets = lay_out(plan);
    mine = take_local(plan);
    IMX_TRY(imx_memory_alloc(plan->group, call, mine, 2 * plan->offsets.half_bytes, &plan->shared));
    own_memory(plan);
    return IMBREX_OK;
}

/* Also of a plan that is made in part. */
static void destroy(imbrex_plan *plan)
{
    imbrex_group *group = plan->group;
    imx_status_mute(true);
    imx_live_remove(IMX_LIVE_PLAN, plan);
    if (!plan->whole)
        imx_turn_destroy(group, &plan->turn, plan->comm);
    for (int i = 0; i < IMX_FEWER; i++) {
        if (plan->fewer[i])
            destroy(plan->fewer[i]);
    }
    if (!plan->whole)
        drop_streams(plan);
    for (int i = 0; i < IMX_KERNELS; i++)
        group->backend->prepared_destroy(group->device, plan->kernels[i]);
    imx_memory_free(group, plan->shared);
    if (!imx_net_stuck(group))
        group->backend->memory_release(plan->local);
    for (imbrex_plan **at = &group->plans; *at; at = &(*at)->next) {
        if (*at == plan) {
            *at = plan->next;
            break;
        }
    }
    free(plan);
    imx_status_mute(false);
}

/* whole: whose fewer rows the plan is for, or NULL. */
static imbrex_status make(imbrex_group *group, const char *call, const imx_request *r,
                          imbrex_plan *whole, imbrex_plan **out)
{
    imbrex_plan *plan = NULL;
    imbrex_status status = imx_sys_alloc(1, sizeof *plan, &plan);
    if (status == IMBREX_OK && !whole)
        status = imx_live_add(IMX_LIVE_PLAN, plan);
    if (status != IMBREX_OK) {
        free(plan);
        return imx_agree(group, call, status, NULL, 0);
    }
    plan->group = group;
    plan->op = r->op;
    plan->whole = whole;
    plan->next = group->plans;
    group->plans = plan;
    IMX_GOTO(create(plan, call, r, out));
    /* Only now: so it is the same on all ranks. */
    plan->number = whole ? IMX_FEWER_NUMBERS + ++group->fewer_count : ++group->plan_count;
    *out = plan;
    return IMBREX_OK;
fail:
    destroy(plan);
    return status;
}

static imbrex_status make_fewer(imbrex_plan *plan, const char *call, const imx_request *r)
{
    imx_request fewer = *r;
    fewer.m_least = 0;
    for (int i = 0; i < IMX_FEWER; i++) {
        fewer.shape.m = fewer_rows(plan->group, r, i);
        if (!fewer.shape.m)
            continue;
        imbrex_status status = make(plan->group, call, &fewer, plan, &plan->fewer[i]);
        if (status != IMBREX_OK)
            return imx_fail(status,
                            "%s (the plan in it for up to %lld rows; desc.m_least = desc.m "
                            "makes none)",
                            imx_status_detail(), (long long)fewer.shape.m);
    }
    return IMBREX_OK;
}

imbrex_status imx_plan_create_asked(imbrex_group *group, const char *call, const imx_request *r,
                                    imbrex_plan **out)
{
    imx_status_enter(call);
    IMX_ENTER(group);
    IMX_TRY(imx_fault_check(group)); /* a rank that is gone would not come to the meeting */
    imbrex_plan *plan = NULL;
    imbrex_status status;
    IMX_TRY(make(group, call, r, NULL, out ? &plan : NULL));
    IMX_GOTO(make_fewer(plan, call, r));
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

void imbrex_plan_destroy(imbrex_plan *plan)
{
    IMX_CALL call = { 0 };
    if (imx_live_is(IMX_LIVE_PLAN, plan) && imx_call_await(&call, plan->group))
        destroy(plan);
}

void imx_plan_destroy_all(imbrex_group *group)
{
    while (group->plans)
        destroy(group->plans->whole ? group->plans->whole : group->plans);
}

void imx_plan_forsake_all(imbrex_group *group)
{
    for (imbrex_plan *plan; (plan = group->plans);) {
        group->plans = plan->next;
        imx_live_remove(IMX_LIVE_PLAN, plan);
        if (group->backend->forked_release)
            group->backend->memory_release(plan->local);
        free(plan);
    }
}

imbrex_status imx_plan_prepare_blocks(imbrex_plan *plan, int i, const imx_kernel *kernel,
                                      const void *largest, int blocks)
{
    return plan->group->backend->prepare(plan->group->device, kernel, largest, blocks,
                                         &plan->kernels[i]);
}

imbrex_status imx_plan_prepare(imbrex_plan *plan, int i, const imx_kernel *kernel,
                               const void *largest)
{
    return imx_plan_prepare_blocks(plan, i, kernel, largest, plan->config.blocks);
}

imx_schedule imx_plan_schedule(const imbrex_plan *plan, int64_t m, int first, int solo)
{
    const imx_config *config = &plan->config;
    int64_t all_rows = imx_ceil_div(plan->shape.m, config->tile_rows) * config->tile_rows;
    return (imx_schedule){
        .m = m,
        .n = plan->shape.n,
        .ranks = config->merged ? 1 : plan->group->size,
        .first = config->merged ? 0 : first,
        .chunk_rows = config->merged ? (int)all_rows : (int)imx_plan_chunk_rows(plan, m),
        .tile_rows = config->tile_rows,
        .tile_cols = config->tile_cols,
        .group = config->group,
        .band = config->merged ? 0 : config->band,
        .solo = solo,
        .chunks = config->chunks,
        .local = plan->group->nodes.count > 1 ? plan->group->nodes.ranks : 0,
    };
}

const imbrex_plan *imx_plan_by_number(const imbrex_group *group, int number)
{
    const imbrex_plan *plan = group->plans;
    while (plan && plan->number != number)
        plan = plan->next;
    return plan;
}
