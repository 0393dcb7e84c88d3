/* progress.h - a progress bar on standard error if that is a terminal, and nothing otherwise. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *title;
    int64_t done, total;
    int64_t begun_ms, drawn_ms; /* CLOCK_MONOTONIC */
    bool shown;
} progress;

/* total > 0 steps are ahead.  title must live until the end.  All three take NULL: no bar. */
void progress_begin(progress *bar, const char *title, int64_t total);
void progress_step(progress *bar);
void progress_end(progress *bar); /* wipes the bar */

#endif /* CLI_PROGRESS_H */
