/* output.c - creates a file beside its place and renames it. */
#define _GNU_SOURCE
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ATTEMPTS = 1000, NOT_ORDINARY = EINVAL };

static bool open_beside(output *o)
{
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (asprintf(&o->beside, "%s.%ld-%d.tmp", o->path, (long)getpid(), attempt) < 0) {
            errno = ENOMEM;
            return false;
        }
        o->fd = open(o->beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd >= 0)
            return true;
        int error = errno;
        free(o->beside);
        errno = error;
        if (error != EEXIST)
            break;
    }
    return false;
}

bool output_begin(output *o, const char *path)
{
    struct stat info;
    *o = (output){ .fd = -1 };
    errno = ENOENT;
    if (!*path)
        return false;
    bool there = stat(path, &info) == 0;
    if (there && !S_ISREG(info.st_mode)) { /* a device would be replaced */
        errno = S_ISDIR(info.st_mode) ? EISDIR : NOT_ORDINARY;
        return false;
    }
    o->path = there ? realpath(path, NULL) : strdup(path);
    if (!o->path)
        return false;
    if (open_beside(o))
        return true;
    int error = errno;
    free(o->path);
    errno = error;
    return false;
}

bool output_end(output *o, bool good)
{
    int error = errno;
    bool closed = close(o->fd) == 0;
    bool placed = good && closed && rename(o->beside, o->path) == 0;
    if (good && !placed)
        error = errno;
    if (!placed)
        unlink(o->beside);
    free(o->beside);
    free(o->path);
    errno = error;
    return placed;
}

const char *output_reason(void)
{
    return errno == NOT_ORDINARY ? "it must be an ordinary file" : strerror(errno);
}

bool output_check(const char *path)
{
    output o;
    if (!output_begin(&o, path))
        return false;
    output_end(&o, false);
    return true;
}

bool output_same(const char *path, const char *other)
{
    struct stat a, b;
    if (strcmp(path, other) == 0)
        return true;
    return stat(path, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}
