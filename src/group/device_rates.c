/* device_rates.c - from what a device is to its rates, and from all ranks' to one. */
#include "device_rates.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "agree.h"
#include "call.h"

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

/* ---- keeping them ---------------------------------------------------------------------------- */

static imbrex_status write_named(const char *path, const struct iovec *parts, int count)
{
    if (imx_folder_write_path(path, parts, count))
        return IMBREX_OK;
    if (errno == EINVAL)
        return imx_fail(IMBREX_INVALID,
                        "path is \"%s\", which is no regular file: name one, or none", path);
    return imx_fail_errno("cannot write %s", path);
}

static imbrex_status write_kept(const imbrex_group *group, const struct iovec *parts, int count)
{
    imx_folder folder;
    char name[IMX_RATES_NAME];
    imx_folder_find(group->env.cache_dir, &folder);
    if (!folder.path[0])
        return imx_fail(IMBREX_SYSTEM,
                        "rates cannot be kept: %s; name a folder in IMBREX_CACHE_DIR, or a file",
                        folder.why);
    imx_rates_file_name(group->target->model, name);
    if (!imx_folder_write(&folder, name, parts, count))
        return imx_fail_errno("cannot write %s/%s", folder.path, name);
    return IMBREX_OK;
}

imbrex_status imbrex_rates_keep(imbrex_group *group, const char *rows, const char *path)
{
    enum { ROWS_MOST = 4096, PARTS = 2 };
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(imx_status_need(rows, "rows", "want lines as \"store 350\""));
    if (!group->target->arch)
        return imx_fail(IMBREX_UNSUPPORTED, "%s has no rates: they are of GPUs",
                        group->device_name);
    if (strlen(rows) > ROWS_MOST)
        return imx_fail(IMBREX_INVALID, "rows has %zu bytes: want %d at most", strlen(rows),
                        ROWS_MOST);
    IMX_TRY(imx_rates_check_rows(rows, "rows"));
    char text[2 * sizeof group->target->model];
    imx_text head = { .at = text, .size = sizeof text };
    imx_text_add(&head, "# Measured by `imbrex tune --device`: see docs/tuning.md\ndevice %s\n",
                 group->target->model);
    const struct iovec parts[PARTS] = { { text, head.length }, { (void *)rows, strlen(rows) } };
    return path ? write_named(path, parts, PARTS) : write_kept(group, parts, PARTS);
}
