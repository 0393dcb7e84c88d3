/* fake_function.c - the kernels that fake GPUs run: the CPU forms of the library's, those of the
 * backend's own, and callers'. */
#include "fake_function.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/clock.h"
#include "backends/cuda/signals.h"
#include "fake_driver.h"
#include "kernels/activate/args.h"
#include "kernels/attend/args.h"
#include "kernels/combine/args.h"
#include "kernels/combine_ll/args.h"
#include "kernels/dispatch/args.h"
#include "kernels/dispatch_ll/args.h"
#include "kernels/gate/args.h"
#include "kernels/gemm/args.h"
#include "kernels/grouped/args.h"
#include "kernels/kernels.h"
#include "kernels/ll/args.h"
#include "kernels/merge/args.h"
#include "kernels/norm/args.h"
#include "kernels/push/args.h"
#include "kernels/reduce/args.h"
#include "kernels/route/args.h"

static int told; /* atomic */

static void tell_once(uint64_t *to)
{
    *to = (uint64_t)(imbrexd_now_ns() - FAKE_CLOCK_BEHIND_NS);
    __atomic_add_fetch(&told, 1, __ATOMIC_RELAXED);
}

int fake_driver_told(void)
{
    return __atomic_load_n(&told, __ATOMIC_RELAXED);
}

/* Ops of a step may come in any order, so here the last one is the first, and what waits comes
 * before what does not: who relies on another order has to say so, by a step. */
static bool signals_step(const imx_signals_args *args, int step, const uint64_t *value,
                         const imbrexd_watch *watch)
{
    for (int waits = 1; waits >= 0; waits--) {
        for (int i = args->count - 1; i >= 0; i--) {
            const imx_signals_op *op = &args->ops[i];
            if (op->step != step || (op->kind == IMX_SIGNALS_WAIT) != waits)
                continue;
            if (op->kind == IMX_SIGNALS_POST)
                imbrexd_signal_post(op->signal, value[i]);
            else if (op->kind == IMX_SIGNALS_TIME)
                tell_once(op->signal);
            else if (!imbrexd_signal_wait(watch, op->signal, value[i], op->point))
                return false;
        }
    }
    return true;
}

static void signals(const void *untyped, const imbrexd_block *block)
{
    const imx_signals_args *args = untyped;
    uint64_t value[IMX_SIGNALS_ROOM];
    int steps = args->count ? args->ops[args->count - 1].step + 1 : 0;
    for (int i = 0; i < args->count; i++)
        value[i] = (args->ops[i].word ? *args->ops[i].word : 0) + args->ops[i].add;
    for (int step = 0; step < steps; step++) {
        if (!signals_step(args, step, value, block->watch))
            return;
    }
}

static void tell_time(const void *untyped, const imbrexd_block *block)
{
    const imx_clock_args *args = untyped;
    (void)block;
    for (uint64_t i = 1; i <= args->questions; i++) {
        int64_t begin_ns = imbrexd_now_ns();
        while (imbrexd_load_acquire(args->asked) < i) {
            if (imbrexd_now_ns() - begin_ns > (int64_t)args->limit_ns)
                return;
            sched_yield(); /* who asks may be waiting for this processor */
        }
        *args->now = (uint64_t)(imbrexd_now_ns() - FAKE_CLOCK_BEHIND_NS);
        imbrexd_store_release(args->answered, i);
    }
}

static const imx_kernel clock_kernel = { .name = "clock", .cpu = tell_time };
const imx_kernel fake_signals_kernel = { .name = "signals", .cpu = signals };

#define ROW(name, its_kernel, args)                                                        \
    {                                                                                      \
        .prefix = #name, .kernel = &its_kernel, .args_bytes = sizeof(args), .carveout = -1 \
    }
static const struct CUfunc_st functions[] = {
    ROW(imx_clock, clock_kernel, imx_clock_args),
    ROW(imx_signals, fake_signals_kernel, imx_signals_args),
    ROW(imx_gemm, imx_kernel_gemm, imx_gemm_args),
    ROW(imx_ll, imx_kernel_ll, imx_ll_args),
    ROW(imx_push, imx_kernel_push, imx_push_args),
    ROW(imx_reduce, imx_kernel_reduce, imx_reduce_args),
    ROW(imx_activate, imx_kernel_activate, imx_activate_args),
    ROW(imx_norm, imx_kernel_norm, imx_norm_args),
    ROW(imx_gate, imx_kernel_gate, imx_gate_args),
    ROW(imx_attend, imx_kernel_attend, imx_attend_args),
    ROW(imx_merge, imx_kernel_merge, imx_merge_args),
    ROW(imx_route, imx_kernel_route, imx_route_args),
    ROW(imx_grouped, imx_kernel_grouped, imx_grouped_args),
    ROW(imx_combine_ll, imx_kernel_combine_ll, imx_combine_ll_args),
    ROW(imx_dispatch_ll, imx_kernel_dispatch_ll, imx_dispatch_ll_args),
    ROW(imx_combine, imx_kernel_combine, imx_combine_args),
    ROW(imx_dispatch, imx_kernel_dispatch, imx_dispatch_args),
};

enum { CALLERS_MOST = 8 };
static struct CUfunc_st callers[CALLERS_MOST];
static int caller_count;

void fake_driver_add_kernel(const char *name, const imbrexd_entry *entry)
{
    if (caller_count == CALLERS_MOST)
        abort();
    callers[caller_count++] = (struct CUfunc_st){
        .prefix = name, .args_bytes = entry->args_bytes, .entry = entry, .carveout = -1
    };
}

static const struct CUfunc_st *find_caller(const char *name)
{
    for (int i = 0; i < caller_count; i++) {
        if (strcmp(name, callers[i].prefix) == 0)
            return &callers[i];
    }
    return NULL;
}

size_t fake_function_args_bytes(const char *array)
{
    static const char *const prefixes[] = { "imbrexd_args_", "imbrexd_hooks_" };
    for (int hooks = 0; hooks < 2; hooks++) {
        size_t length = strlen(prefixes[hooks]);
        bool is_one = strncmp(array, prefixes[hooks], length) == 0;
        const struct CUfunc_st *caller = is_one ? find_caller(array + length) : NULL;
        if (caller && hooks == (caller->entry->hooks != NULL))
            return caller->args_bytes;
    }
    return 0;
}

static const struct CUfunc_st *find_function(const char *entry)
{
    const struct CUfunc_st *found = find_caller(entry);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0] && !found; i++) {
        if (strncmp(entry, functions[i].prefix, strlen(functions[i].prefix)) == 0)
            found = &functions[i];
    }
    return found;
}

CUfunction fake_function_make(const char *entry, const imx_trace_room *traces)
{
    const struct CUfunc_st *found = find_function(entry);
    if (!found)
        return NULL;
    CUfunction function = malloc(sizeof *function);
    *function = *found;
    function->traces = traces;
    function->carveout = -1;
    return function;
}

CUfunction fake_function_compiled(const char *entry, const ptx_module *module)
{
    const ptx_function *compiled = ptx_module_function(module, entry);
    if (!compiled || !compiled->entry)
        return NULL;
    CUfunction function = calloc(1, sizeof *function);
    const struct CUfunc_st *known = find_function(entry);
    if (known)
        *function = *known;
    function->module = module;
    function->compiled = compiled;
    function->carveout = -1;
    return function;
}

bool *fake_function_loaded(CUfunction function)
{
    return &function->loaded;
}

/* ---- launches -------------------------------------------------------------------------------- */

enum { GPUS_MOST = 8 };
static int splits[GPUS_MOST]; /* 1 + percent; 0: nobody has asked.  Atomic */

void fake_function_forget(void)
{
    memset(splits, 0, sizeof splits);
}

/* A multiprocessor splits its memory anew only when it is idle: a kernel with a split of its own
 * would not start beneath another. */
CUresult fake_function_split(CUfunction function, int gpu, int percent)
{
    int other = 0;
    function->carveout = percent;
    if (__atomic_compare_exchange_n(&splits[gpu], &other, 1 + percent, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED) ||
        other == 1 + percent)
        return CUDA_SUCCESS;
    fprintf(stderr, "cuFuncSetAttribute: %d %% for shared memory, %d %% for others' kernels\n",
            percent, other - 1);
    return CUDA_ERROR_INVALID_VALUE;
}

/* What a launch asks for beside its blocks; false: a real driver would not take it. */
static bool read_attributes(const CUlaunchConfig *config, fake_launch *launch)
{
    launch->cluster = 1;
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const CUlaunchAttribute *a = &config->attributes[i];
        if (a->id == CU_LAUNCH_CLUSTER_DIMENSION)
            launch->cluster = (int)a->value.cluster[0];
        else if (a->id == CU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION)
            launch->early = a->value.allowed != 0;
        else
            return false;
        if (i && a->id == config->attributes[0].id)
            return false;
    }
    return launch->cluster > 0 && launch->blocks > 0 && launch->blocks % launch->cluster == 0;
}

int fake_function_cluster(const CUlaunchConfig *config)
{
    fake_launch launch = { .blocks = (int)config->grid[0] };
    read_attributes(config, &launch);
    return launch.cluster;
}

static _Thread_local fake_launch widest;

bool fake_function_takes(CUfunction function, const CUlaunchConfig *config)
{
    fake_launch now = { .blocks = (int)config->grid[0] };
    if (function->carveout < 0)
        fprintf(stderr, "cuLaunchKernelEx: a kernel that shares no split of memory\n");
    if (function->carveout < 0 || !read_attributes(config, &now) || config->block[0] > 1024)
        return false;
    widest = now.blocks > widest.blocks ? now : widest;
    return true;
}

fake_launch fake_driver_widest(void)
{
    fake_launch launch = widest;
    widest = (fake_launch){ 0 };
    return launch;
}

/* ---- args ------------------------------------------------------------------------------------ */

/* A compiled pipeline has one text's hooks in it; what runs beside it is a block here. */
int fake_function_args(CUfunction function, const void *from, void *to)
{
    const imx_gemm_args *gemm = from;
    memcpy(to, from, function->args_bytes);
    if (function->kernel != &imx_kernel_gemm || !(gemm->features & IMX_GEMM_HOOKS))
        return 0;
    imx_gemm_user_args *args = memcpy(to, from, sizeof *args);
    for (int i = 0; i < caller_count && !args->user.hooks; i++)
        args->user.hooks = callers[i].entry->hooks;
    if (!args->user.hooks)
        abort();
    return args->user.hooks->beside != NULL;
}
