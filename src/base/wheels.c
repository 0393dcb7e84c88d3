/* wheels.c - asks the loader where PyTorch is. */
#define _GNU_SOURCE
#include "wheels.h"

#include <link.h>
#include <stdio.h>
#include <string.h>

typedef struct place {
    char *folder;
    size_t size;
} place;

static int find_torch(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    const place *p = out;
    const char *at = info->dlpi_name ? strstr(info->dlpi_name, "/torch/lib/libtorch") : NULL;
    size_t length = at ? (size_t)(at - info->dlpi_name) : 0;
    if (!at || length >= p->size)
        return 0;
    memcpy(p->folder, info->dlpi_name, length);
    p->folder[length] = '\0';
    return 1;
}

bool imx_wheels_folder(char *folder, size_t size)
{
    place p = { .folder = folder, .size = size };
    return dl_iterate_phdr(find_torch, &p) != 0;
}
