/* args.h - the contract of the merge kernel: states of attention, an o with the logarithm of the
 * sum that it was divided by (lse), of several ranks' tokens, become one.
 *
 *   IMX_MERGE_PACKS   a state goes to the owner of its head: own[rows, heads] becomes slots, one
 *                     for each owner, or, where all ranks own all heads, slot 0 alone
 *   IMX_MERGE_MERGES  slots of `sources` ranks that are here, and this rank's own states, become
 *                     to[rows, count] and lse_to
 *   IMX_MERGE_STORES  a whole run: blocks store own states into their owners' slots, post a signal
 *                     after each unit of rows, and merge units as they come
 *   IMX_MERGE_LL      a whole run: states travel in words that carry their flags
 *
 * A slot is | o [rows, count, value_dim] of `dtype` | lse [rows, count] float32, 16-byte aligned |,
 * count: the owner's heads.
 *
 * One state of IMX_MERGE_LL is units of 16 bytes, each two words of 4 bytes of data and the low
 * half of the run's epoch: first the lse, then o, 8 bytes a unit.  Parts and their reuse are as in
 * ll/args.h, which says why nobody overwrites what was not read; a rank that gets no state gets a
 * unit all the same.
 *
 * Sums: source 0 first, in float32, then sinks; o is rounded once.  A state whose lse is not finite
 * counts as nothing, whatever its o is.  The CPU and CUDA forms may differ in the last bits of
 * exp2 and log2, no form differs from itself, and STORES, LL and MERGES agree. */
#ifndef IMX_MERGE_ARGS_H
#define IMX_MERGE_ARGS_H

#include "../team.h"
#include "../wait_points.h"
#include "imbrex_device.h"

enum { IMX_MERGE_PACKS, IMX_MERGE_MERGES, IMX_MERGE_STORES, IMX_MERGE_LL };

enum { IMX_MERGE_SOURCES = 64 }; /* at most, of one merge */

typedef struct imx_merge_args {
    int how, dtype, dtype_to; /* imbrex_dtype: of states, of to */
    int ranks, rank;          /* owners of heads, and this one among them */
    int replicate;
    int heads, value_dim;
    int sources, own; /* of a merge, and which one is this rank; -1: none */
    int natural;      /* lse to base e, else 2 */
    int plan;         /* for the wait point */
    int first;        /* head that to begins with: sinks[first] is its sink */
    int count;        /* heads of to */
    int own_heads;    /* own[rows, own_heads]: which to's first head is own_first of */
    int own_first;
    int64_t rows, unit_rows; /* unit_rows, units: alike on all ranks */
    int64_t units;           /* signals of a rank */
    const void *own_o;
    const float *own_lse, *sinks;
    char *slots; /* PACKS writes them, MERGES reads them */
    int64_t slot_bytes;
    void *to;
    float *lse_to; /* or NULL */
    uint64_t *epoch;
    uint32_t *ended;
    uint64_t *uses; /* LL: [blocks] */
    int64_t part_bytes;
    imx_team team;
} imx_merge_args;

typedef struct imx_merge_unit {
    uint64_t first, second;
} imx_merge_unit;

/* The first head that a rank owns: imx_team_row, in 32 bits. */
IMX_TEAM_FN int imx_merge_head(int replicate, int heads, int ranks, int rank)
{
    return replicate ? 0 : (int)((unsigned)rank * (unsigned)heads / (unsigned)ranks);
}

/* How many it owns. */
IMX_TEAM_FN int imx_merge_heads(int replicate, int heads, int ranks, int rank)
{
    return replicate
               ? heads
               : imx_merge_head(0, heads, ranks, rank + 1) - imx_merge_head(0, heads, ranks, rank);
}

/* Bytes of a slot before its lse, and all of them. */
IMX_TEAM_FN int64_t imx_merge_lse_at(int64_t states, int value_dim, int element)
{
    return (states * value_dim * element + 15) / 16 * 16;
}

IMX_TEAM_FN int64_t imx_merge_bytes(int64_t states, int value_dim, int element)
{
    return imx_merge_lse_at(states, value_dim, element) + states * (int64_t)sizeof(float);
}

/* Units of a state in IMX_MERGE_LL, and bytes of a part that has so many states. */
IMX_TEAM_FN int64_t imx_merge_units(int value_dim, int element)
{
    return 1 + ((int64_t)value_dim * element + 7) / 8;
}

IMX_TEAM_FN int64_t imx_merge_part_bytes(int64_t states, int value_dim, int element)
{
    int64_t units = states * imx_merge_units(value_dim, element);
    return ((units ? units : 1) * (int64_t)sizeof(imx_merge_unit) + 127) / 128 * 128;
}

/* Where `holder` keeps what `of` sends it. */
IMX_TEAM_FN imx_merge_unit *imx_merge_part(const imx_merge_args *args, int holder, int of,
                                           uint64_t epoch)
{
    int64_t part = (int64_t)(epoch & 1) * args->team.size + of;
    return (imx_merge_unit *)(imx_team_data(&args->team, holder) + part * args->part_bytes);
}

#endif /* IMX_MERGE_ARGS_H */
