/* process.c - a word that is empty in every child of fork: the kernel wipes its page there.  An old
 * kernel that cannot leaves it to fork's handlers, which a bare clone does not call. */
#define _GNU_SOURCE
#include "process.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t kept;          /* where no page can be had */
static uint64_t *word = &kept; /* this process's number; 0: it has none yet */
static uint64_t last;          /* number given; a child begins with its parent's */

static pthread_mutex_t locks[IMX_LOCKS] = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
                                            PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
                                            PTHREAD_MUTEX_INITIALIZER };

void imx_process_lock(imx_process_locks which)
{
    pthread_mutex_lock(&locks[which]);
}

void imx_process_unlock(imx_process_locks which)
{
    pthread_mutex_unlock(&locks[which]);
}

static void hold(void)
{
    for (int i = 0; i < IMX_LOCKS; i++)
        pthread_mutex_lock(&locks[i]);
}

static void let_go(void)
{
    for (int i = 0; i < IMX_LOCKS; i++)
        pthread_mutex_unlock(&locks[i]);
}

static void begin_child(void)
{
    __atomic_store_n(word, 0, __ATOMIC_RELAXED);
    let_go();
}

static void begin(void)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED && madvise(page, bytes, MADV_WIPEONFORK) == 0)
        __atomic_store_n(&word, page, __ATOMIC_RELEASE);
    else if (page != MAP_FAILED)
        munmap(page, bytes);
    pthread_atfork(hold, let_go, begin_child);
}

static uint64_t *own_word(void)
{
    return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

bool imx_process_is(uint64_t number)
{
    return __atomic_load_n(own_word(), __ATOMIC_RELAXED) == number;
}

/* Without a lock: a bare clone may have left one held.  relaxed: numbers by themselves. */
uint64_t imx_process_now(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    uint64_t none = 0, number = __atomic_load_n(own_word(), __ATOMIC_RELAXED);
    if (number)
        return number;
    number = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    bool first = __atomic_compare_exchange_n(own_word(), &none, number, 0, __ATOMIC_RELAXED,
                                             __ATOMIC_RELAXED);
    return first ? number : none;
}
