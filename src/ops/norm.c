/* norm.c - what operators with an imbrex_norm have in common; see norm.h. */
#include "norm.h"

#include <math.h>
#include <string.h>

#include "kernels/ll/args.h"
#include "kernels/push/args.h"

static imbrex_norm norm_of(const imx_op *op, const void *desc)
{
    imbrex_norm norm;
    memcpy(&norm, (const char *)desc + op->norm_at, sizeof norm);
    return norm;
}

/* ---- the step -------------------------------------------------------------------------------- */

enum { NORM = IMX_KERNELS - 1 }; /* kernel, behind the algorithms' own */

/* Whether c is more than the sum. */
static bool has_kernel(const imbrex_norm *norm)
{
    return norm->rms || norm->quant;
}

static const imbrex_field *result_row(const imx_op *op)
{
    const imbrex_field *row = op->info.args;
    while (row->offset != offsetof(imbrex_args, c))
        row++;
    return row;
}

/* Of c on this rank, in a run of m rows. */
static int64_t result_rows(const imbrex_plan *plan, int64_t m)
{
    const imx_asked asked = { plan->group, plan->op, &plan->shape, plan->desc, NULL };
    int64_t dims[IMX_DIMS];
    imx_args_dims(&asked, result_row(plan->op), m, dims);
    return dims[0];
}

bool imx_norm_shards(const imx_run *run)
{
    bool all = result_row(run->plan->op)->own[IMX_FIELD_DIMS] == IMX_ROWS;
    return all && run->plan->op->norm_at && norm_of(run->plan->op, run->plan->desc).shard_residual;
}

static size_t row_bytes(const imx_shape *shape)
{
    return (size_t)shape->n * imx_dtype_bytes(shape->out);
}

/* Where a sum is kept in local data, behind what the algorithm has there. */
static size_t kept_at(const imx_variant *variant)
{
    imx_needs needs = { 0 };
    variant->algorithm->layout(variant, &needs);
    return imx_align(needs.local_bytes, 256);
}

static void lay_out(const imx_variant *variant, imx_needs *needs)
{
    const imbrex_plan *plan = variant->plan;
    if (norm_of(plan->op, plan->desc).quant)
        needs->local_bytes = kept_at(variant) +
                             (size_t)result_rows(plan, variant->shape.m) * row_bytes(&plan->shape);
}

/* Whether a GPU's kernel that adds the rows of a sum, or brings them, norms them, too. */
static bool norms_in_kernel(const imx_algorithm *a, const imx_shape *shape, bool shard_residual)
{
    size_t row = row_bytes(shape);
    bool fits = a->stores ? shape->n <= IMX_PUSH_NORM_COLUMNS
                          : row <= IMX_LL_ROW_BYTES && (size_t)shape->m * row < IMX_LL_NORM_BYTES;
    return a->norms && !shard_residual && shape->n > 0 && fits;
}

bool imx_norm_in_kernel(const imx_variant *variant)
{
    const imbrex_plan *plan = variant->plan;
    bool gpu = plan->group->target->arch != 0; /* on CPUs threads share rows out behind the sum */
    if (!gpu || !variant->algorithm->norms)
        return false;
    const imbrex_norm norm = norm_of(plan->op, plan->desc);
    return has_kernel(&norm) &&
           norms_in_kernel(variant->algorithm, &variant->shape, norm.shard_residual);
}

/* What rows take at memory's rate, the residual among it, and, of a kernel of its own, a start
 * behind the sum: fitted to two and four H200s, up to 1024 rows of 8192. */
static double cost(const imx_op *op, const imx_algorithm *a, const imx_problem *p,
                   const imx_rates *rates)
{
    static const double where_added = 2.3, beside = 12, alone = 4.5;
    const imx_shape *shape = &p->in->shape;
    bool all = result_row(op)->own[IMX_FIELD_DIMS] == IMX_ROWS;
    double rows = (double)shape->m / (all ? 1 : p->in->ranks);
    if (!p->in->norms)
        return 0;
    bool in_kernel = norms_in_kernel(a, shape, p->in->shard_residual);
    if (in_kernel && a->stores)
        return beside;
    return (in_kernel ? where_added : alone) +
           (in_kernel ? 4 : 1.2) * rows * (double)row_bytes(shape) / rates->memory;
}

imx_norm_args imx_norm_largest(const imx_variant *variant, int64_t m)
{
    const imbrex_plan *plan = variant->plan;
    const imbrex_norm norm = norm_of(plan->op, plan->desc);
    return imx_norm_args_of(&norm, result_rows(plan, m), plan->shape.n, plan->shape.out);
}

static imbrex_status prepare(imx_variant *variant)
{
    const imbrex_norm norm = norm_of(variant->plan->op, variant->plan->desc);
    const imx_norm_args largest = imx_norm_largest(variant, variant->shape.m);
    if (!has_kernel(&norm) || imx_norm_in_kernel(variant))
        return IMBREX_OK;
    return imx_variant_prepare(variant, NORM, &imx_kernel_norm, &largest);
}

/* Where rows lie before they are quantised, whose elements are of another size than c's. */
static void *kept_apart(const imx_run *run)
{
    void *normed = run->args->normed;
    return normed ? normed : (char *)imx_run_local(run) + kept_at(run->variant);
}

/* Where the sum of all of c's rows goes: to h, or where it is changed in place. */
static void *sum_of(const imx_run *run, const imbrex_norm *norm)
{
    const imbrex_args *args = run->args;
    if (!has_kernel(norm))
        return args->c;
    if (args->h && !imx_norm_shards(run))
        return args->h;
    return norm->quant ? kept_apart(run) : args->c;
}

static imbrex_status keep_h(const imx_run *run, const char *sum)
{
    bool shards = imx_norm_shards(run);
    size_t row = row_bytes(&run->plan->shape);
    int64_t rows = shards ? imx_run_rows(run, run->rank) : result_rows(run->plan, run->m);
    const char *from = sum + (shards ? (size_t)imx_run_row(run, run->rank) * row : 0);
    if (!run->args->h || run->args->h == sum)
        return IMBREX_OK;
    return imx_run_copy(run, run->stream, run->args->h, from, (size_t)rows * row, run->rank);
}

/* Of rows that are kept there. */
static imx_norm_args norm_args(const imx_run *run, const void *sum)
{
    imx_norm_args x = imx_norm_largest(run->variant, run->m);
    x.in = sum;
    x.gamma = run->args->gamma;
    x.normed = run->args->normed;
    x.c = run->args->c;
    x.scale = run->args->scale_c;
    return x;
}

void *imx_norm_kept(const imx_run *run)
{
    if (!imx_norm_in_kernel(run->variant))
        return run->args->c;
    const imbrex_norm norm = norm_of(run->plan->op, run->plan->desc);
    return sum_of(run, &norm);
}

imx_norm_args imx_norm_of_run(const imx_run *run)
{
    imx_norm_args x = norm_args(run, imx_norm_kept(run));
    x.h = run->args->h;
    return x;
}

static imbrex_status norm_rows(const imx_run *run, const imx_norm_args *x)
{
    if (!x->rows || !x->n)
        return IMBREX_OK;
    return imx_run_launch(run, run->stream, NORM, x, sizeof *x);
}

/* Of one rank, whose sum is what it has: the norm's kernel adds to that what else there is. */
static imbrex_status run_alone(const imx_run *run, const imbrex_norm *norm)
{
    imx_run product = *run;
    imbrex_args args = *run->args;
    void *to = norm->quant ? kept_apart(run) : args.c; /* h may be the residual */
    imx_norm_args x = norm_args(run, run->plan->op->product ? to : args.a);
    x.bias = args.bias;
    x.residual = args.residual;
    x.h = args.h;
    args.c = to;
    args.bias = args.residual = NULL;
    product.args = &args;
    if (run->plan->op->product)
        IMX_TRY(run->variant->algorithm->run(&product));
    return norm_rows(run, &x);
}

/* On the caller's stream: the algorithm's sum, then h, then c; of one rank as above. */
static imbrex_status run_with_norm(const imx_run *run)
{
    const imbrex_norm norm = norm_of(run->plan->op, run->plan->desc);
    imx_run first = *run;
    imbrex_args args = *run->args;
    if (imx_norm_in_kernel(run->variant))
        return run->variant->algorithm->run(run);
    if (run->ranks == 1 && has_kernel(&norm))
        return run_alone(run, &norm);
    args.c = sum_of(run, &norm);
    first.args = &args;
    IMX_TRY(run->variant->algorithm->run(&first));
    IMX_TRY(keep_h(run, args.c));
    const imx_norm_args x = norm_args(run, args.c);
    return has_kernel(&norm) ? norm_rows(run, &x) : IMBREX_OK;
}

const imx_around imx_norm_around = {
    .layout = lay_out, .prepare = prepare, .run = run_with_norm, .cost = cost
};

/* ---- what is wrong --------------------------------------------------------------------------- */

static imbrex_status check_flag(const char *of, const char *name, int value)
{
    if (value != 0 && value != 1)
        return imx_fail(IMBREX_INVALID, "%s.%s is %d: want 0 or 1", of, name, value);
    return IMBREX_OK;
}

imbrex_status imx_norm_check(const imbrex_norm *norm, const char *of, int64_t n)
{
    IMX_TRY(check_flag(of, "rms", norm->rms));
    IMX_TRY(check_flag(of, "shard_residual", norm->shard_residual));
    IMX_TRY(check_flag(of, "power_of_two", norm->power_of_two));
    if (!(norm->eps >= 0) || isinf(norm->eps))
        return imx_fail(IMBREX_INVALID, "%s.eps is %g: want a number from 0", of,
                        (double)norm->eps);
    if (!isfinite(norm->gamma_offset))
        return imx_fail(IMBREX_INVALID, "%s.gamma_offset is %g: want a finite number", of,
                        (double)norm->gamma_offset);
    if (!norm->rms && (norm->eps > 0 || norm->gamma_offset != 0))
        return imx_fail(IMBREX_INVALID, "%s.%s is %g and %s.rms 0: want 0, nothing is normed", of,
                        norm->eps > 0 ? "eps" : "gamma_offset",
                        (double)(norm->eps > 0 ? norm->eps : norm->gamma_offset), of);
    if ((unsigned)norm->quant > IMBREX_PER_BLOCK)
        return imx_fail(IMBREX_INVALID,
                        "%s.quant is %d: want IMBREX_UNSCALED, PER_TENSOR, PER_ROW or PER_BLOCK",
                        of, (int)norm->quant);
    if (norm->power_of_two && norm->quant != IMBREX_PER_ROW && norm->quant != IMBREX_PER_BLOCK)
        return imx_fail(IMBREX_INVALID,
                        "%s.power_of_two is 1 and %s.quant computes no scales: want "
                        "IMBREX_PER_ROW or PER_BLOCK",
                        of, of);
    if ((norm->rms || norm->quant) && n > IMX_NORM_COLUMNS)
        return imx_fail(
            IMBREX_UNSUPPORTED,
            "rows of %lld columns are normed and quantised up to %d, and %s asks for it",
            (long long)n, IMX_NORM_COLUMNS, of);
    return imx_status_need_zero(norm->reserved, sizeof norm->reserved, of);
}

imbrex_status imx_norm_check_request(const imbrex_group *group, const imx_request *request)
{
    const imbrex_norm norm = norm_of(request->op, request->desc);
    (void)group;
    return imx_norm_check(&norm, "desc.norm", request->shape.n);
}

/* ---- operands -------------------------------------------------------------------------------- */

static int64_t rows_of(const imx_asked *asked, int64_t m, bool own)
{
    int rank = asked->group->rank, ranks = asked->group->size;
    return own ? imx_team_row(m, ranks, rank + 1) - imx_team_row(m, ranks, rank) : m;
}

int64_t imx_norm_extent(const imx_asked *asked, int64_t m, int which)
{
    const imbrex_norm norm = norm_of(asked->op, asked->desc);
    switch (which) {
    case IMX_NORM_RESIDUAL_ROWS:
        return rows_of(asked, m, norm.shard_residual);
    case IMX_NORM_SCALES:
    case IMX_NORM_SCALES_OWN:
        return norm.quant == IMBREX_PER_TENSOR ? 1
                                               : rows_of(asked, m, which == IMX_NORM_SCALES_OWN);
    default:
        return norm.quant == IMBREX_PER_BLOCK ? imx_ceil_div(asked->shape->n, IMX_SCALE_BLOCK)
                                              : IMX_NO_EXTENT;
    }
}

imx_part imx_norm_part(const imx_op *op, const void *desc, const imbrex_field *operand,
                       const char **because)
{
    const imbrex_norm norm = norm_of(op, desc);
    switch (operand->offset) {
    case offsetof(imbrex_args, gamma):
        *because = norm.rms ? "norm.rms is 1" : "norm.rms is 0";
        return norm.rms ? IMX_MUST : IMX_MUST_NOT;
    case offsetof(imbrex_args, scale_c):
        *because = norm.quant ? "norm.quant says how c is scaled" : "norm.quant is 0";
        return norm.quant ? IMX_MUST : IMX_MUST_NOT;
    case offsetof(imbrex_args, normed):
        *because = norm.quant ? NULL : "norm.quant is 0, so that c is it";
        return norm.quant ? IMX_MAY : IMX_MUST_NOT;
    default:
        return IMX_AS_DECLARED;
    }
}

imbrex_dtype imx_norm_result(const imx_asked *asked)
{
    return norm_of(asked->op, asked->desc).quant ? IMBREX_E4M3 : asked->shape->out;
}

imx_norm_args imx_norm_args_of(const imbrex_norm *norm, int64_t rows, int64_t n, imbrex_dtype dtype)
{
    return (imx_norm_args){
        .rows = rows,
        .n = n,
        .dtype = (int)dtype,
        .rms = norm->rms,
        .eps = norm->eps > 0 ? norm->eps : 1e-6f,
        .gamma_offset = norm->gamma_offset,
        .quant = (int)norm->quant,
        .power_of_two = norm->power_of_two,
    };
}
