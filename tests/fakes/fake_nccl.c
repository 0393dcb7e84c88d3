/* fake_nccl.c - sends and receives of one process, matched in one table: what the real library
 * locks up with locks up here, and what it forbids is an error. */
#include "fake_nccl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/nccl.h"

#define EXPORT __attribute__((visibility("default")))

enum { INVALID_ARGUMENT = 4, INVALID_USAGE = 5, OPS_MOST = 64, POLLS_NS = 1000000 };

EXPORT extern fake_nccl_state fake_nccl;
fake_nccl_state fake_nccl;

struct ncclComm {
    struct ncclComm *next;
    int id, rank, ranks;
    bool aborted, pending; /* pending: the next question is answered with "in progress" */
    bool asked;
    uint64_t enqueued, begun; /* steps, which run in the order of their enqueuing */
};

typedef struct transfer {
    struct transfer *next; /* of receives that are open */
    ncclComm_t comm;
    bool receives, done;
    int peer;
    char *at;
    size_t bytes;
    void *stream;
} transfer;

typedef struct step {
    ncclComm_t comm;
    uint64_t number;
    int count;
    transfer all[OPS_MOST];
} step;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static ncclComm_t comms;
static transfer *receives;

static _Thread_local int depth;
static _Thread_local step group;

static int may_fail(const char *call)
{
    return fake_nccl.fails && strcmp(fake_nccl.fails, call) == 0 ? fake_nccl.result : NCCL_SUCCESS;
}

static int may_fail_for(int rank, const char *call)
{
    return rank + 1 == fake_nccl.spared ? NCCL_SUCCESS : may_fail(call);
}

/* ---- communicators --------------------------------------------------------------------------- */

EXPORT int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    *version = fake_nccl.version;
    return NCCL_SUCCESS;
}

EXPORT const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result)
{
    return result == NCCL_REMOTE_ERROR ? "remote error" : "fake error";
}

EXPORT const char *ncclGetLastError(ncclComm_t comm);
const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "as asked for";
}

EXPORT int ncclGetUniqueId(ncclUniqueId *id);
int ncclGetUniqueId(ncclUniqueId *id)
{
    static int last;
    int number = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    memset(id, 0, sizeof *id);
    memcpy(id, &number, sizeof number);
    __atomic_add_fetch(&fake_nccl.named, 1, __ATOMIC_RELAXED);
    return may_fail("ncclGetUniqueId");
}

EXPORT int ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank,
                                  ncclConfig *config);
int ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank,
                           ncclConfig *config)
{
    static const ncclUniqueId none;
    int failed = may_fail_for(rank, "ncclCommInitRankConfig");
    if (memcmp(&id, &none, sizeof none) == 0) {
        fprintf(stderr, "ncclCommInitRankConfig: rank %d has no name\n", rank);
        abort();
    }
    if (config->size != sizeof *config || config->magic != NCCL_CONFIG_MAGIC || config->blocking ||
        rank < 0 || rank >= ranks || !fake_nccl.has_gpu())
        failed = INVALID_ARGUMENT;
    if (failed)
        return failed;
    ncclComm_t comm = calloc(1, sizeof *comm);
    memcpy(&comm->id, &id, sizeof comm->id);
    comm->rank = rank;
    comm->ranks = ranks;
    pthread_mutex_lock(&lock);
    comm->next = comms;
    comms = comm;
    pthread_mutex_unlock(&lock);
    __atomic_add_fetch(&fake_nccl.live, 1, __ATOMIC_RELAXED);
    *out = comm;
    return NCCL_IN_PROGRESS;
}

/* Once all ranks have come it stays so: some may leave before others have asked. */
static bool is_complete(ncclComm_t comm)
{
    int here = 0;
    for (ncclComm_t c = comms; c; c = c->next)
        here += c->id == comm->id;
    if (here == comm->ranks)
        for (ncclComm_t c = comms; c; c = c->next)
            c->ranks = c->id == comm->id ? 0 : c->ranks;
    return comm->ranks == 0;
}

EXPORT int ncclCommGetAsyncError(ncclComm_t comm, int *result);
int ncclCommGetAsyncError(ncclComm_t comm, int *result)
{
    pthread_mutex_lock(&lock);
    bool first = !comm->asked && fake_nccl.naps_ms;
    bool waits = !is_complete(comm) || comm->pending || first;
    comm->asked = true;
    comm->pending = false;
    pthread_mutex_unlock(&lock);
    if (first)
        usleep((unsigned)fake_nccl.naps_ms * 1000);
    *result = __atomic_load_n(&fake_nccl.broken, __ATOMIC_RELAXED);
    if (!*result && waits)
        *result = NCCL_IN_PROGRESS;
    return may_fail("ncclCommGetAsyncError");
}

static void end_comm(ncclComm_t comm)
{
    for (ncclComm_t *at = &comms; *at; at = &(*at)->next) {
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    }
    free(comm);
    __atomic_sub_fetch(&fake_nccl.live, 1, __ATOMIC_RELAXED);
}

EXPORT int ncclCommFinalize(ncclComm_t comm);
int ncclCommFinalize(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    comm->pending = true;
    pthread_mutex_unlock(&lock);
    return NCCL_IN_PROGRESS;
}

EXPORT int ncclCommDestroy(ncclComm_t comm);
int ncclCommDestroy(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    if (comm->begun != comm->enqueued) {
        fprintf(stderr, "ncclCommDestroy: %d steps have not run\n",
                (int)(comm->enqueued - comm->begun));
        abort();
    }
    end_comm(comm);
    pthread_mutex_unlock(&lock);
    return NCCL_SUCCESS;
}

/* Steps that have been enqueued run to their end first, which comes at once. */
EXPORT int ncclCommAbort(ncclComm_t comm);
int ncclCommAbort(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    comm->aborted = true;
    pthread_cond_broadcast(&changed);
    while (comm->begun != comm->enqueued)
        pthread_cond_wait(&changed, &lock);
    end_comm(comm);
    pthread_mutex_unlock(&lock);
    __atomic_add_fetch(&fake_nccl.aborts, 1, __ATOMIC_RELAXED);
    return NCCL_SUCCESS;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void drop(transfer *t)
{
    transfer **at = &receives;
    while (*at && *at != t)
        at = &(*at)->next;
    if (*at)
        *at = t->next;
}

/* At the end: the n-th send meets the n-th receive. */
static void open_receive(transfer *t)
{
    transfer **at = &receives;
    while (*at)
        at = &(*at)->next;
    t->next = NULL;
    *at = t;
}

static void try_send(transfer *t)
{
    transfer *r = receives;
    while (r && (r->done || r->comm->id != t->comm->id || r->comm->rank != t->peer ||
                 r->peer != t->comm->rank))
        r = r->next;
    if (!r || __atomic_load_n(&fake_nccl.cut, __ATOMIC_RELAXED))
        return;
    if (r->bytes != t->bytes) {
        fprintf(stderr, "rank %d sends %zu bytes, rank %d receives %zu\n", t->comm->rank, t->bytes,
                r->comm->rank, r->bytes);
        abort();
    }
    memcpy(r->at, t->at, t->bytes);
    __atomic_add_fetch(&fake_nccl.sent, t->bytes, __ATOMIC_RELAXED);
    r->done = t->done = true;
    pthread_cond_broadcast(&changed);
}

/* Whether all have been. */
static bool try_all(step *s)
{
    bool done = true;
    for (int i = 0; i < s->count; i++) {
        if (!s->all[i].receives && !s->all[i].done)
            try_send(&s->all[i]);
        done = done && s->all[i].done;
    }
    return done;
}

static void run(void *arg)
{
    step *s = arg;
    pthread_mutex_lock(&lock);
    while (s->comm->begun != s->number)
        pthread_cond_wait(&changed, &lock);
    for (int i = 0; i < s->count; i++) {
        if (s->all[i].receives)
            open_receive(&s->all[i]);
    }
    pthread_cond_broadcast(&changed);
    while (!s->comm->aborted && !try_all(s))
        pthread_cond_wait(&changed, &lock);
    for (int i = 0; i < s->count; i++)
        drop(&s->all[i]);
    s->comm->begun++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(s);
}

EXPORT int ncclGroupStart(void);
int ncclGroupStart(void)
{
    depth++;
    group.count = 0;
    return may_fail("ncclGroupStart");
}

EXPORT int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    int failed = may_fail("ncclGroupEnd");
    if (depth != 1)
        return INVALID_USAGE;
    depth = 0;
    if (failed || !group.count)
        return failed;
    step *s = malloc(sizeof *s);
    *s = group;
    pthread_mutex_lock(&lock);
    s->comm = s->all[0].comm;
    s->number = s->comm->enqueued++;
    s->comm->pending = true;
    pthread_mutex_unlock(&lock);
    failed = fake_nccl.enqueue(s->all[0].stream, run, s);
    return failed ? failed : NCCL_IN_PROGRESS;
}

static int add(transfer t, int type)
{
    if (depth != 1 || group.count == OPS_MOST || type != NCCL_INT8 || t.peer == t.comm->rank)
        return INVALID_USAGE;
    group.all[group.count++] = t;
    return NCCL_SUCCESS;
}

EXPORT int ncclSend(const void *at, size_t count, int type, int peer, ncclComm_t comm,
                    imbrex_stream stream);
int ncclSend(const void *at, size_t count, int type, int peer, ncclComm_t comm,
             imbrex_stream stream)
{
    int failed = may_fail_for(comm->rank, "ncclSend");
    transfer t = { .comm = comm, .peer = peer, .at = (char *)at, .bytes = count, .stream = stream };
    return failed ? failed : add(t, type);
}

EXPORT int ncclRecv(void *at, size_t count, int type, int peer, ncclComm_t comm,
                    imbrex_stream stream);
int ncclRecv(void *at, size_t count, int type, int peer, ncclComm_t comm, imbrex_stream stream)
{
    transfer t = {
        .comm = comm, .receives = true, .peer = peer, .at = at, .bytes = count, .stream = stream
    };
    return add(t, type);
}
