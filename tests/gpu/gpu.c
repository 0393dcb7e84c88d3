/* gpu.c - finds GPUs or says that there are none, and reports cases one a line. */
#include "gpu.h"

#include <dirent.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/cuda/cuda.h"
#include "backends/cuda/driver.h"
#include "fake_driver.h"
#include "fake_nvrtc.h"
#include "patience.h"

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

static int arch_main(void *ctx)
{
    (void)ctx;
    if (imx_driver_open() != IMBREX_OK)
        return 0;
    return 10 * imx_cuda_attribute(0, CU_COMPUTE_CAPABILITY_MAJOR) +
           imx_cuda_attribute(0, CU_COMPUTE_CAPABILITY_MINOR);
}

static int count_main(void *ctx)
{
    (void)ctx;
    return count_gpus();
}

/* Where it happened, for addr2line; no debugger is needed on the machine with the GPU. */
static void say_where(int number)
{
    void *frames[32];
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDOUT_FILENO);
    if (number == SIGSEGV) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

/* Where each thread stands, one after the other. */
static void say_all(void)
{
    struct dirent *entry;
    DIR *threads = opendir("/proc/self/task");
    while (threads && (entry = readdir(threads))) {
        long id = strtol(entry->d_name, NULL, 10);
        if (id == 0 || id == syscall(SYS_gettid))
            continue;
        printf("  thread %ld:\n", id);
        fflush(stdout);
        syscall(SYS_tgkill, getpid(), id, SIGUSR1);
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    }
    if (threads)
        closedir(threads);
}

static void *look_after(void *ctx)
{
    nanosleep(&(struct timespec){ .tv_sec = *(const int *)ctx }, NULL);
    printf("  not done after %d s; its threads:\n", *(const int *)ctx);
    say_all();
    return NULL;
}

/* IMBREX_TEST_STACKS=SECONDS: a case that takes longer says once what its threads are at. */
static void watch_over(void)
{
    static int after_s;
    pthread_t thread;
    const char *set = getenv("IMBREX_TEST_STACKS");
    after_s = set ? atoi(set) : 0;
    if (after_s <= 0)
        return;
    signal(SIGUSR1, say_where);
    if (pthread_create(&thread, NULL, look_after, &after_s) == 0)
        pthread_detach(thread);
}

pid_t gpu_start(int (*run)(void *ctx), void *ctx, int limit_s)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct sigaction now;
        if (sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_handler == SIG_DFL) /* no sanitizer's */
            signal(SIGSEGV, say_where);
        watch_over();
        alarm((unsigned)patient(gpu_is_fake() ? 3 * limit_s : limit_s)); /* a fake GPU is slow */
        int result = run(ctx);
        fflush(NULL);
        _exit(result);
    }
    return child;
}

int gpu_finish(pid_t child)
{
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return GPU_DIED;
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (WTERMSIG(status) == SIGALRM)
        printf("  still not done when its time was up\n");
    else
        printf("  ended by signal %d, %s\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return GPU_DIED;
}

int gpu_isolated(int (*run)(void *ctx), void *ctx, int limit_s)
{
    return gpu_finish(gpu_start(run, ctx, limit_s));
}

void *gpu_shared(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        abort();
    return at;
}

static char folder[] = "/tmp/imbrex-cache-XXXXXX";

/* The fake's kernels must not come to lie among the real ones. */
static void install_fake(const char *gpus)
{
    if (!mkdtemp(folder))
        abort();
    setenv("IMBREX_CACHE_DIR", folder, 1);
    fake_driver_install(atoi(gpus));
    fake_driver_set(CU_MULTIPROCESSOR_COUNT, 48); /* as many as the cases ask for, of two ranks */
    all.fake = true;
    const char *kept = getenv("IMBREX_FAKE_PTX");
    if (kept && *kept && !fake_nvrtc_use_real(strchr(kept, '/') ? kept : "")) {
        printf("skipped: %s\n", imbrex_error());
        rmdir(folder);
        exit(SKIPPED);
    }
}

void gpu_begin(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    const char *fake = getenv("IMBREX_FAKE_GPUS");
    if (fake && *fake)
        install_fake(fake);
    all.only = argc > 1 ? argv[1] : NULL;
    all.gpus = gpu_isolated(count_main, NULL, 60);
    if (all.gpus < 1 || all.gpus > GPUS_MOST)
        exit(SKIPPED);
    printf("%d GPU%s\n", all.gpus, all.gpus > 1 ? "s" : "");
}

int gpu_count(void)
{
    return all.gpus;
}

int gpu_arch(void)
{
    return gpu_isolated(arch_main, NULL, 60);
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
    printf("  %s, %.1f s\n", failed ? "FAILED" : "ok", seconds);
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
