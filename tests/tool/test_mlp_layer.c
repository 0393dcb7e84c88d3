/* test_mlp_layer.c - layers as the checkpoints of models have them, each with its config.json: what
 * is computed, and what is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "mlp/mlp.h"
#include "scratch.h"

enum { HIDDEN = 4, FFN = 6, TENSORS = 10 };

static st_error error;

/* ---- Checkpoints ----------------------------------------------------------------------------- */

/* A tensor by its name below the layer: [FFN, HIDDEN], of down the other way round, or a bias. */
static st_tensor tensor(const char *name)
{
    static const float zeros[64];
    bool down = strstr(name, "down_proj") != NULL;
    st_tensor out = { .name = name, .dtype = ST_F32, .rank = 2, .data = zeros };
    out.shape[0] = down ? HIDDEN : FFN;
    out.shape[1] = down ? FFN : HIDDEN;
    if (!strstr(name, ".weight") || strstr(name, "norm"))
        out.rank = 1;
    return out;
}

/* A file of the tensors `names`, a word each, below the prefix, and this config.json or none. */
static void write_layer(const char *prefix, const char *names, const char *config)
{
    char all[600], full[TENSORS][100], *rest = NULL;
    st_tensor tensors[TENSORS];
    size_t count = 0;
    scratch_clear();
    snprintf(all, sizeof all, "%s", names);
    for (char *word = strtok_r(all, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        snprintf(full[count], sizeof full[count], "%s%s", prefix, word);
        tensors[count] = tensor(full[count]);
        count++;
    }
    assert_true(st_write(scratch_path("model.safetensors"), tensors, count, NULL, &error));
    if (config)
        scratch_write("config.json", config, strlen(config));
}

/* As `imbrex mlp` reads layer 0. */
static bool read_layer(const char *asked, mlp_weights *weights)
{
    checkpoint *from = NULL;
    model_config *config = NULL;
    char prefix[MLP_LAYER_PREFIX];
    error = (st_error){ "" };
    bool good = checkpoint_open(scratch_path(""), &from, &error) &&
                mlp_layer_find(from, NULL, 0, weights, prefix, &error) &&
                model_config_open(from, &config, &error) &&
                mlp_config_apply(config, 0, "intermediate_size", asked, weights, &error);
    model_config_close(config);
    checkpoint_close(from);
    return good;
}

static void accepts(const char *asked, imbrex_activation_kind kind, const char *what)
{
    mlp_weights weights;
    if (!read_layer(asked, &weights))
        fail_msg("%s: %s", what, error.text);
    if (weights.activation != kind)
        fail_msg("%s: %s, not %s", what, mlp_config_activations[weights.activation],
                 mlp_config_activations[kind]);
}

static void refuses(const char *asked, const char *says, const char *what)
{
    mlp_weights weights;
    if (read_layer(asked, &weights))
        fail_msg("%s is computed, but should say: %s", what, says);
    if (!strstr(error.text, says))
        fail_msg("%s: says \"%s\", not \"%s\"", what, error.text, says);
}

#define MODEL  "model.layers.0.mlp."
#define GATED  "gate_proj.weight up_proj.weight down_proj.weight "
#define BIASES "gate_proj.bias up_proj.bias down_proj.bias "

/* ---- Tensors --------------------------------------------------------------------------------- */

static void biases_are_found(void **state)
{
    (void)state;
    mlp_weights weights;
    write_layer(MODEL, GATED BIASES, NULL);
    assert_true(read_layer(NULL, &weights));
    assert_true(weights.gate_bias.cols == FFN && weights.up_bias.cols == FFN);
    assert_true(weights.down_bias.cols == HIDDEN && !weights.ungated);
    write_layer(MODEL, GATED "down_proj.bias", NULL);
    assert_true(read_layer(NULL, &weights));
    assert_true(!weights.gate_bias.rows && !weights.up_bias.rows && weights.down_bias.rows);
    write_layer(MODEL, GATED "down_proj.bias.weight", NULL);
    refuses(NULL, "has the tensor " MODEL "down_proj.bias.weight", "a bias's weight");
}

/* Tensors of no bytes, whose other size may be any. */
static void a_size_that_cannot_be_is_refused(void **state)
{
    (void)state;
    const int64_t large = (int64_t)1 << 40;
    st_tensor tensors[3];
    static const char *const names[] = { MODEL "gate_proj.weight", MODEL "up_proj.weight",
                                         MODEL "down_proj.weight" };
    for (int wide = 0; wide < 2; wide++) {
        for (int i = 0; i < 3; i++) {
            tensors[i] = tensor(names[i]);
            tensors[i].shape[0] = (i == 2) == wide ? 0 : large;
            tensors[i].shape[1] = (i == 2) == wide ? large : 0;
        }
        scratch_clear();
        assert_true(st_write(scratch_path("model.safetensors"), tensors, 3, NULL, &error));
        refuses(NULL, "at most 1048576 of each are computed", "2^40");
    }
}

static bool has_experts(const char *model)
{
    checkpoint *from = NULL;
    assert_true(checkpoint_open(scratch_path(""), &from, &error));
    bool has = mlp_layer_has_experts(from, model, 0);
    checkpoint_close(from);
    return has;
}

/* Experts are those of the model that was asked for, and a gate of attention is none. */
static void experts_of_others_are_none(void **state)
{
    (void)state;
    write_layer("model.layers.0.", "mlp.up_proj.weight self_attn.gate.weight attn.router.weight",
                NULL);
    assert_false(has_experts(NULL) || has_experts("model."));
    write_layer("model.layers.0.", "mlp.gate.weight", NULL);
    assert_true(has_experts(NULL) && has_experts("model."));
    assert_false(has_experts("other.") || has_experts(""));
    write_layer("layers.0.", "feed_forward.experts.0.weight", NULL);
    assert_true(has_experts(NULL) && has_experts(""));
}

/* Of several files the one that holds the tensor is named. */
static void what_is_wrong_is_named_with_its_file(void **state)
{
    (void)state;
    static const struct {
        const char *name, *says;
    } wrong[] = {
        { "down_proj.bias", "two/b.safetensors: layer 0: gate_proj is [6, 4], so down_proj.bias" },
        { "up_proj.bias", "two/b.safetensors: layer 0: gate_proj is F32, but up_proj.bias is" },
        { "act_fn.beta", "two/b.safetensors: layer 0 has the tensor " MODEL "act_fn.beta: " },
    };
    for (int i = 0; i < 3; i++) {
        char name[100], index[800];
        snprintf(name, sizeof name, MODEL "%s", wrong[i].name);
        st_tensor other = tensor(name);
        other.shape[0] += i == 0;
        other.dtype = i == 1 ? ST_F16 : ST_F32;
        write_layer(MODEL, GATED, NULL);
        assert_int_equal(rename(scratch_path("model.safetensors"), scratch_path("a")), 0);
        scratch_directory("two");
        assert_true(st_write(scratch_path("two/b.safetensors"), &other, 1, NULL, &error));
        snprintf(index, sizeof index,
                 "{\"weight_map\": {\"%sgate_proj.weight\": \"a\", \"%sup_proj.weight\": \"a\", "
                 "\"%sdown_proj.weight\": \"a\", \"%s\": \"two/b.safetensors\"}}",
                 MODEL, MODEL, MODEL, name);
        scratch_write("model.safetensors.index.json", index, strlen(index));
        refuses(NULL, wrong[i].says, wrong[i].name);
    }
}

static void whatever_else_is_there_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *tensor, *says;
    } others[] = {
        { "ffn_sub_norm.weight", "a norm inside the MLP" },
        { "act_fn.beta", "only weights and biases" },
        { "layer_scale", "only weights and biases" },
        { "gate_proj.weight_scale", "the layer is quantised" },
        { "gate_proj.weight_scale_inv", "the layer is quantised" },
        { "down_proj.input_scale", "the layer is quantised" },
        { "up_proj.qweight", "the layer is quantised" },
        { "up_proj.qzeros", "the layer is quantised" },
        { "up_proj.scales", "the layer is quantised" },
        { "up_proj.g_idx", "the layer is quantised" },
        { "up_proj.weight.absmax", "the layer is quantised" },
        { "up_proj.weight.quant_state.bitsandbytes__nf4", "the layer is quantised" },
        { "up_proj.SCB", "the layer is quantised" },
        { "up_proj.weight_packed", "the layer is quantised" },
        { "experts.0.gate_proj.weight", "experts with these names" },
        { "experts.gate_up_proj", "experts with these names" },
        { "shared_expert.up_proj.weight", "experts with these names" },
        { "gate.weight", "experts with these names" },
        { "gate.e_score_correction_bias", "experts with these names" },
        { "router.weight", "experts with these names" },
        { "gate_up_proj.bias", "split what is fused" },
        { "up_proj.lora_A.weight", "merge the adapter" },
        { "fc1.weight", "only weights and biases" },
        { "gate_proj.weight_g", "only weights and biases" },
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char names[200], says[200];
        snprintf(names, sizeof names, GATED "%s", others[i].tensor);
        write_layer(MODEL, names, "{\"hidden_act\": \"silu\"}");
        snprintf(says, sizeof says,
                 "model.safetensors: layer 0 has the tensor " MODEL "%s: ", others[i].tensor);
        refuses(NULL, says, others[i].tensor);
        assert_non_null(strstr(error.text, others[i].says));
    }
    write_layer(MODEL, "up_proj.qweight up_proj.scales", NULL); /* and no weights at all */
    refuses(NULL, "the layer is quantised", "GPTQ");
    write_layer(MODEL, "experts.0.w1.weight gate.weight", NULL);
    refuses(NULL, "experts with these names", "experts alone");
    write_layer("model.layers.0.", "block_sparse_moe.experts.0.w1.weight", NULL);
    refuses(NULL, "block_sparse_moe.experts.0.w1.weight: experts with these", "Mixtral");
}

static void what_is_beside_the_mlp_is_nobodys_matter(void **state)
{
    (void)state;
    static const char *const prefixes[] = { "model.layers.0.", "layers.0.",
                                            "language_model.model.layers.0.",
                                            "model.language_model.layers.0." };
    for (int i = 0; i < 4; i++) {
        write_layer(prefixes[i],
                    "mlp.gate_proj.weight mlp.up_proj.weight mlp.down_proj.weight "
                    "input_layernorm.weight self_attn.q_proj.bias mlp_norm.weight",
                    NULL);
        accepts(NULL, IMBREX_SILU, prefixes[i]);
    }
    write_layer("",
                MODEL "gate_proj.weight " MODEL "up_proj.weight " MODEL "down_proj.weight "
                      "vision.layers.0.mlp.fc1.weight model.layers.00.mlp.x model.layers.1.mlp.y",
                NULL);
    accepts(NULL, IMBREX_SILU, "other layers");
    write_layer("",
                MODEL "gate_proj.weight " MODEL "up_proj.weight " MODEL "down_proj.weight "
                      "layers.0.mlp.gate_proj.weight",
                NULL);
    refuses(NULL, "has a layer 0 below both 'model.layers.' (mlp.) and 'layers.' (mlp.)",
            "two models");
}

/* ---- config.json ----------------------------------------------------------------------------- */

static const struct {
    const char *config;
    imbrex_activation_kind kind;
} activations[] = {
    { NULL, IMBREX_SILU },
    { "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"mlp_bias\": false, "
      "\"hidden_size\": 4, \"intermediate_size\": 6, \"num_hidden_layers\": 1}",
      IMBREX_SILU },
    { "{\"hidden_act\": \"swish\"}", IMBREX_SILU },
    { "{\"hidden_act\": \"gelu\"}", IMBREX_GELU },
    { "{\"hidden_act\": \"gelu_python\"}", IMBREX_GELU },
    { "{\"hidden_act\": \"gelu_new\"}", IMBREX_GELU_TANH },
    { "{\"hidden_act\": \"gelu_fast\"}", IMBREX_GELU_TANH },
    { "{\"hidden_act\": \"relu\"}", IMBREX_RELU },
    { "{\"activation_function\": \"relu2\"}", IMBREX_RELU2 },
    { "{\"mlp_hidden_act\": \"relu2\"}", IMBREX_RELU2 },
    { "{\"model_type\": \"gemma\", \"hidden_act\": \"gelu_pytorch_tanh\", "
      "\"hidden_activation\": \"gelu_pytorch_tanh\"}",
      IMBREX_GELU_TANH },
    { "{\"model_type\": \"gemma2\", \"hidden_activation\": \"gelu_pytorch_tanh\"}",
      IMBREX_GELU_TANH },
    { "{\"hidden_act\": null, \"hidden_activation\": \"gelu_pytorch_tanh\"}", IMBREX_GELU_TANH },
    { "{\"model_type\": \"gemma3\", \"text_config\": {\"hidden_activation\": "
      "\"gelu_pytorch_tanh\", \"hidden_size\": 4}, \"vision_config\": {\"hidden_act\": \"gelu\", "
      "\"hidden_size\": 1152}}",
      IMBREX_GELU_TANH },
    { "{\"llm_config\": {\"hidden_act\": \"relu\"}}", IMBREX_RELU },
    { "{\"model_type\": \"qwen2\", \"hidden_act\": \"silu\", \"hidden_size\": 4.0, "
      "\"intermediate_size\": [6, 7], \"rope_scaling\": {\"factor\": 4.0}, "
      "\"activation_dropout\": 0.1, \"quantization_config\": null, \"swiglu_limit\": null, "
      "\"residual_multiplier\": 0.2, \"mlp_multipliers\": [], \"ffn_dim_multiplier\": 1.3, "
      "\"use_bias\": true}",
      IMBREX_SILU },
};

static void the_config_names_the_activation(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++) {
        write_layer(MODEL, GATED, activations[i].config);
        accepts(NULL, activations[i].kind, activations[i].config ? activations[i].config : "none");
    }
}

static const struct {
    const char *names, *config, *says;
} refused[] = {
    { GATED, "{\"hidden_act\": \"quick_gelu\"}", "config.json: hidden_act is \"quick_gelu\": " },
    { GATED, "{\"hidden_act\": \"SiLU\"}", "hidden_act is \"SiLU\"" },
    { GATED, "{\"hidden_act\": \"gelu_10\"}", "hidden_act is \"gelu_10\"" },
    { GATED, "{\"hidden_act\": \"xielu\"}", "hidden_act is \"xielu\"" },
    { GATED, "{\"hidden_act\": {\"type\": \"silu\"}}", "hidden_act is {\"type\":\"silu\"}" },
    { GATED, "{\"hidden_act\": \"\"}", "hidden_act is \"\"" },
    { GATED, "{\"hidden_act\": \"silu\", \"activation_function\": \"gelu\"}",
      "hidden_act is silu, but activation_function is gelu: say --activation" },
    { GATED, "{\"hidden_act\": \"silu\", \"text_config\": {\"hidden_act\": \"gelu\"}}",
      "hidden_act is gelu, but hidden_act is silu" },
    { GATED, "{\"model_type\": \"gemma\", \"hidden_act\": \"gelu\"}",
      "Gemma's code may take for gelu_pytorch_tanh: say --activation" },
    { GATED, "{\"model_type\": \"gemma2\", \"hidden_act\": \"silu\"}",
      "hidden_act is silu, which Gemma's code may take for gelu_pytorch_tanh: say --activation" },
    { GATED, "{\"model_type\": \"gemma3_text\"}", "names no activation (hidden_act)" },
    { GATED, "{}", "names no activation (hidden_act): say --activation" },
    { GATED, "{\"vision_config\": {\"hidden_act\": \"gelu\"}}", "names no activation" },
    { GATED, "[]", "config.json: its JSON is not an object" },
    { GATED, "", "config.json: its JSON is wrong" },
    { GATED, "{\"hidden_act\": \"silu\", \"a\": Infinity}",
      "config.json: holds Infinity at byte 36, which JSON does not have, though Python writes it" },
    { GATED, "{\"a\": -Infinity, \"hidden_act\": \"silu\"}", "holds -Infinity at byte 7, " },
    { GATED, "{\"a\": [NaN]}", "holds NaN at byte 10, " },
    { GATED, "{\"a\": Infinite}", "its JSON is wrong at byte 14" },
    { GATED, "{\"a\": -}", "its JSON is wrong at byte 7" },
    { GATED, "{\"hidden_act\": \"silu\", \"a\": -99999999999999999999}",
      "config.json: holds a number at byte 49 that 64 bits do not: too big negative integer" },
    { GATED, "version https://git-lfs.github.com/spec/v1\n", "config.json: is only git-lfs's" },
    { GATED, "{\"hidden_act\": \"silu\", \"hidden_act\": \"gelu\"}", "duplicate object key" },
    { GATED, "{\"hidden_act\": \"silu\", \"mlp_bias\": true}",
      "mlp_bias is true, but layer 0 has no gate_proj.bias" },
    { GATED "gate_proj.bias up_proj.bias", "{\"hidden_act\": \"silu\", \"mlp_bias\": true}",
      "mlp_bias is true, but layer 0 has no down_proj.bias" },
    { GATED BIASES, "{\"hidden_act\": \"silu\", \"mlp_bias\": false}",
      "mlp_bias is false, but layer 0 has gate_proj.bias" },
    { GATED "down_proj.bias", "{\"hidden_act\": \"silu\", \"use_bias\": false}",
      "use_bias is false, but layer 0 has down_proj.bias" },
    { GATED, "{\"hidden_act\": \"silu\", \"mlp_bias\": 1}", "mlp_bias is 1: want true or false" },
    { GATED, "{\"hidden_act\": \"silu\", \"use_mlp_bias\": \"yes\"}",
      "use_mlp_bias is \"yes\": want" },
    { GATED, "{\"hidden_act\": \"silu\", \"gated_mlp\": 0}", "gated_mlp is 0: want true or false" },
    { GATED,
      "{\"hidden_act\": \"silu\", \"swiglu_limits\": [7.5, 7.5, 7.5, 7.5, 7.5, 7.5, 7.5, 7.5, 7.5, "
      "7.5, 7.5, 7.5, 7.5]}",
      "swiglu_limits is [7.5,7.5,7.5,7.5,7.5,7.5,7.5,7.5,7.5,7.5,7.5,...: that is not computed" },
    { GATED,
      "{\"hidden_act\": \"a name that is longer than what a sentence shows of such values\"}",
      "hidden_act is \"a name that is longer than what a sentence s...: computed are" },
    { GATED, "{\"hidden_act\": \"silu\", \"hidden_size\": 8}",
      "hidden_size is 8, but layer 0 has 4" },
    { GATED, "{\"hidden_act\": \"silu\", \"intermediate_size\": 8}",
      "intermediate_size is 8, but layer 0 has 6" },
    { GATED, "{\"hidden_act\": \"silu\", \"intermediate_size\": [7, 6]}",
      "intermediate_size is 7, but layer 0 has 6" },
    { GATED, "{\"hidden_act\": \"silu\", \"intermediate_size\": []}",
      "intermediate_size is nothing, but" },
    { GATED, "{\"hidden_act\": \"silu\", \"text_config\": {\"hidden_size\": 5}}",
      "hidden_size is 5" },
    { GATED, "{\"hidden_act\": \"silu\", \"quantization_config\": {\"quant_method\": \"fp8\"}}",
      "quantization_config (\"fp8\"): the model is quantised" },
    { GATED, "{\"hidden_act\": \"silu\", \"text_config\": {\"quantization_config\": {}}}",
      "the model is quantised" },
    { GATED, "{\"hidden_act\": \"silu\", \"swiglu_limit\": 7.0}", "swiglu_limit is 7.0: " },
    { GATED, "{\"hidden_act\": \"silu\", \"swiglu_alpha\": 1.702}", "swiglu_alpha is 1.70" },
    { GATED, "{\"hidden_act\": \"silu\", \"activation_sparsity_pattern\": [0.95, 0]}",
      "activation_sparsity_pattern is [0.9" },
    { GATED, "{\"hidden_act\": \"silu\", \"text_config\": {\"mlp_multipliers\": [0.9, 0.3]}}",
      "mlp_multipliers is [0." },
    { GATED, "{\"hidden_act\": \"silu\", \"use_gated_activation\": false}",
      "use_gated_activation is false, but layer 0 has a gate_proj.weight" },
    { "up_proj.weight down_proj.weight", "{\"hidden_act\": \"relu\", \"gated_mlp\": true}",
      "gated_mlp is true, but layer 0 has no gate_proj.weight" },
    { "up_proj.weight down_proj.weight", NULL, "has no gate_proj.weight" },
    { "up_proj.weight down_proj.weight", "{\"hidden_act\": \"silu\"}",
      "has no gate_proj.weight: that is computed only where" },
    { "up_proj.weight down_proj.weight", "{\"hidden_act\": \"gelu_pytorch_tanh\"}",
      "not gelu_tanh" },
    { "up_proj.weight down_proj.weight", "{\"hidden_act\": \"relu\", \"model_type\": \"llama\"}",
      "model_type is llama, but layer 0 has no gate_proj.weight" },
    { "gate_proj.bias up_proj.weight down_proj.weight", "{\"hidden_act\": \"relu2\"}",
      "has no tensor " MODEL "gate_proj.weight" },
};

static void what_the_config_says_else_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        write_layer(MODEL, refused[i].names, refused[i].config);
        refuses(NULL, refused[i].says, refused[i].config ? refused[i].config : "no config");
    }
    write_layer(MODEL, GATED, NULL);
    scratch_directory("config.json");
    refuses(NULL, "config.json: is not a regular file: want a model's config", "a directory");
}

/* A link to a file elsewhere: the config lies beside the link, or else beside the file. */
static void a_config_is_found_behind_a_link(void **state)
{
    (void)state;
    char far[4200];
    write_layer(MODEL, GATED, NULL);
    scratch_directory("far");
    scratch_write("far/config.json", "{\"hidden_act\": \"gelu\"}", 22);
    snprintf(far, sizeof far, "%s", scratch_path("far/weights"));
    assert_int_equal(rename(scratch_path("model.safetensors"), far), 0);
    assert_int_equal(symlink("far/weights", scratch_path("model.safetensors")), 0);
    accepts(NULL, IMBREX_GELU, "beside the file");
    scratch_write("config.json", "{\"hidden_act\": \"relu\"}", 22);
    accepts(NULL, IMBREX_RELU, "beside the link");
    assert_int_equal(unlink(scratch_path("config.json")), 0);
    assert_int_equal(symlink("nowhere", scratch_path("config.json")), 0);
    refuses(NULL, "config.json: cannot be opened", "a link to nowhere");
}

static void mlps_without_a_gate(void **state)
{
    (void)state;
    mlp_weights weights;
    write_layer(MODEL, "up_proj.weight down_proj.weight",
                "{\"model_type\": \"nemotron\", \"hidden_act\": \"relu2\", \"mlp_bias\": false}");
    accepts(NULL, IMBREX_RELU2, "Nemotron");
    assert_true(read_layer(NULL, &weights) && weights.ungated);
    assert_true(weights.ffn == FFN && weights.hidden == HIDDEN && !weights.gate.rows);
    write_layer(MODEL, "up_proj.weight up_proj.bias down_proj.weight down_proj.bias",
                "{\"hidden_act\": \"relu2\", \"mlp_bias\": true}");
    accepts(NULL, IMBREX_RELU2, "with biases");
    write_layer(MODEL, "up_proj.weight down_proj.weight", NULL);
    accepts("relu", IMBREX_RELU, "asked");
}

static void what_is_asked_for_fills_gaps_only(void **state)
{
    (void)state;
    write_layer(MODEL, GATED, NULL);
    accepts("relu2", IMBREX_RELU2, "no config");
    write_layer(MODEL, GATED, "{}");
    accepts("gelu_tanh", IMBREX_GELU_TANH, "a config without a word");
    write_layer(MODEL, GATED, "{\"hidden_act\": \"gelu\"}");
    accepts("gelu", IMBREX_GELU, "what it says");
    refuses("silu", "hidden_act is gelu, but --activation is silu", "another");
    refuses("gelu_tanh", "hidden_act is gelu, but --activation is gelu_tanh", "another form");
    write_layer(MODEL, GATED,
                "{\"model_type\": \"gemma\", \"hidden_act\": \"gelu\", \"swiglu_limit\": 1}");
    refuses("gelu_tanh", "swiglu_limit is 1", "a limit");
    write_layer(MODEL, GATED, "{\"model_type\": \"gemma\", \"hidden_act\": \"gelu\"}");
    accepts("gelu_tanh", IMBREX_GELU_TANH, "Gemma");
    accepts("gelu", IMBREX_GELU, "Gemma");
    refuses("relu", "but --activation is relu", "Gemma");
    write_layer(MODEL, GATED, "{\"model_type\": \"gemma2\", \"hidden_act\": \"silu\"}");
    accepts("silu", IMBREX_SILU, "Gemma 2");
    accepts("gelu_tanh", IMBREX_GELU_TANH, "Gemma 2");
    write_layer(MODEL, GATED, "{\"hidden_act\": \"silu\", \"hidden_activation\": \"gelu\"}");
    accepts("gelu", IMBREX_GELU, "one of two");
    refuses("relu", "but --activation is relu", "neither of two");
}

/* What a damaged config is taken for does not matter; that it is read within its bounds, and that
 * a refusal has a sentence, does. */
static void a_damaged_config(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\": \"gemma3\", \"hidden_act\": null, \"text_config\": {\"hidden_size\": 4, "
        "\"intermediate_size\": [6, 7], \"hidden_activation\": \"gelu_pytorch_tanh\", "
        "\"swiglu_limit\": null, \"mlp_bias\": false, \"quantization_config\": null}}";
    uint64_t random = 1;
    int read = 0;
    write_layer(MODEL, GATED, NULL);
    for (int round = 0; round < 3000; round++) {
        char damaged[sizeof config];
        mlp_weights weights;
        memcpy(damaged, config, sizeof config);
        for (int flips = 1 + round % 2; flips > 0; flips--) {
            random = random * 6364136223846793005 + 1442695040888963407;
            damaged[(random >> 33) % (sizeof config - 1)] = (char)(random >> 24);
        }
        scratch_write("config.json", damaged, sizeof config - 1);
        if (read_layer(NULL, &weights))
            read++;
        else
            assert_true(strlen(error.text) > 20);
    }
    assert_true(read > 50 && read < 2950);
}

/* ---- What --check reads ---------------------------------------------------------------------- */

/* The same functions, and all tensors, by its own reading. */
static void the_reference_reads_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++) {
        mlp_source source = { .input = "" };
        mlp_model model = { .prefix = MODEL };
        mlp_reference reference;
        char path[4200];
        write_layer(MODEL, GATED "up_proj.bias", activations[i].config);
        snprintf(path, sizeof path, "%s", scratch_path(""));
        source.weights = path;
        if (!mlp_reference_open(&source, &model, &reference, &error))
            fail_msg("%s", error.text);
        const char *name = mlp_config_activations[activations[i].kind];
        assert_true(reference.activation == mlp_reference_function(name));
        assert_true(reference.weights.up_bias.cols == FFN && !reference.weights.gate_bias.rows);
        mlp_reference_close(&reference);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biases_are_found),
        cmocka_unit_test(a_size_that_cannot_be_is_refused),
        cmocka_unit_test(experts_of_others_are_none),
        cmocka_unit_test(what_is_wrong_is_named_with_its_file),
        cmocka_unit_test(whatever_else_is_there_is_named),
        cmocka_unit_test(what_is_beside_the_mlp_is_nobodys_matter),
        cmocka_unit_test(the_config_names_the_activation),
        cmocka_unit_test(what_the_config_says_else_is_refused),
        cmocka_unit_test(a_config_is_found_behind_a_link),
        cmocka_unit_test(mlps_without_a_gate),
        cmocka_unit_test(what_is_asked_for_fills_gaps_only),
        cmocka_unit_test(a_damaged_config),
        cmocka_unit_test(the_reference_reads_the_same),
    };
    if (!st_has_json())
        return 77;
    return cmocka_run_group_tests_name("mlp_layer", tests, scratch_make, scratch_remove);
}
