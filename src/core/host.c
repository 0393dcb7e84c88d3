/* host.c - one poll over the listening socket, all guests that have yet to prove themselves, and
 * all ranks that already have: whoever is silent, slow or wrong holds up nobody else. */
#include "host.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    GUEST_LIMIT_MS = 2000, /* for the whole handshake */
    SPARE_GUESTS = 64,     /* strangers that may hang around while all ranks call at once */
    PROBE_MS = 250,        /* for whoever holds a port that we wanted */
    ADDRESSES = 8
};

typedef struct imx_host {
    const imx_rendezvous_desc *desc;
    const imx_handshake_id *id;
    imx_star *star;
    int64_t deadline;
    int listener; /* -1: none */
    imx_socket_address address;
    int present; /* ranks, this one included */
    imx_handshake_guest *guests;
    int guest_count, guest_max;
    struct pollfd *polls; /* the listener, the guests, the ranks */
    int *polled;          /* which rank polls[1 + guest_count + i] is */
} imx_host;

/* ---- Listening ------------------------------------------------------------------------------- */

static imbrex_status fail_second(const char *where, int port)
{
    return imx_fail(IMBREX_PEER,
                    "another rank 0 is already listening at %s: two ranks have rank 0, or two jobs "
                    "share MASTER_PORT (%d); give each job its own MASTER_PORT or IMBREX_TOKEN",
                    where, port);
}

/* A port is taken.  If a rank 0 of this very group has it, we are one too many. */
static imbrex_status probe(const imx_host *host)
{
    int64_t deadline = imx_min(imx_socket_deadline(PROBE_MS), host->deadline);
    int fd;
    if (imx_socket_connect(&host->address, deadline, &fd) != IMX_SOCKET_DONE)
        return IMBREX_OK;
    imx_handshake_outcome outcome;
    imbrex_status status = imx_handshake_join(fd, host->id, deadline, deadline, &outcome);
    close(fd);
    IMX_TRY(status);
    return outcome.result == IMX_HANDSHAKE_TURNED_AWAY
               ? fail_second(host->address.text, host->desc->launch->port)
               : IMBREX_OK;
}

/* A name is taken: by a rank 0 like this one, or by somebody who guessed it. */
static imbrex_status fail_taken(const imx_host *host)
{
    int64_t deadline = imx_min(imx_socket_deadline(PROBE_MS), host->deadline);
    int fd;
    if (imx_socket_connect(&host->address, deadline, &fd) != IMX_SOCKET_DONE)
        return imx_fail(IMBREX_PEER,
                        "a process that takes no connections holds %s, where rank 0 would listen: "
                        "set IMBREX_TOKEN to a secret, the same on all ranks, or MASTER_PORT (%d)",
                        host->address.text, host->desc->launch->port);
    int64_t user = imx_socket_user(fd);
    close(fd);
    return user == (int64_t)geteuid() ? fail_second(host->address.text, host->desc->launch->port)
                                      : imx_rendezvous_fail_foreign(&host->address, user);
}

static imbrex_status listen_unix(imx_host *host)
{
    imx_socket_unix_address(imx_handshake_name(host->id), &host->address);
    host->listener = imx_socket_listen(&host->address);
    if (host->listener >= 0)
        return IMBREX_OK;
    if (errno == EADDRINUSE)
        return fail_taken(host);
    return imx_fail_errno("rank 0 cannot listen at %s", host->address.text);
}

/* On the first free port above MASTER_PORT.  OK without a listener: not an address of this
 * machine. */
static imbrex_status listen_above(imx_host *host)
{
    int first = host->desc->launch->port + 1;
    int last = (int)imx_min(first + IMX_RENDEZVOUS_PORTS - 1, 65535);
    for (int port = first; port <= last; port++) {
        imx_socket_set_port(&host->address, port);
        host->listener = imx_socket_listen(&host->address);
        if (host->listener >= 0 || errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT)
            return IMBREX_OK;
        if (errno != EADDRINUSE)
            return imx_fail_errno("rank 0 cannot listen at %s", host->address.text);
        IMX_TRY(probe(host));
    }
    return imx_fail(IMBREX_SYSTEM,
                    "rank 0 found no free port: %d to %d are taken up to %s; set MASTER_PORT to "
                    "another number on all ranks",
                    first, last, host->address.text);
}

/* Once a process, on stderr: the launchers set no token, and nothing else would say so. */
static void warn_open(const imx_host *host)
{
    static bool warned;
    if (host->desc->token[0] || __atomic_exchange_n(&warned, true, __ATOMIC_RELAXED))
        return;
    fprintf(stderr,
            "imbrex: rank 0 listens at %s without IMBREX_TOKEN: whoever reaches this port can join "
            "the job; set IMBREX_TOKEN to a secret, the same on all ranks\n",
            host->address.text);
}

static imbrex_status listen_tcp(imx_host *host)
{
    const char *bind = host->desc->bind;
    const char *name = bind[0] ? bind : host->desc->launch->address;
    const char *variable = bind[0] ? "IMBREX_BIND" : "MASTER_ADDR";
    imx_socket_address addresses[ADDRESSES];
    const char *why;
    int count = imx_socket_resolve(name, addresses, ADDRESSES, &why);
    if (count == 0)
        return imx_fail(IMBREX_INVALID, "%s=%.128s does not name a host: %s", variable, name, why);
    for (int i = 0; i < count && host->listener < 0; i++) {
        host->address = addresses[i];
        IMX_TRY(listen_above(host));
    }
    if (host->listener < 0)
        return imx_fail(IMBREX_INVALID,
                        "%s=%.128s is not an address of this machine, where rank 0 runs: set "
                        "MASTER_ADDR to rank 0's host, or IMBREX_BIND to an address of it",
                        variable, name);
    warn_open(host);
    return IMBREX_OK;
}

/* ---- Guests ---------------------------------------------------------------------------------- */

static void forget(imx_host *host, int guest)
{
    host->guests[guest] = host->guests[--host->guest_count];
}

static void drop(imx_host *host, int guest)
{
    close(host->guests[guest].fd);
    forget(host, guest);
}

static void drop_oldest(imx_host *host)
{
    int oldest = 0;
    for (int i = 1; i < host->guest_count; i++)
        if (host->guests[i].limit < host->guests[oldest].limit)
            oldest = i;
    drop(host, oldest);
}

/* Lets in who is waiting; a crowd of strangers pushes out the oldest of the crowd. */
static imbrex_status accept_guests(imx_host *host)
{
    for (int i = 0; i < SPARE_GUESTS; i++) {
        int fd = imx_sys.accept(host->listener, NULL, NULL);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && host->guest_count > 0) {
            drop_oldest(host);
            return IMBREX_OK;
        }
        /* accept(2) also hands on what went wrong on the new connection: not our failure. */
        if (fd < 0 &&
            (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EPROTO ||
             errno == ENETDOWN || errno == EHOSTUNREACH || errno == ENETUNREACH || errno == EPERM))
            return IMBREX_OK;
        if (fd < 0)
            return imx_fail_errno("rank 0 cannot accept connections at %s", host->address.text);
        if (!imx_socket_same_user(fd)) {
            close(fd);
            continue;
        }
        imx_socket_no_delay(fd);
        if (host->guest_count == host->guest_max)
            drop_oldest(host);
        host->guests[host->guest_count++] =
            (imx_handshake_guest){ .fd = fd, .limit = imx_socket_deadline(GUEST_LIMIT_MS) };
    }
    return IMBREX_OK;
}

/* A guest that knows the key, but does not fit: a mistake in how the job was started, which both
 * sides should hear of. */
static imbrex_status misfit(const imx_host *host, const imx_handshake_hello *hello)
{
    if (hello->size != (uint32_t)host->id->size)
        return imx_fail(IMBREX_PEER,
                        "rank %u says that there are %u ranks, rank 0 says %d: set the same "
                        "number on all ranks",
                        hello->rank, hello->size, host->id->size);
    if (hello->rank >= hello->size)
        return imx_fail(IMBREX_PEER, "there is a rank %u, but only %u ranks", hello->rank,
                        hello->size);
    if (host->star->links[hello->rank].fd >= 0)
        return imx_fail(IMBREX_PEER,
                        "two ranks say that they are rank %u: give each its own number",
                        hello->rank);
    return IMBREX_OK;
}

/* The guest has proved that it knows the key. */
static imbrex_status admit(imx_host *host, int index)
{
    imx_handshake_guest *guest = &host->guests[index];
    const imx_handshake_hello *hello = &guest->hello;
    imbrex_status status = IMBREX_OK;
    if (hello->rank != 0)
        status = misfit(host, hello);
    if (hello->rank == 0 || status != IMBREX_OK) {
        (void)!imx_handshake_answer(guest, host->id, IMX_HANDSHAKE_REFUSED,
                                    status ? imx_status_detail() : "another rank 0 is here");
        drop(host, index);
        return status;
    }
    if (imx_handshake_answer(guest, host->id, IMX_HANDSHAKE_WELCOME, "") != IMX_SOCKET_DONE) {
        drop(host, index);
        return IMBREX_OK;
    }
    /* When the first rank gives up, the group has failed: all should hear the same reason. */
    host->deadline = imx_min(host->deadline, imx_socket_deadline(hello->remaining_ms));
    host->star->links[hello->rank].fd = guest->fd;
    host->star->links[hello->rank].seals = imx_handshake_seals(guest, host->id);
    host->present++;
    forget(host, index);
    return IMBREX_OK;
}

/* ---- The loop -------------------------------------------------------------------------------- */

static bool is_missing(const imx_star_link *link)
{
    return link->fd < 0;
}

static imbrex_status fail_missing(const imx_host *host)
{
    char ranks[160];
    imx_text text = { .at = ranks, .size = sizeof ranks };
    imx_star_name_ranks(host->star, is_missing, &text);
    return imx_fail(IMBREX_TIMEOUT, "%s of %d did not come within %lld ms (rank 0 listens at %s)",
                    ranks, host->id->size, (long long)host->desc->timeout_ms, host->address.text);
}

/* Until something happens, a guest's limit passes (both DONE), or the deadline. */
static imx_socket_result wait_for_news(imx_host *host)
{
    int64_t until = host->deadline;
    struct pollfd *at = host->polls;
    *at++ = (struct pollfd){ .fd = host->listener, .events = POLLIN };
    for (int i = 0; i < host->guest_count; i++) {
        *at++ = (struct pollfd){ .fd = host->guests[i].fd, .events = POLLIN };
        until = imx_min(until, host->guests[i].limit);
    }
    int *rank = host->polled;
    for (int r = 1; r < host->id->size; r++) {
        if (is_missing(&host->star->links[r]))
            continue;
        *at++ = (struct pollfd){ .fd = host->star->links[r].fd, .events = POLLIN };
        *rank++ = r;
    }
    imx_socket_result result =
        imx_socket_poll(host->polls, (size_t)(at - host->polls), until, NULL);
    bool over = imx_socket_now_ms() >= host->deadline;
    return result == IMX_SOCKET_LATE && !over ? IMX_SOCKET_DONE : result;
}

static imbrex_status handle_news(imx_host *host)
{
    /* Ranks first: admitting a guest moves where they stand.  They have nothing to say before the
     * group is complete, so a readable one has left. */
    const struct pollfd *ranks = host->polls + 1 + host->guest_count;
    for (int i = 0; i < host->present - 1; i++)
        if (ranks[i].revents)
            return imx_fail(IMBREX_PEER, "rank %d left before all ranks had come", host->polled[i]);

    /* Backwards, because the last guest takes the place of one that goes. */
    for (int i = host->guest_count - 1; i >= 0; i--) {
        imx_socket_result result = IMX_SOCKET_AGAIN;
        if (host->polls[1 + i].revents)
            result = imx_handshake_step(&host->guests[i], host->id);
        if (result == IMX_SOCKET_DONE)
            IMX_TRY(admit(host, i));
        else if (result != IMX_SOCKET_AGAIN || host->guests[i].limit <= imx_socket_now_ms())
            drop(host, i);
    }
    return host->polls[0].revents ? accept_guests(host) : IMBREX_OK;
}

static imbrex_status wait_for_all(imx_host *host)
{
    while (host->present < host->id->size) {
        imx_socket_result result = wait_for_news(host);
        if (result == IMX_SOCKET_LATE)
            return fail_missing(host);
        if (result == IMX_SOCKET_BROKEN)
            return imx_fail_errno("rank 0 cannot wait for the other ranks");
        IMX_TRY(handle_news(host));
    }
    return IMBREX_OK;
}

static imbrex_status open_host(imx_host *host)
{
    host->guest_max = host->id->size + SPARE_GUESTS;
    size_t polls = (size_t)(1 + host->guest_max + host->id->size);
    IMX_TRY(imx_sys_alloc((size_t)host->guest_max, sizeof *host->guests, &host->guests));
    IMX_TRY(imx_sys_alloc(polls, sizeof *host->polls, &host->polls));
    IMX_TRY(imx_sys_alloc((size_t)host->id->size, sizeof *host->polled, &host->polled));
    return host->desc->launch->one_host ? listen_unix(host) : listen_tcp(host);
}

static void close_host(imx_host *host)
{
    while (host->guest_count > 0)
        drop(host, 0);
    if (host->listener >= 0)
        close(host->listener);
    free(host->guests);
    free(host->polls);
    free(host->polled);
}

imbrex_status imx_host_meet(const imx_rendezvous_desc *desc, const imx_handshake_id *id,
                            int64_t deadline, imx_star *star)
{
    imx_host host = {
        .desc = desc, .id = id, .star = star, .deadline = deadline, .listener = -1, .present = 1
    };
    imbrex_status status = open_host(&host);
    if (status == IMBREX_OK)
        status = wait_for_all(&host);
    close_host(&host);
    return status == IMBREX_OK ? imx_star_start(star, host.deadline) : imx_star_fail(star, status);
}
