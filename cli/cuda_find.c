/* cuda_find.c - the loader's path, /usr/local/cuda*, and the site-packages of python3. */
#include "cuda_find.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *open_file(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_matching(const char *pattern)
{
    glob_t found;
    void *library = NULL;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = found.gl_pathc; i-- > 0 && !library;) /* the highest version first */
            library = open_file(found.gl_pathv[i]);
    globfree(&found);
    return library;
}

static void *open_below(const char *folder, const char *below, const char *name)
{
    char pattern[1024];
    int length = snprintf(pattern, sizeof pattern, "%s%s/%s", folder, below, name);
    return length < (int)sizeof pattern ? open_matching(pattern) : NULL;
}

/* The folder that holds bin/python3, for the first python3 in PATH. */
static const char *python_home(char *home, size_t size)
{
    const char *path = secure_getenv("PATH");
    while (path && *path) {
        int length = (int)strcspn(path, ":");
        snprintf(home, size, "%.*s/python3", length, path);
        if (access(home, X_OK) == 0) {
            snprintf(home, size, "%.*s/..", length, path);
            return home;
        }
        path += length + (path[length] == ':');
    }
    return NULL;
}

static void *open_name(const char *name)
{
    static const char wheels[] = "/lib/python3*/site-packages/nvidia/*/lib";
    char home[512];
    const char *folders[] = { secure_getenv("CUDA_HOME"), secure_getenv("CUDA_PATH"),
                              "/usr/local/cuda*" };
    void *library = open_file(name);
    for (int i = 0; i < 3 && !library; i++)
        if (folders[i] && *folders[i])
            library = open_below(folders[i], "/lib64", name);
    if (!library && python_home(home, sizeof home))
        library = open_below(home, wheels, name);
    return library;
}

void *cuda_find_library(const char *variable, const char *const *names)
{
    const char *file = secure_getenv(variable);
    void *library = NULL;
    if (file && *file)
        return open_file(file);
    for (int i = 0; names[i] && !library; i++)
        library = open_name(names[i]);
    return library;
}

void *cuda_find_symbol(void *library, const char *name)
{
    return dlsym(library, name);
}
