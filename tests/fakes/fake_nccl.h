/* fake_nccl.h - an NCCL without a GPU: a library of its own, loaded as the real one is, whose sends
 * and receives are copies among the ranks of this process, on the fake driver's streams. */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include <stdbool.h>
#include <stdint.h>

/* What the library exports under this name. */
#define FAKE_NCCL_SYMBOL "fake_nccl"

typedef struct fake_nccl_state {
    int version; /* that it says it is */
    int (*enqueue)(void *stream, void (*fn)(void *arg), void *arg);
    bool (*has_gpu)(void); /* the thread has a current one */
    const char *fails;     /* this call, with `result` */
    int result;
    int spared;    /* but not for this rank of a communicator's, from 1; 0: for all */
    int naps_ms;   /* of each communicator, before it first says that it is in progress; 0: none */
    int broken;    /* what communicators say of themselves from now on; 0: nothing; atomic */
    bool cut;      /* nothing comes through any more; atomic */
    int named;     /* calls of ncclGetUniqueId; atomic */
    int live;      /* communicators; atomic */
    int aborts;    /* so many were ended so; atomic */
    uint64_t sent; /* bytes; atomic */
} fake_nccl_state;

/* Loads the library, makes it the one that imbrex finds, and gives it the fake driver's streams. */
fake_nccl_state *fake_nccl_install(void);

#endif /* FAKE_NCCL_H */
