/* memory.c - CPU memory is a memfd: nothing of it has a name that could outlive its ranks. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cpu.h"

typedef struct cpu_memory {
    imx_memory public;
    int fd;        /* -1 for a peer's */
    size_t mapped; /* bytes, with the guard */
    uint32_t refs; /* ranks of this process that use the mapping; atomic */
} cpu_memory;

/* The guard is addresses that nobody may touch and nobody else gets. */
static void *map_before_guard(int fd, size_t bytes, size_t guard)
{
    const int unused = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = imx_sys.mmap(NULL, bytes + guard, PROT_NONE, unused, -1, 0);
    if (at == MAP_FAILED)
        return at;
    void *base = imx_sys.mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (base == MAP_FAILED)
        munmap(at, bytes + guard);
    return base;
}

static imbrex_status map(const imx_device *device, int fd, size_t bytes, imx_memory **out)
{
    cpu_memory *memory = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *memory, &memory));
    size_t guard = device->check ? IMX_CPU_CHECK_GUARD : 0;
    void *base = guard ? map_before_guard(fd, bytes, guard)
                       : imx_sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        int error = errno;
        char what[64];
        free(memory);
        snprintf(what, sizeof what, "map %zu bytes of memory", bytes);
        return imx_cpu_room_refused(what, error);
    }
    memory->public = (imx_memory){ .base = base, .bytes = bytes };
    memory->mapped = bytes + guard;
    memory->fd = -1;
    memory->refs = 1;
    *out = &memory->public;
    return IMBREX_OK;
}

enum { STEP_BYTES_LEAST = 4096 };

/* Gives the file its pages, so that a lack of memory is a status of this call, and not the end of
 * whoever first touches a page. */
static imbrex_status fill(imx_device *device, int fd, size_t bytes)
{
    size_t step = IMX_CPU_ROOM_STEP;
    for (size_t at = 0; at < bytes;) {
        size_t part = (size_t)imx_min((int64_t)step, (int64_t)(bytes - at));
        if (at > 0)
            IMX_TRY(imx_cpu_room_check(device, bytes, at));
        if (imx_sys.fallocate(fd, (long)at, (long)part) == 0) {
            at += part;
            step = IMX_CPU_ROOM_STEP;
        } else if (errno == EINTR) { /* a timer of the caller's: less at a time */
            step = (size_t)imx_max(STEP_BYTES_LEAST, (int64_t)step / 2);
        } else if (errno == EOPNOTSUPP || errno == ENOSYS) {
            return IMBREX_OK; /* pages come as they are touched */
        } else if (errno == ENOSPC) {
            return imx_fail(IMBREX_NO_MEMORY, "cannot take %zu bytes of memory: there are %zu",
                            bytes, at);
        } else {
            return imx_fail_errno("cannot take %zu bytes of memory", bytes);
        }
    }
    return IMBREX_OK;
}

/* Beyond this limit ftruncate would not only fail, but send SIGXFSZ. */
static imbrex_status check_file_limit(size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        bytes > limit.rlim_cur)
        return imx_fail(IMBREX_NO_MEMORY,
                        "cannot take %zu bytes of memory: RLIMIT_FSIZE (ulimit -f) is %llu", bytes,
                        (unsigned long long)limit.rlim_cur);
    return IMBREX_OK;
}

imbrex_status imx_cpu_memory_create(imx_device *device, size_t bytes, imx_memory **out)
{
    IMX_TRY(check_file_limit(bytes));
    IMX_TRY(imx_cpu_room_check(device, bytes, 0));
    int fd = imx_sys.memfd_create("imbrex", MFD_CLOEXEC);
    if (fd < 0)
        return imx_fail_errno("cannot create %zu bytes of shared memory (memfd)", bytes);
    imbrex_status status;
    if (imx_sys.ftruncate(fd, (long)bytes) != 0) {
        status = imx_fail_errno("cannot size shared memory to %zu bytes", bytes);
        goto fail;
    }
    imx_memory *memory = NULL;
    IMX_GOTO(map(device, fd, bytes, &memory));
    ((cpu_memory *)memory)->fd = fd;
    status = fill(device, fd, bytes);
    if (status != IMBREX_OK) {
        imx_cpu_memory_release(memory);
        return status;
    }
    imx_cpu_check_memory(device, memory);
    *out = memory;
    return IMBREX_OK;
fail:
    close(fd);
    return status;
}

imbrex_status imx_cpu_memory_export(imx_memory *memory, int *out)
{
    int fd = imx_sys.dup(((cpu_memory *)memory)->fd);
    if (fd < 0)
        return imx_fail_errno("cannot duplicate the descriptor of shared memory");
    *out = fd;
    return IMBREX_OK;
}

imbrex_status imx_cpu_memory_import(imx_device *device, int fd, const imx_memory *like,
                                    imx_memory **out)
{
    struct stat found;
    if (device->check)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "IMBREX_CHECK sees ranks that are threads of one process, and rank %d has "
                        "peers in others: start them as threads, as examples/threads.c does, or "
                        "unset it",
                        device->rank);
    if (fstat(fd, &found) != 0)
        return imx_fail_errno("cannot look at a peer's memory");
    if ((size_t)found.st_size < like->bytes) /* to touch it past its end would be SIGBUS */
        return imx_fail(IMBREX_PEER, "a peer's memory has %lld bytes, not %zu",
                        (long long)found.st_size, like->bytes);
    return map(device, fd, like->bytes, out);
}

imbrex_status imx_cpu_memory_share(imx_device *device, imx_memory *of_peer, imx_memory **out)
{
    (void)device;
    /* relaxed: the owner holds its own reference meanwhile */
    __atomic_add_fetch(&((cpu_memory *)of_peer)->refs, 1, __ATOMIC_RELAXED);
    *out = of_peer;
    return IMBREX_OK;
}

void imx_cpu_memory_release(imx_memory *public)
{
    cpu_memory *memory = (cpu_memory *)public;
    /* acq_rel: the last one unmaps after everything that the others did with the memory */
    if (!memory || __atomic_sub_fetch(&memory->refs, 1, __ATOMIC_ACQ_REL))
        return;
    imx_cpu_check_memory_gone(public);
    munmap(public->base, memory->mapped);
    if (memory->fd >= 0)
        close(memory->fd);
    free(memory);
}
