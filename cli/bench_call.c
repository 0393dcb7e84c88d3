/* bench_call.c - runs a plan on the next operands and looks at the clock around the call. */
#include "bench_call.h"

#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "measure.h"

imbrex_status bench_call_run(void *ctx)
{
    bench_call *call = ctx;
    imbrex_args args = bench_data_args(call->data, call->shape, call->calls, call->whole);
    double begin = now_us();
    imbrex_status status = imbrex_plan_run(call->plan, &args, call->stream);
    if (call->inner && call->calls % call->inner == 0)
        call->host_us[call->calls / call->inner] = now_us() - begin;
    call->calls++;
    return status;
}

bool bench_call_note(bench_call *call, int inner, int rounds)
{
    free(call->host_us);
    call->host_us = calloc((size_t)rounds, sizeof *call->host_us);
    call->calls = 0;
    call->inner = inner;
    return call->host_us != NULL;
}

double bench_call_host_us(bench_call *call, int warm, int rounds)
{
    call->inner = 0;
    if (!call->host_us)
        return (double)NAN;
    return measure_median(call->host_us + warm, rounds);
}

void bench_call_close(bench_call *call)
{
    imbrex_plan_destroy(call->plan);
    free(call->host_us);
    *call = (bench_call){ 0 };
}
