/* gemm.c - c[m, n] = a[m, k] * b, plus bias, of this rank alone: what stands between operators that
 * communicate, on their group's streams.
 *
 * sequential  caller   | all tiles |
 */
#include "gemm_alone.h"

#include "plan/descs.h"

enum { GEMM };

imx_gemm_args imx_gemm_alone_args(const imx_variant *variant, int64_t m)
{
    const imx_shape *s = &variant->shape;
    const imx_config *config = &variant->config;
    return (imx_gemm_args){
        .schedule = { .m = m,
                      .n = s->n,
                      .ranks = 1,
                      .chunk_rows = (int)imx_max(1, imx_ceil_div(s->m, config->tile_rows)) *
                                    config->tile_rows,
                      .tile_rows = config->tile_rows,
                      .tile_cols = config->tile_cols,
                      .group = config->group,
                      .chunks = 1 },
        .k = s->k,
        .dtype = (int)s->dtype,
        .layout = (int)s->layout,
        .out = (int)s->out,
        .scaling = (int)s->scaling,
        .row_scales = (int)imx_shape_row_scales(s),
        .features = IMX_GEMM_GATHERS /* own = 0: of oneself */ |
                    (config->deep ? IMX_GEMM_DEEP : 0) |
                    (config->invariant ? IMX_GEMM_INVARIANT : 0) |
                    (s->fast_accumulation ? IMX_GEMM_FAST : 0),
        .slices = 1,
        .slice_k = (int)s->k,
        .plan = imx_variant_point(variant),
    };
}

static double cost(const imx_problem *p, const imx_rates *rates)
{
    (void)p;
    (void)rates;
    return 0; /* beyond the product */
}

static void layout(const imx_variant *variant, imx_needs *needs)
{
    (void)variant;
    (void)needs;
}

static imbrex_status prepare(imx_variant *variant)
{
    imx_gemm_args largest = imx_gemm_alone_args(variant, variant->shape.m);
    return imx_variant_prepare(variant, GEMM, &imx_kernel_gemm, &largest);
}

static imbrex_status run(const imx_run *run)
{
    imx_gemm_args args = imx_gemm_alone_args(run->variant, run->m);
    args.a = run->args->a;
    args.b = run->args->b;
    args.scale_a = run->args->scale_a;
    args.scale_b = run->args->scale_b;
    args.bias = run->args->bias;
    args.c = run->args->c;
    return imx_run_gemm(run, GEMM, &args);
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, true, "[m, k]", "all rows", IMX_ROWS, IMX_K),
    IMX_GEMM_B,
    IMX_GEMM_BIAS,
    IMX_OPERAND(c, IMX_OUT, "out", IMBREX_FIELD_OUTPUT, true, IMX_APART, "[m, n]", "all rows",
                IMX_ROWS, IMX_N),
    IMX_GEMM_SCALES(IMX_SCALE_ROWS, "[m, k/128]"),
    IMX_ARGS_M,
};

const imx_op imx_op_gemm = {
    IMX_OP(gemm, "c = a * b + bias, without peers", imbrex_gemm_desc, imx_gemm_desc, args),
    .blanks[1] = IMX_BLANK_OF_OTHERS(imbrex_gemm_desc, norm),
    .product = true,
    .scaled = true,
    .alone = true,
    .algorithms = {
        { .name = "sequential", .cost = cost, .layout = layout, .prepare = prepare, .run = run },
        { .name = "sequential",
          .over_nodes = true,
          .layout = layout,
          .prepare = prepare,
          .run = run },
    },
};

imbrex_status imbrex_plan_gemm(imbrex_group *group, const imbrex_gemm_desc *desc,
                               imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_gemm, desc, plan);
}
