/* nvrtc.c - finds the run-time compiler wherever toolkits and wheels put it, and compiles. */
#include "nvrtc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/source.h"
#include "base/wheels.h"

const imx_nvrtc_calls *imx_nvrtc;

static imx_nvrtc_calls loaded; /* filled once and then only read */
static char found_at[512];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { VERSION_LEAST = 12000, OPTIONS_MOST = IMX_USER_WORDS + 48 };

/* ---- finding it ------------------------------------------------------------------------------ */

static const char *const names[] = { "libnvrtc.so.13", "libnvrtc.so.12" };
enum { NAMES = sizeof names / sizeof names[0] };

static void *try(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library)
        snprintf(found_at, sizeof found_at, "%s", path);
    return library;
}

static void *try_in(const char *folder, const char *below)
{
    void *library = NULL;
    for (int i = 0; i < NAMES && !library; i++) {
        char path[sizeof found_at];
        if (snprintf(path, sizeof path, "%s%s/%s", folder, below, names[i]) < (int)sizeof path)
            library = try(path);
    }
    return library;
}

static void *look_beside_torch(void)
{
    static const char *const below[] = { "/nvidia/cu13/lib", "/nvidia/cuda_nvrtc/lib" };
    char folder[sizeof found_at];
    void *library = NULL;
    bool found = imx_wheels_folder(folder, sizeof folder);
    for (int i = 0; i < 2 && found && !library; i++)
        library = try_in(folder, below[i]);
    return library;
}

static void *look_everywhere(void)
{
    void *library = NULL;
    for (int i = 0; i < NAMES && !library; i++)
        library = try(names[i]);
    if (!library)
        library = look_beside_torch();
    static const char *const variables[] = { "CUDA_HOME", "CUDA_PATH" };
    for (int i = 0; i < 2 && !library; i++) {
        const char *home = imx_env_get(variables[i]);
        if (home && *home)
            library = try_in(home, "/lib64");
    }
    return library ? library : try_in("/usr/local/cuda", "/lib64");
}

static imbrex_status load(const char *file)
{
    void *library = *file ? try(file) : look_everywhere();
    if (!library && *file)
        return imx_fail(IMBREX_UNSUPPORTED, "IMBREX_NVRTC is %s, which does not load: %s", file,
                        dlerror());
    if (!library)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "no run-time compiler: neither %s nor %s is on the loader's path, beside "
                        "PyTorch, in CUDA_HOME/lib64 or in /usr/local/cuda/lib64; install NVRTC or "
                        "set IMBREX_NVRTC to its file",
                        names[0], names[1]);
#define LOAD(name, takes)                                                       \
    if (!(*(void **)&loaded.name = dlsym(library, #name)))                      \
        return imx_fail(IMBREX_UNSUPPORTED,                                     \
                        "%s is too old: it lacks %s; imbrex needs NVRTC %d.%d " \
                        "or newer",                                             \
                        found_at, #name, VERSION_LEAST / 1000, VERSION_LEAST % 1000 / 10);
    IMX_NVRTC_TABLE(LOAD)
#undef LOAD
    return IMBREX_OK;
}

imbrex_status imx_nvrtc_open(const char *file)
{
    imbrex_status status = IMBREX_OK;
    pthread_mutex_lock(&lock);
    if (!imx_nvrtc) {
        status = load(file);
        if (status == IMBREX_OK)
            imx_nvrtc = &loaded;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

int imx_nvrtc_version(void)
{
    int major = 0, minor = 0;
    return imx_nvrtc && imx_nvrtc->nvrtcVersion(&major, &minor) == 0 ? major * 1000 + minor * 10
                                                                     : 0;
}

const char *imx_nvrtc_path(void)
{
    return found_at;
}

/* ---- compiling ------------------------------------------------------------------------------- */

typedef struct job {
    nvrtcProgram program;
    char *words; /* the options, cut at the blanks */
    char *log;
    char *cubin;
    size_t bytes;
} job;

static void end(job *j)
{
    if (j->program) {
        int ignored = imx_nvrtc->nvrtcDestroyProgram(&j->program);
        (void)ignored;
    }
    free(j->words);
    free(j->log);
    free(j->cubin);
}

enum { HEADERS_MOST = 24 };

/* The headers of the C library, which are not there; and for a caller's kernel imbrex_device.h and
 * what belongs to it, which the library's own kernels hold in their text. */
static imbrex_status create(job *j, const char *name, const char *text, bool callers)
{
    const char *header_names[HEADERS_MOST], *headers[HEADERS_MOST];
    static const char own[] = "backends/cuda/rtc/";
    int count = 0;
    for (size_t i = 0; i < imx_source_file_count && count < HEADERS_MOST; i++) {
        const imx_source_file *file = &imx_source_files[i];
        bool of_c = strncmp(file->name, own, sizeof own - 1) == 0;
        if (!of_c && (!callers || strchr(file->name, '/')))
            continue;
        header_names[count] = file->name + (of_c ? sizeof own - 1 : 0);
        headers[count++] = file->text;
    }
    if (imx_nvrtc->nvrtcCreateProgram(&j->program, text, name, count, headers, header_names))
        return imx_fail(IMBREX_NO_MEMORY, "NVRTC has no memory to compile %s", name);
    return IMBREX_OK;
}

/* folder: where a caller's kernel finds what it includes, or NULL. */
static imbrex_status run(job *j, const char *options, const char *folder, int arch, int *result)
{
    char architecture[40];
    /* "a": wgmma, TMA multicast and setmaxnreg belong to this one architecture */
    snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%d%s", arch,
             arch == 90 ? "a" : "");
    /* imbrex.h declares host functions: this compiler takes them only as device ones, and warns of
     * their visibility. */
    const char *list[OPTIONS_MOST] = { architecture, "--std=c++17", "--ptxas-options=-v",
                                       "--device-as-default-execution-space",
                                       "--diag-suppress=1097" };
    int count = 5;
    char include[300];
    snprintf(include, sizeof include, "--include-path=%s", folder ? folder : "");
    if (folder)
        list[count++] = include;
    IMX_TRY(imx_sys_alloc(1, strlen(options) + 1, &j->words));
    strcpy(j->words, options);
    char *rest = NULL;
    for (char *word = strtok_r(j->words, IMX_USER_BLANKS, &rest); word && count < OPTIONS_MOST;
         word = strtok_r(NULL, IMX_USER_BLANKS, &rest))
        list[count++] = word;
    *result = imx_nvrtc->nvrtcCompileProgram(j->program, count, list);
    return IMBREX_OK;
}

static imbrex_status read_log(job *j)
{
    size_t bytes = 0;
    if (imx_nvrtc->nvrtcGetProgramLogSize(j->program, &bytes))
        bytes = 0;
    IMX_TRY(imx_sys_alloc(1, bytes + 1, &j->log));
    if (bytes && imx_nvrtc->nvrtcGetProgramLog(j->program, j->log))
        j->log[0] = '\0';
    return IMBREX_OK;
}

/* From the line of the first error on; a log begins with warnings. */
static const char *first_error(const char *log)
{
    const char *at = strstr(log, "error");
    while (at && at > log && at[-1] != '\n')
        at--;
    return at ? at : log;
}

/* cubin, and *log (or log NULL), are for free(). */
static imbrex_status take_cubin(job *j, const char *name, void **cubin, size_t *bytes, char **log)
{
    if (imx_nvrtc->nvrtcGetCUBINSize(j->program, &j->bytes) || !j->bytes)
        return imx_fail(IMBREX_INTERNAL, "NVRTC gave no cubin for %s", name);
    IMX_TRY(imx_sys_alloc(1, j->bytes, &j->cubin));
    if (imx_nvrtc->nvrtcGetCUBIN(j->program, j->cubin))
        return imx_fail(IMBREX_INTERNAL, "NVRTC gave no cubin for %s", name);
    *cubin = j->cubin;
    *bytes = j->bytes;
    j->cubin = NULL;
    if (log) {
        *log = j->log;
        j->log = NULL;
    }
    return IMBREX_OK;
}

imbrex_status imx_nvrtc_compile(const char *name, const char *text, const char *options, int arch,
                                void **cubin, size_t *bytes, char **log)
{
    job j = { 0 };
    int result = 0;
    imbrex_status status;
    IMX_GOTO(create(&j, name, text, false));
    IMX_GOTO(run(&j, options, NULL, arch, &result));
    IMX_GOTO(read_log(&j));
    if (result)
        status = imx_fail(IMBREX_INTERNAL, "NVRTC %d.%d does not compile %s for sm_%d (%s): %.300s",
                          imx_nvrtc_version() / 1000, imx_nvrtc_version() % 1000 / 10, name, arch,
                          options, first_error(j.log));
    else
        status = take_cubin(&j, name, cubin, bytes, log);
fail:
    end(&j);
    return status;
}

imbrex_status imx_nvrtc_compile_user(const imx_user_desc *desc, int arch, void **cubin,
                                     size_t *bytes)
{
    job j = { 0 };
    int result = 0;
    imbrex_status status;
    IMX_GOTO(create(&j, desc->file, desc->text, true));
    IMX_GOTO(run(&j, desc->options, desc->folder, arch, &result));
    IMX_GOTO(read_log(&j));
    if (result)
        status = imx_fail(IMBREX_INVALID, "NVRTC %d.%d does not compile kernel %s for sm_%d:\n%s",
                          imx_nvrtc_version() / 1000, imx_nvrtc_version() % 1000 / 10, desc->name,
                          arch, first_error(j.log));
    else
        status = take_cubin(&j, desc->file, cubin, bytes, NULL);
fail:
    end(&j);
    return status;
}
