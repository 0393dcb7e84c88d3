/* reference.c - the reference: float64 throughout, no rounding between the steps, so that what it
 * measures is all that the operators round. */
#include "mlp.h"

#include <float.h>
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
    double *least;    /* [rows, hidden], squared: what underflow may cost an element */
    double *column;   /* [hidden], of it what some features cost */
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

/* The scale of an element: its own row's, or that of all, or of the 128 x 128 that it is in. */
static float scale_at(const matrix *scales, const matrix *of, int64_t row, int64_t col)
{
    float one;
    const bool rows = scales->cols == 1 && scales->rows == of->rows;
    int64_t r = rows ? row : row / 128 < scales->rows ? row / 128 : 0;
    int64_t c = rows ? 0 : col / 128 < scales->cols ? col / 128 : 0;
    matrix_copy(scales, r, r + 1, c, c + 1, IMBREX_F32, &one, 1);
    return one;
}

/* A piece of a weight as float32: of 8 bits times its scales. */
static void widen_scaled(work *w, const matrix *from, const matrix *scales, int64_t row0,
                         int64_t row1, int64_t col0, int64_t col1, float *out)
{
    if (from->dtype != IMBREX_E4M3 || !from->data) {
        widen_weights(w, from, row0, row1, col0, col1, out);
        return;
    }
    matrix_copy(from, row0, row1, col0, col1, IMBREX_F32, out, col1 - col0);
    for (int64_t row = row0; row < row1; row++) {
        for (int64_t col = col0; col < col1; col++, out++) {
            *out *= scale_at(scales, from, row, col);
            w->error.odd_weights |= !isfinite(*out);
        }
    }
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
    free(w->column);
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
    w->least = calloc(own, sizeof *w->least);
    w->column = malloc(((size_t)hidden + 1) * sizeof *w->column);
    w->rounded = malloc((panel > own ? panel : own) * sizeof(float));
    return w->x && w->y && w->spread && w->gate && w->up && w->down && w->least && w->column &&
           w->rounded;
}

/* Below its smallest normal number a dtype rounds to steps that no longer shrink. */
static double smallest(imbrex_dtype dtype)
{
    return dtype == IMBREX_F16 ? 0x1p-14 : 0x1p-126;
}

/* Weights, and which of the rows have them: all, or those listed, each with a factor. */
typedef struct share_of_y {
    const mlp_weights *weights;
    int64_t count;
    const int64_t *rows; /* NULL: all */
    const double *factors;
} share_of_y;

/* Adds features f0 to f1 to y and to the spread. */
static void add_features(work *w, const share_of_y *of, int64_t f0, int64_t f1)
{
    const mlp_weights *weights = of->weights;
    double (*function)(double) = w->reference->activation;
    int64_t h = weights->hidden, count = f1 - f0;
    float gate_bias[FEATURES], up_bias[FEATURES];
    if (!weights->ungated)
        widen_scaled(w, &weights->gate, &weights->fp8.gate, f0, f1, 0, h, w->gate);
    widen_scaled(w, &weights->up, &weights->fp8.up, f0, f1, 0, h, w->up);
    widen_scaled(w, &weights->down, &weights->fp8.down, 0, h, f0, f1, w->down);
    widen_bias(w, &weights->gate_bias, f0, f1, gate_bias);
    widen_bias(w, &weights->up_bias, f0, f1, up_bias);
    memset(w->column, 0, (size_t)h * sizeof *w->column);
    for (int64_t i = 0; i < h * count; i++) {
        double cost = smallest(w->dtype) * (double)w->down[i];
        w->column[i / count] += cost * cost;
    }
    for (int64_t k = 0; k < of->count; k++) {
        double act[FEATURES], factor = of->rows ? of->factors[k] : 1; /* of this row */
        int64_t r = of->rows ? of->rows[k] : k;
        for (int64_t f = 0; f < count; f++) {
            double up = dot(w->x + r * h, w->up + f * h, h) + (double)up_bias[f];
            if (weights->ungated)
                act[f] = function(up);
            else
                act[f] =
                    function(dot(w->x + r * h, w->gate + f * h, h) + (double)gate_bias[f]) * up;
            act[f] *= factor;
        }
        for (int64_t i = 0; i < h; i++)
            add_element(act, w->down + i * count, count, w->y + r * h + i, w->spread + r * h + i);
        for (int64_t i = 0; i < h; i++)
            w->least[r * h + i] += w->column[i];
    }
}

static void add_share(work *w, const share_of_y *of)
{
    const int64_t ffn = of->weights->ffn;
    for (int64_t f = 0; f < ffn && of->count > 0; f += FEATURES)
        add_features(w, of, f, f + FEATURES < ffn ? f + FEATURES : ffn);
}

/* ---- Experts --------------------------------------------------------------------------------- */

/* Of a layer with experts, while it is checked. */
typedef struct experts_work {
    float *router, *correction; /* [count, hidden], [count] */
    double *logits, *unsure;    /* [count] */
    double *right, *factors;    /* [rows, top_k], [rows] */
    int64_t *rows;              /* [rows] */
} experts_work;

/* Routers are in float32, whatever the products are in. */
static void widen_router(work *w, const matrix *from, float *out)
{
    matrix_copy(from, 0, from->rows, 0, from->cols, IMBREX_F32, out, from->cols);
    for (int64_t i = 0; i < from->rows * from->cols; i++)
        w->error.odd_weights |= !isfinite(out[i]);
}

/* What float32 may make of a product is off by: its terms' sizes added up. */
static double size_of(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += fabs((double)a[i] * (double)b[i]);
    return 2e-6 * sum;
}

/* A logit as float32 has it, and by what it may be off there: one that is infinite, by nothing. */
static void find_logit(experts_work *x, const float *row, const float *router, int64_t n, int e)
{
    double logit = dot(row, router, n);
    if (fabs(logit) > FLT_MAX)
        logit = copysign((double)INFINITY, logit);
    x->logits[e] = logit;
    x->unsure[e] = isinf(logit) ? 0 : size_of(row, router, n);
}

/* What the tokens chose, and the weights that are right for that. */
static void judge_rows(work *w, experts_work *x, int64_t rows, const mlp_choice *choice)
{
    const mlp_experts *experts = &w->reference->experts;
    const int64_t h = w->reference->weights.hidden, top_k = experts->gate.top_k;
    for (int64_t r = 0; r < rows; r++) {
        double most = 0;
        for (int e = 0; e < experts->count; e++) {
            find_logit(x, w->x + r * h, x->router + e * h, h, e);
            most = fmax(most, x->unsure[e]);
        }
        mlp_verdict verdict = mlp_judge(&experts->gate, x->logits, x->unsure,
                                        experts->correction.rows ? x->correction : NULL,
                                        choice->ids + r * top_k, x->right + r * top_k);
        w->error.near += verdict == MLP_CHOSE_NEAR;
        w->error.strayed += verdict == MLP_STRAYED;
        for (int64_t i = r * top_k; i < (r + 1) * top_k; i++) {
            double off = fabs((double)choice->weights[i] - x->right[i]);
            double allowed = (1e-5 + 4 * most) * x->right[i] + smallest(IMBREX_F32);
            if (verdict != MLP_STRAYED && (isfinite(x->right[i]) || isfinite(choice->weights[i])))
                mlp_check_add(&w->error, &(mlp_error){ .weight = off / allowed });
        }
    }
}

static void add_routed(work *w, experts_work *x, int64_t rows, const mlp_choice *choice,
                       progress *bar)
{
    const mlp_experts *experts = &w->reference->experts;
    const int64_t top_k = experts->gate.top_k;
    for (int e = 0; e < experts->count; e++) {
        share_of_y of = { &experts->list[e], 0, x->rows, x->factors };
        for (int64_t i = 0; i < rows * top_k; i++) {
            if (choice->ids[i] != e)
                continue;
            x->rows[of.count] = i / top_k;
            x->factors[of.count++] = x->right[i];
        }
        add_share(w, &of);
        progress_step(bar);
    }
}

static void add_shared(work *w, experts_work *x, int64_t rows)
{
    const mlp_experts *experts = &w->reference->experts;
    const int64_t h = w->reference->weights.hidden;
    const share_of_y of = { &experts->shared, rows, x->rows, x->factors };
    if (!experts->shared.ffn)
        return;
    if (experts->shared_gate.rows)
        widen_router(w, &experts->shared_gate, x->router); /* no longer needed */
    for (int64_t r = 0; r < rows; r++) {
        double logit = experts->shared_gate.rows ? dot(w->x + r * h, x->router, h) : INFINITY;
        x->rows[r] = r;
        x->factors[r] = 1 / (1 + exp(-logit));
    }
    add_share(w, &of);
}

static bool add_experts(work *w, int64_t rows, const mlp_choice *choice, progress *bar)
{
    const mlp_experts *experts = &w->reference->experts;
    const size_t count = (size_t)experts->count, pairs = (size_t)(rows * experts->gate.top_k) + 1;
    experts_work x = { .router = malloc(count * (size_t)experts->router.cols * sizeof(float)),
                       .correction = malloc(count * sizeof(float)),
                       .logits = malloc(count * sizeof(double)),
                       .unsure = malloc(count * sizeof(double)),
                       .right = malloc(pairs * sizeof(double)),
                       .factors = malloc(pairs * sizeof(double)),
                       .rows = malloc(pairs * sizeof(int64_t)) };
    bool good = x.router && x.correction && x.logits && x.unsure && x.right && x.factors && x.rows;
    progress_begin(bar, "checking", experts->count);
    if (good) {
        widen_router(w, &experts->router, x.router);
        if (experts->correction.rows)
            widen_router(w, &experts->correction, x.correction);
        judge_rows(w, &x, rows, choice);
        add_routed(w, &x, rows, choice, bar);
        add_shared(w, &x, rows);
    }
    progress_end(bar);
    free(x.router);
    free(x.correction);
    free(x.logits);
    free(x.unsure);
    free(x.right);
    free(x.factors);
    free(x.rows);
    return good;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static void add_dense(work *w, int64_t rows, progress *bar)
{
    const share_of_y of = { .weights = &w->reference->weights, .count = rows };
    const int64_t ffn = of.weights->ffn;
    progress_begin(bar, "checking", (ffn + FEATURES - 1) / FEATURES);
    for (int64_t f = 0; f < ffn; f += FEATURES) {
        add_features(w, &of, f, f + FEATURES < ffn ? f + FEATURES : ffn);
        progress_step(bar);
    }
    progress_end(bar);
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
            spread[i] = (spread[i] + w->least[r * h + i]) * by * by;
        }
    }
    memset(w->least, 0, (size_t)(rows * h) * sizeof *w->least);
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
        double least = w->least[i] + smallest(w->dtype) * smallest(w->dtype);
        mlp_check_add(&w->error, &(mlp_error){ .largest = difference,
                                               .scale = fabs(w->y[i]),
                                               .worst = difference / sqrt(w->spread[i] + least),
                                               .squares = difference * difference,
                                               .norm = fmax(w->y[i] * w->y[i], least) });
    }
}

bool mlp_check(const mlp_reference *reference, const matrix *x, imbrex_dtype dtype, int64_t row0,
               int64_t rows, const void *y, const mlp_choice *choice, progress *bar, mlp_error *out)
{
    int64_t h = reference->weights.hidden;
    work w = { .reference = reference, .dtype = dtype };
    if (!take(&w, rows, h)) {
        drop(&w);
        return false;
    }
    for (int64_t r = 0; r < rows; r++)
        w.error.odd_rows += !widen(&w, x, row0 + r, row0 + r + 1, 0, h, w.x + r * h);
    if (!reference->experts.count)
        add_dense(&w, rows, bar);
    else if (!add_experts(&w, rows, choice, bar)) {
        drop(&w);
        return false;
    }
    add_bias(&w, rows);
    add_residual(&w, row0, rows);
    norm_rows(&w, rows);
    compare(&w, rows, y);
    *out = w.error;
    drop(&w);
    return true;
}

mlp_choice mlp_choice_from(const mlp_choice *all, int top_k, int64_t token)
{
    return (mlp_choice){ all->ids ? all->ids + token * top_k : NULL,
                         all->weights ? all->weights + token * top_k : NULL };
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
    sum->near += more->near;
    sum->strayed += more->strayed;
    sum->weight = larger(sum->weight, more->weight);
    sum->odd_weights |= more->odd_weights;
    sum->lost |= more->lost;
}

double mlp_check_relative(const mlp_error *e)
{
    return e->norm > 0 ? sqrt(e->squares / e->norm) : sqrt(e->squares);
}

/* Of E4M3: x and the activations are rounded to three bits behind the point, by 2.6 % of their size
 * on average; y's error is then some 5 %. */
double mlp_check_allowed(imbrex_dtype dtype)
{
    if (dtype == IMBREX_E4M3)
        return 8e-2;
    return dtype == IMBREX_F32 ? 1e-5 : dtype == IMBREX_F16 ? 2e-3 : 1.5e-2;
}

/* Of 10^9 elements whose errors are normally distributed, the worst is six deviations off. */
double mlp_check_worst_allowed(imbrex_dtype dtype)
{
    return 6 * mlp_check_allowed(dtype);
}

bool mlp_check_passed(const mlp_error *e, imbrex_dtype dtype)
{
    return !e->lost && !e->apart && e->strayed == 0 && e->weight <= 1 &&
           mlp_check_relative(e) <= mlp_check_allowed(dtype) &&
           e->worst <= mlp_check_worst_allowed(dtype);
}
