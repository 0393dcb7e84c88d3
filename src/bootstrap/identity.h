/* identity.h - what a rank tells the others about where it runs. */
#ifndef IMX_IDENTITY_H
#define IMX_IDENTITY_H

#include "base/imx.h"

typedef struct imx_identity {
    char host[96];       /* equal where unix sockets reach: boot id and network namespace */
    char name[64];       /* of the host, for people */
    char node[64];       /* IMBREX_NODE: parts a host into logical nodes; "": it is one */
    uint64_t process[2]; /* equal on ranks of one process: random */
} imx_identity;

/* node: the value of IMBREX_NODE, or "". */
imbrex_status imx_identity_read(const char *node, imx_identity *identity) IMX_MUST_CHECK;

/* A random name of this process; a child of fork has another. */
imbrex_status imx_identity_process(uint64_t process[2]) IMX_MUST_CHECK;

/* The name of the node for people: what IMBREX_NODE says, else the host's. */
static inline const char *imx_identity_node(const imx_identity *identity)
{
    return identity->node[0] ? identity->node : identity->name;
}

#endif /* IMX_IDENTITY_H */
