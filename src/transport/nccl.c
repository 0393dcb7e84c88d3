/* nccl.c - finds NCCL wherever packages, toolkits and wheels put it, and fills the table. */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/wheels.h"

#define LIBRARY  "libnccl.so.2"
#define IN_WHEEL "/nvidia/nccl/lib/" LIBRARY

enum { VERSION_LEAST = 21800, PATH_MOST = 512 };

static imx_nccl_calls loaded; /* filled once and then only read, as is what follows */
static bool is_loaded;
static char found_at[PATH_MOST], version_text[24];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- finding it ------------------------------------------------------------------------------ */

static void *try(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    struct link_map *map = NULL;
    if (library && (dlinfo(library, RTLD_DI_LINKMAP, &map) || !map->l_name[0]))
        map = NULL;
    if (library) /* the whole path, also of what the loader found */
        snprintf(found_at, sizeof found_at, "%s", map ? map->l_name : path);
    return library;
}

static void *try_in(const char *folder, int length, const char *below)
{
    char path[PATH_MOST];
    bool fits = snprintf(path, sizeof path, "%.*s%s", length, folder, below) < (int)sizeof path;
    return fits ? try(path) : NULL;
}

/* The last that fits the pattern: of several Pythons the newest. */
static void *try_all(const char *folder, int length, const char *below)
{
    char pattern[PATH_MOST];
    glob_t found = { 0 };
    void *library = NULL;
    if (snprintf(pattern, sizeof pattern, "%.*s%s", length, folder, below) >= (int)sizeof pattern)
        return NULL;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = found.gl_pathc; i > 0 && !library; i--)
            library = try(found.gl_pathv[i - 1]);
        globfree(&found);
    }
    return library;
}

static void *look_beside_torch(void)
{
    char folder[PATH_MOST];
    bool found = imx_wheels_folder(folder, sizeof folder);
    return found ? try_in(folder, PATH_MOST, IN_WHEEL) : NULL;
}

/* Of the first python3 on PATH, which may be one of a virtual environment, and of the user's. */
static void *look_in_wheels(void)
{
    static const char below[] = "/../lib/python3*/*-packages" IN_WHEEL;
    void *library = NULL;
    for (const char *at = imx_env_get("PATH"); at && *at && !library;) {
        char python[PATH_MOST];
        int length = (int)strcspn(at, ":");
        bool fits = snprintf(python, sizeof python, "%.*s/python3", length, at) < PATH_MOST;
        if (fits && access(python, X_OK) == 0) {
            library = try_all(at, length, below);
            break;
        }
        at += length + (at[length] == ':');
    }
    const char *home = imx_env_get("HOME");
    if (!library && home && *home)
        library = try_all(home, (int)strlen(home), "/.local/lib/python3*/site-packages" IN_WHEEL);
    return library ? library : try_all("/usr", 4, "/local/lib/python3*/*-packages" IN_WHEEL);
}

/* One that the process has already, such as PyTorch's, goes by LIBRARY too. */
static void *look_everywhere(void)
{
    void *library = try(LIBRARY);
    if (!library)
        library = look_beside_torch();
    const char *folders[] = { imx_env_get("CUDA_HOME"), imx_env_get("CUDA_PATH"), "/usr/local/cuda",
                              "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu" };
    static const char *const below[] = { "/lib64/" LIBRARY, "/lib/" LIBRARY, "/" LIBRARY };
    for (int i = 0; i < 15 && !library; i++) {
        const char *folder = folders[i / 3];
        if (folder && *folder)
            library = try_in(folder, (int)strlen(folder), below[i % 3]);
    }
    return library ? library : look_in_wheels();
}

static imbrex_status check_version(void)
{
    int version = 0;
    if (loaded.ncclGetVersion(&version) != NCCL_SUCCESS)
        version = 0;
    snprintf(version_text, sizeof version_text, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return version >= VERSION_LEAST
               ? IMBREX_OK
               : imx_fail(IMBREX_UNSUPPORTED, "%s is NCCL %s: imbrex needs %d.%d or newer",
                          found_at, version_text, VERSION_LEAST / 10000, VERSION_LEAST / 100 % 100);
}

static imbrex_status load(const char *file)
{
    void *library = *file ? try(file) : look_everywhere();
    if (!library && *file)
        return imx_fail(IMBREX_UNSUPPORTED, "IMBREX_NCCL is %s, which does not load: %s", file,
                        dlerror());
    if (!library)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "no NCCL, which carries data between nodes of GPUs: " LIBRARY
                        " is not on the loader's path, beside PyTorch, in CUDA_HOME, in "
                        "/usr/local/cuda, or among the packages of python3; install NCCL or set "
                        "IMBREX_NCCL to its file");
#define LOAD(name, result, takes)                                                            \
    if (!(*(void **)&loaded.name = dlsym(library, #name))) {                                 \
        dlclose(library);                                                                    \
        return imx_fail(IMBREX_UNSUPPORTED, "%s lacks %s: imbrex needs NCCL %d.%d or newer", \
                        found_at, #name, VERSION_LEAST / 10000, VERSION_LEAST / 100 % 100);  \
    }
    IMX_NCCL_TABLE(LOAD)
#undef LOAD
    imbrex_status status = check_version();
    if (status != IMBREX_OK)
        dlclose(library);
    return status;
}

imbrex_status imx_nccl_open(const char *file, const imx_nccl_calls **calls)
{
    imbrex_status status = IMBREX_OK;
    pthread_mutex_lock(&lock);
    if (!is_loaded)
        status = load(file);
    is_loaded = status == IMBREX_OK;
    pthread_mutex_unlock(&lock);
    if (status == IMBREX_OK)
        *calls = &loaded;
    return status;
}

const char *imx_nccl_path(void)
{
    return found_at;
}

const char *imx_nccl_version(void)
{
    return version_text;
}
