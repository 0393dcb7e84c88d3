/* object_kinds.c - what groups know of the objects that are made from them. */
#include "kernel_waits.h"
#include "plan/plan.h"

const imx_object_kind *const imx_object_kinds[IMX_MAKERS] = {
    [IMX_OF_LIBRARY] = &imx_plan_kind,
    [IMX_OF_CALLER] = &imx_kernel_kind,
};
