/* group.h - the ranks that own memory together: all that the rooms above see of them. */
#ifndef IMX_GROUP_H
#define IMX_GROUP_H

#include "agree.h"
#include "call.h"
#include "fault.h"
#include "memory.h"
#include "net.h"
#include "state.h"
#include "stream.h"

/* Adds what each kind of device says of itself here. */
void imx_group_info(imx_text *text);

/* Collective over bootstrap, which the group takes, on failure too: on the parent's device, with
 * its environment and limit. */
imbrex_status imx_group_create_child(const imbrex_group *parent, imx_bootstrap *bootstrap,
                                     imbrex_group **out) IMX_MUST_CHECK;

#endif /* IMX_GROUP_H */
