/* sm80_pairs.cuh - pairs as they lie in packed, and how a warp walks through them. */
#ifndef IMX_ROUTE_SM80_PAIRS_CUH
#define IMX_ROUTE_SM80_PAIRS_CUH

#include "sm80_places.cuh"

enum { AHEAD = 8 /* loads of a thread before it looks at one */ };

/* Of a token in packed. */
ROUTE_FN int32_t words_of(const imx_route_args &args)
{
    return 2 * args.top_k + args.scales;
}

/* Of a pair in packed: its id; its weight is top_k words on. */
ROUTE_FN const int32_t *pair_at(const imx_route_args &args, int32_t pair)
{
    int32_t token = pair / args.top_k;
    return args.packed + (int64_t)token * words_of(args) + (pair - token * args.top_k);
}

/* A lane's pairs, 32 apart: where in packed the next one's id is, without dividing again. */
struct walk {
    int32_t pair, place, apart, over; /* over: places that a step adds */
    const int32_t *at;
};

ROUTE_FN walk walk_from(const imx_route_args &args, int32_t pair)
{
    int32_t tokens = 32 / args.top_k, over = 32 - tokens * args.top_k;
    walk w = { pair, pair % args.top_k, tokens * words_of(args) + over, over, pair_at(args, pair) };
    return w;
}

/* Ids of the next pairs below end; behind it -1, which is nobody's. */
ROUTE_FN void load_ids(const imx_route_args &args, walk *w, int32_t end, int32_t (&id)[AHEAD])
{
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
        id[j] = w->pair < end ? *w->at : -1;
        w->pair += 32;
        w->place += w->over;
        w->at += w->apart;
        if (w->place >= args.top_k) {
            w->place -= args.top_k;
            w->at += words_of(args) - args.top_k;
        }
    }
}

/* By those threads, from `thread` on. */
ROUTE_FN void pack(const imx_route_args &args, int32_t thread, int32_t threads)
{
    for (int32_t i = thread; i < args.tokens * args.top_k; i += threads) {
        int32_t *to = (int32_t *)pair_at(args, i);
        to[0] = args.ids[i];
        to[args.top_k] = __float_as_int(args.weights_in ? args.weights_in[i] : 1.0f);
    }
    for (int64_t i = thread; i < (int64_t)args.tokens * args.scales; i += threads) {
        int64_t token = i / args.scales;
        int32_t *to = args.packed + token * words_of(args) + 2 * args.top_k;
        to[i - token * args.scales] = __float_as_int(args.scales_in[i]);
    }
}

#endif /* IMX_ROUTE_SM80_PAIRS_CUH */
