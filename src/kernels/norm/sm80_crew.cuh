/* sm80_crew.cuh - a crew, so many warps of a block, norms rows one after the other on NVIDIA GPUs,
 * and holds each in registers from what comes from memory to what is stored.  A warp has a segment
 * of it, or two where the row is so long, a lane the columns that args.h gives it, eight of which
 * are 16 bytes.  What is asked of the dtype is alike in all threads.
 *
 *     IMX_NORM_FEW   registers: for a segment of a warp, and no row ahead; then
 *     IMX_DTYPE      of all rows
 */
#ifndef IMX_NORM_SM80_CREW_CUH
#define IMX_NORM_SM80_CREW_CUH

#include "sm80_steps.cuh"

#ifdef IMX_NORM_FEW
#define NORM_FEW         1
#define NORM_DTYPE(args) IMX_DTYPE
#else
#define NORM_FEW         0
#define NORM_DTYPE(args) ((args)->dtype)
#endif

enum {
    SEGMENTS = IMX_NORM_COLUMNS / IMX_NORM_SEGMENT,
    HELD = NORM_FEW ? 1 : 2,  /* segments of a warp, at most */
    CREW = SEGMENTS / 2,      /* warps, at most */
    GROUP = LANES * TOGETHER, /* columns of a warp, one beside the other */
};

/* This thread's columns of a row. */
typedef struct held {
    float x[HELD * GROUPS][TOGETHER];
} held;

/* What its warps tell each other of a row, in shared memory: of rows in turns, so that one barrier
 * a row is enough. */
typedef struct crew_words {
    float squares[2][SEGMENTS], largest[2][CREW];
} crew_words;

typedef struct norm_crew {
    int barrier, warps, warp; /* which of them this one is */
    int turn;
    crew_words *words;
} norm_crew;

/* All threads of the crew. */
NORM_FN void crew_sync(const norm_crew &crew)
{
    asm volatile("bar.sync %0, %1;" : : "r"(crew.barrier), "r"(crew.warps * LANES) : "memory");
}

/* The first of group g. */
NORM_FN int column_of(const norm_crew &crew, int g)
{
    int segment = crew.warp + g / GROUPS * crew.warps;
    return segment * IMX_NORM_SEGMENT + (g % GROUPS * LANES + lane_of()) * TOGETHER;
}

/* Segments of a warp. */
NORM_FN int held_of(const imx_norm_args *args, const norm_crew &crew)
{
    return HELD > 1 && args->n > crew.warps * IMX_NORM_SEGMENT ? HELD : 1;
}

/* Of the warps' first segments, and their second ones if the row is so long. */
#define EACH_GROUP(held, g) \
    _Pragma("unroll") for (int g = 0; g < HELD * GROUPS; g++) if (g < GROUPS || (held) > 1)

/* ---- over the row ---------------------------------------------------------------------------- */

/* x: of so many segments.  All threads of the crew. */
NORM_FN float row_inverse(const imx_norm_args *args, const norm_crew &crew,
                          const float (*x)[TOGETHER], int held)
{
    float *squares = crew.words->squares[crew.turn];
#pragma unroll
    for (int s = 0; s < HELD && s < held; s++) {
        float sum = norm_squares(x + s * GROUPS);
        if (lane_of() == 0)
            squares[crew.warp + s * crew.warps] = sum;
    }
    crew_sync(crew);
    return norm_inverse(args, squares);
}

/* Of the whole row.  All threads of the crew. */
NORM_FN float row_scale(const imx_norm_args *args, const norm_crew &crew, const held *row)
{
    float *all = crew.words->largest[crew.turn], largest = 0.0f;
    EACH_GROUP(held_of(args, crew), g) largest = fmaxf(largest, imx_row_largest(row->x[g]));
    largest = imx_row_largest_of(largest, LANES);
    if (lane_of() == 0)
        all[crew.warp] = largest;
    crew_sync(crew);
#pragma unroll 1
    for (int w = 0; w < crew.warps; w++)
        largest = fmaxf(largest, all[w]);
    return imx_scale_of(largest, args->power_of_two);
}

/* ---- one row --------------------------------------------------------------------------------- */

NORM_FN void add_columns(int dtype, const void *row, int column, int n, float *x)
{
    float more[TOGETHER];
    imx_row_load(dtype, row, column, n, more);
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        x[i] = __fadd_rn(x[i], more[i]);
}

/* Of `in`, where args' own is.  Columns that the row does not have are 0. */
NORM_FN void load_row(const imx_norm_args *args, const norm_crew &crew, const void *in, int64_t row,
                      held *to)
{
    int n = (int)args->n, dtype = NORM_DTYPE(args);
    EACH_GROUP(held_of(args, crew), g)
    {
        float *x = to->x[g];
        int column = column_of(crew, g);
        imx_row_load(dtype, norm_row_at(dtype, in, row, n), column, n, x);
        if (args->bias)
            add_columns(dtype, args->bias, column, n, x);
        if (args->residual)
            add_columns(dtype, norm_row_at(dtype, args->residual, row, n), column, n, x);
        imx_row_round(dtype, x);
        if (args->h)
            norm_store(dtype, norm_row_at(dtype, args->h, row, n), column, n, x);
    }
}

NORM_FN void norm_row(const imx_norm_args *args, const norm_crew &crew, float inverse, held *row)
{
    EACH_GROUP(held_of(args, crew), g)
    {
        float *x = row->x[g], gamma[TOGETHER];
        imx_row_load(NORM_DTYPE(args), args->gamma, column_of(crew, g), (int)args->n, gamma);
        norm_columns(args, inverse, gamma, x);
        imx_row_round(NORM_DTYPE(args), x);
    }
}

NORM_FN void store_row(const imx_norm_args *args, const norm_crew &crew, void *to, int64_t row,
                       const held *from)
{
    EACH_GROUP(held_of(args, crew), g)
    norm_store(NORM_DTYPE(args), norm_row_at(NORM_DTYPE(args), to, row, args->n),
               column_of(crew, g), (int)args->n, from->x[g]);
}

NORM_FN void quantize_row(const imx_norm_args *args, const norm_crew &crew, int64_t row, held *from)
{
    float scale = 0.0f;
    if (args->quant == IMBREX_PER_TENSOR)
        scale = *(const volatile float *)args->scale;
    else if (args->quant == IMBREX_PER_ROW)
        scale = row_scale(args, crew, from);
    if (args->quant == IMBREX_PER_ROW && crew.warp == 0 && lane_of() == 0)
        args->scale[row] = scale;
    EACH_GROUP(held_of(args, crew), g)
    norm_quantize(args, row, column_of(crew, g), scale, from->x[g]);
}

NORM_FN void one_row(const imx_norm_args *args, norm_crew crew, const void *in, int64_t row)
{
    held held = { 0 };
    asm volatile("" : "+r"(crew.warp)); /* places are worked out again for each row */
    load_row(args, crew, in, row, &held);
    if (args->rms)
        norm_row(args, crew, row_inverse(args, crew, held.x, held_of(args, crew)), &held);
    if (args->normed)
        store_row(args, crew, args->normed, row, &held);
    if (args->quant)
        quantize_row(args, crew, row, &held);
    else
        store_row(args, crew, args->c, row, &held);
}

/* ---- the same where that is simple ----------------------------------------------------------- */

/* 16 bits, whole vectors, a segment a warp, nothing quantised: loads that no branch parts are under
 * way together. */
NORM_FN bool is_plain(const imx_norm_args *args, const norm_crew &crew, const void *in)
{
    const void *all[] = { in, args->bias, args->residual, args->gamma, args->h, args->c };
    bool plain = NORM_DTYPE(args) != IMBREX_F32 && !args->quant && args->n % TOGETHER == 0 &&
                 held_of(args, crew) == 1 && !(NORM_FEW && (args->bias || args->residual));
#pragma unroll
    for (int i = 0; i < 6; i++)
        plain &= imx_vector_aligned(all[i]);
    return plain;
}

/* Where a lane's columns are in a row, in bytes, and how many columns are there from its first on.
 */
typedef struct plain_lane {
    int at, left;
} plain_lane;

NORM_FN void load_plain(const plain_lane &lane, const void *row, uint4 *v)
{
    const char *from = (const char *)row + lane.at;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        v[g] = make_uint4(0, 0, 0, 0);
        if (g * GROUP < lane.left)
            v[g] = imx_vector_load(from + g * GROUP * 2);
    }
}

NORM_FN void store_plain(const plain_lane &lane, void *row, const uint4 *v)
{
    char *to = (char *)row + lane.at;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (g * GROUP < lane.left)
            *(uint4 *)(to + g * GROUP * 2) = v[g];
    }
}

/* What comes from memory of a row. */
typedef struct plain_row {
    uint4 in[GROUPS], residual[GROUPS];
} plain_row;

template <bool MORE>
NORM_FN void load_plain_row(const imx_norm_args *args, const plain_lane &lane, const void *in,
                            int64_t at, plain_row *to)
{
    load_plain(lane, (const char *)in + at, to->in);
    if (MORE && args->residual)
        load_plain(lane, (const char *)args->residual + at, to->residual);
}

/* Rows from `row` on, every step-th below `end`; the next one is under way meanwhile.  MORE: bias
 * or residual. */
template <int DTYPE, bool MORE>
NORM_FN void plain_rows(const imx_norm_args *args, norm_crew &crew, const void *in, int64_t row,
                        int64_t end, int64_t step)
{
    const int first = column_of(crew, 0);
    const plain_lane lane = { first * 2, (int)args->n - first };
    int64_t bytes = args->n * 2, at = row * bytes, stop = end * bytes;
    plain_row next;
    uint4 gamma[GROUPS]; /* or bias */
    if (!NORM_FEW && at < stop)
        load_plain_row<MORE>(args, lane, in, at, &next);
    if (!NORM_FEW && !MORE && args->rms)
        load_plain(lane, args->gamma, gamma);
#pragma unroll 1
    for (; at < stop; at += step * bytes, crew.turn ^= 1) {
        float x[GROUPS][TOGETHER];
        if (NORM_FEW)
            load_plain_row<MORE>(args, lane, in, at, &next);
        if (MORE && args->bias)
            load_plain(lane, args->bias, gamma);
#pragma unroll
        for (int g = 0; g < GROUPS && MORE; g++) {
            imx_vector_add(DTYPE, x[g], next.in[g], true);
            if (args->bias)
                imx_vector_add(DTYPE, x[g], gamma[g], false);
            if (args->residual)
                imx_vector_add(DTYPE, x[g], next.residual[g], false);
            next.in[g] = imx_vector_narrow(DTYPE, x[g]);
        }
        if (args->h)
            store_plain(lane, (char *)args->h + at, next.in);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            imx_vector_add(DTYPE, x[g], next.in[g], true);
        if (!NORM_FEW && at + step * bytes < stop)
            load_plain_row<MORE>(args, lane, in, at + step * bytes, &next);
        if (args->rms) {
            if (NORM_FEW || MORE) /* there are no registers for it from row to row */
                load_plain(lane, args->gamma, gamma);
            float inverse = row_inverse(args, crew, x, 1);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                float by[TOGETHER];
                asm volatile("" /* there are none for it as numbers */
                             : "+r"(gamma[g].x), "+r"(gamma[g].y), "+r"(gamma[g].z),
                               "+r"(gamma[g].w));
                imx_vector_add(DTYPE, by, gamma[g], true);
                norm_columns(args, inverse, by, x[g]);
            }
        }
        uint4 c[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            c[g] = imx_vector_narrow(DTYPE, x[g]);
        store_plain(lane, (char *)args->c + at, c);
    }
}

template <int DTYPE>
NORM_FN void plain_rows_of(const imx_norm_args *args, norm_crew &crew, const void *in, int64_t row,
                           int64_t end, int64_t step)
{
    if (!NORM_FEW && (args->bias || args->residual))
        plain_rows<DTYPE, true>(args, crew, in, row, end, step);
    else
        plain_rows<DTYPE, false>(args, crew, in, row, end, step);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Weights are there before the kernel ahead has ended. */
NORM_FN void fetch_gamma(const imx_norm_args *args, const norm_crew &crew)
{
    EACH_GROUP(held_of(args, crew), g)
    {
        const char *at =
            (const char *)args->gamma + column_of(crew, g) * imx_vector_bytes(NORM_DTYPE(args));
        if (column_of(crew, g) < args->n)
            asm volatile("prefetch.global.L2 [%0];" : : "l"(at));
    }
}

/* The crew's, from `row` on, every step-th below `end`, of sums in `in`. */
NORM_FN void norm_rows(const imx_norm_args *args, norm_crew &crew, const void *in, int64_t row,
                       int64_t end, int64_t step)
{
    asm volatile("" : "+r"(crew.warp)); /* a caller's loop keeps nothing of it in registers */
    if (is_plain(args, crew, in)) {
        if (NORM_DTYPE(args) == IMBREX_BF16)
            plain_rows_of<IMBREX_BF16>(args, crew, in, row, end, step);
        else
            plain_rows_of<IMBREX_F16>(args, crew, in, row, end, step);
        return;
    }
#pragma unroll 1
    for (; row < end; row += step, crew.turn ^= 1)
        one_row(args, crew, in, row);
}

#endif /* IMX_NORM_SM80_CREW_CUH */
