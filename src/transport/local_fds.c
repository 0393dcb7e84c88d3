/* local_fds.c - ranks of one host in different processes: the descriptor of a piece of memory is
 * passed over a unix socket (SCM_RIGHTS), one socket a pair of ranks.
 *
 * The sockets stay open: the kernel closes them with the process, however it ends, which is how a
 * peer's death is noticed at once.  They have no name in the file system.  Whoever connects must
 * run as the same user and know a key that the ranks swapped through their bootstrap.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/process.h"
#include "bootstrap/socket.h"
#include "group/transport.h"

enum { NAP_MS = 1, GREETING_MS = 1000 };

/* How a rank is reached; swapped once. */
typedef struct address {
    uint32_t length;
    struct sockaddr_un name;
    uint8_t key[16];
} address;

/* The first message on a socket, and the one beside every descriptor. */
typedef struct hello {
    uint8_t key[16]; /* of the rank that listens */
    int32_t rank;    /* who connects */
} hello;

typedef struct offer {
    uint64_t bytes; /* 0: this rank has none to pass, and no descriptor comes along */
    uint64_t swap;  /* number of the swap: what a failed one left in a socket is passed over */
} offer;

struct imx_transport {
    imx_transport_desc desc;
    const bool *peers;
    int listener;
    int *sockets; /* [size]; -1: none */
    address own;
    address *addresses; /* [size] */
    uint64_t swaps;     /* so far */
    int64_t other_user; /* who was sent away, if not for his greeting; -1: nobody */
    int stop;           /* eventfd that ends the watching thread */
    unsigned long watcher;
    bool watching;
    uint64_t process;      /* that has the thread: a child of fork has it not */
    const uint64_t *abort; /* the group's word; NULL: it has none yet */
    void (*gone)(void *ctx, int rank);
    void *gone_ctx;
};

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

static void fds_close(imx_transport *t)
{
    if (!t)
        return;
    if (t->watching && imx_process_is(t->process)) {
        eventfd_write(t->stop, 1);
        pthread_join(t->watcher, NULL);
    }
    close_fd(t->stop);
    close_fd(t->listener);
    for (int r = 0; t->sockets && r < t->desc.size; r++)
        close_fd(t->sockets[r]);
    free(t->sockets);
    free(t->addresses);
    free(t);
}

/* Half the limit: whoever waits here in vain must still be in time for the meeting where the others
 * wait with the reason. */
static int64_t deadline_from_now(const imx_transport *t)
{
    return imx_socket_deadline(t->desc.timeout_ms / 2);
}

/* Until fd is ready to be read or the deadline; OK, TIMEOUT, PEER if the group has failed, or why
 * poll did. */
static imbrex_status await(const imx_transport *t, int fd, int64_t deadline, const char *what,
                           int rank)
{
    struct pollfd poll = { .fd = fd, .events = POLLIN };
    imx_socket_result result = imx_socket_poll(&poll, 1, deadline, t->abort);
    if (result == IMX_SOCKET_DONE)
        return IMBREX_OK;
    if (result == IMX_SOCKET_LATE)
        return imx_fail(IMBREX_TIMEOUT, "rank %d did not %s in time", rank, what);
    if (result == IMX_SOCKET_ABORTED)
        return imx_fail(IMBREX_PEER, "the group failed before rank %d could %s", rank, what);
    return imx_fail_errno("cannot wait for rank %d to %s", rank, what);
}

/* An unnamed address: the kernel chooses one in the abstract space. */
static imbrex_status listen_anywhere(imx_transport *t)
{
    address *own = &t->own;
    t->listener = imx_sys.socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un unnamed = { .sun_family = AF_UNIX };
    own->length = sizeof own->name;
    if (t->listener < 0 ||
        imx_sys.bind(t->listener, (struct sockaddr *)&unnamed, sizeof unnamed.sun_family) != 0 ||
        getsockname(t->listener, (struct sockaddr *)&own->name, &own->length) != 0 ||
        imx_sys.listen(t->listener, t->desc.size + 16) != 0)
        return imx_fail_errno("cannot listen on a unix socket");
    if (getrandom(own->key, sizeof own->key, 0) != (ssize_t)sizeof own->key)
        return imx_fail_errno("getrandom failed");
    return IMBREX_OK;
}

static imbrex_status send_message(int fd, const void *bytes, size_t size, int passed, int rank)
{
    struct iovec part = { .iov_base = (void *)bytes, .iov_len = size };
    union {
        struct cmsghdr header; /* for its alignment */
        char room[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (passed >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &passed, sizeof passed);
    }
    long sent;
    do
        sent = imx_sys.sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent == (long)size)
        return IMBREX_OK;
    if (errno == EPIPE || errno == ECONNRESET)
        return imx_fail(IMBREX_PEER, "rank %d has left", rank);
    return imx_fail_errno("cannot send to rank %d", rank);
}

/* One message of exactly size bytes.  The descriptor beside it goes to *passed, -1 if there is
 * none; with passed NULL there must be none. */
static imbrex_status receive_message(int fd, void *bytes, size_t size, int *passed, int rank)
{
    struct iovec part = { .iov_base = bytes, .iov_len = size };
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.room,
        .msg_controllen = sizeof control.room,
    };
    long got;
    do
        got = imx_sys.recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno != ECONNRESET)
        return imx_fail_errno("cannot receive from rank %d", rank);
    int fd_here = -1;
    const struct cmsghdr *header = got >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd_here, CMSG_DATA(header), sizeof fd_here);
    if (got == (long)size && !(message.msg_flags & MSG_CTRUNC) && (passed || fd_here < 0)) {
        if (passed)
            *passed = fd_here;
        return IMBREX_OK;
    }
    close_fd(fd_here);
    if (got <= 0)
        return imx_fail(IMBREX_PEER, "rank %d has left", rank);
    if (passed && (message.msg_flags & MSG_CTRUNC))
        return imx_fail(IMBREX_SYSTEM,
                        "no descriptor is free for rank %d's memory: raise RLIMIT_NOFILE", rank);
    return imx_fail(IMBREX_PEER, "rank %d sent %ld bytes%s where %zu were due", rank, got,
                    fd_here < 0 ? "" : " and a descriptor", size);
}

/* While strangers fill the other's queue, which is EAGAIN, it is asked again: a socket that blocks
 * would wait for room without limit.  Nobody listens any more, or it was closed with the call in
 * its queue: the other rank's process has ended. */
static imbrex_status connect_to(imx_transport *t, int rank, int64_t deadline)
{
    const address *theirs = &t->addresses[rank];
    int fd = imx_sys.socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return imx_fail_errno("cannot make a socket for rank %d", rank);
    t->sockets[rank] = fd;
    while (imx_sys.connect(fd, (const struct sockaddr *)&theirs->name, theirs->length) != 0) {
        if (errno == ECONNREFUSED || errno == ECONNRESET)
            return imx_fail(IMBREX_PEER, "rank %d has left", rank);
        if (errno != EAGAIN && errno != EINTR)
            return imx_fail_errno("cannot connect to rank %d", rank);
        int64_t now = imx_socket_now_ms();
        if (now >= deadline)
            return imx_fail(IMBREX_TIMEOUT,
                            "rank %d did not take a connection in time: its queue is full", rank);
        if (imx_socket_poll(NULL, 0, now + NAP_MS, NULL) == IMX_SOCKET_BROKEN)
            return imx_fail_errno("cannot wait for rank %d to take a connection", rank);
    }
    if (!imx_socket_same_user(fd))
        return IMBREX_OK; /* it is sent away, and check_user says why */
    hello greeting = { .rank = t->desc.rank };
    memcpy(greeting.key, theirs->key, sizeof greeting.key);
    return send_message(fd, &greeting, sizeof greeting, -1, rank);
}

/* Once all of them have seen who this is. */
static imbrex_status check_user(const imx_transport *t, int rank)
{
    if (imx_socket_same_user(t->sockets[rank]))
        return IMBREX_OK;
    return imx_fail(IMBREX_PEER,
                    "rank %d is a process of user %lld, and this rank is one of user %u: run all "
                    "ranks as one user",
                    rank, (long long)imx_socket_user(t->sockets[rank]), (unsigned)geteuid());
}

static bool is_expected(const imx_transport *t, const hello *greeting)
{
    return memcmp(greeting->key, t->own.key, sizeof greeting->key) == 0 &&
           greeting->rank > t->desc.rank && greeting->rank < t->desc.size &&
           t->peers[greeting->rank] && t->sockets[greeting->rank] < 0;
}

/* Whoever is at the door: a peer, or a stranger who is sent away.  Fails only for this rank's own
 * reasons. */
static imbrex_status greet(imx_transport *t, int fd, int64_t deadline)
{
    hello greeting = { 0 };
    imbrex_status heard = IMBREX_PEER;
    if (!imx_socket_same_user(fd))
        t->other_user = imx_socket_user(fd);
    else
        heard = await(t, fd, imx_min(deadline, imx_socket_deadline(GREETING_MS)), "say hello", -1);
    if (heard == IMBREX_OK)
        heard = receive_message(fd, &greeting, sizeof greeting, NULL, -1);
    if (heard == IMBREX_OK && is_expected(t, &greeting))
        t->sockets[greeting.rank] = fd;
    else
        close(fd);
    return heard == IMBREX_SYSTEM || heard == IMBREX_NO_MEMORY ? heard : IMBREX_OK;
}

/* The lowest rank that has yet to connect, or -1. */
static int missing(const imx_transport *t)
{
    for (int r = t->desc.rank + 1; r < t->desc.size; r++) {
        if (t->peers[r] && t->sockets[r] < 0)
            return r;
    }
    return -1;
}

/* A rank of another user is a stranger like any: that there was one is only said. */
static imbrex_status await_rank(const imx_transport *t, int rank, int64_t deadline)
{
    imbrex_status status = await(t, t->listener, deadline, "connect", rank);
    if (status == IMBREX_TIMEOUT && t->other_user >= 0)
        return imx_fail(status,
                        "rank %d did not connect in time, but a process of user %lld did, and this "
                        "rank is one of user %u: run all ranks as one user",
                        rank, (long long)t->other_user, (unsigned)geteuid());
    return status;
}

/* Lower ranks are connected to, higher ones connect: each pair has one socket.  All listen before
 * anyone connects, with room for all in the queue: only strangers make a connect wait. */
static imbrex_status connect_all(imx_transport *t, int64_t deadline)
{
    for (int r = 0; r < t->desc.rank; r++) {
        if (t->peers[r])
            IMX_TRY(connect_to(t, r, deadline));
    }
    for (int r = 0; r < t->desc.rank; r++) {
        if (t->peers[r])
            IMX_TRY(check_user(t, r));
    }
    for (int r; (r = missing(t)) >= 0;) {
        IMX_TRY(await_rank(t, r, deadline));
        int fd = imx_sys.accept(t->listener, NULL, NULL);
        if (fd >= 0)
            IMX_TRY(greet(t, fd, deadline));
        else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            return imx_fail_errno("cannot accept a connection of rank %d", r);
    }
    close_fd(t->listener);
    t->listener = -1;
    return IMBREX_OK;
}

static imbrex_status take_tables(imx_transport *t)
{
    size_t size = (size_t)t->desc.size;
    IMX_TRY(imx_sys_alloc(size, sizeof *t->addresses, &t->addresses));
    IMX_TRY(imx_sys_alloc(size, sizeof *t->sockets, &t->sockets));
    memset(t->sockets, -1, size * sizeof *t->sockets);
    return IMBREX_OK;
}

static imbrex_status fds_create(const imx_transport_desc *desc, const bool *peers,
                                imx_transport **out)
{
    imx_transport *t = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *t, &t));
    t->desc = *desc;
    t->process = imx_process_now();
    t->peers = peers;
    t->listener = t->stop = -1;
    t->other_user = -1;
    imbrex_status status;
    IMX_GOTO(take_tables(t));
    IMX_GOTO(listen_anywhere(t));
    *out = t;
    return IMBREX_OK;
fail:
    fds_close(t);
    return status;
}

static imbrex_status fds_open(imx_transport *t)
{
    const imx_transport_desc *desc = &t->desc;
    IMX_TRY(desc->allgather(desc->ctx, &t->own, t->addresses, sizeof t->own));
    return connect_all(t, deadline_from_now(t));
}

/* Only heard, not taken, if mine is a failure: that one is what the ranks are to be told. */
static imbrex_status import_from(imx_transport *t, int rank, const imx_memory *own,
                                 imbrex_status mine, int64_t deadline, imx_memory **memory)
{
    offer theirs;
    int fd = -1;
    do { /* what a failed swap left unread comes first */
        close_fd(fd);
        IMX_TRY(await(t, t->sockets[rank], deadline, "pass its memory", rank));
        IMX_TRY(receive_message(t->sockets[rank], &theirs, sizeof theirs, &fd, rank));
    } while (theirs.swap < t->swaps);
    if (mine == IMBREX_OK)
        mine = fd >= 0 && theirs.bytes == own->bytes
                   ? t->desc.backend->memory_import(t->desc.device, fd, own, memory)
                   : imx_fail(IMBREX_PEER, "rank %d passed memory of %llu bytes, not %zu", rank,
                              (unsigned long long)theirs.bytes, own->bytes);
    close_fd(fd);
    return mine;
}

/* All send before any receives: a message is small, so that no send waits for its receiver.  A
 * failure ends nothing, for the peers' sake: all are sent something, all are heard; the first
 * failure is returned. */
static imbrex_status fds_swap(imx_transport *t, imx_memory *own, imx_memory **memories)
{
    int fd = -1;
    imbrex_status status = t->desc.backend->memory_export(own, &fd);
    offer mine = { .bytes = fd >= 0 ? own->bytes : 0, .swap = ++t->swaps };
    for (int i = 1; i < t->desc.size; i++) {
        int to = (t->desc.rank + i) % t->desc.size;
        if (!t->peers[to])
            continue;
        imbrex_status sent = send_message(t->sockets[to], &mine, sizeof mine, fd, to);
        status = status == IMBREX_OK ? sent : status;
    }
    close_fd(fd);
    int64_t deadline = deadline_from_now(t);
    for (int i = 1; i < t->desc.size; i++) {
        int from = (t->desc.rank + i) % t->desc.size;
        if (!t->peers[from])
            continue;
        imbrex_status got = import_from(t, from, own, status, deadline, &memories[from]);
        status = status == IMBREX_OK ? got : status;
    }
    return status;
}

static void *watch(void *arg)
{
    imx_transport *t = arg;
    int size = t->desc.size;
    struct pollfd *fds = NULL;
    if (imx_sys_alloc((size_t)size + 1, sizeof *fds, &fds) != IMBREX_OK)
        return NULL; /* deaths are then noticed by the waits' deadlines */
    for (int r = 0; r < size; r++)
        fds[r] = (struct pollfd){ .fd = t->sockets[r], .events = POLLRDHUP };
    fds[size] = (struct pollfd){ .fd = t->stop, .events = POLLIN };
    while (poll(fds, (nfds_t)size + 1, -1) >= 0 || errno == EINTR) {
        if (fds[size].revents)
            break;
        for (int r = 0; r < size; r++) {
            if (!fds[r].revents)
                continue;
            fds[r].fd = -1; /* poll skips it from here on */
            fds[r].revents = 0;
            t->gone(t->gone_ctx, r);
        }
    }
    free(fds);
    return NULL;
}

static imbrex_status fds_watch(imx_transport *t, const uint64_t *abort,
                               void (*gone)(void *ctx, int rank), void *ctx)
{
    t->abort = abort;
    t->gone = gone;
    t->gone_ctx = ctx;
    t->stop = imx_sys.eventfd(0, EFD_CLOEXEC);
    if (t->stop < 0)
        return imx_fail_errno("cannot make an eventfd");
    int error = imx_sys.thread_create(&t->watcher, watch, t);
    if (error)
        return imx_fail(IMBREX_SYSTEM, "cannot start a thread: %s", strerror(error));
    t->watching = true;
    return IMBREX_OK;
}

const imx_transport_kind imx_transport_local_fds = {
    .create = fds_create,
    .open = fds_open,
    .close = fds_close,
    .swap = fds_swap,
    .watch = fds_watch,
};
