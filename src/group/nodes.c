/* nodes.c - sorts ranks into nodes by what each said about where it runs. */
#include "nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool together(const imx_identity *a, const imx_identity *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->node, b->node) == 0;
}

/* rank begins a node: no earlier rank may be of it. */
static imbrex_status check_new(const imx_identity *all, int rank)
{
    for (int q = 0; q < rank; q++) {
        if (together(&all[rank], &all[q]))
            return imx_fail(IMBREX_UNSUPPORTED,
                            "ranks %d and %d are on one node (%s), rank %d between them is on "
                            "another (%s): start the ranks of a node one after the other",
                            q, rank, imx_identity_node(&all[rank]), rank - 1,
                            imx_identity_node(&all[rank - 1]));
    }
    return IMBREX_OK;
}

/* A node ends where the identity changes, or when it has per_node ranks. */
static imbrex_status cut(const imx_identity *all, int size, int64_t per_node, imx_nodes *nodes)
{
    for (int r = 0; r < size; r++) {
        bool same = r > 0 && together(&all[r], &all[r - 1]);
        bool full = same && per_node > 0 && r - nodes->first[nodes->count - 1] >= per_node;
        if (!same)
            IMX_TRY(check_new(all, r));
        if (!same || full) {
            nodes->first[nodes->count] = r;
            snprintf(nodes->name[nodes->count++], IMX_NODES_NAME, "%s", imx_identity_node(&all[r]));
        }
        nodes->of[r] = nodes->count - 1;
    }
    nodes->first[nodes->count] = size;
    return IMBREX_OK;
}

imbrex_status imx_nodes_find(const imx_identity *all, int rank, int size, int64_t per_node,
                             imx_nodes *nodes)
{
    size_t ranks = (size_t)size;
    IMX_TRY(imx_sys_alloc(ranks, sizeof *nodes->of, &nodes->of));
    IMX_TRY(imx_sys_alloc(ranks + 1, sizeof *nodes->first, &nodes->first));
    IMX_TRY(imx_sys_alloc(ranks, sizeof *nodes->name, &nodes->name));
    IMX_TRY(cut(all, size, per_node, nodes));
    nodes->own = nodes->of[rank];
    nodes->local = rank - nodes->first[nodes->own];
    nodes->ranks = imx_nodes_size(nodes, nodes->own);
    nodes->equal = true;
    for (int i = 0; i < nodes->count; i++)
        nodes->equal = nodes->equal && imx_nodes_size(nodes, i) == nodes->ranks;
    return IMBREX_OK;
}

void imx_nodes_free(imx_nodes *nodes)
{
    free(nodes->of);
    free(nodes->first);
    free(nodes->name);
    *nodes = (imx_nodes){ 0 };
}

void imx_nodes_sizes(const imx_nodes *nodes, imx_text *text)
{
    enum { SHOWN = 16 };
    if (nodes->equal) {
        imx_text_add(text, "%d x %d", nodes->count, nodes->ranks);
        return;
    }
    for (int i = 0; i < nodes->count && i < SHOWN; i++)
        imx_text_add(text, "%s%d", i ? " + " : "", imx_nodes_size(nodes, i));
    if (nodes->count > SHOWN)
        imx_text_add(text, " + ...");
}
