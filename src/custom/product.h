/* product.h - the library's product inside a kernel of the caller's: how it is cut, and what a
 * launch multiplies. */
#ifndef IMX_PRODUCT_H
#define IMX_PRODUCT_H

#include "kernels/gemm/args.h"
#include "plan/plan.h"

typedef struct imx_product {
    imbrex_gemm_desc desc;
    imx_gemm_args args; /* of the largest launch */
    int band;           /* ranks that are walked together where nothing is gathered */
    int blocks;
    imx_memory *counters;
} imx_product;

enum { IMX_PRODUCT_FIELDS = IMX_REQUEST_FIELDS + 2 };

/* Local: checks and cuts.  name: the kernel's. */
imbrex_status imx_product_create(imbrex_group *group, const imbrex_gemm_desc *desc,
                                 const char *name, imx_product **product) IMX_MUST_CHECK;
void imx_product_destroy(imbrex_group *group, imx_product *product); /* NULL is fine */

/* What all ranks must give alike; product NULL: none.  Returns how many. */
int imx_product_fields(const imx_product *product, imx_field fields[IMX_PRODUCT_FIELDS]);

/* The args of one launch. */
imbrex_status imx_product_args(const imx_product *product, const imbrex_group *group,
                               const imbrex_gemm_operands *operands,
                               imx_gemm_args *args) IMX_MUST_CHECK;

#endif /* IMX_PRODUCT_H */
