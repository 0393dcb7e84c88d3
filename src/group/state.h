/* state.h - what a rank has of its group. */
#ifndef IMX_STATE_H
#define IMX_STATE_H

#include "backends/backend.h"
#include "bootstrap/bootstrap.h"
#include "net_kind.h"
#include "nodes.h"
#include "note.h"
#include "object.h"
#include "stream_order.h"
#include "transport.h"
#include "tune/rates.h"

/* Memory that exists once on every rank; the ranks of one node map each other's. */
typedef struct imx_symmetric {
    struct imx_symmetric *next;
    size_t bytes;
    int lent;             /* the caller's: which imbrex_mem_alloc; 0: the library's own */
    int size;             /* ranks */
    imx_memory *memory[]; /* [size]; every rank's, as mapped here; NULL: on another node */
} imx_symmetric;

enum { IMX_CONTROL_RUNS = 64 };

/* First thing in a group's memory on every rank: what its waits look at, and other ranks. */
typedef struct imx_control {
    uint64_t abort;  /* see imbrexd_watch */
    int64_t left_ns; /* when the rank destroyed its group in order; 0: it has not */
    imbrexd_fault fault;
    imbrexd_fault foreign;           /* of another node's rank; on the first rank of this node */
    imx_note why, foreign_why;       /* what goes with a fault of kind ABORT, written before it */
    imx_note refused;                /* this rank's latest call that enqueues: why not */
    uint32_t logged;                 /* atomic; this rank's log has the failure */
    uint64_t meeting;                /* atomic; the latest that this rank has begun, see agree.c */
    uint64_t runs[IMX_CONTROL_RUNS]; /* the latest that this rank enqueued, see imx_agree_run */
    uint64_t launches[IMX_CONTROL_RUNS]; /* likewise, see imx_agree_launch */
    int64_t waiting[];                   /* [size + 1], see imbrexd_watch */
} imx_control;

/* What the barriers of a node's ranks are made of, in their devices' memory: a GPU would look at
 * the host's across PCIe. */
typedef struct imx_meeting {
    uint64_t epoch;     /* barriers that this rank has begun */
    uint64_t arrived[]; /* [size], signals: barriers that rank r has come to */
} imx_meeting;

/* All ways to reach a peer; a group uses those that some pair of its ranks needs. */
enum { IMX_LOCAL_THREADS, IMX_LOCAL_FDS, IMX_TRANSPORTS };

typedef struct imx_fault_relay imx_fault_relay; /* see fault_relay.h */

/* Who may be in a group's calls, and who is; see call.h. */
typedef struct imx_call_owner {
    uint64_t process; /* see imx_process_now */
    int64_t pid;
    const void *thread; /* atomic: the one that is in a call; NULL: none is */
    const char *call;   /* atomic: and in which */
    int depth; /* calls within calls: imbrex_tune makes others, also by its caller's hand */
} imx_call_owner;

struct imbrex_group {
    imx_call_owner owner;
    int rank, size;
    int local_rank, local_size; /* among the ranks of this host */
    int sharers;                /* of a device: the most ranks on one */
    int parent_sharers;         /* of the group that this was split from; 0: from none */
    int parent_local_size;
    int workers;     /* a rank's share of its device, the smallest: at least 1 */
    bool alike;      /* all ranks have as many */
    int memory_gb_s; /* of the rank whose device has the slowest memory */
    imx_rates rates; /* of GPUs: the slowest of any rank, the same on all of them */
    imx_nodes nodes;
    int64_t timeout_ms;
    imx_env env;
    void *proposals; /* agree.c: one a rank, taken once, so that no meeting lacks memory; also room
                        for what look_at_links gathers of each, which is smaller */

    imx_bootstrap *own_bootstrap;      /* from the environment, or made by the ranks; NULL: none */
    const imbrex_bootstrap *bootstrap; /* the caller's, or own_bootstrap's */

    const imx_backend *backend;
    imx_device *device;
    char device_name[24];     /* "cuda:1" */
    imx_target *targets;      /* [size]: the ranks' */
    const imx_target *target; /* this rank's */
    bool whole_lines; /* between all ranks of a node, see imx_backend: the same on all of them */
    bool needed[IMX_TRANSPORTS];              /* by any two ranks: the same on all of them */
    bool *peers[IMX_TRANSPORTS];              /* [size]: which peers of this rank it reaches */
    imx_transport *transport[IMX_TRANSPORTS]; /* NULL if not needed */

    const imx_net_kind *net_kind; /* between nodes; NULL: there is one node */
    imx_net *net;
    imx_net_facts net_facts;
    bool net_was_stuck;     /* when it was closed */
    imx_fault_relay *relay; /* NULL: there is one node, or another rank of this one has them */
    imx_memory *net_words;  /* [nodes + 1] of 64 bits, that barriers send and receive */

    imx_symmetric *memories;
    imx_symmetric *control; /* imx_control, in the host's memory */
    imx_symmetric *meeting; /* imx_meeting */
    uint64_t **abort; /* [size]; for watch: one's own in the place of a rank on another node */
    imbrexd_watch watch;

    imbrex_stream stream; /* the default one */
    imx_objects objects[IMX_MAKERS];
    uint64_t runs;                 /* of all plans, enqueued so far: numbers them */
    uint64_t meetings;             /* with the other ranks, begun so far */
    uint64_t refused_at, refusals; /* agree.c's */
    int memory_count;              /* lent to the caller so far: numbers them */
    imbrex_stream kernel_stream; /* what making and ending them waits for: callers do not reach it.
                                    NULL: none was made */
    imx_prepared *activate, *norm, *gate; /* made with the group */
    imx_stream_order activate_order, norm_order, gate_order, exchange_order;
    imbrexd_trace *trace;
};

/* UNSUPPORTED on a device that only compiles, before anything is begun there. */
static inline imbrex_status imx_group_runs(const imbrex_group *group)
{
    if (imx_backend_runs(group->backend))
        return IMBREX_OK;
    return imx_fail(IMBREX_UNSUPPORTED,
                    "device %s only compiles: what is to run needs \"cuda\" or \"cpu\"",
                    group->device_name);
}

/* NULL: rank is on another node. */
static inline void *imx_memory_at(const imx_symmetric *memory, int rank, size_t offset)
{
    const imx_memory *piece = memory->memory[rank];
    return piece ? (char *)piece->base + offset : NULL;
}

/* Of a rank of this node. */
static inline imx_control *imx_control_of(const imbrex_group *group, int rank)
{
    return imx_memory_at(group->control, rank, 0);
}

static inline size_t imx_control_bytes(int size)
{
    return sizeof(imx_control) + ((size_t)size + 1) * sizeof(int64_t);
}

/* Of a rank of this node. */
static inline imx_meeting *imx_meeting_of(const imbrex_group *group, int rank)
{
    return imx_memory_at(group->meeting, rank, 0);
}

#endif /* IMX_STATE_H */
