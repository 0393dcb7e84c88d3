/* sm90_shape.h - what the route kernel for Hopper takes of shared memory: the launch and the kernel
 * agree on it. */
#ifndef IMX_ROUTE_SM90_SHAPE_H
#define IMX_ROUTE_SM90_SHAPE_H

#include "args.h"

enum { IMX_ROUTE_CLUSTER = 8, IMX_ROUTE_WARPS = 16 /* of a block */ };

/* Words: where experts begin, what they have, and of each warp, of the block, and ahead of it. */
#define IMX_ROUTE_SHARED(experts) \
    (4 * (2 * IMX_ROUTE_EXPERTS + 1 + (IMX_ROUTE_WARPS + 2) * (experts)))

#endif /* IMX_ROUTE_SM90_SHAPE_H */
