/* sm80.cu - the gate kernel on NVIDIA GPUs: a warp takes every so-many-th token.  Its scores, keys
 * and groups lie in shared memory, of which lane i has every 32nd from i on: no other lane writes
 * there, and what all read is behind a __syncwarp. */
#include "../grid.cuh"
#include "../vector.cuh"
#include "args.h"

enum { WARPS = 4 };
enum : unsigned { ALL = 0xffffffff }; /* lanes */

/* Of one token. */
struct token {
    float score[IMX_GATE_EXPERTS], key[IMX_GATE_EXPERTS], group[IMX_GATE_EXPERTS];
};

static __device__ __forceinline__ float nan_of(void)
{
    return __int_as_float(0x7fffffff);
}

static __device__ __forceinline__ bool is_nan(float x)
{
    return x != x;
}

static __device__ __forceinline__ float greatest_of_warp(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL, x, step));
    return x;
}

/* In an order that is the same for all lanes. */
static __device__ __forceinline__ float sum_of_warp(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(ALL, x, step);
    return x;
}

/* score: logits, then what they stand for. */
static __device__ __forceinline__ void find_scores(const imx_gate_args &args, token *t, int lane)
{
    float most = __int_as_float(0xff800000), sum = 0;
    for (int e = lane; e < args.experts; e += 32)
        most = fmaxf(most, t->score[e]);
    most = greatest_of_warp(most);
    for (int e = lane; e < args.experts; e += 32) {
        float x = t->score[e];
        x = args.sigmoid ? 1 / (1 + expf(-x)) : expf(x - most);
        t->score[e] = x;
        sum += x;
    }
    sum = args.sigmoid ? 1 : sum_of_warp(sum);
    for (int e = lane; e < args.experts; e += 32)
        t->score[e] /= sum;
}

/* Whether all are numbers. */
static __device__ __forceinline__ bool find_keys(const imx_gate_args &args, token *t,
                                                 int64_t number, int lane)
{
    bool numbers = true;
    for (int e = lane; e < args.experts; e += 32)
        t->key[e] = t->score[e] =
            imx_vector_get(args.dtype, args.logits, number * args.experts + e);
    find_scores(args, t, lane);
    for (int e = lane; e < args.experts; e += 32) {
        if (args.bias)
            t->key[e] = t->score[e] + ((const volatile float *)args.bias)[e];
        bool finite = fabsf(t->key[e]) < __int_as_float(0x7f800000);
        numbers = numbers && !is_nan(t->score[e]) && (!args.bias || finite);
    }
    return __all_sync(ALL, numbers);
}

/* The first of the greatest, on all lanes; what is NaN is out. */
static __device__ __forceinline__ int best_of_warp(const float *key, int count, int lane)
{
    int found = -1;
    float most = 0;
    for (int i = lane; i < count; i += 32) {
        if (!is_nan(key[i]) && (found < 0 || key[i] > most)) {
            found = i;
            most = key[i];
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        int other = __shfl_xor_sync(ALL, found, step);
        float theirs = __shfl_xor_sync(ALL, most, step);
        bool better = theirs > most || (theirs == most && other < found);
        if (other >= 0 && (found < 0 || better)) {
            found = other;
            most = theirs;
        }
    }
    return found;
}

/* How good a group is, of `count` experts from `first` on; by one lane. */
static __device__ __forceinline__ float rate_group(const imx_gate_args &args, const token *t,
                                                   int first, int count)
{
    const float *worth = args.bias ? t->key : t->score;
    int one = first, two = -1;
    for (int e = first + 1; e < first + count; e++) {
        if (t->key[e] > t->key[one]) {
            two = one;
            one = e;
        } else if (two < 0 || t->key[e] > t->key[two]) {
            two = e;
        }
    }
    if (args.group_best == 1)
        return t->key[one];
    return two < 0 ? worth[one] : worth[one] + worth[two];
}

static __device__ __forceinline__ void drop_groups(const imx_gate_args &args, token *t, int lane)
{
    int count = args.experts / args.groups;
    for (int g = lane; g < args.groups; g += 32)
        t->group[g] = rate_group(args, t, g * count, count);
    __syncwarp();
    for (int i = 0; i < args.top_groups; i++) {
        int chosen = best_of_warp(t->group, args.groups, lane);
        if (chosen % 32 == lane)
            t->group[chosen] = nan_of();
        __syncwarp();
    }
    for (int e = lane; e < args.experts; e += 32) {
        if (!is_nan(t->group[e / count]))
            t->key[e] = nan_of();
    }
    __syncwarp();
}

/* Lane i keeps places i and i + 32. */
static __device__ __forceinline__ void choose(const imx_gate_args &args, token *t, bool numbers,
                                              int64_t number, int lane)
{
    int ids[2] = { 0, 0 };
    float weights[2] = { 0, 0 }, sum = 0;
    for (int i = 0; i < args.top_k; i++) {
        int id = numbers ? best_of_warp(t->key, args.experts, lane) : i;
        float weight = numbers ? t->score[id] : nan_of();
        sum += weight;
        if (i % 32 == lane) {
            ids[0] = i < 32 ? id : ids[0];
            ids[1] = i < 32 ? ids[1] : id;
            weights[0] = i < 32 ? weight : weights[0];
            weights[1] = i < 32 ? weights[1] : weight;
        }
        if (id % 32 == lane)
            t->key[id] = nan_of();
        __syncwarp();
    }
    float by = args.renormalize && sum != 0 ? sum : 1;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int place = lane + 32 * half;
        if (place < args.top_k) {
            args.ids[number * args.top_k + place] = ids[half];
            args.weights[number * args.top_k + place] = weights[half] / by * args.scale;
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    imx_gate(const __grid_constant__ imx_gate_args args,
             const __grid_constant__ imbrexd_watch watch)
{
    __shared__ token tokens[WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    token *t = &tokens[warp];
    imx_grid_wait();
    imx_grid_let_go();
    for (int64_t i = (int64_t)blockIdx.x * WARPS + warp; i < args.tokens; i += gridDim.x * WARPS) {
        bool numbers = find_keys(args, t, i, lane);
        __syncwarp();
        if (numbers && args.top_groups < args.groups)
            drop_groups(args, t, lane);
        choose(args, t, numbers, i, lane);
    }
}
