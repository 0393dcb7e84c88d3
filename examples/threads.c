/* threads.c - ranks as threads of one process, which meet through a callback of their own:
 * all that imbrex asks of a launcher is an all-gather of a few bytes.
 *
 *     example_threads
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "imbrex.h"

enum { RANKS = 3, M = 100, N = 8 }; /* 100 rows do not divide by 3: ranks own 33, 33 and 34 */

/* What the ranks share: a blackboard and a barrier. */
static char board[RANKS][4096];
static pthread_barrier_t barrier;

/* STEP 1: the all-gather.  Every rank writes, all wait, every rank reads, all wait. */
static int swap(void *ctx, const void *send, void *recv, size_t bytes)
{
    const int *rank = ctx;
    if (bytes > sizeof board[0])
        return 1;
    memcpy(board[*rank], send, bytes);
    pthread_barrier_wait(&barrier);
    for (int r = 0; r < RANKS; r++)
        memcpy((char *)recv + (size_t)r * bytes, board[r], bytes);
    pthread_barrier_wait(&barrier);
    return 0;
}

static void check(imbrex_status status)
{
    if (status != IMBREX_OK) {
        fprintf(stderr, "%s\n", imbrex_error());
        exit(EXIT_FAILURE);
    }
}

static void *rank_main(void *arg)
{
    int rank = *(int *)arg, wrong = 0;

    /* STEP 2: each thread has a group of its own, with its rank in it. */
    imbrex_bootstrap bootstrap = { .rank = rank, .size = RANKS, .allgather = swap, .ctx = &rank };
    imbrex_group *group;
    check(imbrex_group_create(&(imbrex_group_desc){ &bootstrap, .device = "cpu" }, &group));

    /* STEP 3: add up the matrices of all ranks; each rank gets its rows of the sum. */
    float a[M * N], c[M * N];
    int first = rank * M / RANKS, rows = (rank + 1) * M / RANKS - first;
    for (int i = 0; i < M * N; i++)
        a[i] = (float)(i * (rank + 1));
    imbrex_coll_desc desc = { .m = M, .n = N, .dtype = IMBREX_F32 };
    imbrex_plan *plan;
    check(imbrex_plan_reduce_scatter(group, &desc, &plan));
    check(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = c }, NULL));
    check(imbrex_stream_sync(group, NULL));

    /* STEP 4: 1 + 2 + 3 = 6 times the element's number. */
    for (int i = 0; i < rows * N; i++)
        wrong += c[i] != (float)((first * N + i) * RANKS * (RANKS + 1) / 2);
    printf("rank %d of %d: %d of %d elements are wrong\n", rank, RANKS, wrong, rows * N);
    imbrex_plan_destroy(plan);
    imbrex_group_destroy(group);
    return wrong ? arg : NULL;
}

int main(void)
{
    pthread_t threads[RANKS];
    int ranks[RANKS], failed = 0;
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = r;
        pthread_create(&threads[r], NULL, rank_main, &ranks[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        void *wrong;
        pthread_join(threads[r], &wrong);
        failed |= wrong != NULL;
    }
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
