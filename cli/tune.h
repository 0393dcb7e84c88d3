/* tune.h - what `imbrex tune --device` does on a rank. */
#ifndef CLI_TUNE_H
#define CLI_TUNE_H

#include "cli.h"

typedef struct tune_request {
    const char *output; /* file, or NULL: where later groups look */
    int64_t rounds;
    /* What is large enough: rows, columns and k of products, of f32 and of one whose b is read from
     * memory; and bytes that a rank sends to each other. */
    int64_t product, product_f32, read, bytes;
} tune_request;

/* Collective over the ranks of the environment.  Rank 0 prints and keeps; the exit code. */
int tune_rank(const tune_request *request);

#endif /* CLI_TUNE_H */
