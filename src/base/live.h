/* live.h - what callers have handles of and has not been destroyed: who brings a handle of nothing
 * gets a sentence, and none is followed. */
#ifndef IMX_LIVE_H
#define IMX_LIVE_H

#include "imx.h"

typedef enum imx_live_kind { IMX_LIVE_GROUP, IMX_LIVE_PLAN, IMX_LIVE_KERNEL } imx_live_kind;

imbrex_status imx_live_add(imx_live_kind kind, const void *object) IMX_MUST_CHECK;
void imx_live_remove(imx_live_kind kind, const void *object); /* one that is not there is fine */

/* false: NULL, destroyed, or never made.  From any thread, also in a handler of signals. */
bool imx_live_is(imx_live_kind kind, const void *object);

/* INVALID if it is not, with the name that the caller knows it by. */
imbrex_status imx_live_need(imx_live_kind kind, const void *object) IMX_MUST_CHECK;

#endif /* IMX_LIVE_H */
