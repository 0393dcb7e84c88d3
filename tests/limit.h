/* limit.h - how long a case of a test may take, for one that has much to do. */
#ifndef LIMIT_H
#define LIMIT_H

extern int limit_s; /* for patient(); to be set before the cases are run */

#endif /* LIMIT_H */
