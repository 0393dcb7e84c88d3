/* net_kind.h - the seam between nodes: an existing engine carries what no load or store can reach.
 *
 * An engine moves bytes on a stream; it knows no plan, no signal and no operator, and an operator
 * does not know which engine it has.  There is one for each kind of device, found at run time and
 * never needed to build:
 *
 *     nccl   cuda   net_nccl.c, with libnccl.so.2 through dlopen
 *     mpi    cpu    net_mpi.c and mpi_*.c beside it, a library of its own
 *                   (libimbrex_mpi.so), which is linked against MPI
 *
 * The unit is a step: a few sends and receives that belong together.
 *
 *   stream    A step begins when the stream comes to it, and the stream goes on when the step is
 *             over: all that it sends may be overwritten, all that it receives is here.  What comes
 *             next on the stream, such as a post to this rank's own signal, comes after it: signals
 *             are the core's work (imx_run_step), not the engine's.
 *   group     The operations of a step are issued as one group: no one of them may wait for another
 *             to be over.  (NCCL is two-sided: ncclGroupStart and ncclGroupEnd around all of them.
 *             A one-sided engine puts for each send and waits for each receive.)
 *   match     Between two ranks and in one lane of a channel, the n-th send meets the n-th receive,
 *             and both have the same number of bytes.  All ranks enqueue their steps in one order
 *             that holds for the whole group, so steps never wait for each other in a circle.
 *   channel   The number of the plan whose step it is, up to facts.plans; 0: barriers;
 *             IMX_NET_EXCHANGES: the caller's own; IMX_NET_OPENING: the engine's as it opens, for
 *             which it has half of the limit.  Steps of two channels may be under way at once, on
 *             two streams; an engine that knows no channels (NCCL) relies on the one order.
 *   lane      As many steps of a plan may be under way at once as the engine has lanes, each on a
 *             stream of its own: while the last bytes of one arrive the next one has begun.
 *   memory    Of this rank's device, of any alignment.  What is received lies in memory that the
 *             library allocated.
 *   end       Every step ends: with its bytes, or when this rank's abort word (*watch->abort[rank])
 *             is set, or when it has made no progress for timeout_ms.  An engine whose step fails
 *             or outlives the limit raises a fault (imbrexd_fault_raise), with the peer as
 *             point.rank and channel as point.plan: IMBREXD_FAULT_DEADLINE with point.what
 *             IMX_POINT_NET for the limit, IMBREXD_FAULT_NET with the engine's own code in `have`
 *             for anything else (and IMX_NET_SIZES_DIFFER in `want` where a receive met a send of
 *             another size), and then lets the stream go.  After a fault no step does anything.
 *             An engine whose steps cannot look at the word themselves has a thread that does, and
 *             ends them (ncclCommAbort).
 *             While a step waits on a thread, it notes for whom (imbrexd_watch_note), so that who
 *             waits for this rank learns who holds up both.
 *   capture   Steps of a capturable engine may be captured in a graph and replayed.  Of another the
 *             core refuses to enqueue any on a stream that is being captured.
 */
#ifndef IMX_NET_KIND_H
#define IMX_NET_KIND_H

#include "backends/backend.h"

typedef struct imx_net imx_net; /* one rank's engine, opened; each kind has its own */

enum { IMX_NET_OPS = 8, IMX_NET_LANES = 2, IMX_NET_ABI = 5 };
enum { IMX_NET_EXCHANGES = -1, IMX_NET_OPENING = -2 }; /* channels beside the plans' */
enum {
    IMX_NET_SIZES_DIFFER = 1,
    IMX_NET_FORGED = 2 /* of fault_relay.c: a message from point.rank that it did not send */
};

typedef struct imx_net_op {
    bool receives; /* else sends */
    int rank;      /* the peer, on another node */
    void *at;      /* sends only read */
    size_t bytes;  /* > 0 */
} imx_net_op;

/* What an engine needs of its group.  All of it outlives the engine. */
typedef struct imx_net_desc {
    const imx_backend *backend;
    imx_device *device;
    const imx_env *env;
    const imbrexd_watch *watch; /* the group's */
    int rank, size;
    const int *node_of; /* [size] */
    int64_t timeout_ms;
    imbrex_status (*allgather)(void *ctx, const void *send, void *recv, size_t bytes);
    void *ctx; /* of allgather */
    /* imx_fail, for an engine in a library of its own. */
    imbrex_status (*fail)(imbrex_status status, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
} imx_net_desc;

/* What a trace says of a step, but for the times: the first peer, and what is sent. */
static inline imbrex_span imx_net_span(const imx_net_op *ops, int count)
{
    imbrex_span span = {
        .kind = IMBREX_SPAN_COPY, .peer = ops[0].rank, .index = -1, .name = "network"
    };
    for (int i = 0; i < count; i++)
        span.bytes += ops[i].receives ? 0 : (int64_t)ops[i].bytes;
    return span;
}

typedef struct imx_net_facts {
    char text[96];   /* for people: "NCCL 2.28.3" */
    bool capturable; /* see above */
    int workers;     /* multiprocessors that a step holds: a product beside it leaves them free */
    int lanes;       /* 1 to IMX_NET_LANES, alike on all ranks */
    int plans;       /* the largest number that a plan may have, alike on all ranks */
} imx_net_facts;

typedef struct imx_net_kind {
    int abi;            /* IMX_NET_ABI: the library of another version is refused */
    const char *name;   /* "nccl" */
    const char *device; /* name of the backend whose memory it moves */

    /* Local: finds what it needs and takes all that a rank may lack, before the ranks rely on each
     * other in open.  UNSUPPORTED says what is missing, and what to install or set. */
    imbrex_status (*create)(const imx_net_desc *desc, imx_net **net);

    /* Collective over the group: connects the ranks.  On failure too, close follows. */
    imbrex_status (*open)(imx_net *net);

    /* Local, and it never waits for a peer.  The device and its streams are gone: what the engine
     * has itself is left, and the watch, whose abort word says whether the group has failed.  NULL
     * is fine. */
    void (*close)(imx_net *net);

    void (*facts)(const imx_net *net, imx_net_facts *facts); /* after open */

    /* Enqueues one step; count from 1 to IMX_NET_OPS.  ops is copied. */
    imbrex_status (*step)(imx_net *net, int channel, int lane, const imx_net_op *ops, int count,
                          imbrex_stream stream);

    /* Whether, after a failure, bytes might still arrive in memory that a step named: the library
     * then keeps that memory until the process ends.  NULL: never. */
    bool (*stuck)(const imx_net *net);

    /* Adds a line "key: value": what is here, or why not.  NULL: nothing. */
    void (*info)(const imx_env *env, imx_text *text);
} imx_net_kind;

/* What a library of its own exports, under this name: a constant imx_net_kind. */
#define IMX_NET_SYMBOL "imbrex_net_kind"

extern const imx_net_kind imx_net_nccl;

/* An engine that a test brings along, in the place of all others; else NULL. */
extern const imx_net_kind *imx_net_of_test;

#endif /* IMX_NET_KIND_H */
