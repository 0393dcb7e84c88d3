/* mlp_check.c - the reference: float64 throughout, no rounding between the steps, so that what it
 * measures is all that the operators round. */
#include "mlp_check.h"

#include <math.h>
#include <stdlib.h>

enum { LANES = 8, FEATURES = 64 }; /* FEATURES: rows of a weight that are widened at once */

/* Row of a weight or of x as float32, rounded to dtype first, as the operators get it. */
static void widen(const matrix *from, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
                  imbrex_dtype dtype, void *rounded, float *out)
{
    int64_t cols = col1 - col0;
    matrix_copy(from, row0, row1, col0, col1, dtype, rounded, cols);
    matrix again = { .rows = row1 - row0, .cols = cols, .dtype = dtype, .data = rounded };
    matrix_copy(&again, 0, row1 - row0, 0, cols, IMBREX_F32, out, cols);
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
static void add_element(const double *act, const double *size, const float *down, int64_t n,
                        double *y, double *spread)
{
    double sum[LANES] = { 0 }, squares[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            double wide = (double)down[i + l], part = size[i + l] * wide;
            sum[l] += act[i + l] * wide;
            squares[l] += part * part;
        }
    }
    for (; i < n; i++) {
        double wide = (double)down[i], part = size[i] * wide;
        sum[0] += act[i] * wide;
        squares[0] += part * part;
    }
    for (int l = 0; l < LANES; l++) {
        *y += sum[l];
        *spread += squares[l];
    }
}

typedef struct work {
    float *x;         /* [rows, hidden] */
    double *y;        /* [rows, hidden] */
    double *spread;   /* [rows, hidden], squared */
    float *gate, *up; /* [FEATURES, hidden] */
    float *down;      /* [hidden, FEATURES] */
    void *rounded;    /* the largest of the above in dtype */
} work;

static void drop(work *w)
{
    free(w->x);
    free(w->y);
    free(w->spread);
    free(w->gate);
    free(w->up);
    free(w->down);
    free(w->rounded);
}

static bool take(work *w, int64_t rows, int64_t hidden)
{
    size_t panel = (size_t)hidden * FEATURES, own = (size_t)(rows * hidden) + 1;
    w->x = malloc(own * sizeof *w->x);
    w->y = calloc(own, sizeof *w->y);
    w->spread = calloc(own, sizeof *w->spread);
    w->gate = malloc(panel * sizeof *w->gate);
    w->up = malloc(panel * sizeof *w->up);
    w->down = malloc(panel * sizeof *w->down);
    w->rounded = malloc((panel > own ? panel : own) * sizeof(float));
    return w->x && w->y && w->spread && w->gate && w->up && w->down && w->rounded;
}

/* Below its smallest normal number a dtype rounds to steps that no longer shrink. */
static double smallest(imbrex_dtype dtype)
{
    return dtype == IMBREX_F16 ? 0x1p-14 : 0x1p-126;
}

/* Adds features f0 to f1 to y and to the spread. */
static void add_features(work *w, const mlp_weights *weights, imbrex_dtype dtype, int64_t rows,
                         int64_t f0, int64_t f1)
{
    int64_t h = weights->hidden, count = f1 - f0;
    widen(&weights->gate, f0, f1, 0, h, dtype, w->rounded, w->gate);
    widen(&weights->up, f0, f1, 0, h, dtype, w->rounded, w->up);
    widen(&weights->down, 0, h, f0, f1, dtype, w->rounded, w->down);
    for (int64_t r = 0; r < rows; r++) {
        double act[FEATURES], size[FEATURES]; /* of this row */
        for (int64_t f = 0; f < count; f++) {
            double g = dot(w->x + r * h, w->gate + f * h, h);
            double u = dot(w->x + r * h, w->up + f * h, h);
            act[f] = g / (1 + exp(-g)) * u;
            size[f] = fmax(fabs(act[f]), smallest(dtype));
        }
        for (int64_t i = 0; i < h; i++) {
            add_element(act, size, w->down + i * count, count, w->y + r * h + i,
                        w->spread + r * h + i);
        }
    }
}

bool mlp_check(const mlp_weights *weights, const matrix *x, imbrex_dtype dtype, int64_t row0,
               int64_t rows, const void *y, progress *bar, mlp_error *out)
{
    int64_t h = weights->hidden;
    work w = { 0 };
    if (!take(&w, rows, h)) {
        drop(&w);
        return false;
    }
    widen(x, row0, row0 + rows, 0, h, dtype, w.rounded, w.x);
    progress_begin(bar, "checking", (weights->ffn + FEATURES - 1) / FEATURES);
    for (int64_t f = 0; f < weights->ffn; f += FEATURES) {
        int64_t end = f + FEATURES < weights->ffn ? f + FEATURES : weights->ffn;
        add_features(&w, weights, dtype, rows, f, end);
        progress_step(bar);
    }
    progress_end(bar);

    matrix have = { .rows = rows, .cols = h, .dtype = dtype, .data = y };
    matrix_copy(&have, 0, rows, 0, h, IMBREX_F32, w.x, h); /* x is no longer needed */
    *out = (mlp_error){ 0 };
    for (int64_t i = 0; i < rows * h; i++) {
        double difference = fabs((double)w.x[i] - w.y[i]);
        double spread = fmax(sqrt(w.spread[i]), smallest(dtype));
        mlp_check_add(out, &(mlp_error){ .largest = difference,
                                         .scale = fabs(w.y[i]),
                                         .worst = difference / spread,
                                         .squares = difference * difference,
                                         .norm = w.y[i] * w.y[i] });
    }
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
    return mlp_check_relative(e) <= mlp_check_allowed(dtype) &&
           e->worst <= mlp_check_worst_allowed(dtype);
}
