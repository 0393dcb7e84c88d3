/* op.c - the list of operators. */
#include "op.h"

#include <string.h>

static const imx_op *const ops[] = {
    &imx_op_ag_gemm,      &imx_op_gemm_rs,     &imx_op_all_gather, &imx_op_reduce_scatter,
    &imx_op_all_reduce,   &imx_op_all_to_all,  &imx_op_gemm_ar,    &imx_op_gemm,
    &imx_op_ag_moe,       &imx_op_moe_rs,      &imx_op_dispatch,   &imx_op_combine,
    &imx_op_merge_states, &imx_op_flash_decode
};

enum { OPS = sizeof ops / sizeof *ops };
_Static_assert((int)OPS <= (int)IMX_OPS_MOST, "lists of their names have no room");

const imx_op *imx_op_at(int i)
{
    return i >= 0 && i < OPS ? ops[i] : NULL;
}

const imx_algorithm *imx_op_algorithm(const imx_algorithm *a, const char *name)
{
    while (a->name && strcmp(a->name, name) != 0)
        a++;
    return a->name ? a : NULL;
}

imbrex_status imx_op_find(const char *name, size_t desc_bytes, const imx_op **op)
{
    char list[256] = "";
    imx_text names = { .at = list, .size = sizeof list };
    IMX_TRY(imx_status_need(name, "op", "want the name of one of imbrex_op"));
    for (int i = 0; i < OPS; i++) {
        const imbrex_op_info *info = &ops[i]->info;
        imx_text_add(&names, "%s%s", i ? ", " : "", info->name);
        if (strcmp(info->name, name) != 0)
            continue;
        if (desc_bytes != info->desc_bytes)
            return imx_fail(IMBREX_INVALID, "desc_bytes is %zu: %s's desc has %zu bytes",
                            desc_bytes, name, info->desc_bytes);
        *op = ops[i];
        return IMBREX_OK;
    }
    return imx_fail(IMBREX_INVALID, "op is \"%.64s\": there are %s", name, list);
}

const imbrex_op_info *imbrex_op(int i)
{
    const imx_op *op = imx_op_at(i);
    return op ? &op->info : NULL;
}
