/* net_threads.h - an engine between logical nodes for ranks that are threads of one process: what
 * the operators over nodes are tested with where there is no MPI. */
#ifndef NET_THREADS_H
#define NET_THREADS_H

#include "group/net_kind.h"

enum { NET_THREADS_RANKS = 64 };

extern const imx_net_kind net_threads;

/* What has been sent by each rank since net_threads_reset, counted where it entered the engine. */
void net_threads_reset(void);
uint64_t net_threads_sent(int rank);

/* Nothing is sent by a rank before it has so many steps under way at once. */
void net_threads_hold(int steps);

/* From now on nothing goes between these two ranks. */
void net_threads_cut(int rank, int other);

/* Rank `rank`'s step number `nth`, from 1, is refused, when another one of the rank's is under way;
 * and those that have to end take their time.  Until the next reset. */
void net_threads_fail(int rank, int nth);
int net_threads_under_way(int rank); /* steps */

#endif /* NET_THREADS_H */
