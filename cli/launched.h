/* launched.h - whether this process is a rank of some launcher, and which. */
#ifndef CLI_LAUNCHED_H
#define CLI_LAUNCHED_H

#include <stdbool.h>

/* Some launcher (ours, torchrun, mpirun, srun) has started this process as one of its ranks. */
bool launch_is_rank(void);

/* This process is one that launch_ranks has started. */
bool launch_is_ours(void);

/* This process is not one of the ranks that some launcher has started, or it is their rank 0. */
bool launch_is_first(void);

/* How many ranks that launcher has started; 0: there is none, or it does not say. */
int launch_size(void);

#endif /* CLI_LAUNCHED_H */
