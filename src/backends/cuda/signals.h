/* signals.h - what the signals kernel takes: posts, waits and times to tell, in steps.  All values
 * are read before the first step; all ops of a step go on at once, and the next one begins when
 * they are over. */
#ifndef IMX_SIGNALS_H
#define IMX_SIGNALS_H

#include "imbrex_device.h"

enum {
    IMX_SIGNALS_ROOM = 16,
    IMX_SIGNALS_POST = 0,
    IMX_SIGNALS_WAIT = 1,
    IMX_SIGNALS_TIME = 2 /* ns of %globaltimer to *signal */
};

typedef struct imx_signals_op {
    uint64_t *signal;
    const uint64_t *word; /* or 0 */
    uint64_t add;         /* the value is *word + add */
    imbrexd_wait_point point;
    int32_t kind, step;
} imx_signals_op;

typedef struct imx_signals_args {
    int32_t count, pad;
    imx_signals_op ops[IMX_SIGNALS_ROOM];
} imx_signals_args;

#endif /* IMX_SIGNALS_H */
