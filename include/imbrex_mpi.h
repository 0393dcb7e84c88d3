/* imbrex_mpi.h - a group's ranks meet over MPI: with libimbrex_mpi, which is built where MPI is.
 *
 *     imbrex_bootstrap bootstrap;
 *     imbrex_group_desc desc = { .bootstrap = &bootstrap };
 *
 *     MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
 *     imbrex_bootstrap_mpi(MPI_COMM_WORLD, &bootstrap);
 *     imbrex_group_create(&desc, &group);
 *
 * The same library carries data between nodes for CPU ranks, whatever bootstrap they have; it is
 * then found by itself, and starts MPI if nobody has.
 */
#ifndef IMBREX_MPI_H
#define IMBREX_MPI_H

#include <mpi.h>

#include "imbrex.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over comm.  Fills in bootstrap, with a duplicate of comm that lives until MPI ends.
 * This call waits for all ranks of comm without a limit; allgather gives up after IMBREX_TIMEOUT_MS
 * (30000), also where MPI does not come back from a call, if MPI_THREAD_MULTIPLE lets another
 * thread make it.  IMBREX_OK, or IMBREX_PEER if MPI failed; imbrex_error() knows nothing of it. */
IMBREX_TRY imbrex_bootstrap_mpi(MPI_Comm comm, imbrex_bootstrap *bootstrap);

#ifdef __cplusplus
}
#endif

#endif /* IMBREX_MPI_H */
