/* user.c - kernels of the caller's on GPUs: compiled or taken out of the cache, loaded, launched
 * with their team. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/source.h"
#include "cuda.h"
#include "nvrtc.h"

struct imx_user {
    CUmodule module;
    CUfunction function;
    imx_prepared *prepared; /* a product with hooks, in the place of both; or NULL */
    size_t shared_bytes;
    char name[64];
};

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* The product's pipeline, then the caller's text: neither sees the other's names and macros but for
 * the hooks', which imbrex_gemm.h declares before both. */
static imbrex_status join(const imx_user_desc *desc, const imx_cuda_config *config, char **text)
{
    static const char head[] = "#include \"imbrex_gemm.h\"\n"
                               "namespace imx_pipeline {\n";
    static const char tail[] =
        "\n#ifndef IMBREX_GEMM_KERNEL_H\n"
        "#error \"desc.gemm wants hooks: #include \\\"imbrex_gemm_kernel.h\\\" behind them\"\n"
        "#endif\n";
    char line[IMX_SOURCE_LINE];
    const imx_source *pipeline;
    imx_source_line(desc->file, line);
    IMX_TRY(imx_source_expand(config->source, &pipeline));
    size_t bytes = sizeof head + pipeline->bytes + sizeof line + desc->text_bytes + sizeof tail;
    IMX_TRY(imx_sys_alloc(1, bytes + 16, text));
    snprintf(*text, bytes + 16, "%s%s\n}\n%s%s%s", head, pipeline->text, line, desc->text, tail);
    return IMBREX_OK;
}

static imbrex_status compile(const imx_device *device, const imx_user_desc *desc,
                             const imx_cuda_config *config, void **cubin, size_t *bytes)
{
    if (!config)
        return imx_nvrtc_compile_user(desc, device->arch, cubin, bytes);
    char *text = NULL, *options = NULL;
    size_t length = strlen(config->options) + strlen(desc->options) + 2;
    imbrex_status status;
    IMX_GOTO(join(desc, config, &text));
    IMX_GOTO(imx_sys_alloc(1, length, &options));
    snprintf(options, length, "%s %s", config->options, desc->options);
    imx_user_desc joined = *desc;
    joined.text = text;
    joined.options = options;
    IMX_GOTO(imx_nvrtc_compile_user(&joined, device->arch, cubin, bytes));
fail:
    free(text);
    free(options);
    return status;
}

static imbrex_status add_pipeline(const imx_cuda_config *config, imx_cache_key *key)
{
    const imx_source *pipeline;
    IMX_TRY(imx_source_expand(config->source, &pipeline));
    imx_cache_key_add(key, &pipeline->key, sizeof pipeline->key);
    imx_cache_key_add(key, config->options, strlen(config->options) + 1);
    return IMBREX_OK;
}

static imbrex_status build(const imx_device *device, const imx_user_desc *desc,
                           const imx_cuda_config *config, void **cubin, size_t *bytes)
{
    if (!desc->text)
        return imx_fail(IMBREX_INVALID, "desc.source and desc.file are NULL: want one, in CUDA C");
    if (ends_with(desc->file, ".cubin")) {
        if (config)
            return imx_fail(IMBREX_INVALID,
                            "%s has a desc.gemm, whose pipeline is compiled with the hooks: want "
                            "their text",
                            desc->file);
        IMX_TRY(imx_sys_alloc(1, desc->text_bytes + 1, cubin));
        memcpy(*cubin, desc->text, desc->text_bytes);
        *bytes = desc->text_bytes;
        return IMBREX_OK;
    }
    imx_cache_key key = desc->key;
    int numbers[] = { device->arch, imx_nvrtc_version() };
    imx_cache_key_add(&key, numbers, sizeof numbers);
    if (config)
        IMX_TRY(add_pipeline(config, &key));
    if (imx_cache_load(&device->cache, &key, cubin, bytes))
        return IMBREX_OK;
    IMX_TRY(compile(device, desc, config, cubin, bytes));
    imx_cache_store(&device->cache, &key, *cubin, *bytes);
    return IMBREX_OK;
}

/* One at a time: ranks of one process want the same kernel; the second finds it in the cache. */
imbrex_status imx_cuda_user_build(const imx_device *device, const imx_user_desc *desc,
                                  const imx_cuda_config *config, void **cubin, size_t *bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    imbrex_status status = build(device, desc, config, cubin, bytes);
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- what a text has to have ----------------------------------------------------------------- */

imbrex_status imx_cuda_user_lacks(const imx_user_desc *desc)
{
    if (desc->product)
        return imx_fail(IMBREX_INVALID,
                        "%s has no hooks of kernel %s: want #define IMBREXD_GEMM_NAME %s in it, or "
                        "another desc.name",
                        desc->file, desc->name, desc->name);
    return imx_fail(IMBREX_INVALID,
                    "%s has no kernel %s: want IMBREXD_KERNEL(%s, ...) in it, or another "
                    "desc.name, or the desc.gemm that it is hooks for",
                    desc->file, desc->name, desc->name);
}

/* Beside a kernel's entry, or its hooks, stands an array that is as large as the args. */
static void name_args(const imx_user_desc *desc, char array[96])
{
    snprintf(array, 96, "imbrexd_%s_%s", desc->product ? "hooks" : "args", desc->name);
}

/* As a driver would: what is for GPUs of the same generation that are no newer. */
static imbrex_status look_at_kind(const imx_user_desc *desc, int arch, const void *cubin,
                                  size_t bytes)
{
    imx_cuda_file kind = imx_cuda_cubin_kind(cubin, bytes);
    int of = imx_cuda_cubin_arch(cubin, bytes);
    if (kind == IMX_CUDA_FILE_OF_HOST || kind == IMX_CUDA_FILE_UNKNOWN)
        return imx_fail(IMBREX_INVALID,
                        "%s is not for GPUs: want what nvcc -cubin makes of kernel %s", desc->file,
                        desc->name);
    if (kind == IMX_CUDA_FILE_CUBIN && of && (of / 10 != arch / 10 || of > arch))
        return imx_fail(IMBREX_INVALID,
                        "%s is for an sm_%d, not for an sm_%d: want nvcc -arch=sm_%d", desc->file,
                        of, arch, arch);
    return IMBREX_OK;
}

/* As find_entry below, and for a product imx_cuda_prepare_hooks, without a driver.  A driver takes
 * other kinds of files too, into which nobody looks here. */
static imbrex_status look_into(const imx_user_desc *desc, int arch, const void *cubin, size_t bytes,
                               size_t *args_bytes)
{
    char array[96];
    size_t code = 0;
    name_args(desc, array);
    if (ends_with(desc->file, ".cubin"))
        IMX_TRY(look_at_kind(desc, arch, cubin, bytes));
    if (imx_cuda_cubin_kind(cubin, bytes) != IMX_CUDA_FILE_CUBIN)
        return IMBREX_OK;
    if (!imx_cuda_cubin_find(cubin, bytes, array, false, args_bytes) ||
        (!desc->product && !imx_cuda_cubin_find(cubin, bytes, desc->name, true, &code)))
        return imx_cuda_user_lacks(desc);
    return IMBREX_OK;
}

imbrex_status imx_cuda_user_compile(imx_device *device, const imx_user_desc *desc, imx_user **user,
                                    imx_user_facts *facts)
{
    void *cubin = NULL;
    size_t bytes = 0;
    imx_cuda_config config = { 0 };
    (void)user;
    if (desc->product) {
        const imx_cuda_target form = { device->form, device->shared_bytes_most };
        IMX_TRY(imx_cuda_configure(desc->product, desc->largest, &form, device->arch, desc->blocks,
                                   &config));
    }
    IMX_TRY(imx_cuda_user_build(device, desc, desc->product ? &config : NULL, &cubin, &bytes));
    imbrex_status status = look_into(desc, device->arch, cubin, bytes, &facts->args_bytes);
    free(cubin);
    return status;
}

/* ---- loading --------------------------------------------------------------------------------- */

static imbrex_status attribute(const imx_user *user, int which, int *value)
{
    return imx_driver_check(imx_driver->cuFuncGetAttribute(value, which, user->function),
                            "cuFuncGetAttribute", "cannot look at kernel %s", user->name);
}

CUresult imx_cuda_user_args(CUmodule module, const imx_user_desc *desc, size_t *args_bytes)
{
    char array[96];
    CUdeviceptr at = 0;
    name_args(desc, array);
    return imx_driver->cuModuleGetGlobal(&at, args_bytes, module, array);
}

static imbrex_status find_entry(imx_user *user, const imx_user_desc *desc, size_t *args_bytes)
{
    CUresult found = imx_cuda_user_args(user->module, desc, args_bytes);
    if (found == CUDA_SUCCESS)
        found = imx_driver->cuModuleGetFunction(&user->function, user->module, user->name);
    if (found == CUDA_ERROR_NOT_FOUND)
        return imx_cuda_user_lacks(desc);
    return imx_driver_check(found, "cuModuleGetFunction", "cannot load kernel %s", user->name);
}

static imbrex_status check_shared(const imx_device *device, const imx_user *user)
{
    int fixed = 0;
    IMX_TRY(attribute(user, CU_FUNC_SHARED_SIZE_BYTES, &fixed));
    if (user->shared_bytes + (size_t)fixed > device->shared_bytes_most)
        return imx_fail(IMBREX_INVALID,
                        "desc.shared_bytes is %zu, and kernel %s itself has %d: a block of this "
                        "GPU has at most %zu",
                        user->shared_bytes, user->name, fixed, device->shared_bytes_most);
    return imx_cuda_function_ready(user->function, user->name, user->shared_bytes);
}

static imbrex_status load(const imx_device *device, imx_user *user, const imx_user_desc *desc,
                          const void *cubin, imx_user_facts *facts)
{
    CUresult loaded = imx_driver->cuModuleLoadData(&user->module, cubin);
    if (loaded == CUDA_ERROR_INVALID_IMAGE || loaded == CUDA_ERROR_NO_BINARY_FOR_GPU)
        return imx_fail(IMBREX_INVALID, "%s is not for this GPU, an sm_%d", desc->file,
                        device->arch);
    IMX_TRY(imx_driver_check(loaded, "cuModuleLoadData", "the GPU does not take kernel %s",
                             user->name));
    IMX_TRY(find_entry(user, desc, &facts->args_bytes));
    IMX_TRY(attribute(user, CU_FUNC_MAX_THREADS_PER_BLOCK, &facts->threads_most));
    return check_shared(device, user);
}

imbrex_status imx_cuda_user_prepare(imx_device *device, const imx_user_desc *desc, imx_user **out,
                                    imx_user_facts *facts)
{
    imx_user *user = NULL;
    void *cubin = NULL;
    size_t bytes = 0;
    CUcontext before;
    IMX_TRY(imx_sys_alloc(1, sizeof *user, &user));
    snprintf(user->name, sizeof user->name, "%s", desc->name);
    user->shared_bytes = desc->shared_bytes;
    imbrex_status status;
    if (desc->product) {
        IMX_GOTO(imx_cuda_prepare_hooks(device, desc, &user->prepared, &facts->args_bytes));
        facts->threads_most = 1;
        *out = user;
        return IMBREX_OK;
    }
    IMX_GOTO(imx_cuda_user_build(device, desc, NULL, &cubin, &bytes));
    IMX_GOTO(imx_cuda_enter(device->context, &before));
    status = load(device, user, desc, cubin, facts);
    imx_cuda_leave(device->context, before);
    if (status != IMBREX_OK)
        goto fail;
    free(cubin);
    *out = user;
    return IMBREX_OK;
fail:
    free(cubin);
    imx_cuda_user_destroy(device, user);
    return status;
}

void imx_cuda_user_destroy(imx_device *device, imx_user *user)
{
    if (!user)
        return;
    imx_cuda_prepared_destroy(device, user->prepared);
    imx_cuda_module_drop(device, user->module);
    free(user);
}

/* ---- launch ---------------------------------------------------------------------------------- */

imbrex_status imx_cuda_user_launch(imx_device *device, imx_user *user,
                                   const imx_user_launch *launch, imbrex_stream stream)
{
    if (launch->after)
        IMX_TRY(imx_cuda_event_wait(device, launch->after, stream));
    if (launch->product) {
        _Alignas(16) char args[IMX_ARGS_BYTES];
        size_t bytes = imx_user_join(launch, &device->watch, NULL, args);
        return imx_cuda_kernel_launch(device, user->prepared, args, bytes, stream);
    }
    imbrexd_team team = *launch->team;
    team.watch = device->watch;
    void *params[] = { (void *)launch->args, &team };
    CUlaunchConfig config = {
        .grid = { (unsigned)launch->grid, 1, 1 },
        .block = { (unsigned)launch->block, 1, 1 },
        .shared_bytes = (unsigned)user->shared_bytes,
        .stream = (CUstream)stream,
    };
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    CUresult launched = imx_driver->cuLaunchKernelEx(&config, user->function, params, NULL);
    imx_cuda_leave(device->context, before);
    if (launched == CUDA_ERROR_INVALID_HANDLE)
        return imx_fail(IMBREX_INVALID,
                        "stream, %p, is not one of GPU %d, where kernel %s was loaded", stream,
                        device->gpu, user->name);
    return imx_driver_check(launched, "cuLaunchKernelEx",
                            "cannot launch kernel %s with %d blocks of %d threads", user->name,
                            launch->grid, launch->block);
}
