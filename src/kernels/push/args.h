/* args.h - the contract of the push kernel: one launch stores shards into the peers' memory, says
 * so, and puts together what the peers stored here: it is a whole run, or what comes after a
 * product.
 *
 *   gathers   from[rows, row_bytes], this rank's rows, go to all peers; to[m, row_bytes] becomes
 *             the rows of all ranks
 *   reduces   from[m, row_bytes] goes to its rows' owners; to[rows, row_bytes] becomes the sum of
 *             all ranks' parts of this rank's rows, one's own too, in rank order in float32, then
 *             bias of a row's length and residual[rows, row_bytes], of those that there are, with
 *             one rounding; to may be residual
 *   exchanges from[m, row_bytes] goes to its rows' owners; to[ranks * rows, row_bytes] becomes all
 *             ranks' parts of this rank's rows, one's own too, in rank order
 *
 * A shard is what one rank sends to another.  It travels in one of two forms:
 *
 *   chunks    into the peer's data, at the rows' place (gathers) or in slot `rank` (else; slots of
 *             slot_bytes); a chunk of chunk_bytes is one block's and raises signal
 *             rank * chunks + number of the peer.  A peer's credit for the previous epoch comes
 *   first lines     8 bytes and the epoch of the run, stored as one: no fence, no signal, the
 *             receiver looks at the line itself.  Twice the bytes.  From byte lines_at of the data
 *             on, line i of rank r, in a run whose epoch is u, is number i of part (u % 2) * ranks
 *             + r; parts of line_bytes.  So they need a peer's credit for the epoch before the
 *             previous one only
 *
 * With a norm (norm.n is not 0) rows that are gathered are normed, and maybe quantised, as they
 * come (../norm/args.h): norm.in is `to`, where the rows are kept meanwhile, and norm.h is `to` if
 * they are to stay there; else GPUs need not write them.  Chunks are of chunk_rows whole rows then,
 * and there are no lines.
 *
 * The kernel begins the run: its epoch is *epoch + 1, all peers get this rank's credit for the
 * epoch before (the kernels of that run have ended), and when all blocks know the epoch, *epoch is
 * advanced.
 */
#ifndef IMX_PUSH_ARGS_H
#define IMX_PUSH_ARGS_H

#include "../norm/args.h"
#include "../team.h"
#include "../wait_points.h"
#include "imbrex_device.h"

typedef enum imx_push_how { IMX_PUSH_GATHERS, IMX_PUSH_REDUCES, IMX_PUSH_EXCHANGES } imx_push_how;

typedef struct imx_push_args {
    int64_t m, row_bytes;
    int64_t most; /* bytes of the longest shard */
    int dtype;    /* imbrex_dtype; this and the next two are fixed when the kernel is made */
    int ranks;
    int how;             /* imx_push_how */
    int lines;           /* of this run: few rows go in lines, more in chunks */
    int chunks;          /* stride of signals */
    int plan;            /* for the wait point */
    int64_t chunk_bytes; /* a multiple of 16, but with a norm */
    int64_t chunk_rows;  /* with a norm */
    const void *from, *bias, *residual;
    void *to;
    int64_t slot_bytes;
    int64_t lines_at, line_bytes;
    uint64_t *epoch;
    uint32_t *ended;
    imx_norm_args norm;
    imx_team team;
} imx_push_args;

typedef struct imx_push_line {
    uint64_t word, epoch;
} imx_push_line;

enum {
    IMX_PUSH_WORD = sizeof(uint64_t),
    IMX_PUSH_NORM_COLUMNS = 8192 /* of a row that is normed, at most: half of a block holds it */
};

/* Where `holder` keeps the lines of `of`. */
IMX_TEAM_FN imx_push_line *imx_push_lines(const imx_push_args *args, int holder, int of,
                                          uint64_t epoch)
{
    int64_t part = (int64_t)(epoch & 1) * args->team.size + of;
    return (imx_push_line *)(imx_team_data(&args->team, holder) + args->lines_at +
                             part * args->line_bytes);
}

/* The credit that a peer must have given before its memory is written. */
IMX_TEAM_FN uint64_t imx_push_credit(const imx_push_args *args, uint64_t epoch)
{
    uint64_t ago = args->lines ? 2 : 1;
    return epoch > ago ? epoch - ago : 0;
}

#endif /* IMX_PUSH_ARGS_H */
