/* mpi_limit.c - limits of time, and naps between two looks. */
#include "mpi_limit.h"

#include <sched.h>
#include <time.h>

#include "../core/imx.h"
#include "imbrex_device.h"

/* So many looks with a yield between them, then naps that double every NAPS.  Bytes go on their way
 * meanwhile, from one kernel's buffer to the other's, which hold what a nap takes. */
enum { YIELDS = 200, YIELDS_CROWDED = 5, NAPS = 8, NAP_NS = 20000, NAP_DOUBLES_MOST = 4 };

imx_mpi_limit imx_mpi_limit_of(int64_t limit_ns)
{
    int64_t now_ns = imbrexd_now_ns();
    return (imx_mpi_limit){ limit_ns, now_ns, now_ns + limit_ns };
}

void imx_mpi_limit_renew(imx_mpi_limit *limit)
{
    limit->deadline_ns = limit->looked_ns + limit->limit_ns;
}

bool imx_mpi_limit_is_over(imx_mpi_limit *limit)
{
    int64_t now_ns = imbrexd_now_ns();
    limit->deadline_ns += imbrexd_pause_ns(now_ns - limit->looked_ns, limit->limit_ns);
    limit->looked_ns = now_ns;
    return now_ns >= limit->deadline_ns;
}

int64_t imx_mpi_limit_nap_ns(int looks, bool crowded)
{
    int naps = looks - (crowded ? YIELDS_CROWDED : YIELDS);
    return naps < 0 ? 0 : (int64_t)NAP_NS << imx_min(naps / NAPS, NAP_DOUBLES_MOST);
}

void imx_mpi_limit_nap(int *looks)
{
    const struct timespec time = { .tv_nsec = imx_mpi_limit_nap_ns(++*looks, true) };
    if (time.tv_nsec)
        nanosleep(&time, NULL);
    else
        sched_yield();
}
