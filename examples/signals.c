/* signals.c - the pieces that operators are made of: symmetric memory, put and signals.  A token
 * goes round a ring of ranks; each adds its number.
 *
 *     imbrex run -n 4 -- example_signals
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "imbrex.h"

enum { ROUNDS = 5 };

static void check(imbrex_status status)
{
    if (status != IMBREX_OK) {
        fprintf(stderr, "%s\n", imbrex_error());
        exit(EXIT_FAILURE);
    }
}

/* Exists on every rank, and every rank reaches all of them. */
typedef struct ring {
    uint64_t token;
    uint64_t arrived; /* signal: the rank before has put so many tokens here */
} ring;

int main(void)
{
    imbrex_group *group;
    check(imbrex_group_create(&(imbrex_group_desc){ .device = "cpu" }, &group));
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    int next = (rank + 1) % ranks;

    /* STEP 1: symmetric memory.  It begins as zeros. */
    void *memory;
    check(imbrex_mem_alloc(group, sizeof(ring), &memory));
    ring *mine = memory;

    /* STEP 2: go round.  Rank 0 starts each round; at its end the token comes back to it. */
    uint64_t token = 0;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        if (rank != 0) {
            check(imbrex_signal_wait(group, &mine->arrived, round, NULL));
            check(imbrex_copy(group, &token, &mine->token, sizeof token, NULL));
            check(imbrex_stream_sync(group, NULL));
        }
        token += (uint64_t)rank + 1;

        /* First the data, then the signal: who sees the signal also sees the data.  The token here
         * is free to be written again: the next round's comes only after this one went all the way
         * round. */
        check(imbrex_put(group, &mine->token, &token, sizeof token, next, NULL));
        check(imbrex_signal_post(group, &mine->arrived, round, next, NULL));
        if (rank == 0) {
            check(imbrex_signal_wait(group, &mine->arrived, round, NULL));
            check(imbrex_copy(group, &token, &mine->token, sizeof token, NULL));
        }
        check(imbrex_stream_sync(group, NULL));
    }

    /* STEP 3: every rank reads rank 0's token through its own mapping of that memory. */
    check(imbrex_barrier(group, NULL));
    check(imbrex_stream_sync(group, NULL));
    void *theirs;
    check(imbrex_mem_peer(group, mine, 0, &theirs));
    uint64_t got = ((const ring *)theirs)->token;
    uint64_t want = ROUNDS * (uint64_t)ranks * (uint64_t)(ranks + 1) / 2;
    printf("rank %d of %d: the token is %llu, should be %llu\n", rank, ranks,
           (unsigned long long)got, (unsigned long long)want);

    /* STEP 4: nobody frees what a peer may still read. */
    check(imbrex_barrier(group, NULL));
    check(imbrex_stream_sync(group, NULL));
    imbrex_mem_free(group, memory);
    imbrex_group_destroy(group);
    return got == want ? EXIT_SUCCESS : EXIT_FAILURE;
}
