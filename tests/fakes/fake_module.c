/* fake_module.c - a module knows which kernel it is, and has what a trace wants to find in it. */
#include "fake_module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"
#include "fake_function.h"
#include "fake_nvrtc.h"
#include "fake_stream.h"
#include "ptx.h"

struct CUmod_st {
    char source[128];
    imx_trace_room traces; /* its global of this kind */
    CUfunction function;
    ptx_module *compiled; /* or NULL */
};

static int loads, live;

CUresult fake_module_load(CUmodule *module, const void *image)
{
    FAKE_TRY(fake_driver_outside_capture("cuModuleLoadData"));
    ptx_module *compiled = NULL;
    if (strncmp(image, FAKE_PTX, strlen(FAKE_PTX)) == 0) {
        char why[256];
        compiled = ptx_module_read(image, why);
        if (!compiled)
            fprintf(stderr, "cuModuleLoadData: %s\n", why);
    }
    if (!compiled && strncmp(image, FAKE_CUBIN, strlen(FAKE_CUBIN)) != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    *module = calloc(1, sizeof **module);
    (*module)->compiled = compiled;
    snprintf((*module)->source, sizeof(*module)->source, "%s",
             (const char *)image + strlen(FAKE_CUBIN));
    __atomic_add_fetch(&loads, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
    fake_driver_count(1);
    return CUDA_SUCCESS;
}

CUresult fake_module_unload(CUmodule module)
{
    free(module->function);
    ptx_module_free(module->compiled);
    free(module);
    __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
    fake_driver_count(-1);
    return CUDA_SUCCESS;
}

CUresult fake_module_function(CUfunction *function, CUmodule module, const char *name)
{
    FAKE_TRY(fake_driver_outside_capture("cuModuleGetFunction"));
    free(module->function);
    if (module->compiled)
        module->function = fake_function_compiled(name, module->compiled);
    else
        module->function = fake_function_make(name, &module->traces);
    *function = module->function;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult fake_module_global(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name)
{
    FAKE_TRY(fake_driver_outside_capture("cuModuleGetGlobal"));
    if (module->compiled) {
        const ptx_global *global = ptx_module_global(module->compiled, name);
        *at = global ? (CUdeviceptr)(uintptr_t)global->at : 0;
        *bytes = global ? global->bytes : 0;
        return global ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    }
    bool traces = strcmp(name, "imx_trace_to") == 0;
    *at = traces ? (CUdeviceptr)(uintptr_t)&module->traces : 0;
    *bytes = traces ? sizeof module->traces : fake_function_args_bytes(name);
    return *bytes ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

int fake_driver_loads(void)
{
    return loads;
}

int fake_driver_modules(void)
{
    return live;
}

void fake_module_forget(void)
{
    loads = live = 0;
}
