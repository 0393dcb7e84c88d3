/* fault.c - why a group has failed, in words: which wait, and which rank holds up all the others.
 */
#include "fault.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "kernels/wait_points.h"

/* The nodes were being connected, which has half of the limit. */
static bool is_opening(const imbrexd_wait_point *point)
{
    return point->what == IMX_POINT_NET && point->plan == IMX_NET_OPENING;
}

/* Whose wait it is, where it is not the group's own. */
static const imx_object_kind *kind_at(const imbrexd_wait_point *point)
{
    return imx_object_kinds[point->what >= IMBREXD_POINT_SIGNAL ? IMX_OF_CALLER : IMX_OF_LIBRARY];
}

static void describe_point(const imbrex_group *group, const imbrexd_wait_point *point,
                           imx_text *text)
{
    switch (point->what) {
    case IMX_POINT_USER:
        imx_text_add(text, "a signal (imbrex_signal_wait)");
        return;
    case IMX_POINT_BARRIER:
        imx_text_add(text, "rank %d to come to imbrex_barrier", point->rank);
        return;
    case IMX_POINT_NET:
        imx_text_add(text, "the network to or from rank %d", point->rank);
        break;
    default:
        kind_at(point)->describe_wait(point, text);
    }
    if (is_opening(point)) {
        imx_text_add(text, " as the group was made");
        return;
    }
    imx_text_add(text, " in ");
    if (point->what == IMX_POINT_NET && point->plan == IMX_NET_EXCHANGES)
        imx_text_add(text, "imbrex_exchange");
    else if (point->plan)
        kind_at(point)->name(group, point->plan, text);
    else
        imx_text_add(text, "imbrex_barrier");
}

/* ", on node 1 (c05)", if it is another node than this rank's. */
static void describe_node(const imbrex_group *group, int rank, imx_text *text)
{
    const imx_nodes *nodes = &group->nodes;
    if (rank >= 0 && rank < group->size && !imx_nodes_here(nodes, rank))
        imx_text_add(text, ", on node %d (%s)", nodes->of[rank], nodes->name[nodes->of[rank]]);
}

/* Two sides of the network that differ: where, and what they have to do alike. */
static void describe_sizes(const imbrex_group *group, const imbrexd_fault *fault, imx_text *text)
{
    int rank = fault->point.rank;
    imx_text_add(text, "what came from rank %d", rank);
    describe_node(group, rank, text);
    imx_text_add(text, "%s in ", imx_nodes_here(&group->nodes, rank) ? "" : ",");
    if (fault->point.plan == IMX_NET_EXCHANGES) {
        imx_text_add(text, "imbrex_exchange has not the size that it has here: the n-th send to a "
                           "rank and its n-th receive want the same bytes");
        return;
    }
    imx_object_kinds[IMX_OF_LIBRARY]->name(group, fault->point.plan, text);
    imx_text_add(text, " has not the size that it has here: all ranks must pass the same args.m, "
                       "and run the same plans in the same order");
}

/* ---- who holds up whom ----------------------------------------------------------------------- */

enum { NOBODY = -1, RANKS_MOST = 1024 };

typedef struct search {
    const imbrex_group *group;
    int64_t since_ns; /* a wait noted after this was still on at the time of the fault */
    uint64_t seen[RANKS_MOST / 64];
} search;

/* A waiting thread notes the time every 10 ms, a busy machine may make it 100. */
static int64_t freshness_ns(const imbrex_group *group)
{
    return imx_max(30, imx_min(group->timeout_ms / 4, 1000)) * 1000000;
}

static bool waits_for(const search *s, int rank, int other)
{
    const int64_t *waiting = imx_control_of(s->group, rank)->waiting;
    return __atomic_load_n(&waiting[other], __ATOMIC_RELAXED) >= s->since_ns;
}

static bool see(search *s, int rank)
{
    if (rank >= RANKS_MOST || s->seen[rank / 64] >> rank % 64 & 1)
        return false;
    s->seen[rank / 64] |= (uint64_t)1 << rank % 64;
    return true;
}

/* From rank along its waits to one that waits for nobody, or that is on another node, whose waits
 * nobody sees here; NOBODY: all wait. */
static int find_idle(search *s, int rank)
{
    if (!imx_nodes_here(&s->group->nodes, rank))
        return rank;
    bool waits = waits_for(s, rank, s->group->size);
    for (int r = 0; r < s->group->size; r++) {
        if (r == rank || !waits_for(s, rank, r))
            continue;
        waits = true;
        int idle = see(s, r) ? find_idle(s, r) : NOBODY;
        if (idle != NOBODY)
            return idle;
    }
    return waits ? NOBODY : rank;
}

/* Whose post it is that was waited for.  A chunk of a rank on another node comes by way of the rank
 * here that has its number there. */
static int poster_of(const imbrex_group *group, const imbrexd_fault *fault)
{
    const imx_nodes *nodes = &group->nodes;
    int rank = fault->point.rank;
    if (fault->point.what != IMX_POINT_CHUNK || rank < 0 || rank >= group->size || !nodes->equal ||
        !imx_nodes_here(nodes, fault->rank) || imx_nodes_here(nodes, rank))
        return rank;
    int local_peer = imx_nodes_root(nodes) + rank % nodes->ranks;
    return local_peer == fault->rank ? rank : local_peer;
}

bool imx_fault_add_refusal(const imbrex_group *group, int rank, imx_text *text)
{
    char refused[IMX_NOTE_BYTES];
    if (!imx_note_read(&imx_control_of(group, rank)->refused, refused))
        return false;
    imx_text_add(text, ": a call was refused there, and not made again: %s", refused);
    return true;
}

/* Whoever is waited for may itself wait, and so on: who is at the end of the chain? */
static void describe_chain(const imbrex_group *group, const imbrexd_fault *fault, imx_text *text)
{
    int first = poster_of(group, fault);
    if (first < 0)
        return;
    if (first >= group->size) {
        imx_text_add(text, ": there are ranks 0 to %d", group->size - 1);
        return;
    }
    if (!imx_nodes_here(&group->nodes, fault->rank)) { /* who can look at the waits there */
        describe_node(group, first, text);
        return;
    }
    if (!imx_nodes_here(&group->nodes, first)) {
        describe_node(group, first, text);
        imx_text_add(text, ": is it stopped, busy, in another call or cut off?");
        return;
    }
    if (!fault->when_ns) { /* noticed by a device, and devices keep no times of their waits */
        if (first == fault->rank) /* a block waits for other blocks of its kernel */
            imx_text_add(text, ": did other kernels keep part of this one from running (imbrex.h, "
                               "Budget)?");
        else if (!imx_fault_add_refusal(group, first, text))
            imx_text_add(text, ": is rank %d stopped, busy or in another call?", first);
        return;
    }
    search s = { .group = group, .since_ns = fault->when_ns - freshness_ns(group) };
    see(&s, first);
    int idle = find_idle(&s, first);
    if (idle == NOBODY) {
        imx_text_add(text, ", which waits too: do all ranks make the same calls?");
        return;
    }
    if (idle == fault->rank) /* it waits for itself */
        return;
    if (idle != first)
        imx_text_add(text, ", which waits too, in the end for rank %d", idle);
    if (!imx_nodes_here(&group->nodes, idle)) {
        describe_node(group, idle, text);
        return;
    }
    /* relaxed: a time by itself.  Whoever left later did so because of this fault. */
    int64_t left_ns = __atomic_load_n(&imx_control_of(group, idle)->left_ns, __ATOMIC_RELAXED);
    bool left = left_ns && left_ns < fault->when_ns;
    if (left)
        imx_text_add(text, ", which has destroyed its group");
    else
        imx_text_add(text, ", which waits for nobody");
    if (!imx_fault_add_refusal(group, idle, text) && !left)
        imx_text_add(text, ": is it stopped, busy or in another call?");
}

/* ---- status ---------------------------------------------------------------------------------- */

/* Whether the rank's fault can be read: another thread of it may be writing it this moment. */
static bool is_written(const imbrexd_fault *fault)
{
    uint32_t state; /* acquire: pairs with the writer's release of state 2 */
    for (int i = 0; (state = __atomic_load_n(&fault->state, __ATOMIC_ACQUIRE)) == 1 && i < 1000;
         i++)
        sched_yield();
    return state == 2;
}

const imbrexd_fault *imx_fault_of(const imbrex_group *group, int rank)
{
    const imx_nodes *nodes = &group->nodes;
    return imx_nodes_here(nodes, rank) ? &imx_control_of(group, rank)->fault
                                       : &imx_control_of(group, imx_nodes_root(nodes))->foreign;
}

const imx_note *imx_fault_why(const imbrex_group *group, int rank)
{
    const imx_nodes *nodes = &group->nodes;
    return imx_nodes_here(nodes, rank) ? &imx_control_of(group, rank)->why
                                       : &imx_control_of(group, imx_nodes_root(nodes))->foreign_why;
}

/* What there is to say: who noticed it, with " (this rank), on node 1 (c05)," as it fits. */
typedef struct report {
    const imbrex_group *group;
    const imbrexd_fault *fault;
    int by;
    bool own;
    char self[128];
    char words[800];
    imx_text text; /* over words */
} report;

static imbrex_status say_abort(report *r)
{
    char why[IMX_NOTE_BYTES];
    bool said = imx_note_read(imx_fault_why(r->group, r->by), why);
    return imx_fail(IMBREX_PEER, "rank %d%s called imbrex_group_abort%s%s", r->by, r->self,
                    said ? ": " : "", said ? why : "");
}

static imbrex_status say_death(report *r)
{
    int rank = r->fault->point.rank;
    describe_node(r->group, rank, &r->text);
    return imx_fail(IMBREX_PEER, "rank %d%s ended without leaving the group, as rank %d%s saw",
                    rank, r->words, r->by, r->self);
}

/* Of the kinds of fault that callers' code alone has. */
static imbrex_status say_mistake(report *r)
{
    imx_object_kinds[IMX_OF_CALLER]->describe_mistake(r->group, r->fault, &r->text);
    return imx_fail(IMBREX_INVALID, "rank %d%s: %s", r->by, r->self, r->words);
}

static imbrex_status say_rows(report *r)
{
    const imbrexd_fault *fault = r->fault;
    if (fault->point.index >= 0)
        return imx_fail(IMBREX_NO_MEMORY,
                        "rank %d%s: expert %d has %llu rows in a run of plan %d, and "
                        "desc.expert_capacity is %llu: make it larger",
                        r->by, r->self, fault->point.index, (unsigned long long)fault->have,
                        fault->point.plan, (unsigned long long)fault->want);
    return imx_fail(IMBREX_NO_MEMORY,
                    "rank %d%s: the tokens of a run of plan %d have %llu rows there, and desc.rows "
                    "is %llu: make it larger, or 0 for as many as there can be",
                    r->by, r->self, fault->point.plan, (unsigned long long)fault->have,
                    (unsigned long long)fault->want);
}

/* Of sequences in the cache. */
static imbrex_status say_tokens(report *r)
{
    const imbrexd_fault *fault = r->fault;
    bool page = fault->kind == IMBREXD_FAULT_PAGE;
    imx_object_kinds[IMX_OF_LIBRARY]->name(r->group, fault->point.plan, &r->text);
    return imx_fail(IMBREX_INVALID,
                    "rank %d%s: in a run of %s sequence %d has %s %lld there: want from 0 to %lld, "
                    "by %s",
                    r->by, r->self, r->words, fault->point.index, page ? "page" : "a length of",
                    (long long)fault->have, (long long)fault->want - page,
                    page ? "args.page_count" : "desc.context, args.page_stride and page_count");
}

static imbrex_status say_net(report *r)
{
    if (r->fault->want == IMX_NET_SIZES_DIFFER) {
        describe_sizes(r->group, r->fault, &r->text);
        return imx_fail(IMBREX_INVALID, "rank %d%s found that %s", r->by, r->self, r->words);
    }
    describe_node(r->group, r->fault->point.rank, &r->text);
    if (r->fault->want == IMX_NET_FORGED)
        return imx_fail(
            IMBREX_PEER,
            "what came to rank %d%s as rank %d's fault relay%s is not what that rank sent: "
            "something between them alters, repeats, reorders or forges it",
            r->by, r->self, r->fault->point.rank, r->words);
    return imx_fail(IMBREX_PEER, "rank %d%s: %s failed between it and rank %d%s (its code: %d)",
                    r->by, r->self, r->group->net_facts.text, r->fault->point.rank, r->words,
                    (int)r->fault->have);
}

static imbrex_status say_mismatch(report *r)
{
    kind_at(&r->fault->point)->describe_mismatch(r->group, r->fault, &r->text);
    return imx_fail(IMBREX_INVALID, "%s (noticed by rank %d%s)", r->words, r->by, r->self);
}

static imbrex_status say_gave_up(report *r)
{
    imbrex_status why = (imbrex_status)r->fault->have;
    int plan = r->fault->point.plan;
    imx_text_add(&r->text, plan ? "its run of " : "imbrex_barrier");
    if (plan)
        imx_object_kinds[IMX_OF_LIBRARY]->name(r->group, plan, &r->text);
    return imx_fail(r->own ? why : IMBREX_PEER,
                    "rank %d%s could enqueue only a part of %s: %s there", r->by, r->self, r->words,
                    imbrex_status_name(why));
}

static imbrex_status say_protocol(report *r)
{
    const imbrexd_wait_point *point = &r->fault->point;
    const char *sentence = r->group->backend->sentence(r->group->device, r->fault);
    bool ours = point->plan && point->what < IMBREXD_POINT_SIGNAL;
    if (point->plan)
        kind_at(point)->name(r->group, point->plan, &r->text);
    return imx_fail(
        ours ? IMBREX_INTERNAL : IMBREX_INVALID, "IMBREX_CHECK: %s%s%s (noticed by rank %d%s)",
        sentence ? sentence : "a mistake", r->words[0] ? ", in " : "", r->words, r->by, r->self);
}

static imbrex_status say_deadline(report *r)
{
    describe_point(r->group, &r->fault->point, &r->text);
    int poster = poster_of(r->group, r->fault);
    if (poster != r->fault->point.rank)
        imx_text_add(&r->text, ", by way of rank %d", poster);
    bool value =
        r->fault->point.what != IMX_POINT_NET && r->fault->point.what != IMBREXD_POINT_LOOP;
    if (value)
        imx_text_add(&r->text, " (the signal is %llu, not yet %llu",
                     (unsigned long long)r->fault->have, (unsigned long long)r->fault->want);
    imx_user_describe_late(value ? "; " : " (", r->fault->late, &r->text);
    if (value || r->fault->late)
        imx_text_add(&r->text, ")");
    describe_chain(r->group, r->fault, &r->text);
    bool opening = is_opening(&r->fault->point);
    return imx_fail(r->own ? IMBREX_TIMEOUT : IMBREX_PEER, "rank %d%s waited %lld ms%s for %s",
                    r->by, r->self, (long long)r->group->timeout_ms / (opening ? 2 : 1),
                    opening ? ", half of the timeout," : "", r->words);
}

static imbrex_status say(const imbrex_group *group, int noticed_by)
{
    static imbrex_status (*const sayings[])(report *) = {
        [IMBREXD_FAULT_ABORT] = say_abort,       [IMBREXD_FAULT_DEATH] = say_death,
        [IMBREXD_FAULT_OUTSIDE] = say_mistake,   [IMBREXD_FAULT_UNREACHABLE] = say_mistake,
        [IMBREXD_FAULT_NET] = say_net,           [IMBREXD_FAULT_MISMATCH] = say_mismatch,
        [IMBREXD_FAULT_GAVE_UP] = say_gave_up,   [IMBREXD_FAULT_PROTOCOL] = say_protocol,
        [IMBREXD_FAULT_DEADLINE] = say_deadline, [IMBREXD_FAULT_SHARED] = say_mistake,
        [IMBREXD_FAULT_HOOK] = say_mistake,      [IMBREXD_FAULT_ROWS] = say_rows,
        [IMBREXD_FAULT_LENGTH] = say_tokens,     [IMBREXD_FAULT_PAGE] = say_tokens,
    };
    report r = { .group = group, .fault = imx_fault_of(group, noticed_by), .by = noticed_by };
    unsigned kind = is_written(r.fault) ? (unsigned)r.fault->kind : 0;
    if (kind >= sizeof sayings / sizeof sayings[0] || !sayings[kind])
        return imx_fail(IMBREX_PEER, "rank %d ended all waits", noticed_by);
    r.own = noticed_by == group->rank;
    r.text = (imx_text){ .at = r.words, .size = sizeof r.words };
    imx_text whose = { .at = r.self, .size = sizeof r.self };
    if (r.own)
        imx_text_add(&whose, " (this rank)");
    describe_node(group, noticed_by, &whose);
    if (!imx_nodes_here(&group->nodes, noticed_by))
        imx_text_add(&whose, ",");
    return sayings[kind](&r);
}

imbrex_status imx_fault_check(const imbrex_group *group)
{
    /* acquire: the fault was written before the word */
    uint64_t abort = __atomic_load_n(group->abort[group->rank], __ATOMIC_ACQUIRE);
    if (!abort)
        return IMBREX_OK;
    imbrex_status status = say(group, (int)(abort - 1));
    if (group->env.log != IMX_LOG_NOTHING &&
        !__atomic_exchange_n(&imx_control_of(group, group->rank)->logged, 1, __ATOMIC_RELAXED))
        imx_log(group->rank, group->size, "failed: %s", imx_status_detail());
    return status;
}

/* A call in which the group was found failed is no news. */
void imx_fault_note_refusal(imbrex_group *group)
{
    imx_note *refused = &imx_control_of(group, group->rank)->refused;
    const char *sentence = imbrex_error(), *function = imx_status_function();
    char before[IMX_NOTE_BYTES];
    size_t name = strlen(function);
    if (sentence[0] && !__atomic_load_n(group->abort[group->rank], __ATOMIC_RELAXED))
        imx_note_write(refused, sentence);
    else if (!sentence[0] && imx_note_read(refused, before) &&
             strncmp(before, function, name) == 0 && before[name] == ':')
        imx_note_write(refused, "");
}

imbrex_status imx_fault_give_up(imbrex_group *group, int plan, imbrex_status why,
                                const imbrex_stream *streams, int count)
{
    char sentence[400];
    snprintf(sentence, sizeof sentence, "%s", imx_status_detail());
    imbrexd_wait_point point = { .plan = plan, .rank = group->rank, .index = -1 };
    imbrexd_fault_raise(&group->watch, IMBREXD_FAULT_GAVE_UP, point, (uint64_t)why, 0);
    for (int i = 0; i < count; i++) {
        imbrex_status drained = group->backend->stream_sync(group->device, streams[i]);
        (void)drained;
    }
    return imx_fail(why, "%s", sentence);
}
