/* mpi_nap.c - naps between two looks of a wait that polls. */
#include "mpi_nap.h"

#include <sched.h>
#include <time.h>

#include "base/imx.h"

/* So many looks with a yield between them, then naps that double every NAPS.  Bytes go on their way
 * meanwhile, from one kernel's buffer to the other's, which hold what a nap takes. */
enum { YIELDS = 200, YIELDS_CROWDED = 5, NAPS = 8, NAP_NS = 20000, NAP_DOUBLES_MOST = 4 };

int64_t imx_mpi_nap_ns(int looks, bool crowded)
{
    int naps = looks - (crowded ? YIELDS_CROWDED : YIELDS);
    return naps < 0 ? 0 : (int64_t)NAP_NS << imx_min(naps / NAPS, NAP_DOUBLES_MOST);
}

void imx_mpi_nap(int *looks)
{
    const struct timespec time = { .tv_nsec = imx_mpi_nap_ns(++*looks, true) };
    if (time.tv_nsec)
        nanosleep(&time, NULL);
    else
        sched_yield();
}
