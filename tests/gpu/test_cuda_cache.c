/* test_cuda_cache.c - the cache of compiled kernels: what is in it is used, and whatever is
 * damaged, cut off, open to others or not ours is compiled again and replaced. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/cuda/cuda.h"
#include "fake_driver.h"

static char folder[64], file[512];

/* The only .kernel in the folder, into `file`; how many there are, and other files. */
static int cubins(int *others)
{
    DIR *dir = opendir(folder);
    int count = 0;
    *others = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        bool cubin = strstr(e->d_name, ".kernel") != NULL;
        count += cubin;
        *others += !cubin;
        if (cubin)
            snprintf(file, sizeof file, "%s/%s", folder, e->d_name);
    }
    closedir(dir);
    return count;
}

static const imx_cuda_config config = { .source = "kernels/activate/sm80.cu",
                                        .entry = "imx_activate",
                                        .options = "-DX=1" };

/* How often the compiler ran. */
static int build(const imx_cuda_config *what, int arch)
{
    imx_folder cache;
    void *cubin = NULL;
    size_t bytes = 0;
    int before = fake_driver_compiled();
    imx_folder_find(folder, &cache);
    assert_int_equal(imx_cuda_build(&cache, what, arch, &cubin, &bytes, NULL), IMBREX_OK);
    assert_int_equal(bytes, strlen(cubin) + 1);
    assert_non_null(strstr(cubin, what->source));
    free(cubin);
    return fake_driver_compiled() - before;
}

static int begin(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/imbrex-test-XXXXXX");
    fake_driver_install(1);
    return mkdtemp(folder) ? 0 : 1;
}

static int end(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void second_time_is_free(void **state)
{
    (void)state;
    int others;
    assert_int_equal(build(&config, 90), 1);
    assert_int_equal(build(&config, 90), 0);
    assert_int_equal(cubins(&others), 1);
    assert_int_equal(others, 0);
    struct stat found;
    assert_int_equal(stat(file, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
}

static void everything_is_in_the_key(void **state)
{
    (void)state;
    imx_cuda_config other = config;
    assert_int_equal(build(&config, 90), 1);
    assert_int_equal(build(&config, 80), 1);
    strcpy(other.options, "-DX=2");
    assert_int_equal(build(&other, 90), 1);
    other = config;
    other.entry = "imx_activate_2";
    assert_int_equal(build(&other, 90), 1);
    other = config;
    other.source = "kernels/reduce/sm80.cu";
    assert_int_equal(build(&other, 90), 1);
    assert_int_equal(build(&config, 90), 0);
    int others;
    assert_int_equal(cubins(&others), 5);
}

/* Changes the file at its byte `at`, from the end if negative, or cuts it there. */
static void damage(long at, bool cut)
{
    int fd = open(file, O_RDWR);
    off_t where = lseek(fd, at, at < 0 ? SEEK_END : SEEK_SET);
    char byte;
    assert_true(fd >= 0 && where >= 0);
    if (cut) {
        assert_int_equal(ftruncate(fd, where), 0);
    } else {
        assert_int_equal(pread(fd, &byte, 1, where), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, where), 1);
    }
    close(fd);
}

static void damaged_files_are_replaced(void **state)
{
    (void)state;
    int others;
    build(&config, 90);
    assert_int_equal(cubins(&others), 1);
    struct stat found;
    assert_int_equal(stat(file, &found), 0);
    for (long at = 0; at < found.st_size; at++) { /* every byte counts */
        damage(at, false);
        assert_int_equal(build(&config, 90), 1);
        assert_int_equal(build(&config, 90), 0);
    }
    static const long lengths[] = { 0, 1, 47, 48, 50, -1 };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        damage(lengths[i], true);
        assert_int_equal(build(&config, 90), 1);
        assert_int_equal(build(&config, 90), 0);
    }
    assert_int_equal(cubins(&others), 1);
    assert_int_equal(others, 0);
}

static void another_kernels_file_is_not_taken(void **state)
{
    (void)state;
    char first[sizeof file];
    int others;
    build(&config, 90);
    cubins(&others);
    strcpy(first, file);
    imx_cuda_config other = config;
    other.source = "kernels/reduce/sm80.cu";
    build(&other, 90);
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));) {
        char name[512];
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        if (strstr(name, ".kernel") && strcmp(name, first) != 0)
            strcpy(file, name);
    }
    closedir(dir);
    assert_int_equal(rename(first, file), 0);
    assert_int_equal(build(&other, 90), 1);
    assert_int_equal(build(&other, 90), 0);
}

static void files_that_others_could_write(void **state)
{
    (void)state;
    int others;
    build(&config, 90);
    cubins(&others);
    assert_int_equal(chmod(file, 0620), 0);
    assert_int_equal(build(&config, 90), 1);
    assert_int_equal(build(&config, 90), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(file, 1, 1), 0);
        assert_int_equal(build(&config, 90), 1);
        assert_int_equal(build(&config, 90), 0);
    }
    char elsewhere[sizeof file + 8];
    snprintf(elsewhere, sizeof elsewhere, "%s.moved", file);
    assert_int_equal(rename(file, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, file), 0);
    assert_int_equal(build(&config, 90), 1);
    assert_int_equal(unlink(elsewhere), 0);
    assert_int_equal(build(&config, 90), 0); /* the link was replaced by a file */
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkfifo(file, 0600), 0); /* must not be waited for */
    assert_int_equal(build(&config, 90), 1);
    assert_int_equal(build(&config, 90), 0);
}

static void folders_that_will_not_do(void **state)
{
    (void)state;
    imx_folder cache;
    assert_int_equal(chmod(folder, 0770), 0);
    imx_folder_find(folder, &cache);
    assert_string_equal(cache.path, "");
    assert_non_null(strstr(cache.why, "others may write"));
    assert_int_equal(build(&config, 90), 1);
    assert_int_equal(build(&config, 90), 1); /* there is no cache */
    assert_int_equal(chmod(folder, 0700), 0);
    imx_folder_find("/dev/null/x", &cache);
    assert_string_equal(cache.path, "");
    assert_non_null(strstr(cache.why, "/dev/null/x"));
}

static void where_it_is(void **state)
{
    (void)state;
    imx_folder cache;
    char expected[128];
    struct stat found;
    setenv("HOME", folder, 1);
    unsetenv("XDG_CACHE_HOME");
    imx_folder_find("", &cache);
    snprintf(expected, sizeof expected, "%s/.cache/imbrex", folder);
    assert_string_equal(cache.path, expected);
    assert_int_equal(stat(expected, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0700);
    snprintf(expected, sizeof expected, "%s/xdg", folder);
    setenv("XDG_CACHE_HOME", expected, 1);
    imx_folder_find("", &cache);
    snprintf(expected, sizeof expected, "%s/xdg/imbrex", folder);
    assert_string_equal(cache.path, expected);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    imx_folder_find("", &cache);
    assert_string_equal(cache.path, "");
    assert_non_null(strstr(cache.why, "IMBREX_CACHE_DIR"));
}

enum { WRITERS = 4, ROUNDS = 50, KEYS = 3 };

/* Stores and loads the same keys as everyone else; what it loads must be whole. */
static void *write_and_read(void *arg)
{
    imx_folder cache;
    long broken = 0;
    char mine[5000];
    imx_folder_find(folder, &cache);
    for (int i = 0; i < ROUNDS * KEYS; i++) {
        imx_cache_key key = { { (uint64_t)(i % KEYS), 7 } };
        memset(mine, 'a' + (int)((i + (long)arg) % 26), sizeof mine);
        imx_cache_store(&cache, &key, mine, sizeof mine);
        char *cubin;
        size_t bytes;
        if (!imx_cache_load(&cache, &key, (void **)&cubin, &bytes)) {
            broken++; /* somebody's is always there */
            continue;
        }
        broken += bytes != sizeof mine || memcmp(cubin, cubin + 1, bytes - 1) != 0;
        free(cubin);
    }
    return (void *)broken;
}

static void many_writers(void **state)
{
    (void)state;
    pthread_t threads[WRITERS];
    pid_t child = fork();
    if (child == 0)
        _exit(write_and_read((void *)9L) != NULL);
    for (long i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_and_read, (void *)i), 0);
    for (int i = 0; i < WRITERS; i++) {
        void *broken;
        pthread_join(threads[i], &broken);
        assert_null(broken);
    }
    int status, others;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(cubins(&others), KEYS);
    assert_int_equal(others, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(second_time_is_free, begin, end),
        cmocka_unit_test_setup_teardown(everything_is_in_the_key, begin, end),
        cmocka_unit_test_setup_teardown(damaged_files_are_replaced, begin, end),
        cmocka_unit_test_setup_teardown(another_kernels_file_is_not_taken, begin, end),
        cmocka_unit_test_setup_teardown(files_that_others_could_write, begin, end),
        cmocka_unit_test_setup_teardown(folders_that_will_not_do, begin, end),
        cmocka_unit_test_setup_teardown(where_it_is, begin, end),
        cmocka_unit_test_setup_teardown(many_writers, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
