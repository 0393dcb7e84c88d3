/* sm90_add.cuh - adds up what a sequence's splits have come to, in their order, by way of the ring:
 * a warp with nothing left to weigh has a quarter of it.  The code is short, since a block mostly
 * runs it once, at its end, and waits for every line of it. */
#ifndef IMX_ATTEND_SM90_ADD_CUH
#define IMX_ATTEND_SM90_ADD_CUH

#include "sm80_heads.cuh"
#include "sm90_deal.cuh"

enum {
    PART_BYTES = IMX_VALUES * 4,
    BESIDE = IMX_VALUES / LANES < 4 ? IMX_VALUES / LANES : 4, /* numbers of a lane side by side */
    RUNS = IMX_VALUES / LANES / BESIDE,                       /* of those */
    QUARTER_BYTES = IMX_SLOTS * STEP * ROW_BYTES / WARPS,
    SHARES_BYTES = LANES * 16,
    HALF_PARTS = (QUARTER_BYTES - SHARES_BYTES) / 2 / PART_BYTES,
    FETCHED = HALF_PARTS < LANES ? HALF_PARTS : LANES /* parts at once; as many are under way */
};

/* Of a row, what a lane has. */
struct row_sums {
    float most, sum;
    float of[RUNS][BESIDE];
};

ATTEND_FN int number_of(int run)
{
    return (run * LANES + (int)threadIdx.x % LANES) * BESIDE;
}

ATTEND_FN void fetch_parts(const float *parts, int count, uint32_t to)
{
#pragma unroll 4
    for (int i = (int)threadIdx.x % LANES; i < count * PART_BYTES / 16; i += LANES)
        copy_async(to + (uint32_t)i * 16, (const char *)parts + i * 16, 16);
}

/* Parts at `at`, whose weights lanes have, to those before them; shares: room of this warp. */
ATTEND_FN void add_fetched(float2 own, int count, const float *at, float4 *shares, row_sums *s)
{
    int lane = (int)threadIdx.x % LANES;
    share mine = share_of(own, &s->most);
    shares[lane] = make_float4(mine.keep, mine.by, mine.sum, 0);
    __syncwarp();
#pragma unroll 8
    for (int i = 0; i < count; i++) {
        float4 all = shares[i];
        share one = { all.x, all.y, all.z };
        add_share(one, one.sum, &s->sum);
#pragma unroll
        for (int run = 0; run < RUNS; run++) {
#pragma unroll
            for (int j = 0; j < BESIDE; j++)
                add_share(one, at[i * IMX_VALUES + number_of(run) + j], &s->of[run][j]);
        }
    }
}

ATTEND_FN void put_sums(const imx_attend_args &x, int64_t state, const row_sums &s)
{
    const ending e = ending_of(x, s.most, s.sum);
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
#pragma unroll
        for (int j = 0; j < BESIDE; j++)
            put_o(x, e, state * IMX_VALUES + number_of(run) + j, s.of[run][j]);
    }
    if (threadIdx.x % LANES == 0 && x.lse)
        x.lse[state] = e.lse;
}

/* A warp: rows from `row` on, up to `end`, of w.  Parts come while those ahead are added. */
ATTEND_FN void add_fetching(const imx_attend_args &x, const work &w, int row, int end)
{
    int warp = (int)threadIdx.x / LANES, next_row = row, next_from = 0, from = 0, count = 0;
    float4 *shares = (float4 *)((char *)imx_attend_shared + warp * QUARTER_BYTES);
    char *room = (char *)shares + SHARES_BYTES;
    float2 own = {};
    row_sums s = { NONE };
    for (uint32_t turn = 0;; turn ^= 1) {
        float2 next = {};
        int next_count = next_row < end ? w.splits - next_from : 0;
        next_count = next_count < FETCHED ? next_count : FETCHED;
        if (next_count) {
            int64_t state = state_of(x, w, next_row);
            fetch_parts(part_of(x, state, next_from), next_count,
                        (uint32_t)__cvta_generic_to_shared(room + turn * FETCHED * PART_BYTES));
            next = load_weight(x, state, next_from, next_from + next_count);
        }
        commit();
        if (count) {
            wait_but<1>();
            __syncwarp();
            add_fetched(own, count, (const float *)(room + (turn ^ 1) * FETCHED * PART_BYTES),
                        shares, &s);
            __syncwarp(); /* all have read those */
        }
        if (count && from + count == w.splits) {
            put_sums(x, state_of(x, w, row), s);
            s = row_sums{ NONE };
        }
        if (!next_count)
            return;
        row = next_row, from = next_from, count = next_count, own = next;
        next_from = from + count < w.splits ? from + count : 0;
        next_row += next_from == 0;
    }
}

#endif /* IMX_ATTEND_SM90_ADD_CUH */
