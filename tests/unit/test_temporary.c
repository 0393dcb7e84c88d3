/* test_temporary.c - where kernels for CPU ranks are compiled: only where nobody else can exchange
 * what the compiler reads and writes; what becomes of a folder that is exchanged all the same. */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder.h"
#include "base/imx.h"
#include "patience.h"
#include "scratch.h"

static char before[3][512];
static const char *const variables[3] = { "IMBREX_CC", "IMBREX_CACHE_DIR", "TMPDIR" };

static void make_folder(const char *name, mode_t mode)
{
    scratch_directory(name);
    assert_int_equal(chmod(scratch_path(name), mode), 0);
}

/* A compiler that writes down its TMPDIR, and then does with the folder what `after` says, in which
 * $d is the folder and $s the test's. */
static void set_compiler(const char *after)
{
    char script[4096];
    snprintf(script, sizeof script,
             "#!/bin/sh\ns=%s\nprintf %%s \"$TMPDIR\" >$s/log\n"
             "for w; do case $w in */kernel.so) d=${w%%/kernel.so};; esac; done\n"
             "test \"$d\" = \"$TMPDIR\" || exit 1\n%s \"$@\" || exit 1\n%s\n",
             scratch_path(""), *before[0] ? before[0] : "cc", after);
    scratch_write("cc", script, strlen(script));
    assert_int_equal(chmod(scratch_path("cc"), 0700), 0);
}

static int begin(void **state)
{
    int failed = scratch_make(state);
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(variables[i]);
        snprintf(before[i], sizeof before[i], "%s", value ? value : "");
    }
    set_compiler("");
    make_folder("cache", 0700);
    failed |= setenv("IMBREX_CC", scratch_path("cc"), 1);
    return failed | setenv("IMBREX_CACHE_DIR", scratch_path("cache"), 1);
}

static int end(void **state)
{
    for (int i = 0; i < 3; i++)
        if (*before[i])
            setenv(variables[i], before[i], 1);
        else
            unsetenv(variables[i]);
    return scratch_remove(state);
}

/* A kernel that nobody has compiled yet. */
static imbrex_status compile(void)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    static int number;
    char text[300];
    int out = 0, *args = &out;
    snprintf(text, sizeof text,
             "#include \"imbrex_device.h\"\ntypedef struct { int *out; } it_args;\n"
             "IMBREXD_KERNEL(it, it_args) { (void)team; *args->out = %d; }\n",
             ++number);
    imbrex_group *group = NULL;
    imbrex_kernel *kernel;
    imbrex_group_desc alone = { .bootstrap = &one, .device = "cpu", .timeout_ms = 1000 };
    assert_int_equal(imbrex_group_create(&alone, &group), IMBREX_OK);
    imbrex_status status =
        imbrex_kernel_create(group, &(imbrex_kernel_desc){ .name = "it", .source = text }, &kernel);
    if (status == IMBREX_OK) {
        assert_int_equal(imbrex_launch(kernel, 1, 1, &args, sizeof args, NULL), IMBREX_OK);
        assert_int_equal(imbrex_stream_sync(group, NULL), IMBREX_OK);
        assert_int_equal(out, number);
    }
    imbrex_group_destroy(group);
    return status;
}

/* The last compilation was in a folder in this one. */
static void was_in(const char *name)
{
    size_t bytes;
    unsigned char *log = scratch_read("log", &bytes);
    char *folder = realpath(scratch_path(name), NULL);
    if (bytes <= strlen(folder) || memcmp(log, folder, strlen(folder)) != 0 ||
        log[strlen(folder)] != '/')
        fail_msg("compiled in %.*s, want it in %s", (int)bytes, (const char *)log, folder);
    free(folder);
    free(log);
}

static void compiles_in(const char *temporary, const char *want)
{
    setenv("TMPDIR", scratch_path(temporary), 1);
    if (compile() != IMBREX_OK)
        fail_msg("TMPDIR %s: %s", temporary, imbrex_error());
    was_in(want);
}

static void folders_that_others_may_write(void **state)
{
    (void)state;
    make_folder("own", 0700);
    make_folder("sticky", 01777);
    make_folder("open", 0777);
    make_folder("group", 02770);
    make_folder("open/inner", 0700);
    make_folder("open/inner/deep", 0700);
    assert_int_equal(symlink(scratch_path("open"), scratch_path("to_open")), 0);
    assert_int_equal(symlink(scratch_path("own"), scratch_path("open/to_own")), 0);
    compiles_in("own", "own");
    compiles_in("sticky", "sticky");
    compiles_in("open", "cache");
    compiles_in("group", "cache");
    compiles_in("open/inner", "cache");
    compiles_in("open/inner/deep", "cache");
    compiles_in("to_open", "cache");
    compiles_in("own/../open/../open/inner", "cache");
    compiles_in("open/to_own", "own"); /* it is the name without links that the compiler gets */
}

static void folders_of_others(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    make_folder("theirs", 0755);
    make_folder("theirs/ours", 0700);
    assert_int_equal(chown(scratch_path("theirs"), 65534, 65534), 0);
    compiles_in("theirs", "cache");
    compiles_in("theirs/ours", "cache");
}

/* A home that another user has, and one that others may write, gets no folder of ours in it: its
 * owner could not use a .cache that is root's. */
static void homes_of_others(void **state)
{
    (void)state;
    imx_folder cache;
    static const char *const homes[] = { "home", "home/missing", "shared" };
    char path[256];
    make_folder("home", 0755);
    make_folder("shared", 0777);
    if (geteuid() == 0)
        assert_int_equal(chown(scratch_path("home"), 65534, 65534), 0);
    for (int i = geteuid() == 0 ? 0 : 2; i < 3; i++) {
        const char *home = scratch_path(homes[i]);
        snprintf(path, sizeof path, "%s/.cache/imbrex", home);
        imx_folder_find(path, &cache);
        assert_string_equal(cache.path, "");
        assert_non_null(strstr(cache.why, i == 2 ? "others may write" : "belongs to user 65534"));
    }
    assert_int_equal(rmdir(scratch_path("home")), 0); /* it is empty */
    assert_int_equal(rmdir(scratch_path("shared")), 0);
}

/* A cache folder that is the user's own, but lies where it can be exchanged, is none. */
static void nowhere(void **state)
{
    (void)state;
    make_folder("scratch", 0777);
    make_folder("scratch/cache", 0700);
    setenv("TMPDIR", scratch_path("scratch"), 1);
    setenv("IMBREX_CACHE_DIR", scratch_path("scratch/cache"), 1);
    assert_int_equal(compile(), IMBREX_SYSTEM);
    assert_non_null(strstr(imbrex_error(), "/scratch, which has no sticky bit; there is no cache "
                                           "folder, others may write "));
    assert_non_null(strstr(imbrex_error(), "set TMPDIR to a folder that only you may write"));
    setenv("IMBREX_CACHE_DIR", scratch_path("cc"), 1);
    assert_int_equal(compile(), IMBREX_SYSTEM);
    assert_non_null(strstr(imbrex_error(), "there is no cache folder"));
    setenv("IMBREX_CACHE_DIR", scratch_path("cache"), 1);
}

/* What somebody with the same rights can still do: what was put in the folder's place is not taken
 * for it, and nothing is removed there. */
static void folders_that_are_exchanged(void **state)
{
    (void)state;
    make_folder("mine", 0700);
    make_folder("precious", 0700);
    scratch_write("precious/a", "a", 1);
    setenv("TMPDIR", scratch_path("mine"), 1);
    set_compiler("mv \"$d\" $s/moved; ln -s $s/precious \"$d\"");
    assert_int_equal(compile(), IMBREX_OK); /* what was made is still in the folder that was made */
    assert_int_equal(access(scratch_path("precious/a"), F_OK), 0);
    assert_int_equal(rmdir(scratch_path("moved")), 0); /* is empty */
    set_compiler("mv \"$d/kernel.so\" $s/other.so; ln -s $s/other.so \"$d/kernel.so\"");
    assert_int_equal(compile(), IMBREX_SYSTEM);
    assert_non_null(strstr(imbrex_error(), "cannot open what the C compiler made of kernel it"));
    set_compiler("");
}

/* ---- /proc ----------------------------------------------------------------------------------- */

/* compile() in a process and namespaces of its own; its status, or -1: there are none. */
static int compile_in(int namespaces, bool without_proc)
{
    int ended, nested = geteuid() ? CLONE_NEWUSER : 0;
    pid_t pid = fork();
    if (pid == 0) {
        alarm((unsigned)patient(60));
        if (unshare(namespaces | nested))
            _exit(100);
        if (without_proc && (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
                             mount("none", "/proc", "tmpfs", 0, NULL)))
            _exit(100);
        pid_t inner = fork(); /* the first of a namespace of processes */
        if (inner == 0) {
            imbrex_status status = compile();
            bool says = strstr(imbrex_error(), "/proc is not mounted") != NULL;
            _exit(status == IMBREX_SYSTEM && !says ? 101 : (int)status);
        }
        _exit(waitpid(inner, &ended, 0) == inner && WIFEXITED(ended) ? WEXITSTATUS(ended) : 102);
    }
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_true(WIFEXITED(ended));
    return WEXITSTATUS(ended) == 100 ? -1 : WEXITSTATUS(ended);
}

static void proc_of_other_processes(void **state)
{
    (void)state;
    int status = compile_in(CLONE_NEWPID, false);
    if (status == -1)
        skip();
    assert_int_equal(status, IMBREX_OK);
}

static void no_proc(void **state)
{
    (void)state;
    int status = compile_in(CLONE_NEWNS, true);
    if (status == -1)
        skip();
    assert_int_equal(status, IMBREX_SYSTEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_that_others_may_write),
        cmocka_unit_test(folders_of_others),
        cmocka_unit_test(homes_of_others),
        cmocka_unit_test(nowhere),
        cmocka_unit_test(folders_that_are_exchanged),
        cmocka_unit_test(proc_of_other_processes),
        cmocka_unit_test(no_proc),
    };
    return cmocka_run_group_tests_name("temporary", tests, begin, end);
}
