/* reference.c - the reference: reads every tensor of the layer by its name, and config.json by
 * itself, and asks nobody what the run made of them; float64 throughout, no rounding between the
 * steps, so that what it measures is all that the operators round. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"

enum { Q, K, V, O, PROJECTIONS };

/* ---- The layer ------------------------------------------------------------------------------- */

static bool read_tensor(checkpoint *file, const char *name, const char *rest, decode_reference *to,
                        st_error *error)
{
    static const char *const projections[] = { "q_proj", "k_proj", "v_proj", "o_proj" };
    const char *kind = strchr(rest, '.');
    for (int i = 0; kind && i < PROJECTIONS; i++) {
        if (strncmp(rest, projections[i], (size_t)(kind - rest)) != 0)
            continue;
        return strcmp(kind, ".bias") == 0 ? checkpoint_vector(file, name, &to->biases[i], error)
                                          : checkpoint_matrix(file, name, &to->weights[i], error);
    }
    if (strcmp(rest, "q_norm.weight") == 0)
        return checkpoint_vector(file, name, &to->norms[Q], error);
    if (strcmp(rest, "k_norm.weight") == 0)
        return checkpoint_vector(file, name, &to->norms[K], error);
    return strcmp(rest, "rotary_emb.inv_freq") == 0 ||
           st_fail(error, "--check does not know the tensor %.80s", name);
}

/* The language model's own, or else that of the whole. */
static double number(const model_config *config, const char *key, double otherwise)
{
    otherwise = model_config_number(config, "", key, otherwise);
    return model_config_number(config, model_config_own(config), key, otherwise);
}

static const char *rope_type(const model_config *config, const char *in)
{
    const char *type = model_config_text(config, in, "rope_type");
    return type ? type : model_config_text(config, in, "type");
}

/* Of an object of the config, where there is one: later models have all of it in one place. */
static void read_rope(const model_config *config, const char *key, decode_reference *to)
{
    const char *own = model_config_own(config);
    char in[80];
    snprintf(in, sizeof in, "%s%s%s", own, *own ? "." : "", key);
    if (!rope_type(config, in))
        snprintf(in, sizeof in, "%s", key);
    const char *type = rope_type(config, in);
    to->theta = model_config_number(config, in, "rope_theta", to->theta);
    if (!type || strcmp(type, "default") == 0)
        return;
    to->factor = model_config_number(config, in, "factor", 1);
    to->low = model_config_number(config, in, "low_freq_factor", 0);
    to->high = model_config_number(config, in, "high_freq_factor", 0);
    to->original = model_config_number(config, in, "original_max_position_embeddings", 0);
}

static bool read_config(decode_reference *to, st_error *error)
{
    model_config *config;
    if (!model_config_open(to->file, &config, error))
        return false;
    if (!config)
        return st_fail(error, "--check finds no config.json");
    to->heads = (int)number(config, "num_attention_heads", 0);
    to->kv_heads = (int)number(config, "num_key_value_heads", to->heads);
    to->head_dim = (int)number(config, "head_dim", (double)to->hidden / (double)to->heads);
    to->eps = number(config, "rms_norm_eps", 1e-6);
    to->theta = number(config, "rope_theta", 10000);
    read_rope(config, "rope_scaling", to);
    read_rope(config, "rope_parameters", to);
    model_config_close(config);
    return true;
}

bool decode_reference_open(const decode_source *source, const decode_model *model,
                           decode_reference *out, st_error *error)
{
    const decode_weights *w = &model->weights;
    *out = (decode_reference){
        .hidden = w->hidden,
        .heads = w->heads,
        .kv_heads = w->kv_heads,
        .head_dim = w->head_dim,
        .weights = { w->q, w->k, w->v, w->o },
        .theta = 10000,
        .factor = 1,
        .tokens = model,
    };
    if (source->shape)
        return true;
    memset(out->weights, 0, sizeof out->weights);
    if (!checkpoint_open(source->weights, &out->file, error))
        return false;
    size_t length = strlen(model->prefix);
    for (size_t i = 0; i < checkpoint_count(out->file); i++) {
        const char *name = checkpoint_name(out->file, i);
        if (strncmp(name, model->prefix, length) == 0 &&
            !read_tensor(out->file, name, name + length, out, error))
            return false;
    }
    if (!read_config(out, error))
        return false;
    return (out->heads == w->heads && out->kv_heads == w->kv_heads &&
            out->head_dim == w->head_dim) ||
           st_fail(error,
                   "--check reads %d heads of %d, %d of the cache, from config.json, and the run "
                   "%d of %d, %d of the cache: give each number once there",
                   out->heads, out->head_dim, out->kv_heads, w->heads, w->head_dim, w->kv_heads);
}

void decode_reference_close(decode_reference *reference)
{
    checkpoint_close(reference->file);
}

/* ---- The step -------------------------------------------------------------------------------- */

/* What a row needs. */
typedef struct work {
    const decode_reference *reference;
    imbrex_dtype dtype;
    float *line, *rounded; /* [most]: a row of a weight or of the cache */
    double *x, *q, *k, *v; /* [hidden], [heads * dim], [kv_heads * dim] */
    double *o, *spread;    /* [heads * dim]; spread: squared */
    double *weights;       /* [context + 1] */
    double *wide;          /* [context + 1]: squares of what scores are summed from */
    decode_error error;
} work;

/* A row as the operators get it: rounded to dtype. */
static const float *row_of(work *w, const matrix *from, int64_t row, int64_t cols)
{
    const matrix again = { .rows = 1, .cols = cols, .dtype = w->dtype, .data = w->rounded };
    matrix_copy(from, row, row + 1, 0, cols, w->dtype, w->rounded, cols);
    matrix_copy(&again, 0, 1, 0, cols, IMBREX_F32, w->line, cols);
    return w->line;
}

static void project(work *w, int which, double *out)
{
    const decode_reference *r = w->reference;
    const matrix *weight = &r->weights[which], *bias = &r->biases[which];
    for (int64_t i = 0; i < weight->rows; i++) {
        const float *line = row_of(w, weight, i, r->hidden);
        out[i] = 0;
        for (int64_t j = 0; j < r->hidden; j++)
            out[i] += w->x[j] * (double)line[j];
    }
    if (bias->rows) {
        const float *line = row_of(w, bias, 0, weight->rows);
        for (int64_t i = 0; i < weight->rows; i++)
            out[i] += (double)line[i];
    }
}

/* RMSNorm of each head, by the weights as the file has them. */
static void norm(const decode_reference *r, int which, int heads, double *x)
{
    float gamma[256];
    int dim = r->head_dim;
    if (!r->norms[which].rows)
        return;
    matrix_copy(&r->norms[which], 0, 1, 0, dim, IMBREX_F32, gamma, dim);
    for (int h = 0; h < heads; h++, x += dim) {
        double squares = 0;
        for (int i = 0; i < dim; i++)
            squares += x[i] * x[i];
        double by = 1 / sqrt(squares / dim + r->eps);
        for (int i = 0; i < dim; i++)
            x[i] *= by * (double)gamma[i];
    }
}

/* The length of a wave, in positions, as llama3 stretches it: by the factor from original / low on,
 * not at all up to original / high. */
static double wave_of(const decode_reference *r, int pair)
{
    const double turn = 2 * acos(-1);
    double wave = turn * pow(r->theta, 2.0 * pair / r->head_dim);
    if (r->low <= 0 || wave > r->original / r->low)
        return wave * r->factor;
    if (wave < r->original / r->high)
        return wave;
    double kept = (r->original / wave - r->low) / (r->high - r->low);
    return 1 / (kept / wave + (1 - kept) / (wave * r->factor));
}

/* The first half of a head and the second are real and imaginary parts. */
static void turn(const decode_reference *r, int heads, int64_t position, double *x)
{
    int half = r->head_dim / 2;
    for (int pair = 0; pair < half; pair++) {
        double angle = 2 * acos(-1) * (double)position / wave_of(r, pair);
        for (int h = 0; h < heads; h++) {
            double *at = x + h * r->head_dim + pair, real = at[0], imaginary = at[half];
            at[0] = real * cos(angle) - imaginary * sin(angle);
            at[half] = real * sin(angle) + imaginary * cos(angle);
        }
    }
}

/* Token t of the sequence, t == length being the new one: its k or v of a head. */
static const double *cached(work *w, const matrix *cache, const double *fresh, int64_t s, int head,
                            int64_t t, double *room)
{
    const decode_model *m = w->reference->tokens;
    int dim = w->reference->head_dim;
    if (t == m->lengths[s])
        return fresh + head * dim;
    const float *line = row_of(w, cache, (s * w->reference->kv_heads + head) * m->context + t, dim);
    for (int i = 0; i < dim; i++)
        room[i] = (double)line[i];
    return room;
}

/* o of one head, and its spread: of a sum of weight * v, rounded; and a score that rounded q and k
 * put off moves o by weight * (v - o), so that a large score without a weight gives no room. */
static void attend(work *w, int64_t s, int head)
{
    const decode_reference *r = w->reference;
    int dim = r->head_dim, from = head / (r->heads / r->kv_heads);
    int64_t tokens = r->tokens->lengths[s] + 1;
    double room[256], most = -INFINITY, sum = 0;
    double *o = w->o + head * dim, *spread = w->spread + head * dim;
    const double *q = w->q + head * dim;
    for (int64_t t = 0; t < tokens; t++) {
        const double *k = cached(w, &r->tokens->k, w->k, s, from, t, room);
        double score = 0, squares = 0;
        for (int i = 0; i < dim; i++) {
            score += q[i] * k[i];
            squares += q[i] * k[i] * q[i] * k[i];
        }
        w->weights[t] = score / sqrt(dim);
        most = fmax(most, w->weights[t]);
        w->wide[t] = squares / dim;
    }
    memset(o, 0, (size_t)dim * sizeof *o);
    memset(spread, 0, (size_t)dim * sizeof *spread);
    for (int64_t t = 0; t < tokens; t++)
        sum += w->weights[t] = exp(w->weights[t] - most);
    for (int64_t t = 0; t < tokens; t++) {
        const double *v = cached(w, &r->tokens->v, w->v, s, from, t, room);
        for (int i = 0; i < dim; i++) {
            double part = w->weights[t] / sum * v[i];
            o[i] += part;
            spread[i] += part * part;
        }
    }
    for (int i = 0; i < dim; i++)
        spread[i] += o[i] * o[i];
    for (int64_t t = 0; t < tokens; t++) {
        const double *v = cached(w, &r->tokens->v, w->v, s, from, t, room);
        double weight = w->weights[t] / sum;
        for (int i = 0; i < dim; i++)
            spread[i] += weight * weight * w->wide[t] * (v[i] - o[i]) * (v[i] - o[i]);
    }
}

static void compare_row(work *w, int64_t row, const void *y)
{
    const decode_reference *r = w->reference;
    const matrix have = { .rows = row + 1, .cols = r->hidden, .dtype = w->dtype, .data = y };
    int64_t terms = (int64_t)r->heads * r->head_dim;
    for (int64_t i = 0; i < r->hidden; i++) {
        const float *line = row_of(w, &r->weights[O], i, terms);
        double want = 0, spread = 0;
        float own, bias = 0;
        for (int64_t j = 0; j < terms; j++) {
            want += w->o[j] * (double)line[j];
            spread += w->spread[j] * (double)line[j] * (double)line[j];
        }
        if (r->biases[O].rows)
            matrix_copy(&r->biases[O], 0, 1, i, i + 1, IMBREX_F32, &bias, 1);
        matrix_copy(&have, row, row + 1, i, i + 1, IMBREX_F32, &own, 1);
        want += (double)bias;
        spread += (double)bias * (double)bias + 0x1p-100;
        double off = fabs((double)own - want);
        decode_check_add(&w->error, &(decode_error){ .largest = off,
                                                     .scale = fabs(want),
                                                     .worst = off / sqrt(spread),
                                                     .squares = off * off,
                                                     .spread = spread,
                                                     .norm = want * want });
    }
}

static void check_row(work *w, int64_t row, const void *y)
{
    const decode_reference *r = w->reference;
    const float *x = row_of(w, &r->tokens->x, row, r->hidden);
    for (int64_t i = 0; i < r->hidden; i++)
        w->x[i] = (double)x[i];
    project(w, Q, w->q);
    project(w, K, w->k);
    project(w, V, w->v);
    norm(r, Q, r->heads, w->q);
    norm(r, K, r->kv_heads, w->k);
    turn(r, r->heads, r->tokens->lengths[row], w->q);
    turn(r, r->kv_heads, r->tokens->lengths[row], w->k);
    for (int head = 0; head < r->heads; head++)
        attend(w, row, head);
    compare_row(w, row, y);
}

static void drop(work *w)
{
    free(w->line);
    free(w->rounded);
    free(w->x);
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->o);
    free(w->spread);
    free(w->weights);
    free(w->wide);
}

static bool take(work *w)
{
    const decode_reference *r = w->reference;
    size_t q = (size_t)(r->heads * r->head_dim), kv = (size_t)(r->kv_heads * r->head_dim);
    size_t most = (size_t)r->hidden > q ? (size_t)r->hidden : q;
    w->line = calloc(most, sizeof *w->line);
    w->rounded = calloc(most, sizeof *w->rounded);
    w->x = calloc((size_t)r->hidden, sizeof *w->x);
    w->q = calloc(q, sizeof *w->q);
    w->k = calloc(kv, sizeof *w->k);
    w->v = calloc(kv, sizeof *w->v);
    w->o = calloc(q, sizeof *w->o);
    w->spread = calloc(q, sizeof *w->spread);
    w->weights = calloc((size_t)r->tokens->context + 1, sizeof *w->weights);
    w->wide = calloc((size_t)r->tokens->context + 1, sizeof *w->wide);
    return w->line && w->rounded && w->x && w->q && w->k && w->v && w->o && w->spread &&
           w->weights && w->wide;
}

bool decode_check(const decode_reference *reference, imbrex_dtype dtype, int64_t row0, int64_t row1,
                  const void *y, progress *bar, decode_error *out)
{
    work w = { .reference = reference, .dtype = dtype };
    bool ok = take(&w);
    progress_begin(bar, "checking", row1 - row0);
    for (int64_t row = row0; row < row1 && ok; row++) {
        check_row(&w, row, y);
        progress_step(bar);
    }
    progress_end(bar);
    *out = w.error;
    drop(&w);
    return ok;
}

/* ---- The error ------------------------------------------------------------------------------- */

/* NaN is larger than anything: it must end up as an error, not vanish. */
static double larger(double a, double b)
{
    return isnan(a) || a >= b ? a : b;
}

void decode_check_add(decode_error *sum, const decode_error *more)
{
    sum->largest = larger(sum->largest, more->largest);
    sum->scale = larger(sum->scale, more->scale);
    sum->worst = larger(sum->worst, more->worst);
    sum->squares += more->squares;
    sum->spread += more->spread;
    sum->norm += more->norm;
}

double decode_check_relative(const decode_error *e)
{
    return e->spread > 0 ? sqrt(e->squares / e->spread) : sqrt(e->squares);
}

/* Roundings of q, k, the weights of attention, what ranks send each other, o and y. */
double decode_check_allowed(imbrex_dtype dtype)
{
    return dtype == IMBREX_F32 ? 1e-5 : dtype == IMBREX_F16 ? 2e-3 : 1.5e-2;
}

double decode_check_worst_allowed(imbrex_dtype dtype)
{
    return 6 * decode_check_allowed(dtype);
}

bool decode_check_blind(const decode_error *e, imbrex_dtype dtype)
{
    const double allowed = decode_check_allowed(dtype);
    return e->norm > 0 && e->norm <= allowed * allowed * e->spread;
}

bool decode_check_passed(const decode_error *e, imbrex_dtype dtype)
{
    return !e->apart && !decode_check_blind(e, dtype) &&
           decode_check_relative(e) <= decode_check_allowed(dtype) &&
           e->worst <= decode_check_worst_allowed(dtype);
}
