/* group.c - makes a group: who is here, which device, how peers are reached, what ends a wait. */
#include "group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/live.h"
#include "base/log.h"
#include "base/nvtx.h"
#include "base/process.h"
#include "bootstrap/identity.h"
#include "device_rates.h"
#include "fault_relay.h"
#include "gate.h"
#include "place.h"
#include "trace.h"

/* All devices that this build knows, best first. */
static const imx_backend *const backends[] = { &imx_backend_cuda, &imx_backend_compile,
                                               &imx_backend_cpu };
enum { BACKENDS = sizeof backends / sizeof backends[0] };

/* ---- create ---------------------------------------------------------------------------------- */

/* "name" or "name:index" of the desc against the table; NULL takes the first that is usable. */
static imbrex_status choose_device(const char *device, int *backend, int *index)
{
    *backend = 0;
    *index = -1;
    imx_status_mute(true); /* that one cannot be used is no failure */
    while (!device && backends[*backend]->usable && !backends[*backend]->usable())
        ++*backend; /* the last one always is */
    imx_status_mute(false);
    if (!device)
        return IMBREX_OK;
    size_t length = strcspn(device, ":");
    for (int i = 0; i < BACKENDS; i++) {
        if (strlen(backends[i]->name) != length || strncmp(device, backends[i]->name, length) != 0)
            continue;
        *backend = i;
        int64_t number;
        if (!device[length])
            return IMBREX_OK;
        if (!imx_env_parse_int(device + length + 1, &number) || number < 0 || number > 1024)
            return imx_fail(IMBREX_INVALID, "desc.device is \"%s\": want \"%s:%d\" or the like",
                            device, backends[i]->name, imx_backend_runs(backends[i]) ? 0 : 90);
        *index = (int)number;
        return IMBREX_OK;
    }
    return imx_fail(IMBREX_INVALID,
                    "desc.device is \"%s\": this build knows \"cpu\", \"cuda\" and \"compile\"",
                    device);
}

static imbrex_status check_desc(const imbrex_group_desc *desc, imbrex_group **out)
{
    IMX_TRY(imx_status_need(out, "group", "want where to put it"));
    IMX_TRY(imx_status_need_place(desc->device, 0, "desc.device"));
    if (desc->timeout_ms < 0 || desc->timeout_ms > IMX_TIMEOUT_MS_MOST)
        return imx_fail(IMBREX_INVALID, "desc.timeout_ms is %lld: want from 0 to %d",
                        (long long)desc->timeout_ms, IMX_TIMEOUT_MS_MOST);
    return imx_status_need_zero(desc->reserved, sizeof desc->reserved, "desc");
}

static imbrex_status meet(imbrex_group *group, const imbrex_group_desc *desc)
{
    group->timeout_ms =
        imx_timeout_ms(desc->timeout_ms > 0 ? desc->timeout_ms : group->env.timeout_ms);
    group->bootstrap = desc->bootstrap;
    if (!group->bootstrap) {
        IMX_TRY(imx_bootstrap_from_env(&group->env, group->timeout_ms, &group->own_bootstrap));
        group->bootstrap = imx_bootstrap_public(group->own_bootstrap);
    }
    const imbrex_bootstrap *b = group->bootstrap;
    if (b->size < 1 || b->rank < 0 || b->rank >= b->size)
        return imx_fail(IMBREX_INVALID, "desc.bootstrap says rank %d of %d", b->rank, b->size);
    if (b->size > 1 && !b->allgather)
        return imx_fail(IMBREX_INVALID, "desc.bootstrap.allgather is NULL");
    IMX_TRY(imx_status_need_zero(b->reserved, sizeof b->reserved, "desc.bootstrap"));
    group->rank = b->rank;
    group->size = b->size;
    return imx_agree_prepare(group);
}

/* Who shares a process, who a host, who a node: fills peers, the local ranks and the nodes. */
static imbrex_status sort_ranks(imbrex_group *group, const imx_identity *all)
{
    const imx_identity *own = &all[group->rank];
    imx_nodes *nodes = &group->nodes;
    IMX_TRY(imx_nodes_find(all, group->rank, group->size, group->env.node_ranks, nodes));
    for (int r = 0; r < group->size; r++) {
        bool same_host = strcmp(all[r].host, own->host) == 0;
        bool same_process = memcmp(all[r].process, own->process, sizeof own->process) == 0;
        group->local_rank += same_host && r < group->rank;
        group->local_size += same_host;
        group->peers[IMX_LOCAL_THREADS][r] =
            r != group->rank && same_process && imx_nodes_here(nodes, r);
        group->peers[IMX_LOCAL_FDS][r] = !same_process && imx_nodes_here(nodes, r);
        for (int q = 0; q < r; q++) {
            bool same = memcmp(all[r].process, all[q].process, sizeof own->process) == 0;
            if (nodes->of[q] == nodes->of[r])
                group->needed[same ? IMX_LOCAL_THREADS : IMX_LOCAL_FDS] = true;
        }
    }
    return IMBREX_OK;
}

static imbrex_status look_around(imbrex_group *group)
{
    imx_identity own, *all = NULL;
    imbrex_status mine = imx_identity_read(group->env.node, &own);
    if (mine == IMBREX_OK)
        mine = imx_sys_alloc((size_t)group->size, sizeof *all, &all);
    imx_field per_node = { .name = "IMBREX_NODE_RANKS", .value = group->env.node_ranks };
    imbrex_status status;
    IMX_GOTO(imx_agree(group, "imbrex_group_create", mine, &per_node, 1));
    IMX_GOTO(imx_agree_allgather(group, &own, all, sizeof own));
    IMX_GOTO(sort_ranks(group, all));
fail:
    free(all);
    return status;
}

/* From here on the caller's allgather is not called any more. */
static imbrex_status leave_bootstrap(imbrex_group *group, const char *call)
{
    imx_place place = { .rank = group->rank,
                        .size = group->size,
                        .one_host = group->local_size == group->size,
                        .call = call,
                        .listener = -1 };
    imx_door_offer offer = { .count = 0 }, *offers = NULL;
    imbrex_status status, mine = imx_sys_alloc((size_t)group->size, sizeof *offers, &offers);
    if (mine == IMBREX_OK)
        mine = imx_place_open(&place, &offer);
    IMX_GOTO(imx_agree(group, call, mine, NULL, 0));
    IMX_GOTO(imx_agree_allgather(group, &offer, offers, sizeof offer));
    mine = imx_place_meet(&place, offers, NULL, group->timeout_ms, &group->own_bootstrap);
    IMX_GOTO(imx_agree(group, call, mine, NULL, 0));
    group->bootstrap = imx_bootstrap_public(group->own_bootstrap);
fail:
    imx_place_close(&place);
    free(offers);
    return status;
}

/* How many ranks are on rank r's device. */
static int sharers_of(const imbrex_group *group, int r)
{
    const imx_target *all = group->targets;
    int sharers = 0;
    for (int i = 0; i < group->size; i++)
        sharers += i == r || (all[r].id[0] && strcmp(all[i].id, all[r].id) == 0);
    return (int)imx_max(sharers, group->parent_sharers); /* they run beside each other */
}

static int workers_of(const imbrex_group *group, int r)
{
    return (int)imx_max(1, group->targets[r].workers / sharers_of(group, r));
}

static imbrex_status gather_targets(imbrex_group *group)
{
    imx_target own;
    group->backend->target(group->device, &own);
    snprintf(group->device_name, sizeof group->device_name, "%s:%d", group->backend->name,
             own.index);
    return imx_agree_allgather(group, &own, group->targets, sizeof own);
}

/* What passes between ranks depends on the kernels' form: where it would not be the same, they take
 * one that all have. */
static imbrex_status take_one_form(imbrex_group *group)
{
    const imx_target *all = group->targets;
    size_t least = all[0].shared_bytes;
    bool one = true;
    for (int r = 1; r < group->size; r++) {
        one = one && all[r].arch == all[0].arch && all[r].shared_bytes == all[0].shared_bytes;
        least = imx_min(least, all[r].shared_bytes);
    }
    if (one || !group->backend->take_common_form)
        return IMBREX_OK;
    group->backend->take_common_form(group->device, least);
    return gather_targets(group);
}

/* What the ranks' devices are, and how many share each: plans divide its workers among them, so
 * that the kernels of all can be resident at once.  All plan for as many as the rank with the
 * fewest. */
static imbrex_status look_at_devices(imbrex_group *group)
{
    imbrex_status mine =
        imx_sys_alloc((size_t)group->size, sizeof *group->targets, &group->targets);
    IMX_TRY(imx_agree(group, "imbrex_group_create", mine, NULL, 0));
    IMX_TRY(gather_targets(group));
    IMX_TRY(take_one_form(group));
    group->target = &group->targets[group->rank];
    group->sharers = sharers_of(group, group->rank);
    const int own_workers = workers_of(group, group->rank);
    group->workers = own_workers;
    group->alike = true;
    group->memory_gb_s = group->target->memory_gb_s;
    for (int r = 0; r < group->size; r++) {
        int workers = workers_of(group, r);
        group->memory_gb_s = (int)imx_min(group->memory_gb_s, group->targets[r].memory_gb_s);
        group->alike = group->alike && workers == own_workers;
        group->workers = (int)imx_min(group->workers, workers);
        group->sharers = (int)imx_max(group->sharers, sharers_of(group, r));
    }
    return IMBREX_OK;
}

/* What one rank finds is not enough: both ends must know the form in which data comes. */
static imbrex_status look_at_links(imbrex_group *group)
{
    imbrex_status mine = IMBREX_OK;
    bool own = true, *all = group->proposals;
    for (int r = 0; r < group->size && own && mine == IMBREX_OK; r++) {
        if (r != group->rank && imx_nodes_here(&group->nodes, r))
            mine = group->backend->whole_lines(group->device, group->targets[r].id, &own);
    }
    IMX_TRY(imx_agree(group, "imbrex_group_create", mine, NULL, 0));
    IMX_TRY(imx_agree_allgather(group, &own, all, sizeof own));
    group->whole_lines = true;
    for (int r = 0; r < group->size; r++)
        group->whole_lines = group->whole_lines && all[r];
    return IMBREX_OK;
}

static imbrex_status open_transports(imbrex_group *group)
{
    imx_transport_desc desc = {
        .backend = group->backend,
        .device = group->device,
        .rank = group->rank,
        .size = group->size,
        .timeout_ms = group->timeout_ms,
        .allgather = imx_agree_allgather_of,
        .ctx = group,
    };
    imbrex_status status = IMBREX_OK;
    for (int t = 0; t < IMX_TRANSPORTS && status == IMBREX_OK; t++) {
        if (group->needed[t])
            status = imx_memory_transports[t]->create(&desc, group->peers[t], &group->transport[t]);
    }
    IMX_TRY(imx_agree(group, "imbrex_group_create", status, NULL, 0));
    for (int t = 0; t < IMX_TRANSPORTS; t++) {
        if (!group->transport[t] || !imx_memory_transports[t]->open)
            continue;
        imbrex_status opened = imx_memory_transports[t]->open(group->transport[t]);
        status = status == IMBREX_OK ? opened : status;
    }
    return imx_agree(group, "imbrex_group_create", status, NULL, 0);
}

/* A peer that left in order is no fault: whoever still waits for it times out. */
static void peer_gone(void *ctx, int rank)
{
    imbrex_group *group = ctx;
    if (__atomic_load_n(&imx_control_of(group, rank)->left_ns, __ATOMIC_ACQUIRE))
        return;
    imbrexd_wait_point point = { .rank = rank, .index = -1 };
    imbrexd_fault_raise(&group->watch, IMBREXD_FAULT_DEATH, point, 0, 0);
}

static imbrex_status set_watch(imbrex_group *group)
{
    imx_control *own = imx_control_of(group, group->rank);
    IMX_TRY(imx_sys_alloc((size_t)group->size, sizeof *group->abort, &group->abort));
    for (int r = 0; r < group->size; r++)
        group->abort[r] =
            &imx_control_of(group, imx_nodes_here(&group->nodes, r) ? r : group->rank)->abort;
    /* Each rank computes on some threads and moves data on another: spinning pays only while they
     * all have a core. */
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    bool room =
        group->env.cpu_threads < cores / imx_max(group->local_size, group->parent_local_size);
    group->watch = (imbrexd_watch){
        .abort = group->abort,
        .fault = &own->fault,
        .waiting = own->waiting,
        .rank = group->rank,
        .size = group->size,
        .spins = room ? 4000 : 100,
        .timeout_ns = group->timeout_ms * 1000000,
    };
    group->backend->set_watch(group->device, &group->watch);
    if (group->own_bootstrap)
        imx_bootstrap_watch(group->own_bootstrap, &own->abort);
    for (int t = 0; t < IMX_TRANSPORTS; t++) {
        if (group->transport[t] && imx_memory_transports[t]->watch)
            IMX_TRY(imx_memory_transports[t]->watch(group->transport[t], &own->abort, peer_gone,
                                                    group));
    }
    return IMBREX_OK;
}

static imbrex_status take_peer_tables(imbrex_group *group)
{
    for (int t = 0; t < IMX_TRANSPORTS; t++)
        IMX_TRY(imx_sys_alloc((size_t)group->size, sizeof(bool), &group->peers[t]));
    return IMBREX_OK;
}

/* Once the ranks have met. */
static imbrex_status begin(imbrex_group *group, imbrex_status mine, int backend, int index)
{
    const char *call = "imbrex_group_create";
    if (mine == IMBREX_OK)
        mine = take_peer_tables(group);
    const char *kinds[BACKENDS];
    for (int i = 0; i < BACKENDS; i++)
        kinds[i] = backends[i]->name;
    imx_field fields[] = {
        { .name = "desc.timeout_ms, or IMBREX_TIMEOUT_MS,", .value = group->timeout_ms },
        { .name = "the kind of desc.device",
          .value = backend,
          .words = kinds,
          .words_count = BACKENDS },
        { .name = "the version of imbrex (major * 10^6 + minor * 10^3 + patch)",
          .value =
              IMBREX_VERSION_MAJOR * 1000000 + IMBREX_VERSION_MINOR * 1000 + IMBREX_VERSION_PATCH },
        { .name = "desc.bootstrap.once", .value = group->bootstrap->once != 0 },
    };
    IMX_TRY(imx_agree(group, call, mine, fields, sizeof fields / sizeof fields[0]));
    group->backend = backends[backend];
    IMX_TRY(look_around(group));
    if (group->bootstrap->once && group->size > 1)
        IMX_TRY(leave_bootstrap(group, call));

    imx_device_desc device = {
        .index = index,
        .rank = group->rank,
        .size = group->size,
        .local_rank = group->local_rank,
        .local_size = (int)imx_max(group->local_size, group->parent_local_size),
        .env = &group->env,
    };
    mine = group->backend->open(&device, &group->device);
    IMX_TRY(imx_agree(group, call, mine, NULL, 0));
    IMX_TRY(look_at_devices(group));
    IMX_TRY(look_at_links(group));
    IMX_TRY(imx_device_rates_agree(group));
    IMX_TRY(open_transports(group));
    IMX_TRY(imx_memory_alloc_host(group, call, imx_control_bytes(group->size), &group->control));
    size_t meeting = sizeof(imx_meeting) + (size_t)group->size * sizeof(uint64_t);
    IMX_TRY(imx_memory_alloc(group, call, IMBREX_OK, meeting, NULL, 0, &group->meeting));
    mine = set_watch(group);
    if (mine == IMBREX_OK)
        mine = group->backend->stream_create(group->device, &group->stream);
    if (mine == IMBREX_OK)
        mine = imx_stream_begin(group);
    if (mine == IMBREX_OK)
        mine = imx_gate_begin(group);
    return imx_net_begin(group, call, mine);
}

static imbrex_status create(imbrex_group *group, const imbrex_group_desc *desc, imbrex_group **out)
{
    /* A wrong desc or variable of one rank is news for the others, so it waits until they meet. */
    imbrex_status mine = imx_env_read(&group->env);
    if (mine == IMBREX_OK)
        mine = check_desc(desc, out);
    char why[256];
    snprintf(why, sizeof why, "%s", imx_status_detail());
    imbrex_status met = meet(group, desc);

    int backend = 0, index = -1;
    if (mine != IMBREX_OK)
        mine = imx_fail(mine, "%s", why); /* also the reason why they did not meet, perhaps */
    if (met != IMBREX_OK)
        return mine != IMBREX_OK ? mine : met;
    if (mine == IMBREX_OK)
        mine = choose_device(desc->device, &backend, &index);
    return begin(group, mine, backend, index);
}

/* Ends what is under way, in an order in which each finds what it needs. */
static void end_work(imbrex_group *group)
{
    imx_object_destroy_all(group->objects);
    imx_stream_end(group);
    imx_gate_end(group);
    if (group->device)
        group->backend->close(group->device);
    if (group->control) /* release: what this rank wrote comes before its leaving */
        __atomic_store_n(&imx_control_of(group, group->rank)->left_ns, imbrexd_now_ns(),
                         __ATOMIC_RELEASE);
}

/* In a child of fork: whoever works is the parent's, and the engine between nodes is not to be
 * touched. */
static void forsake_work(imbrex_group *group)
{
    imx_object_forsake_all(group->objects);
    group->net = NULL;
    group->net_words = NULL;
}

/* Also of a group that is made in part.  A child of fork gives back its own descriptors and
 * mappings, and tells nobody. */
static void destroy(imbrex_group *group)
{
    imx_status_mute(true);
    imx_live_remove(IMX_LIVE_GROUP, group);
    bool ours = imx_process_is(group->owner.process);
    if (ours)
        end_work(group);
    else
        forsake_work(group);
    imx_fault_relay_close(group->relay);
    for (int t = 0; t < IMX_TRANSPORTS; t++) {
        if (group->transport[t])
            imx_memory_transports[t]->close(group->transport[t]);
        free(group->peers[t]);
    }
    imx_net_end(group);
    while (group->memories && (ours || group->backend->forked_release))
        imx_memory_free(group, group->memories);
    imx_bootstrap_destroy(group->own_bootstrap);
    imx_trace_free(group);
    imx_nodes_free(&group->nodes);
    free(group->abort);
    free(group->targets);
    free(group->proposals);
    free(group);
    imx_status_mute(false);
}

static imbrex_status begin_child(const imbrex_group *parent, imbrex_group *group)
{
    int backend = 0;
    while (backends[backend] != parent->backend)
        backend++;
    group->env = parent->env;
    if (group->env.node_ranks) { /* which counts the parent's ranks */
        snprintf(group->env.node, sizeof group->env.node, "node %d", parent->nodes.own);
        group->env.node_ranks = 0;
    }
    group->timeout_ms = parent->timeout_ms;
    group->parent_sharers = parent->sharers;
    group->parent_local_size = (int)imx_max(parent->local_size, parent->parent_local_size);
    group->bootstrap = imx_bootstrap_public(group->own_bootstrap);
    group->rank = group->bootstrap->rank;
    group->size = group->bootstrap->size;
    IMX_TRY(imx_agree_prepare(group));
    return begin(group, IMBREX_OK, backend, parent->target->index);
}

imbrex_status imx_group_create_child(const imbrex_group *parent, imx_bootstrap *bootstrap,
                                     imbrex_group **out)
{
    imbrex_group *group = NULL;
    imbrex_status status = imx_sys_alloc(1, sizeof *group, &group);
    if (status != IMBREX_OK) {
        imx_bootstrap_destroy(bootstrap);
        return status;
    }
    group->own_bootstrap = bootstrap;
    imx_call_own(&group->owner);
    IMX_GOTO(imx_live_add(IMX_LIVE_GROUP, group));
    IMX_GOTO(begin_child(parent, group));
    *out = group;
    return IMBREX_OK;
fail:
    destroy(group);
    return status;
}

static void log_creation(const imbrex_group *group)
{
    char text[IMX_STATUS_BYTES / 2];
    const char *unnamed = imx_nvtx_open();
    if (group->rank == 0)
        imx_env_unknown_warn();
    if (!imx_log_wants(&group->env, group->rank, IMX_LOG_INFO))
        return;
    imbrex_group_describe(group, text, sizeof text);
    imx_log(group->rank, group->size, "group: %s; device %s; waits end after %lld ms", text,
            group->device_name, (long long)group->timeout_ms);
    if (*unnamed)
        imx_log(group->rank, group->size, "%s", unnamed);
}

imbrex_status imbrex_group_create(const imbrex_group_desc *desc, imbrex_group **out)
{
    imx_status_enter(__func__);
    IMX_TRY(imx_status_need(desc, "desc", "want one, at least with all zeros"));
    IMX_TRY(imx_status_need_place(desc->bootstrap, sizeof *desc->bootstrap, "desc.bootstrap"));
    imbrex_group *group = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *group, &group));
    imx_call_own(&group->owner);
    imbrex_status status;
    IMX_GOTO(imx_live_add(IMX_LIVE_GROUP, group));
    IMX_GOTO(create(group, desc, out));
    log_creation(group);
    *out = group;
    return IMBREX_OK;
fail:
    destroy(group);
    return status;
}
void imbrex_group_destroy(imbrex_group *group)
{
    if (!imx_live_is(IMX_LIVE_GROUP, group))
        return;
    imx_call call;
    imx_call_await(&call, group); /* there is no end of it */
    destroy(group);
}

int imbrex_group_rank(const imbrex_group *group)
{
    return imx_live_is(IMX_LIVE_GROUP, group) ? group->rank : -1;
}

int imbrex_group_size(const imbrex_group *group)
{
    return imx_live_is(IMX_LIVE_GROUP, group) ? group->size : 0;
}

int imbrex_group_node(const imbrex_group *group, int rank)
{
    bool there = imx_live_is(IMX_LIVE_GROUP, group) && rank >= 0 && rank < group->size;
    return there ? group->nodes.of[rank] : -1;
}

const char *imbrex_group_device(const imbrex_group *group)
{
    return imx_live_is(IMX_LIVE_GROUP, group) ? group->device_name : "";
}

size_t imbrex_group_describe(const imbrex_group *group, char *text, size_t size)
{
    imx_text out = { .at = text, .size = size };
    if (!imx_live_is(IMX_LIVE_GROUP, group)) {
        imx_text_add(&out, "no group");
        return out.length;
    }
    const imx_nodes *nodes = &group->nodes;
    imx_text_add(&out, "%d rank%s on %s, %d node%s", group->size, group->size == 1 ? "" : "s",
                 group->backend->name, nodes->count, nodes->count == 1 ? "" : "s");
    if (group->net)
        imx_text_add(&out, " over %s", group->net_facts.text);
    for (int i = 0; i < nodes->count; i++) {
        int first = nodes->first[i], last = nodes->first[i + 1] - 1;
        imx_text_add(&out, "%s %d (%s) rank%s %d", i ? "," : ":", i, nodes->name[i],
                     last > first ? "s" : "", first);
        if (last > first)
            imx_text_add(&out, "-%d", last);
    }
    return out.length;
}

imbrex_status imbrex_group_status(const imbrex_group *group)
{
    imx_status_enter(__func__);
    IMX_TRY(imx_call_allow(group)); /* from any thread */
    return imx_fault_check(group);
}

void imbrex_group_abort(imbrex_group *group)
{
    imbrex_group_abort_because(group, NULL);
}

void imbrex_group_abort_because(imbrex_group *group, const char *why)
{
    if (!imx_call_may(group))
        return;
    if (why) /* before the fault: who sees that may read this */
        imx_note_write_once(&imx_control_of(group, group->rank)->why, why);
    imbrexd_wait_point point = { .rank = group->rank, .index = -1 };
    imbrexd_fault_raise(&group->watch, IMBREXD_FAULT_ABORT, point, 0, 0);
}

void imx_group_info(imx_text *text)
{
    for (int i = 0; i < BACKENDS; i++) {
        backends[i]->info(text);
        imx_device_rates_info(backends[i], text);
    }
}
