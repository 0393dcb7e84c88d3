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

#include "launch.h"
#include "timeline.h"

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

/* Whether the folder of path is there; path's name in it to *name. */
static bool stat_folder(const char *path, struct stat *folder, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    char *text = slash ? strndup(path, (size_t)(*name - path)) : strdup(".");
    bool there = text && stat(text, folder) == 0;
    free(text);
    return there;
}

/* In a folder where anybody may put one, such as /tmp, a link of somebody else's may lead to any
 * file of the user's.  The kernel may refuse to open such a link, but realpath opens nothing. */
static bool is_foreign_link(const char *path)
{
    struct stat link, folder;
    const char *name;
    return lstat(path, &link) == 0 && S_ISLNK(link.st_mode) && stat_folder(path, &folder, &name) &&
           folder.st_mode & S_ISVTX && folder.st_mode & S_IWOTH && link.st_uid != geteuid() &&
           link.st_uid != folder.st_uid;
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
    if (there && is_foreign_link(path)) {
        errno = EACCES;
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
    const char *name, *other_name;
    bool there = stat(path, &a) == 0, other_there = stat(other, &b) == 0;
    if (there != other_there)
        return false;
    if (!there && (!stat_folder(path, &a, &name) || !stat_folder(other, &b, &other_name) ||
                   strcmp(name, other_name) != 0))
        return false;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int output_check_both(const options_page *page, const char *path, const char *picture)
{
    char error[512];
    if (!launch_is_first())
        return 0;
    if (path && !output_check(path))
        return options_wrong(page, "cannot write '%s': %s", path, output_reason());
    if (picture && !timeline_check(picture, error, sizeof error))
        return options_wrong(page, "%s", error);
    if (path && picture && output_same(path, picture))
        return options_wrong(page, "--output and --timeline are both '%s': name two files", path);
    return 0;
}
