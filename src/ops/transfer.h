/* transfer.h - the two movements that all operators are made of: every rank's shard to everyone
 * (gather), and every rank's block to its owner (scatter), both in chunks under signals.
 *
 * In a variant's shared data, per buffer:
 *
 *     gather    [m, width]              rank r's shard lies at its own rows; signal r * chunks + q
 *                                       says that its chunk q is here.  One's own rows stay unused
 *                                       but where tiles span ranks: tiles then read all of it.
 *     scatter   [R][most rows, width]   slot r: rank r's part of this rank's rows; signal
 *                                       r * chunks + q likewise.  One's own: for a kernel's own
 *                                       epoch.
 */
#ifndef IMX_TRANSFER_H
#define IMX_TRANSFER_H

#include "kernels/ll/args.h"
#include "plan/plan.h"

/* ---- where things lie ------------------------------------------------------------------------ */

/* Of an element that travels: of sums, or of a. */
static inline size_t imx_transfer_element(const imx_variant *variant)
{
    const imx_shape *s = &variant->shape;
    return imx_dtype_bytes(variant->plan->op->scatters ? s->out : s->dtype);
}

static inline size_t imx_transfer_row_bytes(const imx_run *run, int64_t width)
{
    return (size_t)width * imx_transfer_element(run->variant);
}

/* Bytes from the start of a rank's rows, or of a slot, to those of its chunk q. */
static inline size_t imx_transfer_chunk_at(const imx_run *run, int q, int64_t width)
{
    return (size_t)q * (size_t)imx_variant_chunk_rows(run->variant, run->m) *
           imx_transfer_row_bytes(run, width);
}

/* Bytes from the start of the matrix to a rank's rows. */
static inline size_t imx_transfer_rank_at(const imx_run *run, int rank, int64_t width)
{
    return (size_t)imx_run_row(run, rank) * imx_transfer_row_bytes(run, width);
}

/* Bytes of chunk q of rank, which has it. */
static inline size_t imx_transfer_chunk_bytes(const imx_run *run, int rank, int q, int64_t width)
{
    return (size_t)imx_run_chunk_rows(run, rank, q) * imx_transfer_row_bytes(run, width);
}

/* Of what goes along with a gather: bytes of a chunk, and from the start of that shard or of all
 * ranks' rows to it. */
static inline size_t imx_transfer_along_bytes(const imx_run *run, int rank, int q)
{
    return (size_t)imx_run_chunk_rows(run, rank, q) * run->along.row_bytes;
}

static inline size_t imx_transfer_along_at(const imx_run *run, int q)
{
    return (size_t)q * (size_t)imx_variant_chunk_rows(run->variant, run->m) * run->along.row_bytes;
}

static inline size_t imx_transfer_along_rank_at(const imx_run *run, int rank)
{
    return run->along.at + (size_t)imx_run_row(run, rank) * run->along.row_bytes;
}

/* Signal or counter of chunk q of rank. */
static inline int imx_transfer_chunk_number(const imx_run *run, int rank, int q)
{
    return rank * run->variant->config.chunks + q;
}

/* What two movements need that follow each other in a run: the second's data and signals lie
 * behind the first's, where a run from imx_transfer_second has them. */
imx_needs imx_transfer_both(const imx_needs *first, const imx_needs *second);
imx_run imx_transfer_second(const imx_run *run, const imx_needs *first);

/* The same where the second begins and ends by itself, as kernels do: it has an epoch and credits
 * of its own, too. */
imx_needs imx_transfer_both_apart(const imx_variant *variant, const imx_needs *first,
                                  const imx_needs *second);
imx_run imx_transfer_apart(const imx_run *run, const imx_needs *first);

/* The same where the second is a gather by the ll kernel, which has no epoch and no credits; the
 * first is one, too, or has no lines. */
imx_needs imx_transfer_both_ll(const imx_needs *first, const imx_needs *second);
imx_run imx_transfer_second_ll(const imx_run *run, const imx_needs *first);

/* ---- what copies take, of collectives -------------------------------------------------------- */

/* Microseconds, beside a second stream's work and on one alone. */
double imx_transfer_copy_cost(const imx_rates *rates, double sent);
double imx_transfer_sequential_cost(const imx_rates *rates, double sent);

/* ---- gather ---------------------------------------------------------------------------------- */

/* What goes along with the rows (run->along) is moved by all of these but gather_out, and by
 * hierarchical.h's. */

void imx_transfer_gather_needs(const imx_variant *variant, int64_t width, imx_needs *needs);

/* Sends shard[rows, width], this rank's, to all peers: first to the one that needs it first, that
 * is the rank before, which comes to these rows right after its own. */
imbrex_status imx_transfer_gather(const imx_run *run, imbrex_stream stream, const void *shard,
                                  int64_t width) IMX_MUST_CHECK;

/* Puts own rows beside the peers', where ranks are merged, or, with spans, those that are in tiles
 * with others': tiles then read them there.  A device
 * makes a copy within its own memory by its multiprocessors.  So this goes onto the stream of the
 * product, ahead of it: beneath a product that holds them all it would never run. */
imbrex_status imx_transfer_keep(const imx_run *run, imbrex_stream stream, const void *shard,
                                int64_t width) IMX_MUST_CHECK;

/* Holds the stream until the shards of all peers are here. */
imbrex_status imx_transfer_gather_wait(const imx_run *run, imbrex_stream stream) IMX_MUST_CHECK;

/* Puts the whole matrix together in out[m, width]: own rows from shard, others as they arrive, or,
 * with all_here, at once. */
imbrex_status imx_transfer_gather_out(const imx_run *run, imbrex_stream stream, const void *shard,
                                      int64_t width, void *out, bool all_here) IMX_MUST_CHECK;

/* The same of a product's a in the run's `gathered`, if it is wanted. */
imbrex_status imx_transfer_gathered(const imx_run *run, imbrex_stream stream,
                                    bool all_here) IMX_MUST_CHECK;

/* The other way round: shows shard to the peers, on the caller's stream, until all do... */
imbrex_status imx_transfer_offer(const imx_run *run, const void *shard,
                                 int64_t width) IMX_MUST_CHECK;

/* ...and fetches them, the next rank's first, posting here[r * chunks + q] after each chunk. */
imbrex_status imx_transfer_fetch(const imx_run *run, imbrex_stream stream, int64_t width,
                                 uint64_t *here) IMX_MUST_CHECK;

/* ---- small shards ---------------------------------------------------------------------------- */

/* By the ll kernel alone (kernels/ll/args.h), for several ranks; instead of the gather's needs.
 * how: a gather of rows, or the sum of whole matrices in one shot or two. */
void imx_transfer_ll_needs(const imx_variant *variant, int64_t width, imx_ll_how how,
                           imx_needs *needs);
/* Whether shards of so many bytes travel in lines. */
bool imx_transfer_ll_lines(const imx_variant *variant, int64_t sent);
imbrex_status imx_transfer_ll_prepare(imx_variant *variant, int kernel, int64_t width,
                                      imx_ll_how how) IMX_MUST_CHECK;

/* As words, the longer ones of its two forms, which nothing hides; sent: bytes of a rank.  NEVER
 * where it sends more than sent_most. */
double imx_transfer_ll_cost(const imx_rates *rates, double sent, double sent_most);

/* The most that was measured, of a rank: 64 KB to each peer. */
#define IMX_TRANSFER_LL_SENT(problem) (65536.0 * ((problem)->in->ranks - 1))

/* to[m, width] = the rows of all ranks, each from args.a; or the sum of all ranks' args.a,
 * args.bias and args.residual. */
imbrex_status imx_transfer_ll(const imx_run *run, int kernel, int64_t width, imx_ll_how how,
                              void *to) IMX_MUST_CHECK;

/* ---- both, by one kernel --------------------------------------------------------------------- */

/* Instead of the gather's needs or, of what goes to owners, the scatter's. */
void imx_transfer_push_needs(const imx_variant *variant, imx_push_how how, imx_needs *needs);
double imx_transfer_push_cost(const imx_rates *rates, double sent); /* microseconds */
imbrex_status imx_transfer_push_prepare(imx_variant *variant, int kernel,
                                        imx_push_how how) IMX_MUST_CHECK;

/* To args.c, beginning and end of the run included; for several ranks.  bias: of a sum, or NULL, to
 * which args.residual is added, too. */
imbrex_status imx_transfer_push(const imx_run *run, int kernel, imx_push_how how, const void *from,
                                const void *bias) IMX_MUST_CHECK;

/* ---- scatter --------------------------------------------------------------------------------- */

void imx_transfer_scatter_needs(const imx_variant *variant, imx_needs *needs);
imbrex_status imx_transfer_scatter_prepare(imx_variant *variant, int kernel) IMX_MUST_CHECK;
imbrex_status imx_transfer_scatter_prepare_blocks(imx_variant *variant, int kernel,
                                                  int blocks) IMX_MUST_CHECK;

/* Sends the rows of matrix[m, n] to their owners, the next rank's first; with done, each chunk only
 * after this rank's done[owner * chunks + q] is posted (done[0], where tiles span ranks). */
imbrex_status imx_transfer_scatter(const imx_run *run, imbrex_stream stream, const void *matrix,
                                   uint64_t *done) IMX_MUST_CHECK;

/* Puts all ranks' blocks of own rows together in out[ranks * rows, n], in rank order: own ones from
 * matrix, others as they arrive, or, with all_here, at once. */
imbrex_status imx_transfer_scatter_out(const imx_run *run, imbrex_stream stream, const void *matrix,
                                       void *out, bool all_here) IMX_MUST_CHECK;

/* Holds the stream until all peers' parts are here. */
imbrex_status imx_transfer_scatter_wait(const imx_run *run, imbrex_stream stream) IMX_MUST_CHECK;

size_t imx_transfer_slot_bytes(const imx_variant *variant);

/* Whether a sum is more than this rank's own part. */
bool imx_transfer_adds(const imx_run *run);

/* Adds the parts in rank order into args.c, this rank's own from matrix[m, n].  With arriving, each
 * chunk waits for its parts in the kernel; else all must be here.  Nothing is launched where the
 * sum lies in c already. */
imbrex_status imx_transfer_reduce(const imx_run *run, imbrex_stream stream, int kernel,
                                  const void *matrix, bool arriving) IMX_MUST_CHECK;

/* ---- one chunk ------------------------------------------------------------------------------- */

/* What gather and scatter do for one rank's chunk q, and the reduction for own rows' one: it waits
 * for its parts in the kernel, and ahead of it for done. */
imbrex_status imx_transfer_gather_chunk(const imx_run *run, imbrex_stream stream, const void *shard,
                                        int64_t width, int to, int q) IMX_MUST_CHECK;
imbrex_status imx_transfer_scatter_chunk(const imx_run *run, imbrex_stream stream,
                                         const void *matrix, uint64_t *done, int to,
                                         int q) IMX_MUST_CHECK;
imbrex_status imx_transfer_reduce_chunk(const imx_run *run, imbrex_stream stream, int kernel,
                                        const void *matrix, uint64_t *done, int q) IMX_MUST_CHECK;

#endif /* IMX_TRANSFER_H */
