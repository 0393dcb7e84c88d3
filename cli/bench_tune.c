/* bench_tune.c - follows imbrex_tune with a bar and keeps what it says of each candidate. */
#include "bench_tune.h"

#include <string.h>

#include "matrix.h"

enum { ROWS_MOST = 16, STEPS = 1000 };

typedef struct row {
    char algorithm[32], dropped[256];
    int chunk_rows;
    double us;
} row;

typedef struct table {
    progress *bar;
    row rows[ROWS_MOST];
    int count, best;
} table;

static row *find(table *t, const imbrex_tune_step *step)
{
    int i = 0;
    while (i < t->count && (strcmp(t->rows[i].algorithm, step->algorithm) != 0 ||
                            t->rows[i].chunk_rows != step->chunk_rows))
        i++;
    if (i == ROWS_MOST)
        return NULL;
    if (i == t->count) {
        snprintf(t->rows[i].algorithm, sizeof t->rows[i].algorithm, "%s", step->algorithm);
        t->rows[i].chunk_rows = step->chunk_rows;
        t->count++;
    }
    return &t->rows[i];
}

static void note(void *ctx, const imbrex_tune_step *step)
{
    table *t = ctx;
    row *r = find(t, step);
    while (t->bar && t->bar->done < (int64_t)(step->done * STEPS))
        progress_step(t->bar);
    if (!r)
        return;
    r->us = step->us;
    snprintf(r->dropped, sizeof r->dropped, "%s", step->dropped ? step->dropped : "");
    if (step->done >= 1)
        t->best = (int)(r - t->rows);
}

static void print(const table *t, const bench_shape *s)
{
    printf("tuned %s m=%lld n=%lld", s->op->name, (long long)s->m, (long long)s->n);
    if (s->op->product)
        printf(" k=%lld", (long long)s->k);
    printf(" %s; kept for later plans, `imbrex info` says where\n\n%-12s %12s %12s\n",
           matrix_dtype_names[s->dtype], "", "chunk rows", "us");
    for (int i = 0; i < t->count; i++) {
        const row *r = &t->rows[i];
        char chunk[16] = "chosen";
        if (r->chunk_rows)
            snprintf(chunk, sizeof chunk, "%d", r->chunk_rows);
        printf("%-12s %12s ", r->algorithm, chunk);
        if (*r->dropped)
            printf("%12s  %s\n", "-", r->dropped);
        else
            printf("%12.1f%s\n", r->us, i == t->best ? "  kept" : "");
    }
    putchar('\n');
}

imbrex_status bench_tune(imbrex_group *group, const bench_shape *s, progress *bar, bool shown)
{
    const imbrex_gemm_desc desc = bench_op_desc(s, NULL);
    table t = { .bar = bar };
    progress_begin(bar, "tune", STEPS);
    imbrex_status status = imbrex_tune(group, s->op->name, &desc, note, &t);
    progress_end(bar);
    if (status == IMBREX_OK && bar && shown)
        print(&t, s);
    return status;
}
