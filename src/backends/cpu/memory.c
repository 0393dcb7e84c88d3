/* memory.c - CPU memory is a memfd: nothing of it has a name that could outlive its ranks. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cpu.h"

typedef struct cpu_memory {
    imx_memory public;
    int fd;        /* -1 for a peer's */
    uint32_t refs; /* ranks of this process that use the mapping; atomic */
} cpu_memory;

static imbrex_status map(int fd, size_t bytes, imx_memory **out)
{
    cpu_memory *memory = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *memory, &memory));
    void *base = imx_sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        free(memory);
        return imx_fail_errno("cannot map %zu bytes of memory", bytes);
    }
    memory->public = (imx_memory){ .base = base, .bytes = bytes };
    memory->fd = -1;
    memory->refs = 1;
    *out = &memory->public;
    return IMBREX_OK;
}

imbrex_status imx_cpu_memory_create(imx_device *device, size_t bytes, imx_memory **out)
{
    (void)device;
    int fd = imx_sys.memfd_create("imbrex", MFD_CLOEXEC);
    if (fd < 0)
        return imx_fail_errno("cannot create %zu bytes of shared memory (memfd)", bytes);
    imbrex_status status;
    if (imx_sys.ftruncate(fd, (long)bytes) != 0) {
        status = imx_fail_errno("cannot size shared memory to %zu bytes", bytes);
        goto fail;
    }
    IMX_GOTO(map(fd, bytes, out));
    ((cpu_memory *)*out)->fd = fd;
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
    (void)device;
    struct stat found;
    if (fstat(fd, &found) != 0)
        return imx_fail_errno("cannot look at a peer's memory");
    if ((size_t)found.st_size < like->bytes) /* to touch it past its end would be SIGBUS */
        return imx_fail(IMBREX_PEER, "a peer's memory has %lld bytes, not %zu",
                        (long long)found.st_size, like->bytes);
    return map(fd, like->bytes, out);
}

imbrex_status imx_cpu_memory_share(imx_device *device, imx_memory *of_peer, imx_memory **out)
{
    (void)device;
    /* relaxed: the owner holds its own reference until all ranks have theirs */
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
    munmap(public->base, public->bytes);
    if (memory->fd >= 0)
        close(memory->fd);
    free(memory);
}
