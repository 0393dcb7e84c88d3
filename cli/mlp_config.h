/* mlp_config.h - what the config.json beside a checkpoint says of its MLPs: the activation, and
 * what the tensors must agree with. */
#ifndef CLI_MLP_CONFIG_H
#define CLI_MLP_CONFIG_H

#include "checkpoint.h"
#include "shard.h"

enum { MLP_CONFIG_ACTIVATIONS = IMBREX_RELU2 + 1 };
extern const char *const mlp_config_activations[MLP_CONFIG_ACTIVATIONS]; /* "silu", by kind */

typedef struct mlp_config mlp_config;

/* *out is NULL where there is no config.json. */
bool mlp_config_open(const checkpoint *from, mlp_config **out, st_error *error) ST_MUST_CHECK;
void mlp_config_close(mlp_config *config); /* takes NULL */

/* A string in the object `section` ("": the whole), or NULL; goes with the config. */
const char *mlp_config_text(const mlp_config *config, const char *section, const char *key);

/* Sets weights->activation: what the config says, or `asked` (NULL: not asked) where it says
 * nothing or two things; without a config what is asked, or SiLU.  False where the layer cannot be
 * computed from its weights and biases alone, or contradicts the config: the sentence names what
 * does. */
bool mlp_config_apply(const mlp_config *config, int layer, const char *asked, mlp_weights *weights,
                      st_error *error) ST_MUST_CHECK;

#endif /* CLI_MLP_CONFIG_H */
