/* layer.c - finds the tensors of a layer's attention by their names, and refuses names that it does
 * not know: a tensor that is left out makes another model. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model.h"

enum { NAME_BYTES = DECODE_PREFIX + 32 };

/* ---- What is there beside the weights -------------------------------------------------------- */

static const char quantised[] = "the layer is quantised: convert it to BF16, F16 or F32";

/* Words of names, and what they say of the layer; the first that a name has counts. */
static const struct {
    const char *word, *says;
} strange[] = {
    { "qkv_proj", "split what is fused into q_proj, k_proj and v_proj" },
    { "kv_a_proj", "attention with a latent cache (MLA) is not computed" },
    { "sinks", "attention sinks are not computed" },
    { "lora_", "merge the adapter into the weights" },
    { "qweight", quantised },
    { "qzeros", quantised },
    { "g_idx", quantised },
    { "scale", quantised },
    { "zero_point", quantised },
    { "packed", quantised },
    { "weight_shape", quantised },
    { "absmax", quantised },
    { "quant", quantised },
    { ".SCB", quantised },
    { "norm.bias", "only RMSNorm is computed, which has no bias" },
};

static bool refuse(const checkpoint *from, int layer, const char *name, const char *rest,
                   st_error *error)
{
    const char *says = "only q_proj, k_proj, v_proj and o_proj, q_norm and k_norm are computed";
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        if (strstr(rest, strange[i].word)) {
            says = strange[i].says;
            break;
        }
    }
    return st_fail(error, "%s: layer %d has the tensor %.120s: %s",
                   st_path_tail(checkpoint_holder(from, name)), layer, name, says);
}

/* ---- Which layer ----------------------------------------------------------------------------- */

/* The layer's number in "<model>layers.<n>.self_attn.<anything>", else -1. */
static int layer_of(const char *name, const char *model)
{
    int layer, end = 0;
    size_t length = strlen(model);
    if (strncmp(name, model, length) != 0 ||
        sscanf(name + length, "layers.%9d.self_attn.%n", &layer, &end) != 1 || !end)
        return -1;
    return layer;
}

static bool has_layer(const checkpoint *from, const char *model, int layer)
{
    for (size_t i = 0; i < checkpoint_count(from); i++)
        if (layer_of(checkpoint_name(from, i), model) == layer)
            return true;
    return false;
}

static bool fail_layer(const checkpoint *from, const char *asked, int layer, st_error *error)
{
    const char *const *list = asked ? &asked : checkpoint_models;
    size_t count = asked ? 1 : CHECKPOINT_MODELS;
    int first = -1, last = -1;
    char name[NAME_BYTES];
    for (size_t i = 0; i < checkpoint_count(from) * count; i++) {
        int other = layer_of(checkpoint_name(from, i / count), list[i % count]);
        if (other >= 0 && (first < 0 || other < first))
            first = other;
        if (other > last)
            last = other;
    }
    snprintf(name, sizeof name, "%slayers.%d.self_attn.q_proj.weight", list[0], layer);
    if (first < 0)
        return checkpoint_fail_missing(from, name, error);
    return st_fail(error, "%s: has attention in layers %d to %d, and not in %d",
                   st_path_tail(checkpoint_path(from)), first, last, layer);
}

static bool find_prefix(const checkpoint *from, const char *asked, int layer, char *prefix,
                        st_error *error)
{
    const char *const *list = asked ? &asked : checkpoint_models, *model = NULL;
    for (int i = 0; i < (asked ? 1 : CHECKPOINT_MODELS); i++) {
        if (!has_layer(from, list[i], layer))
            continue;
        if (model)
            return st_fail(
                error,
                "%s: has a layer %d below both '%s' and '%s': name one by --prefix, or a "
                "file that has one",
                st_path_tail(checkpoint_path(from)), layer, model, list[i]);
        model = list[i];
    }
    if (!model)
        return fail_layer(from, asked, layer, error);
    int length = snprintf(prefix, DECODE_PREFIX, "%slayers.%d.self_attn.", model, layer);
    return length < DECODE_PREFIX ||
           st_fail(error, "--prefix is longer than %d characters", DECODE_PREFIX - 32);
}

/* ---- The tensors ----------------------------------------------------------------------------- */

enum { WEIGHTS = 4, TENSORS = 10 };

/* rows and cols: what it must be. */
typedef struct tensor {
    const char *name;
    matrix *at;
    bool optional;
    int64_t rows, cols;
} tensor;

static void list(decode_weights *w, tensor out[TENSORS])
{
    int64_t q = (int64_t)w->heads * w->head_dim, kv = (int64_t)w->kv_heads * w->head_dim;
    const tensor all[TENSORS] = {
        { "q_proj.weight", &w->q, false, q, w->hidden },
        { "k_proj.weight", &w->k, false, kv, w->hidden },
        { "v_proj.weight", &w->v, false, kv, w->hidden },
        { "o_proj.weight", &w->o, false, w->hidden, q },
        { "q_proj.bias", &w->q_bias, true, 1, q },
        { "k_proj.bias", &w->k_bias, true, 1, kv },
        { "v_proj.bias", &w->v_bias, true, 1, kv },
        { "o_proj.bias", &w->o_bias, true, 1, w->hidden },
        { "q_norm.weight", &w->q_norm, true, 1, w->head_dim },
        { "k_norm.weight", &w->k_norm, true, 1, w->head_dim },
    };
    memcpy(out, all, sizeof all);
}

/* Old checkpoints hold the frequencies, too, which the models' code makes anew. */
static bool is_known(const char *rest, const tensor *tensors)
{
    for (int i = 0; i < TENSORS; i++)
        if (strcmp(rest, tensors[i].name) == 0)
            return true;
    return strcmp(rest, "rotary_emb.inv_freq") == 0;
}

static bool read_one(checkpoint *from, const char *prefix, const tensor *t, bool vector,
                     st_error *error)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", prefix, t->name);
    if (t->optional && !checkpoint_has(from, name))
        return true;
    return vector ? checkpoint_vector(from, name, t->at, error)
                  : checkpoint_matrix(from, name, t->at, error);
}

bool decode_layer_find(checkpoint *from, const char *model, int layer, decode_weights *weights,
                       char *prefix, st_error *error)
{
    tensor tensors[TENSORS];
    list(weights, tensors);
    if (!find_prefix(from, model, layer, prefix, error))
        return false;
    size_t length = strlen(prefix);
    for (size_t i = 0; i < checkpoint_count(from); i++) {
        const char *name = checkpoint_name(from, i);
        if (strncmp(name, prefix, length) == 0 && !is_known(name + length, tensors))
            return refuse(from, layer, name, name + length, error);
    }
    for (int i = 0; i < TENSORS; i++)
        if (!read_one(from, prefix, &tensors[i], i >= WEIGHTS, error))
            return false;
    const char *other = checkpoint_unlisted(from, prefix);
    if (other)
        return st_fail(error,
                       "%s: does not name the tensor %.120s, which is in a file that it names: "
                       "download both again",
                       st_path_tail(checkpoint_path(from)), other);
    weights->hidden = weights->q.cols;
    return true;
}

bool decode_layer_check(const checkpoint *from, int layer, const decode_weights *weights,
                        st_error *error)
{
    decode_weights copy = *weights;
    tensor tensors[TENSORS];
    const char *file = st_path_tail(checkpoint_path(from));
    list(&copy, tensors);
    for (int i = 0; i < TENSORS; i++) {
        const tensor *t = &tensors[i];
        if (t->optional && !t->at->rows)
            continue;
        if (t->at->rows != t->rows || t->at->cols != t->cols)
            return st_fail(error,
                           "%s: layer %d: %s is [%" PRId64 ", %" PRId64 "]: want [%" PRId64
                           ", %" PRId64 "] for the %d heads of %d, %d of the cache, of config.json",
                           file, layer, t->name, t->at->rows, t->at->cols, t->rows, t->cols,
                           copy.heads, copy.head_dim, copy.kv_heads);
        if (t->at->dtype != copy.q.dtype)
            return st_fail(error,
                           "%s: layer %d: q_proj.weight is %s, but %s is %s: convert them to one "
                           "dtype",
                           file, layer, st_dtype_name(st_dtype_of(copy.q.dtype)), t->name,
                           st_dtype_name(st_dtype_of(t->at->dtype)));
    }
    return true;
}
