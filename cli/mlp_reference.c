/* mlp_reference.c - reads every tensor of the layer by its name, and the activation's name, and
 * asks nobody what the run made of them. */
#include "mlp_reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "mlp_config.h"

/* ---- Functions, in float64 ------------------------------------------------------------------- */

/* e^-x overflows at an x far below zero, where all that is left is -0; at -infinity, too. */
static double silu(double x)
{
    return x < -700 ? -0.0 : x / (1 + exp(-x));
}

static double gelu(double x)
{
    return x < -50 ? -0.0 : x / 2 * erfc(-x / sqrt(2));
}

static double gelu_tanh(double x)
{
    return x < -50 ? -0.0 : x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static double relu(double x)
{
    return x < 0 ? 0 : x;
}

static double relu2(double x)
{
    return x < 0 ? 0 : x * x;
}

double (*mlp_reference_function(const char *name))(double)
{
    static const struct {
        const char *names;
        double (*function)(double);
    } functions[] = {
        { " silu swish ", silu },
        { " gelu gelu_python ", gelu },
        { " gelu_tanh gelu_pytorch_tanh gelu_new gelu_fast gelu_accurate gelu_python_tanh ",
          gelu_tanh },
        { " relu ", relu },
        { " relu2 ", relu2 },
    };
    char word[64];
    snprintf(word, sizeof word, " %.60s ", name);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strstr(functions[i].names, word))
            return functions[i].function;
    return NULL;
}

/* ---- The layer ------------------------------------------------------------------------------- */

static bool read_tensor(checkpoint *file, const char *name, const char *rest, mlp_weights *to,
                        st_error *error)
{
    if (strcmp(rest, "gate_proj.weight") == 0)
        return checkpoint_matrix(file, name, &to->gate, error);
    if (strcmp(rest, "up_proj.weight") == 0)
        return checkpoint_matrix(file, name, &to->up, error);
    if (strcmp(rest, "down_proj.weight") == 0)
        return checkpoint_matrix(file, name, &to->down, error);
    if (strcmp(rest, "gate_proj.bias") == 0)
        return checkpoint_vector(file, name, &to->gate_bias, error);
    if (strcmp(rest, "up_proj.bias") == 0)
        return checkpoint_vector(file, name, &to->up_bias, error);
    if (strcmp(rest, "down_proj.bias") == 0)
        return checkpoint_vector(file, name, &to->down_bias, error);
    return st_fail(error, "--check does not know the tensor %.80s", name);
}

static bool read_layer(checkpoint *file, const char *prefix, mlp_weights *to, st_error *error)
{
    for (size_t i = 0; i < checkpoint_count(file); i++) {
        const char *name = checkpoint_name(file, i);
        size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) == 0 &&
            !read_tensor(file, name, name + length, to, error))
            return false;
    }
    to->ungated = to->gate.rows == 0;
    to->ffn = to->down.cols;
    to->hidden = to->down.rows;
    return true;
}

/* The last name that config.json has for it, that of the language model's part after the whole's:
 * several that differ were refused, or one was asked for. */
static bool read_activation(const checkpoint *file, const char *asked, mlp_reference *to,
                            st_error *error)
{
    static const char *const keys[] = { "hidden_act", "hidden_activation", "activation_function",
                                        "mlp_hidden_act", "act_fn" };
    static const char *const sections[] = { "", "text_config", "llm_config", "language_config" };
    char name[64] = "silu";
    mlp_config *config;
    if (!mlp_config_open(file, &config, error))
        return false;
    for (int i = 0; config && i < 4 * 5; i++) {
        const char *text = mlp_config_text(config, sections[i / 5], keys[i % 5]);
        if (text)
            snprintf(name, sizeof name, "%s", text);
    }
    mlp_config_close(config);
    to->activation = mlp_reference_function(asked ? asked : name);
    return to->activation || st_fail(error, "--check does not know the activation %.60s", name);
}

bool mlp_reference_open(const mlp_source *source, const mlp_model *model, mlp_reference *out,
                        st_error *error)
{
    *out = (mlp_reference){ .weights = model->weights };
    if (source->random) {
        out->activation = mlp_reference_function(source->activation ? source->activation : "silu");
        return true;
    }
    out->weights = (mlp_weights){ 0 };
    return checkpoint_open(source->weights, &out->file, error) &&
           read_layer(out->file, model->prefix, &out->weights, error) &&
           read_activation(out->file, source->activation, out, error);
}

void mlp_reference_close(mlp_reference *reference)
{
    checkpoint_close(reference->file);
}
