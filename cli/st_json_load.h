/* st_json_load.h - the JSON library, for those files of the tool that read JSON by it. */
#ifndef CLI_ST_JSON_LOAD_H
#define CLI_ST_JSON_LOAD_H

#include <jansson.h>

#include "safetensors.h"

/* The text as an object, to be released with json_decref; NULL with the error set.  depth: how deep
 * it may nest. */
json_t *st_json_load(const char *path, const char *text, size_t bytes, int depth, st_error *error);

/* A value for an error message, cut to fit. */
typedef struct st_json_shown {
    char text[49];
} st_json_shown;

st_json_shown st_json_show(const json_t *value);

#endif /* CLI_ST_JSON_LOAD_H */
