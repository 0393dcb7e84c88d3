/* reference.c - the reference: reads every tensor of the layer by its name, and the activation's
 * name, and asks nobody what the run made of them; float64 throughout, no rounding between the
 * steps, so that what it measures is all that the operators round. */
#include "mlp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    model_config *config;
    if (!model_config_open(file, &config, error))
        return false;
    for (int i = 0; config && i < 4 * 5; i++) {
        const char *text = model_config_text(config, sections[i / 5], keys[i % 5]);
        if (text)
            snprintf(name, sizeof name, "%s", text);
    }
    model_config_close(config);
    to->activation = mlp_reference_function(asked ? asked : name);
    return to->activation || st_fail(error, "--check does not know the activation %.60s", name);
}

/* The tensor beside the layer's MLP, whose prefix ends in "mlp."; what norms add to the mean of
 * squares and to their weights, in the model's code, is not in it. */
static bool read_norm(const mlp_source *source, const char *prefix, mlp_reference *to,
                      st_error *error)
{
    static const char *const sections[] = { "", "text_config", "llm_config", "language_config" };
    char name[160];
    model_config *config;
    snprintf(name, sizeof name, "%s", prefix);
    snprintf(name + strlen(name) - 4, 64, "%s.weight", source->norm);
    if (!checkpoint_vector(to->file, name, &to->after.gamma, error) ||
        !model_config_open(to->file, &config, error))
        return false;
    to->after.eps = 1e-6;
    for (int i = 0; config && i < 4; i++)
        to->after.eps = model_config_number(config, sections[i], "rms_norm_eps", to->after.eps);
    const char *model = config ? model_config_text(config, "", "model_type") : NULL;
    to->after.offset = model && strstr(model, "gemma") == model;
    model_config_close(config);
    return true;
}

bool mlp_reference_open(const mlp_source *source, const mlp_model *model, mlp_reference *out,
                        st_error *error)
{
    *out = (mlp_reference){ .weights = model->weights, .after = model->after };
    if (source->random) {
        out->activation = mlp_reference_function(source->activation ? source->activation : "silu");
        return true;
    }
    out->weights = (mlp_weights){ 0 };
    return checkpoint_open(source->weights, &out->file, error) &&
           read_layer(out->file, model->prefix, &out->weights, error) &&
           read_activation(out->file, source->activation, out, error) &&
           (!source->norm || read_norm(source, model->prefix, out, error));
}

void mlp_reference_close(mlp_reference *reference)
{
    checkpoint_close(reference->file);
}

/* ---- The check ------------------------------------------------------------------------------- */

enum { LANES = 8, FEATURES = 64 }; /* FEATURES: rows of a weight that are widened at once */

typedef struct work {
    const mlp_reference *reference;
    imbrex_dtype dtype;
    float *x;         /* [rows, hidden] */
    double *y;        /* [rows, hidden] */
    double *spread;   /* [rows, hidden], squared */
    float *gate, *up; /* [FEATURES, hidden] */
    float *down;      /* [hidden, FEATURES] */
    double *least;    /* [hidden], squared: what underflow may cost an element of the column */
    void *rounded;    /* the largest of the above in dtype */
    mlp_error error;
} work;

/* A piece of a weight or of x as float32, rounded to dtype first, as the operators get it.  Whether
 * all of it is finite; what only the rounding made infinite is noted. */
static bool widen(work *w, const matrix *from, int64_t row0, int64_t row1, int64_t col0,
                  int64_t col1, float *out)
{
    int64_t rows = row1 - row0, cols = col1 - col0;
    bool finite = true;
    matrix_copy(from, row0, row1, col0, col1, w->dtype, w->rounded, cols);
    matrix again = { .rows = rows, .cols = cols, .dtype = w->dtype, .data = w->rounded };
    matrix_copy(&again, 0, rows, 0, cols, IMBREX_F32, out, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        float own;
        if (isfinite(out[i]))
            continue;
        int64_t row = row0 + i / cols, col = col0 + i % cols;
        matrix_copy(from, row, row + 1, col, col + 1, IMBREX_F32, &own, 1);
        w->error.lost |= isfinite(own);
        finite = false;
    }
    return finite;
}

static void widen_weights(work *w, const matrix *from, int64_t row0, int64_t row1, int64_t col0,
                          int64_t col1, float *out)
{
    if (!widen(w, from, row0, row1, col0, col1, out))
        w->error.odd_weights = 1;
}

/* A bias's elements from begin to end; zeros where there is none. */
static void widen_bias(work *w, const matrix *from, int64_t begin, int64_t end, float *out)
{
    memset(out, 0, (size_t)(end - begin) * sizeof *out);
    if (from->rows)
        widen_weights(w, from, 0, 1, begin, end, out);
}

/* In eight lanes, so that the compiler may use vectors: the order of a float64 sum is no matter. */
static double dot(const float *a, const float *b, int64_t n)
{
    double lane[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)a[i + l] * (double)b[i + l];
    }
    double sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    for (; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Of one element of y: adds the sum over n features and the square of its spread. */
static void add_element(const double *act, const float *down, int64_t n, double *y, double *spread)
{
    double sum[LANES] = { 0 }, squares[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            double part = act[i + l] * (double)down[i + l];
            sum[l] += part;
            squares[l] += part * part;
        }
    }
    for (; i < n; i++) {
        double part = act[i] * (double)down[i];
        sum[0] += part;
        squares[0] += part * part;
    }
    for (int l = 0; l < LANES; l++) {
        *y += sum[l];
        *spread += squares[l];
    }
}

static void drop(work *w)
{
    free(w->x);
    free(w->y);
    free(w->spread);
    free(w->gate);
    free(w->up);
    free(w->down);
    free(w->least);
    free(w->rounded);
}

static bool take(work *w, int64_t rows, int64_t hidden)
{
    size_t panel = ((size_t)hidden + 1) * FEATURES, own = (size_t)(rows * hidden) + 1;
    w->x = malloc(own * sizeof *w->x);
    w->y = calloc(own, sizeof *w->y);
    w->spread = calloc(own, sizeof *w->spread);
    w->gate = malloc(panel * sizeof *w->gate);
    w->up = malloc(panel * sizeof *w->up);
    w->down = malloc(panel * sizeof *w->down);
    w->least = calloc((size_t)hidden + 1, sizeof *w->least);
    w->rounded = malloc((panel > own ? panel : own) * sizeof(float));
    return w->x && w->y && w->spread && w->gate && w->up && w->down && w->least && w->rounded;
}

/* Below its smallest normal number a dtype rounds to steps that no longer shrink. */
static double smallest(imbrex_dtype dtype)
{
    return dtype == IMBREX_F16 ? 0x1p-14 : 0x1p-126;
}

/* Adds features f0 to f1 to y and to the spread. */
static void add_features(work *w, int64_t rows, int64_t f0, int64_t f1)
{
    const mlp_weights *weights = &w->reference->weights;
    double (*function)(double) = w->reference->activation;
    int64_t h = weights->hidden, count = f1 - f0;
    float gate_bias[FEATURES], up_bias[FEATURES];
    if (!weights->ungated)
        widen_weights(w, &weights->gate, f0, f1, 0, h, w->gate);
    widen_weights(w, &weights->up, f0, f1, 0, h, w->up);
    widen_weights(w, &weights->down, 0, h, f0, f1, w->down);
    widen_bias(w, &weights->gate_bias, f0, f1, gate_bias);
    widen_bias(w, &weights->up_bias, f0, f1, up_bias);
    for (int64_t i = 0; i < h * count; i++) {
        double cost = smallest(w->dtype) * (double)w->down[i];
        w->least[i / count] += cost * cost;
    }
    for (int64_t r = 0; r < rows; r++) {
        double act[FEATURES]; /* of this row */
        for (int64_t f = 0; f < count; f++) {
            double up = dot(w->x + r * h, w->up + f * h, h) + (double)up_bias[f];
            if (weights->ungated)
                act[f] = function(up);
            else
                act[f] =
                    function(dot(w->x + r * h, w->gate + f * h, h) + (double)gate_bias[f]) * up;
        }
        for (int64_t i = 0; i < h; i++)
            add_element(act, w->down + i * count, count, w->y + r * h + i, w->spread + r * h + i);
    }
}

/* Adds down_bias, a term of the sum like any other. */
static void add_bias(work *w, int64_t rows)
{
    int64_t h = w->reference->weights.hidden;
    float *bias = w->gate; /* no longer needed */
    widen_bias(w, &w->reference->weights.down_bias, 0, h, bias);
    for (int64_t i = 0; i < rows * h; i++) {
        w->y[i] += (double)bias[i % h];
        w->spread[i] += (double)bias[i % h] * (double)bias[i % h];
    }
}

/* Adds rows row0 and on of the residual, terms of the sum, too. */
static void add_residual(work *w, int64_t row0, int64_t rows)
{
    const matrix *residual = &w->reference->after.residual;
    int64_t h = w->reference->weights.hidden;
    for (int64_t r = 0; r < rows && residual->rows; r++) {
        float *row = w->gate; /* no longer needed */
        w->error.odd_rows += !widen(w, residual, row0 + r, row0 + r + 1, 0, h, row);
        for (int64_t i = 0; i < h; i++) {
            w->y[r * h + i] += (double)row[i];
            w->spread[r * h + i] += (double)row[i] * (double)row[i];
        }
    }
}

/* y, and what its spread and what underflow may cost come to. */
static void norm_rows(work *w, int64_t rows)
{
    const mlp_after *after = &w->reference->after;
    int64_t h = w->reference->weights.hidden;
    float *gamma = w->gate; /* no longer needed */
    if (!after->gamma.rows)
        return;
    widen_bias(w, &after->gamma, 0, h, gamma);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0, *y = w->y + r * h, *spread = w->spread + r * h;
        for (int64_t i = 0; i < h; i++)
            squares += y[i] * y[i];
        for (int64_t i = 0; i < h; i++) {
            double by = ((double)gamma[i] + after->offset) / sqrt(squares / (double)h + after->eps);
            y[i] *= by;
            spread[i] = (spread[i] + w->least[i]) * by * by;
        }
    }
    memset(w->least, 0, (size_t)h * sizeof *w->least);
}

static void compare(work *w, int64_t rows, const void *y)
{
    int64_t h = w->reference->weights.hidden;
    matrix have = { .rows = rows, .cols = h, .dtype = w->dtype, .data = y };
    matrix_copy(&have, 0, rows, 0, h, IMBREX_F32, w->x, h); /* x is no longer needed */
    for (int64_t i = 0; i < rows * h; i++) {
        if (!isfinite(w->y[i]) && !isfinite(w->x[i]))
            continue;
        double difference = fabs((double)w->x[i] - w->y[i]);
        double least = w->least[i % h] + smallest(w->dtype) * smallest(w->dtype);
        mlp_check_add(&w->error, &(mlp_error){ .largest = difference,
                                               .scale = fabs(w->y[i]),
                                               .worst = difference / sqrt(w->spread[i] + least),
                                               .squares = difference * difference,
                                               .norm = fmax(w->y[i] * w->y[i], least) });
    }
}

bool mlp_check(const mlp_reference *reference, const matrix *x, imbrex_dtype dtype, int64_t row0,
               int64_t rows, const void *y, progress *bar, mlp_error *out)
{
    int64_t h = reference->weights.hidden, ffn = reference->weights.ffn;
    work w = { .reference = reference, .dtype = dtype };
    if (!take(&w, rows, h)) {
        drop(&w);
        return false;
    }
    for (int64_t r = 0; r < rows; r++)
        w.error.odd_rows += !widen(&w, x, row0 + r, row0 + r + 1, 0, h, w.x + r * h);
    progress_begin(bar, "checking", (ffn + FEATURES - 1) / FEATURES);
    for (int64_t f = 0; f < ffn; f += FEATURES) {
        add_features(&w, rows, f, f + FEATURES < ffn ? f + FEATURES : ffn);
        progress_step(bar);
    }
    progress_end(bar);
    add_bias(&w, rows);
    add_residual(&w, row0, rows);
    norm_rows(&w, rows);
    compare(&w, rows, y);
    *out = w.error;
    drop(&w);
    return true;
}

/* NaN is larger than anything: it must end up as an error, not vanish. */
static double larger(double a, double b)
{
    return isnan(a) || a >= b ? a : b;
}

void mlp_check_add(mlp_error *sum, const mlp_error *more)
{
    sum->largest = larger(sum->largest, more->largest);
    sum->scale = larger(sum->scale, more->scale);
    sum->worst = larger(sum->worst, more->worst);
    sum->squares += more->squares;
    sum->norm += more->norm;
    sum->odd_rows += more->odd_rows;
    sum->odd_weights |= more->odd_weights;
    sum->lost |= more->lost;
}

double mlp_check_relative(const mlp_error *e)
{
    return e->norm > 0 ? sqrt(e->squares / e->norm) : sqrt(e->squares);
}

double mlp_check_allowed(imbrex_dtype dtype)
{
    return dtype == IMBREX_F32 ? 1e-5 : dtype == IMBREX_F16 ? 2e-3 : 1.5e-2;
}

/* Of 10^9 elements whose errors are normally distributed, the worst is six deviations off. */
double mlp_check_worst_allowed(imbrex_dtype dtype)
{
    return 6 * mlp_check_allowed(dtype);
}

bool mlp_check_passed(const mlp_error *e, imbrex_dtype dtype)
{
    return !e->lost && !e->apart && mlp_check_relative(e) <= mlp_check_allowed(dtype) &&
           e->worst <= mlp_check_worst_allowed(dtype);
}
