/* bench_report.h - what `imbrex bench` found out, and the forms in which it says so. */
#ifndef CLI_BENCH_REPORT_H
#define CLI_BENCH_REPORT_H

#include "bench_rank.h"

enum { BENCH_CANDIDATES = BENCH_ALGORITHMS + 3 };

/* A candidate's figures; NAN where there is none. */
typedef struct bench_figure {
    const char *name;
    char plan[640];                /* imbrex_plan_describe, or empty */
    double us, host_us;            /* of one call; its time on the host */
    double plan_ms, plan_again_ms; /* to make the plan the first and the second time */
} bench_figure;

typedef struct bench_result {
    const bench_request *request;
    const bench_shape *shape;
    int ranks, sets, inner; /* sets: of operands, 0: there are none */
    const char *device;     /* of rank 0 */
    bool device_clock;
    int base; /* which of the figures the others are divided by */
    bench_figure figures[BENCH_CANDIDATES];
    int count;
} bench_result;

void bench_report_table(const bench_result *result);
/* One object on one line. */
void bench_report_json(const bench_result *result);

#endif /* CLI_BENCH_REPORT_H */
