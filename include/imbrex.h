/* imbrex.h - distributed matrix operators that hide communication behind computation.
 *
 * A group is a set of ranks that own memory together.  Symmetric memory exists once on every rank,
 * at the same size, and every rank of the node can reach all of it.  A plan is an operator with its
 * shape fixed: making one is collective and slow; running one is local, asynchronous, and allocates
 * nothing.
 *
 *     imbrex_group *group;
 *     imbrex_plan *plan;
 *     imbrex_gemm_desc desc = { .m = 8192, .n = 3584, .k = 4096 };
 *
 *     imbrex_group_create(&(imbrex_group_desc){ 0 }, &group);
 *     imbrex_plan_ag_gemm(group, &desc, &plan);
 *     imbrex_plan_run(plan, &(imbrex_args){ .a = a, .b = b, .c = c }, NULL);
 *     imbrex_stream_sync(group, NULL);
 *     imbrex_plan_destroy(plan);
 *     imbrex_group_destroy(group);
 *
 * Rules that hold everywhere
 *   Status      Functions return IMBREX_OK or say who must act; outputs are written only on OK.
 *   Desc        Zero-initialise it.  Zero means "the library chooses".  Reserved fields must stay
 *               zero: else UNSUPPORTED.
 *   Collective  imbrex_group_create, imbrex_group_split, imbrex_mem_alloc, what makes plans,
 *               imbrex_tune and imbrex_kernel_create: every rank calls, in the same order, with an
 *               equal desc, and the call returns when all have.  A mismatch is an error on every
 *               rank, which names the field and the rank; it is never a deadlock.
 *   Stream      A function that takes a stream only enqueues.  NULL is the group's default stream.
 *               On "cuda" a stream is a CUstream, and NULL is not CUDA's default stream: the
 *               group's own is ordered with nothing else.  CUDA's is (imbrex_stream)1, which is
 *               CU_STREAM_LEGACY, or 2, CU_STREAM_PER_THREAD; no graph can be captured there.
 *               On "cpu" a stream holds 512 copies, posts, waits and kernels (a run is several):
 *               with so many unfinished, enqueuing blocks until the oldest is done, at the latest
 *               by its deadline.  One thread that enqueues for several ranks must stay below that.
 *   Graph       On "cuda", inside a node, what is enqueued can be captured in a CUDA graph and
 *               replayed: all ranks replay equally often, in the same order.  What is promised
 *               about different streams holds outside of captures and within one; that a replay
 *               does not run at once with other runs of its plans is for the caller to see to, for
 *               example by one stream for both.
 *   Node        The ranks that reach each other's memory: those of one host, or of one IMBREX_NODE
 *               on it, which follow each other in rank order.  Over several nodes, plans are
 *               "hierarchical" or "sequential" (all_to_all: none), want as many ranks on each, and
 *               an engine carries the data from node to node: docs/nodes.md.
 *   Matrix      Dense and row-major; name[rows, cols].  Sizes are in elements unless the name says
 *               bytes.  A plan's m, n and k are at most 2^31 - 4097.  R ranks; rank r owns rows
 *               r*m/R up to (r+1)*m/R, rounded down: maybe none.
 *   Budget      Plans that run at once on one device must fit their budgets (desc.sms) together, or
 *               they may time out: those at least of which imbrex_plan_describe says that they need
 *               all their SMs at once.  A product with m > 128 may take two SMs on a GPU of compute
 *               capability 9.0 where its budget is one, and leaves none of two: where ranks share a
 *               GPU, and copy by its SMs, give each at least three.
 *   Threads     A group, and all that was made from it, belongs to one thread at a time: a call
 *               while another thread is in one gets INVALID, which says so; one that returns no
 *               status waits for the other.  Any thread may call imbrex_group_abort, what says who
 *               the group is (rank, size, node, device, describe), and, while nothing of the group
 *               is made or destroyed, imbrex_group_status.  Different groups are independent.
 *   Fork        A child of fork cannot use its parent's groups, nor what was made from them: its
 *               calls get INVALID, or do nothing, and the parent does not notice.  To destroy a
 *               group there gives back the child's own descriptors and mappings, which else last as
 *               long as it does.  It may make groups of its own, on "cpu".
 *   NULL        What must not be NULL and is gives INVALID, which says so; so does a group, a plan
 *               or a kernel that was destroyed, unless another now has its address.
 *   Destroy     Takes NULL, and what was destroyed before; never fails; undoes the matching create.
 *   Failure     Every wait for a peer ends after timeout_ms.  The first that does ends all others,
 *               on every rank, and the group stays failed: destroy it and make a new one.
 */
#ifndef IMBREX_H
#define IMBREX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IMBREX_API __attribute__((visibility("default")))
#define IMBREX_TRY __attribute__((visibility("default"), warn_unused_result)) imbrex_status

#define IMBREX_VERSION_MAJOR 0
#define IMBREX_VERSION_MINOR 1
#define IMBREX_VERSION_PATCH 0

typedef struct imbrex_group imbrex_group;
typedef struct imbrex_plan imbrex_plan;
typedef void *imbrex_stream;

/* ---- Status ---------------------------------------------------------------------------------- */

/* Who must act?  Values never change meaning. */
typedef enum imbrex_status {
    IMBREX_OK = 0,
    IMBREX_INVALID = 1,     /* an argument is wrong, or a name unknown: fix the caller */
    IMBREX_UNSUPPORTED = 2, /* right, but not on this device, build or shape */
    IMBREX_NO_MEMORY = 3,   /* host or device memory ran out */
    IMBREX_SYSTEM = 4,      /* an operating-system call failed */
    IMBREX_DEVICE = 5,      /* a device or its driver failed */
    IMBREX_PEER = 6,        /* another rank disagreed, failed or left */
    IMBREX_TIMEOUT = 7,     /* no progress for timeout_ms */
    IMBREX_INTERNAL = 8     /* a bug in imbrex */
} imbrex_status;

IMBREX_API const char *imbrex_status_name(imbrex_status status); /* "IMBREX_PEER"; never NULL */

/* What went wrong in this thread's last call that returns a status, in a sentence that names the
 * function, the argument and the rank; "" if nothing did.  Never NULL; valid until its next call
 * that returns one: what destroys or frees leaves it alone.  Control characters in it, but for ends
 * of lines and tabs, are '?'. */
IMBREX_API const char *imbrex_error(void);

IMBREX_API const char *imbrex_version(void); /* "0.1.0", of the library that is loaded */

/* What this build and this machine can do, one "key: value" a line.  Writes at most size bytes with
 * the final NUL and returns the length of the whole text, as snprintf does; size may be 0. */
IMBREX_API size_t imbrex_info(char *text, size_t size);

/* ---- Group ----------------------------------------------------------------------------------- */

/* All that imbrex asks of a launcher: who am I, and swap small blobs.  allgather is called by all
 * ranks in the same order, from the thread that called imbrex; recv gets size * bytes, rank r's
 * blob at r * bytes; it returns 0, or anything else on failure.  The struct and ctx must live until
 * the group is destroyed; with once, until imbrex_group_create returns.
 *
 * once: not 0: allgather is called only at the beginning of imbrex_group_create, with which the
 * ranks make connections of their own.  What they swap from then on has timeout_ms as its limit,
 * and an abort or a death of a rank ends it.  The same on all ranks. */
typedef struct imbrex_bootstrap {
    int rank, size;
    int (*allgather)(void *ctx, const void *send, void *recv, size_t bytes);
    void *ctx;
    int once;
    uint64_t reserved[1];
} imbrex_bootstrap;

/* The launcher that has started this process as one of its ranks, by the rules of a group without a
 * bootstrap: "torchrun" (imbrex run too), "mpirun", "mpiexec", "srun"; NULL: none.  *rank and *size
 * get what it says, -1 and 0 where that is missing or no number, which imbrex_group_create refuses.
 * Local, and never fails. */
IMBREX_API const char *imbrex_launcher(int *rank, int *size);

typedef struct imbrex_group_desc {
    const imbrex_bootstrap
        *bootstrap;     /* NULL: what torchrun, mpirun or srun put in the environment */
    const char *device; /* "cpu", "cuda", "cuda:3"; NULL: the best one here; "compile:90": plans'
                           kernels are compiled and kept for an sm_90, and nothing can run */
    int64_t timeout_ms; /* limit on any wait for a peer, at most 10^9; 0: IMBREX_TIMEOUT_MS,
                           or 30000 */
    uint64_t reserved[4];
} imbrex_group_desc;

/* Collective. */
IMBREX_TRY imbrex_group_create(const imbrex_group_desc *desc, imbrex_group **group);

/* Collective over parent: the ranks that give one color make a group, numbered in the order of
 * their keys, or of their ranks in parent where keys are equal.  color < 0: none for this rank, and
 * *child is NULL; it takes part all the same, and waits until the others' are made.
 *
 * A child is a group like any other, on parent's device and with its limit: memory, plans and
 * streams of its own.  Ranks meet over parent's exchange, nobody else can come.  Failures stay
 * apart: what fails or is aborted in a child leaves parent and the other children as they are, and
 * the reverse; a rank that dies fails each group that it is in.  Parent may be destroyed before its
 * children.  Children of one rank need their budgets (desc.sms) together, and on "cuda"
 * CUDA_DEVICE_MAX_CONNECTIONS=32.  If a group cannot be made on some rank none is made, on any:
 * PEER with that rank's sentence.  docs/subgroups.md */
IMBREX_TRY imbrex_group_split(imbrex_group *parent, int color, int key, imbrex_group **child);

/* Local, not collective.  Waits until the group's streams are idle, then frees all that was made
 * from it: plans, kernels, streams and memory are then not to be used any more, and need not be
 * destroyed. */
IMBREX_API void imbrex_group_destroy(imbrex_group *group);

/* Of NULL: rank -1 of 0 ranks, on the device "". */
IMBREX_API int imbrex_group_rank(const imbrex_group *group);
IMBREX_API int imbrex_group_size(const imbrex_group *group);

/* The node that rank is on: they are numbered from 0, in the order of their ranks.  -1: there is no
 * such rank. */
IMBREX_API int imbrex_group_node(const imbrex_group *group, int rank);

/* The device of this rank in a form that a desc takes, "cuda:1".  Lives as long as the group. */
IMBREX_API const char *imbrex_group_device(const imbrex_group *group);

/* One line for people: the ranks, their device, and which of them are on which node.  Writes and
 * returns as snprintf does. */
IMBREX_API size_t imbrex_group_describe(const imbrex_group *group, char *text, size_t size);

/* What failed so far.  Never blocks.  From any thread, see Threads. */
IMBREX_TRY imbrex_group_status(const imbrex_group *group);

/* Ends every wait on every rank, with PEER, but for what waits in the allgather of a bootstrap of
 * the caller's (imbrex_bootstrap, once): that is the caller's to end.  From any thread.  Takes
 * NULL. */
IMBREX_API void imbrex_group_abort(imbrex_group *group);

/* The same, and every rank's sentence ends with why: one line in UTF-8, of which 255 bytes are kept
 * and control characters become '?'.  The first text of a rank counts.  NULL: none. */
IMBREX_API void imbrex_group_abort_because(imbrex_group *group, const char *why);

/* For wrappers with checks of their own, in the place of a call that they refuse.  call: its name,
 * "imbrex_plan_run", of those that other ranks may wait for, "imbrex_plan_create" for all that make
 * plans.  INVALID, and imbrex_error() says why; or why the group has failed.
 *
 * Of what enqueues: local, and nothing has failed; who waits for this rank in vain hears why, as of
 * a refusal of the library's own (imbrex_plan_run), until that call is made and not refused.
 * Collective calls: this takes part, and the others' end at once: PEER with why.  So it does in the
 * place of what enqueues where a rank of this node is in a collective call by now. */
IMBREX_TRY imbrex_group_refuse(imbrex_group *group, const char *call, const char *why);

/* ---- Streams, symmetric memory, one-sided operations ----------------------------------------- */

/* Work on one stream runs in order; different streams run at once. */
IMBREX_TRY imbrex_stream_create(imbrex_group *group, imbrex_stream *stream);
/* Once all work on the stream is done; a stream that is not of this group is left alone. */
IMBREX_API void imbrex_stream_destroy(imbrex_group *group, imbrex_stream stream);

/* Blocks until all work on the stream is done, and says what failed in the group so far. */
IMBREX_TRY imbrex_stream_sync(imbrex_group *group, imbrex_stream stream);

/* Symmetric memory: zeroed, 256-byte aligned, bytes > 0 and the same on every rank.  Collective.
 * It has all its pages: what does not fit into free memory is NO_MEMORY, here as in plans.
 * Free is local, and at once; the caller sees to it that nothing enqueued uses the memory any more,
 * here or by a peer (imbrex_barrier does, and imbrex_stream_sync behind it).  ptr: as alloc gave
 * it; anything else is left alone. */
IMBREX_TRY imbrex_mem_alloc(imbrex_group *group, size_t bytes, void **ptr);
IMBREX_API void imbrex_mem_free(imbrex_group *group, void *ptr);

/* Where rank's copy of ptr is mapped here; NULL if rank is on another node, which imbrex_put and
 * imbrex_signal_post do not reach either, but imbrex_exchange.  ptr lies anywhere in memory from
 * imbrex_mem_alloc.  Local. */
IMBREX_TRY imbrex_mem_peer(imbrex_group *group, const void *ptr, int rank, void **peer);

/* Copies bytes within this rank: host or device memory, not overlapping.  On a GPU, memory of the
 * host that is not pinned makes this, and imbrex_put, wait until the stream has come to it. */
IMBREX_TRY imbrex_copy(imbrex_group *group, void *dst, const void *src, size_t bytes,
                       imbrex_stream stream);

/* Copies bytes from src, any memory of this rank, to rank's copy of dst, symmetric memory.  rank
 * may be the caller's own; then src and dst must not overlap.  On another node: UNSUPPORTED. */
IMBREX_TRY imbrex_put(imbrex_group *group, void *dst, const void *src, size_t bytes, int rank,
                      imbrex_stream stream);

/* A signal is a uint64_t in symmetric memory, 8-byte aligned, that has one writer and only grows.
 * post: once everything enqueued on the stream before it is visible to rank, raise rank's copy;
 * UNSUPPORTED if rank is on another node.
 * wait: hold the stream until this rank's own copy is at least value. */
IMBREX_TRY imbrex_signal_post(imbrex_group *group, uint64_t *signal, uint64_t value, int rank,
                              imbrex_stream stream);
IMBREX_TRY imbrex_signal_wait(imbrex_group *group, const uint64_t *signal, uint64_t value,
                              imbrex_stream stream);

/* Holds the stream until every rank's stream has come to its barrier; what ranks put before is then
 * visible.  All ranks enqueue their barriers in the same order, each on one stream at a time. */
IMBREX_TRY imbrex_barrier(imbrex_group *group, imbrex_stream stream);

/* For IMBREX_CHECK=1 (docs/failure.md): the host now reads bytes at ptr by itself.  INVALID, and
 * the group has failed, if a peer or a kernel wrote them and nothing that this rank has waited for
 * (imbrex_stream_sync) comes after that.  OK without the checker, and for memory that is not
 * symmetric: nothing is looked at.  Local. */
IMBREX_TRY imbrex_check_read(imbrex_group *group, const void *ptr, size_t bytes);

/* What goes one way between this rank and the one that has the same number within another node. */
typedef struct imbrex_transfer {
    int rank;         /* that one */
    const void *send; /* memory of the group's device; NULL: this rank receives */
    void *recv;       /* symmetric memory, which overlaps nothing else here; NULL: it sends */
    size_t bytes;     /* the same on both ranks; 0: nothing goes */
    uint64_t reserved[2];
} imbrex_transfer;

/* Between nodes: holds the stream until all that the transfers send may be written again and all
 * that they receive is here.  They begin together, and none waits for another; count: at most 8.
 * Kernels and other streams of this rank learn of it by a post to its own signal, behind it.
 *
 * The n-th send to a rank meets its n-th receive from here.  Exchanges of a group follow each
 * other, also on different streams; all ranks enqueue those that they take part in, their barriers
 * and their runs in one order.  A rank that never comes is TIMEOUT.  UNSUPPORTED: the other rank is
 * on this node, which is imbrex_put's, or has another number within its own; or a graph is being
 * captured and the engine cannot be. */
IMBREX_TRY imbrex_exchange(imbrex_group *group, const imbrex_transfer *transfers, int count,
                           imbrex_stream stream);

/* ---- Plans ----------------------------------------------------------------------------------- */

/* DEFAULT: BF16 for what is called dtype; what dtype is for other types of one desc, or BF16 where
 * that has 8 bits.  E4M3: largest number 448, no infinities; E5M2: largest number 57344.  Both are
 * for products, as desc.dtype: with E5M2 a is that and b is E4M3.  Quantised results are E4M3. */
typedef enum imbrex_dtype {
    IMBREX_DTYPE_DEFAULT,
    IMBREX_BF16,
    IMBREX_F16,
    IMBREX_F32,
    IMBREX_E4M3,
    IMBREX_E5M2
} imbrex_dtype;

/* How many elements share a scale, a float32: an element stands for itself times its scale. */
typedef enum imbrex_scaling {
    IMBREX_UNSCALED,
    IMBREX_PER_TENSOR, /* all: [1] */
    IMBREX_PER_ROW,    /* a row's: [rows]; of b a column of the product's: [n] */
    IMBREX_PER_BLOCK   /* 128 of a row that follow each other: [rows, n/128], of a product's a
                          [rows, k/128]; of b 128 x 128: [n/128, k/128]; all rounded up */
} imbrex_scaling;

/* How b lies: [n, k] or [k, n]. */
typedef enum imbrex_layout { IMBREX_NK, IMBREX_KN } imbrex_layout;

/* What happens to rows before they are stored:
 *     h = x + bias + residual, of those that are given, in float32, rounded once; x: the sum
 *     c = h, or, with rms, h / rms(h) * (gamma + gamma_offset), in float32, rounded once;
 *         rms(h) = sqrt(mean(h^2) + eps)
 * With quant c is then c / scale as E4M3.  docs/numerics.md says how; bits of a row depend on that
 * row alone. */
typedef struct imbrex_norm {
    int rms;            /* 0 or 1 */
    int shard_residual; /* all_reduce, gemm_ar: 1: residual and h are this rank's rows alone, c has
                             all; not by "ll", "ll2", "reduce_push", "reduce_push2".
                             reduce_scatter, gemm_rs, where they are so anyway: either */
    float eps;          /* 0: 1e-6 */
    float gamma_offset; /* 1 for models whose weights are stored as gamma - 1 */
    imbrex_scaling quant; /* PER_TENSOR: args.scale_c is read; PER_ROW, PER_BLOCK: written, each the
                             largest number under it / 448, and at least 2^-9 / 448 */
    int power_of_two;     /* 1: written scales are rounded up to powers of two */
    uint32_t reserved[4];
} imbrex_norm;

/* Algorithms: "sequential", "copy", "store", "ll", "ll2", "pull", "ring", "hierarchical"; gemm_rs
 * for "store" "scatter_push", "reduce_push", "reduce_pull"; gemm_ar "reduce_push", "reduce_push2".
 * docs/algorithms.md: what each moves and needs, and which operators have it.  All cut the product
 * into the same tiles and give the same bits, but for few rows by plans with variants (m_least),
 * and for some rows on Hopper (docs/numerics.md, 3). */
typedef struct imbrex_gemm_desc {
    int64_t m, n, k; /* the product of one rank: [m, k] * b; m: the most that a run may ask for */
    imbrex_dtype dtype;    /* of a and b; sums are kept in float32.  E4M3, E5M2: k is a multiple of
                            * 16 and b lies as [n, k], else UNSUPPORTED */
    imbrex_layout layout;  /* of b */
    const char *algorithm; /* a name from above; NULL: chosen, and imbrex_plan_describe says why */
    int chunk_rows;        /* rows that travel under one signal, rounded up to whole tiles; a run's
                            * rows are cut as evenly as those allow; 0: chosen */
    /* SMs, at most those that the device has, or threads on "cpu", at most 1024, that a run may
     * hold (more: UNSUPPORTED); 0: all SMs, or IMBREX_CPU_THREADS.  A run waits until it has all of
     * them, and peers wait for it: runs that are to go on beside each other, on streams of their
     * own, must fit in together. */
    int sms;
    /* The fewest rows of a run that is to be fast.  What is best for many rows takes several times
     * as long as it must for few: so a plan on "cuda", of ranks of one node, whose algorithm and
     * chunk_rows are the library's choice, has variants for up to 64, 128, 256, 384, 512, 640,
     * 768, 1024, 1280, 1536 and 2048 rows, of those from m_least to 3/4 m, and a run goes by the
     * first that it fits in.  All of them together take about the memory of 9000 to 15000 rows, of
     * up to 27000 the more of them are "ll", and time when the plan is made; m_least = m makes
     * none.  In imbrex_kernel_desc.gemm it must be 0. */
    int64_t m_least;
    imbrex_norm norm; /* gemm_rs, gemm_ar: what happens to the sum; else 0 */
    /* 1: bits of a row of the product do not depend on m, nor on the other rows: k is added up as
     * n and k alone decide.  On "cuda" few rows of a wide b may take longer; on "cpu" no BLAS is
     * asked.  docs/numerics.md */
    int batch_invariant;
    imbrex_dtype out;       /* of c and bias: BF16, F16 or F32 where dtype has 8 bits; else dtype */
    imbrex_scaling scaling; /* of a and b, where dtype has 8 bits */
    /* Where dtype has 8 bits: 1: sums stay in the device's own accumulator over all of k, which on
     * GPUs is faster and has fewer bits than float32 (docs/numerics.md); not PER_BLOCK. */
    int fast_accumulation;
    uint32_t reserved[6];
} imbrex_gemm_desc;

/* A count of a run: 0 is the plan's most, and this is none. */
#define IMBREX_NONE (-1)

typedef struct imbrex_coll_desc {
    int64_t m, n; /* the matrix [m, n] of the table below; m: the most that a run may ask for */
    imbrex_dtype dtype;
    const char *algorithm;
    int chunk_rows, sms;
    imbrex_norm norm; /* reduce_scatter, all_reduce: what happens to the sum; else 0 */
    uint32_t reserved[8];
} imbrex_coll_desc;

/* What the operator does not list below must be NULL: else INVALID, naming it. */
typedef struct imbrex_args {
    const void *a, *b, *bias; /* bias[n] or NULL, alike on all ranks: each adds it to its own rows
                                 of c, in gemm_rs and gemm_ar once, to the sum */
    void *c, *gathered; /* gathered[m, k]: all of a, ag_gemm only, or NULL; ranks may differ.  NaN
                           may come with other bits */
    int64_t m;          /* rows of this run, alike on all ranks.  0: all of the plan's m;
                           IMBREX_NONE: none, and nothing is enqueued */
    const void *residual, *gamma; /* as imbrex_norm says: like c, [n] */
    void *h;                      /* like c, may be residual; NULL: not wanted */
    void *normed;                 /* c as it was before it was quantised; NULL: not wanted */
    float *scale_c;               /* as norm.quant says, on the device */
    const int32_t *ids;           /* of MoE, as imbrex_moe.h says */
    const float *weights;
    const struct imbrex_routing *routing; /* the struct is read during the call */
    int64_t own; /* tokens of this rank, where that is its own affair.  0: the most; IMBREX_NONE */
    /* As desc.scaling says, dense, on the device.  scale_a is of the rows that a has here; in
     * ag_gemm it travels with them, but PER_TENSOR, which is then alike on all ranks. */
    const float *scale_a, *scale_b;
    uint64_t reserved[6];
} imbrex_args;

/* Collective.      a            b                   c
 *   all_gather      [rows, n]    -                   [m, n]      c = a of all ranks
 *   reduce_scatter  [m, n]       -                   [rows, n]   c = my rows of the sum of a
 *   all_reduce      [m, n]       -                   [m, n]      c = the sum of a; may be a itself
 *   all_to_all      [m, n]       -                   [R*rows, n] c = all ranks' blocks for me
 *   ag_gemm         [rows, k]    [n, k] or [k, n]    [m, n]      c = all_gather(a) * b + bias
 *   gemm_rs         [m, k]       [n, k] or [k, n]    [rows, n]   c = reduce_scatter(a * b) + bias
 *   gemm_ar         [m, k]       [n, k] or [k, n]    [m, n]      c = all_reduce(a * b) + bias
 *   gemm            [m, k]       [n, k] or [k, n]    [m, n]      c = a * b + bias, without peers
 *
 * rows: this rank's shard of the run's m; R: ranks.  * b: with b as [n, k], times its transpose.
 * all_to_all: rank r's block of a, the rows that r owns, goes to r, whose c has the blocks in rank
 * order; for ranks of one node.  What adds up over ranks (reduce_scatter, all_reduce, gemm_rs,
 * gemm_ar) takes bias, residual and h, and what desc.norm asks for: c is then what imbrex_norm says
 * of the sum.  bias, gamma and the residual of all_reduce and gemm_ar are alike on all ranks.  Any
 * size may be 0.  Inputs and outputs are ordinary memory of the group's device and must not
 * overlap, but for h = residual and, in all_reduce, where c is not quantised, c = a.
 * They need the alignment of their element, else INVALID; those of a product on "cuda", but for
 * bias, gamma and scale_c, need 16 bytes, else UNSUPPORTED.  An empty matrix may be NULL, or lie
 * anywhere.
 *
 * Every rank's partial, one's own too, is rounded to the type of c; the partials are added in
 * rank order in float32, then bias, then residual, then one rounding: the same inputs give the same
 * bits on every run, and gemm_ar those of gemm_rs and an all_gather behind it.  Over several nodes
 * each node's sum is rounded to that type, and these are added in the order of the nodes. */
IMBREX_TRY imbrex_plan_all_gather(imbrex_group *group, const imbrex_coll_desc *desc,
                                  imbrex_plan **plan);
IMBREX_TRY imbrex_plan_reduce_scatter(imbrex_group *group, const imbrex_coll_desc *desc,
                                      imbrex_plan **plan);
IMBREX_TRY imbrex_plan_all_reduce(imbrex_group *group, const imbrex_coll_desc *desc,
                                  imbrex_plan **plan);
IMBREX_TRY imbrex_plan_all_to_all(imbrex_group *group, const imbrex_coll_desc *desc,
                                  imbrex_plan **plan);
IMBREX_TRY imbrex_plan_ag_gemm(imbrex_group *group, const imbrex_gemm_desc *desc,
                               imbrex_plan **plan);
IMBREX_TRY imbrex_plan_gemm_rs(imbrex_group *group, const imbrex_gemm_desc *desc,
                               imbrex_plan **plan);
IMBREX_TRY imbrex_plan_gemm_ar(imbrex_group *group, const imbrex_gemm_desc *desc,
                               imbrex_plan **plan);
IMBREX_TRY imbrex_plan_gemm(imbrex_group *group, const imbrex_gemm_desc *desc, imbrex_plan **plan);

/* ---- What operators there are ---------------------------------------------------------------- */

/* For tools and bindings that treat all operators alike. */
enum {
    IMBREX_FIELD_REQUIRED = 1, /* of a desc: has no default */
    IMBREX_FIELD_INPUT = 2,    /* an operand that is read, */
    IMBREX_FIELD_OUTPUT = 4,   /* or written */
    IMBREX_FIELD_OPTIONAL = 8, /* an operand that may be NULL */
    IMBREX_FIELD_RUN = 16      /* a size: the desc's is the most, args say a run's */
};

/* A field of an operator's desc or args. */
typedef struct imbrex_field {
    const char *name;  /* "experts"; of a struct in it, or behind a pointer, "norm.eps" */
    const char *type;  /* "int64", "int", "float", "dtype", "cache" (dtype or E4M3), "layout",
                         "scaling", "experts", "string"; of an operand what lies there: "matrix"
                         (of the plan's dtype), "result", "int32", "float32";
                         of what args point to: "struct" */
    const char *text;  /* what it is, in words */
    const char *shape; /* of an operand: "[rows, k]", by layout "[n, k] or [k, n]"; else NULL */
    size_t offset, bytes;
    int flags;
    signed char own[12]; /* the library's: imbrex_plan_operand says what it means */
    uint64_t reserved[2];
} imbrex_field;

typedef struct imbrex_op_info {
    const char *name, *text;
    const imbrex_field *desc, *args; /* [desc_fields], [args_fields] */
    int desc_fields, args_fields;
    size_t desc_bytes, args_bytes;
    uint64_t reserved[4];
} imbrex_op_info;

IMBREX_API const imbrex_op_info *imbrex_op(int i); /* from 0; NULL behind the last */

/* Collective: what imbrex_plan_X does for operator "X".  desc_bytes: sizeof *desc, which must be
 * desc_bytes of its imbrex_op_info. */
IMBREX_TRY imbrex_plan_create(imbrex_group *group, const char *op, const void *desc,
                              size_t desc_bytes, imbrex_plan **plan);

/* Local: the shape and type that field number i of the operator's args has on this rank in a run of
 * m rows (0: of the plan's m; IMBREX_NONE: of none).  Dimensions that it does not have are -1.
 * INVALID: no operand. */
IMBREX_TRY imbrex_plan_operand(const imbrex_plan *plan, int i, int64_t m, int64_t shape[4],
                               imbrex_dtype *dtype);

IMBREX_API size_t
imbrex_plan_memory(const imbrex_plan *plan); /* bytes of this rank that it holds */

/* 1: a graph has captured a run of it, and the plan has to outlive the graph's last replay.  Else
 * 0. */
IMBREX_API int imbrex_plan_captured(const imbrex_plan *plan);

/* How imbrex_tune gets on: one candidate was timed once more, or dropped. */
typedef struct imbrex_tune_step {
    const char *algorithm;
    int chunk_rows;      /* 0: as a plan chooses */
    double us;           /* of a run on the slowest rank, the median so far; dropped: 0 */
    const char *dropped; /* on all ranks: why, in words; else NULL.  Valid during the call */
    double done;         /* how much of all, from 0 to 1; 1: this candidate is the one */
    uint64_t reserved[2];
} imbrex_tune_step;

typedef void (*imbrex_tune_progress)(void *ctx, const imbrex_tune_step *step);

/* Collective: times an operator ("ag_gemm") at the shape of its desc, on random inputs and a stream
 * of its own, by every algorithm and then with several chunk sizes (unless desc gives one, or
 * tiles have rows of several ranks), all ranks in lockstep, and keeps the fastest on disk: from
 * then on plans of that shape, dtype, layout, budget (desc.sms) and number of ranks, whose desc
 * names no algorithm, take it on such devices and links, and so do variants of other
 * plans.  No size may be 0.  desc, desc_bytes: as in imbrex_plan_create.
 * desc.algorithm must be NULL, and IMBREX_ALGORITHM still comes first.  UNSUPPORTED: the group has
 * one rank, or its device only compiles.  SYSTEM on rank 0, PEER on the others: the folder cannot
 * be written (IMBREX_CACHE_DIR).
 *
 * A candidate that cannot be made on one rank is dropped on all, and so is one that hangs: half of
 * timeout_ms is the limit on its waits.  Candidates run in a group of their own, over this one and
 * on its devices, so that this one does not fail with them; TIMEOUT: all have hung.  progress, or
 * NULL, is called on this rank's thread. */
IMBREX_TRY imbrex_tune(imbrex_group *group, const char *op, const void *desc, size_t desc_bytes,
                       imbrex_tune_progress progress, void *ctx);

/* Local: keeps rates of the group's device that were measured, for groups that are made later, in
 * the place of those kept before.  rows: lines as docs/tuning.md has them, "store 350\n", one at
 * least, without the device.  path: the file to write, which IMBREX_RATES may name; NULL: the one
 * in the folder of the tuning cache, where groups look unless IMBREX_RATES is set: while it is,
 * what is kept there does not count.  A file is replaced whole.  INVALID: a line is wrong, there is
 * no rate, or path is there and no regular file; SYSTEM: the file cannot be written, and the one
 * before stands; UNSUPPORTED: the device is no GPU.  Then nothing is kept. */
IMBREX_TRY imbrex_rates_keep(imbrex_group *group, const char *rows, const char *path);

/* Enqueues one run.  All ranks run the same plans in the same order, each run with one m; a
 * run that is captured in a graph counts once, when it is captured.  If a rank is seen to differ,
 * the group fails: INVALID on all ranks.  One plan's runs follow each other, also on different
 * streams.  args itself may go when the call returns; the memory it names must stay until the
 * stream is done with it.
 *
 * A run that is refused has enqueued nothing and does not count: this rank may call again, with
 * what is right.  Until it does the others wait for it, at most timeout_ms; what they then get says
 * why the call was refused, if they are on its node. */
IMBREX_TRY imbrex_plan_run(imbrex_plan *plan, const imbrex_args *args, imbrex_stream stream);

/* One line for people: shape, algorithm and why, tiles, on "cuda" how many SMs a run needs at once
 * if it cannot go on with fewer, its variants for fewer rows, and how much memory all take of this
 * rank.  Writes and returns as snprintf does. */
IMBREX_API size_t imbrex_plan_describe(const imbrex_plan *plan, char *text, size_t size);

/* The same for programs: one line, an object in JSON, of this rank.  Local; of no plan, "{}".
 *
 *     op, dtype, device   strings: the operator, the type of its operands, and "cpu", "cuda" or, of
 *                         a group that only compiles, "compile"
 *     ranks               of the group
 *     rows                of a run at most, as its args' m, own or batch
 *     algorithm, why      strings: its name, and for people why it is this one
 *     measured            whether imbrex_tune found it; else it was named, or expected to be best
 *     chunk_rows          rows under one signal in a run of all rows; a rank's last may have fewer
 *     tile_rows, tile_cols  of a product; else 0
 *     spans_ranks         whether tiles have rows of several ranks
 *     made_alone          whether a product whose sum ranks get is made first, and added up behind
 *     blocks              of the kernel that multiplies, or of the one that moves rows
 *     at_once             SMs that a run needs all at once; 0: it goes on with fewer
 *     memory_bytes        imbrex_plan_memory: of it
 *     symmetric_bytes, local_bytes  are symmetric memory and this rank's own
 *     symmetric_kind      string: a kind of symmetric memory that is not the usual one; else null
 *     net                 string: the engine between nodes; null: there is one node
 *     sent_inside, sent_between  bytes that the latest run copied to ranks of this node, and sent
 *                         to other nodes
 *     fewer               array, the fewest rows first: what runs of up to so many rows do, with
 *                         rows, algorithm, measured, tile_rows, tile_cols
 *
 * Later versions may add keys.  A byte beyond ASCII is a character of its own, as of Latin-1.  Not
 * while another thread runs the plan or destroys it.  Writes into text, the caller's, and returns
 * as snprintf does: text is whole if the length returned is less than size. */
IMBREX_API size_t imbrex_plan_facts(const imbrex_plan *plan, char *text, size_t size);

/* Local.  Waits until this rank's runs of the plan are done, but for replays of graphs, which the
 * caller sees to.  Peers may still be running theirs. */
IMBREX_API void imbrex_plan_destroy(imbrex_plan *plan);

/* ---- Tracing --------------------------------------------------------------------------------- */

typedef enum imbrex_span_kind {
    IMBREX_SPAN_COPY,   /* bytes to peer (or to this rank itself) */
    IMBREX_SPAN_WAIT,   /* held by a signal that peer posts */
    IMBREX_SPAN_KERNEL, /* a kernel, from first to last instruction */
    IMBREX_SPAN_TILE    /* one tile of a kernel; index says which, peer whose rows */
} imbrex_span_kind;

typedef struct imbrex_span {
    int64_t begin_ns, end_ns; /* CLOCK_MONOTONIC, comparable between the ranks of a host */
    imbrex_span_kind kind;
    int32_t stream;      /* 0: the default stream, then in order of creation */
    int32_t lane;        /* 0: the stream itself; 1 and up: inside a kernel, one lane a block;
                          * -1: what a kernel itself sends to all peers, -2 - r: to rank r */
    int32_t peer, index; /* -1 where they say nothing */
    int64_t bytes;
    char name[24];
    uint64_t reserved[2];
} imbrex_span;

/* Records what this rank's streams do from here on, up to capacity spans (later ones are dropped);
 * 0 stops and forgets.  Streams must be idle.  On GPUs: what goes to other nodes, and what the
 * kernels of plans do that are made from here on, each block 1024 times until the spans are taken;
 * a span "N records lost" counts the rest.  Such plans are somewhat slower, and the first call may
 * compile and load a kernel, as making a plan does. */
IMBREX_TRY imbrex_trace(imbrex_group *group, size_t capacity);

/* Copies out the first max spans recorded so far, in no particular order, and returns how many
 * there are.  spans may be NULL if max is 0.  Streams must be idle, and plans still there. */
IMBREX_API size_t imbrex_trace_spans(imbrex_group *group, imbrex_span *spans, size_t max);

#ifdef __cplusplus
}
#endif

#include "imbrex_decode.h"
#include "imbrex_kernel.h"
#include "imbrex_local.h"
#include "imbrex_moe.h"

#endif /* IMBREX_H */
