/* operands.h - random matrices for runs that are only timed. */
#ifndef IMX_OPERANDS_H
#define IMX_OPERANDS_H

#include "plan.h"

/* What a run is given, of whichever operator, and what lies in usual.routing. */
typedef struct imx_given {
    union {
        imbrex_args usual;
        imbrex_decode_args decode;
    };
    imbrex_routing routing;
} imx_given;

/* Several sets, used in turn, so that no run finds its inputs in a cache. */
typedef struct imx_operands {
    imbrex_group *group;
    imx_memory *memory;
    const imx_op *op;
    imx_given sizes;         /* what a run's args have beside operands */
    size_t at[IMX_OPERANDS]; /* in a set, by row of the args */
    bool wanted[IMX_OPERANDS];
    size_t set_bytes;
    int sets;
} imx_operands;

/* Local.  Values are as from N(0, 1): a GPU computes faster on zeros. */
imbrex_status imx_operands_create(imbrex_group *group, const imx_request *request,
                                  imx_operands *operands) IMX_MUST_CHECK;
void imx_operands_destroy(imx_operands *operands);

/* Of the i-th run. */
void imx_operands_args(const imx_operands *operands, int i, imx_given *given);

#endif /* IMX_OPERANDS_H */
