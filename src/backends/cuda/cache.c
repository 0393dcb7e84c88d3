/* cache.c - the files of the cache: | magic | key | bytes | digest | cubin |.
 *
 * Keys and digests are SipHash, which the rendezvous needs anyway, with constant keys: they have to
 * tell texts apart and to see damage.  Keeping an attacker out is the work of owner and mode: who
 * may write the folder may as well write the program.
 */
#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../core/siphash.h"

typedef struct header {
    char magic[8];
    imx_cache_key key, digest;
    uint64_t bytes;
} header;

static const char magic[8] = "imbrex1"; /* changes with the layout */

enum { CUBIN_BYTES_MOST = 64 << 20, NAME_MOST = 96 };

void imx_cache_key_add(imx_cache_key *key, const void *part, size_t bytes)
{
    const uint64_t first[2] = { key->words[0], key->words[1] };
    const uint64_t second[2] = { key->words[1] ^ 0x9e3779b97f4a7c15, key->words[0] };
    key->words[0] = imx_siphash(first, part, bytes);
    key->words[1] = imx_siphash(second, part, bytes);
}

static imx_cache_key digest_of(const void *cubin, size_t bytes)
{
    imx_cache_key digest = { { 1, 2 } };
    imx_cache_key_add(&digest, cubin, bytes);
    return digest;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static bool is_ours(const struct stat *found)
{
    return found->st_uid == geteuid() && !(found->st_mode & (S_IWGRP | S_IWOTH));
}

/* Makes path and what leads to it, for this user alone. */
static void make_folders(const char *path)
{
    char part[sizeof((imx_cache *)0)->folder];
    for (size_t i = 1; path[i - 1]; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        mkdir(part, 0700); /* if this one fails the last one does, and that is looked at */
    }
}

/* -1, with errno, and EPERM if it is not ours alone. */
static int open_folder(const imx_cache *cache)
{
    int fd = open(cache->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat found;
    if (fd < 0 || (fstat(fd, &found) == 0 && is_ours(&found)))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

static bool name_folder(const char *wanted, imx_cache *cache)
{
    const char *cache_home = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    imx_text text = { .at = cache->folder, .size = sizeof cache->folder };
    if (*wanted)
        imx_text_add(&text, "%s", wanted);
    else if (cache_home && *cache_home)
        imx_text_add(&text, "%s/imbrex", cache_home);
    else if (home && *home)
        imx_text_add(&text, "%s/.cache/imbrex", home);
    return text.length > 0 && text.length < text.size;
}

void imx_cache_find(const char *wanted, imx_cache *cache)
{
    memset(cache, 0, sizeof *cache);
    imx_text why = { .at = cache->why, .size = sizeof cache->why };
    if (!name_folder(wanted, cache)) {
        imx_text_add(&why, "%s",
                     cache->folder[0] ? "the folder's name is too long"
                                      : "HOME is not set; set IMBREX_CACHE_DIR");
        cache->folder[0] = '\0';
        return;
    }
    make_folders(cache->folder);
    int fd = open_folder(cache);
    int error = errno;
    if (fd >= 0 && faccessat(fd, ".", W_OK, AT_EACCESS) == 0) {
        close(fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    if (fd < 0 && error == EPERM)
        imx_text_add(&why, "%s belongs to someone else, or others may write it", cache->folder);
    else
        imx_text_add(&why, "%s: %s", cache->folder, strerror(fd < 0 ? error : errno));
    cache->folder[0] = '\0';
}

/* ---- files ----------------------------------------------------------------------------------- */

static void name_file(const imx_cache_key *key, const char *end, char name[NAME_MOST])
{
    snprintf(name, NAME_MOST, "%016llx%016llx%s", (unsigned long long)key->words[0],
             (unsigned long long)key->words[1], end);
}

static bool read_all(int fd, void *to, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(fd, (char *)to + got, bytes - got);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool write_all(int fd, const void *from, size_t bytes)
{
    for (size_t put = 0; put < bytes;) {
        ssize_t n = write(fd, (const char *)from + put, bytes - put);
        if (n < 0 && errno != EINTR)
            return false;
        put += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* The cubin in an open file, or NULL. */
static void *read_file(int fd, const imx_cache_key *key, size_t *bytes)
{
    struct stat found;
    header h;
    if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode) || !is_ours(&found) ||
        !read_all(fd, &h, sizeof h) || memcmp(h.magic, magic, sizeof magic) != 0 ||
        memcmp(&h.key, key, sizeof *key) != 0 || h.bytes == 0 || h.bytes > CUBIN_BYTES_MOST ||
        (uint64_t)found.st_size != sizeof h + h.bytes)
        return NULL;
    void *cubin = NULL;
    if (imx_sys_alloc(1, h.bytes, &cubin) != IMBREX_OK)
        return NULL;
    imx_cache_key digest = { { 0, 0 } };
    if (read_all(fd, cubin, h.bytes))
        digest = digest_of(cubin, h.bytes);
    if (memcmp(&digest, &h.digest, sizeof digest) != 0) {
        free(cubin);
        return NULL;
    }
    *bytes = h.bytes;
    return cubin;
}

bool imx_cache_load(const imx_cache *cache, const imx_cache_key *key, void **cubin, size_t *bytes)
{
    int folder = cache->folder[0] ? open_folder(cache) : -1;
    if (folder < 0)
        return false;
    char name[NAME_MOST];
    name_file(key, ".cubin", name);
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close(folder);
    if (fd < 0)
        return false;
    *cubin = read_file(fd, key, bytes);
    close(fd);
    return *cubin != NULL;
}

/* No two writers, of this process or another, have the same file before it is whole. */
static void name_temporary(const imx_cache_key *key, char name[NAME_MOST])
{
    static uint32_t count;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char end[48];
    snprintf(end, sizeof end, ".%ld.%ld.%u", (long)getpid(), now.tv_nsec,
             __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
    name_file(key, end, name);
}

void imx_cache_store(const imx_cache *cache, const imx_cache_key *key, const void *cubin,
                     size_t bytes)
{
    int folder = cache->folder[0] ? open_folder(cache) : -1;
    if (folder < 0)
        return;
    char temporary[NAME_MOST], name[NAME_MOST];
    name_temporary(key, temporary);
    name_file(key, ".cubin", name);
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
        header h = { .key = *key, .digest = digest_of(cubin, bytes), .bytes = bytes };
        memcpy(h.magic, magic, sizeof magic);
        bool whole = write_all(fd, &h, sizeof h) && write_all(fd, cubin, bytes);
        whole = close(fd) == 0 && whole;
        if (!whole || renameat(folder, temporary, folder, name) != 0)
            unlinkat(folder, temporary, 0);
    }
    close(folder);
}
