/* plan.c - one overlapped product over all ranks: c = all_gather(a) * b.
 *
 *     imbrex run -n 4 -- example_plan
 */
#include <stdio.h>
#include <stdlib.h>

#include "imbrex.h"

enum { M = 256, N = 96, K = 64 };

static void check(imbrex_status status)
{
    if (status != IMBREX_OK) {
        fprintf(stderr, "%s\n", imbrex_error());
        exit(EXIT_FAILURE);
    }
}

static float value(int matrix, int row, int i)
{
    return (float)((row * 3 + matrix - i) % 7);
}

int main(void)
{
    /* STEP 1: find the other ranks: what the launcher put in the environment says who they are. */
    imbrex_group *group;
    check(imbrex_group_create(&(imbrex_group_desc){ .device = "cpu" }, &group));
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);

    /* STEP 2: this rank's rows of a[M, K], and its own b[N, K].  Any memory will do. */
    int first = rank * M / ranks, rows = (rank + 1) * M / ranks - first;
    static float a[M * K], b[N * K], c[M * N];
    for (int i = 0; i < rows * K; i++)
        a[i] = value(0, first + i / K, i % K);
    for (int i = 0; i < N * K; i++)
        b[i] = value(rank + 1, i / K, i % K);

    /* STEP 3: fix the shape once, run as often as you like. */
    imbrex_plan *plan;
    imbrex_gemm_desc desc = { .m = M, .n = N, .k = K, .dtype = IMBREX_F32 };
    check(imbrex_plan_ag_gemm(group, &desc, &plan));
    check(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .b = b, .c = c }, NULL));
    check(imbrex_stream_sync(group, NULL));

    /* STEP 4: c has the rows of every rank. */
    int wrong = 0;
    for (int i = 0; i < M * N; i++) {
        float sum = 0;
        for (int j = 0; j < K; j++)
            sum += value(0, i / N, j) * value(rank + 1, i % N, j);
        wrong += c[i] != sum; /* small whole numbers: exact */
    }
    printf("rank %d of %d: %d of %d elements are wrong\n", rank, ranks, wrong, M * N);

    imbrex_plan_destroy(plan);
    imbrex_group_destroy(group);
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
