/* fp8.c - layers whose weights are F8_E4M3: finds the scales beside them, and what config.json's
 * quantization_config says of scales and of activations. */
#include "mlp.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = MLP_LAYER_PREFIX + 64, BLOCK = 128, PROJECTIONS = 3 };

const char *const mlp_fp8_dense[] = { "gate_proj", "up_proj", "down_proj" };

/* ---- Tensors --------------------------------------------------------------------------------- */

bool mlp_fp8_is(checkpoint *from, const char *prefix, const char *down)
{
    char name[NAME_BYTES];
    const st_tensor *tensor;
    st_error ignored;
    snprintf(name, sizeof name, "%s%s.weight", prefix, down);
    return checkpoint_has(from, name) && checkpoint_tensor(from, name, &tensor, &ignored) &&
           tensor->dtype == ST_F8_E4M3;
}

bool mlp_fp8_knows(const char *rest, const char *const *names)
{
    static const char *const endings[] = { ".weight_scale_inv", ".weight_scale", ".input_scale" };
    for (int i = 0; i < PROJECTIONS; i++) {
        size_t length = strlen(names[i]);
        for (int k = 0; k < 3 && strncmp(rest, names[i], length) == 0; k++)
            if (strcmp(rest + length, endings[k]) == 0)
                return true;
    }
    return false;
}

bool mlp_fp8_matrix(checkpoint *from, const char *name, matrix *out, st_error *error)
{
    const st_tensor *tensor;
    if (!checkpoint_tensor(from, name, &tensor, error))
        return false;
    if (tensor->dtype != ST_F8_E4M3)
        return st_fail(
            error, "%s: %.120s is %s, but others of the layer are F8_E4M3: want all alike",
            st_path_tail(checkpoint_holder(from, name)), name, st_dtype_name(tensor->dtype));
    if (tensor->rank != 2)
        return st_fail(error, "%s: %.120s has %d dimensions, a matrix has 2",
                       st_path_tail(checkpoint_holder(from, name)), name, tensor->rank);
    *out = (matrix){ .rows = tensor->shape[0],
                     .cols = tensor->shape[1],
                     .dtype = IMBREX_E4M3,
                     .data = tensor->data };
    return true;
}

/* Scales as a matrix: one of no dimensions has one number, one of one dimension is a column. */
static bool read_scales(checkpoint *from, const char *name, matrix *out, st_error *error)
{
    const st_tensor *tensor;
    if (!checkpoint_tensor(from, name, &tensor, error))
        return false;
    if (tensor->dtype > ST_F32 || tensor->rank > 2)
        return st_fail(
            error, "%s: %.120s is %s of %d dimensions: scales are BF16, F16 or F32 of at most 2",
            st_path_tail(checkpoint_holder(from, name)), name, st_dtype_name(tensor->dtype),
            tensor->rank);
    *out = (matrix){ .rows = tensor->rank > 0 ? tensor->shape[0] : 1,
                     .cols = tensor->rank > 1 ? tensor->shape[1] : 1,
                     .dtype = st_dtype_imbrex(tensor->dtype),
                     .data = tensor->data };
    return true;
}

/* A number of 0 or more; all of them for scales of weights. */
static bool check_scales(checkpoint *from, const char *name, const matrix *scales, st_error *error)
{
    for (int64_t i = 0; i < scales->rows * scales->cols; i++) {
        float one;
        int64_t row = i / scales->cols, col = i % scales->cols;
        matrix_copy(scales, row, row + 1, col, col + 1, IMBREX_F32, &one, 1);
        if (!(one >= 0) || !isfinite(one))
            return st_fail(error, "%s: %.120s holds %g: scales are 0 or more, and finite",
                           st_path_tail(checkpoint_holder(from, name)), name, (double)one);
    }
    return true;
}

static bool has_both(checkpoint *from, const char *prefix, const char *projection)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s.weight_scale_inv", prefix, projection);
    bool inverse = checkpoint_has(from, name);
    name[strlen(name) - strlen("_inv")] = '\0';
    return inverse && checkpoint_has(from, name);
}

static bool find_weight_scales(checkpoint *from, const char *prefix, const char *projection,
                               const matrix *weight, mlp_fp8 *fp8, matrix *out, st_error *error)
{
    char name[NAME_BYTES], other[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s.weight_scale%s", prefix, projection,
             fp8->inverse ? "_inv" : "");
    snprintf(other, sizeof other, "%s%s.weight_scale%s", prefix, projection,
             fp8->inverse ? "" : "_inv");
    if (fp8->scaling == IMBREX_PER_BLOCK && !checkpoint_has(from, name) &&
        checkpoint_has(from, other))
        memcpy(name, other, sizeof name);
    if (has_both(from, prefix, projection))
        return st_fail(error, "%s: has %.120s as weight_scale and as weight_scale_inv: want one",
                       st_path_tail(checkpoint_holder(from, name)), name);
    if (!read_scales(from, name, out, error) || !check_scales(from, name, out, error))
        return false;
    const bool blocks = fp8->scaling == IMBREX_PER_BLOCK;
    int64_t rows = blocks ? (weight->rows + BLOCK - 1) / BLOCK : weight->rows;
    int64_t cols = blocks ? (weight->cols + BLOCK - 1) / BLOCK : 1;
    if (out->rows == rows && out->cols == cols)
        return true;
    if (!blocks && out->rows == 1 && out->cols == 1)
        return true; /* of all rows */
    return st_fail(error,
                   "%s: %.120s is [%" PRId64 ", %" PRId64 "], but %s is [%" PRId64 ", %" PRId64
                   "] and has %s: want [%" PRId64 ", %" PRId64 "]%s",
                   st_path_tail(checkpoint_holder(from, name)), name, out->rows, out->cols,
                   projection, weight->rows, weight->cols,
                   blocks ? "a scale for 128 x 128" : "a scale a row", rows, cols,
                   blocks ? "" : " or one number");
}

/* Of gate and up, which take the same x, the larger one. */
static bool find_input_scale(checkpoint *from, const char *prefix, const char *projection,
                             float *largest, st_error *error)
{
    char name[NAME_BYTES];
    matrix scale;
    float one;
    snprintf(name, sizeof name, "%s%s.input_scale", prefix, projection);
    if (!read_scales(from, name, &scale, error) || !check_scales(from, name, &scale, error))
        return false;
    if (scale.rows != 1 || scale.cols != 1)
        return st_fail(error, "%s: %.120s is [%" PRId64 ", %" PRId64 "]: want one number",
                       st_path_tail(checkpoint_holder(from, name)), name, scale.rows, scale.cols);
    matrix_copy(&scale, 0, 1, 0, 1, IMBREX_F32, &one, 1);
    if (one == 0)
        return st_fail(error, "%s: %.120s is 0: want a number above",
                       st_path_tail(checkpoint_holder(from, name)), name);
    *largest = fmaxf(*largest, one);
    return true;
}

bool mlp_fp8_find(checkpoint *from, const char *prefix, const char *const *names, mlp_weights *w,
                  st_error *error)
{
    const matrix *weights[] = { &w->gate, &w->up, &w->down };
    matrix *const scales[] = { &w->fp8.gate, &w->fp8.up, &w->fp8.down };
    for (int i = w->ungated; i < PROJECTIONS; i++) {
        char name[NAME_BYTES];
        if (!find_weight_scales(from, prefix, names[i], weights[i], &w->fp8, scales[i], error))
            return false;
        snprintf(name, sizeof name, "%s%s.input_scale", prefix, names[i]);
        if (w->fp8.fixed && !find_input_scale(from, prefix, names[i],
                                              i == 2 ? &w->fp8.act_scale : &w->fp8.x_scale, error))
            return false;
        if (!w->fp8.fixed && checkpoint_has(from, name))
            return st_fail(error,
                           "%s: has %.120s, but config.json says that activations are quantised "
                           "as they come (dynamic)",
                           st_path_tail(checkpoint_holder(from, name)), name);
    }
    return true;
}

/* ---- config.json ----------------------------------------------------------------------------- */

#ifdef IMX_HAVE_JANSSON

#include <jansson.h>

static bool fail_config(const model_config *config, const char *key, const json_t *value,
                        const char *want, st_error *error)
{
    return st_fail(error, "%s: quantization_config: %s is %s: want %s",
                   st_path_tail(model_config_path(config)), key, st_json_show(value).text, want);
}

static bool is_text(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value && strcmp(value, text) == 0;
}

/* "fp8": DeepSeek's and Qwen3's, with blocks, and older ones, with a scale a tensor. */
static bool read_fp8(const model_config *config, const json_t *from, mlp_fp8 *out, st_error *error)
{
    const json_t *size = json_object_get(from, "weight_block_size");
    const json_t *scheme = json_object_get(from, "activation_scheme");
    const json_t *format = json_object_get(from, "fmt");
    if (format && !is_text(from, "fmt", "e4m3"))
        return fail_config(config, "fmt", format, "e4m3", error);
    out->scaling = IMBREX_PER_ROW;
    if (size && !json_is_null(size)) {
        for (size_t i = 0; i < 2; i++)
            if (json_array_size(size) != 2 || json_integer_value(json_array_get(size, i)) != BLOCK)
                return fail_config(config, "weight_block_size", size, "[128, 128]", error);
        out->scaling = IMBREX_PER_BLOCK;
        out->inverse = true;
    }
    out->fixed = is_text(from, "activation_scheme", "static");
    if (!out->fixed && !is_text(from, "activation_scheme", "dynamic"))
        return fail_config(config, "activation_scheme", scheme, "dynamic or static", error);
    return !(out->fixed && out->scaling == IMBREX_PER_BLOCK) ||
           fail_config(config, "activation_scheme", scheme, "dynamic where weights have blocks",
                       error);
}

static bool is_float8(const json_t *part)
{
    return json_integer_value(json_object_get(part, "num_bits")) == 8 &&
           is_text(part, "type", "float");
}

/* compressed-tensors: one group, for all linear layers. */
static bool read_compressed(const model_config *config, const json_t *from, mlp_fp8 *out,
                            st_error *error)
{
    const json_t *groups = json_object_get(from, "config_groups");
    void *first = json_object_iter((json_t *)groups);
    const json_t *group = first ? json_object_iter_value(first) : NULL;
    const json_t *weights = json_object_get(group, "weights");
    const json_t *inputs = json_object_get(group, "input_activations");
    if (json_object_size(groups) != 1)
        return fail_config(config, "config_groups", groups, "one group", error);
    if (!is_float8(weights))
        return fail_config(config, "weights", weights, "num_bits 8, type float", error);
    if (!is_float8(inputs))
        return fail_config(config, "input_activations", inputs, "num_bits 8, type float", error);
    const bool blocks = is_text(weights, "strategy", "block");
    const json_t *size = json_object_get(weights, "block_structure");
    out->scaling = blocks ? IMBREX_PER_BLOCK : IMBREX_PER_ROW;
    for (size_t i = 0; i < 2 && blocks; i++)
        if (json_integer_value(json_array_get(size, i)) != BLOCK)
            return fail_config(config, "block_structure", size, "[128, 128]", error);
    if (!blocks && !is_text(weights, "strategy", "channel") &&
        !is_text(weights, "strategy", "tensor"))
        return fail_config(config, "weights' strategy", json_object_get(weights, "strategy"),
                           "tensor, channel or block", error);
    const json_t *strategy = json_object_get(inputs, "strategy");
    out->fixed = !json_is_true(json_object_get(inputs, "dynamic"));
    if (blocks) {
        if (out->fixed || !is_text(inputs, "strategy", "group") ||
            json_integer_value(json_object_get(inputs, "group_size")) != BLOCK)
            return fail_config(config, "input_activations", inputs,
                               "dynamic groups of 128 where weights have blocks", error);
        return true;
    }
    if (!is_text(inputs, "strategy", out->fixed ? "tensor" : "token"))
        return fail_config(config, "input_activations' strategy", strategy,
                           out->fixed ? "tensor where they are static" : "token", error);
    return true;
}

bool mlp_fp8_apply(const model_config *config, mlp_fp8 *out, st_error *error)
{
    const json_t *from = config ? model_config_value(config, "quantization_config") : NULL;
    if (config && !from)
        from = model_config_value(config, "compression_config");
    if (!from)
        return st_fail(error, "the layer's weights are F8_E4M3, but no quantization_config of a "
                              "config.json beside them says how activations are quantised");
    if (is_text(from, "quant_method", "fp8"))
        return read_fp8(config, from, out, error);
    if (is_text(from, "quant_method", "compressed-tensors"))
        return read_compressed(config, from, out, error);
    return fail_config(config, "quant_method", json_object_get(from, "quant_method"),
                       "fp8 or compressed-tensors where weights are F8_E4M3", error);
}

#else /* no jansson: no checkpoint can be opened, either */

bool mlp_fp8_apply(const model_config *config, mlp_fp8 *out, st_error *error)
{
    (void)config, (void)out;
    return st_fail(error, "this build cannot read config.json: install libjansson-dev");
}

#endif
