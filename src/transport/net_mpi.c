/* net_mpi.c - the engine between nodes for CPU ranks, over MPI, in a library of its own, which
 * imbrex loads when ranks are on several nodes.
 *
 * The stream's own thread waits for a step, and the carrier (mpi_carrier.h) calls MPI for it.  The
 * program may call MPI meanwhile, and groups may begin and end, which is why MPI has to be started
 * with MPI_THREAD_MULTIPLE.
 *
 * After a failure nothing more is begun for the group, and MPI is not ended: it might wait for who
 * is gone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limit.h"
#include "kernels/wait_points.h"
#include "mpi_carrier.h"
#include "mpi_world.h"

/* A watch that lets its waits spin for less knows that there are fewer cores than threads. */
enum { SPINS_ALONE = 1000 };

/* What ranks tell each other: who they are in MPI's world, and a number that no other group has
 * that begins with the same rank of it. */
typedef struct introduction {
    int world, ticket;
} introduction;

struct imx_net {
    imx_net_desc desc;
    MPI_Comm comm;     /* its ranks are the group's */
    int *world;        /* [size]: of each rank, in MPI's world */
    introduction *all; /* [size] */
    bool stuck;        /* atomic */
};

/* One entry of a stream. */
typedef struct step {
    imx_net *net;
    int channel, lane, count;
    imx_net_op ops[IMX_NET_OPS];
} step;

/* ---- open and close -------------------------------------------------------------------------- */

static imbrex_status net_create(const imx_net_desc *desc, imx_net **out)
{
    imbrex_status status = imx_mpi_world_start(desc);
    if (status != IMBREX_OK)
        return status;
    imx_net *net = calloc(1, sizeof *net);
    if (!net)
        return desc->fail(IMBREX_NO_MEMORY, "no memory for MPI's part of a group");
    net->desc = *desc;
    net->comm = MPI_COMM_NULL;
    net->world = calloc((size_t)desc->size, sizeof *net->world);
    net->all = calloc((size_t)desc->size, sizeof *net->all);
    if (!net->world || !net->all) {
        free(net->world);
        free(net->all);
        free(net);
        return desc->fail(IMBREX_NO_MEMORY, "no memory for %d ranks", desc->size);
    }
    *out = net;
    return IMBREX_OK;
}

/* Each rank of the group is another rank of MPI's world, of so many. */
static imbrex_status check_world(const imx_net_desc *desc, const int *world, int size)
{
    for (int r = 0; r < desc->size; r++) {
        for (int q = 0; q < r; q++) {
            if (world[q] == world[r])
                return desc->fail(IMBREX_UNSUPPORTED,
                                  "ranks %d and %d are both rank %d of %d of MPI: start all ranks "
                                  "that are to reach other nodes with one mpirun or srun, a "
                                  "process each",
                                  q, r, world[r], size);
        }
    }
    return IMBREX_OK;
}

static imbrex_status introduce(imx_net *net, int *tag)
{
    const imx_net_desc *desc = &net->desc;
    introduction own = { .ticket = imx_mpi_world_ticket() };
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &own.world);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    imbrex_status status = desc->allgather(desc->ctx, &own, net->all, sizeof own);
    for (int r = 0; r < desc->size; r++)
        net->world[r] = net->all[r].world;
    *tag = imx_mpi_world_tag(net->world[0], size, net->all[0].ticket);
    return status == IMBREX_OK ? check_world(desc, net->world, size) : status;
}

static imbrex_status net_open(imx_net *net)
{
    int tag = 0;
    imbrex_status status = introduce(net, &tag);
    return status == IMBREX_OK ? imx_mpi_world_connect(&net->desc, net->world, tag, &net->comm)
                               : status;
}

/* A tag that no other lane has, of no other channel. */
static int64_t tag_of(int channel, int lane)
{
    return (int64_t)(channel - IMX_NET_EXCHANGES) * IMX_NET_LANES + lane;
}

/* MPI_COMM_WORLD has the largest tag of all its communicators, alike on all ranks. */
static int plans_most(void)
{
    int known = 0, plans = 0, *tag = NULL;
    if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag, &known) == MPI_SUCCESS && known)
        plans = (int)((*tag - tag_of(0, IMX_NET_LANES - 1)) / IMX_NET_LANES);
    return plans;
}

static void net_facts(const imx_net *net, imx_net_facts *facts)
{
    (void)net;
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    *facts = (imx_net_facts){ .lanes = IMX_NET_LANES, .plans = plans_most() };
    snprintf(facts->text, sizeof facts->text, "%.90s", version);
}

static bool net_stuck(const imx_net *net)
{
    return __atomic_load_n(&net->stuck, __ATOMIC_ACQUIRE);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static imbrexd_wait_point point_of(const step *s, int op)
{
    return (imbrexd_wait_point){
        .plan = s->channel, .what = IMX_POINT_NET, .rank = s->ops[op].rank, .index = -1
    };
}

static void fail_step(const step *s, int kind, imx_mpi_view seen)
{
    imbrexd_fault_raise(s->net->desc.watch, kind, point_of(s, seen.op), (uint64_t)seen.error,
                        seen.sizes_differ ? IMX_NET_SIZES_DIFFER : 0);
}

static bool aborted(const imx_net *net)
{
    const imbrexd_watch *watch = net->desc.watch;
    return __atomic_load_n(watch->abort[watch->rank], __ATOMIC_ACQUIRE) != 0;
}

/* MPI_Comm_free is "collective, but anticipated to be local" (MPI 3.1, 6.4.3): not where the group
 * has failed, since then it might wait for who is gone. */
static void net_close(imx_net *net)
{
    if (!net)
        return;
    if (aborted(net))
        imx_mpi_carrier_fail();
    else if (net->comm != MPI_COMM_NULL && imx_mpi_world_is_well())
        MPI_Comm_free(&net->comm);
    free(net->world);
    free(net->all);
    free(net);
}

/* Until all has landed; false: the step has failed. */
static bool fly(const step *s, imx_mpi_flight *f)
{
    const imbrexd_watch *watch = s->net->desc.watch;
    imx_limit limit = imx_limit_of(s->net->desc.timeout_ms * 1000000);
    imx_mpi_view seen = { 0 };
    for (int landed = 0;; landed = seen.landed) {
        seen = imx_mpi_carrier_look(f, landed);
        if (seen.error != MPI_SUCCESS)
            fail_step(s, IMBREXD_FAULT_NET, seen);
        if (seen.error != MPI_SUCCESS || seen.over || aborted(s->net))
            return seen.error == MPI_SUCCESS && seen.over;
        bool over = imx_limit_is_over(&limit);
        if (seen.landed > landed) {
            imx_limit_renew(&limit);
            continue;
        }
        imbrexd_watch_note(watch, point_of(s, seen.op), limit.looked_ns);
        if (over) {
            fail_step(s, IMBREXD_FAULT_DEADLINE, (imx_mpi_view){ .op = seen.op });
            return false;
        }
    }
}

static void run_step(const void *args)
{
    const step *s = args;
    bool crowded = s->net->desc.watch->spins < SPINS_ALONE;
    if (aborted(s->net))
        return;
    imx_mpi_flight *f = imx_mpi_carrier_take(s->net->comm, (int)tag_of(s->channel, s->lane), s->ops,
                                             s->count, crowded);
    if (!f) {
        fail_step(s, IMBREXD_FAULT_NET, (imx_mpi_view){ .error = MPI_ERR_OTHER });
        return;
    }
    if (!fly(s, f))
        imx_mpi_carrier_fail();
    if (imx_mpi_carrier_leave(f))
        __atomic_store_n(&s->net->stuck, true, __ATOMIC_RELEASE);
}

static imbrex_status net_step(imx_net *net, int channel, int lane, const imx_net_op *ops, int count,
                              imbrex_stream stream)
{
    step s = { .net = net, .channel = channel, .lane = lane, .count = count };
    imbrex_span span = imx_net_span(ops, count);
    memcpy(s.ops, ops, (size_t)count * sizeof *ops);
    return net->desc.backend->call(net->desc.device, run_step, &s, sizeof s, &span, stream);
}

extern const imx_net_kind imbrex_net_kind;
__attribute__((visibility("default"))) const imx_net_kind imbrex_net_kind = {
    .abi = IMX_NET_ABI,
    .name = "mpi",
    .device = "cpu",
    .create = net_create,
    .open = net_open,
    .close = net_close,
    .facts = net_facts,
    .step = net_step,
    .stuck = net_stuck,
};
