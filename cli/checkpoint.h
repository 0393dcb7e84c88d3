/* checkpoint.h - finds tensors by name in a checkpoint of one safetensors file or many.
 *
 * A checkpoint is named by one of
 *     x.safetensors                     one file
 *     model.safetensors.index.json      an index: which tensor is in which file beside it
 *     a directory                       with model.safetensors, or else that index, or else exactly
 *                                       one *.safetensors.index.json, or else one *.safetensors
 * Of many files only those are opened whose tensors are asked for. */
#ifndef CLI_CHECKPOINT_H
#define CLI_CHECKPOINT_H

#include "safetensors.h"

typedef struct checkpoint checkpoint;

bool checkpoint_open(const char *path, checkpoint **out, st_error *error) ST_MUST_CHECK;
void checkpoint_close(checkpoint *from); /* takes NULL; what was found in it goes with it */

/* Whether a file written to path would take the place of the checkpoint's file, of its index (as a
 * model.safetensors beside it would), of its config.json, or of a file that the index names, opened
 * or not.  False if from is NULL. */
bool checkpoint_has_file(const checkpoint *from, const char *path);

const char *checkpoint_path(const checkpoint *from); /* of the file or the index */

/* The config.json beside that, or else beside what a link there points to: its path and its text,
 * both to be freed, also on failure; no text: there is none. */
bool checkpoint_config(const checkpoint *from, char **path, char **text, size_t *bytes,
                       st_error *error) ST_MUST_CHECK;

/* The names of its tensors. */
size_t checkpoint_count(const checkpoint *from);
const char *checkpoint_name(const checkpoint *from, size_t index);
bool checkpoint_has(const checkpoint *from, const char *name);

/* Says that the name is not there and what is, and returns false. */
bool checkpoint_fail_missing(const checkpoint *from, const char *name, st_error *error);

/* The tensor as a matrix that points into its file; a vector is one of one row. */
bool checkpoint_matrix(checkpoint *from, const char *name, matrix *out,
                       st_error *error) ST_MUST_CHECK;
bool checkpoint_vector(checkpoint *from, const char *name, matrix *out,
                       st_error *error) ST_MUST_CHECK;

/* A name with this prefix in one of the files that are open, which the index does not have: others
 * read it.  NULL: none. */
const char *checkpoint_unlisted(const checkpoint *from, const char *prefix);

#endif /* CLI_CHECKPOINT_H */
