/* mpi_limit.h - waits that poll, within a limit. */
#ifndef IMX_MPI_LIMIT_H
#define IMX_MPI_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

/* Time in which the process was stopped does not count. */
typedef struct imx_mpi_limit {
    int64_t limit_ns, looked_ns, deadline_ns; /* looked: the last look at the clock */
} imx_mpi_limit;

imx_mpi_limit imx_mpi_limit_of(int64_t limit_ns);
void imx_mpi_limit_renew(imx_mpi_limit *limit);   /* there was progress: from the last look on */
bool imx_mpi_limit_is_over(imx_mpi_limit *limit); /* looks at the clock */

/* For how long to nap after so many looks in vain; 0: to yield.  crowded: there are fewer cores
 * than threads; who yields where others want the core waits for all their time slices. */
int64_t imx_mpi_limit_nap_ns(int looks, bool crowded);

/* Between two looks of a wait that may be long; counts them. */
void imx_mpi_limit_nap(int *looks);

#endif /* IMX_MPI_LIMIT_H */
