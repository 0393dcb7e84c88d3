/* st_json.h - the JSON of safetensors: a file's header and a checkpoint's index.
 *
 * All use of the JSON library is behind these functions.  A build without it has them too, and they
 * say what to install. */
#ifndef CLI_ST_JSON_H
#define CLI_ST_JSON_H

#include "safetensors.h"

/* A tensor as the header describes it: well-formed, its numbers not yet compared with each other or
 * with the file. */
typedef struct st_record {
    st_tensor tensor;   /* data and bytes not set; name is the record's own */
    int64_t begin, end; /* 0 or more, counted from the end of the header */
} st_record;

bool st_json_parse_header(const char *path, const char *text, size_t bytes, st_record **records,
                          size_t *count, st_error *error) ST_MUST_CHECK;
void st_json_free_header(st_record *records, size_t count);

/* The header's text for tensors that lie one after the other, bytes set; free with free(). */
bool st_json_write_header(const char *path, const st_tensor *tensors, size_t count,
                          const char *const *metadata, char **text, st_error *error) ST_MUST_CHECK;

/* One line of an index: this tensor is in that file, a path below the index's directory. */
typedef struct st_place {
    char *tensor, *file;
} st_place;

bool st_json_parse_index(const char *path, const char *text, size_t bytes, st_place **places,
                         size_t *count, st_error *error) ST_MUST_CHECK;
void st_json_free_index(st_place *places, size_t count);

#endif /* CLI_ST_JSON_H */
