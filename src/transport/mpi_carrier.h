/* mpi_carrier.h - the thread that calls MPI for all groups of a process: it carries their steps,
 * and between steps keeps MPI going.
 *
 * MPI may have taken a message and not have written all of it to the socket; what is left goes on
 * its way only when MPI is called, also of a group that is no more.  And a call may not come back
 * when a peer has died: in Open MPI 4.1.4 over TCP one now and then goes round a list of libevent's
 * for good.  So whoever has to come back within a limit leaves the calls to this thread and, if
 * need be, the thread to its fate.
 */
#ifndef IMX_MPI_CARRIER_H
#define IMX_MPI_CARRIER_H

#include "base/limit.h"
#include "group/net_kind.h"
#include "imbrex_mpi.h"
#include "mpi_nap.h"

/* ---- begin and end --------------------------------------------------------------------------- */

/* Once, by one thread at a time, when MPI has been started: what the carrier needs of MPI, which
 * gives an error of MPI's, or MPI_SUCCESS; then the carrier, an error of pthread_create, or 0. */
int imx_mpi_carrier_prepare(void);
int imx_mpi_carrier_start(void);

/* Waits for all flights to be left, and then for the carrier to end, for a second at most.  Whether
 * it has: it calls MPI no more.  MPI_Finalize begins with this, whoever calls it. */
bool imx_mpi_carrier_stop(void);

/* From now on MPI_Finalize is left alone, since it might wait for who is gone. */
void imx_mpi_carrier_fail(void);
bool imx_mpi_carrier_failed(void);

/* ---- flights --------------------------------------------------------------------------------- */

/* The sends and receives of a step, none of which waits for another. */
typedef struct imx_mpi_flight imx_mpi_flight;

/* How far it is. */
typedef struct imx_mpi_view {
    int landed; /* pieces: it goes on while this grows */
    int op;     /* the one that failed, or one that is under way */
    int error;  /* MPI's, or MPI_SUCCESS */
    bool sizes_differ;
    bool over;
    bool lost; /* over, but MPI may still write to memory that it was given */
} imx_mpi_view;

/* ops is copied.  crowded: there are fewer cores than threads.  NULL: there is no memory, or MPI
 * has ended here. */
imx_mpi_flight *imx_mpi_carrier_take(MPI_Comm comm, int tag, const imx_net_op *ops, int count,
                                     bool crowded);

/* When more than `landed` pieces have, it has failed or is over; soon in any case. */
imx_mpi_view imx_mpi_carrier_look(imx_mpi_flight *f, int landed);

/* Calls it back unless it is over, which takes a second at most, and frees it.  Whether it is lost,
 * or not back yet: then, too, memory must stay. */
bool imx_mpi_carrier_leave(imx_mpi_flight *f);

#endif /* IMX_MPI_CARRIER_H */
