/* layer.c - finds a dense layer's tensors by their names, and refuses names that it does not know:
 * a tensor that is left out makes another model. */
#include "mlp.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = MLP_LAYER_PREFIX + 64 };

/* ---- What is there beside the weights -------------------------------------------------------- */

static const char experts[] = "experts with these names are not computed: docs/mlp.md has those "
                              "that are";
static const char others[] =
    "only weights and biases of gate_proj, up_proj and down_proj are computed";

/* Words of names, and what they say of the layer; the first that a name has counts.  NULL: those
 * of quantised ones. */
static const struct {
    const char *word, *says;
} strange[] = {
    { "expert", experts },
    { "router", experts },
    { "gate.", experts },
    { "layer_scale", others },
    { NULL, "the layer is quantised: convert it to BF16, F16 or F32" },
    { "lora_", "merge the adapter into the weights" },
    { "gate_up_proj.bias", "split what is fused into gate_proj and up_proj" },
    { "norm", "a norm inside the MLP is not computed" },
};

static const char *find_strange(const char *name)
{
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        if (strange[i].word ? strstr(name, strange[i].word) != NULL : checkpoint_is_quantised(name))
            return strange[i].says;
    return others;
}

bool mlp_layer_refuse(const checkpoint *from, int layer, const char *name, st_error *error)
{
    char part[32];
    snprintf(part, sizeof part, "layers.%d.", layer);
    const char *rest = strstr(name, part);
    return st_fail(error, "%s: layer %d has the tensor %.120s: %s",
                   st_path_tail(checkpoint_holder(from, name)), layer, name,
                   find_strange(rest ? rest : name));
}

/* ---- Which layer ----------------------------------------------------------------------------- */

static const char *const below[] = { "mlp.", "block_sparse_moe." };
enum { PARTS = sizeof below / sizeof *below };

/* Experts may lie elsewhere, too: feed_forward.  A gate or a router there may be another's. */
static bool is_expert(const char *name, const char *model, int layer)
{
    char layers[32];
    size_t length = (size_t)snprintf(layers, sizeof layers, "layers.%d.", layer);
    size_t before = model ? strlen(model) : 0;
    if (model && strncmp(name, model, before) != 0)
        return false;
    const char *at = model ? name + before : strstr(name, layers);
    if (!at || strncmp(at, layers, length) != 0)
        return false;
    bool ours = strncmp(at + length, below[0], strlen(below[0])) == 0 ||
                strncmp(at + length, below[1], strlen(below[1])) == 0;
    return strstr(at, "expert") || (ours && find_strange(at) == experts);
}

static const char *find_expert(const checkpoint *from, const char *model, int layer)
{
    for (size_t i = 0; i < checkpoint_count(from); i++)
        if (is_expert(checkpoint_name(from, i), model, layer))
            return checkpoint_name(from, i);
    return NULL;
}

bool mlp_layer_has_experts(const checkpoint *from, const char *model, int layer)
{
    return find_expert(from, model, layer) != NULL;
}

/* model: as it was asked for, or NULL. */
static bool fail_layer(const checkpoint *from, const char *model, int layer, st_error *error)
{
    const char *expert = find_expert(from, model, layer);
    int first, last;
    char name[NAME_BYTES];
    if (expert)
        return mlp_layer_refuse(from, layer, expert, error);
    checkpoint_find_layers(from, model, below, PARTS, &first, &last);
    snprintf(name, sizeof name, "%slayers.%d.mlp.gate_proj.weight",
             model ? model : checkpoint_models[0], layer);
    if (first < 0)
        return checkpoint_fail_missing(from, name, error);
    return st_fail(error, "%s: has no layer %d: ask for one from %d to %d",
                   st_path_tail(checkpoint_path(from)), layer, first, last);
}

bool mlp_layer_prefix(const checkpoint *from, const char *model, int layer, char *prefix,
                      st_error *error)
{
    checkpoint_layer found[2];
    int count = checkpoint_find_layer(from, model, below, PARTS, layer, found);
    if (count > 1)
        return st_fail(error,
                       "%s: has a layer %d below both '%slayers.' (%s) and '%slayers.' (%s): "
                       "name one by --prefix, or a file that has one",
                       st_path_tail(checkpoint_path(from)), layer, found[0].model, found[0].part,
                       found[1].model, found[1].part);
    if (!count)
        return fail_layer(from, model, layer, error);
    int length =
        snprintf(prefix, MLP_LAYER_PREFIX, "%slayers.%d.%s", found[0].model, layer, found[0].part);
    return length < MLP_LAYER_PREFIX ||
           st_fail(error, "--prefix is longer than %d characters", MLP_LAYER_PREFIX - 32);
}

bool mlp_layer_fits(const checkpoint *from, int layer, const mlp_weights *weights, st_error *error)
{
    return (weights->hidden <= MLP_SIZE_MOST && weights->ffn <= MLP_SIZE_MOST) ||
           st_fail(error,
                   "%s: layer %d has a hidden size of %" PRId64 " and %" PRId64
                   " features: at most %d of each are computed",
                   st_path_tail(checkpoint_path(from)), layer, weights->hidden, weights->ffn,
                   MLP_SIZE_MOST);
}

/* ---- The weights ----------------------------------------------------------------------------- */

static const char *const projections[] = { "gate", "up", "down" };
enum { GATE, UP, DOWN, PROJECTIONS };

static const char fused[] = "gate_up_proj.weight"; /* gate over up */

/* "gate_proj.weight" and such. */
static bool is_known(const char *rest)
{
    if (strcmp(rest, fused) == 0)
        return true;
    for (int i = 0; i < PROJECTIONS; i++) {
        size_t length = strlen(projections[i]);
        if (strncmp(rest, projections[i], length) == 0 &&
            (strcmp(rest + length, "_proj.weight") == 0 ||
             strcmp(rest + length, "_proj.bias") == 0))
            return true;
    }
    return false;
}

static bool check_names(const checkpoint *from, int layer, const char *prefix, bool fp8,
                        st_error *error)
{
    size_t length = strlen(prefix);
    for (size_t i = 0; i < checkpoint_count(from); i++) {
        const char *name = checkpoint_name(from, i);
        if (strncmp(name, prefix, length) == 0 && !is_known(name + length) &&
            !(fp8 && mlp_fp8_knows(name + length, mlp_fp8_dense)))
            return mlp_layer_refuse(from, layer, name, error);
    }
    return true;
}

/* The matrix, which is in that file, must be [rows, cols], of gate's or up's dtype. */
static bool check_one(const char *file, int layer, const mlp_weights *mlp, const matrix *one,
                      const char *name, int64_t rows, int64_t cols, st_error *error)
{
    const matrix *first = mlp->ungated ? &mlp->up : &mlp->gate;
    const char *than = mlp->ungated ? "up" : "gate";
    if (one->rows != rows || one->cols != cols)
        return st_fail(error,
                       "%s: layer %d: %s_proj is [%" PRId64 ", %" PRId64 "], so %s must be "
                       "[%" PRId64 ", %" PRId64 "], but it is [%" PRId64 ", %" PRId64
                       "]: choose a layer with a plain MLP",
                       file, layer, than, mlp->ffn, mlp->hidden, name, rows, cols, one->rows,
                       one->cols);
    if (one->dtype != first->dtype && first->dtype != IMBREX_E4M3)
        return st_fail(error,
                       "%s: layer %d: %s_proj is %s, but %s is %s: convert them to one dtype", file,
                       layer, than, st_dtype_name(st_dtype_of(first->dtype)), name,
                       st_dtype_name(st_dtype_of(one->dtype)));
    return true;
}

static bool check_all(const checkpoint *from, int layer, const char *prefix, const mlp_weights *mlp,
                      st_error *error)
{
    const struct {
        const matrix *one;
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        { &mlp->gate, "gate_proj", mlp->ffn, mlp->hidden },
        { &mlp->up, "up_proj", mlp->ffn, mlp->hidden },
        { &mlp->down, "down_proj", mlp->hidden, mlp->ffn },
        { &mlp->gate_bias, "gate_proj.bias", 1, mlp->ffn },
        { &mlp->up_bias, "up_proj.bias", 1, mlp->ffn },
        { &mlp->down_bias, "down_proj.bias", 1, mlp->hidden },
    };
    for (int i = 0; i < 6; i++) {
        bool missing = i == GATE ? mlp->ungated : i >= PROJECTIONS && !parts[i].one->rows;
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s%s%s", prefix, parts[i].name,
                 i < PROJECTIONS ? ".weight" : "");
        const char *file = st_path_tail(checkpoint_holder(from, name));
        if (!missing && !check_one(file, layer, mlp, parts[i].one, parts[i].name, parts[i].rows,
                                   parts[i].cols, error))
            return false;
    }
    return true;
}

static bool read_all(checkpoint *from, const char *prefix, bool fp8, mlp_weights *mlp,
                     st_error *error)
{
    matrix *const weights[] = { &mlp->gate, &mlp->up, &mlp->down };
    matrix *const biases[] = { &mlp->gate_bias, &mlp->up_bias, &mlp->down_bias };
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", prefix, fused);
    const bool apart = !checkpoint_has(from, name);
    for (int i = 0; i < PROJECTIONS; i++) {
        snprintf(name, sizeof name, "%s%s_proj.bias", prefix, projections[i]);
        bool bias = checkpoint_has(from, name);
        if (bias && !checkpoint_vector(from, name, biases[i], error))
            return false;
        snprintf(name, sizeof name, "%s%s_proj.weight", prefix, projections[i]);
        if (i == GATE && !bias && !checkpoint_has(from, name))
            mlp->ungated = true;
        else if (i == UP && !apart && !checkpoint_has(from, name))
            continue;
        else if (!(fp8 ? mlp_fp8_matrix : checkpoint_matrix)(from, name, weights[i], error))
            return false;
    }
    return true;
}

/* Gate and up out of one tensor. */
static bool split_fused(checkpoint *from, const char *prefix, mlp_weights *mlp, st_error *error)
{
    char name[NAME_BYTES];
    matrix both;
    snprintf(name, sizeof name, "%s%s", prefix, fused);
    if (!checkpoint_has(from, name))
        return true;
    if (!mlp->ungated || mlp->up.rows)
        return st_fail(error, "%s: has %.120s and what is in it apart, too: name a file with one",
                       st_path_tail(checkpoint_holder(from, name)), name);
    if (!checkpoint_matrix(from, name, &both, error))
        return false;
    if (both.rows % 2 != 0)
        return st_fail(error, "%s: %.120s has %" PRId64 " rows, an odd number: no gate over up",
                       st_path_tail(checkpoint_holder(from, name)), name, both.rows);
    both.rows /= 2;
    mlp->ungated = false;
    mlp->gate = mlp->up = both;
    mlp->up.data =
        (const char *)both.data + (size_t)(both.rows * both.cols * matrix_dtype_bytes(both.dtype));
    return true;
}

bool mlp_layer_find(checkpoint *from, const char *model, int layer, mlp_weights *weights,
                    char *prefix, st_error *error)
{
    mlp_weights mlp = { 0 };
    if (!mlp_layer_prefix(from, model, layer, prefix, error))
        return false;
    const bool fp8 = mlp_fp8_is(from, prefix, mlp_fp8_dense[DOWN]);
    if (!check_names(from, layer, prefix, fp8, error) ||
        !read_all(from, prefix, fp8, &mlp, error) || !split_fused(from, prefix, &mlp, error) ||
        !checkpoint_all_listed(from, prefix, error))
        return false;
    mlp.ffn = mlp.up.rows;
    mlp.hidden = mlp.up.cols;
    if (!mlp.ungated) {
        mlp.ffn = mlp.gate.rows;
        mlp.hidden = mlp.gate.cols;
    }
    if (!check_all(from, layer, prefix, &mlp, error) || !mlp_layer_fits(from, layer, &mlp, error))
        return false;
    *weights = mlp;
    return true;
}
