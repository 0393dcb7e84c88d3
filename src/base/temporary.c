/* temporary.c - makes the folder, and reaches what is in it by its descriptor alone. */
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
    char parent[PATH_MAX], words[500] = "";
    imx_text why = { .at = words, .size = sizeof words };
    if (!wanted || !*wanted)
        wanted = "/tmp";
    *out = (imx_temporary){ .at = -1 };
    if (strlen(wanted) >= sizeof parent)
        return imx_fail(IMBREX_INVALID, "TMPDIR has %zu characters: want at most %zu",
                        strlen(wanted), sizeof parent - 1);
    if (!realpath(wanted, parent))
        return imx_fail_errno("cannot find %s, where TMPDIR says to make a folder to compile in",
                              wanted);
    if (imx_folder_is_firm(parent, &why))
        return make_in(parent, out);
    if (kept->path[0])
        return make_in(kept->path, out);
    return imx_fail(IMBREX_SYSTEM,
                    "no folder to compile in that others cannot exchange: %s; there is no cache "
                    "folder, %s; set TMPDIR to a folder that only you may write",
                    words, kept->why);
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
