/* limit.h - how long a wait that polls may last; time in which the process was stopped does not
 * count. */
#ifndef IMX_LIMIT_H
#define IMX_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "imbrex_device.h"

typedef struct imx_limit {
    int64_t limit_ns, looked_ns, deadline_ns; /* looked: the last look at the clock */
} imx_limit;

static inline imx_limit imx_limit_of(int64_t limit_ns)
{
    int64_t now_ns = imbrexd_now_ns();
    return (imx_limit){ limit_ns, now_ns, now_ns + limit_ns };
}

/* There was progress: from the last look on. */
static inline void imx_limit_renew(imx_limit *limit)
{
    limit->deadline_ns = limit->looked_ns + limit->limit_ns;
}

/* Looks at the clock. */
static inline bool imx_limit_is_over(imx_limit *limit)
{
    int64_t now_ns = imbrexd_now_ns();
    limit->deadline_ns += imbrexd_pause_ns(now_ns - limit->looked_ns, limit->limit_ns);
    limit->looked_ns = now_ns;
    return now_ns >= limit->deadline_ns;
}

#endif /* IMX_LIMIT_H */
