/* kernel_waits.h - waits and mistakes of callers' kernels in words. */
#ifndef IMX_KERNEL_WAITS_H
#define IMX_KERNEL_WAITS_H

#include "group/group.h"

extern const imx_object_kind imx_kernel_kind; /* kernel.c */

/* What the caller calls a kernel of the group; never NULL. */
const char *imx_kernel_name(const imbrex_group *group, int number); /* kernel.c */

/* See imx_object_kind. */
void imx_kernel_waits_name(const imbrex_group *group, int number, imx_text *text);
void imx_kernel_waits_describe(const imbrexd_wait_point *point, imx_text *text);
void imx_kernel_waits_mismatch(const imbrex_group *group, const imbrexd_fault *fault,
                               imx_text *text);
void imx_kernel_waits_mistake(const imbrex_group *group, const imbrexd_fault *fault,
                              imx_text *text);

#endif /* IMX_KERNEL_WAITS_H */
