/* folder.c - finds the folder, sees whose it is, reads and replaces files in it. */
#define _GNU_SOURCE
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "imbrex_device.h"

enum { LOCK_NAP_NS = 5000000 };

static bool is_ours(const struct stat *found)
{
    return found->st_uid == geteuid() && !(found->st_mode & (S_IWGRP | S_IWOTH));
}

/* ---- where it lies --------------------------------------------------------------------------- */

/* The system's owner is root; in a user namespace perhaps somebody without a number of his own, to
 * whom "/" belongs. */
static bool is_trusted(uid_t owner, uid_t system)
{
    return owner == geteuid() || owner == 0 || owner == system;
}

/* Who may write a folder may rename what is in it, unless it has the sticky bit, as /tmp has. */
bool imx_folder_is_firm(const char *path, imx_text *why)
{
    char part[PATH_MAX] = "/";
    struct stat found;
    if (stat(part, &found) != 0)
        return false;
    const uid_t system = found.st_uid;
    for (size_t length = 1;;) {
        if (lstat(part, &found) != 0) {
            imx_text_add(why, "%s: %s", part, strerror(errno));
            return false;
        }
        if (!is_trusted(found.st_uid, system)) {
            imx_text_add(why, "%s belongs to user %u", part, (unsigned)found.st_uid);
            return false;
        }
        if (found.st_mode & (S_IWGRP | S_IWOTH) && !(found.st_mode & S_ISVTX)) {
            imx_text_add(why, "others may write %s, which has no sticky bit", part);
            return false;
        }
        if (!path[length])
            return true;
        const char *end = strchr(path + length + 1, '/');
        length = end ? (size_t)(end - path) : strlen(path);
        memcpy(part, path, length);
        part[length] = '\0';
    }
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Makes path and what leads to it, for this user alone; 0, or errno of what could not be made. */
static int make_folders(const char *path)
{
    char part[sizeof((imx_folder *)0)->path];
    int error = 0;
    for (size_t i = 1; path[i - 1]; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) != 0 && errno != EEXIST && !error)
            error = errno;
    }
    return error;
}

/* -1, with errno, and EPERM if it is not ours alone. */
static int open_folder(const imx_folder *folder)
{
    errno = ENOENT;
    int fd = folder->path[0] ? open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    struct stat found;
    if (fd < 0 || (fstat(fd, &found) == 0 && is_ours(&found)))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

static bool add_path(const char *wanted, imx_folder *folder)
{
    const char *cache_home = imx_env_get("XDG_CACHE_HOME"), *home = imx_env_get("HOME");
    imx_text text = { .at = folder->path, .size = sizeof folder->path };
    if (*wanted)
        imx_text_add(&text, "%s", wanted);
    else if (cache_home && *cache_home)
        imx_text_add(&text, "%s/imbrex", cache_home);
    else if (home && *home)
        imx_text_add(&text, "%s/.cache/imbrex", home);
    return text.length > 0 && text.length < text.size;
}

void imx_folder_name(const char *wanted, imx_folder *folder)
{
    memset(folder, 0, sizeof *folder);
    if (add_path(wanted, folder))
        return;
    imx_text why = { .at = folder->why, .size = sizeof folder->why };
    imx_text_add(&why, "%s",
                 folder->path[0] ? "the folder's name is too long"
                                 : "HOME is not set; set IMBREX_CACHE_DIR");
    folder->path[0] = '\0';
}

/* What is missing is made only in a folder that can hold a cache: HOME may be somebody else's, as
 * after some ways to become root, and that user could not write a .cache of ours in it. */
static bool may_make(const imx_folder *folder, imx_text *why)
{
    char part[sizeof folder->path + 2], there[PATH_MAX];
    struct stat found;
    snprintf(part, sizeof part, "%s%s", folder->path[0] == '/' ? "" : "./", folder->path);
    while (!realpath(part, there)) {
        char *end = strrchr(part, '/');
        if (!end || !part[1])
            return true; /* what is wrong shows when it is made */
        end[end == part] = '\0';
    }
    bool none_missing = stat(folder->path, &found) == 0;
    bool no_folder = stat(there, &found) != 0 || !S_ISDIR(found.st_mode);
    return none_missing || no_folder || imx_folder_is_firm(there, why);
}

/* Made, opened and writable; false: why not. */
static bool is_usable(const imx_folder *folder, imx_text *why)
{
    if (!may_make(folder, why))
        return false;
    int unmade = make_folders(folder->path), fd = open_folder(folder);
    int error = fd >= 0 ? 0 : errno;
    if (fd >= 0 && faccessat(fd, ".", W_OK, AT_EACCESS) != 0)
        error = errno;
    if (fd >= 0)
        close(fd);
    if (fd < 0 && error == EPERM)
        imx_text_add(why, "%s belongs to someone else, or others may write it", folder->path);
    else if (error)
        imx_text_add(why, "%s: %s", folder->path,
                     strerror(error == ENOENT && unmade ? unmade : error));
    return !error;
}

/* From here on without links, which others may have put there. */
static bool resolve(imx_folder *folder, imx_text *why)
{
    char resolved[PATH_MAX];
    if (!realpath(folder->path, resolved)) {
        imx_text_add(why, "%s: %s", folder->path, strerror(errno));
        return false;
    }
    if (strlen(resolved) >= sizeof folder->path) {
        imx_text_add(why, "the folder's name without links is too long");
        return false;
    }
    strcpy(folder->path, resolved);
    return true;
}

void imx_folder_find(const char *wanted, imx_folder *folder)
{
    imx_folder_name(wanted, folder);
    imx_text why = { .at = folder->why, .size = sizeof folder->why };
    bool found = folder->path[0] && is_usable(folder, &why) && resolve(folder, &why) &&
                 imx_folder_is_firm(folder->path, &why);
    if (!found)
        folder->path[0] = '\0';
}

void imx_folder_info(const char *wanted, imx_text *text)
{
    imx_folder folder;
    imx_folder_find(wanted, &folder);
    if (folder.path[0])
        imx_text_add(text, "kernel cache: %s\n", folder.path);
    else
        imx_text_add(text, "kernel cache: none, every start compiles: %s\n", folder.why);
}

/* flock's own wait has no limit, and whoever holds the lock may be stopped. */
int imx_folder_lock(const imx_folder *folder, int64_t limit_ms)
{
    const struct timespec nap = { .tv_nsec = LOCK_NAP_NS };
    int64_t deadline_ns = imbrexd_now_ns() + limit_ms * 1000000;
    int fd = open_folder(folder);
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int error = errno;
        if ((error == EWOULDBLOCK || error == EINTR) && imbrexd_now_ns() < deadline_ns) {
            nanosleep(&nap, NULL);
            continue;
        }
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool read_all(int fd, void *to, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(fd, (char *)to + got, bytes - got);
        if (n == 0)
            errno = EIO; /* shorter than it was a moment ago */
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static void *read_file(int fd, bool of_anyone, size_t most, size_t *bytes)
{
    struct stat found;
    char *text = NULL;
    if (fstat(fd, &found) != 0)
        return NULL;
    errno = EPERM;
    if (!S_ISREG(found.st_mode) || (!of_anyone && !is_ours(&found)))
        return NULL;
    errno = EFBIG;
    if ((uint64_t)found.st_size > most)
        return NULL;
    errno = ENOMEM;
    if (imx_sys_alloc(1, (size_t)found.st_size + 1, &text) != IMBREX_OK)
        return NULL;
    if (read_all(fd, text, (size_t)found.st_size)) {
        *bytes = (size_t)found.st_size;
        return text;
    }
    int error = errno;
    free(text);
    errno = error;
    return NULL;
}

static void *read_opened(int fd, bool of_anyone, size_t most, size_t *bytes)
{
    void *text = fd >= 0 ? read_file(fd, of_anyone, most, bytes) : NULL;
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return text;
}

void *imx_folder_read(const imx_folder *folder, const char *name, size_t most, size_t *bytes)
{
    int at = open_folder(folder);
    if (at < 0)
        return NULL;
    int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    void *text = read_opened(fd, false, most, bytes);
    int error = errno;
    close(at);
    errno = error;
    return text;
}

void *imx_folder_read_path(const char *path, size_t most, size_t *bytes)
{
    return read_opened(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), true, most, bytes);
}

/* No two writers, of this process or another, have the same file before it is whole. */
static bool name_temporary(const char *name, char *temporary, size_t size)
{
    static uint32_t count;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    imx_text text = { .at = temporary, .size = size };
    imx_text_add(&text, "%s.%ld.%ld.%u", name, (long)getpid(), now.tv_nsec,
                 __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
    errno = ENAMETOOLONG;
    return text.length < size;
}

/* Writes beside it, in the folder `at`, then renames. */
static bool replace_file(int at, const char *name, mode_t mode, const struct iovec *parts,
                         int count)
{
    char temporary[PATH_MAX];
    if (!name_temporary(name, temporary, sizeof temporary))
        return false;
    int fd = openat(at, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    bool whole = fd >= 0;
    for (int i = 0; i < count && whole; i++)
        whole = imx_sys_write_all(fd, parts[i].iov_base, parts[i].iov_len);
    if (fd >= 0)
        whole = close(fd) == 0 && whole;
    whole = whole && renameat(at, temporary, at, name) == 0;
    int error = errno;
    if (fd >= 0 && !whole)
        unlinkat(at, temporary, 0);
    errno = error;
    return whole;
}

bool imx_folder_write(const imx_folder *folder, const char *name, const struct iovec *parts,
                      int count)
{
    int at = open_folder(folder);
    if (at < 0)
        return false;
    bool whole = replace_file(at, name, 0600, parts, count);
    int error = errno;
    close(at);
    errno = error;
    return whole;
}

bool imx_folder_write_path(const char *path, const struct iovec *parts, int count)
{
    char place[PATH_MAX];
    struct stat found;
    if (stat(path, &found) != 0)
        return replace_file(AT_FDCWD, path, 0666, parts, count);
    errno = EINVAL;
    return S_ISREG(found.st_mode) && realpath(path, place) &&
           replace_file(AT_FDCWD, place, 0666, parts, count);
}
