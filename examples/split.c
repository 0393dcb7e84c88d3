/* split.c - tensor parallel x data parallel: two groups of each rank, of one launch.
 *
 *     imbrex run -n 4 -- example_split        # [0, 1] and [2, 3]; [0, 2] and [1, 3]
 *
 * The two ranks of a tensor-parallel group share a layer: each has half of its weights.  The groups
 * have other rows; what a step has found goes between ranks that have the same half.
 */
#include <stdio.h>
#include <stdlib.h>

#include "imbrex.h"

enum { TENSOR = 2, M = 16, N = 24, K = 32 };

static void check(imbrex_status status)
{
    if (status != IMBREX_OK) {
        fprintf(stderr, "%s\n", imbrex_error());
        exit(EXIT_FAILURE);
    }
}

static float value(int of, int row, int i)
{
    return (float)((row * 3 + of * 5 + i) % 7 - 3);
}

/* One element of a layer's product on a rank of the world. */
static float layer(int rank, int row, int column)
{
    float sum = 0;
    for (int k = 0; k < K; k++)
        sum += value(rank / TENSOR, row, k) * value(rank % TENSOR, column, k);
    return sum;
}

int main(void)
{
    imbrex_group *world, *tensor, *data;
    check(imbrex_group_create(&(imbrex_group_desc){ .device = "cpu" }, &world));
    int rank = imbrex_group_rank(world), ranks = imbrex_group_size(world);

    /* STEP 1: ranks of one color make a group; all ranks of the world make both calls. */
    check(imbrex_group_split(world, rank / TENSOR, rank, &tensor));
    check(imbrex_group_split(world, rank % TENSOR, rank, &data));

    /* STEP 2: c = all_gather(a) * b within the tensor-parallel group. */
    int shards = imbrex_group_size(tensor), shard = imbrex_group_rank(tensor);
    int first = shard * M / shards, rows = (shard + 1) * M / shards - first;
    static float a[M * K], b[N * K], c[M * N];
    for (int i = 0; i < rows * K; i++)
        a[i] = value(rank / TENSOR, first + i / K, i % K);
    for (int i = 0; i < N * K; i++)
        b[i] = value(shard, i / K, i % K);
    imbrex_plan *product, *sum;
    imbrex_gemm_desc gemm = { .m = M, .n = N, .k = K, .dtype = IMBREX_F32 };
    check(imbrex_plan_ag_gemm(tensor, &gemm, &product));
    check(imbrex_plan_run(product, &(imbrex_args){ .a = a, .b = b, .c = c }, NULL));
    check(imbrex_stream_sync(tensor, NULL)); /* streams of two groups are ordered by nothing else */

    /* STEP 3: what all data-parallel ranks have for this shard, added up: each gets some rows. */
    int replicas = imbrex_group_size(data), replica = imbrex_group_rank(data);
    static float own[M * N];
    imbrex_coll_desc coll = { .m = M, .n = N, .dtype = IMBREX_F32 };
    check(imbrex_plan_reduce_scatter(data, &coll, &sum));
    check(imbrex_plan_run(sum, &(imbrex_args){ .a = c, .c = own }, NULL));
    check(imbrex_stream_sync(data, NULL));

    int begin = replica * M / replicas, end = (replica + 1) * M / replicas, wrong = 0;
    for (int row = begin; row < end; row++) {
        for (int n = 0; n < N; n++) {
            float want = 0;
            for (int r = rank % TENSOR; r < ranks; r += TENSOR)
                want += layer(r, row, n);
            wrong += own[(row - begin) * N + n] != want; /* small whole numbers: exact */
        }
    }
    printf("rank %d of %d: shard %d of %d, replica %d of %d: %d elements are wrong\n", rank, ranks,
           shard, shards, replica, replicas, wrong);

    imbrex_plan_destroy(sum);
    imbrex_plan_destroy(product);
    imbrex_group_destroy(data);
    imbrex_group_destroy(tensor);
    imbrex_group_destroy(world);
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
