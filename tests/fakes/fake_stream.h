/* fake_stream.h - the half of the fake driver that does work: streams, events, kernels, graphs. */
#ifndef FAKE_STREAM_H
#define FAKE_STREAM_H

#include "backends/cuda/driver.h"

CUresult fake_stream_create(CUstream *stream);
void fake_stream_set_gpu(CUstream stream, int gpu);
int fake_stream_gpu(CUstream stream); /* -1: any */
void fake_stream_destroy(CUstream stream);
CUresult fake_stream_sync(CUstream stream);
bool fake_stream_captures(void); /* this thread is in the middle of a capture */
CUresult fake_stream_capture(CUstream stream, int *state, uint64_t *number, void **graph,
                             const void **after, size_t *after_count);

CUevent fake_event_create(void);
void fake_event_destroy(CUevent event);
CUresult fake_event_record(CUevent event, CUstream stream);
CUresult fake_event_wait(CUevent event, CUstream stream);

CUresult fake_stream_copy(void *to, const void *from, size_t bytes, CUstream stream);
CUresult fake_stream_call(CUstream stream, void (*fn)(void *arg), void *arg);
CUresult fake_stream_set(void *at, int value, size_t bytes, CUstream stream);

CUresult fake_stream_launch(CUfunction function, const CUlaunchConfig *config, void **params);

#endif /* FAKE_STREAM_H */
