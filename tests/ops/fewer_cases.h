/* fewer_cases.h - runs of few rows through plans of many, on GPUs. */
#ifndef FEWER_CASES_H
#define FEWER_CASES_H

#include "imbrex.h"

/* For ranks_run: of both operators, runs of few rows and of many in turn, on two streams, against a
 * float64 loop; and which variants there are. */
int fewer_cases(imbrex_group *group, void *ctx);

/* Makes those plans alone, of so many SMs (0: all), maybe on a device that only compiles. */
int fewer_cases_plans(imbrex_group *group, int sms);

#endif /* FEWER_CASES_H */
