/* callers.h - what the tests of callers' kernels share; behind cmocka.h. */
#ifndef CALLERS_H
#define CALLERS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/nvrtc.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "scratch.h"

/* A group of one rank. */
static inline imbrex_group *alone(const char *device)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group *group = NULL;
    imbrex_group_desc desc = { .bootstrap = &one, .device = device, .timeout_ms = 300 };
    if (imbrex_group_create(&desc, &group) != IMBREX_OK)
        fail_msg("%s", imbrex_error());
    return group;
}

/* The real compiler, as little_nvrtc.c gives it; started by hand, the whole. */
static inline bool callers_open_compiler(void)
{
    const char *file = getenv("LITTLE_NVRTC");
    imx_nvrtc = NULL;
    return imx_nvrtc_open(file ? file : "") == IMBREX_OK && imx_nvrtc_version() > 0;
}

/* The same as alone(), on a device that only compiles.  The kernels that a group has from the start
 * are kept for others. */
static inline imbrex_group *alone_compiling(const char *device)
{
    const char *build = getenv("IMBREX_BUILD_DIR"), *was = getenv("IMBREX_CACHE_DIR");
    char own[4096], kept[4096];
    if (!build || !was) /* started by hand */
        return alone(device);
    snprintf(own, sizeof own, "%s", was);
    snprintf(kept, sizeof kept, "%s/tests/cache", build);
    setenv("IMBREX_CACHE_DIR", kept, 1);
    imbrex_group *group = alone(device);
    setenv("IMBREX_CACHE_DIR", own, 1);
    return group;
}

static inline void said(imbrex_status got, imbrex_status want, const char *words)
{
    if (got != want || !strstr(imbrex_error(), words))
        fail_msg("%s: %s\nwant %s with \"%s\"", imbrex_status_name(got), imbrex_error(),
                 imbrex_status_name(want), words);
}

/* Before all tests: fake GPUs have the kernel; and after them. */
static inline int callers_begin(void **state, const char *kernel, const struct imbrexd_entry *entry)
{
    fake_ranks_begin();
    fake_driver_add_kernel(kernel, entry);
    return scratch_make(state);
}

static inline int callers_end(void **state)
{
    fake_ranks_end();
    return scratch_remove(state);
}

#endif /* CALLERS_H */
