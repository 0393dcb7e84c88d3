/* sm90_mla_tree.cuh - what splits of MLA on Hopper come to, added up by pairs.
 *
 * Splits are leaves of a binary tree; a node without a right one below it is the left one.  So the
 * order of sums follows from a sequence's length, and a block can add up the splits of a run by
 * itself: what it leaves is a node.  A form without runs leaves single splits, and the end adds up
 * the same tree.
 *
 *     split   0     1     2     3     4      level 0
 *             0 + 1       2 + 3       4      level 1
 *             (0 + 1) + (2 + 3)       4      level 2
 *             ((0 + 1) + (2 + 3)) + 4        level 3 */
#ifndef IMX_ATTEND_SM90_MLA_TREE_CUH
#define IMX_ATTEND_SM90_MLA_TREE_CUH

#include "sm90_mla_end.cuh"

enum {
    EIGHTS = IMX_ROWS / 8,
    SCORES = IMX_ROWS / 2,    /* of a thread */
    OWN_BLOCKS = V_BLOCKS / 2 /* of v, of a warpgroup */
};

/* A warpgroup's. */
struct group_sums {
    float of[OWN_BLOCKS][SCORES]; /* numbers of v, rows */
    float sum[EIGHTS][2];         /* of weights: of a thread's tokens of the tiles it weighs */
};

/* The left node of each level that has no right one yet: this thread's numbers. */
struct kept_sums {
    unsigned levels; /* bits: which there are */
    float of[LEVELS + 1][OWN_BLOCKS][SCORES];
};

ATTEND_FN int group_here(void)
{
    return (int)threadIdx.x / GROUP_THREADS;
}

/* Both: sums of weights of a split whose last tile is number `last`, `before` others ahead of it;
 * turn: who has weighed it. */
ATTEND_FN void leave_sums(mla_room *room, float (*sums)[IMX_ROWS], int last, int before, int turn,
                          const group_sums &s)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    bool is_earlier = turn != group_here() && before > 0;
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int row = n * 8 + lane % 4 * 2 + j;
            float sum = s.sum[n][j];
#pragma unroll
            for (int step = 4; step < LANES; step *= 2)
                sum += __shfl_xor_sync(ALL, sum, step);
            if (is_earlier)
                sum *= weight(room->most[(last + 3) % 4][row], room->most[last % 4][row]);
            if (lane < 4)
                sums[warp][row] = sum;
        }
    }
    both_barrier();
}

/* This thread's numbers of rows of eight n of s, into the part of w's first split; row: the first
 * of the two.  The sequence is of one head of the cache, and of one piece. */
ATTEND_FN void put_part(const imx_attend_args &x, const work &w, int row, int n,
                        const group_sums &s)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    int column = group_here() * OWN_BLOCKS * 64 + warp % GROUP_WARPS * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (row + j >= rows_of(x, w))
            continue;
        float *part = part_of(x, state_of(x, w, 0) + row + j, w.split) + column;
#pragma unroll
        for (int m = 0; m < OWN_BLOCKS; m++) {
            part[m * 64] = s.of[m][4 * n + j];
            part[m * 64 + 8] = s.of[m][4 * n + 2 + j];
        }
    }
}

/* Both: a split that is alone has ended, as leave_sums has it. */
ATTEND_FN void end_only(const imx_attend_args &x, const work &w, mla_room *room, int last,
                        int before, int turn, const group_sums &s)
{
#pragma unroll
    for (int n = 0; n < EIGHTS; n++)
        put_part(x, w, n * 8 + (int)threadIdx.x % 4 * 2, n, s);
    leave_sums(room, room->sums[0], last, before, turn, s);
    for (int row = (int)threadIdx.x; row < rows_of(x, w); row += WARPS * LANES) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < WARPS; j++)
            sum += room->sums[0][j][row];
        *(float2 *)weight_of(x, state_of(x, w, 0) + row, w.split) =
            make_float2(room->most[last % 4][row], sum);
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Of a node, two rows of a thread: their largest scores, and sums of weights. */
struct two_rows {
    float2 most, sum;
};

/* Rows of eight n of the right node s, with `own`, become what they come to with the left one. */
ATTEND_FN void join_left(const float2 *kept, const float (&left)[OWN_BLOCKS][4], int n,
                         two_rows *own, group_sums *s)
{
    float2 first = kept[0], second = kept[1]; /* of both rows */
    float upto[2] = { fmaxf(first.x, own->most.x), fmaxf(second.x, own->most.y) };
    share by[2] = { share_between(first.x, upto[0], make_float2(own->most.x, own->sum.x)),
                    share_between(second.x, upto[1], make_float2(own->most.y, own->sum.y)) };
    add_share(by[0], own->sum.x, &first.y);
    add_share(by[1], own->sum.y, &second.y);
    *own = two_rows{ make_float2(upto[0], upto[1]), make_float2(first.y, second.y) };
#pragma unroll
    for (int m = 0; m < OWN_BLOCKS; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float all = left[m][i];
            add_share(by[i % 2], s->of[m][4 * n + i], &all);
            s->of[m][4 * n + i] = all;
        }
    }
}

/* Both: split number `split` has ended, of run w, which is_done: there are no further ones. */
ATTEND_FN void end_split(const imx_attend_args &x, const work &w, mla_room *room,
                         float (*sums)[IMX_ROWS], const float *most, int split, bool is_done,
                         group_sums *s, kept_sums *kept)
{
    const int top = room->level;
    int keep_at = -1;     /* a level */
    unsigned join_at = 0; /* levels */
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
        if (keep_at >= 0 || level >= top)
            continue;
        if (kept->levels >> level & 1)
            join_at |= 1u << level;
        else if (!is_done && !(split >> level & 1))
            keep_at = level;
    }
    kept->levels = (kept->levels & ~join_at) | (keep_at < 0 ? 0 : 1u << keep_at);
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
        int row = n * 8 + (int)threadIdx.x % 4 * 2;
        two_rows own = { *(const float2 *)&most[row] };
#pragma unroll
        for (int j = 0; j < WARPS; j++) {
            float2 one = *(const float2 *)&sums[j][row];
            own.sum.x += one.x;
            own.sum.y += one.y;
        }
#pragma unroll
        for (int level = 0; level < LEVELS; level++) {
            if (join_at >> level & 1) {
                float left[OWN_BLOCKS][4];
#pragma unroll
                for (int i = 0; i < OWN_BLOCKS * 4; i++)
                    left[i / 4][i % 4] = kept->of[level][i / 4][4 * n + i % 4];
                join_left(&room->kept[level][row], left, n, &own, s);
            }
            if (level != keep_at)
                continue;
#pragma unroll
            for (int i = 0; i < OWN_BLOCKS * 4; i++)
                kept->of[level][i / 4][4 * n + i % 4] = s->of[i / 4][4 * n + i % 4];
            if (threadIdx.x < 4) {
                room->kept[level][row] = make_float2(own.most.x, own.sum.x);
                room->kept[level][row + 1] = make_float2(own.most.y, own.sum.y);
            }
        }
        if (keep_at >= 0)
            continue;
        put_part(x, w, row, n, *s);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (threadIdx.x < 4 && row + j < rows_of(x, w))
                *(float2 *)weight_of(x, state_of(x, w, 0) + row + j, w.split) =
                    j ? make_float2(own.most.y, own.sum.y) : make_float2(own.most.x, own.sum.x);
        }
    }
}

#endif /* IMX_ATTEND_SM90_MLA_TREE_CUH */
