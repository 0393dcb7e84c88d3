/* news.c - connections between nodes that carry one thing: why the group has failed. */
#include "news.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "group.h"
#include "process.h"
#include "socket.h"

enum { ADDRESSES = 8, TRY_MS = 1000, TRIES_MS = 5000, MESSAGE_MS = 1000, LOOK_MS = 10 };

#define MAGIC 0x7377656e78626d69 /* "imbxnews" */

/* Where rank 0 can be reached. */
typedef struct offer {
    uint64_t key[2];
    uint32_t addresses[ADDRESSES]; /* IPv4, as on the wire */
    int32_t count, port;
} offer;

typedef enum kind { HELLO, WELCOME, FAULT, LEAVE } kind;

typedef struct message {
    uint64_t magic, key[2]; /* the key in a HELLO alone */
    int32_t kind;
    int32_t rank; /* who speaks; FAULT: who noticed */
    imbrexd_fault fault;
    char why[IMX_NOTE_BYTES]; /* of a fault of kind ABORT; "": none was given */
} message;

typedef struct wire {
    int fd;       /* -1: none, or no more */
    int rank;     /* at the other end */
    bool welcome; /* the other end knows of the connection */
} wire;

struct imx_news {
    imbrex_group *group;
    wire *wires;
    struct pollfd *polls;
    int count;
    unsigned long thread;
    bool running;
    uint32_t stop; /* atomic */
};

/* ---- connecting ------------------------------------------------------------------------------ */

/* Of this host, those of loopback last: they serve logical nodes. */
static void list_addresses(offer *o)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return;
    for (int loopback = 0; loopback < 2; loopback++) {
        for (const struct ifaddrs *i = all; i && o->count < ADDRESSES; i = i->ifa_next) {
            bool fits = i->ifa_addr && i->ifa_addr->sa_family == AF_INET && i->ifa_flags & IFF_UP;
            if (fits && !!(i->ifa_flags & IFF_LOOPBACK) == loopback)
                o->addresses[o->count++] = ((struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr;
        }
    }
    freeifaddrs(all);
}

static imx_socket_address address_of(uint32_t host, int port)
{
    imx_socket_address address = { .length = sizeof(struct sockaddr_in) };
    struct sockaddr_in *in = (struct sockaddr_in *)&address.at;
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = host;
    in->sin_port = htons((uint16_t)port);
    return address;
}

/* A rank 0 that cannot listen offers nothing. */
static int listen_for_nodes(offer *o)
{
    imx_socket_address any = address_of(htonl(INADDR_ANY), 0);
    struct sockaddr_in bound;
    socklen_t length = sizeof bound;
    if (getrandom(o->key, sizeof o->key, 0) != (ssize_t)sizeof o->key)
        return -1;
    int fd = imx_socket_listen(&any);
    if (fd < 0)
        return -1;
    if (getsockname(fd, (struct sockaddr *)&bound, &length) == 0) {
        o->port = ntohs(bound.sin_port);
        list_addresses(o);
    }
    return fd;
}

static bool send_message(int fd, const message *m)
{
    return imx_socket_send_all(fd, m, sizeof *m, imx_socket_deadline(MESSAGE_MS)) ==
           IMX_SOCKET_DONE;
}

static bool receive_message(int fd, message *m)
{
    imx_socket_result got =
        imx_socket_recv_all(fd, m, sizeof *m, imx_socket_deadline(MESSAGE_MS), NULL);
    return got == IMX_SOCKET_DONE && m->magic == MAGIC;
}

/* The first address that answers; -1: none does, and the others have waited long enough to meet. */
static int call_rank_0(const imbrex_group *group, const offer *o)
{
    message hello = { .magic = MAGIC, .kind = HELLO, .rank = group->rank };
    memcpy(hello.key, o->key, sizeof hello.key);
    int64_t deadline = imx_socket_deadline(imx_min(TRIES_MS, group->timeout_ms / 2));
    for (int i = 0; i < o->count; i++) {
        imx_socket_address address = address_of(o->addresses[i], o->port);
        int fd;
        if (imx_socket_connect(&address, imx_min(deadline, imx_socket_deadline(TRY_MS)), &fd) !=
            IMX_SOCKET_DONE)
            continue;
        if (send_message(fd, &hello))
            return fd;
        close(fd);
    }
    return -1;
}

static wire *find_wire(const imx_news *news, int rank)
{
    for (int i = 0; i < news->count; i++) {
        if (news->wires[i].rank == rank)
            return &news->wires[i];
    }
    return NULL;
}

/* All that say they have called are at the door; strangers are sent away.  Who cannot be let in,
 * for want of descriptors or memory or because strangers took too long, goes without news. */
static void welcome(imx_news *news, int listener, const offer *o, int callers)
{
    int64_t deadline = imx_socket_deadline(MESSAGE_MS);
    int64_t last = imx_socket_deadline(imx_min(TRIES_MS, news->group->timeout_ms / 2));
    const message answer = { .magic = MAGIC, .kind = WELCOME };
    while (callers > 0 && imx_socket_now_ms() < last) {
        struct pollfd door = { .fd = listener, .events = POLLIN };
        message hello;
        if (imx_socket_poll(&door, 1, deadline, NULL) != IMX_SOCKET_DONE)
            return;
        int fd = imx_sys.accept(listener, NULL, NULL);
        if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            return;
        if (fd < 0)
            continue;
        imx_socket_no_delay(fd);
        bool known = receive_message(fd, &hello) && hello.kind == HELLO &&
                     memcmp(hello.key, o->key, sizeof hello.key) == 0;
        wire *from = known ? find_wire(news, hello.rank) : NULL;
        if (from && from->fd < 0 && send_message(fd, &answer)) {
            *from = (wire){ .fd = fd, .rank = hello.rank, .welcome = true };
            callers--;
        } else {
            close(fd);
        }
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* As imbrexd_fault_raise, for a fault of a rank whose memory is not here. */
static void raise_here(const imbrex_group *group, const message *m)
{
    imbrexd_fault *foreign = &imx_control_of(group, group->rank)->foreign;
    uint32_t unused = 0;
    if (m->rank < 0 || m->rank >= group->size ||
        !__atomic_compare_exchange_n(&foreign->state, &unused, 1, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    foreign->kind = m->fault.kind;
    foreign->rank = m->fault.rank;
    foreign->late = m->fault.late;
    foreign->site = m->fault.site;
    foreign->have = m->fault.have;
    foreign->want = m->fault.want;
    char why[IMX_NOTE_BYTES];
    snprintf(why, sizeof why, "%.*s", IMX_NOTE_BYTES - 1, m->why);
    imx_note_write_once(&imx_control_of(group, group->rank)->foreign_why, why);
    /* release: who sees state 2 may read the rest; acq_rel: who sees the word may read the fault */
    __atomic_store_n(&foreign->state, 2, __ATOMIC_RELEASE);
    for (int i = 0; i < group->nodes.ranks; i++) {
        uint64_t none = 0;
        __atomic_compare_exchange_n(group->abort[imx_nodes_leader(&group->nodes) + i], &none,
                                    (uint64_t)m->rank + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
}

static void hear(imx_news *news, wire *from)
{
    message m;
    bool heard = receive_message(from->fd, &m);
    if (heard && m.kind == WELCOME) {
        from->welcome = true;
        return;
    }
    if (heard && m.kind == FAULT) {
        raise_here(news->group, &m);
        return;
    }
    if (!heard && from->welcome) { /* its process has ended, and all its sockets with it */
        imbrexd_site site = { .rank = from->rank, .index = -1 };
        imbrexd_fault_raise(&news->group->watch, IMBREXD_FAULT_DEATH, site, 0, 0);
    }
    close(from->fd);
    from->fd = -1;
}

/* The fault that this node's abort words speak of; false: there is none yet. */
static bool find_fault(const imbrex_group *group, message *m)
{
    uint64_t word = __atomic_load_n(group->abort[group->rank], __ATOMIC_ACQUIRE);
    if (!word)
        return false;
    int rank = (int)(word - 1);
    const imbrexd_fault *fault = imx_fault_of(group, rank);
    if (__atomic_load_n(&fault->state, __ATOMIC_ACQUIRE) != 2)
        return false; /* its rank is writing it */
    *m = (message){ .magic = MAGIC, .kind = FAULT, .rank = rank };
    /* All but state, which whoever comes too late still tries to set. */
    m->fault = (imbrexd_fault){ .state = 2,
                                .kind = fault->kind,
                                .rank = fault->rank,
                                .late = fault->late,
                                .site = fault->site,
                                .have = fault->have,
                                .want = fault->want,
                                .when_ns = fault->when_ns };
    if (fault->kind == IMBREXD_FAULT_ABORT && !imx_note_read(imx_fault_why(group, rank), m->why))
        m->why[0] = '\0'; /* what a read in vain left there */
    return true;
}

static void tell_all(imx_news *news, const message *m)
{
    for (int i = 0; i < news->count; i++) {
        if (news->wires[i].fd >= 0 && !send_message(news->wires[i].fd, m))
            shutdown(news->wires[i].fd, SHUT_RDWR);
    }
}

static void *run(void *arg)
{
    imx_news *news = arg;
    bool told = false;
    prctl(PR_SET_NAME, "imbrex-news");
    while (!__atomic_load_n(&news->stop, __ATOMIC_ACQUIRE)) {
        message m;
        for (int i = 0; i < news->count; i++)
            news->polls[i] = (struct pollfd){ .fd = news->wires[i].fd, .events = POLLIN };
        int ready = imx_sys.poll(news->polls, (unsigned long)news->count, LOOK_MS);
        for (int i = 0; i < news->count && ready > 0; i++) {
            if (news->polls[i].fd >= 0 && news->polls[i].revents)
                hear(news, &news->wires[i]);
        }
        if (!told && find_fault(news->group, &m)) {
            tell_all(news, &m);
            told = true;
        }
    }
    message last;
    if (!told && find_fault(news->group, &last))
        tell_all(news, &last);
    const message leave = { .magic = MAGIC, .kind = LEAVE, .rank = news->group->rank };
    tell_all(news, &leave);
    return NULL;
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Rank 0 has a wire to each other node's first rank; those have one to rank 0. */
static imbrex_status create(imbrex_group *group, imx_news **out)
{
    const imx_nodes *nodes = &group->nodes;
    imx_news *news;
    IMX_TRY(imx_sys_alloc(1, sizeof *news, &news));
    news->group = group;
    news->count = group->rank == 0 ? nodes->count - 1 : 1;
    imbrex_status status;
    IMX_GOTO(imx_sys_alloc((size_t)news->count, sizeof *news->wires, &news->wires));
    IMX_GOTO(imx_sys_alloc((size_t)news->count, sizeof *news->polls, &news->polls));
    for (int i = 0; i < news->count; i++)
        news->wires[i] = (wire){ .fd = -1, .rank = group->rank == 0 ? nodes->first[i + 1] : 0 };
    *out = news;
    return IMBREX_OK;
fail:
    imx_news_close(news);
    return status;
}

/* Two meetings: where rank 0 listens, then who has called it. */
static imbrex_status connect_all(imbrex_group *group, imx_news *news, int listener,
                                 const offer *mine, offer *offers)
{
    IMX_TRY(imx_agree_allgather(group, mine, offers, sizeof *mine));
    if (news && group->rank > 0)
        news->wires[0].fd = call_rank_0(group, &offers[0]);
    int32_t called = news && group->rank > 0 && news->wires[0].fd >= 0;
    int32_t *calls = (int32_t *)(void *)offers; /* done with */
    offer first = offers[0];
    IMX_TRY(imx_agree_allgather(group, &called, calls, sizeof called));
    int callers = 0;
    for (int r = 0; r < group->size; r++)
        callers += calls[r];
    if (listener >= 0)
        welcome(news, listener, &first, callers);
    return IMBREX_OK;
}

static imbrex_status start(imx_news *news)
{
    int error = imx_sys.thread_create(&news->thread, run, news);
    if (error)
        return imx_fail(IMBREX_SYSTEM, "cannot start a thread: %s", strerror(error));
    news->running = true;
    return IMBREX_OK;
}

imbrex_status imx_news_open(imbrex_group *group, imx_news **out)
{
    imx_news *news = NULL;
    offer mine = { .count = 0 }, *offers = NULL;
    int listener = -1;
    imbrex_status own = imx_sys_alloc((size_t)group->size, sizeof *offers, &offers);
    if (own == IMBREX_OK && group->nodes.local == 0)
        own = create(group, &news);
    imbrex_status status;
    IMX_GOTO(imx_agree(group, "imbrex_group_create", own, NULL, 0));
    if (group->rank == 0)
        listener = listen_for_nodes(&mine);
    IMX_GOTO(connect_all(group, news, listener, &mine, offers));
    own = news ? start(news) : IMBREX_OK;
    IMX_GOTO(imx_agree(group, "imbrex_group_create", own, NULL, 0));
    *out = news;
    news = NULL;
fail:
    if (listener >= 0)
        close(listener);
    imx_news_close(news);
    free(offers);
    return status;
}

void imx_news_close(imx_news *news)
{
    if (!news)
        return;
    if (news->running && imx_process_is(news->group->owner.process)) {
        /* release: what this rank did before, such as a fault of its own, is passed on */
        __atomic_store_n(&news->stop, 1, __ATOMIC_RELEASE);
        pthread_join(news->thread, NULL);
    }
    for (int i = 0; news->wires && i < news->count; i++) {
        if (news->wires[i].fd >= 0)
            close(news->wires[i].fd);
    }
    free(news->wires);
    free(news->polls);
    free(news);
}
