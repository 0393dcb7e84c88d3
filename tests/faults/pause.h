/* pause.h - two ranks, processes, that are stopped together for longer than their timeout. */
#ifndef PAUSE_H
#define PAUSE_H

#include <stdbool.h>
#include <sys/types.h>

#include "ranks.h"

/* In memory that both ranks share. */
typedef struct pause_stage {
    pid_t pids[2];   /* each rank's own, before... */
    int ready, over; /* ...one of them says ready; atomic */
} pause_stage;

/* Until the word is set, or for ten seconds; whether it is. */
bool pause_await(const int *word);

/* Runs both.  Once they are ready they stop for three timeouts; then the one that waits goes on a
 * little sooner than rank `late`, before which over is set.  0 if all went well. */
int pause_run(pause_stage *stage, int late, int64_t timeout_ms, rank_main run, void *ctx);

#endif /* PAUSE_H */
