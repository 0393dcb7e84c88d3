/* net.h - the engine that reaches the other nodes of a group. */
#ifndef IMX_NET_H
#define IMX_NET_H

#include "state.h"

/* Collective, with mine as in imx_agree: where there are several nodes, finds the engine that
 * reaches the others, and connects it. */
imbrex_status imx_net_begin(imbrex_group *group, const char *call,
                            imbrex_status mine) IMX_MUST_CHECK;
void imx_net_end(imbrex_group *group);

/* Part of a barrier: after all ranks of this node have come, holds the stream of its first rank
 * until all nodes have. */
imbrex_status imx_net_meet(imbrex_group *group, imbrex_stream stream) IMX_MUST_CHECK;

/* UNSUPPORTED if the engine would not tell a plan of this number from another. */
imbrex_status imx_net_check_number(const imbrex_group *group, int number) IMX_MUST_CHECK;

/* UNSUPPORTED if a graph is being captured on the stream and the engine's steps cannot be. */
imbrex_status imx_net_check_stream(const imbrex_group *group, imbrex_stream stream) IMX_MUST_CHECK;

/* Adds a line for each engine that is built in. */
void imx_net_info(imx_text *text);

/* Whether an engine that failed might still write into memory of the library: it stays then. */
static inline bool imx_net_stuck(const imbrex_group *group)
{
    return group->net_was_stuck ||
           (group->net && group->net_kind->stuck && group->net_kind->stuck(group->net));
}

#endif /* IMX_NET_H */
