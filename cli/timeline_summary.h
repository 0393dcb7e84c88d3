/* timeline_summary.h - what a rank's product did with its time, in figures. */
#ifndef CLI_TIMELINE_SUMMARY_H
#define CLI_TIMELINE_SUMMARY_H

#include <stdio.h>

#include "timeline.h"

/* Of the last kernel that tells its tiles, in us.  A lane is a block: an SM, a thread. */
typedef struct timeline_summary {
    int lanes;
    int64_t begin_ns;
    double kernel;
    double first_product;         /* from the kernel's begin to the first product of all lanes */
    double wait_mean, wait_most;  /* of a lane: all its waits */
    double stores;                /* of a lane: folds of own rows, what follows the last product */
    double products;              /* share of the lanes' time that is products */
    double tail;                  /* from the first lane's last product to the last one's */
    double after;                 /* from the last product to the kernel's end */
    double sent_first, sent_last; /* copies to peers: first begin, last end, from its begin; NAN */
} timeline_summary;

/* Whether it is a whole kernel, and not what one of its lanes did. */
bool timeline_summary_kernel(const imbrex_span *span);

/* Whether it tells its tiles. */
bool timeline_summary_has_tiles(const timeline_rank *rank, const imbrex_span *kernel);

/* false: no such kernel, or out of memory. */
bool timeline_summarise(const timeline_rank *rank, timeline_summary *out);

/* A table, a line a rank. */
void timeline_summary_print(const timeline_panel *panel, FILE *file);

#endif /* CLI_TIMELINE_SUMMARY_H */
