/* fake_memory.c - memory is a memfd; cuMem's handle is its descriptor + 1, cudaIpc's says in which
 * process it is which descriptor. */
#define _GNU_SOURCE
#include "fake_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_nvrtc.h"
#include "sanitized.h"

enum { PAGE = 65536, RANGES_MOST = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- whose memory ---------------------------------------------------------------------------- */

/* Addresses at which a GPU's memory is mapped, in this process.  A file's name says whose it is, so
 * that another process knows, too. */
static struct range {
    CUdeviceptr at;
    size_t bytes;
    int gpu;
} ranges[RANGES_MOST];

static int memory_of(int gpu)
{
    char name[32];
    snprintf(name, sizeof name, "fake gpu %d", gpu);
    return memfd_create(name, MFD_CLOEXEC);
}

static void note_range(CUdeviceptr at, size_t bytes, int fd)
{
    char path[64], name[64] = "";
    int gpu = -1, i = 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, name, sizeof name - 1) < 0 || sscanf(name, "/memfd:fake gpu %d", &gpu) != 1)
        abort();
    pthread_mutex_lock(&lock);
    while (i < RANGES_MOST && ranges[i].bytes)
        i++;
    if (i == RANGES_MOST)
        abort(); /* the test cannot go on */
    ranges[i] = (struct range){ at, bytes, gpu };
    pthread_mutex_unlock(&lock);
}

static void forget_range(CUdeviceptr at)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MOST; i++) {
        if (ranges[i].at == at)
            ranges[i].bytes = 0;
    }
    pthread_mutex_unlock(&lock);
}

int fake_memory_gpu(const void *where)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)where;
    int gpu = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MOST && gpu < 0; i++) {
        if (at - ranges[i].at < ranges[i].bytes)
            gpu = ranges[i].gpu;
    }
    pthread_mutex_unlock(&lock);
    return gpu;
}

/* Much that becomes zero is taken out of the file: pages that nobody writes are never there.  Where
 * threads are watched all is written, so that who comes too early is seen. */
void fake_memory_fill(void *at, int value, size_t bytes)
{
    char *from = at, *page = (char *)(((uintptr_t)at + PAGE - 1) & -(uintptr_t)PAGE);
    char *end = (char *)((uintptr_t)(from + bytes) & -(uintptr_t)PAGE);
    if (SANITIZED_THREADS || value || page >= end ||
        madvise(page, (size_t)(end - page), MADV_REMOVE) != 0) {
        memset(at, value, bytes);
        return;
    }
    memset(from, 0, (size_t)(page - from));
    memset(end, 0, (size_t)(from + bytes - end));
}

static void *pointer(CUdeviceptr at)
{
    return (void *)(uintptr_t)at;
}

/* ---- cuMem: memory, addresses, and memory at addresses --------------------------------------- */

CUresult fake_memory_granularity(size_t *bytes, const CUmemAllocationProp *prop, int which)
{
    (void)prop;
    (void)which;
    *bytes = PAGE;
    return fake_driver_in_context("cuMemGetAllocationGranularity");
}

CUresult fake_memory_create(CUmemHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                            unsigned long long flags)
{
    (void)flags;
    if (prop->type != CU_MEM_PINNED || prop->location.type != CU_MEM_LOCATION_DEVICE ||
        prop->handle_types != CU_MEM_POSIX_FD || bytes % PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    FAKE_TRY(fake_driver_outside_capture("cuMemCreate"));
    int fd = memory_of(prop->location.id);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUmemHandle)fd + 1;
    fake_driver_count(1);
    return CUDA_SUCCESS;
}

CUresult fake_memory_release(CUmemHandle handle)
{
    fake_driver_count(-1);
    return close((int)handle - 1) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult fake_memory_reserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
    (void)alignment;
    (void)wish;
    (void)flags;
    FAKE_TRY(fake_driver_outside_capture("cuMemAddressReserve"));
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *at = (CUdeviceptr)(uintptr_t)base;
    fake_driver_count(1);
    return CUDA_SUCCESS;
}

CUresult fake_memory_unreserve(CUdeviceptr at, size_t bytes)
{
    fake_driver_count(-1);
    return munmap(pointer(at), bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult fake_memory_map(CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle,
                         unsigned long long flags)
{
    (void)flags;
    struct stat found;
    FAKE_TRY(fake_driver_outside_capture("cuMemMap"));
    if (fstat((int)handle - 1, &found) != 0 || (size_t)found.st_size != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap(pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle - 1,
             (off_t)offset) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    note_range(at, bytes, (int)handle - 1);
    fake_driver_count(1);
    return CUDA_SUCCESS;
}

CUresult fake_memory_unmap(CUdeviceptr at, size_t bytes)
{
    forget_range(at);
    fake_driver_count(-1);
    void *base = mmap(pointer(at), bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return base == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult fake_memory_import(CUmemHandle *handle, void *from, int type)
{
    FAKE_TRY(fake_driver_outside_capture("cuMemImportFromShareableHandle"));
    int fd = fcntl((int)(intptr_t)from, F_DUPFD_CLOEXEC, 0);
    if (type != CU_MEM_POSIX_FD || fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUmemHandle)fd + 1;
    fake_driver_count(1);
    return CUDA_SUCCESS;
}

/* ---- cuMemAlloc and cudaIpc ------------------------------------------------------------------ */

typedef struct piece {
    struct piece *next;
    CUdeviceptr at;
    size_t bytes;
    int fd;
    bool opened; /* another process's */
} piece;

typedef struct handle_words {
    int process, fd;
    size_t bytes;
} handle_words;

static piece *pieces;

static CUresult keep(int fd, size_t bytes, bool opened, CUdeviceptr *at)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    piece *p = calloc(1, sizeof *p);
    if (base == MAP_FAILED || !p)
        abort(); /* the test cannot go on */
    *p = (piece){ NULL, (CUdeviceptr)(uintptr_t)base, bytes, fd, opened };
    note_range(p->at, bytes, fd);
    pthread_mutex_lock(&lock);
    p->next = pieces;
    pieces = p;
    pthread_mutex_unlock(&lock);
    fake_driver_count(1);
    *at = p->at;
    return CUDA_SUCCESS;
}

/* Out of the list, if it is there and of that kind. */
static piece *take(CUdeviceptr at, bool opened)
{
    pthread_mutex_lock(&lock);
    piece **where = &pieces;
    while (*where && ((*where)->at != at || (*where)->opened != opened))
        where = &(*where)->next;
    piece *p = *where;
    if (p)
        *where = p->next;
    pthread_mutex_unlock(&lock);
    return p;
}

static CUresult drop(CUdeviceptr at, bool opened)
{
    piece *p = take(at, opened);
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    forget_range(at);
    munmap(pointer(at), p->bytes);
    close(p->fd);
    free(p);
    fake_driver_count(-1);
    return CUDA_SUCCESS;
}

CUresult fake_memory_alloc(CUdeviceptr *at, size_t bytes)
{
    FAKE_TRY(fake_driver_outside_capture("cuMemAlloc"));
    int fd = memory_of(fake_driver_gpu());
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return keep(fd, bytes, false, at);
}

CUresult fake_memory_free(CUdeviceptr at)
{
    return drop(at, false);
}

CUresult fake_memory_handle(CUipcHandle *handle, CUdeviceptr at)
{
    FAKE_TRY(fake_driver_outside_capture("cuIpcGetMemHandle"));
    pthread_mutex_lock(&lock);
    const piece *p = pieces;
    while (p && (p->at != at || p->opened))
        p = p->next;
    if (p) {
        handle_words words = { getpid(), p->fd, p->bytes };
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &words, sizeof words);
    }
    pthread_mutex_unlock(&lock);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* As the real one: not in the process that made the handle. */
CUresult fake_memory_open(CUdeviceptr *at, CUipcHandle handle, unsigned flags)
{
    FAKE_TRY(fake_driver_outside_capture("cuIpcOpenMemHandle"));
    handle_words words;
    char path[64];
    memcpy(&words, &handle, sizeof words);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", words.process, words.fd);
    if (flags != CU_IPC_LAZY_ENABLE_PEER_ACCESS || words.process == getpid())
        return CUDA_ERROR_INVALID_VALUE;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd < 0 ? CUDA_ERROR_INVALID_HANDLE : keep(fd, words.bytes, true, at);
}

CUresult fake_memory_close(CUdeviceptr at)
{
    return drop(at, true);
}
