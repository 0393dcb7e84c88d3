/* test_limits.c - products under limits on addresses and data (ulimit -v, -d): a plan is refused
 * with a sentence, or its runs come to their end; OpenBLAS would ask again for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/gemm/blas.h"
#include "ranks.h"

enum { SIZE = 192, RUN_S = 60, REFUSED = 3 };
enum { MIB = 1 << 20 };

static size_t kilobytes(const char *key)
{
    char line[128];
    size_t value = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0)
            value = strtoul(line + strlen(key), NULL, 10);
    }
    if (file)
        fclose(file);
    return value;
}

/* Leaves so much from here on. */
static int leave(int resource, size_t bytes)
{
    size_t now = kilobytes(resource == RLIMIT_AS ? "VmSize:" : "VmData:") * 1024;
    struct rlimit limit;
    RANK_CHECK(now > 0 && getrlimit((__rlimit_resource_t)resource, &limit) == 0, "no figures");
    limit.rlim_cur = now + bytes;
    RANK_CHECK(setrlimit((__rlimit_resource_t)resource, &limit) == 0, "no limit");
    return 0;
}

typedef struct limit_case {
    int resource;
    size_t before, after; /* bytes that are left before the plan is made, and once it is; 0: all */
} limit_case;

static int product(imbrex_group *group, void *ctx)
{
    const limit_case *x = ctx;
    imbrex_gemm_desc desc = { .m = SIZE, .n = SIZE, .k = SIZE, .dtype = IMBREX_F32, .sms = 4 };
    imbrex_plan *plan;
    static float a[SIZE * SIZE], b[SIZE * SIZE], c[SIZE * SIZE];
    for (int i = 0; i < SIZE * SIZE; i++)
        a[i] = b[i] = 1;
    if (x->before && leave(x->resource, x->before))
        return 1;
    imbrex_status status = imbrex_plan_ag_gemm(group, &desc, &plan);
    const char *name =
        x->resource == RLIMIT_AS ? "RLIMIT_AS (ulimit -v) is" : "RLIMIT_DATA (ulimit -d) is";
    if (status == IMBREX_NO_MEMORY && strstr(imbrex_error(), name))
        return REFUSED;
    RANK_CHECK(status == IMBREX_OK, "%s: %s", imbrex_status_name(status), imbrex_error());
    if (x->after && leave(x->resource, x->after))
        return 1;
    imbrex_args args = { .a = a, .b = b, .c = c };
    for (int i = 0; i < 3; i++) {
        memset(c, 0, sizeof c);
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        for (int j = 0; j < SIZE * SIZE; j++)
            RANK_CHECK(c[j] == SIZE, "c[%d] is %g", j, (double)c[j]);
    }
    return 0;
}

static int alone(const limit_case *x)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &one, .device = "cpu" };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    int result = product(group, (void *)(uintptr_t)x);
    imbrex_group_destroy(group);
    return result;
}

/* A process of its own, in which OpenBLAS has computed nothing yet. */
static int under(const limit_case *x)
{
    if (SANITIZED || !strstr(imx_blas_name(), "OpenBLAS"))
        skip();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(RUN_S);
        _exit(alone(x));
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status))
        fail_msg("it ended with %#x: SIGALRM, which is 14, says that it would never end", status);
    return WEXITSTATUS(status);
}

static void too_little_is_refused(void **state)
{
    (void)state;
    static const int resources[] = { RLIMIT_AS, RLIMIT_DATA };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(under(&(limit_case){ resources[i], 60 * MIB, 0 }), REFUSED);
        assert_int_equal(under(&(limit_case){ resources[i], 120 * MIB, 0 }), REFUSED);
    }
}

/* There is room for one product at a time, and four threads: they take turns. */
static void a_little_is_enough(void **state)
{
    (void)state;
    assert_int_equal(under(&(limit_case){ RLIMIT_AS, 240 * MIB, 0 }), 0);
    assert_int_equal(under(&(limit_case){ RLIMIT_DATA, 240 * MIB, 0 }), 0);
}

static void a_limit_may_come_later(void **state)
{
    (void)state;
    assert_int_equal(under(&(limit_case){ RLIMIT_AS, 0, 2 * MIB }), 0);
    assert_int_equal(under(&(limit_case){ RLIMIT_DATA, 0, 2 * MIB }), 0);
}

/* Where nothing is refused all four compute at once, and nobody is kept waiting. */
static void without_limits(void **state)
{
    (void)state;
    assert_int_equal(under(&(limit_case){ RLIMIT_AS, 0, 0 }), 0);
}

/* Symmetric memory and streams take addresses, too: what is refused says why. */
static int other_things(void)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &one, .device = "cpu" };
    imbrex_group *group;
    imbrex_stream stream;
    imbrex_status status = IMBREX_OK;
    void *at;
    RANK_OK(imbrex_group_create(&desc, &group));
    if (leave(RLIMIT_AS, 32 * MIB))
        return 1;
    RANK_CHECK(imbrex_mem_alloc(group, 64 * MIB, &at) == IMBREX_NO_MEMORY &&
                   strstr(imbrex_error(), "map 67108864 bytes of memory") &&
                   strstr(imbrex_error(), "RLIMIT_AS (ulimit -v) is"),
               "%s", imbrex_error());
    for (int i = 0; i < 100 && status == IMBREX_OK; i++)
        status = imbrex_stream_create(group, &stream);
    RANK_CHECK(status == IMBREX_NO_MEMORY && strstr(imbrex_error(), "start a stream's thread") &&
                   strstr(imbrex_error(), "RLIMIT_AS (ulimit -v) is"),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    imbrex_group_destroy(group);
    return 0;
}

static void other_things_are_refused(void **state)
{
    (void)state;
    if (SANITIZED)
        skip();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(RUN_S);
        _exit(other_things());
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    /* Else OpenBLAS starts threads as it is loaded, which take what is left. */
    if (!getenv("OPENBLAS_NUM_THREADS")) {
        setenv("OPENBLAS_NUM_THREADS", "1", 1);
        execl("/proc/self/exe", "test_limits", (char *)NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_little_is_refused),    cmocka_unit_test(a_little_is_enough),
        cmocka_unit_test(a_limit_may_come_later),   cmocka_unit_test(without_limits),
        cmocka_unit_test(other_things_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
