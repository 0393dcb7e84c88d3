/* bits.c - says what operators compute, bit by bit, so that two builds can be compared:
 *
 *     imbrex run -n 2 -- bits cpu | sort >new.txt      # and likewise by the other build
 *     diff old.txt new.txt
 *
 * A line a result: operator, sizes, dtype, order of b, algorithm, rank, and a hash of the bytes
 * that this rank gets; or why there is no plan.  It takes nothing of imbrex.h that the first
 * operators did not have, so that it can be compiled by older headers.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "imbrex.h"

enum { OPS = 4, ALL_GATHER = 0, REDUCE_SCATTER, AG_GEMM, GEMM_RS };

static const char *const op_names[OPS] = { "all_gather", "reduce_scatter", "ag_gemm", "gemm_rs" };

/* m of all ranks, n, k: whole tiles, a little more, few rows, few columns, long sums. */
static const int64_t shapes[][3] = { { 1024, 512, 512 }, { 1000, 520, 264 }, { 37, 1032, 2048 },
                                     { 300, 24, 4096 },  { 8, 4096, 512 },   { 2100, 1536, 1032 },
                                     { 1, 8, 8 } };

static imbrex_group *group;

static void must(imbrex_status status)
{
    if (status != IMBREX_OK) {
        fprintf(stderr, "bits: %s\n", imbrex_error());
        exit(EXIT_FAILURE);
    }
}

/* Numbers between 1/128 and 2 of either sign, all bits of which are by chance: what sums come to
 * depends on their order. */
static void fill(unsigned char *to, size_t elements, imbrex_dtype dtype, uint64_t seed)
{
    uint64_t state = seed * 2 + 1;
    for (size_t i = 0; i < elements; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t some = (uint32_t)(state >> 33), exponent = some >> 1 & 7;
        uint32_t sign = some & 1, mantissa = some >> 4;
        uint32_t f32 = sign << 31 | (120 + exponent) << 23 | (mantissa & 0x7fffff);
        uint16_t half = dtype == IMBREX_BF16
                            ? (uint16_t)(f32 >> 16)
                            : (uint16_t)(sign << 15 | (8 + exponent) << 10 | (mantissa & 0x3ff));
        if (dtype == IMBREX_F32)
            memcpy(to + 4 * i, &f32, 4);
        else
            memcpy(to + 2 * i, &half, 2);
    }
}

static uint64_t hash_of(const unsigned char *at, size_t bytes)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}

static imbrex_status make(int op, const int64_t *mnk, imbrex_dtype dtype, imbrex_layout layout,
                          const char *algorithm, imbrex_plan **plan)
{
    imbrex_gemm_desc gemm = { .m = mnk[0],
                              .n = mnk[1],
                              .k = mnk[2],
                              .dtype = dtype,
                              .layout = layout,
                              .algorithm = algorithm };
    imbrex_coll_desc coll = { .m = mnk[0], .n = mnk[1], .dtype = dtype, .algorithm = algorithm };
    switch (op) {
    case ALL_GATHER:
        return imbrex_plan_all_gather(group, &coll, plan);
    case REDUCE_SCATTER:
        return imbrex_plan_reduce_scatter(group, &coll, plan);
    case AG_GEMM:
        return imbrex_plan_ag_gemm(group, &gemm, plan);
    default:
        return imbrex_plan_gemm_rs(group, &gemm, plan);
    }
}

/* From and to memory of the device, and until that is done. */
static void move(void *to, const void *from, size_t bytes)
{
    must(imbrex_copy(group, to, from, bytes, NULL));
    must(imbrex_stream_sync(group, NULL));
}

static void one(int op, const int64_t *mnk, imbrex_dtype dtype, imbrex_layout layout,
                const char *algorithm)
{
    static const char *const dtypes[] = { "bf16", "f16", "f32" };
    int rank = imbrex_group_rank(group), size = imbrex_group_size(group);
    int64_t m = mnk[0], own = m * (rank + 1) / size - m * rank / size, n = mnk[1], k = mnk[2];
    bool gathers = op == ALL_GATHER || op == AG_GEMM, multiplies = op == AG_GEMM || op == GEMM_RS;
    size_t element = dtype == IMBREX_F32 ? 4 : 2;
    size_t a = (size_t)((gathers ? own : m) * (multiplies ? k : n)) * element;
    size_t b = multiplies ? (size_t)(n * k) * element : 0;
    size_t c = (size_t)((gathers ? m : own) * n) * element;
    size_t to_b = (a + 255) / 256 * 256, to_c = to_b + (b + 255) / 256 * 256;
    const char *name = dtype == IMBREX_BF16 ? dtypes[0] : dtypes[dtype == IMBREX_F16 ? 1 : 2];
    imbrex_plan *plan = NULL;
    char line[160];
    snprintf(line, sizeof line, "%s %" PRId64 " %" PRId64 " %" PRId64 " %s %s %s of %d rank %d",
             op_names[op], m, n, multiplies ? k : 0, name, layout == IMBREX_NK ? "nk" : "kn",
             algorithm ? algorithm : "chosen", size, rank);
    if (make(op, mnk, dtype, layout, algorithm, &plan) != IMBREX_OK) {
        printf("%s no plan\n", line);
        return;
    }
    unsigned char *host = calloc(1, to_c + c + 1);
    void *at;
    if (!host)
        exit(EXIT_FAILURE);
    int64_t most = m * (multiplies ? k : n) + (multiplies ? n * k : 0) + m * n; /* on any rank */
    must(imbrex_mem_alloc(group, (size_t)most * element + 1024, &at));
    fill(host, a / element, dtype, 1 + (uint64_t)rank);
    fill(host + to_b, b / element, dtype, 101 + (uint64_t)rank);
    move(at, host, to_c + c);
    char *base = at;
    imbrex_args args = { .a = base, .b = multiplies ? base + to_b : NULL, .c = base + to_c };
    must(imbrex_plan_run(plan, &args, NULL));
    must(imbrex_stream_sync(group, NULL));
    move(host, base + to_c, c);
    printf("%s %016" PRIx64 "\n", line, hash_of(host, c));
    must(imbrex_barrier(group, NULL));
    must(imbrex_stream_sync(group, NULL));
    imbrex_plan_destroy(plan);
    imbrex_mem_free(group, at);
    free(host);
}

int main(int argc, char **argv)
{
    static const imbrex_dtype dtypes[] = { IMBREX_BF16, IMBREX_F16, IMBREX_F32 };
    static const char *const algorithms[] = { NULL, "sequential", "copy", "store", "ll" };
    imbrex_group_desc desc = { .device = argc > 1 ? argv[1] : NULL };
    must(imbrex_group_create(&desc, &group));
    for (int op = 0; op < OPS; op++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int d = 0; d < 3; d++)
                for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
                    if (op == GEMM_RS && i == 3) /* has several names by now */
                        continue;
                    one(op, shapes[s], dtypes[d], IMBREX_NK, algorithms[i]);
                    if (op >= AG_GEMM && !algorithms[i])
                        one(op, shapes[s], dtypes[d], IMBREX_KN, NULL);
                }
    imbrex_group_destroy(group);
    return 0;
}
