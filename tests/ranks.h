/* ranks.h - runs a function as R ranks, as threads of this process or as child processes. */
#ifndef RANKS_H
#define RANKS_H

#include <stdbool.h>
#include <stdio.h>

#include "imbrex.h"
#include "patience.h"
#include "sanitized.h"

/* ThreadSanitizer sees ranks that are threads; in processes it sees each alone, and slowly. */
enum { RANKS_PROCESSES = !SANITIZED_THREADS };

typedef struct ranks_desc {
    int size;
    bool processes;     /* else threads */
    int node_ranks;     /* so many that follow each other are a node; 0: all */
    int64_t timeout_ms; /* of the group, for patient(); 0: 20000 */
    int meeting_s;      /* how long threads wait for one that does not come to meet; 0: 30 */
    bool once;          /* threads meet so only to make a group, see imbrex_bootstrap */
} ranks_desc;

/* 0 if all went well.  group is made and destroyed around it. */
typedef int (*rank_main)(imbrex_group *group, void *ctx);

/* Runs all ranks and returns how many of them failed (returned non-zero, died, or did not end
 * within a minute).  ctx is shared by threads, copied by processes. */
int ranks_run(const ranks_desc *desc, rank_main run, void *ctx);

/* The same without a group: the function makes its own, with bootstrap (NULL: the environment). */
typedef int (*bare_main)(int rank, const imbrex_bootstrap *bootstrap, void *ctx);
int ranks_run_bare(const ranks_desc *desc, bare_main run, void *ctx);

/* In a rank: all have come here before any goes on; 0 if so. */
int ranks_meet(imbrex_group *group);

/* In a rank: what is enqueued ends with PEER or TIMEOUT, and a sentence with part; 0 if so. */
int ranks_expect(imbrex_group *group, const char *part);

/* In a rank: says what is wrong, and ends the rank's function with 1. */
#define RANK_CHECK(condition, ...)                          \
    do {                                                    \
        if (!(condition)) {                                 \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
            fprintf(stderr, __VA_ARGS__);                   \
            fprintf(stderr, " [%s]\n", #condition);         \
            return 1;                                       \
        }                                                   \
    } while (0)

#define RANK_OK(call)                                                                     \
    do {                                                                                  \
        imbrex_status rank_status_ = (call);                                              \
        RANK_CHECK(rank_status_ == IMBREX_OK, "%s: %s", imbrex_status_name(rank_status_), \
                   imbrex_error());                                                       \
    } while (0)

#endif /* RANKS_H */
