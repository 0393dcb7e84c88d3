/* nodes.h - which ranks form a node: those that reach each other's memory by load and store. */
#ifndef IMX_NODES_H
#define IMX_NODES_H

#include "bootstrap/identity.h"

enum { IMX_NODES_NAME = 64 };

/* Nodes are numbered in the order of their first ranks; the ranks of a node follow each other. */
typedef struct imx_nodes {
    int count;
    int own;                      /* of this rank */
    int local;                    /* this rank's number within its node... */
    int ranks;                    /* ...which has so many */
    bool equal;                   /* all nodes have as many ranks */
    int *of;                      /* [size]: node of each rank */
    int *first;                   /* [count + 1]: first rank of each node; then size */
    char (*name)[IMX_NODES_NAME]; /* [count]: IMBREX_NODE, or the host's name */
} imx_nodes;

/* all[size]: the ranks' identities.  per_node > 0: so many ranks that follow each other form a node
 * (the last one may have fewer), within what the identities allow.  UNSUPPORTED if the ranks of a
 * node do not follow each other.  nodes is zeroed memory; on failure too, imx_nodes_free it. */
imbrex_status imx_nodes_find(const imx_identity *all, int rank, int size, int64_t per_node,
                             imx_nodes *nodes) IMX_MUST_CHECK;
void imx_nodes_free(imx_nodes *nodes);

/* "4 + 4" or "8 x 4" for people: the ranks of each node. */
void imx_nodes_sizes(const imx_nodes *nodes, imx_text *text);

static inline int imx_nodes_size(const imx_nodes *nodes, int node)
{
    return nodes->first[node + 1] - nodes->first[node];
}

/* Whether rank's memory can be mapped here: it is on this rank's node. */
static inline bool imx_nodes_here(const imx_nodes *nodes, int rank)
{
    return nodes->of[rank] == nodes->own;
}

/* The first rank of this rank's node. */
static inline int imx_nodes_root(const imx_nodes *nodes)
{
    return nodes->first[nodes->own];
}

/* The rank of this node that comes i behind this one, round its ranks; i: from -ranks on. */
static inline int imx_nodes_mate(const imx_nodes *nodes, int i)
{
    return imx_nodes_root(nodes) + (nodes->local + nodes->ranks + i) % nodes->ranks;
}

#endif /* IMX_NODES_H */
