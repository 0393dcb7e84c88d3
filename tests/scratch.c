/* scratch.c - makes, fills and removes a test's directory. */
#include "scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[4000];

int scratch_make(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/scratch-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type;
    return at->level == 0 ? 0 : remove(path);
}

void scratch_clear(void)
{
    assert_int_equal(nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

int scratch_remove(void **state)
{
    (void)state;
    scratch_clear();
    return rmdir(directory);
}

const char *scratch_path(const char *name)
{
    static char paths[8][4200];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

void scratch_directory(const char *name)
{
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
}

/* Over what was there, then cut: emptying a file first makes some file systems wait. */
void scratch_write(const char *name, const void *data, size_t bytes)
{
    int fd = open(scratch_path(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(close(fd), 0);
}

int scratch_count(void)
{
    DIR *listing = opendir(directory);
    int count = 0;
    assert_non_null(listing);
    while (readdir(listing))
        count++;
    closedir(listing);
    return count - 2; /* . and .. */
}

unsigned char *scratch_read(const char *name, size_t *bytes)
{
    struct stat info;
    FILE *file = fopen(scratch_path(name), "r");
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &info), 0);
    *bytes = (size_t)info.st_size;
    unsigned char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

void scratch_write_tensors(const char *name, const char *header, size_t data_bytes)
{
    size_t length = strlen(header), total = 8 + length + data_bytes;
    unsigned char *file = malloc(total);
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + length + i] = (unsigned char)i;
    scratch_write(name, file, total);
    free(file);
}

int scratch_log(void)
{
    int file = memfd_create("scratch", MFD_CLOEXEC);
    assert_true(file >= 0 && fcntl(file, F_SETFL, O_APPEND) == 0);
    return file;
}
