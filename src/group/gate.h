/* gate.h - what imbrex_topk_gate needs of its group. */
#ifndef IMX_GATE_H
#define IMX_GATE_H

#include "state.h"

/* As imx_stream_begin and imx_stream_end. */
imbrex_status imx_gate_begin(imbrex_group *group) IMX_MUST_CHECK;
void imx_gate_end(imbrex_group *group);

#endif /* IMX_GATE_H */
