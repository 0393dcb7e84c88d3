/* fake_nvrtc_real.c - the real compiler, as far as PTX: it needs no GPU, nor makes what would run
 * on one.  What it is asked for is what the library asks, but for "sm_90a", which becomes
 * "compute_90a", and what is for the assembler alone.  The whole way it goes through the same
 * PTX. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_nvrtc.h"

enum { OPTIONS_MOST = 128 };

struct nvrtc_program {
    nvrtcProgram real;
    imx_cache_key key; /* of all that it is compiled from */
    char *ptx;
    size_t bytes;
};

static const imx_nvrtc_calls *real;
static int (*get_ptx_size)(nvrtcProgram program, size_t *bytes);
static int (*get_ptx)(nvrtcProgram program, char *ptx);
static imx_folder kept;
static bool whole;               /* to what runs on a GPU */
static imx_cache_key *asked_for; /* or NULL: no more is wanted than that */
static const char *left_out;     /* or NULL */
static char stub[120];

static void add(imx_cache_key *key, const char *text)
{
    imx_cache_key_add(key, text, strlen(text) + 1);
}

static int version(int *major, int *minor)
{
    return real->nvrtcVersion(major, minor);
}

static int create(nvrtcProgram *program, const char *text, const char *name, int headers,
                  const char *const *header_texts, const char *const *header_names)
{
    if (fake_driver_may_fail("nvrtcCreateProgram"))
        return 1;
    *program = calloc(1, sizeof **program);
    if (left_out && strcmp(name, left_out) == 0)
        text = stub;
    add(&(*program)->key, text);
    add(&(*program)->key, name);
    for (int i = 0; i < headers; i++) {
        add(&(*program)->key, header_texts[i]);
        add(&(*program)->key, header_names[i]);
    }
    fake_driver_count(1);
    return real->nvrtcCreateProgram(&(*program)->real, text, name, headers, header_texts,
                                    header_names);
}

static int take_ptx(nvrtcProgram p)
{
    size_t bytes;
    if (get_ptx_size(p->real, &bytes))
        return 1;
    p->bytes = strlen(FAKE_PTX) + bytes;
    p->ptx = malloc(p->bytes + 1);
    strcpy(p->ptx, FAKE_PTX);
    return get_ptx(p->real, p->ptx + strlen(FAKE_PTX));
}

static int compile(nvrtcProgram p, int options, const char *const *words)
{
    const char *list[OPTIONS_MOST];
    char architecture[64];
    int count = 0, numbers[2];
    bool included = false;
    fake_driver_count_compiled();
    if (fake_driver_may_fail("nvrtcCompileProgram") || options > OPTIONS_MOST)
        return 1;
    for (int i = 0; i < options; i++) {
        const char *sm = strstr(words[i], "=sm_");
        included |= strncmp(words[i], "--include-path", 14) == 0;
        if (strncmp(words[i], "--gpu-architecture", 18) == 0 && sm)
            snprintf(architecture, sizeof architecture, "--gpu-architecture=compute_%s", sm + 4);
        if (whole)
            list[count++] = words[i];
        else if (strncmp(words[i], "--ptxas", 7) != 0)
            list[count++] = strncmp(words[i], "--gpu-arch", 10) == 0 ? architecture : words[i];
        add(&p->key, words[i]);
    }
    real->nvrtcVersion(&numbers[0], &numbers[1]);
    imx_cache_key_add(&p->key, numbers, sizeof numbers);
    add(&p->key, FAKE_PTX);
    if (asked_for) {
        *asked_for = p->key;
        return 1;
    }
    if (!whole && !included && imx_cache_load(&kept, &p->key, (void **)&p->ptx, &p->bytes))
        return 0;
    int result = real->nvrtcCompileProgram(p->real, count, list);
    if (!result)
        result = take_ptx(p);
    if (!result && !included)
        imx_cache_store(&kept, &p->key, p->ptx, p->bytes);
    return result;
}

static int cubin_size(nvrtcProgram p, size_t *bytes)
{
    if (whole)
        return real->nvrtcGetCUBINSize(p->real, bytes);
    *bytes = p->bytes;
    return fake_driver_may_fail("nvrtcGetCUBINSize");
}

static int cubin(nvrtcProgram p, char *to)
{
    if (whole)
        return real->nvrtcGetCUBIN(p->real, to);
    memcpy(to, p->ptx, p->bytes);
    return fake_driver_may_fail("nvrtcGetCUBIN");
}

static int log_size(nvrtcProgram p, size_t *bytes)
{
    return real->nvrtcGetProgramLogSize(p->real, bytes);
}

static int get_log(nvrtcProgram p, char *log)
{
    return real->nvrtcGetProgramLog(p->real, log);
}

static int destroy(nvrtcProgram *program)
{
    nvrtcProgram p = *program;
    int result = real->nvrtcDestroyProgram(&p->real);
    free(p->ptx);
    free(p);
    *program = NULL;
    fake_driver_count(-1);
    return result;
}

static const imx_nvrtc_calls calls = { version, create,   compile, cubin_size,
                                       cubin,   log_size, get_log, destroy };

static bool use(const char *folder)
{
    const char *file = getenv("IMBREX_NVRTC");
    imx_nvrtc = NULL;
    if (imx_nvrtc_open(file ? file : "") != IMBREX_OK)
        return false;
    real = imx_nvrtc;
    void *library = dlopen(imx_nvrtc_path(), RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    *(void **)&get_ptx_size = dlsym(library, "nvrtcGetPTXSize");
    *(void **)&get_ptx = dlsym(library, "nvrtcGetPTX");
    if (*folder)
        imx_folder_find(folder, &kept);
    imx_nvrtc = &calls;
    return get_ptx_size && get_ptx;
}

bool fake_nvrtc_use_real(const char *folder)
{
    whole = false;
    return use(folder);
}

bool fake_nvrtc_keep_ptx(const char *folder)
{
    whole = true;
    return use(folder);
}

void fake_nvrtc_leave_out(const char *name, const char *entry)
{
    left_out = name;
    snprintf(stub, sizeof stub, "extern \"C\" __global__ void %s() { __trap(); }", entry);
}

imx_cache_key fake_nvrtc_key(const char *name, const char *text, const char *options, int arch)
{
    imx_cache_key key = { { 0 } };
    void *cubin;
    size_t bytes;
    asked_for = &key;
    if (imx_nvrtc_compile(name, text, options, arch, &cubin, &bytes, NULL) == IMBREX_OK)
        abort();
    asked_for = NULL;
    return key;
}

/* PTX begins with comments, as "// Compiler Build ID: CL-36424714". */
bool fake_nvrtc_build(char build[80])
{
    static const char before[] = "// Compiler Build ID: ";
    nvrtcProgram program;
    size_t bytes;
    *build = '\0';
    if (real->nvrtcCreateProgram(&program, "__global__ void k() {}", "k", 0, NULL, NULL))
        return false;
    if (real->nvrtcCompileProgram(program, 0, NULL) == 0 && get_ptx_size(program, &bytes) == 0) {
        char *ptx = malloc(bytes + 1), *at = get_ptx(program, ptx) ? NULL : strstr(ptx, before);
        if (at)
            sscanf(at + strlen(before), "%79[^\n]", build);
        free(ptx);
    }
    real->nvrtcDestroyProgram(&program);
    return *build;
}
