/* mpi_world.h - MPI as all groups of a process share it: started once, waited for within limits. */
#ifndef IMX_MPI_WORLD_H
#define IMX_MPI_WORLD_H

#include "../core/net.h"
#include "imbrex_mpi.h"

/* Starts MPI unless somebody has, with MPI_THREAD_MULTIPLE, and then ends it as the process exits;
 * else finds fault with how it was started. */
imbrex_status imx_mpi_world_start(const imx_net_desc *desc);

/* From now on MPI_Finalize is left alone, since it might wait for who is gone. */
void imx_mpi_world_fail(void);

/* Two threads may make groups of the same processes at once, if the tags differ (MPI 3.1, 6.4.2).
 * A tag is that of the group's first rank, number `world` of `size` in MPI's world, for a ticket of
 * its: no two groups that are being made have one tag, up to 32768 / size for each first rank. */
int imx_mpi_world_ticket(void);
int imx_mpi_world_tag(int world, int size, int ticket);

/* Collective over the group, within its timeout_ms: a communicator of its ranks; world: which rank
 * of MPI's each of them is. */
imbrex_status imx_mpi_world_connect(const imx_net_desc *desc, const int *world, int tag,
                                    MPI_Comm *comm);

/* MPI may have taken a message and not have written all of it to the socket; what is left goes on
 * its way only when MPI is called, also of a group that is no more.  From start on until MPI ends a
 * thread sees to that; it leaves it to those who drive MPI themselves, from enter to leave. */
void imx_mpi_world_enter(void);
void imx_mpi_world_leave(void);

/* The limit of a wait that polls.  Time in which the process was stopped does not count. */
typedef struct imx_mpi_world_limit {
    int64_t limit_ns, looked_ns, deadline_ns; /* looked: the last look at the clock */
} imx_mpi_world_limit;

imx_mpi_world_limit imx_mpi_world_limit_of(int64_t limit_ns);
bool imx_mpi_world_is_over(imx_mpi_world_limit *limit); /* looks at the clock */

/* Between two looks.  crowded: there are fewer cores than threads. */
void imx_mpi_world_nap(int *polls, bool crowded);

#endif /* IMX_MPI_WORLD_H */
