/* clock.h - what the clock kernel takes: words in host memory, through which the host asks for the
 * GPU's time. */
#ifndef IMX_CLOCK_H
#define IMX_CLOCK_H

#include "imbrex_device.h"

typedef struct imx_clock_args {
    uint64_t *asked;    /* the host: number of the question, from 1 */
    uint64_t *now;      /* the answer: ns of the clock that traces are written by */
    uint64_t *answered; /* number of the question that it belongs to */
    uint64_t questions;
    uint64_t limit_ns; /* the kernel ends if it is not asked for so long */
} imx_clock_args;

#endif /* IMX_CLOCK_H */
