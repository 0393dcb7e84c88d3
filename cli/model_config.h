/* model_config.h - the config.json beside a checkpoint: its texts, its numbers, its values. */
#ifndef CLI_MODEL_CONFIG_H
#define CLI_MODEL_CONFIG_H

#include "safetensors.h"

typedef struct model_config model_config;

/* *out is NULL where there is no config.json. */
bool model_config_open(const checkpoint *from, model_config **out, st_error *error) ST_MUST_CHECK;
void model_config_close(model_config *config); /* takes NULL */

const char *model_config_path(const model_config *config);

/* What the config calls the language model's own part, "text_config", or "" where it has none. */
const char *model_config_own(const model_config *config);

/* A string in the object `section` ("": the whole; "text_config.rope_scaling"), or NULL; goes with
 * the config. */
const char *model_config_text(const model_config *config, const char *section, const char *key);

/* A number in that object; otherwise: where there is none. */
double model_config_number(const model_config *config, const char *section, const char *key,
                           double otherwise);

/* Whether that is true. */
bool model_config_is_true(const model_config *config, const char *section, const char *key);

/* The language model's own part (0), or NULL, and the whole (1). */
enum { MODEL_CONFIG_PARTS = 2 };
const struct json_t *model_config_part(const model_config *config, int part);

/* The value of a key there; NULL where it is not there or null. */
const struct json_t *model_config_value_in(const model_config *config, int part, const char *key);

/* The language model's own, or else that of the whole. */
const struct json_t *model_config_value(const model_config *config, const char *key);

/* That value as a number of 0 or more; otherwise: where there is none. */
bool model_config_real(const model_config *config, const char *key, double otherwise, double *out,
                       st_error *error) ST_MUST_CHECK;

#endif /* CLI_MODEL_CONFIG_H */
