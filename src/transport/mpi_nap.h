/* mpi_nap.h - naps between two looks of a wait that polls. */
#ifndef IMX_MPI_NAP_H
#define IMX_MPI_NAP_H

#include <stdbool.h>
#include <stdint.h>

/* For how long to nap after so many looks in vain; 0: to yield.  crowded: there are fewer cores
 * than threads; who yields where others want the core waits for all their time slices. */
int64_t imx_mpi_nap_ns(int looks, bool crowded);

/* Between two looks of a wait that may be long; counts them. */
void imx_mpi_nap(int *looks);

#endif /* IMX_MPI_NAP_H */
