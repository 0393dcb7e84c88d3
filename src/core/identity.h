/* identity.h - what a rank tells the others about where it runs. */
#ifndef IMX_IDENTITY_H
#define IMX_IDENTITY_H

#include "imx.h"

typedef struct imx_identity {
    char host[96];       /* equal where unix sockets reach: boot id and network namespace */
    uint64_t process[2]; /* equal on ranks of one process: random */
} imx_identity;

imbrex_status imx_identity_read(imx_identity *identity) IMX_MUST_CHECK;

#endif /* IMX_IDENTITY_H */
