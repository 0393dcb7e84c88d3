/* rms_norm.c - the norm kernel on one rank's rows: imbrex_rms_norm and imbrex_quantize. */
#include "norm.h"

typedef struct rows_desc {
    int64_t rows, cols;
    imbrex_dtype dtype;
    imbrex_norm norm;
    uint32_t reserved[1];
} rows_desc;

static const imbrex_field desc_rows[] = {
    IMX_FIELD(rows_desc, rows, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED | IMBREX_FIELD_RUN, "rows"),
    IMX_FIELD(rows_desc, cols, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED, "their columns"),
};

static const imbrex_field args_rows[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[rows, n]", "rows", IMX_ROWS, IMX_N),
    IMX_MATRIX_OF(bias, IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false, "[n]",
                  "added to every row", IMX_N),
    IMX_OPERAND(c, IMX_RESULT, "result", IMBREX_FIELD_OUTPUT, false, IMX_MAY_BE_A, "[rows, n]",
                "the same, normed", IMX_ROWS, IMX_N),
    IMX_NORM_ARGS(false, IMX_ROWS, IMX_NORM_SCALES, IMX_ROWS, "[rows, n]", "[rows, n/128]"),
};

/* No plan is made of it: it is what an operator's args are checked by. */
static const imx_op op = {
    IMX_OP(rms_norm, "c = the norm of a", rows_desc, desc_rows, args_rows),
    IMX_NORM(rows_desc),
};

static imbrex_status check_sizes(imbrex_dtype dtype, int64_t rows, int64_t cols)
{
    if (dtype != IMBREX_BF16 && dtype != IMBREX_F16 && dtype != IMBREX_F32)
        return imx_fail(IMBREX_INVALID, "dtype is %d: want IMBREX_BF16, F16 or F32", (int)dtype);
    if (rows < 0 || cols < 0)
        return imx_fail(IMBREX_INVALID, "rows is %lld, cols is %lld: want from 0", (long long)rows,
                        (long long)cols);
    IMX_TRY(imx_status_elements(NULL, "rows x cols", rows, cols));
    if (cols > IMX_NORM_COLUMNS)
        return imx_fail(IMBREX_UNSUPPORTED, "cols is %lld: want at most %d", (long long)cols,
                        IMX_NORM_COLUMNS);
    return IMBREX_OK;
}

static imbrex_status enqueue(imbrex_group *group, const rows_desc *d, const imbrex_args *args,
                             imbrex_stream stream)
{
    imx_norm_args x = imx_norm_args_of(&d->norm, d->rows, d->cols, d->dtype);
    if (!d->rows || !d->cols)
        return IMBREX_OK;
    x.in = args->a;
    x.bias = args->bias;
    x.residual = args->residual;
    x.gamma = args->gamma;
    x.h = args->h;
    x.normed = args->normed;
    x.c = args->c;
    x.scale = args->scale_c;
    IMX_TRY(imx_stream_order_take(&group->norm_order, stream));
    IMX_TRY(group->backend->launch(group->device, group->norm, &x, sizeof x, stream));
    return imx_stream_order_end(&group->norm_order, stream);
}

static imbrex_status get_ready(const imbrex_group *group, imbrex_stream *stream)
{
    IMX_TRY(imx_fault_check(group));
    return imx_stream_find(group, stream);
}

imbrex_status imbrex_rms_norm(imbrex_group *group, imbrex_dtype dtype, int64_t rows, int64_t cols,
                              const imbrex_norm *norm, const imbrex_args *args,
                              imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(get_ready(group, &stream));
    IMX_TRY(imx_status_need(norm, "norm", "want what to compute"));
    IMX_TRY(imx_status_need(args, "args", "want the matrices"));
    dtype = imx_dtype_or(dtype, IMBREX_BF16);
    IMX_TRY(check_sizes(dtype, rows, cols));
    IMX_TRY(imx_norm_check(norm, "norm", cols));
    if (norm->shard_residual)
        return imx_fail(IMBREX_INVALID, "norm.shard_residual is 1: want 0, all rows are here");
    if (args->m)
        return imx_fail(IMBREX_INVALID, "args.m is %lld: want 0, rows says how many there are",
                        (long long)args->m);
    const rows_desc desc = { .rows = rows, .cols = cols, .dtype = dtype, .norm = *norm };
    const imx_shape shape = { .m = rows, .n = cols, .dtype = dtype, .out = dtype };
    const imx_asked asked = { group, &op, &shape, &desc, args };
    IMX_TRY(imx_args_check(&asked, rows));
    return enqueue(group, &desc, args, stream);
}

/* ---- quantize -------------------------------------------------------------------------------- */

typedef struct operand {
    const char *name;
    const void *at;
    size_t bytes, element;
} operand;

static imbrex_status check_operands(const operand *all, int count)
{
    for (int i = 0; i < count; i++) {
        const operand *x = &all[i];
        IMX_TRY(imx_status_need(x->at, x->name, "want its elements"));
        if ((uintptr_t)x->at % x->element)
            return imx_fail(IMBREX_INVALID, "%s, %p, is not %zu-byte aligned", x->name, x->at,
                            x->element);
        for (int j = 0; j < i; j++) {
            if (imx_overlap(x->at, x->bytes, all[j].at, all[j].bytes))
                return imx_fail(IMBREX_INVALID, "%s, %p and %zu bytes, overlaps %s, %p", x->name,
                                x->at, x->bytes, all[j].name, all[j].at);
        }
    }
    return IMBREX_OK;
}

imbrex_status imbrex_quantize(imbrex_group *group, imbrex_dtype dtype, imbrex_scaling scaling,
                              int64_t rows, int64_t cols, const void *in, void *out, float *scales,
                              imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(get_ready(group, &stream));
    dtype = imx_dtype_or(dtype, IMBREX_BF16);
    IMX_TRY(check_sizes(dtype, rows, cols));
    if (scaling != IMBREX_PER_TENSOR && scaling != IMBREX_PER_ROW && scaling != IMBREX_PER_BLOCK)
        return imx_fail(IMBREX_INVALID,
                        "scaling is %d: want IMBREX_PER_TENSOR, PER_ROW or PER_BLOCK",
                        (int)scaling);
    if (!rows || !cols)
        return IMBREX_OK;
    const rows_desc desc = {
        .rows = rows, .cols = cols, .dtype = dtype, .norm = { .quant = scaling }
    };
    int64_t count = scaling == IMBREX_PER_TENSOR ? 1
                    : scaling == IMBREX_PER_ROW  ? rows
                                                 : rows * imx_ceil_div(cols, IMX_SCALE_BLOCK);
    size_t elements = (size_t)(rows * cols), element = imx_dtype_bytes(dtype);
    const operand all[] = {
        { "in", in, elements * element, element },
        { "out", out, elements, 1 },
        { "scales", scales, (size_t)count * sizeof(float), sizeof(float) },
    };
    IMX_TRY(check_operands(all, 3));
    const imbrex_args args = { .a = in, .c = out, .scale_c = scales };
    return enqueue(group, &desc, &args, stream);
}
