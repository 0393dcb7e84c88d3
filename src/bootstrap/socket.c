/* socket.c - stream sockets over the table of system calls, none of which ever blocks but poll. */
#define _GNU_SOURCE
#include "socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "imbrex_device.h"

/* SLICE: of a wait, which is looked at no less often. */
enum { SLICE_MS = 50, NS_A_MS = 1000000 };

/* For so long the process was stopped while this thread waited here. */
static _Thread_local int64_t stopped_ns;

int64_t imx_socket_now_ms(void)
{
    return (imbrexd_now_ns() - stopped_ns) / NS_A_MS;
}

int64_t imx_socket_deadline(int64_t limit_ms)
{
    return imx_socket_now_ms() + imx_min(limit_ms, INT64_MAX / 4);
}

/* ---- Addresses ------------------------------------------------------------------------------- */

void imx_socket_unix_address(uint64_t name, imx_socket_address *out)
{
    *out = (imx_socket_address){ .length = 0 };
    snprintf(out->text, sizeof out->text, "@imbrex-%016llx", (unsigned long long)name);
    struct sockaddr_un *un = (struct sockaddr_un *)&out->at;
    un->sun_family = AF_UNIX;
    size_t bytes = strlen(out->text);
    memcpy(un->sun_path, out->text, bytes);
    un->sun_path[0] = '\0'; /* what makes it abstract */
    out->length = (unsigned)(offsetof(struct sockaddr_un, sun_path) + bytes);
}

void imx_socket_set_port(imx_socket_address *address, int port)
{
    char host[64] = "?";
    if (address->at.ss_family == AF_INET6) {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address->at;
        six->sin6_port = htons((uint16_t)port);
        inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        snprintf(address->text, sizeof address->text, "[%s]:%d", host, port);
    } else {
        struct sockaddr_in *four = (struct sockaddr_in *)&address->at;
        four->sin_port = htons((uint16_t)port);
        inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        snprintf(address->text, sizeof address->text, "%s:%d", host, port);
    }
}

int imx_socket_resolve(const char *host, imx_socket_address *out, int max, const char **why)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *found;
    int error = getaddrinfo(host, NULL, &hints, &found);
    if (error) {
        *why = gai_strerror(error);
        return 0;
    }
    int count = 0;
    for (const struct addrinfo *i = found; i && count < max; i = i->ai_next) {
        if (i->ai_family != AF_INET && i->ai_family != AF_INET6)
            continue;
        out[count] = (imx_socket_address){ .length = i->ai_addrlen };
        memcpy(&out[count].at, i->ai_addr, i->ai_addrlen);
        imx_socket_set_port(&out[count++], 0);
    }
    freeaddrinfo(found);
    *why = "it has no internet address";
    return count;
}

/* ---- Listening and connecting ---------------------------------------------------------------- */

static int close_keeping_errno(int fd)
{
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

int imx_socket_listen(const imx_socket_address *address)
{
    int fd = imx_sys.socket(address->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    /* Else a port stays busy for a minute after a group that used it. */
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (imx_sys.bind(fd, (const struct sockaddr *)&address->at, address->length) ||
        imx_sys.listen(fd, SOMAXCONN))
        return close_keeping_errno(fd);
    return fd;
}

/* Failures that mean "nobody there, maybe later", as opposed to a broken machine.  EAGAIN: a unix
 * socket's queue is full. */
static bool is_absence(int error)
{
    static const int absences[] = { EAGAIN,       ECONNREFUSED, ECONNRESET, ECONNABORTED,
                                    EPIPE,        ENOENT,       ETIMEDOUT,  EHOSTUNREACH,
                                    EHOSTDOWN,    ENETUNREACH,  ENETDOWN,   EADDRNOTAVAIL,
                                    EAFNOSUPPORT, EINTR,        EPROTOTYPE };
    for (size_t i = 0; i < sizeof absences / sizeof *absences; i++)
        if (error == absences[i])
            return true;
    return false;
}

static imx_socket_result finish_connect(int fd, int64_t deadline)
{
    struct pollfd ready = { .fd = fd, .events = POLLOUT };
    imx_socket_result result = imx_socket_poll(&ready, 1, deadline, NULL);
    if (result != IMX_SOCKET_DONE)
        return result;
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    errno = error;
    return !error ? IMX_SOCKET_DONE : is_absence(error) ? IMX_SOCKET_GONE : IMX_SOCKET_BROKEN;
}

imx_socket_result imx_socket_connect(const imx_socket_address *address, int64_t deadline, int *out)
{
    imx_socket_result result = IMX_SOCKET_DONE;
    int fd = imx_sys.socket(address->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0 || imx_sys.connect(fd, (const struct sockaddr *)&address->at, address->length)) {
        if (fd >= 0 && errno == EINPROGRESS)
            result = finish_connect(fd, deadline);
        else
            result = is_absence(errno) ? IMX_SOCKET_GONE : IMX_SOCKET_BROKEN;
    }
    if (result != IMX_SOCKET_DONE) {
        close_keeping_errno(fd);
        return result;
    }
    imx_socket_no_delay(fd);
    *out = fd;
    return IMX_SOCKET_DONE;
}

void imx_socket_no_delay(int fd)
{
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int domain_of(int fd)
{
    int domain = 0;
    socklen_t bytes = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) ? -1 : domain;
}

int64_t imx_socket_user(int fd)
{
    struct ucred other;
    socklen_t bytes = sizeof other;
    bool known =
        domain_of(fd) == AF_UNIX && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes);
    return known ? (int64_t)other.uid : -1;
}

bool imx_socket_same_user(int fd)
{
    int domain = domain_of(fd);
    return domain == AF_UNIX ? imx_socket_user(fd) == (int64_t)geteuid() : domain >= 0;
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

static imx_socket_result move(int fd, imx_socket_span *span, bool out)
{
    while (span->left > 0) {
        struct iovec part = { span->at, span->left };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
        long moved = out ? imx_sys.sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                         : imx_sys.recvmsg(fd, &message, MSG_DONTWAIT);
        if (moved > 0) {
            span->at += moved;
            span->left -= (size_t)moved;
        } else if (moved == 0) {
            return IMX_SOCKET_GONE;
        } else if (errno == EAGAIN) {
            return IMX_SOCKET_AGAIN;
        } else if (errno != EINTR) {
            return is_absence(errno) ? IMX_SOCKET_GONE : IMX_SOCKET_BROKEN;
        }
    }
    return IMX_SOCKET_DONE;
}

imx_socket_result imx_socket_send(int fd, imx_socket_span *span)
{
    return move(fd, span, true);
}

imx_socket_result imx_socket_recv(int fd, imx_socket_span *span)
{
    return move(fd, span, false);
}

static imx_socket_result move_all(int fd, imx_socket_span *span, bool out, int64_t deadline,
                                  const uint64_t *abort)
{
    imx_socket_result result;
    while ((result = move(fd, span, out)) == IMX_SOCKET_AGAIN) {
        struct pollfd ready = { .fd = fd, .events = out ? POLLOUT : POLLIN };
        result = imx_socket_poll(&ready, 1, deadline, abort);
        if (result != IMX_SOCKET_DONE)
            return result;
    }
    return result;
}

imx_socket_result imx_socket_send_all(int fd, const void *from, size_t bytes, int64_t deadline)
{
    imx_socket_span span = { (char *)(uintptr_t)from, bytes }; /* sendmsg's iovec is not const */
    return move_all(fd, &span, true, deadline, NULL);
}

imx_socket_result imx_socket_recv_all(int fd, void *to, size_t bytes, int64_t deadline,
                                      const uint64_t *abort)
{
    imx_socket_span span = { to, bytes };
    return move_all(fd, &span, false, deadline, abort);
}

imx_socket_result imx_socket_poll(struct pollfd *fds, size_t count, int64_t deadline,
                                  const uint64_t *abort)
{
    for (;;) {
        int64_t left_ms = imx_max(deadline - imx_socket_now_ms(), 0);
        int64_t looked_ns = imbrexd_now_ns();
        /* acquire: the fault was written before the word */
        bool aborted = abort && __atomic_load_n(abort, __ATOMIC_ACQUIRE);
        int ready = imx_sys.poll(fds, count, aborted ? 0 : (int)imx_min(left_ms, SLICE_MS));
        stopped_ns += imbrexd_pause_ns(imbrexd_now_ns() - looked_ns,
                                       imx_min(left_ms, IMX_TIMEOUT_MS) * NS_A_MS);
        if (ready > 0)
            return IMX_SOCKET_DONE;
        if (ready < 0 && errno != EINTR)
            return IMX_SOCKET_BROKEN;
        if (aborted || left_ms == 0)
            return aborted ? IMX_SOCKET_ABORTED : IMX_SOCKET_LATE;
    }
}
