/* call.h - what every public call of a group begins and ends with: there is such a group, it was
 * made by this process, and no other thread is in a call of it. */
#ifndef IMX_CALL_H
#define IMX_CALL_H

#include "state.h"

typedef struct imx_call {
    imbrex_group *group; /* NULL: it has not begun, or needs no end */
    bool enqueues;       /* what peers may wait for */
} imx_call;

void imx_call_own(imx_call_owner *owner); /* this process does */

/* INVALID, with a sentence: there is no such group; it is another process's; another thread is in a
 * call of it. */
imbrex_status imx_call_begin(imx_call *call, imbrex_group *group) IMX_MUST_CHECK;

/* For calls that return no status: waits for the other thread.  false: there is no such group here,
 * and nothing to be done. */
bool imx_call_await(imx_call *call, imbrex_group *group);

void imx_call_end(imx_call *call);

/* For calls that any thread may make, also while another is in one: INVALID as above, or false. */
imbrex_status imx_call_allow(const imbrex_group *group) IMX_MUST_CHECK;
bool imx_call_may(const imbrex_group *group);

/* A call that ends where its scope does. */
#define IMX_CALL __attribute__((cleanup(imx_call_end))) imx_call

/* First thing in a call that returns a status, behind imx_status_enter. */
#define IMX_ENTER(group)        \
    IMX_CALL imx_call_ = { 0 }; \
    IMX_TRY(imx_call_begin(&imx_call_, (group)))

/* The same in one that enqueues what peers may wait for: they hear of it if it is refused. */
#define IMX_ENTER_WORK(group) \
    IMX_ENTER(group);         \
    imx_call_.enqueues = true

#endif /* IMX_CALL_H */
