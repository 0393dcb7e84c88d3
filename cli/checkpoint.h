/* checkpoint.h - finds tensors by name in a checkpoint of one safetensors file or many.
 *
 * A checkpoint is named by one of
 *     x.safetensors                     one file
 *     model.safetensors.index.json      an index: which tensor is in which file beside it
 *     a directory                       with model.safetensors, or else that index, or else exactly
 *                                       one *.safetensors
 * Of many files only those are opened whose tensors are asked for. */
#ifndef CLI_CHECKPOINT_H
#define CLI_CHECKPOINT_H

#include "safetensors.h"
#include "shard.h"

typedef struct checkpoint checkpoint;

bool checkpoint_open(const char *path, checkpoint **out, st_error *error) ST_MUST_CHECK;
void checkpoint_close(checkpoint *from); /* takes NULL; what was found in it goes with it */

/* Whether a file written to path would take the place of the checkpoint's file, of its index (as a
 * model.safetensors beside it would), or of a file that the index names, opened or not.  False if
 * from is NULL. */
bool checkpoint_has_file(const checkpoint *from, const char *path);

/* The tensor as a matrix that points into its file. */
bool checkpoint_matrix(checkpoint *from, const char *name, matrix *out,
                       st_error *error) ST_MUST_CHECK;

/* The weights {gate,up,down}_proj of "model.layers.<layer>.mlp", or else of "layers.<layer>.mlp":
 * shapes that fit each other, one dtype. */
bool checkpoint_mlp(checkpoint *from, int layer, mlp_weights *out, st_error *error) ST_MUST_CHECK;

#endif /* CLI_CHECKPOINT_H */
