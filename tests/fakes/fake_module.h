/* fake_module.h - the fake driver's modules. */
#ifndef FAKE_MODULE_H
#define FAKE_MODULE_H

#include "backends/cuda/driver.h"

CUresult fake_module_load(CUmodule *module, const void *image);
CUresult fake_module_unload(CUmodule module);
CUresult fake_module_function(CUfunction *function, CUmodule module, const char *name);
CUresult fake_module_global(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name);

void fake_module_forget(void); /* how many there were */

#endif /* FAKE_MODULE_H */
