/* sm80_places.cuh - a token's places between the lanes of a warp, and the walk over those with a
 * row here, in their order: the same for all who add them up by warps. */
#ifndef IMX_COMBINE_SM80_PLACES_CUH
#define IMX_COMBINE_SM80_PLACES_CUH

#include "args.h"

#define PLACES_FN static __device__ __forceinline__

enum { LANES = 32, HALVES = 2 /* top_k is at most 64 */ };
enum { ROWS_AT_ONCE = 4 /* under way */ };
enum : unsigned { ALL = 0xffffffff }; /* lanes */

/* A lane's: of place `lane`, and lane + 32. */
struct places {
    int32_t row[HALVES];
    float weight[HALVES];
    unsigned has[HALVES]; /* places with a row here, a bit each; the same in all lanes */
};

PLACES_FN int lane_of(void)
{
    return (int)threadIdx.x % LANES;
}

PLACES_FN places places_of(const imx_combine_args &x, int64_t token)
{
    places p;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        int place = lane_of() + h * LANES;
        int64_t pair = token * x.top_k + place;
        bool is_one = place < x.top_k;
        p.row[h] = is_one ? x.pair_row[pair] : -1;
        p.weight[h] = is_one ? x.weights[pair] : 0.0f;
    }
#pragma unroll
    for (int h = 0; h < HALVES; h++) /* once all loads are under way */
        p.has[h] = __ballot_sync(ALL, p.row[h] >= 0 && p.row[h] < x.rows);
    return p;
}

/* By all lanes: data = load(row) of some rows at once, then add(data, weight, first) of each. */
template <class DATA, class LOAD, class ADD>
PLACES_FN void each_place(const places &p, LOAD load, ADD add)
{
    bool first = true;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll 1
        for (unsigned left = p.has[h]; left;) {
            DATA data[ROWS_AT_ONCE];
            float weight[ROWS_AT_ONCE];
            int count = __popc(left);
#pragma unroll
            for (int j = 0; j < ROWS_AT_ONCE; j++) {
                int place = left ? __ffs((int)left) - 1 : 0;
                int64_t row = __shfl_sync(ALL, p.row[h], place);
                weight[j] = __shfl_sync(ALL, p.weight[h], place);
                if (j < count)
                    data[j] = load(row);
                left &= left - 1;
            }
#pragma unroll
            for (int j = 0; j < ROWS_AT_ONCE; j++) {
                if (j < count) {
                    add(data[j], weight[j], first);
                    first = false;
                }
            }
        }
    }
}

/* A product is rounded before it is added, as everywhere. */
template <int COUNT>
PLACES_FN void add_weighted(float *sum, const float *x, float weight, bool first)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float term = __fmul_rn(weight, x[i]);
        sum[i] = first ? term : __fadd_rn(sum[i], term);
    }
}

#endif /* IMX_COMBINE_SM80_PLACES_CUH */
