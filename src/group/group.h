/* group.h - the ranks that own memory together, and how they agree on anything. */
#ifndef IMX_GROUP_H
#define IMX_GROUP_H

#include "backends/backend.h"
#include "bootstrap/bootstrap.h"
#include "call.h"
#include "fault_relay.h"
#include "net.h"
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
enum { IMX_TRANSPORTS = 2 };
extern const imx_transport_kind *const imx_group_transports[IMX_TRANSPORTS];

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

/* ---- group.c --------------------------------------------------------------------------------- */

/* Adds what each kind of device says of itself here. */
void imx_group_info(imx_text *text);

/* Collective over bootstrap, which the group takes, on failure too: on the parent's device, with
 * its environment and limit. */
imbrex_status imx_group_create_child(const imbrex_group *parent, imx_bootstrap *bootstrap,
                                     imbrex_group **out) IMX_MUST_CHECK;

/* ---- agree.c --------------------------------------------------------------------------------- */

/* One number that all ranks must give alike, with the name that the caller knows it by. */
typedef struct imx_field {
    const char *of; /* the struct it is in; NULL: none */
    const char *name;
    int64_t value;
    const char *const *words; /* [words_count], what a value means; NULL: the number says it */
    int words_count;
    bool hash; /* the number says nothing */
    bool real; /* it is a float's bits */
} imx_field;

enum { IMX_AGREE_FIELDS = 40, IMX_AGREE_NOTE = 256 };

/* Collective: swaps bytes through the bootstrap.  If that fails: why the group has, or PEER or
 * TIMEOUT. */
imbrex_status imx_agree_allgather(imbrex_group *group, const void *send, void *recv,
                                  size_t bytes) IMX_MUST_CHECK;

/* The same for transports and engines, which know no group. */
imbrex_status imx_agree_allgather_of(void *group, const void *send, void *recv,
                                     size_t bytes) IMX_MUST_CHECK;

/* Whether a rank of this node has begun to meet the others in the call that this rank comes to
 * next: one that has refused more calls since all did the same is beyond that. */
bool imx_agree_is_awaited(const imbrex_group *group);

/* This rank refuses a call that enqueues. */
void imx_agree_count_refusal(imbrex_group *group);

/* Takes the memory that imx_agree needs. */
imbrex_status imx_agree_prepare(imbrex_group *group) IMX_MUST_CHECK;

/* Collective: the one meeting of every collective call.  All ranks bring the name of the call, how
 * it has gone for them so far, and fields that must be equal.  All leave with OK, or none: a rank
 * that brought a failure gets it back, the others PEER with that rank's sentence. */
imbrex_status imx_agree(imbrex_group *group, const char *call, imbrex_status mine,
                        const imx_field *fields, int count) IMX_MUST_CHECK;

/* The same; on OK, note[IMX_AGREE_NOTE] is what rank 0 brought in it. */
imbrex_status imx_agree_noted(imbrex_group *group, const char *call, imbrex_status mine,
                              const imx_field *fields, int count, void *note) IMX_MUST_CHECK;

/* Not a meeting: notes that this rank enqueues its next run, and compares it with those ranks of
 * its node that have enqueued theirs.  If one of them runs another plan or other rows, the group
 * fails: INVALID, on all ranks.  A rank that is more than IMX_CONTROL_RUNS runs ahead goes
 * unnoticed. */
imbrex_status imx_agree_run(imbrex_group *group, int plan, int64_t m) IMX_MUST_CHECK;

/* The same for the number-th launch, from 1, of a kernel with a product, but only of its rows: in
 * which order kernels are launched, and how often, is the caller's. */
imbrex_status imx_agree_launch(imbrex_group *group, int kernel, uint64_t number,
                               int64_t m) IMX_MUST_CHECK;

/* Adds which rows the two ranks have of a fault of either: have is the other rank's run or launch,
 * want that of the rank that noticed. */
void imx_agree_describe_rows(const imbrexd_fault *fault, imx_text *text);

/* This rank's words of launches so far, before all ranks meet to make a kernel: a kernel's number
 * is cut off in a word, and a later one's would be taken for it. */
void imx_agree_forget_launches(imbrex_group *group);

/* A run as one word, which is written and read at once: | its number | its plan | m |.  The upper
 * two are cut off: that would matter to ranks a million runs, or 8192 plans, apart. */
enum { IMX_AGREE_RUN_SHIFT = 44, IMX_AGREE_PLAN_SHIFT = 31, IMX_AGREE_PLAN_MASK = 8191 };

static inline uint64_t imx_agree_run_word(uint64_t number, int plan, int64_t m)
{
    return number << IMX_AGREE_RUN_SHIFT |
           (uint64_t)(plan & IMX_AGREE_PLAN_MASK) << IMX_AGREE_PLAN_SHIFT | (uint64_t)m;
}

/* The plan of word: of those with its lower bits the nearest to the plan `like`. */
static inline int imx_agree_run_plan(uint64_t word, int like)
{
    enum { PLANS = IMX_AGREE_PLAN_MASK + 1 };
    int ahead = (int)(((word >> IMX_AGREE_PLAN_SHIFT) - (uint64_t)like) & IMX_AGREE_PLAN_MASK);
    return ahead <= PLANS / 2 || like + ahead <= PLANS ? like + ahead : like + ahead - PLANS;
}

static inline int64_t imx_agree_run_m(uint64_t word)
{
    return (int64_t)(word & (((uint64_t)1 << IMX_AGREE_PLAN_SHIFT) - 1));
}

/* ---- fault.c --------------------------------------------------------------------------------- */

/* The fault that rank noticed: its own, or what has been heard of it here. */
const imbrexd_fault *imx_fault_of(const imbrex_group *group, int rank);

/* The reason that rank gave for its abort, or what has been heard of it here. */
const imx_note *imx_fault_why(const imbrex_group *group, int rank);

/* This rank's call that enqueues, the latest of its thread, has ended: what it was refused with is
 * for those that will wait for it in vain, until it is made again and is not refused. */
void imx_fault_note_refusal(imbrex_group *group);

/* Whether it is known why a rank of this node does not come: then adds that to the text. */
bool imx_fault_add_refusal(const imbrex_group *group, int rank, imx_text *text);

/* OK, or why the group has failed.  Never blocks. */
imbrex_status imx_fault_check(const imbrex_group *group) IMX_MUST_CHECK;

/* Part of a run, or with plan 0 of a barrier, is enqueued and the rest cannot be, which why and its
 * sentence say: no peer's wait for it would end.  So all waits are ended, and then what is on these
 * streams.  Returns why, with its sentence. */
imbrex_status imx_fault_give_up(imbrex_group *group, int plan, imbrex_status why,
                                const imbrex_stream *streams, int count) IMX_MUST_CHECK;

/* ---- memory.c -------------------------------------------------------------------------------- */

/* Collective, with mine as in imx_agree.  Zeroed.  words: as for imx_memory_own, of this rank's
 * piece, said before any rank goes on; count 0: nothing is. */
imbrex_status imx_memory_alloc(imbrex_group *group, const char *call, imbrex_status mine,
                               size_t bytes, const imx_words *words, int count,
                               imx_symmetric **memory) IMX_MUST_CHECK;

/* The same in host memory that devices reach too. */
imbrex_status imx_memory_alloc_host(imbrex_group *group, const char *call, size_t bytes,
                                    imx_symmetric **memory) IMX_MUST_CHECK;
void imx_memory_free(imbrex_group *group, imx_symmetric *memory); /* NULL is fine */

/* NULL: rank is on another node. */
static inline void *imx_memory_at(const imx_symmetric *memory, int rank, size_t offset)
{
    const imx_memory *piece = memory->memory[rank];
    return piece ? (char *)piece->base + offset : NULL;
}

/* Says to a checker of protocols that nobody but streams and kernels writes there, and that signals
 * and counters lie in words alone; over nodes the engine writes, too. */
void imx_memory_own(const imbrex_group *group, const imx_memory *memory, const imx_words *words,
                    int count);

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

/* The caller's piece that ptr lies in; NULL: it lies in none. */
const imx_symmetric *imx_memory_piece(const imbrex_group *group, const void *ptr);

/* rank's mapping of [ptr, ptr + bytes), which must lie in one piece of symmetric memory. */
imbrex_status imx_memory_find(imbrex_group *group, const char *what, const void *ptr, size_t bytes,
                              int rank, void **peer) IMX_MUST_CHECK;

/* ---- net.c ----------------------------------------------------------------------------------- */

/* Collective, with mine as in imx_agree: where there are several nodes, finds the engine that
 * reaches the others, and connects it. */
imbrex_status imx_net_begin(imbrex_group *group, const char *call,
                            imbrex_status mine) IMX_MUST_CHECK;
void imx_net_end(imbrex_group *group);

/* Part of a barrier: after all ranks of this node have come, holds the stream of its first rank
 * until all nodes have. */
imbrex_status imx_net_meet(imbrex_group *group, imbrex_stream stream) IMX_MUST_CHECK;

/* UNSUPPORTED if the engine would not tell a plan of this number from another. */
imbrex_status imx_net_check_number(const imbrex_group *group, int number) IMX_MUST_CHECK;

/* UNSUPPORTED if a graph is being captured on the stream and the engine's steps cannot be. */
imbrex_status imx_net_check_stream(const imbrex_group *group, imbrex_stream stream) IMX_MUST_CHECK;

/* Adds a line for each engine that is built in. */
void imx_net_info(imx_text *text);

/* Whether an engine that failed might still write into memory of the library: it stays then. */
static inline bool imx_net_stuck(const imbrex_group *group)
{
    return group->net_was_stuck ||
           (group->net && group->net_kind->stuck && group->net_kind->stuck(group->net));
}

/* ---- stream.c -------------------------------------------------------------------------------- */

/* NULL becomes the default stream.  INVALID: it is another group's, or none. */
static inline imbrex_status imx_stream_find(const imbrex_group *group, imbrex_stream *stream)
{
    const imx_backend *backend = group->backend;
    if (!*stream)
        *stream = group->stream;
    else if (backend->stream_is && !backend->stream_is(group->device, *stream))
        return imx_fail(IMBREX_INVALID,
                        "stream, %p, is not one of this group's: want NULL, or one that "
                        "imbrex_stream_create made with it",
                        *stream);
    return IMBREX_OK;
}

/* A copy where either memory may be any that the caller has.  Plans' runs call the backend's copy,
 * which does not look whose it is. */
imbrex_status imx_stream_copy(const imbrex_group *group, void *dst, const void *src, size_t bytes,
                              int rank, imbrex_stream stream) IMX_MUST_CHECK;

/* Makes imbrex_activate, the norm kernel and imbrex_exchange ready. */
imbrex_status imx_stream_begin(imbrex_group *group) IMX_MUST_CHECK;

/* Waits until the last of each is done and frees what they needed. */
void imx_stream_end(imbrex_group *group);

/* ---- gate.c: the same of imbrex_topk_gate ---------------------------------------------------- */

imbrex_status imx_gate_begin(imbrex_group *group) IMX_MUST_CHECK;
void imx_gate_end(imbrex_group *group);

#endif /* IMX_GROUP_H */
