/* net_mpi.c - the engine between nodes for CPU ranks, over MPI, in a library of its own, which
 * imbrex loads when ranks are on several nodes.
 *
 * A step is carried out by the stream's own thread: it posts all receives and sends, and drives MPI
 * until they are done.  Both ends of a message are then in MPI, which is what TCP needs; and many
 * streams may be, which is why MPI has to be started with MPI_THREAD_MULTIPLE.  For MPI a send may
 * be done before the socket has taken it: between steps another thread drives MPI, now and then.
 *
 * After a failure MPI is not called any more, not even to end it: it might wait for who is gone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/sites.h"
#include "mpi_world.h"

/* PIECE: what has to arrive within the group's timeout_ms, since MPI does not tell of less. */
enum { LINGER_NS = 100000000, PIECE_BYTES = 16 << 20 };

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

/* How far a step is.  Each operation goes on by itself, one piece of it at a time: the peer may do
 * in two steps what this one does in one.  An operation's last piece is shorter than the others, if
 * need be empty, so that no two sizes have the same pieces. */
typedef struct flight {
    MPI_Request requests[IMX_NET_OPS];
    int bytes[IMX_NET_OPS];   /* that are to arrive; -1: a send */
    size_t next[IMX_NET_OPS]; /* where the next piece begins; beyond the end: there is none */
} flight;

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

static imbrexd_site site_of(const step *s, int op)
{
    return (imbrexd_site){
        .plan = s->channel, .what = IMX_SITE_NET, .rank = s->ops[op].rank, .index = -1
    };
}

static void fail_step(const step *s, int op, int kind, int code)
{
    int class = MPI_SUCCESS;
    if (kind == IMBREXD_FAULT_NET)
        MPI_Error_class(code, &class);
    imbrexd_fault_raise(s->net->desc.watch, kind, site_of(s, op), (uint64_t)code,
                        class == MPI_ERR_TRUNCATE ? IMX_NET_SIZES_DIFFER : 0);
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
    int ended = 0;
    if (!net)
        return;
    if (aborted(net))
        imx_mpi_world_fail();
    else if (net->comm != MPI_COMM_NULL && MPI_Finalized(&ended) == MPI_SUCCESS && !ended)
        MPI_Comm_free(&net->comm);
    free(net->world);
    free(net->all);
    if (!net->stuck)
        free(net);
}

static bool has_next(const step *s, const flight *f, int op)
{
    return f->next[op] <= s->ops[op].bytes;
}

/* The n-th send meets the n-th receive: what goes one way between two ranks goes in order. */
static bool may_depart(const step *s, const flight *f, int op)
{
    for (int i = 0; i < op; i++) {
        if (s->ops[i].rank == s->ops[op].rank && s->ops[i].receives == s->ops[op].receives &&
            has_next(s, f, i))
            return false;
    }
    return has_next(s, f, op);
}

static bool depart(const step *s, flight *f, int i)
{
    const imx_net_op *op = &s->ops[i];
    char *at = (char *)op->at + f->next[i];
    int bytes = (int)imx_min(op->bytes - f->next[i], PIECE_BYTES);
    int tag = (int)tag_of(s->channel, s->lane);
    f->next[i] += PIECE_BYTES;
    f->bytes[i] = op->receives ? bytes : -1;
    int error = op->receives
                    ? MPI_Irecv(at, bytes, MPI_BYTE, op->rank, tag, s->net->comm, &f->requests[i])
                    : MPI_Isend(at, bytes, MPI_BYTE, op->rank, tag, s->net->comm, &f->requests[i]);
    if (error != MPI_SUCCESS)
        fail_step(s, i, IMBREXD_FAULT_NET, error);
    return error == MPI_SUCCESS;
}

/* Begins a piece of all operations that may and have none under way, receives first.  MPI keeps
 * the order of messages between two ranks with one tag, so that pieces and steps meet their own
 * kind. */
static bool depart_all(const step *s, flight *f)
{
    for (int kind = 1; kind >= 0; kind--) {
        for (int i = 0; i < s->count; i++) {
            if (s->ops[i].receives == kind && f->requests[i] == MPI_REQUEST_NULL &&
                may_depart(s, f, i) && !depart(s, f, i))
                return false;
        }
    }
    return true;
}

static int first_open(const flight *f)
{
    for (int i = 0; i < IMX_NET_OPS; i++) {
        if (f->requests[i] != MPI_REQUEST_NULL)
            return i;
    }
    return -1;
}

/* Looks at each request once: how many came to their end now, or -1 after a failure. */
static int look(const step *s, flight *f)
{
    int landed = 0;
    for (int i = 0; i < s->count; i++) {
        int done = 0, bytes = 0;
        MPI_Status status;
        if (f->requests[i] == MPI_REQUEST_NULL)
            continue;
        int error = MPI_Test(&f->requests[i], &done, &status);
        if (error == MPI_SUCCESS && done && f->bytes[i] >= 0) {
            MPI_Get_count(&status, MPI_BYTE, &bytes);
            error = bytes == f->bytes[i] ? MPI_SUCCESS : MPI_ERR_TRUNCATE;
        }
        if (error != MPI_SUCCESS) {
            fail_step(s, i, IMBREXD_FAULT_NET, error);
            return -1;
        }
        landed += done;
    }
    return landed;
}

/* A receive that has not begun can be taken back.  If any is left, memory must stay for it. */
static void take_back(const step *s, flight *f)
{
    imx_mpi_world_limit limit = imx_mpi_world_limit_of(LINGER_NS);
    imx_mpi_world_fail();
    for (int i = 0; i < s->count; i++) {
        if (f->requests[i] != MPI_REQUEST_NULL && s->ops[i].receives)
            MPI_Cancel(&f->requests[i]);
    }
    for (int i, polls = 0; (i = first_open(f)) >= 0 && !imx_mpi_world_is_over(&limit);
         imx_mpi_world_nap(&polls, true)) {
        for (; i < s->count; i++) {
            int done;
            if (f->requests[i] != MPI_REQUEST_NULL &&
                MPI_Test(&f->requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
                break;
        }
    }
    if (first_open(f) >= 0)
        __atomic_store_n(&s->net->stuck, true, __ATOMIC_RELEASE);
}

/* Until all have landed; false: the step has failed. */
static bool fly(const step *s, flight *f)
{
    const imbrexd_watch *watch = s->net->desc.watch;
    imx_mpi_world_limit limit = imx_mpi_world_limit_of(s->net->desc.timeout_ms * 1000000);
    bool crowded = watch->spins < SPINS_ALONE;
    for (int polls = 0; depart_all(s, f);) {
        int open = first_open(f);
        if (open < 0)
            return true;
        int landed = look(s, f);
        if (landed < 0 || aborted(s->net))
            return false;
        bool over = imx_mpi_world_is_over(&limit);
        if (landed) {
            polls = 0;
            limit.deadline_ns = limit.looked_ns + limit.limit_ns;
            continue;
        }
        imbrexd_watch_note(watch, site_of(s, open), limit.looked_ns);
        if (over) {
            fail_step(s, open, IMBREXD_FAULT_DEADLINE, 0);
            return false;
        }
        imx_mpi_world_nap(&polls, crowded);
    }
    return false;
}

static void carry_out(const step *s)
{
    flight f = { .next = { 0 } };
    for (int i = 0; i < IMX_NET_OPS; i++)
        f.requests[i] = MPI_REQUEST_NULL;
    if (!aborted(s->net) && !fly(s, &f))
        take_back(s, &f);
}

static void run_step(const void *args)
{
    imx_mpi_world_enter();
    carry_out(args);
    imx_mpi_world_leave();
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
