/* clock.c - how far a GPU's clock is from CLOCK_MONOTONIC: GPUs of one host need not agree, and the
 * ranks of a picture share one axis.
 *
 * A kernel answers questions through host memory; question and answer take about a microsecond
 * each, and the quickest of many bounds the error by half of what it took.
 */
#include "clock.h"

#include "cuda.h"

enum { QUESTIONS = 50, LINE = 16 /* words */, ENOUGH_NS = 20000000, LIMIT_NS = 1000000000 };

static void clock_config(const void *largest, const imx_cuda_target *target, int blocks,
                         imx_cuda_config *config)
{
    (void)largest;
    (void)target;
    (void)blocks;
    *config = (imx_cuda_config){
        .source = "backends/cuda/clock.cu",
        .entry = "imx_clock",
        .blocks = 1,
        .cluster = 1,
        .threads = 32,
    };
}

static void clock_launch(const void *args, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    (void)args;
    (void)config;
    launch->blocks = 1;
}

const imx_kernel imx_cuda_clock_kernel = {
    .name = "clock",
    .cuda_config = clock_config,
    .cuda_launch = clock_launch,
};

/* Until the answer came; false: it did not. */
static bool ask(const imx_clock_args *args, uint64_t number)
{
    int64_t begin_ns = imbrexd_now_ns();
    imbrexd_store_release(args->asked, number);             /* all the kernel looks at */
    while (imbrexd_load_acquire(args->answered) < number) { /* orders the read of *now after it */
        if (imbrexd_now_ns() - begin_ns > 2 * (int64_t)LIMIT_NS)
            return false;
    }
    return true;
}

imbrex_status imx_cuda_clock_offset(imx_device *device, int64_t *offset_ns)
{
    uint64_t *words = device->clock_words->base;
    imx_clock_args args = {
        .asked = words,
        .now = words + LINE,
        .answered = words + 2 * LINE,
        .questions = QUESTIONS,
        .limit_ns = LIMIT_NS,
    };
    *args.asked = *args.answered = 0;
    IMX_TRY(imx_cuda_kernel_launch(device, device->clock, &args, sizeof args, device->setup));
    int64_t least = INT64_MAX, begin_ns = imbrexd_now_ns(), before = begin_ns;
    bool answered = true;
    for (uint64_t i = 1; i <= QUESTIONS && answered && before - begin_ns < ENOUGH_NS; i++) {
        before = imbrexd_now_ns();
        answered = ask(&args, i);
        int64_t took = imbrexd_now_ns() - before;
        if (answered && took < least) {
            least = took;
            *offset_ns = before + took / 2 - (int64_t)*args.now;
        }
    }
    imbrexd_store_release(args.asked, QUESTIONS); /* lets the kernel go; nobody reads the answer */
    IMX_TRY(imx_cuda_stream_sync(device, device->setup));
    return answered ? IMBREX_OK
                    : imx_fail(IMBREX_SYSTEM, "GPU %d does not tell its time", device->gpu);
}

imbrex_status imx_cuda_clock_prepare(imx_device *device)
{
    if (device->clock)
        return IMBREX_OK;
    if (!device->clock_words)
        IMX_TRY(
            imx_cuda_memory_create_host(device, 3 * LINE * sizeof(uint64_t), &device->clock_words));
    return imx_cuda_prepare(device, &imx_cuda_clock_kernel, NULL, 1, &device->clock);
}
