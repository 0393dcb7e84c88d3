/* net_threads.c - sends and receives of ranks that are threads, matched in one table: a send waits
 * for its receive, so that what would lock up in a real network locks up here. */
#include "net_threads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/wait_points.h"

/* A receive that is open, or was filled and not yet taken back by its rank. */
typedef struct post {
    struct post *next;
    int from, to, channel, lane;
    void *at;
    size_t bytes;
    bool filled;
} post;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    post *posts;
    uint64_t sent[NET_THREADS_RANKS];
    bool cut[NET_THREADS_RANKS][NET_THREADS_RANKS];
    int hold, under_way[NET_THREADS_RANKS];
    bool released[NET_THREADS_RANKS];
    int failing, fails_in; /* the rank whose step is refused; how many steps from now, 0: none */
} table = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

struct imx_net {
    imx_net_desc desc;
};

typedef struct step {
    const imx_net *net;
    int channel, lane, count;
    imx_net_op ops[IMX_NET_OPS];
} step;

void net_threads_reset(void)
{
    pthread_mutex_lock(&table.lock);
    memset(table.sent, 0, sizeof table.sent);
    memset(table.cut, 0, sizeof table.cut);
    table.hold = 0;
    table.failing = -1;
    table.fails_in = 0;
    pthread_mutex_unlock(&table.lock);
}

void net_threads_hold(int steps)
{
    pthread_mutex_lock(&table.lock);
    table.hold = steps;
    memset(table.released, 0, sizeof table.released);
    pthread_mutex_unlock(&table.lock);
}

uint64_t net_threads_sent(int rank)
{
    pthread_mutex_lock(&table.lock);
    uint64_t sent = table.sent[rank];
    pthread_mutex_unlock(&table.lock);
    return sent;
}

void net_threads_cut(int rank, int other)
{
    pthread_mutex_lock(&table.lock);
    table.cut[rank][other] = table.cut[other][rank] = true;
    pthread_mutex_unlock(&table.lock);
}

void net_threads_fail(int rank, int nth)
{
    pthread_mutex_lock(&table.lock);
    table.failing = rank;
    table.fails_in = nth;
    pthread_mutex_unlock(&table.lock);
}

int net_threads_under_way(int rank)
{
    pthread_mutex_lock(&table.lock);
    int steps = table.under_way[rank];
    pthread_mutex_unlock(&table.lock);
    return steps;
}

static imbrex_status net_create(const imx_net_desc *desc, imx_net **out)
{
    imx_net *net = calloc(1, sizeof *net);
    if (!net)
        return desc->fail(IMBREX_NO_MEMORY, "no memory for an engine");
    net->desc = *desc;
    *out = net;
    return IMBREX_OK;
}

static imbrex_status net_open(imx_net *net)
{
    (void)net;
    return IMBREX_OK;
}

static void net_close(imx_net *net)
{
    free(net);
}

static void net_facts(const imx_net *net, imx_net_facts *facts)
{
    (void)net;
    *facts = (imx_net_facts){ .text = "threads", .lanes = IMX_NET_LANES, .plans = INT32_MAX };
}

static void append(post *p)
{
    post **at = &table.posts;
    while (*at)
        at = &(*at)->next;
    *at = p;
}

static void drop(post *p)
{
    for (post **at = &table.posts; *at; at = &(*at)->next) {
        if (*at == p) {
            *at = p->next;
            return;
        }
    }
}

/* The oldest open receive that the send meets. */
static post *find(int from, const imx_net_op *op, const step *s)
{
    for (post *p = table.posts; p; p = p->next) {
        if (!p->filled && p->from == from && p->to == op->rank && p->channel == s->channel &&
            p->lane == s->lane)
            return p;
    }
    return NULL;
}

/* Tries all sends that are left; how many are. */
static int send_some(const step *s, bool *sent)
{
    int rank = s->net->desc.rank, left = 0;
    table.released[rank] = table.released[rank] || table.under_way[rank] >= table.hold;
    for (int i = 0; i < s->count; i++) {
        const imx_net_op *op = &s->ops[i];
        if (op->receives || sent[i])
            continue;
        bool held = table.cut[rank][op->rank] || !table.released[rank];
        post *p = held ? NULL : find(rank, op, s);
        if (!p || p->bytes != op->bytes) {
            left++;
            continue;
        }
        memcpy(p->at, op->at, op->bytes);
        table.sent[rank] += op->bytes;
        p->filled = sent[i] = true;
        pthread_cond_broadcast(&table.changed);
    }
    return left;
}

static int count_open(const post *posts, int count)
{
    int open = 0;
    for (int i = 0; i < count; i++)
        open += !posts[i].filled;
    return open;
}

/* true: the step has to end. */
static bool is_over(const step *s, const post *posts, int received, const bool *sent,
                    int64_t deadline_ns)
{
    const imx_net_desc *desc = &s->net->desc;
    if (__atomic_load_n(desc->watch->abort[desc->rank], __ATOMIC_ACQUIRE))
        return true;
    imbrexd_wait_point point = {
        .plan = s->channel, .what = IMX_POINT_NET, .rank = -1, .index = -1
    };
    for (int i = 0; i < s->count && point.rank < 0; i++)
        point.rank = !s->ops[i].receives && !sent[i] ? s->ops[i].rank : -1;
    for (int i = 0; i < received && point.rank < 0; i++)
        point.rank = !posts[i].filled ? posts[i].from : -1;
    int64_t now_ns = imbrexd_now_ns();
    imbrexd_watch_note(desc->watch, point, now_ns);
    if (now_ns < deadline_ns)
        return false;
    imbrexd_fault_raise(desc->watch, IMBREXD_FAULT_DEADLINE, point, 0, 0);
    return true;
}

static void run_step(const void *args)
{
    const step *s = args;
    post posts[IMX_NET_OPS] = { 0 };
    bool sent[IMX_NET_OPS] = { false };
    int received = 0;
    int64_t deadline_ns = imbrexd_now_ns() + s->net->desc.timeout_ms * 1000000;
    pthread_mutex_lock(&table.lock);
    table.under_way[s->net->desc.rank]++;
    for (int i = 0; i < s->count; i++) {
        const imx_net_op *op = &s->ops[i];
        if (!op->receives)
            continue;
        posts[received] = (post){ NULL,    op->rank, s->net->desc.rank, s->channel,
                                  s->lane, op->at,   op->bytes,         false };
        append(&posts[received++]);
    }
    pthread_cond_broadcast(&table.changed);
    while (send_some(s, sent) || count_open(posts, received)) {
        struct timespec until;
        if (is_over(s, posts, received, sent, deadline_ns))
            break;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 10000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&table.changed, &table.lock, &until);
    }
    if (table.failing == s->net->desc.rank) { /* a network stops when it has noticed */
        pthread_mutex_unlock(&table.lock);
        usleep(50000);
        pthread_mutex_lock(&table.lock);
    }
    for (int i = 0; i < received; i++)
        drop(&posts[i]);
    table.under_way[s->net->desc.rank]--;
    pthread_mutex_unlock(&table.lock);
}

/* Whether the step is the one to be refused, once another one of its rank's is under way. */
static bool is_refused(const imx_net *net)
{
    enum { WAITS_MOST = 5000 };
    int rank = net->desc.rank;
    pthread_mutex_lock(&table.lock);
    bool refused = table.failing == rank && table.fails_in && --table.fails_in == 0;
    pthread_mutex_unlock(&table.lock);
    for (int i = 0; i < WAITS_MOST && refused && !net_threads_under_way(rank); i++)
        usleep(1000);
    return refused;
}

static imbrex_status net_step(imx_net *net, int channel, int lane, const imx_net_op *ops, int count,
                              imbrex_stream stream)
{
    if (is_refused(net))
        return net->desc.fail(IMBREX_SYSTEM, "the step is refused, as was asked for");
    step s = { .net = net, .channel = channel, .lane = lane, .count = count };
    memcpy(s.ops, ops, (size_t)count * sizeof *ops);
    imbrex_span span = { .kind = IMBREX_SPAN_COPY, .name = "net", .peer = ops[0].rank };
    return net->desc.backend->call(net->desc.device, run_step, &s, sizeof s, &span, stream);
}

const imx_net_kind net_threads = {
    .abi = IMX_NET_ABI,
    .name = "threads",
    .device = "cpu",
    .create = net_create,
    .open = net_open,
    .close = net_close,
    .facts = net_facts,
    .step = net_step,
};
