/* fault.h - whether and why a group has failed, and how it is made to. */
#ifndef IMX_FAULT_H
#define IMX_FAULT_H

#include "state.h"

/* The fault that rank noticed: its own, or what has been heard of it here. */
const imbrexd_fault *imx_fault_of(const imbrex_group *group, int rank);

/* The reason that rank gave for its abort, or what has been heard of it here. */
const imx_note *imx_fault_why(const imbrex_group *group, int rank);

/* This rank's call that enqueues, the latest of its thread, has ended: what it was refused with is
 * for those that will wait for it in vain, until it is made again and is not refused. */
void imx_fault_note_refusal(imbrex_group *group);

/* Whether it is known why a rank of this node does not come: then adds that to the text. */
bool imx_fault_add_refusal(const imbrex_group *group, int rank, imx_text *text);

/* OK, or why the group has failed.  Never blocks. */
imbrex_status imx_fault_check(const imbrex_group *group) IMX_MUST_CHECK;

/* Part of a run, or with plan 0 of a barrier, is enqueued and the rest cannot be, which why and its
 * sentence say: no peer's wait for it would end.  So all waits are ended, and then what is on these
 * streams.  Returns why, with its sentence. */
imbrex_status imx_fault_give_up(imbrex_group *group, int plan, imbrex_status why,
                                const imbrex_stream *streams, int count) IMX_MUST_CHECK;

#endif /* IMX_FAULT_H */
