/* rooms.c - counts OpenBLAS's rooms by their addresses, and the products that are in them. */
#define _GNU_SOURCE
#include "rooms.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

/* OpenBLAS's own, by which it takes a room for a product.  Weak: with another CBLAS, or none, there
 * is nothing to count. */
extern void *blas_memory_alloc(int unused) __attribute__((weak));
extern void blas_memory_free(void *room) __attribute__((weak));
extern int blas_num_threads __attribute__((weak)); /* that it has started, with the caller's */

enum { ROOM_BYTES = 128 << 20, SPARE_BYTES = 4 << 20, ROOMS_MOST = 2048 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static void *rooms[ROOMS_MOST]; /* under lock */
static uint32_t count;          /* of them; atomic, changed under lock */
static uint32_t used;           /* atomic */
static uint32_t waiting;        /* atomic: for a product to leave; changed under lock */

/* ---- a child of fork ------------------------------------------------------------------------- */

static void hold(void)
{
    pthread_mutex_lock(&lock);
}

static void let_go(void)
{
    pthread_mutex_unlock(&lock);
}

/* Products of threads that are not here never leave their rooms, which OpenBLAS, too, keeps for
 * them. */
static void begin_child(void)
{
    used = count = waiting = 0;
    left = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pthread_mutex_unlock(&lock);
}

static void begin(void)
{
    pthread_atfork(hold, let_go, begin_child);
}

/* ---- one more -------------------------------------------------------------------------------- */

/* As OpenBLAS asks for it, so that whatever would refuse it refuses this: limits on addresses and
 * on data, memory that is not overcommitted, the number of mappings. */
static bool is_to_be_had(void)
{
    size_t bytes = ROOM_BYTES + SPARE_BYTES;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return false;
    munmap(at, bytes);
    return true;
}

static bool is_known(const void *room)
{
    uint32_t i = 0;
    while (i < count && rooms[i] != room)
        i++;
    return i < count;
}

/* Under lock.  A room that is known has been left since, and its product only has yet to say so. */
static bool add_room(void)
{
    if (count == ROOMS_MOST || !is_to_be_had())
        return false;
    void *room = blas_memory_alloc(0);
    if (!room)
        return false;
    bool added = !is_known(room);
    if (added) {
        rooms[count] = room;
        __atomic_store_n(&count, count + 1, __ATOMIC_RELAXED);
    }
    blas_memory_free(room);
    return added;
}

static const struct {
    int which;
    const char *name;
} limits[] = { { RLIMIT_AS, "RLIMIT_AS (ulimit -v)" }, { RLIMIT_DATA, "RLIMIT_DATA (ulimit -d)" } };

enum { LIMITS = sizeof limits / sizeof limits[0] };

/* In kB; 0: there is none. */
static unsigned long long limit_of(int i)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)limits[i].which, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY)
        return 0;
    return (unsigned long long)limit.rlim_cur / 1024;
}

static void explain(char *why, size_t size)
{
    char also[160] = "";
    int error = errno, length = 0;
    for (int i = 0; i < LIMITS; i++) {
        if (limit_of(i))
            length += snprintf(also + length, sizeof also - (size_t)length, "; %s is %llu kB",
                               limits[i].name, limit_of(i));
    }
    snprintf(why, size,
             "OpenBLAS wants %d MiB of addresses for products, and they are not to be had: %s%s",
             (ROOM_BYTES + SPARE_BYTES) >> 20, strerror(error), also);
}

/* Each thread that OpenBLAS has started takes a room for good as it begins, maybe the one that is
 * counted here.  Where rooms are few they get time to do so first. */
static void await_others(void)
{
    const struct timespec nap = { .tv_nsec = 100000000 };
    if (&blas_num_threads && blas_num_threads > 1 && (limit_of(0) || limit_of(1)))
        nanosleep(&nap, NULL);
}

bool imx_gemm_rooms_ready(char *why, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!blas_memory_alloc || !blas_memory_free)
        return true;
    pthread_once(&once, begin);
    pthread_mutex_lock(&lock);
    if (!count)
        await_others();
    bool ready = count > 0 || add_room();
    if (!ready)
        explain(why, size);
    pthread_mutex_unlock(&lock);
    return ready;
}

/* ---- products -------------------------------------------------------------------------------- */

/* relaxed: a number by itself. */
static bool try_enter(void)
{
    uint32_t now = __atomic_load_n(&used, __ATOMIC_SEQ_CST);
    while (now < __atomic_load_n(&count, __ATOMIC_RELAXED)) {
        if (__atomic_compare_exchange_n(&used, &now, now + 1, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return true;
    }
    return false;
}

/* Says that it waits before it looks again: who leaves looks for that when it has left.  Both are
 * seq_cst, so that one sees the other. */
void imx_gemm_rooms_enter(void)
{
    if (!blas_memory_alloc || !blas_memory_free || try_enter())
        return;
    pthread_mutex_lock(&lock);
    __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    while (!try_enter()) {
        if (!add_room())
            pthread_cond_wait(&left, &lock);
    }
    __atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&lock);
}

void imx_gemm_rooms_leave(void)
{
    if (!blas_memory_alloc || !blas_memory_free)
        return;
    __atomic_sub_fetch(&used, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&waiting, __ATOMIC_SEQ_CST))
        return;
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&left);
    pthread_mutex_unlock(&lock);
}
