/* fault_relay.c - connections between nodes that carry one thing: why the group has failed. */
#include "fault_relay.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "agree.h"
#include "base/process.h"
#include "base/siphash.h"
#include "bootstrap/door.h"
#include "fault.h"

enum { TRIES_MS = 5000, MESSAGE_MS = 1000, LOOK_MS = 10 };

#define MAGIC 0x746c616678626d69 /* "imbxfalt" */

typedef enum kind { FAULT = 1, LEAVE = 2 } kind;

typedef struct message {
    uint64_t magic;
    uint64_t seal; /* of all of it, in which it is 0 then */
    int32_t kind;
    int32_t rank; /* who speaks; FAULT: who noticed */
    imbrexd_fault fault;
    char why[IMX_NOTE_BYTES]; /* of a fault of kind ABORT; "": none was given */
} message;

struct imx_fault_relay {
    imbrex_group *group;
    imx_door_wire *wires;
    struct pollfd *polls;
    int count;
    unsigned long thread;
    bool running;
    uint32_t stop; /* atomic */
};

/* ---- messages -------------------------------------------------------------------------------- */

static bool send_message(imx_door_wire *wire, const message *m)
{
    message sealed;
    memcpy(&sealed, m, sizeof sealed); /* and what lies between its fields */
    sealed.seal = 0;
    sealed.seal = imx_seal_next(&wire->seals.send, &sealed, sizeof sealed);
    return imx_socket_send_all(wire->fd, &sealed, sizeof sealed, imx_socket_deadline(MESSAGE_MS)) ==
           IMX_SOCKET_DONE;
}

typedef enum heard { NOTHING, A_MESSAGE, FORGERY } heard;

static heard receive_message(imx_door_wire *wire, message *m)
{
    imx_socket_result got =
        imx_socket_recv_all(wire->fd, m, sizeof *m, imx_socket_deadline(MESSAGE_MS), NULL);
    if (got != IMX_SOCKET_DONE)
        return NOTHING;
    uint64_t seal = m->seal;
    m->seal = 0;
    bool sealed = seal == imx_seal_next(&wire->seals.receive, m, sizeof *m);
    return sealed && m->magic == MAGIC ? A_MESSAGE : FORGERY;
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
    foreign->rank = m->rank;
    foreign->late = m->fault.late;
    foreign->point = m->fault.point;
    foreign->have = m->fault.have;
    foreign->want = m->fault.want;
    char why[IMX_NOTE_BYTES];
    snprintf(why, sizeof why, "%.*s", IMX_NOTE_BYTES - 1, m->why);
    imx_note_write_once(&imx_control_of(group, group->rank)->foreign_why, why);
    /* release: who sees state 2 may read the rest; acq_rel: who sees the word may read the fault */
    __atomic_store_n(&foreign->state, 2, __ATOMIC_RELEASE);
    for (int i = 0; i < group->nodes.ranks; i++) {
        uint64_t none = 0;
        __atomic_compare_exchange_n(group->abort[imx_nodes_root(&group->nodes) + i], &none,
                                    (uint64_t)m->rank + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
}

static void hear(imx_fault_relay *relay, imx_door_wire *from)
{
    const imbrexd_wait_point point = { .rank = from->rank, .index = -1 };
    message m;
    heard what = receive_message(from, &m);
    if (what == A_MESSAGE && m.kind == FAULT) {
        raise_here(relay->group, &m);
        return;
    }
    if (what == NOTHING) /* its process has ended, and all its sockets with it */
        imbrexd_fault_raise(&relay->group->watch, IMBREXD_FAULT_DEATH, point, 0, 0);
    if (what == FORGERY)
        imbrexd_fault_raise(&relay->group->watch, IMBREXD_FAULT_NET, point, 0, IMX_NET_FORGED);
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
                                .point = fault->point,
                                .have = fault->have,
                                .want = fault->want,
                                .when_ns = fault->when_ns };
    if (fault->kind == IMBREXD_FAULT_ABORT && !imx_note_read(imx_fault_why(group, rank), m->why))
        m->why[0] = '\0'; /* what a read in vain left there */
    return true;
}

static void tell_all(imx_fault_relay *relay, const message *m)
{
    for (int i = 0; i < relay->count; i++) {
        if (relay->wires[i].fd >= 0 && !send_message(&relay->wires[i], m))
            shutdown(relay->wires[i].fd, SHUT_RDWR);
    }
}

static void *run(void *arg)
{
    imx_fault_relay *relay = arg;
    bool told = false;
    prctl(PR_SET_NAME, "imbrex-relay");
    while (!__atomic_load_n(&relay->stop, __ATOMIC_ACQUIRE)) {
        message m;
        for (int i = 0; i < relay->count; i++)
            relay->polls[i] = (struct pollfd){ .fd = relay->wires[i].fd, .events = POLLIN };
        int ready = imx_sys.poll(relay->polls, (unsigned long)relay->count, LOOK_MS);
        for (int i = 0; i < relay->count && ready > 0; i++) {
            if (relay->polls[i].fd >= 0 && relay->polls[i].revents)
                hear(relay, &relay->wires[i]);
        }
        if (!told && find_fault(relay->group, &m)) {
            tell_all(relay, &m);
            told = true;
        }
    }
    message last;
    if (!told && find_fault(relay->group, &last))
        tell_all(relay, &last);
    const message leave = { .magic = MAGIC, .kind = LEAVE, .rank = relay->group->rank };
    tell_all(relay, &leave);
    return NULL;
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Rank 0 has a wire to each other node's first rank; those have one to rank 0. */
static imbrex_status create(imbrex_group *group, imx_fault_relay **out)
{
    const imx_nodes *nodes = &group->nodes;
    imx_fault_relay *relay;
    IMX_TRY(imx_sys_alloc(1, sizeof *relay, &relay));
    relay->group = group;
    relay->count = group->rank == 0 ? nodes->count - 1 : 1;
    imbrex_status status;
    IMX_GOTO(imx_sys_alloc((size_t)relay->count, sizeof *relay->wires, &relay->wires));
    IMX_GOTO(imx_sys_alloc((size_t)relay->count, sizeof *relay->polls, &relay->polls));
    for (int i = 0; i < relay->count; i++)
        relay->wires[i] =
            (imx_door_wire){ .fd = -1, .rank = group->rank == 0 ? nodes->first[i + 1] : 0 };
    *out = relay;
    return IMBREX_OK;
fail:
    imx_fault_relay_close(relay);
    return status;
}

/* The key of the connections: fresh, and secret where what the ranks swap is heard by others, too,
 * but the group has a token. */
static imx_handshake_id make_id(const imbrex_group *group, const imx_door_offer *offer)
{
    imx_handshake_id id = { .rank = group->rank, .size = group->size };
    uint64_t secret[2] = { 0, 0 };
    if (group->own_bootstrap)
        imx_bootstrap_secret(group->own_bootstrap, secret);
    for (uint64_t i = 0; i < 2; i++) {
        const uint64_t words[3] = { offer->key[0], offer->key[1], i };
        id.key[i] = imx_siphash(secret, words, sizeof words);
    }
    return id;
}

/* Says yes or no to all: how many say yes, and, at `said`, who. */
static imbrex_status ask(imbrex_group *group, bool mine, int32_t *said, int *count)
{
    const int32_t word = mine;
    *count = 0;
    IMX_TRY(imx_agree_allgather(group, &word, said, sizeof word));
    for (int r = 0; r < group->size; r++)
        *count += said[r] == 1;
    return IMBREX_OK;
}

/* Three meetings: where rank 0 listens, who has called it, who is in.  Whoever cannot be let in,
 * for want of descriptors or memory or since strangers took too long, goes without a relay.  A
 * caller waits longer than rank 0, which closes the door to those that are still outside. */
static imbrex_status connect_all(imbrex_group *group, imx_fault_relay *relay, int *listener,
                                 const imx_door_offer *mine, imx_door_offer *offers)
{
    const int64_t most = imx_min(TRIES_MS, group->timeout_ms / 2);
    const int64_t longer = imx_min(most + MESSAGE_MS, group->timeout_ms * 3 / 4);
    imx_door_wire *up = relay && group->rank > 0 ? &relay->wires[0] : NULL;
    int32_t *said = (int32_t *)(void *)offers; /* once they are read */
    int callers, in;
    IMX_TRY(imx_agree_allgather(group, mine, offers, sizeof *mine));
    const imx_door_offer offer = offers[0];
    const imx_handshake_id id = make_id(group, &offer);
    if (up)
        up->fd = imx_door_call(&offer, imx_socket_deadline(most));
    IMX_TRY(ask(group, up && up->fd >= 0, said, &callers));
    if (up && up->fd >= 0)
        imx_door_enter(&id, imx_socket_deadline(longer), up);
    if (*listener >= 0) {
        imx_door_let_in(*listener, &id, (int)imx_min(callers, relay->count),
                        imx_socket_deadline(most), relay->wires, relay->count);
        close(*listener);
        *listener = -1;
    }
    IMX_TRY(ask(group, up && up->fd >= 0, said, &in));
    for (int i = 0; group->rank == 0 && i < relay->count; i++) {
        imx_door_wire *wire = &relay->wires[i];
        if (wire->fd >= 0 && said[wire->rank] != 1) { /* it gave up before it heard that it is in */
            close(wire->fd);
            wire->fd = -1;
        }
    }
    return IMBREX_OK;
}

static imbrex_status start(imx_fault_relay *relay)
{
    int error = imx_sys.thread_create(&relay->thread, run, relay);
    if (error)
        return imx_fail(IMBREX_SYSTEM, "cannot start a thread: %s", strerror(error));
    relay->running = true;
    return IMBREX_OK;
}

imbrex_status imx_fault_relay_open(imbrex_group *group, imx_fault_relay **out)
{
    imx_fault_relay *relay = NULL;
    imx_door_offer mine = { .count = 0 }, *offers = NULL;
    int listener = -1;
    imbrex_status own = imx_sys_alloc((size_t)group->size, sizeof *offers, &offers);
    if (own == IMBREX_OK && group->nodes.local == 0)
        own = create(group, &relay);
    imbrex_status status;
    IMX_GOTO(imx_agree(group, "imbrex_group_create", own, NULL, 0));
    if (group->rank == 0)
        listener = imx_door_open(&mine);
    IMX_GOTO(connect_all(group, relay, &listener, &mine, offers));
    own = relay ? start(relay) : IMBREX_OK;
    IMX_GOTO(imx_agree(group, "imbrex_group_create", own, NULL, 0));
    *out = relay;
    relay = NULL;
fail:
    if (listener >= 0)
        close(listener);
    imx_fault_relay_close(relay);
    free(offers);
    return status;
}

void imx_fault_relay_close(imx_fault_relay *relay)
{
    if (!relay)
        return;
    if (relay->running && imx_process_is(relay->group->owner.process)) {
        /* release: what this rank did before, such as a fault of its own, is passed on */
        __atomic_store_n(&relay->stop, 1, __ATOMIC_RELEASE);
        pthread_join(relay->thread, NULL);
    }
    for (int i = 0; relay->wires && i < relay->count; i++) {
        if (relay->wires[i].fd >= 0)
            close(relay->wires[i].fd);
    }
    free(relay->wires);
    free(relay->polls);
    free(relay);
}
