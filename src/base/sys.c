/* sys.c - the table of system calls that a test can make fail, and the one allocator. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "imx.h"
#include "signals.h"

/* Everything with a descriptor is close-on-exec: a program that a rank starts must not keep the
 * rank's memory or connections alive. */

static int sys_memfd_create(const char *name, unsigned flags)
{
    return memfd_create(name, flags | MFD_CLOEXEC);
}

static int sys_ftruncate(int fd, long bytes)
{
    return ftruncate(fd, bytes);
}

static int sys_fallocate(int fd, long at, long bytes)
{
    return fallocate(fd, 0, at, bytes);
}

static void *sys_mmap(void *at, size_t bytes, int protection, int flags, int fd, long offset)
{
    return mmap(at, bytes, protection, flags, fd, offset);
}

static int sys_dup(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static int sys_socket(int domain, int type, int protocol)
{
    return socket(domain, type | SOCK_CLOEXEC, protocol);
}

static int sys_bind(int fd, const struct sockaddr *address, unsigned length)
{
    return bind(fd, address, length);
}

static int sys_accept(int fd, struct sockaddr *address, unsigned *length)
{
    return accept4(fd, address, length, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static int sys_connect(int fd, const struct sockaddr *address, unsigned length)
{
    return connect(fd, address, length);
}

static long sys_sendmsg(int fd, const struct msghdr *message, int flags)
{
    return sendmsg(fd, message, flags | MSG_NOSIGNAL);
}

static long sys_recvmsg(int fd, struct msghdr *message, int flags)
{
    return recvmsg(fd, message, flags | MSG_CMSG_CLOEXEC);
}

static int sys_poll(struct pollfd *fds, unsigned long count, int timeout_ms)
{
    return poll(fds, count, timeout_ms);
}

static int sys_eventfd(unsigned value, int flags)
{
    return eventfd(value, flags | EFD_CLOEXEC);
}

/* A thread's stack is as large as the program's may become (ulimit -s), or as a C library has it:
 * for products and callers' kernels that may be too little. */
static int set_stack(pthread_attr_t *attributes)
{
    enum { LEAST = 1 << 20 };
    size_t bytes;
    int error = pthread_attr_getstacksize(attributes, &bytes);
    return error || bytes >= LEAST ? error : pthread_attr_setstacksize(attributes, LEAST);
}

static int sys_thread_create(unsigned long *thread, void *(*run)(void *), void *arg)
{
    sigset_t others = imx_signals_of_others(), before;
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    error = set_stack(&attributes);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    if (!error)
        error = pthread_create(thread, &attributes, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

imx_sys_table imx_sys = {
    .calloc = calloc,
    .aligned_alloc = aligned_alloc,
    .memfd_create = sys_memfd_create,
    .ftruncate = sys_ftruncate,
    .fallocate = sys_fallocate,
    .mmap = sys_mmap,
    .dup = sys_dup,
    .socket = sys_socket,
    .bind = sys_bind,
    .listen = listen,
    .accept = sys_accept,
    .connect = sys_connect,
    .sendmsg = sys_sendmsg,
    .recvmsg = sys_recvmsg,
    .poll = sys_poll,
    .eventfd = sys_eventfd,
    .thread_create = sys_thread_create,
};

imbrex_status imx_sys_alloc(size_t count, size_t bytes, void *out)
{
    size_t total;
    void *memory = NULL;
    if (!__builtin_mul_overflow(count, bytes, &total))
        memory = total > 0 ? imx_sys.calloc(count, bytes) : imx_sys.calloc(1, 1);
    if (!memory)
        return imx_fail(IMBREX_NO_MEMORY, "no host memory for %zu times %zu bytes", count, bytes);
    *(void **)out = memory;
    return IMBREX_OK;
}

/* rt_sigprocmask reads a mask there before it finds that it knows of nothing to do with it.  Where
 * a sandbox forbids the call memory counts as there. */
static bool can_read_mask(uintptr_t at)
{
    enum { NOTHING = -1, MASK_BYTES = 8 };
    at &= ~(uintptr_t)(MASK_BYTES - 1);
    return syscall(SYS_rt_sigprocmask, NOTHING, at, NULL, MASK_BYTES) == 0 || errno != EFAULT;
}

enum { PAGE = 4096 }; /* the least that there is */

bool imx_sys_can_read(const void *at, size_t bytes)
{
    uintptr_t last, next = (uintptr_t)at;
    if (__builtin_add_overflow(next, bytes - 1, &last))
        return false;
    for (; next < last; next = (next | (PAGE - 1)) + 1)
        if (!can_read_mask(next))
            return false;
    return can_read_mask(last);
}

bool imx_sys_can_read_string(const char *text)
{
    for (;;) {
        size_t rest = PAGE - (uintptr_t)text % PAGE;
        if (!can_read_mask((uintptr_t)text))
            return false;
        if (strnlen(text, rest) < rest)
            return true;
        text += rest;
    }
}

bool imx_sys_write_all(int fd, const void *from, size_t bytes)
{
    for (size_t put = 0; put < bytes;) {
        ssize_t n = write(fd, (const char *)from + put, bytes - put);
        if (n < 0 && errno != EINTR)
            return false;
        put += n > 0 ? (size_t)n : 0;
    }
    return true;
}
