/* sum_all.c - sums that every rank gets whole: the scatter, then the gather of own rows. */
#include "sum_all.h"

#include "norm.h"

void *imx_sum_all_own_rows(const imx_run *run)
{
    return (char *)run->args->c + imx_transfer_rank_at(run, run->rank, run->variant->shape.n);
}

imx_run imx_sum_all_first(const imx_run *run, imbrex_args *args)
{
    imx_run first = *run;
    *args = *run->args;
    args->c = imx_sum_all_own_rows(run);
    if (args->residual && !imx_norm_shards(run))
        args->residual = (const char *)args->residual +
                         imx_transfer_rank_at(run, run->rank, run->variant->shape.n);
    first.args = args;
    return first;
}

void imx_sum_all_needs(const imx_variant *variant, imx_needs *needs)
{
    imx_needs scatter = { 0 }, gather = { 0 };
    imx_transfer_scatter_needs(variant, &scatter);
    imx_transfer_gather_needs(variant, variant->shape.n, &gather);
    *needs = imx_transfer_both(&scatter, &gather);
}

double imx_sum_all_cost(const imx_rates *rates, double sent)
{
    return 2 * imx_transfer_sequential_cost(rates, sent);
}

/* The two movements' runs. */
typedef struct sum_runs {
    imbrex_args args;
    imx_run scatter, gather;
} sum_runs;

static void split_sum(const imx_run *run, sum_runs *runs)
{
    imx_needs scatter = { 0 };
    imx_transfer_scatter_needs(run->variant, &scatter);
    runs->scatter = imx_sum_all_first(run, &runs->args);
    runs->gather = imx_transfer_second(run, &scatter);
}

imbrex_status imx_sum_all(const imx_run *run, int kernel, const void *matrix)
{
    int64_t width = run->variant->shape.n;
    sum_runs runs;
    split_sum(run, &runs);
    const void *own = runs.args.c;
    IMX_TRY(imx_transfer_scatter(&runs.scatter, run->stream, matrix, NULL));
    IMX_TRY(imx_transfer_scatter_wait(&runs.scatter, run->stream));
    IMX_TRY(imx_transfer_reduce(&runs.scatter, run->stream, kernel, matrix, false));
    IMX_TRY(imx_transfer_gather(&runs.gather, run->stream, own, width));
    IMX_TRY(imx_transfer_gather_wait(&runs.gather, run->stream));
    return imx_transfer_gather_out(&runs.gather, run->stream, own, width, run->args->c, true);
}

/* Chunk q of everybody's rows to its owner. */
static imbrex_status scatter_chunks(const imx_run *run, imbrex_stream stream, int q,
                                    const void *matrix, uint64_t *done)
{
    for (int i = 1; i < run->ranks; i++) {
        int to = (run->rank + i) % run->ranks;
        if (q < imx_run_chunks(run, to))
            IMX_TRY(imx_transfer_scatter_chunk(run, stream, matrix, done, to, q));
    }
    return IMBREX_OK;
}

/* Chunk q of own rows: their sum, which goes to everybody. */
static imbrex_status settle_chunk(const sum_runs *runs, imbrex_stream stream, int q, int kernel,
                                  const void *matrix, uint64_t *done)
{
    const imx_run *gather = &runs->gather;
    int64_t width = gather->variant->shape.n;
    if (q >= imx_run_chunks(gather, gather->rank))
        return IMBREX_OK;
    IMX_TRY(imx_transfer_reduce_chunk(&runs->scatter, stream, kernel, matrix, done, q));
    for (int i = 1; i < gather->ranks; i++) {
        int to = (gather->rank + gather->ranks - i) % gather->ranks;
        IMX_TRY(imx_transfer_gather_chunk(gather, stream, runs->args.c, width, to, q));
    }
    return IMBREX_OK;
}

imbrex_status imx_sum_all_chunks(const imx_run *run, imbrex_stream stream, int beside, int last,
                                 const void *matrix, uint64_t *done)
{
    sum_runs runs;
    split_sum(run, &runs);
    int chunks = run->variant->config.chunks; /* the most of any rank, in any run */
    for (int q = 0; q < chunks; q++) {
        IMX_TRY(scatter_chunks(&runs.scatter, stream, q, matrix, done));
        if (q)
            IMX_TRY(settle_chunk(&runs, stream, q - 1, beside, matrix, done));
    }
    IMX_TRY(settle_chunk(&runs, stream, chunks - 1, last, matrix, done));
    return imx_transfer_gather_out(&runs.gather, run->stream, runs.args.c, run->variant->shape.n,
                                   run->args->c, false);
}

imbrex_status imx_sum_all_copies(const imx_run *run, imbrex_stream beside, int kernel,
                                 const void *matrix)
{
    sum_runs runs;
    split_sum(run, &runs);
    int chunks = run->variant->config.chunks;
    for (int q = 0; q < chunks; q++)
        IMX_TRY(scatter_chunks(&runs.scatter, beside, q, matrix, NULL));
    for (int q = 0; q < chunks; q++)
        IMX_TRY(settle_chunk(&runs, run->stream, q, kernel, matrix, NULL));
    return imx_transfer_gather_out(&runs.gather, beside, runs.args.c, run->variant->shape.n,
                                   run->args->c, false);
}

/* ---- by the ll kernel ------------------------------------------------------------------------ */

/* Of a kernel that norms rows: parts are pieces of rows, cut alike on all ranks. */
static imx_ll_args rows_args(const imx_variant *variant, int64_t m, imx_ll_how how)
{
    const imx_shape *shape = &variant->shape;
    int ranks = variant->plan->group->size, fans = how == IMX_LL_FANS;
    int64_t element = (int64_t)imx_dtype_bytes(shape->out), row = shape->n * element;
    int64_t all = shape->m * row, sent = fans ? imx_ll_share(false, all, ranks) : all;
    bool lines = imx_transfer_ll_lines(variant, sent);
    int pieces = imx_ll_pieces(shape->n, shape->m);
    int piece_cols = imx_ll_piece_cols(shape->n, pieces);
    int64_t piece = piece_cols * element;
    int64_t units = shape->m * pieces * imx_ll_piece_units(lines, piece, row, ranks, fans);
    return (imx_ll_args){
        .m = m,
        .row_bytes = row,
        .most = m * row,
        .ranks = ranks,
        .lines = lines,
        .how = how,
        .dtype = (int)shape->out,
        .pieces = pieces,
        .piece_cols = piece_cols,
        .plan = imx_variant_point(variant),
        .part_bytes = (int64_t)imx_align((size_t)units * sizeof(imx_ll_unit), 128),
        .norm = imx_norm_largest(variant, m),
    };
}

void imx_sum_all_ll_needs(const imx_variant *variant, imx_ll_how how, imx_needs *needs)
{
    imx_transfer_ll_needs(variant, variant->shape.n, how, needs);
    if (!imx_norm_in_kernel(variant))
        return;
    imx_ll_args largest = rows_args(variant, variant->shape.m, how);
    size_t parts = (how == IMX_LL_FANS ? 4 : 2) * (size_t)variant->plan->group->size;
    needs->data_bytes = needs->lines_bytes = parts * (size_t)largest.part_bytes;
}

imbrex_status imx_sum_all_ll_prepare(imx_variant *variant, int kernel, imx_ll_how how)
{
    if (!imx_norm_in_kernel(variant))
        return imx_transfer_ll_prepare(variant, kernel, variant->shape.n, how);
    imx_ll_args largest = rows_args(variant, variant->shape.m, how);
    return imx_variant_prepare(variant, kernel, &imx_kernel_ll, &largest);
}

imbrex_status imx_sum_all_ll(const imx_run *run, int kernel, imx_ll_how how, const void *matrix)
{
    imbrex_args sum = *run->args;
    imx_run of_matrix = *run;
    sum.a = matrix;
    of_matrix.args = &sum;
    if (!imx_norm_in_kernel(run->variant))
        return imx_transfer_ll(&of_matrix, kernel, run->variant->shape.n, how, sum.c);
    imx_ll_args args = rows_args(run->variant, run->m, how);
    args.norm = imx_norm_of_run(run);
    args.from = matrix;
    args.bias = sum.bias;
    args.residual = sum.residual;
    args.to = (void *)(uintptr_t)args.norm.in;
    args.uses = imx_run_done(run);
    args.team = imx_run_team(run);
    return args.m ? imx_run_launch(run, run->stream, kernel, &args, sizeof args) : IMBREX_OK;
}

bool imx_sum_all_can_ll(const imx_problem *p, imx_text *why_not)
{
    if (p->in->shard_residual)
        imx_text_add(why_not,
                     "which does not add by the rows of a rank, and desc.norm.shard_residual "
                     "gives a rank its own rows alone: choose \"sequential\"");
    return !p->in->shard_residual;
}

/* Every rank sends all of its rows to all: fitted to two and four H200s, from 16 KB to 16 MB. */
double imx_sum_all_ll_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double begins = 2.5, in_lines = 1.3, in_words = 2.4; /* of what its bytes take */
    static const double most = 24e6;                                  /* to each peer */
    double shard = p->in->whole_lines ? in_lines : in_words;
    if (p->sent * p->in->ranks > most * (p->in->ranks - 1))
        return IMX_COST_NEVER;
    return imx_cost_of_signals(rates, begins) + shard * p->sent * p->in->ranks / rates->store;
}

/* Twice one way between GPUs, and twice what a rank sends: fitted likewise, up to 64 MB.  Of words
 * nothing was measured: as much more as of ll's. */
double imx_sum_all_ll2_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double begins = 1.1, of_rank = 0.9, in_lines = 1.12, in_words = 2.1;
    return imx_cost_of_signals(rates, begins + of_rank * p->in->ranks) +
           2 * (p->in->whole_lines ? in_lines : in_words) * p->sent / rates->store;
}
