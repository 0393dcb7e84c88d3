/* mpi_errand.h - a call of MPI's that may not come back, on a thread of its own. */
#ifndef IMX_MPI_ERRAND_H
#define IMX_MPI_ERRAND_H

#include <stdbool.h>
#include <stdint.h>

/* Detached, and signals are others'.  An error of pthread_create, or 0. */
int imx_mpi_errand_thread(void *(*run)(void *arg), void *arg);

/* The first member of what the call needs, in memory that stays if the call is given up: the
 * thread, or MPI, may still write to it. */
typedef struct imx_mpi_errand {
    void (*run)(struct imx_mpi_errand *errand);
    bool over; /* atomic */
} imx_mpi_errand;

/* An error of pthread_create, or 0. */
int imx_mpi_errand_start(imx_mpi_errand *errand);

/* Whether it comes back within the limit, and before *abort is no longer 0 (NULL: nobody aborts).
 * Else it is given up. */
bool imx_mpi_errand_await(const imx_mpi_errand *errand, int64_t limit_ns, const uint64_t *abort);

#endif /* IMX_MPI_ERRAND_H */
