/* mlp_layer.h - the tensors of a layer's MLP in a checkpoint: each of them is used or refused. */
#ifndef CLI_MLP_LAYER_H
#define CLI_MLP_LAYER_H

#include "checkpoint.h"
#include "shard.h"

enum { MLP_LAYER_PREFIX = 64 };

/* Finds {gate,up,down}_proj.{weight,bias} below "<model>layers.<layer>.mlp.", where <model> is
 * "model.", nothing, "language_model.model." or "model.language_model.": shapes that fit each
 * other, one dtype; the gate and each bias may be missing.  Any other tensor there is refused by
 * its name.  prefix[MLP_LAYER_PREFIX] gets what was before the names; weights->activation is not
 * set. */
bool mlp_layer_find(checkpoint *from, int layer, mlp_weights *weights, char *prefix,
                    st_error *error) ST_MUST_CHECK;

#endif /* CLI_MLP_LAYER_H */
