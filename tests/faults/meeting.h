/* meeting.h - ranks of a rendezvous as processes of their own, for the tests. */
#ifndef TESTS_MEETING_H
#define TESTS_MEETING_H

#include "bootstrap/bootstrap.h"
#include "patience.h"

/* What a rank does once it is in; the default swaps rank numbers and checks them. */
typedef imbrex_status meeting_body(imx_bootstrap *bootstrap);

typedef struct meeting_rank {
    imx_launch_env launch;
    imx_env env;
    uint64_t sequence;
    int64_t timeout_ms, delay_ms; /* for patient(); delay: before it calls */
    unsigned user;                /* 0: the test's own; else only root can */
    bool killed;                  /* ends by SIGKILL: has no result */
    meeting_body *then;           /* NULL: the default */
} meeting_rank;

/* Of a rank that ended.  Shared memory: ranks write it. */
typedef struct meeting_result {
    bool ended;
    imbrex_status status;
    int64_t took_ms; /* as patient() was given it */
    int leaked;      /* descriptors */
    char text[512];
} meeting_result;

enum { MEETING_UNIX, MEETING_TCP };

/* ranks[size] of a new group, which meets nobody else's: on this host, or over TCP on loopback. */
void meeting_make(meeting_rank *ranks, int size, int kind);

/* A port with some free ones above it. */
int meeting_port(void);

/* A listening socket on 127.0.0.1 that never accepts, or a connection; fails the test. */
int meeting_occupy(int port);
int meeting_connect(int port);

/* Starts all ranks, and waits for all.  A rank that leaves descriptors behind, or does not end as
 * it should, fails the test. */
typedef struct meeting_ranks meeting_ranks;
meeting_ranks *meeting_start(const meeting_rank *ranks, int count);
const meeting_result *meeting_join(meeting_ranks *meeting); /* [count]; valid until the next call */
const meeting_result *meeting_run(const meeting_rank *ranks, int count);

/* Assert, printing both sides. */
void meeting_check_status(const meeting_result *result, imbrex_status status);
void meeting_check_all_ok(const meeting_result *all, int count);
void meeting_check_text(const meeting_result *result, const char *part);
void meeting_check_limit(const meeting_result *result, int64_t ms); /* says "within ms" */

/* Meets as 1, 2, 3 and 8 ranks, each way, and runs `then`: all go well. */
void meeting_check_sizes(meeting_body *then);

int meeting_count_fds(void);                          /* of this process */
imbrex_status meeting_swap(imx_bootstrap *bootstrap); /* the default body */

#endif /* TESTS_MEETING_H */
