/* info.c - what this build and this machine can do, in lines. */
#include "base/folder.h"
#include "group/group.h"
#include "kernels/kernels.h"
#include "tuning_cache.h"

size_t imbrex_info(char *text, size_t size)
{
    imx_env env;
    imx_status_mute(true);
    imbrex_status fell_back = imx_env_read(&env); /* then the default stands for what is wrong */
    (void)fell_back;
    imx_text out = { .at = text, .size = size };
    imx_text_add(&out, "version: %s\n", imbrex_version());
    imx_group_info(&out);
    imx_text_add(&out, "products on cpu: %s\n", imx_kernel_gemm.cpu_info());
    imx_net_info(&out);
    imx_folder_info(env.cache_dir, &out);
    imx_tuning_cache_info(env.cache_dir, &out);
    imx_env_info(&out);
    imx_status_mute(false);
    return out.length;
}
