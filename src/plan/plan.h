/* plan.h - an operator with its shape fixed, and what an operator file may do in a run.
 *
 * An operator is one file under ops/ with one imx_op row.  Its algorithms enqueue copies, posts,
 * waits and kernels through the functions below; they never see a backend or a transport.
 *
 * A plan has variants, each a way to do runs of up to so many rows.  They have the plan's number,
 * streams and order; of its memory, which is taken at once, each has regions of its own, and with
 * them its own uses, credits and whatever must be zero between runs.
 *
 * Memory of a variant: two buffers, used in turn, so that a run may start sending while peers still
 * read the one before.
 *
 *     shared, symmetric    buffer: | credits [R] | signals [needs.signals] | data [data_bytes] |
 *     local, this rank's   buffer: | epoch | done [..] | counters [..] | ended | data [bytes] |
 *
 * A run: epoch is raised by one on the caller's stream; all posts of the run carry *epoch; at the
 * end each rank gives every peer its credit for this epoch.  A writer waits for the reader's credit
 * for the epoch before (*epoch - 1) and then may overwrite the buffer.  imx_run_begin and
 * imx_run_end do this, or a kernel that is the whole run does (imx_gemm_args.ended), maybe as its
 * next run begins (push/args.h).
 */
#ifndef IMX_PLAN_H
#define IMX_PLAN_H

#include "args.h"
#include "kernels/gemm/args.h"
#include "kernels/push/args.h"
#include "kernels/reduce/args.h"
#include "request.h"
#include "tune/tune.h"

/* Where things lie in one buffer, in bytes from its start. */
typedef struct imx_offsets {
    size_t signals, data, buffer_bytes;               /* shared; credits lie at 0 */
    size_t done, counters, ended, local, local_bytes; /* local; epoch lies at 0 */
    size_t lines, lines_bytes;                        /* in data */
    size_t signal_count, done_count;
} imx_offsets;

/* One more stream, and an event that only this stream records.  On several nodes a plan has one
 * that adds parts up, and one for each of the engine's lanes. */
typedef struct imx_aux {
    imbrex_stream stream;
    imx_event *event;
} imx_aux;

enum { IMX_AUX_ADD, IMX_AUX_NET, IMX_AUXES = IMX_AUX_NET + IMX_NET_LANES };

/* One way to do a plan's runs: those of up to shape.m rows. */
struct imx_variant {
    imbrex_plan *plan;
    imx_shape shape;                /* the plan's, but for m */
    const imx_algorithm *algorithm; /* what runs do */
    const char *called;             /* the algorithm that was named or chosen, */
    bool measured;                  /* not only expected */
    char why[256];                  /* in words */
    imx_config config;
    imx_offsets offsets;
    size_t shared_at, local_at; /* its first buffer, in the plan's memory */
    imx_prepared *kernels[IMX_KERNELS];
    uint64_t runs; /* enqueued so far: its parity picks the buffer */
};

enum { IMX_VARIANTS = 12 };

struct imbrex_plan {
    imx_object object;
    imbrex_group *group;
    const imx_op *op;
    _Alignas(8) unsigned char desc[IMX_DESC_BYTES]; /* as it was given */
    imx_shape shape;
    imx_variant variants[IMX_VARIANTS]; /* of all rows; then of fewer, the fewest first */
    int variant_count;
    size_t shared_bytes, local_bytes; /* of all variants */
    imx_symmetric *shared;
    imx_memory *local;
    imbrex_stream comm; /* the second stream */
    imx_event *fork, *join;
    imx_aux aux[IMX_AUXES];
    int aux_count;                      /* 0 on one node */
    imx_stream_order order;             /* of runs */
    uint64_t sent_inside, sent_between; /* bytes of the latest run: to ranks of this node by copies,
                                           to other nodes by the engine */
};

/* What goes along with rows of this rank's that are gathered, under the same signals: as many rows
 * of another matrix.  They come in behind the first matrix, all ranks' together. */
typedef struct imx_along {
    const void *shard;
    size_t row_bytes; /* 0: nothing does */
    size_t at;        /* of shared data */
} imx_along;

/* One run being enqueued. */
struct imx_run {
    imbrex_plan *plan;
    const imx_variant *variant;
    union {
        const imbrex_args *args;
        const imbrex_decode_args *decode; /* as the operator takes them */
        const void *given;
    };
    imbrex_stream stream; /* the caller's */
    int64_t m;
    int rank, ranks;
    size_t shared_at, local_at; /* this buffer, in the plan's memory */
    uint64_t *epoch;            /* this buffer's, in local memory */
    size_t data_at, signals_at; /* of a second movement: behind what the first one needs */
    size_t credits_at, done_at; /* likewise, of one with an epoch of its own (imx_transfer_apart):
                                   bytes from the buffer's begin; local signals before its own */
    imx_along along;
};

/* Collective; desc: the operator's, NULL is INVALID. */
imbrex_status imx_plan_create(imbrex_group *group, const imx_op *op, const void *desc,
                              imbrex_plan **plan) IMX_MUST_CHECK;

/* Collective; call: the public function, for the sentences. */
imbrex_status imx_plan_create_asked(imbrex_group *group, const char *call,
                                    const imx_request *request, imbrex_plan **plan) IMX_MUST_CHECK;

/* What came of a plan: imbrex_plan_describe and imbrex_plan_facts say it. */
typedef struct imx_variant_facts {
    int64_t rows; /* at most */
    const char *algorithm;
    bool measured;
    int tile_rows, tile_cols;
} imx_variant_facts;

typedef struct imx_plan_facts {
    const char *algorithm;
    bool measured;      /* the algorithm, not only expected */
    int64_t chunk_rows; /* of a run of all rows, but for a rank's last */
    int tile_rows, tile_cols, blocks;
    int at_once;       /* SMs that a run needs all at once; 0: it goes on with any */
    bool spanning;     /* as in imx_config: tiles are cut as if all rows were one rank's */
    bool spans_chunks; /* likewise: tiles begin at own rows, and go on over others' */
    bool alone;        /* the product is made as if there were no peers, and added up behind */
    int parts, slices; /* as in imx_config */
    uint64_t sent_inside, sent_between;  /* by the latest run; see imbrex_plan */
    size_t symmetric_bytes, local_bytes; /* of all variants */
    const char *net;                     /* the engine between nodes; NULL: one node */
    const char *memory;                  /* the kind of symmetric memory; NULL: the usual one */
    imx_variant_facts fewer[IMX_VARIANTS - 1]; /* the variants of fewer rows */
    int fewer_count;
} imx_plan_facts;

imx_plan_facts imx_describe_facts(const imbrex_plan *plan); /* describe.c */

extern const imx_object_kind imx_plan_kind;

/* ---- plan_waits.c: see imx_object_kind ------------------------------------------------------- */

void imx_plan_waits_name(const imbrex_group *group, int point, imx_text *text);
void imx_plan_waits_describe(const imbrexd_wait_point *point, imx_text *text);
void imx_plan_waits_mismatch(const imbrex_group *group, const imbrexd_fault *fault, imx_text *text);

/* ---- variant.c ------------------------------------------------------------------------------- */

/* The rows of the variants that a plan is to have, as they are in it; returns how many. */
int imx_variant_rows(const imbrex_group *group, const imx_request *request,
                     int64_t rows[IMX_VARIANTS]);

/* Name i of the algorithms that the group's ranks may take, from 0 on; NULL: there are no more. */
const char *imx_variant_algorithm(const imbrex_group *group, const imx_op *op, int i);

/* Settles what a variant does: algorithm and cuts, for runs of up to request->shape.m rows. */
imbrex_status imx_variant_decide(imx_variant *variant, const imx_request *request) IMX_MUST_CHECK;

/* Sets offsets. */
void imx_variant_lay_out(imx_variant *variant);

/* For imx_algorithm.prepare: makes kernel number i ready. */
imbrex_status imx_variant_prepare(imx_variant *variant, int i, const imx_kernel *kernel,
                                  const void *largest) IMX_MUST_CHECK;

/* The same for a kernel that has so many blocks at most. */
imbrex_status imx_variant_prepare_blocks(imx_variant *variant, int i, const imx_kernel *kernel,
                                         const void *largest, int blocks) IMX_MUST_CHECK;

/* The tile order of a run in which `first`'s rows come first and the solo-th rank from there stands
 * alone; m: variant->shape.m in prepare.  Where tiles span ranks (imx_config.spanning), all
 * rows are one chunk of one rank. */
imx_schedule imx_variant_schedule(const imx_variant *variant, int64_t m, int first, int solo);

/* The one that a run of m rows goes by. */
imx_variant *imx_variant_of(imbrex_plan *plan, int64_t m);

/* What the wait point has for a plan: the plan's number, and above it which variant's run. */
enum { IMX_VARIANT_SHIFT = 27 };

static inline int imx_variant_point(const imx_variant *variant)
{
    return variant->plan->object.number | (int)(variant - variant->plan->variants)
                                              << IMX_VARIANT_SHIFT;
}

static inline int imx_variant_plan_number(int point)
{
    return point & ((1 << IMX_VARIANT_SHIFT) - 1);
}

/* NULL: gone. */
const imx_variant *imx_variant_by_point(const imbrex_group *group, int point);

/* Rows of a chunk of a run of m rows, but for a rank's last. */
static inline int64_t imx_variant_chunk_rows(const imx_variant *variant, int64_t m)
{
    return imx_tune_chunk_rows(&variant->config, imx_ceil_div(m, variant->plan->group->size));
}

/* ---- choose.c -------------------------------------------------------------------------------- */

/* What a variant takes if nobody names an algorithm, and why, in words. */
typedef struct imx_choice {
    const char *algorithm;
    char why[100];
} imx_choice;

/* From the input and how it is cut. */
/* Sets what of the input depends on which algorithms may be taken: named, or, if that is NULL, any
 * that ranks like these can run. */
void imx_choose_offers(const imx_op *op, const imx_algorithm *named, imx_tune_input *input);

imx_choice imx_choose(const imx_op *op, const imx_tune_input *input, const imx_config *config);

/* ---- run.c: a run ---------------------------------------------------------------------------- */

/* What imbrex_plan_run and its like do, of whichever operator; args: of the type that it takes. */
imbrex_status imx_run_given(imbrex_plan *plan, const void *args,
                            imbrex_stream stream) IMX_MUST_CHECK;

/* ---- run.c: addresses in the run's buffer ---------------------------------------------------- */

int64_t imx_run_row(const imx_run *run, int rank);  /* first row of rank */
int64_t imx_run_rows(const imx_run *run, int rank); /* how many rows rank owns */
int imx_run_chunks(const imx_run *run, int rank);   /* how many chunks those are */
int64_t imx_run_chunk_rows(const imx_run *run, int rank, int q);

void *imx_run_data(const imx_run *run, int rank);       /* rank's shared data, as mapped here */
uint64_t *imx_run_signal(const imx_run *run, int rank); /* rank's shared signals, likewise */
void *imx_run_local(const imx_run *run);                /* local data */
uint64_t *imx_run_done(const imx_run *run);             /* local signals */
uint32_t *imx_run_counters(const imx_run *run);
uint32_t *imx_run_ended(const imx_run *run); /* the last counter */
imx_team imx_run_team(const imx_run *run);   /* for a kernel; up to IMX_TEAM_MOST ranks */

/* ---- run.c: work on a stream ----------------------------------------------------------------- */

/* fork: the plan's other streams go on from here; join: the caller's stream waits for them. */
imbrex_status imx_run_fork(const imx_run *run) IMX_MUST_CHECK;
imbrex_status imx_run_join(const imx_run *run) IMX_MUST_CHECK;

/* `to` goes on when side is done with all that it has so far. */
imbrex_status imx_run_hand_over(const imx_run *run, const imx_aux *aux,
                                imbrex_stream to) IMX_MUST_CHECK;

/* Into rank's memory, or out of it. */
imbrex_status imx_run_copy(const imx_run *run, imbrex_stream stream, void *dst, const void *src,
                           size_t bytes, int rank) IMX_MUST_CHECK;

/* Raises a signal, in any rank's memory, to *epoch. */
imbrex_status imx_run_post(const imx_run *run, imbrex_stream stream, uint64_t *signal,
                           int rank) IMX_MUST_CHECK;

/* Holds the stream until one's own signal is at *epoch. */
imbrex_status imx_run_wait(const imx_run *run, imbrex_stream stream, uint64_t *signal, int what,
                           int rank, int index) IMX_MUST_CHECK;

/* One step of the engine between nodes, in one of its lanes: when it is over, raises the signals,
 * one's own, to *epoch.  A transfer without bytes or without signal leaves that out; all of them
 * together: nothing. */
typedef struct imx_transfer {
    imx_net_op op;
    uint64_t *signal; /* NULL: none */
} imx_transfer;

imbrex_status imx_run_step(const imx_run *run, imbrex_stream stream, int lane,
                           const imx_transfer *transfers, int count) IMX_MUST_CHECK;

imbrex_status imx_run_launch(const imx_run *run, imbrex_stream stream, int kernel, const void *args,
                             size_t args_bytes) IMX_MUST_CHECK;

/* On the caller's stream; nothing where c is empty. */
imbrex_status imx_run_gemm(const imx_run *run, int kernel,
                           const imx_gemm_args *args) IMX_MUST_CHECK;

/* On the caller's stream: raises signal `mine` of every peer of this node, then waits until every
 * such peer r has raised one's own signal r * stride: all have come this far. */
imbrex_status imx_run_meet(const imx_run *run, int mine, int stride, int what) IMX_MUST_CHECK;

/* What a run begins and ends with, on the caller's stream.  begin: advances epoch and waits
 * until all peers of this node have read this buffer's previous epoch: then it may be overwritten.
 * end: gives them this rank's credit. */
imbrex_status imx_run_begin(const imx_run *run) IMX_MUST_CHECK;
imbrex_status imx_run_end(const imx_run *run) IMX_MUST_CHECK;

#endif /* IMX_PLAN_H */
