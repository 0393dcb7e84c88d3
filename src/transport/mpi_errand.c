/* mpi_errand.c - threads that call MPI, and how one is waited for. */
#include "mpi_errand.h"

#include <pthread.h>

#include "base/limit.h"
#include "base/signals.h"
#include "mpi_nap.h"

int imx_mpi_errand_thread(void *(*run)(void *arg), void *arg)
{
    pthread_t thread;
    sigset_t others = imx_signals_of_others(), before;
    pthread_sigmask(SIG_SETMASK, &others, &before);
    int error = pthread_create(&thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_detach(thread);
    return error;
}

static void *run(void *arg)
{
    imx_mpi_errand *errand = arg;
    errand->run(errand);
    /* release: what came of it is seen by who sees this */
    __atomic_store_n(&errand->over, true, __ATOMIC_RELEASE);
    return NULL;
}

int imx_mpi_errand_start(imx_mpi_errand *errand)
{
    return imx_mpi_errand_thread(run, errand);
}

bool imx_mpi_errand_await(const imx_mpi_errand *errand, int64_t limit_ns, const uint64_t *abort)
{
    imx_limit limit = imx_limit_of(limit_ns);
    for (int looks = 0; !__atomic_load_n(&errand->over, __ATOMIC_ACQUIRE); imx_mpi_nap(&looks)) {
        if (imx_limit_is_over(&limit) || (abort && __atomic_load_n(abort, __ATOMIC_ACQUIRE)))
            return __atomic_load_n(&errand->over, __ATOMIC_ACQUIRE);
    }
    return true;
}
