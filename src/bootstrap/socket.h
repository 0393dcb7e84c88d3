/* socket.h - non-blocking stream sockets: addresses, listening, connecting, moving bytes. */
#ifndef IMX_SOCKET_H
#define IMX_SOCKET_H

#include <sys/socket.h>

#include "base/imx.h"

typedef enum imx_socket_result {
    IMX_SOCKET_DONE,
    IMX_SOCKET_AGAIN,   /* not yet: poll, and call again */
    IMX_SOCKET_GONE,    /* the other side closed, or nobody is there */
    IMX_SOCKET_LATE,    /* the deadline passed */
    IMX_SOCKET_ABORTED, /* the group has failed meanwhile: its abort word says so */
    IMX_SOCKET_BROKEN   /* a system call failed; errno says why */
} imx_socket_result;

typedef struct imx_socket_address {
    struct sockaddr_storage at;
    unsigned length;
    char text[80]; /* for people: "127.0.0.1:29501", "@imbrex-..." */
} imx_socket_address;

/* Bytes still to be sent or received. */
typedef struct imx_socket_span {
    char *at;
    size_t left;
} imx_socket_span;

/* Deadlines are points of this clock, each thread's own: it leaves out what imx_socket_poll found
 * to be time in which the process was stopped.  A limit that is too long for it counts as none. */
int64_t imx_socket_now_ms(void);
int64_t imx_socket_deadline(int64_t limit_ms);

/* Abstract: gone with its last descriptor, nothing stays in the file system. */
void imx_socket_unix_address(uint64_t name, imx_socket_address *out);

/* The first max addresses of host at *out, port 0; returns how many, or 0 with *why. */
int imx_socket_resolve(const char *host, imx_socket_address *out, int max, const char **why);
void imx_socket_set_port(imx_socket_address *address, int port);

/* A listening socket, or -1 with errno. */
int imx_socket_listen(const imx_socket_address *address) IMX_MUST_CHECK;

/* Connects by the deadline.  GONE: nobody listens there now. */
imx_socket_result imx_socket_connect(const imx_socket_address *address, int64_t deadline,
                                     int *fd) IMX_MUST_CHECK;

/* Answers at once, whatever Nagle thinks.  Nothing on a unix socket. */
void imx_socket_no_delay(int fd);

/* Whose process is at the other end of a unix socket; -1: not known, or no unix socket. */
int64_t imx_socket_user(int fd);

/* False if fd is a unix socket whose other end belongs to another user. */
bool imx_socket_same_user(int fd);

/* Move as much of the span as goes without waiting. */
imx_socket_result imx_socket_send(int fd, imx_socket_span *span) IMX_MUST_CHECK;
imx_socket_result imx_socket_recv(int fd, imx_socket_span *span) IMX_MUST_CHECK;

/* Move all of it by the deadline.  abort: as in imx_socket_poll. */
imx_socket_result imx_socket_send_all(int fd, const void *from, size_t bytes,
                                      int64_t deadline) IMX_MUST_CHECK;
imx_socket_result imx_socket_recv_all(int fd, void *to, size_t bytes, int64_t deadline,
                                      const uint64_t *abort) IMX_MUST_CHECK;

/* poll(2) until something is ready (DONE), or LATE, or BROKEN; or ABORTED, soon after *abort is not
 * 0 any more.  abort NULL: nobody says so. */
imx_socket_result imx_socket_poll(struct pollfd *fds, size_t count, int64_t deadline,
                                  const uint64_t *abort) IMX_MUST_CHECK;

#endif /* IMX_SOCKET_H */
