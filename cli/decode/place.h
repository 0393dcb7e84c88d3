/* place.h - what stands between the projections of a decode step and its attention: the args of the
 * kernel in place_kernel.h. */
#ifndef CLI_DECODE_PLACE_H
#define CLI_DECODE_PLACE_H

/* A row of the projections has | q: heads | k: kv_heads | v: kv_heads |, each of dim numbers, in
 * columns that were shared out over parts: number f of row b is qkv[f / width, b, f % width]. */
typedef struct place_args {
    const void *qkv;              /* [parts, batch, width] */
    void *q;                      /* [batch, heads, dim] */
    void *k, *v;                  /* [batch, kv_heads, context, dim] */
    const float *turns;           /* [batch, dim]: cosines of the row's angles, then sines */
    const float *q_norm, *k_norm; /* [dim], or NULL */
    const int *places;            /* [batch]: where the row's k and v lie; -1: not on this rank */
    float eps;                    /* of the norms */
    int batch, heads, kv_heads, dim, width, context;
    int dtype; /* imbrex_dtype: 1 bf16, 2 f16, 3 f32 */
} place_args;

#endif /* CLI_DECODE_PLACE_H */
