/* door.c - one poll over the listening socket and all who have yet to prove themselves. */
#include "door.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

enum { TRY_MS = 1000, GUEST_MS = 1000, STRANGERS = 64 };

/* ---- addresses ------------------------------------------------------------------------------- */

/* Of this host, those of loopback last: they serve logical nodes. */
static void list_addresses(imx_door_offer *o)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return;
    for (int loopback = 0; loopback < 2; loopback++) {
        for (const struct ifaddrs *i = all; i && o->count < IMX_DOOR_ADDRESSES; i = i->ifa_next) {
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

int imx_door_places(const imx_door_offer *o, imx_socket_address places[IMX_DOOR_ADDRESSES])
{
    int count = (int)imx_min(o->count, IMX_DOOR_ADDRESSES);
    for (int i = 0; i < count; i++) {
        places[i] = address_of(o->addresses[i], o->port);
        imx_socket_set_port(&places[i], o->port);
    }
    return count;
}

int imx_door_open(imx_door_offer *o)
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

/* ---- a caller -------------------------------------------------------------------------------- */

int imx_door_call(const imx_door_offer *o, int64_t deadline)
{
    for (int i = 0; i < o->count && i < IMX_DOOR_ADDRESSES; i++) {
        imx_socket_address address = address_of(o->addresses[i], o->port);
        int64_t by = imx_min(deadline, imx_socket_deadline(TRY_MS));
        int fd;
        if (imx_socket_connect(&address, by, &fd) == IMX_SOCKET_DONE)
            return fd;
    }
    return -1;
}

void imx_door_enter(const imx_handshake_id *id, int64_t deadline, imx_door_wire *wire)
{
    imx_handshake_outcome outcome;
    imx_status_mute(true);
    bool in = imx_handshake_join(wire->fd, id, deadline, deadline, &outcome) == IMBREX_OK &&
              outcome.result == IMX_HANDSHAKE_JOINED;
    imx_status_mute(false);
    if (in) {
        wire->seals = outcome.seals;
        return;
    }
    close(wire->fd);
    wire->fd = -1;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

typedef struct room {
    int listener;
    imx_handshake_guest *guests;
    struct pollfd *polls; /* the listener, the guests */
    int count, most;
} room;

static void drop(room *r, int guest)
{
    close(r->guests[guest].fd);
    r->guests[guest] = r->guests[--r->count];
}

/* In a crowd the oldest goes, of those that have said nothing if there are any. */
static void make_place(room *r)
{
    int out = 0;
    for (int i = 1; i < r->count; i++) {
        const imx_handshake_guest *guest = &r->guests[i], *other = &r->guests[out];
        if (guest->step != other->step ? guest->step < other->step : guest->limit < other->limit)
            out = i;
    }
    drop(r, out);
}

/* False: nobody can be let in any more. */
static bool accept_some(room *r)
{
    for (int i = 0; i < STRANGERS; i++) {
        int fd = imx_sys.accept(r->listener, NULL, NULL);
        if (fd < 0)
            return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        imx_socket_no_delay(fd);
        if (r->count == r->most)
            make_place(r);
        r->guests[r->count++] =
            (imx_handshake_guest){ .fd = fd, .limit = imx_socket_deadline(GUEST_MS) };
    }
    return true;
}

/* Whether the guest is who is expected, and has heard that it is in. */
static bool welcome(imx_handshake_guest *guest, const imx_handshake_id *id, imx_door_wire *wires,
                    int count)
{
    const imx_handshake_hello *hello = &guest->hello;
    for (int i = 0; i < count; i++) {
        if (hello->rank != (uint32_t)wires[i].rank || hello->size != (uint32_t)id->size ||
            wires[i].fd >= 0)
            continue;
        if (imx_handshake_answer(guest, id, IMX_HANDSHAKE_WELCOME, "") != IMX_SOCKET_DONE)
            return false;
        wires[i].fd = guest->fd;
        wires[i].seals = imx_handshake_seals(guest, id);
        return true;
    }
    return false;
}

static void let_in(room *r, const imx_handshake_id *id, int callers, int64_t deadline,
                   imx_door_wire *wires, int count)
{
    while (callers > 0 && imx_socket_now_ms() < deadline) {
        int64_t until = deadline;
        r->polls[0] = (struct pollfd){ .fd = r->listener, .events = POLLIN };
        for (int i = 0; i < r->count; i++) {
            r->polls[1 + i] = (struct pollfd){ .fd = r->guests[i].fd, .events = POLLIN };
            until = imx_min(until, r->guests[i].limit);
        }
        if (imx_socket_poll(r->polls, (size_t)r->count + 1, until, NULL) == IMX_SOCKET_BROKEN)
            return;
        for (int i = r->count - 1; i >= 0; i--) { /* the last takes the place of one that goes */
            imx_socket_result result = IMX_SOCKET_AGAIN;
            if (r->polls[1 + i].revents)
                result = imx_handshake_step(&r->guests[i], id);
            if (result == IMX_SOCKET_DONE && welcome(&r->guests[i], id, wires, count)) {
                r->guests[i] = r->guests[--r->count];
                callers--;
            } else if (result != IMX_SOCKET_AGAIN || r->guests[i].limit <= imx_socket_now_ms()) {
                drop(r, i);
            }
        }
        if (r->polls[0].revents && !accept_some(r))
            return;
    }
}

void imx_door_let_in(int listener, const imx_handshake_id *id, int callers, int64_t deadline,
                     imx_door_wire *wires, int count)
{
    room r = { .listener = listener, .most = count + STRANGERS };
    imx_status_mute(true);
    if (imx_sys_alloc((size_t)r.most, sizeof *r.guests, &r.guests) == IMBREX_OK &&
        imx_sys_alloc((size_t)r.most + 1, sizeof *r.polls, &r.polls) == IMBREX_OK)
        let_in(&r, id, callers, deadline, wires, count);
    imx_status_mute(false);
    while (r.count > 0)
        drop(&r, 0);
    free(r.guests);
    free(r.polls);
}
