/* rates.h - what `imbrex tune --device` does on a rank. */
#ifndef CLI_RATES_H
#define CLI_RATES_H

#include "cli.h"

typedef struct rates_request {
    const char *output; /* file, or NULL: where later groups look */
    int64_t rounds;
    /* What is large enough: rows, columns and k of products, of f32 and of one whose b is read from
     * memory; and bytes that a rank sends to each other. */
    int64_t product, product_f32, read, bytes;
} rates_request;

/* Collective over the ranks of the environment.  Rank 0 prints and keeps; the exit code. */
int rates_rank(const rates_request *request);

#endif /* CLI_RATES_H */
