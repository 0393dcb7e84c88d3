/* imbrex_moe.h - mixture of experts: a router's choice, and the products.  Part of imbrex.h, which
 * includes it and whose rules hold; docs/moe.md says what there is and in which order sums are
 * taken.
 */
#ifndef IMBREX_MOE_H
#define IMBREX_MOE_H

#ifndef IMBREX_H
#error "include imbrex.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* How a token chooses its experts: by scores, softmax or sigmoid of its logits over all experts. */
typedef struct imbrex_gate {
    int experts;        /* from 1 to 1024 */
    int top_k;          /* experts of a token, from 1 to 64 */
    int sigmoid;        /* 0: softmax; 1: each logit by itself */
    int renormalize;    /* 1: a token's weights are divided by their sum, unless that is 0 */
    int groups;         /* of as many experts each, which follow each other; 0: none */
    int top_groups;     /* the groups that count; their experts are at least top_k */
    int group_best;     /* 1 or 2: a group is as good as its best one or two together; 0: 1 */
    float scale;        /* of all weights, behind that; 0: 1 */
    imbrex_dtype dtype; /* of logits */
    uint32_t reserved[7];
} imbrex_gate;

/* ids[tokens, top_k] and weights[tokens, top_k] from logits[tokens, experts].
 *
 * A token's experts are those with the most score + bias[expert], the best first, and where two are
 * equal the lower id; bias chooses and is in no weight.  NULL: none, and the logits themselves are
 * compared, so that ids depend on no rounding.  Weights are the scores, in float32.
 *
 * A token with a logit of NaN, one of infinity or all of -infinity by softmax, or a bias that is
 * not finite gets the ids 0 to top_k - 1 and weights of NaN.  Other tokens do not notice.
 *
 * In memory of the device; outputs overlap nothing.  Local: no other rank takes part.  INVALID:
 * what is wrong, by name. */
IMBREX_TRY imbrex_topk_gate(imbrex_group *group, const imbrex_gate *gate, int64_t tokens,
                            const void *logits, const float *bias, int32_t *ids, float *weights,
                            imbrex_stream stream);

/* ---- Products of experts --------------------------------------------------------------------- */

/* A token goes to top_k of `experts`, each with a weight.  A pair is a token and one of its places:
 * pair number token * top_k + place.  Rank r's token t has number r*m/R + t of the run's m.  A
 * token may name an expert twice: those are two pairs. */
typedef enum imbrex_experts {
    IMBREX_EXPERTS_TENSOR, /* tensor parallel: every rank has a part of every expert, n columns
                              (ag_moe) or k (moe_rs) */
    IMBREX_EXPERTS_WHOLE   /* expert parallel: rank r has experts r*E/R up to (r+1)*E/R, rounded
                              down: maybe none */
} imbrex_experts;

typedef struct imbrex_moe_desc {
    int64_t tokens;     /* of all ranks, the most of a run (args.m); rank r owns tokens
                                r*tokens/R up to (r+1)*tokens/R */
    int64_t n, k;       /* of one expert's product on one rank: [.., k] * b */
    int experts, top_k; /* of all ranks, at most 2048 on one; of a token, at most 64 */
    imbrex_experts parallel;
    int align;              /* an expert's rows begin at a multiple of it, a power of two up to
                                512; 0: 16.  Rows between are not written */
    int64_t rows;           /* capacity of c (ag_moe) or a (moe_rs) and of row_pair, with gaps;
                                0: as many as there can be.  imbrex_plan_rows tells */
    imbrex_dtype dtype;     /* of a, b and gathered; with E4M3 and E5M2 (b is E4M3 then) b is
                                [experts here, n, k], and k a multiple of 16 */
    imbrex_layout layout;   /* of each expert's b */
    const char *algorithm;  /* of ag_moe "copy", "ll", "sequential", of moe_rs "store", "ll",
                                "sequential", of both over nodes "hierarchical",
                                "sequential"; NULL: chosen */
    int chunk_rows, sms;    /* as in imbrex_gemm_desc */
    int replicate;          /* 1: tokens are on every rank: a, ids and weights of ag_moe, alike on
                              all ranks, and c of moe_rs are of all m tokens */
    imbrex_dtype out;       /* of c, bias and residual: dtype, or, where that has 8 bits, BF16
                               (which DEFAULT is then), F16 or F32 */
    imbrex_scaling scaling; /* of a and b of 8 bits: UNSCALED, PER_ROW, PER_BLOCK */
    uint32_t reserved[9];
} imbrex_moe_desc;

/* Where pairs lie: memory of the device's, written by ag_moe, read by moe_rs and any kernel of the
 * caller's.  It is a function of the ids alone.  pairs: the run's m * top_k. */
typedef struct imbrex_routing {
    int32_t *expert_begin; /* [experts here + 1] first row of each expert; the last: behind all */
    int32_t *expert_rows;  /* [experts here] */
    int32_t *row_pair;     /* [capacity] pair of each row, ascending within an expert; -1: none */
    int32_t *pair_row;     /* [pairs] row of each pair; -1: not on this rank */
    int32_t *pair_expert;  /* [pairs] expert of each pair of all ranks' tokens; -1: none */
    float *weights;        /* [pairs] of all ranks' tokens */
    uint64_t reserved[4];
} imbrex_routing;

/* Collective.
 *
 *   ag_moe  a[own tokens, k], ids and weights[own tokens, top_k] (NULL: all 1),
 *           b[experts here, n, k] or [experts here, k, n]
 *           -> c[capacity, n] = all_gather(a)[token of row] * b[expert of row]; args.routing;
 *              gathered[m, k], or NULL: all tokens, for experts that all share
 *   moe_rs  a[capacity, k], b, args.routing of an ag_moe of the same tokens, experts, top_k,
 *           parallel, align, rows and m
 *           -> c[own tokens, n] = the sum over ranks and places of weight * (a[row] * b[expert]),
 *              + bias[n], or NULL, + residual[own tokens, n], or NULL
 *
 * With desc.replicate ag_moe sends nothing, and moe_rs gives every rank all of the sum: own tokens
 * above are then all tokens, residual is alike on all ranks, and gathered must be NULL.
 *
 * Scales, where desc.scaling asks for them, are float32.  PER_ROW: scale_a[rows of a] and
 * scale_b[experts here, n]; PER_BLOCK: scale_a[rows of a, k/128] and scale_b[experts here, n/128,
 * k/128], rounded up.  Those of a token travel with it; moe_rs has them for each row.
 *
 * An id outside of 0..experts-1 is none: its pair is nowhere.  More rows than desc.rows: the group
 * fails, NO_MEMORY, which names the rank, how many there are, and the most; nothing is written
 * beyond them.  docs/moe.md has the order of sums.  Operands overlap nothing, and need the
 * alignment of their elements; a and b on "cuda" that of 16 bytes. */
IMBREX_TRY imbrex_plan_ag_moe(imbrex_group *group, const imbrex_moe_desc *desc, imbrex_plan **plan);
IMBREX_TRY imbrex_plan_moe_rs(imbrex_group *group, const imbrex_moe_desc *desc, imbrex_plan **plan);

/* Local: the capacity of ag_moe, moe_rs, dispatch and combine; 0 of other plans, and of NULL. */
IMBREX_API int64_t imbrex_plan_rows(const imbrex_plan *plan);

/* ---- Tokens to their experts' ranks, and back ------------------------------------------------ */

/* For experts' products of one's own: rank r has experts r*E/R up to (r+1)*E/R, rounded down, maybe
 * none.  Each rank has tokens of its own, args.own of them, which may differ between ranks and be
 * none.  Rank r's token t has number r * rank_tokens + t, whatever own is; so pairs are
 * R * rank_tokens * top_k. */
typedef struct imbrex_dispatch_desc {
    int64_t rank_tokens; /* of one rank, the most of a run (args.own) */
    int64_t n;           /* the width of a token */
    int experts, top_k;  /* of all ranks, at most 2048 on one; of a token, at most 64 */
    imbrex_dtype dtype;  /* of tokens: BF16, F16 or F32 */
    imbrex_dtype wire;   /* dispatch: E4M3, what c is then, too; or as dtype */
    int align;           /* an expert's rows begin at a multiple of it, a power of two up to 512;
                          * 0: 16.  Rows between are not written */
    int64_t expert_capacity; /* > 0: expert e of those here begins at row e * expert_capacity, and
                              * may have no more; then align and rows are 0 */
    int64_t rows;            /* capacity, with gaps; 0: as many as there can be */
    const char *algorithm;   /* "store", "ll" (few tokens), "sequential"; over nodes
                              * "hierarchical", "sequential" */
    int sms;                 /* as in imbrex_gemm_desc */
    uint32_t reserved[9];
} imbrex_dispatch_desc;

/* Collective.  capacity: imbrex_plan_rows.
 *
 *   dispatch  a[own, n], ids and weights[own, top_k] (NULL: all 1)
 *             -> c[capacity, n] = the token of each row, by expert; args.routing.  wire E4M3: of
 *                elements divided by scale_c[capacity, n/128 rounded up], as imbrex_quantize does
 *                PER_BLOCK
 *   combine   a[capacity, n], args.routing of a dispatch of the same desc, residual[own, n] or NULL
 *             -> c[own, n] = the sum over ranks and places of weight * a[row], + residual
 *
 * A token travels once to each rank that has an expert of it, and a sum of it once back; over
 * several nodes all that a rank may have travels once to each of them.  Ids out
 * of range are none: a token with none alone comes back as its residual, or 0.  combine adds as
 * moe_rs does with whole experts, in the order that docs/moe.md has, and it travels in dtype.
 *
 * More rows than there is room for: the group fails, NO_MEMORY, which names the rank, how many
 * there are, and the most; nothing is written beyond them.  In routing combine reads pair_row,
 * pair_expert and weights.  Operands overlap nothing, and need the alignment of their elements. */
IMBREX_TRY imbrex_plan_dispatch(imbrex_group *group, const imbrex_dispatch_desc *desc,
                                imbrex_plan **plan);
IMBREX_TRY imbrex_plan_combine(imbrex_group *group, const imbrex_dispatch_desc *desc,
                               imbrex_plan **plan);

#ifdef __cplusplus
}
#endif
#endif /* IMBREX_MOE_H */
