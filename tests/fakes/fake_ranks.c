/* fake_ranks.c - makes groups on fake GPUs and sees to it that nothing is left behind. */
#define _GNU_SOURCE
#include "fake_ranks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cuda/driver.h"
#include "fake_driver.h"
#include "fake_nvrtc.h"

typedef struct fake_run {
    const ranks_desc *desc;
    rank_main run;
    void *ctx;
} fake_run;

static int with_group(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const fake_run *r = ctx;
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = "cuda",
        .timeout_ms = r->desc->timeout_ms ? patient(r->desc->timeout_ms) : 20000,
    };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = r->run(group, r->ctx);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    int live = r->desc->processes ? fake_driver_live() : 0; /* threads: when all have ended */
    RANK_CHECK(live == 0, "rank %d leaves %d objects of the driver behind", rank, live);
    return failed;
}

static int run_installed(const ranks_desc *desc, rank_main run, void *ctx)
{
    fake_run r = { desc, run, ctx };
    int failed = ranks_run_bare(desc, with_group, &r);
    if (fake_driver_live())
        fprintf(stderr, "%d objects of the driver are left behind\n", fake_driver_live());
    return failed + (fake_driver_live() != 0);
}

int fake_ranks_run(const ranks_desc *desc, int gpus, rank_main run, void *ctx)
{
    fake_driver_install(gpus);
    return run_installed(desc, run, ctx);
}

/* ---- kernels as they are compiled ------------------------------------------------------------ */

static bool compile(void)
{
    char kept[500] = "";
    const char *build = getenv("IMBREX_BUILD_DIR");
    if (build)
        snprintf(kept, sizeof kept, "%s/tests/cache", build);
    return fake_nvrtc_use_real(kept);
}

int fake_ranks_run_compiled(const ranks_desc *desc, int gpus, int major, rank_main run, void *ctx)
{
    fake_driver_install(gpus);
    fake_driver_set(CU_COMPUTE_CAPABILITY_MAJOR, major);
    fake_nvrtc_leave_out("kernels/norm/sm80.cu", "imx_norm"); /* test_gpu_local_ptx has it */
    return compile() ? run_installed(desc, run, ctx) : -1;
}

bool fake_ranks_can_compile(void)
{
    bool can = compile();
    if (!can)
        printf("skipped: %s\n", imbrex_error());
    return can;
}

/* ---- programs -------------------------------------------------------------------------------- */

static char folder[] = "/tmp/imbrex-cache-XXXXXX";

void fake_ranks_begin(void)
{
    if (!mkdtemp(folder))
        abort();
    setenv("IMBREX_CACHE_DIR", folder, 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

void fake_ranks_end(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", folder);
}
