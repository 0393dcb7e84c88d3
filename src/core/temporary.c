/* temporary.c - looks at every folder that leads there: who may write one of them may rename what
 * is in it, unless it has the sticky bit, as /tmp has. */
#define _GNU_SOURCE
#include "temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- where ----------------------------------------------------------------------------------- */

/* The system's owner is root; in a user namespace perhaps somebody without a number of his own, to
 * whom "/" belongs. */
static bool is_trusted(uid_t owner, uid_t system)
{
    return owner == geteuid() || owner == 0 || owner == system;
}

/* path has no links in it.  False: why not, and the folder that is to blame. */
static bool is_firm(const char *path, imx_text *why)
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

static imbrex_status make_in(const char *parent, imx_temporary *out)
{
    static const char name[] = "/imbrex-XXXXXX";
    if (strlen(parent) + sizeof name > sizeof out->path)
        return imx_fail(IMBREX_INVALID,
                        "TMPDIR, without links, has %zu characters: want at most %zu",
                        strlen(parent), sizeof out->path - sizeof name);
    snprintf(out->path, sizeof out->path, "%s%s", strcmp(parent, "/") ? parent : "", name);
    if (!mkdtemp(out->path)) {
        imbrex_status status = imx_fail_errno(
            "cannot make the folder %s to compile in, which TMPDIR says where to put", out->path);
        out->path[0] = '\0';
        return status;
    }
    struct stat found;
    out->at = open(out->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (out->at < 0)
        return imx_fail_errno("cannot open the folder %s to compile in", out->path);
    if (fstat(out->at, &found) != 0 || found.st_uid != geteuid() || found.st_mode & 077)
        return imx_fail(IMBREX_SYSTEM, "%s is not the folder that was made to compile in",
                        out->path);
    return IMBREX_OK;
}

imbrex_status imx_temporary_make(const imx_folder *kept, imx_temporary *out)
{
    const char *wanted = imx_env_get("TMPDIR");
    char parent[PATH_MAX], words[2][500];
    imx_text why = { .at = words[0], .size = sizeof words[0] };
    imx_text nor = { .at = words[1], .size = sizeof words[1] };
    if (!wanted || !*wanted)
        wanted = "/tmp";
    *out = (imx_temporary){ .at = -1 };
    if (strlen(wanted) >= sizeof parent)
        return imx_fail(IMBREX_INVALID, "TMPDIR has %zu characters: want at most %zu",
                        strlen(wanted), sizeof parent - 1);
    if (!realpath(wanted, parent))
        return imx_fail_errno("cannot find %s, where TMPDIR says to make a folder to compile in",
                              wanted);
    if (is_firm(parent, &why))
        return make_in(parent, out);
    if (!kept->path[0])
        imx_text_add(&nor, "there is no cache folder, %s", kept->why);
    else if (!realpath(kept->path, parent))
        imx_text_add(&nor, "%s: %s", kept->path, strerror(errno));
    else if (is_firm(parent, &nor))
        return make_in(parent, out);
    return imx_fail(
        IMBREX_SYSTEM,
        "no folder to compile in whose files others cannot exchange: %s; %s; set TMPDIR "
        "to a folder that only you may write",
        words[0], words[1]);
}

void imx_temporary_remove(imx_temporary *folder)
{
    int listing = folder->at >= 0 ? fcntl(folder->at, F_DUPFD_CLOEXEC, 0) : -1;
    DIR *files = listing >= 0 ? fdopendir(listing) : NULL;
    for (struct dirent *entry; files && (entry = readdir(files));)
        unlinkat(folder->at, entry->d_name, 0); /* . and .. stay */
    if (files)
        closedir(files);
    else if (listing >= 0)
        close(listing);
    if (folder->at >= 0)
        close(folder->at);
    if (folder->path[0])
        rmdir(folder->path);
    folder->at = -1;
    folder->path[0] = '\0';
}

/* ---- files ----------------------------------------------------------------------------------- */

int imx_temporary_open(const imx_temporary *folder, const char *name)
{
    int fd = openat(folder->at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat found;
    if (fd < 0 || (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid()))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

imbrex_status imx_temporary_put(const imx_temporary *folder, const char *name, const char *first,
                                const char *text, size_t bytes)
{
    int fd = openat(folder->at, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    imbrex_status status = IMBREX_OK;
    if (fd < 0)
        return imx_fail_errno("cannot make %s in %s", name, folder->path);
    if (!imx_sys_write_all(fd, first, strlen(first)) || !imx_sys_write_all(fd, text, bytes))
        status = imx_fail_errno("cannot write %s in %s", name, folder->path);
    close(fd);
    return status;
}
