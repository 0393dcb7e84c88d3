/* signals.h - what the signals kernel takes: posts and waits in the order in which it does them. */
#ifndef IMX_SIGNALS_H
#define IMX_SIGNALS_H

#include "imbrex_device.h"

enum { IMX_SIGNALS_MOST = 8, IMX_SIGNALS_POST = 0, IMX_SIGNALS_WAIT = 1 };

typedef struct imx_signals_op {
    uint64_t *signal;
    const uint64_t *word; /* or 0 */
    uint64_t add;         /* the value is *word + add */
    imbrexd_site site;
    int32_t kind, pad;
} imx_signals_op;

typedef struct imx_signals_args {
    int32_t count, pad;
    imx_signals_op ops[IMX_SIGNALS_MOST];
} imx_signals_args;

#endif /* IMX_SIGNALS_H */
