/* net_nccl.c - the engine between nodes for GPUs, over NCCL.
 *
 * The ranks that have one number within their nodes form a lane, with a communicator of its own:
 *
 *     node 0:  0 1 2 3         lane 1: ranks 1, 5, 9; steps go along lanes only, and no two ranks
 *     node 1:  4 5 6 7         of a node are in one communicator: ending one waits for nobody on
 *     node 2:  8 9 ...         the host
 *
 * A step on its stream: | begun = number, with whom | NCCL's kernel | ended = number |
 * where begun and ended are words of host memory, one pair a stream, which a small kernel writes.
 * A watcher, a thread, reads them, the group's abort word and NCCL's own state, and ends the
 * communicator where a step is stuck; for that it needs no call of CUDA's.  For a trace the two
 * kernels also write what time it is.
 *
 * NCCL runs the steps of a communicator in the order of their issue, by which they are numbered,
 * whatever streams they are on.  So a step's time counts from when all before it have ended: one
 * that waits for its turn behind a stream's long work is not stuck.
 *
 * The communicator is one that does not block: what NCCL has not yet done when a call returns is
 * asked for until it is done, the group has failed, or time is up.  All connections are made as the
 * group opens, so that no step has to wait for a peer's host.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/limit.h"
#include "group/net_kind.h"
#include "kernels/wait_points.h"
#include "nccl.h"

/* UNITS: NCCL's kernels get as many blocks; the two small kernels have room beside any other. */
enum {
    WORKERS = 4,
    SLOTS = 1024,
    POLLS = 200,
    NAP_NS = 50000,
    WATCH_NS = 2000000,
    FLUSH_MS = 2000
};

/* Host memory, written on a stream, whose steps come one after the other.  Streams share one only
 * where more than SLOTS of them have steps that have not ended. */
typedef struct slot {
    uint64_t begun, ended, what; /* what: | channel | the peer's rank |, of 32 bits */
} slot;

/* Whose slot it is, and the number of the last step that was issued there. */
typedef struct tenant {
    imbrex_stream stream;
    uint64_t last;
} tenant;

/* What the watcher has seen of a slot: the step whose turn it is, and since when. */
typedef struct sight {
    uint64_t number;
    int64_t since_ns;
} sight;

struct imx_net {
    imx_net_desc desc;
    const imx_nccl_calls *calls;
    int *peer_of; /* [size]: a rank's number in the communicator; -1: it is in another lane */
    int lane_size, lane_rank, root; /* the lane's first rank */
    ncclUniqueId id;                /* the root's: of the communicator */
    ncclUniqueId *ids;              /* [size]: what all ranks have */
    imx_memory *words;              /* slot[SLOTS] */
    int used;                       /* slots so far; atomic */
    tenant tenants[SLOTS];
    uint64_t issued;      /* steps: the number of the last one */
    imbrex_stream stream; /* of the first exchange, as its words are */
    imx_memory *trial;
    int64_t limit_ms;     /* of a wait; atomic */
    pthread_mutex_t lock; /* held around calls with comm */
    ncclComm_t comm;      /* NULL: not yet, or ended */
    unsigned long watcher;
    bool watched, stop; /* stop: atomic */
    sight seen[SLOTS];
    uint64_t over;                /* the highest number that the watcher has seen as ended */
    int64_t looked_ns, paused_ns; /* its last look; for how long it was stopped itself */
};

static bool aborted(const imx_net *net)
{
    const imbrexd_watch *watch = net->desc.watch;
    return __atomic_load_n(watch->abort[watch->rank], __ATOMIC_ACQUIRE) != 0;
}

static void nap(int *polls)
{
    const struct timespec time = { .tv_nsec = NAP_NS };
    if (++*polls < POLLS)
        sched_yield();
    else
        nanosleep(&time, NULL);
}

/* Until what was begun is done, or it is given up: then NCCL_IN_PROGRESS.  NCCL is asked once more
 * after the limit. */
static int settle(const imx_net *net, ncclComm_t comm, int64_t limit_ms)
{
    imx_limit limit = imx_limit_of(limit_ms * 1000000);
    int result = NCCL_IN_PROGRESS;
    for (int polls = 0;; nap(&polls)) {
        bool over = imx_limit_is_over(&limit);
        int asked = net->calls->ncclCommGetAsyncError(comm, &result);
        if (asked != NCCL_SUCCESS || result != NCCL_IN_PROGRESS)
            return asked != NCCL_SUCCESS ? asked : result;
        if (aborted(net) || over)
            return result;
    }
}

static imbrex_status fail_call(const imx_net *net, const char *doing, int result)
{
    imbrex_status status =
        result == NCCL_REMOTE_ERROR || result == NCCL_SYSTEM_ERROR ? IMBREX_PEER : IMBREX_DEVICE;
    if (result == NCCL_IN_PROGRESS)
        return imx_fail(aborted(net) ? IMBREX_PEER : IMBREX_TIMEOUT,
                        "NCCL %s cannot %s: %s; NCCL_DEBUG=INFO makes it say more",
                        imx_nccl_version(), doing,
                        aborted(net) ? "the group has failed" : "the time is up");
    return imx_fail(status, "NCCL %s cannot %s: %s (%d) %s; NCCL_DEBUG=INFO makes it say more",
                    imx_nccl_version(), doing, net->calls->ncclGetErrorString(result), result,
                    net->calls->ncclGetLastError(NULL));
}

/* ---- the watcher ----------------------------------------------------------------------------- */

static slot *slot_of(const imx_net *net, int i)
{
    return (slot *)net->words->base + i;
}

static uint64_t ended_of(const imx_net *net, int i)
{
    return __atomic_load_n(&slot_of(net, i)->ended, __ATOMIC_ACQUIRE);
}

/* Its step is NCCL's to run, all before it having ended: since when that has been so. */
static bool is_under_way(imx_net *net, int i, int64_t clock_ns, int64_t *since_ns)
{
    sight *seen = &net->seen[i];
    /* acquire, in this order: ended is never newer than begun, nor what older than that */
    uint64_t ended = ended_of(net, i);
    uint64_t begun = __atomic_load_n(&slot_of(net, i)->begun, __ATOMIC_ACQUIRE);
    if (begun <= ended || begun > net->over + 1)
        return false;
    if (begun != seen->number)
        *seen = (sight){ begun, clock_ns };
    *since_ns = seen->since_ns;
    return true;
}

static uint64_t what_of(int channel, int rank)
{
    return (uint64_t)channel << 32 | (uint64_t)rank;
}

static imbrexd_wait_point point_of(uint64_t what)
{
    return (imbrexd_wait_point){ .plan = (int32_t)(what >> 32),
                                 .what = IMX_POINT_NET,
                                 .rank = (int32_t)(what & UINT32_MAX),
                                 .index = -1 };
}

static imbrexd_wait_point point_of_slot(const imx_net *net, int i)
{
    return point_of(__atomic_load_n(&slot_of(net, i)->what, __ATOMIC_RELAXED));
}

/* The step that has been under way for longest; -1: there is none.  Of each it is noted that this
 * rank waits for its peer. */
static int oldest(imx_net *net, int64_t now_ns, int64_t *since_ns)
{
    int used = __atomic_load_n(&net->used, __ATOMIC_ACQUIRE), found = -1;
    for (int i = 0; i < used; i++) {
        uint64_t ended = ended_of(net, i);
        net->over = ended > net->over ? ended : net->over;
    }
    for (int i = 0; i < used; i++) {
        int64_t at_ns;
        if (!is_under_way(net, i, now_ns - net->paused_ns, &at_ns))
            continue;
        imbrexd_watch_note(net->desc.watch, point_of_slot(net, i), now_ns);
        if (found < 0 || at_ns < *since_ns) {
            found = i;
            *since_ns = at_ns;
        }
    }
    return found;
}

/* NCCL notes a connection that broke.  While a step is being enqueued that has a look itself. */
static int ask(imx_net *net)
{
    int result = NCCL_SUCCESS, asked = NCCL_SUCCESS;
    if (pthread_mutex_trylock(&net->lock))
        return NCCL_SUCCESS;
    if (net->comm)
        asked = net->calls->ncclCommGetAsyncError(net->comm, &result);
    pthread_mutex_unlock(&net->lock);
    return asked != NCCL_SUCCESS ? asked : result == NCCL_IN_PROGRESS ? NCCL_SUCCESS : result;
}

/* A connection that breaks when no step needs it is no failure: a peer may be done with its group.
 */
static void look(imx_net *net)
{
    int64_t limit_ns = __atomic_load_n(&net->limit_ms, __ATOMIC_RELAXED) * 1000000;
    int64_t now_ns = imbrexd_now_ns();
    net->paused_ns += net->looked_ns ? imbrexd_pause_ns(now_ns - net->looked_ns, limit_ns) : 0;
    net->looked_ns = now_ns;
    int64_t clock_ns = now_ns - net->paused_ns, since_ns = clock_ns;
    int i = oldest(net, now_ns, &since_ns);
    if (i < 0)
        return;
    int broken = ask(net);
    imbrexd_wait_point point = point_of_slot(net, i);
    if (broken != NCCL_SUCCESS)
        imbrexd_fault_raise(net->desc.watch, IMBREXD_FAULT_NET, point, (uint64_t)broken, 0);
    else if (clock_ns - since_ns > limit_ns)
        imbrexd_fault_raise(net->desc.watch, IMBREXD_FAULT_DEADLINE, point, 0, 0);
}

/* Its kernels leave their streams then, and its peers see the connection break. */
static void end_comm(imx_net *net)
{
    pthread_mutex_lock(&net->lock);
    if (net->comm) {
        int ignored = net->calls->ncclCommAbort(net->comm);
        (void)ignored;
    }
    net->comm = NULL;
    pthread_mutex_unlock(&net->lock);
}

static void *watch(void *arg)
{
    imx_net *net = arg;
    const struct timespec time = { .tv_nsec = WATCH_NS };
    while (!__atomic_load_n(&net->stop, __ATOMIC_ACQUIRE)) {
        look(net);
        if (aborted(net)) {
            end_comm(net);
            break;
        }
        nanosleep(&time, NULL);
    }
    return NULL;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* With the lock held. */
static int issue(const imx_net *net, const imx_net_op *ops, int count, imbrex_stream stream)
{
    const imx_nccl_calls *calls = net->calls;
    int result = calls->ncclGroupStart();
    if (result != NCCL_SUCCESS)
        return result;
    for (int i = 0; i < count && result == NCCL_SUCCESS; i++) {
        const imx_net_op *op = &ops[i];
        int peer = net->peer_of[op->rank];
        result = op->receives
                     ? calls->ncclRecv(op->at, op->bytes, NCCL_INT8, peer, net->comm, stream)
                     : calls->ncclSend(op->at, op->bytes, NCCL_INT8, peer, net->comm, stream);
    }
    int ended = calls->ncclGroupEnd();
    if (result == NCCL_SUCCESS)
        result = ended;
    return result == NCCL_IN_PROGRESS ? settle(net, net->comm, net->limit_ms) : result;
}

/* The stream's slot; one that nobody uses any more; a new one; else some other's. */
static int find_slot(imx_net *net, imbrex_stream stream)
{
    int found = -1;
    for (int i = 0; i < net->used; i++) {
        if (net->tenants[i].stream == stream)
            return i;
        if (found < 0 && ended_of(net, i) == net->tenants[i].last)
            found = i;
    }
    if (found < 0)
        found = net->used < SLOTS ? net->used : (int)(net->issued % SLOTS);
    return found;
}

/* times: NULL, or where a trace wants them. */
static imbrex_status begin(const imx_net *net, slot *s, uint64_t number, uint64_t what,
                           uint64_t *times, imbrex_stream stream)
{
    const imbrexd_wait_point point = { .rank = net->desc.rank, .index = -1 };
    const imx_signal_op ops[] = {
        { .kind = IMX_POST, .signal = &s->what, .add = what, .point = point },
        { .kind = IMX_POST, .signal = &s->begun, .add = number, .point = point },
        { .kind = IMX_TIME, .signal = times, .point = point, .beside = true },
    };
    return net->desc.backend->signals(net->desc.device, ops, times ? 3 : 2, stream);
}

static imbrex_status end(const imx_net *net, slot *s, uint64_t number, uint64_t *times,
                         imbrex_stream stream)
{
    const imbrexd_wait_point point = { .rank = net->desc.rank, .index = -1 };
    const imx_signal_op ops[] = {
        { .kind = IMX_POST, .signal = &s->ended, .add = number, .point = point },
        { .kind = IMX_TIME, .signal = times ? times + 1 : NULL, .point = point, .beside = true },
    };
    return net->desc.backend->signals(net->desc.device, ops, times ? 2 : 1, stream);
}

static uint64_t *times_for(const imx_net *net, const imx_net_op *ops, int count,
                           imbrex_stream stream)
{
    imbrex_span span = imx_net_span(ops, count);
    const imx_backend *backend = net->desc.backend;
    return backend->trace_times ? backend->trace_times(net->desc.device, &span, stream) : NULL;
}

/* The one to be named if the step is stuck: who sends here, if there is one. */
static int peer_to_name(const imx_net_op *ops, int count)
{
    int i = 0;
    while (i < count - 1 && !ops[i].receives)
        i++;
    return ops[ops[i].receives ? i : 0].rank;
}

static imbrex_status enqueue(imx_net *net, int channel, const imx_net_op *ops, int count,
                             imbrex_stream stream)
{
    int at = find_slot(net, stream);
    slot *s = slot_of(net, at);
    uint64_t number = net->issued + 1, what = what_of(channel, peer_to_name(ops, count));
    if (aborted(net))
        return IMBREX_OK;
    if (at >= net->used) /* release: the slot's words are zero by now */
        __atomic_store_n(&net->used, at + 1, __ATOMIC_RELEASE);
    uint64_t *times = times_for(net, ops, count, stream);
    IMX_TRY(begin(net, s, number, what, times, stream));
    net->tenants[at] = (tenant){ stream, number };
    net->issued = number;
    pthread_mutex_lock(&net->lock);
    int result = net->comm ? issue(net, ops, count, stream) : NCCL_SUCCESS;
    pthread_mutex_unlock(&net->lock);
    if (result == NCCL_SUCCESS)
        return end(net, s, number, times, stream);
    bool gave_up = result == NCCL_IN_PROGRESS;
    imbrex_status status = fail_call(net, "send and receive", result);
    imbrexd_fault_raise(net->desc.watch, gave_up ? IMBREXD_FAULT_DEADLINE : IMBREXD_FAULT_NET,
                        point_of(what), gave_up ? 0 : (uint64_t)result, 0);
    return status;
}

static imbrex_status net_step(imx_net *net, int channel, int lane, const imx_net_op *ops, int count,
                              imbrex_stream stream)
{
    (void)lane; /* there is one: a communicator runs its steps one after the other */
    for (int i = 0; i < count; i++) {
        if (net->peer_of[ops[i].rank] < 0)
            return imx_fail(IMBREX_INTERNAL, "rank %d has no connection to rank %d over NCCL",
                            net->desc.rank, ops[i].rank);
    }
    return enqueue(net, channel, ops, count, stream);
}

/* ---- create and open ------------------------------------------------------------------------- */

/* Which number a rank has within its node, whose ranks follow each other. */
static int local_of(const imx_net_desc *desc, int rank)
{
    int local = 0;
    while (rank - local > 0 && desc->node_of[rank - local - 1] == desc->node_of[rank])
        local++;
    return local;
}

static imbrex_status find_lane(imx_net *net)
{
    const imx_net_desc *desc = &net->desc;
    int local = local_of(desc, desc->rank);
    IMX_TRY(imx_sys_alloc((size_t)desc->size, sizeof *net->peer_of, &net->peer_of));
    for (int r = desc->size - 1; r >= 0; r--)
        net->root = local_of(desc, r) == local ? r : net->root;
    for (int r = 0; r < desc->size; r++) {
        if (r == desc->rank)
            net->lane_rank = net->lane_size;
        net->peer_of[r] = local_of(desc, r) == local ? net->lane_size++ : -1;
    }
    return IMBREX_OK;
}

static imbrex_status start_watching(imx_net *net)
{
    int failed = imx_sys.thread_create(&net->watcher, watch, net);
    if (failed)
        return imx_fail(IMBREX_SYSTEM, "cannot start the thread that watches NCCL: %s",
                        strerror(failed));
    net->watched = true;
    return IMBREX_OK;
}

static imbrex_status equip(imx_net *net)
{
    const imx_backend *backend = net->desc.backend;
    imx_device *device = net->desc.device;
    IMX_TRY(imx_nccl_open(net->desc.env->nccl, &net->calls));
    IMX_TRY(find_lane(net));
    IMX_TRY(imx_sys_alloc((size_t)net->desc.size, sizeof *net->ids, &net->ids));
    IMX_TRY(backend->memory_create_host(device, SLOTS * sizeof(slot), &net->words));
    IMX_TRY(backend->memory_create(device, (size_t)net->lane_size * sizeof(uint64_t), &net->trial));
    IMX_TRY(backend->stream_create(device, &net->stream));
    return net->lane_size > 1 ? start_watching(net) : IMBREX_OK;
}

static void net_close(imx_net *net);

static imbrex_status net_create(const imx_net_desc *desc, imx_net **out)
{
    imx_net *net = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *net, &net));
    net->desc = *desc;
    net->limit_ms = desc->timeout_ms / 2;
    pthread_mutex_init(&net->lock, NULL);
    imbrex_status status;
    IMX_GOTO(equip(net));
    *out = net;
    return IMBREX_OK;
fail:
    if (net->stream)
        desc->backend->stream_destroy(desc->device, net->stream);
    net_close(net);
    return status;
}

/* NCCL takes the GPU that is the thread's own.  On failure comm is ended, since it may wait. */
static imbrex_status init_comm(void *ctx)
{
    imx_net *net = ctx;
    ncclComm_t comm = NULL;
    ncclConfig config = {
        .size = sizeof config,
        .magic = NCCL_CONFIG_MAGIC,
        .version = 21800,
        .cga_cluster_size = NCCL_CONFIG_UNDEFINED,
        .ctas_least = NCCL_CONFIG_UNDEFINED,
        .ctas_most = WORKERS,
        .split_share = NCCL_CONFIG_UNDEFINED,
    };
    int result =
        net->calls->ncclCommInitRankConfig(&comm, net->lane_size, net->id, net->lane_rank, &config);
    if (result == NCCL_IN_PROGRESS || (result == NCCL_SUCCESS && comm))
        result = settle(net, comm, net->limit_ms);
    pthread_mutex_lock(&net->lock);
    net->comm = comm;
    pthread_mutex_unlock(&net->lock);
    if (result == NCCL_SUCCESS)
        return IMBREX_OK;
    imbrex_status status = fail_call(net, "connect the nodes", result);
    end_comm(net);
    return status;
}

/* A word to and from every rank of the lane, which makes all connections. */
static imbrex_status exchange(imx_net *net)
{
    const imx_backend *backend = net->desc.backend;
    imx_net_op *ops = NULL;
    uint64_t *words = net->trial->base;
    int count = 0;
    IMX_TRY(imx_sys_alloc(2 * (size_t)net->lane_size, sizeof *ops, &ops));
    for (int r = 0; r < net->desc.size; r++) {
        int peer = net->peer_of[r];
        if (peer < 0 || r == net->desc.rank)
            continue;
        ops[count++] = (imx_net_op){ false, r, &words[net->lane_rank], sizeof *words };
        ops[count++] = (imx_net_op){ true, r, &words[peer], sizeof *words };
    }
    imbrex_status status = enqueue(net, IMX_NET_OPENING, ops, count, net->stream);
    free(ops);
    if (status == IMBREX_OK)
        status = backend->stream_sync(net->desc.device, net->stream);
    if (status == IMBREX_OK && aborted(net))
        status = imx_fail(IMBREX_PEER,
                          "NCCL %s connected the nodes, but nothing came through in %lld ms; "
                          "NCCL_DEBUG=INFO makes it say more",
                          imx_nccl_version(), (long long)net->limit_ms);
    return status;
}

static imbrex_status connect(imx_net *net)
{
    IMX_TRY(net->desc.backend->within(net->desc.device, init_comm, net));
    return exchange(net);
}

/* A name is a thread of NCCL's that listens until the whole lane has come: there is none before the
 * ranks are about to.  A root without one still meets the others, with zeros. */
static imbrex_status swap_names(imx_net *net)
{
    const imx_net_desc *desc = &net->desc;
    static const ncclUniqueId none;
    bool leads = net->lane_size > 1 && net->lane_rank == 0;
    int result = leads ? net->calls->ncclGetUniqueId(&net->id) : NCCL_SUCCESS;
    if (result != NCCL_SUCCESS)
        net->id = none;
    imbrex_status met = desc->allgather(desc->ctx, &net->id, net->ids, sizeof net->id);
    if (result != NCCL_SUCCESS)
        return fail_call(net, "name a communicator", result);
    IMX_TRY(met);
    net->id = net->ids[net->root];
    if (net->lane_size > 1 && memcmp(&net->id, &none, sizeof none) == 0)
        return imx_fail(IMBREX_PEER, "rank %d could not name a communicator of NCCL's", net->root);
    return IMBREX_OK;
}

/* Half the limit until it returns: whoever waits here in vain must still be in time for the meeting
 * where the others wait with the reason.  After it the stream and the words of the first exchange
 * are not needed any more. */
static imbrex_status net_open(imx_net *net)
{
    const imx_net_desc *desc = &net->desc;
    imbrex_status status;
    IMX_GOTO(swap_names(net));
    if (net->lane_size > 1)
        IMX_GOTO(connect(net));
    __atomic_store_n(&net->limit_ms, desc->timeout_ms, __ATOMIC_RELAXED);
fail:
    if (status != IMBREX_OK)
        end_comm(net);
    desc->backend->stream_destroy(desc->device, net->stream);
    desc->backend->memory_release(net->trial);
    net->trial = NULL;
    return status;
}

/* What was sent is still on its way when its stream is done: Finalize waits for that, not long. */
static void net_close(imx_net *net)
{
    if (!net)
        return;
    __atomic_store_n(&net->stop, true, __ATOMIC_RELEASE);
    if (net->watched)
        pthread_join((pthread_t)net->watcher, NULL);
    if (net->comm && !aborted(net)) {
        int result = net->calls->ncclCommFinalize(net->comm);
        if (result == NCCL_IN_PROGRESS || result == NCCL_SUCCESS)
            result = settle(net, net->comm, imx_min(FLUSH_MS, net->desc.timeout_ms));
        if (result == NCCL_SUCCESS) {
            result = net->calls->ncclCommDestroy(net->comm);
            net->comm = NULL;
        }
    }
    end_comm(net);
    net->desc.backend->memory_release(net->words);
    net->desc.backend->memory_release(net->trial);
    pthread_mutex_destroy(&net->lock);
    free(net->peer_of);
    free(net->ids);
    free(net);
}

static void net_facts(const imx_net *net, imx_net_facts *facts)
{
    (void)net;
    *facts =
        (imx_net_facts){ .capturable = false, .workers = WORKERS, .lanes = 1, .plans = INT32_MAX };
    snprintf(facts->text, sizeof facts->text, "NCCL %s", imx_nccl_version());
}

static void info(const imx_env *env, imx_text *text)
{
    const imx_nccl_calls *calls;
    if (imx_nccl_open(env->nccl, &calls) == IMBREX_OK)
        imx_text_add(text, "between nodes of gpus: NCCL %s, %s\n", imx_nccl_version(),
                     imx_nccl_path());
    else
        imx_text_add(text, "between nodes of gpus: none: %s\n", imx_status_detail());
}

const imx_net_kind imx_net_nccl = {
    .abi = IMX_NET_ABI,
    .name = "nccl",
    .device = "cuda",
    .create = net_create,
    .open = net_open,
    .close = net_close,
    .facts = net_facts,
    .step = net_step,
    .info = info,
};
