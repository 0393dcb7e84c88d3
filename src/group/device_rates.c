/* device_rates.c - from what a device is to its rates, and from all ranks' to one. */
#include "device_rates.h"

static imbrex_status read_rates(const imx_env *env, const imx_target *target, bool nvlink,
                                imx_rates *rates, imx_text *from)
{
    const imx_rates_device device = {
        .model = target->model,
        .arch = target->arch,
        .sms = target->workers,
        .clock_mhz = target->clock_mhz,
        .memory_gb_s = target->memory_gb_s,
        .nvlink = nvlink,
    };
    return imx_rates_read(env, &device, rates, from);
}

/* Files may differ between ranks, and devices too: what they choose must not. */
imbrex_status imx_device_rates_agree(imbrex_group *group)
{
    imx_text unsaid = { .size = 0 };
    imx_rates own, *all = group->proposals;
    if (!group->target->arch)
        return IMBREX_OK;
    imbrex_status mine = read_rates(&group->env, group->target, group->whole_lines, &own, &unsaid);
    IMX_TRY(imx_agree(group, "imbrex_group_create", mine, NULL, 0));
    IMX_TRY(imx_agree_allgather(group, &own, all, sizeof own));
    group->rates = all[0];
    for (int r = 1; r < group->size; r++)
        imx_rates_slower(&group->rates, &all[r]);
    return IMBREX_OK;
}

void imx_device_rates_info(const imx_backend *backend, imx_text *text)
{
    imx_env env;
    imx_target target;
    imbrex_status fell_back = imx_env_read(&env); /* then the default stands for what is wrong */
    (void)fell_back;
    for (int i = 0; backend->look && backend->look(i, &env, &target); i++) {
        char words[1200] = "";
        imx_text from = { .at = words, .size = sizeof words };
        imx_rates rates;
        if (!target.arch)
            continue;
        if (read_rates(&env, &target, true, &rates, &from) != IMBREX_OK)
            imx_text_add(text, "rates of gpu %d: none, so that groups are refused: %s\n", i,
                         imx_status_detail());
        else
            imx_text_add(text, "rates of gpu %d: %s\n", i, words);
    }
}
