/* mpi_world.h - MPI as all groups of a process share it, and a communicator for each of them. */
#ifndef IMX_MPI_WORLD_H
#define IMX_MPI_WORLD_H

#include "mpi_carrier.h"

/* Starts MPI unless somebody has, with MPI_THREAD_MULTIPLE, and then ends it as the process exits;
 * else finds fault with how it was started. */
imbrex_status imx_mpi_world_start(const imx_net_desc *desc);

/* Whether MPI has not ended, and nothing failed that it might now wait for. */
bool imx_mpi_world_is_well(void);

/* Two threads may make groups of the same processes at once, if the tags differ (MPI 3.1, 6.4.2).
 * A tag is that of the group's first rank, number `world` of `size` in MPI's world, for a ticket of
 * its: no two groups that are being made have one tag, up to 32768 / size for each first rank. */
int imx_mpi_world_ticket(void);
int imx_mpi_world_tag(int world, int size, int ticket);

/* Collective over the group, within its timeout_ms: a communicator of its ranks; world: which rank
 * of MPI's each of them is. */
imbrex_status imx_mpi_world_connect(const imx_net_desc *desc, const int *world, int tag,
                                    MPI_Comm *comm);

#endif /* IMX_MPI_WORLD_H */
