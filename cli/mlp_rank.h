/* mlp_rank.h - what one rank of `imbrex mlp` does, from making its group to the result. */
#ifndef CLI_MLP_RANK_H
#define CLI_MLP_RANK_H

#include "mlp_reference.h"

typedef struct mlp_request {
    const mlp_model *model;
    const mlp_reference *reference; /* with check */
    const char *device, *algorithm; /* NULL: chosen */
    const char *output, *timeline;  /* files to write, or NULL */
    bool check, json;
    bool graph; /* time CUDA graphs of a block each */
    int64_t rounds;
} mlp_request;

/* Collective over the ranks of the environment.  Rank 0 prints and writes; the exit code. */
int mlp_rank(const mlp_request *request);

#endif /* CLI_MLP_RANK_H */
