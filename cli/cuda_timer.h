/* cuda_timer.h - a clock that the GPU itself reads: two events on the stream that is timed.
 *
 * The stream is one of ordinary priority, as callers have them.
 *
 *     hold ── barrier of the group ── begin ── calls ── end
 *
 * hold keeps the stream from starting until the host has enqueued what follows and calls release,
 * so that what the host needs for it is not timed.
 */
#ifndef CLI_CUDA_TIMER_H
#define CLI_CUDA_TIMER_H

#include "imbrex.h"

typedef struct cuda_timer cuda_timer;

/* device as imbrex_group_device has it, "cuda:1".  Its primary context, which the operators share,
 * becomes this thread's current one. */
IMBREX_TRY cuda_timer_open(const char *device, cuda_timer **out);
void cuda_timer_close(cuda_timer *timer); /* NULL is fine; streams must be idle */

imbrex_stream cuda_timer_stream(const cuda_timer *timer); /* the one that is timed */

/* Holds the stream until release, one second at most: a device that takes no more work before it
 * has done some must not wait for a host that waits for it. */
IMBREX_TRY cuda_timer_hold(cuda_timer *timer);
void cuda_timer_release(cuda_timer *timer);

IMBREX_TRY cuda_timer_begin(cuda_timer *timer);
IMBREX_TRY cuda_timer_end(cuda_timer *timer);

/* Microseconds from begin to end, once the stream is idle. */
IMBREX_TRY cuda_timer_us(cuda_timer *timer, double *us);

#endif /* CLI_CUDA_TIMER_H */
