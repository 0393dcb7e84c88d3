/* args.h - the contract of the ll kernel: one launch gathers small shards of all ranks, maybe
 * before a product, or adds up all ranks' matrices, in one shot or two, where data carries its own
 * flag.
 *
 *   gathers   from[rows, row_bytes], this rank's rows, go to all peers; to[m, row_bytes] becomes
 *             the rows of all ranks
 *   reduces   from[m, row_bytes] goes to all peers; to[m, row_bytes] becomes the sum of all ranks'
 *             from, in rank order in float32, then bias[row_bytes] and residual[m, row_bytes], of
 *             those that there are, rounded once.  It may be `from` itself, or residual
 *   fans      the same sum in two shots: each rank has a shard of the matrix (imx_ll_first), gets
 *             that of all peers' `from`, adds, and sends the sum to all peers.  2 (R - 1) / R of
 *             the matrix leave a rank in place of R - 1
 *
 * A shard, what one rank sends to another, travels in units of 16 bytes, in one of two forms:
 *
 *   words   4 bytes and a flag, the low half of the run's epoch, come together: only what is stored
 *           as one 8-byte word must arrive as one.  A unit is two of them; twice the bytes
 *   lines   120 bytes and the epoch, in 8 units which 8 threads of a warp store at once: what they
 *           store must arrive as one line of 128 bytes.  1.07 times the bytes.  On CPUs the epoch
 *           is stored last
 *
 * so there is no fence, no signal and no credit.  Unit i of rank r's shard, in a run whose epoch is
 * u, is number i of part (u % 2) * ranks + r of the receiver's data; parts of part_bytes, the same
 * for all runs of a plan, so that where a flag lies there never was data.  A shard has a unit, or a
 * line, even if it is empty.  Sums that are fanned out have parts of their own, behind all others:
 * rank r's are its shard's.
 *
 * Why nobody overwrites what was not read: a part is written again two epochs of its buffer later.
 * A rank that has come so far has ended a run in between, for which it had to read every peer's
 * shard (hence the empty ones); and a peer sends that shard only after it has ended the run before,
 * with all that it had to read there.  With fans it is every peer's sum that a run reads.
 *
 * With a norm (norm.n is not 0) rows of sums are normed, and maybe quantised, where they are added
 * (../norm/args.h): norm.in is `to`, where the sum is kept meanwhile, and norm.h is `to` if it is
 * to stay there; else GPUs need not write it.  On GPUs a part then begins anew with each piece of a
 * row, of whole segments of squares, `pieces` of which make a row; with fans each piece has the
 * shards of all ranks.  Piece p of row t is number t * pieces + p.
 *
 * A word that no run has written for exactly 2^32 uses of its buffer would pass for a new one: that
 * is a plan which ran with few rows alone for half a day, and then with more in one certain run.
 *
 * Each block has its own copy of the epoch, and raises it: all blocks of the grid take part in
 * every run, those without units too.
 */
#ifndef IMX_LL_ARGS_H
#define IMX_LL_ARGS_H

#include "../norm/args.h"
#include "../team.h"
#include "../wait_points.h"
#include "imbrex_device.h"

typedef enum imx_ll_how { IMX_LL_GATHERS, IMX_LL_REDUCES, IMX_LL_FANS } imx_ll_how;

typedef struct imx_ll_args {
    int64_t m, row_bytes;
    int64_t most;   /* bytes of the longest shard */
    int ranks;      /* these four are fixed when the kernel is made, and so is the grid */
    int lines;      /* else words */
    int how;        /* imx_ll_how */
    int dtype;      /* imbrex_dtype, of what is added */
    int pieces;     /* of a row, with a norm */
    int piece_cols; /* of a whole one */
    int plan;       /* for the wait point */
    int64_t part_bytes;
    const void *from, *bias, *residual;
    void *to;
    uint64_t *uses; /* [blocks] */
    imx_norm_args norm;
    imx_team team;
} imx_ll_args;

typedef struct imx_ll_unit {
    uint64_t first, second;
} imx_ll_unit;

enum {
    IMX_LL_WORD = 8,
    IMX_LL_UNITS = 8,
    IMX_LL_LINE = 120,
    IMX_LL_ROW_BYTES = 32 << 10, /* of a row that is normed, at most */
    IMX_LL_NORM_BYTES = 4 << 20, /* fewer in all: a block has a row after the other, and of two of
                                    16 KB a kernel behind has them normed sooner */
    IMX_LL_PIECES = 8,           /* of a row, at most: blocks of a cluster */
    IMX_LL_BLOCKS = 128,         /* that rows are spread over while they are few: */
    IMX_LL_BLOCKS_APART = 112,   /* by more than two a row, so many: a cluster is on SMs that are
                                    near each other, and of 132 there may be 28 times four */
};                               /* bytes of data: of a unit, a line */

/* Of a shard. */
IMX_TEAM_FN int64_t imx_ll_units(int lines, int64_t bytes)
{
    int64_t each = lines ? IMX_LL_LINE : IMX_LL_WORD, count = (bytes + each - 1) / each;
    return (count > 0 ? count : 1) * (lines ? IMX_LL_UNITS : 1);
}

IMX_TEAM_FN int64_t imx_ll_part_bytes(int lines, int64_t shard)
{
    int64_t line = (int64_t)sizeof(imx_ll_unit) * IMX_LL_UNITS;
    return (imx_ll_units(lines, shard) * (int64_t)sizeof(imx_ll_unit) + line - 1) / line * line;
}

/* Bytes that a shard of fans is a multiple of. */
IMX_TEAM_FN int64_t imx_ll_grain(int lines)
{
    return lines ? IMX_LL_LINE : IMX_LL_WORD;
}

/* With fans, of bytes that the ranks share: the first of rank's shard, `bytes` behind the last.
 * Everybody has a grain, of nothing where there are too few. */
IMX_TEAM_FN int64_t imx_ll_first(int lines, int64_t bytes, int ranks, int rank)
{
    int64_t grain = imx_ll_grain(lines), grains = (bytes + grain - 1) / grain;
    int64_t first = imx_team_row(grains > ranks ? grains : ranks, ranks, rank) * grain;
    return first < bytes ? first : bytes;
}

/* The longest shard's. */
IMX_TEAM_FN int64_t imx_ll_share(int lines, int64_t bytes, int ranks)
{
    int64_t grain = imx_ll_grain(lines), grains = (bytes + grain - 1) / grain;
    return (grains + ranks - 1) / ranks * grain;
}

/* Whose shard the grain of that number is in. */
IMX_TEAM_FN int imx_ll_owner(int lines, int64_t bytes, int ranks, int64_t number)
{
    int64_t grain = imx_ll_grain(lines), grains = (bytes + grain - 1) / grain;
    unsigned count = (unsigned)(grains > ranks ? grains : ranks);
    return (int)((((unsigned)number + 1) * (unsigned)ranks - 1) / count);
}

/* With a norm: columns of a piece of a row of n; pieces of it where there are `rows`. */
IMX_TEAM_FN int imx_ll_piece_cols(int64_t n, int pieces)
{
    int segments = (int)((n + IMX_NORM_SEGMENT - 1) / IMX_NORM_SEGMENT);
    return (segments + pieces - 1) / pieces * IMX_NORM_SEGMENT;
}

IMX_TEAM_FN int imx_ll_pieces(int64_t n, int64_t rows)
{
    int most = IMX_LL_PIECES;
    while (most > 1 && most * rows > (most > 2 ? IMX_LL_BLOCKS_APART : IMX_LL_BLOCKS))
        most /= 2;
    int64_t cols = imx_ll_piece_cols(n, most);
    return (int)((n + cols - 1) / cols);
}

/* Units of a part that each piece takes of so many bytes, or, if the row is shorter, of the row. */
IMX_TEAM_FN int64_t imx_ll_piece_units(int lines, int64_t piece, int64_t row, int ranks, int fans)
{
    int64_t bytes = piece < row ? piece : row;
    return imx_ll_units(lines, fans ? imx_ll_share(lines, bytes, ranks) : bytes);
}

/* Where `holder` keeps the units of `of`. */
IMX_TEAM_FN imx_ll_unit *imx_ll_part(const imx_ll_args *args, int holder, int of, uint64_t epoch)
{
    int64_t part = (int64_t)(epoch & 1) * args->team.size + of;
    return (imx_ll_unit *)(imx_team_data(&args->team, holder) + part * args->part_bytes);
}

/* And those of its sum. */
IMX_TEAM_FN imx_ll_unit *imx_ll_sum(const imx_ll_args *args, int holder, int of, uint64_t epoch)
{
    return imx_ll_part(args, holder, of + 2 * args->team.size, epoch);
}

#endif /* IMX_LL_ARGS_H */
