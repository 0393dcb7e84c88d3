/* bench_report.h - what `imbrex bench` found out, and the forms in which it says so. */
#ifndef CLI_BENCH_REPORT_H
#define CLI_BENCH_REPORT_H

#include "bench_rank.h"

/* A candidate's figures; NAN where there is none. */
typedef struct bench_figure {
    const char *name;
    char plan[400]; /* imbrex_plan_describe, or empty */
    double us, host_us;
} bench_figure;

typedef struct bench_result {
    const bench_request *request;
    int ranks, sets, inner;
    const bench_figure *base; /* what the others are divided by */
    bench_figure figures[BENCH_ALGORITHMS + 3];
    int count;
} bench_result;

void bench_report_table(const bench_result *result);
void bench_report_json(const bench_result *result);

#endif /* CLI_BENCH_REPORT_H */
