/* mlp_reference.h - the layer that --check compares with, read from its files once more by code of
 * its own: what the run leaves out, or takes for another function, is then seen. */
#ifndef CLI_MLP_REFERENCE_H
#define CLI_MLP_REFERENCE_H

#include "mlp_model.h"

typedef struct mlp_reference {
    checkpoint *file; /* that weights point into; NULL: random ones */
    mlp_weights weights;
    double (*activation)(double x);
} mlp_reference;

/* The function of a name in config.json or of --activation; NULL: unknown. */
double (*mlp_reference_function(const char *name))(double);

/* Of the layer whose tensors have the model's prefix. */
bool mlp_reference_open(const mlp_source *source, const mlp_model *model, mlp_reference *out,
                        st_error *error) ST_MUST_CHECK;
void mlp_reference_close(mlp_reference *reference);

#endif /* CLI_MLP_REFERENCE_H */
