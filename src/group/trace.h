/* trace.h - what the group needs of tracing. */
#ifndef IMX_TRACE_H
#define IMX_TRACE_H

#include "state.h"

void imx_trace_free(imbrex_group *group);

#endif /* IMX_TRACE_H */
