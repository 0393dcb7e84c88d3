/* decode_reference.h - a case of decode: what ranks are given, and what it is to be. */
#ifndef DECODE_REFERENCE_H
#define DECODE_REFERENCE_H

#include <stdint.h>

#include "imbrex.h"

enum { KEYS_MOST = 576, VALUES_MOST = 512 };

typedef struct decode_case {
    int heads, kv_heads, head_dim, value_dim, queries, page, heads_first;
    imbrex_dtype dtype, cache;
    int64_t context, gap; /* gap: elements between pages */
    float scale, soft_cap;
    int windows, sinks, replicate, natural;
    int64_t batch;
} decode_case;

#define BF16 IMBREX_BF16
#define F16  IMBREX_F16
#define F32  IMBREX_F32
#define E4M3 IMBREX_E4M3

enum { APART = 2 }; /* windows: the first query sees a quarter, the others the second half */

static const float decode_scale_k = 0.5f, decode_scale_v = 0.75f;

/* Tokens of sequence s on rank r: none, one, page edges, all there can be. */
int64_t decode_length(const decode_case *c, int r, int s);
int32_t decode_visible(const decode_case *c, int r, int s, int j);
int32_t decode_hidden(const decode_case *c, int r, int s, int j);

unsigned decode_code(int input, int64_t i);

/* Element i of token t of sequence s, head h, on rank r; of v or k. */
double decode_cache_value(const decode_case *c, int v, int r, int s, int64_t t, int h, int i);
double decode_q_value(const decode_case *c, int64_t i);
float decode_sink(int head);

typedef struct decode_want {
    double o[VALUES_MOST], size, lse;
} decode_want;

/* What heads of one key head have in common, of all ranks, as double: worked out once for them. */
typedef struct decode_seen {
    double *k, *v; /* [ranks][context][dim] */
    int s, h;      /* whose; s < 0: nobody's */
} decode_seen;

/* Of one row of q and one head. */
decode_want decode_expect(const decode_case *c, int ranks, int64_t row, int head, decode_seen *x);

#endif /* DECODE_REFERENCE_H */
