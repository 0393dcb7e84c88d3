/* mlp.h - what `imbrex mlp` found out, and the forms in which it says so. */
#ifndef CLI_MLP_H
#define CLI_MLP_H

#include "mlp_block.h"
#include "mlp_check.h"
#include "share.h"

typedef struct mlp_result {
    const char *source; /* "model.safetensors, layer 3" */
    int ranks;
    const char *device;
    int64_t tokens, hidden, ffn;
    imbrex_dtype dtype;
    const char *activation;      /* "gelu_tanh" */
    const char *activation_from; /* "config.json" or "--activation"; NULL: assumed */
    bool gated, biases;
    char gate_up[400], down[400]; /* imbrex_plan_describe */
    double products_us, sequential_us, overlapped_us;
    bool device_clock, graph; /* how they were timed */
    bool checked;
    mlp_error error; /* of all ranks together */
} mlp_result;

/* 1 - (overlapped - products) / (sequential - products): how much of the time that communication
 * adds is no longer seen; NAN where it adds nothing. */
double mlp_hidden(const mlp_result *result);

void mlp_print_table(const mlp_result *result);
void mlp_print_json(const mlp_result *result);

/* Two panels: one overlapped run above one sequential run. */
bool mlp_write_timeline(const mlp_result *result, const spans *overlapped, const spans *sequential,
                        const char *path, char *error, size_t size);

#endif /* CLI_MLP_H */
