/* fake_calls.h - cuda_calls.h on fake GPUs; of one process. */
#ifndef FAKE_CALLS_H
#define FAKE_CALLS_H

#include <stdbool.h>

#include "cuda.h"

enum { FAKE_ELAPSED_MS = 2 }; /* from any event to any other */

extern struct fake_calls {
    int live;            /* contexts, streams and events */
    int graphs, replays; /* graphs not yet destroyed; launches of all */
    const char *failing; /* the call that fails, or NULL */
    bool one_gpu;        /* every index is of the same */
} fake_calls;

extern const cuda_calls fake_calls_table;

/* Waits for the host function that holds a stream, if there is one. */
void fake_calls_join(void);

#endif /* FAKE_CALLS_H */
