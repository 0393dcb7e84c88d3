/* fake_memory.h - the fake driver's memory: cuMem, whose descriptors pass between processes, and
 * cuMemAlloc, whose handles open in other processes. */
#ifndef FAKE_MEMORY_H
#define FAKE_MEMORY_H

#include "backends/cuda/driver.h"

CUresult fake_memory_granularity(size_t *bytes, const CUmemAllocationProp *prop, int which);
CUresult fake_memory_create(CUmemHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                            unsigned long long flags);
CUresult fake_memory_release(CUmemHandle handle);
CUresult fake_memory_reserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags);
CUresult fake_memory_unreserve(CUdeviceptr at, size_t bytes);
CUresult fake_memory_map(CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle,
                         unsigned long long flags);
CUresult fake_memory_unmap(CUdeviceptr at, size_t bytes);
CUresult fake_memory_import(CUmemHandle *handle, void *from, int type);

/* Whose memory lies there; -1: the host's. */
int fake_memory_gpu(const void *at);

void fake_memory_fill(void *at, int value, size_t bytes);

CUresult fake_memory_alloc(CUdeviceptr *at, size_t bytes);
CUresult fake_memory_free(CUdeviceptr at);
CUresult fake_memory_handle(CUipcHandle *handle, CUdeviceptr at);
CUresult fake_memory_open(CUdeviceptr *at, CUipcHandle handle, unsigned flags);
CUresult fake_memory_close(CUdeviceptr at);

#endif /* FAKE_MEMORY_H */
