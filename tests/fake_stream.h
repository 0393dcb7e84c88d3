/* fake_stream.h - the half of the fake driver that does work: streams, events, kernels, graphs. */
#ifndef FAKE_STREAM_H
#define FAKE_STREAM_H

#include "backends/cuda/driver.h"
#include "kernels/trace.h"

CUresult fake_stream_create(CUstream *stream);
void fake_stream_set_gpu(CUstream stream, int gpu);
int fake_stream_gpu(CUstream stream); /* -1: any */
void fake_stream_destroy(CUstream stream);
CUresult fake_stream_sync(CUstream stream);
bool fake_stream_captures(void); /* this thread is in the middle of a capture */
CUresult fake_stream_capturing(CUstream stream, int *state);

CUevent fake_event_create(void);
void fake_event_destroy(CUevent event);
CUresult fake_event_record(CUevent event, CUstream stream);
CUresult fake_event_wait(CUevent event, CUstream stream);

CUresult fake_stream_copy(void *to, const void *from, size_t bytes, CUstream stream);
CUresult fake_stream_call(CUstream stream, void (*fn)(void *arg), void *arg);
CUresult fake_stream_set(void *at, int value, size_t bytes, CUstream stream);

/* A kernel by its entry, or a caller's by its name, for free(); NULL if there is none.  Once traces
 * has room, each block of it notes one tile there, and itself. */
CUfunction fake_function_make(const char *entry, const imx_trace_room *traces);
CUresult fake_function_launch(CUfunction function, int blocks, size_t shared_bytes, void **params,
                              CUstream stream);

/* What a caller's kernel takes, by the array that it leaves; 0: there is none. */
size_t fake_function_args_bytes(const char *array);

#endif /* FAKE_STREAM_H */
