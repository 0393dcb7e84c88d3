/* listener.c - where rank 0 listens, and who else is there if it cannot. */
#include "listener.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

enum {
    PROBE_MS = 250,   /* for whoever holds a port that we wanted, and says nothing */
    ANSWER_MS = 2000, /* for a rank 0 like this one, which may be busy */
    NAP_MS = 5,
    ADDRESSES = 8
};

typedef struct listening {
    const imx_rendezvous_desc *desc;
    const imx_handshake_id *id;
    int64_t deadline;
    imx_socket_address address;
    int listener; /* -1: none */
} listening;

imbrex_status imx_listener_fail_foreign(const imx_socket_address *address, int64_t user)
{
    return imx_fail(IMBREX_PEER,
                    "user %lld listens at %s, where rank 0 of this job should, as user %u: run all "
                    "ranks as one user; IMBREX_TOKEN, a secret on all ranks, keeps others away",
                    (long long)user, address->text, (unsigned)geteuid());
}

/* said: by that one; "": nothing. */
static imbrex_status fail_second(const listening *at, const char *said)
{
    return imx_fail(IMBREX_PEER,
                    "another rank 0 is already listening at %s: two ranks have rank 0, or two jobs "
                    "share MASTER_PORT (%d); give each job its own MASTER_PORT or IMBREX_TOKEN%s%s",
                    at->address.text, at->desc->launch->port, said[0] ? ".  It says: " : "", said);
}

/* A name or a port is taken.  If a rank 0 of this very group has it we are one too many, and it
 * hears of us. */
static imbrex_status probe(const listening *at, int fd, int64_t silence_ms)
{
    int64_t first_deadline = imx_min(imx_socket_deadline(silence_ms), at->deadline);
    int64_t deadline = imx_min(imx_socket_deadline(ANSWER_MS), at->deadline);
    imx_handshake_outcome outcome;
    IMX_TRY(imx_handshake_join(fd, at->id, first_deadline, deadline, &outcome));
    return outcome.result == IMX_HANDSHAKE_TURNED_AWAY ? fail_second(at, outcome.text) : IMBREX_OK;
}

/* Who has just bound the name will listen in a moment. */
static imx_socket_result call(const listening *at, int *fd)
{
    int64_t deadline = imx_min(imx_socket_deadline(PROBE_MS), at->deadline);
    for (;;) {
        imx_socket_result result = imx_socket_connect(&at->address, deadline, fd);
        int64_t now = imx_socket_now_ms();
        if (result != IMX_SOCKET_GONE || now >= deadline ||
            imx_socket_poll(NULL, 0, now + NAP_MS, NULL) == IMX_SOCKET_BROKEN)
            return result;
    }
}

/* The name is taken: by a rank 0 like this one, or by somebody who guessed it.  OK: by nobody who
 * takes connections. */
static imbrex_status ask_taken(const listening *at)
{
    int fd;
    if (call(at, &fd) != IMX_SOCKET_DONE)
        return IMBREX_OK;
    int64_t user = imx_socket_user(fd);
    imbrex_status status = user == (int64_t)geteuid()
                               ? probe(at, fd, ANSWER_MS)
                               : imx_listener_fail_foreign(&at->address, user);
    close(fd);
    return status == IMBREX_OK ? fail_second(at, "") : status;
}

/* Twice: a child that another rank 0 has just forked holds the name until it runs. */
static imbrex_status listen_unix(listening *at)
{
    imx_socket_unix_address(imx_handshake_name(at->id), &at->address);
    for (int i = 0; i < 2; i++) {
        at->listener = imx_socket_listen(&at->address);
        if (at->listener >= 0)
            return IMBREX_OK;
        if (errno != EADDRINUSE)
            return imx_fail_errno("rank 0 cannot listen at %s", at->address.text);
        IMX_TRY(ask_taken(at));
    }
    return imx_fail(IMBREX_PEER,
                    "a process that takes no connections holds %s, where rank 0 would listen: set "
                    "IMBREX_TOKEN to a secret, the same on all ranks, or MASTER_PORT (%d)",
                    at->address.text, at->desc->launch->port);
}

/* On the first free port above MASTER_PORT.  OK without a listener: not an address of this
 * machine. */
static imbrex_status listen_above(listening *at)
{
    int first = at->desc->launch->port + 1;
    int last = (int)imx_min(first + IMX_RENDEZVOUS_PORTS - 1, 65535);
    for (int port = first; port <= last; port++) {
        imx_socket_set_port(&at->address, port);
        at->listener = imx_socket_listen(&at->address);
        if (at->listener >= 0 || errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT)
            return IMBREX_OK;
        if (errno != EADDRINUSE)
            return imx_fail_errno("rank 0 cannot listen at %s", at->address.text);
        int fd;
        int64_t deadline = imx_min(imx_socket_deadline(PROBE_MS), at->deadline);
        if (imx_socket_connect(&at->address, deadline, &fd) != IMX_SOCKET_DONE)
            continue;
        imbrex_status status = probe(at, fd, PROBE_MS);
        close(fd);
        IMX_TRY(status);
    }
    return imx_fail(IMBREX_SYSTEM,
                    "rank 0 found no free port: %d to %d are taken up to %s; set MASTER_PORT to "
                    "another number on all ranks",
                    first, last, at->address.text);
}

/* Once a process, on stderr: the launchers set no token, and nothing else would say so. */
static void warn_open(const listening *at)
{
    static bool warned;
    if (at->desc->token[0] || __atomic_exchange_n(&warned, true, __ATOMIC_RELAXED))
        return;
    fprintf(stderr,
            "imbrex: rank 0 listens at %s without IMBREX_TOKEN: whoever reaches this port can join "
            "the job; set IMBREX_TOKEN to a secret, the same on all ranks\n",
            at->address.text);
}

static imbrex_status listen_tcp(listening *at)
{
    const char *bind = at->desc->bind;
    const char *name = bind[0] ? bind : at->desc->launch->address;
    const char *variable = bind[0] ? "IMBREX_BIND" : "MASTER_ADDR";
    imx_socket_address addresses[ADDRESSES];
    const char *why;
    int count = imx_socket_resolve(name, addresses, ADDRESSES, &why);
    if (count == 0)
        return imx_fail(IMBREX_INVALID, "%s=%.128s does not name a host: %s", variable, name, why);
    for (int i = 0; i < count && at->listener < 0; i++) {
        at->address = addresses[i];
        IMX_TRY(listen_above(at));
    }
    if (at->listener < 0)
        return imx_fail(IMBREX_INVALID,
                        "%s=%.128s is not an address of this machine, where rank 0 runs: set "
                        "MASTER_ADDR to rank 0's host, or IMBREX_BIND to an address of it",
                        variable, name);
    warn_open(at);
    return IMBREX_OK;
}

imbrex_status imx_listener_open(const imx_rendezvous_desc *desc, const imx_handshake_id *id,
                                int64_t deadline, imx_socket_address *address, int *listener)
{
    listening at = { .desc = desc, .id = id, .deadline = deadline, .listener = -1 };
    IMX_TRY(desc->launch->one_host ? listen_unix(&at) : listen_tcp(&at));
    *address = at.address;
    *listener = at.listener;
    return IMBREX_OK;
}
