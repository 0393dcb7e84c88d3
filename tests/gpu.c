/* gpu.c - finds GPUs or says that there are none, and reports cases one a line. */
#include "gpu.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/cuda/driver.h"
#include "fake_driver.h"

enum { SKIPPED = 77, GPUS_MOST = 8 };

static struct {
    int gpus, cases, failed;
    bool fake;
    const char *only; /* part of the names of cases that run */
    struct timespec begin;
} all;

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* 0, with the reason printed, if there is none to be used. */
static int count_gpus(void)
{
    int count = 0;
    if (imx_driver_open() != IMBREX_OK) {
        printf("skipped: %s\n", imbrex_error());
        return 0;
    }
    if (imx_driver->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        count = 0;
    return count < GPUS_MOST ? count : GPUS_MOST;
}

/* A process that has used CUDA cannot fork: a child looks, and tells by its exit code. */
static int count_in_child(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int count = count_gpus();
        fflush(NULL);
        _exit(count);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static char folder[] = "/tmp/imbrex-cache-XXXXXX";

/* The fake's kernels must not come to lie among the real ones. */
static void install_fake(const char *gpus)
{
    if (!mkdtemp(folder))
        abort();
    setenv("IMBREX_CACHE_DIR", folder, 1);
    fake_driver_install(atoi(gpus));
    fake_driver_set(CU_MULTIPROCESSOR_COUNT, 24); /* as many as the cases ask for */
    all.fake = true;
}

void gpu_begin(int argc, char **argv, bool processes)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    const char *fake = getenv("IMBREX_FAKE_GPUS");
    if (fake && *fake)
        install_fake(fake);
    all.only = argc > 1 ? argv[1] : NULL;
    all.gpus = processes && !all.fake ? count_in_child() : count_gpus();
    if (!all.gpus)
        exit(SKIPPED);
    printf("%d GPU%s\n", all.gpus, all.gpus > 1 ? "s" : "");
}

int gpu_count(void)
{
    return all.gpus;
}

bool gpu_is_fake(void)
{
    return all.fake;
}

const char *gpu_of(int rank, bool spread)
{
    static const char *const names[GPUS_MOST] = { "cuda:0", "cuda:1", "cuda:2", "cuda:3",
                                                  "cuda:4", "cuda:5", "cuda:6", "cuda:7" };
    return names[spread ? rank % all.gpus : 0];
}

/* ---- cases ----------------------------------------------------------------------------------- */

bool gpu_wanted(const char *format, ...)
{
    char name[160];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    if (all.only && !strstr(name, all.only))
        return false;
    printf("%s ...\n", name);
    clock_gettime(CLOCK_MONOTONIC, &all.begin);
    all.cases++;
    return true;
}

void gpu_report(int failed)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds =
        (double)(now.tv_sec - all.begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - all.begin.tv_nsec);
    if (failed)
        printf("  FAILED on %d rank%s, %.1f s\n", failed, failed > 1 ? "s" : "", seconds);
    else
        printf("  ok, %.1f s\n", seconds);
    all.failed += failed != 0;
}

int gpu_end(void)
{
    printf("%d of %d cases failed\n", all.failed, all.cases);
    if (all.fake) {
        char command[64];
        snprintf(command, sizeof command, "rm -rf %s", folder);
        if (system(command) != 0)
            printf("cannot remove %s\n", folder);
    }
    if (!all.cases)
        printf("no case is called so\n");
    return all.failed || !all.cases;
}
