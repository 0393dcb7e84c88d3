/* 11_gemm_pipeline.c - gemm_rs on the library's own product: c = my rows of the sum of all a * b^T.
 *
 *     imbrex run -n 4 -- example_11_gemm_pipeline [--device cuda [m n k]]
 *
 * The pipeline multiplies; its hooks, all of this file's first part, are the operator.  Tiles go
 * straight to their rows' owner, into a slot of its symmetric memory, those of the next rank first
 * and its own last.  The last tile of a chunk raises a signal there.  The pipeline adds each own
 * tile to what the others made of it, in rank order, once a hook says that this has come:
 *
 *     product   | for rank + 1 | for rank + 2 | for rank + 3 | own: tile | own: tile | own: tile |
 *     beside                                                             | add       | add       |
 *
 * Its time stands beside that of the library's gemm_rs, and so do its bits, which are the same (but
 * with one rank and few rows, where the library may have two blocks make a tile).
 * After Triton-distributed's tutorial of an overlapping GEMM and ReduceScatter. */
#include "imbrex_gemm.h"

typedef struct rs_args {
    char *slots; /* symmetric: [ranks] of slot_bytes: each rank's part of this one's rows */
    char *c;     /* [rows, n] */
    size_t slot_bytes;
} rs_args;

/* Number chunk of rank `from`'s part is here; number -1: `from` has added what this rank stored. */
IMBREXD_FN uint64_t *signal_of(const imbrexd_team *team, int holder, int from, int chunk)
{
    return imbrexd_signal(team, holder, (chunk + 1) * team->size + from);
}

IMBREXD_FN int owners_have_added(const rs_args *args, const imbrexd_team *team,
                                 const imbrexd_gemm *gemm)
{
    (void)args, (void)gemm;
    return imbrexd_wait_warp(team, signal_of(team, team->rank, 0, -1), team->size,
                             imbrexd_epoch(team) - 1, -1);
}

IMBREXD_FN void tell_owner(const rs_args *args, const imbrexd_team *team, const imbrexd_gemm *gemm,
                           int owner, int chunk)
{
    (void)args, (void)gemm;
    imbrexd_signal_post(signal_of(team, owner, team->rank, chunk), imbrexd_epoch(team));
}

/* Those of the others: this rank's own part of the tile in question is there. */
IMBREXD_FN int parts_are_here(const rs_args *args, const imbrexd_team *team,
                              const imbrexd_gemm *gemm, int chunk, imbrexd_gemm_sum *sum)
{
    int before = team->rank, behind = team->size - 1 - before;
    uint64_t epoch = imbrexd_epoch(team), *first = signal_of(team, before, 0, chunk);
    (void)gemm;
    sum->to = args->c;
    sum->parts = args->slots;
    sum->stride_bytes = args->slot_bytes;
    return imbrexd_wait_warp(team, first, before, epoch, -1) &&
           imbrexd_wait_warp(team, first + before + 1, behind, epoch, -1);
}

IMBREXD_FN void thank_all(const rs_args *args, const imbrexd_team *team, const imbrexd_gemm *gemm)
{
    (void)args, (void)gemm;
    for (int r = 0; r < team->size; r++)
        imbrexd_signal_post(signal_of(team, r, team->rank, -1), imbrexd_epoch(team));
}

#define IMBREXD_GEMM_NAME  rs
#define IMBREXD_GEMM_ARGS  rs_args
#define IMBREXD_GEMM_BEGIN owners_have_added
#define IMBREXD_GEMM_DONE  tell_owner
#define IMBREXD_GEMM_SUM   parts_are_here
#define IMBREXD_GEMM_END   thank_all
#include "imbrex_gemm_kernel.h"

#ifndef KERNEL
#define EXAMPLE_WORDS 3 /* m n k */
#include "example.h"

enum { RANKS_MOST = 16, CHUNK_ROWS = 512 };

typedef struct run {
    imbrex_group *group;
    imbrex_kernel *kernel;
    imbrex_plan *plan;
    imbrex_gemm_operands operands;
    rs_args args;
    imbrex_args plan_args;
} run;

static void one_run(void *ctx)
{
    run *r = ctx;
    check(imbrex_launch_gemm(r->kernel, &r->operands, &r->args, sizeof r->args, NULL));
}

static void one_plan_run(void *ctx)
{
    run *r = ctx;
    check(imbrex_plan_run(r->plan, &r->plan_args, NULL));
}

/* bf16 of about a normal distribution's spread: on zeros a GPU is faster. */
static void *random_matrix(imbrex_group *group, size_t elements, uint32_t seed)
{
    uint16_t *values = example_room(elements * sizeof *values);
    for (size_t i = 0; i < elements; i++) {
        int sum = 0;
        for (int k = 0; k < 4; k++) {
            seed = seed * 1664525 + 1013904223;
            sum += (int)(seed >> 24) - 128;
        }
        float value = (float)sum / 128;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
    void *memory = example_memory(group, elements * sizeof *values, values);
    free(values);
    return memory;
}

static int count_wrong(const run *r, size_t bytes)
{
    int wrong = 0;
    uint16_t *have = example_room(bytes), *want = example_room(bytes);
    example_read(r->group, have, r->args.c, bytes);
    example_read(r->group, want, r->plan_args.c, bytes);
    for (size_t i = 0; i < bytes / 2; i++)
        wrong += have[i] != want[i];
    free(have);
    free(want);
    return wrong;
}

static int rank_main(int argc, char **argv)
{
    run r = { .group = example_begin(argc < 3 ? argc : 3, argv) };
    int rank = imbrex_group_rank(r.group), ranks = imbrex_group_size(r.group);
    imbrex_gemm_desc shape = { .m = 1100, .n = 384, .k = 256, .chunk_rows = CHUNK_ROWS / 4 };
    if (argc >= 3 && strncmp(argv[2], "cuda", 4) == 0)
        shape = (imbrex_gemm_desc){ .m = 8192, .n = 8192, .k = 2048, .chunk_rows = CHUNK_ROWS };
    if (argc == 6)
        shape.m = atoll(argv[3]), shape.n = atoll(argv[4]), shape.k = atoll(argv[5]);
    size_t m = (size_t)shape.m, n = (size_t)shape.n, k = (size_t)shape.k, of = (size_t)ranks;
    size_t rows = (m + of - 1) / of, slot_bytes = (rows * n * 2 + 255) / 256 * 256;
    size_t chunks = (rows + (size_t)shape.chunk_rows - 1) / (size_t)shape.chunk_rows;

    char *slots = example_memory(r.group, of * slot_bytes, NULL);
    r.args = (rs_args){ slots, example_memory(r.group, rows * n * 2, NULL), slot_bytes };
    r.operands.a = random_matrix(r.group, m * k, (uint32_t)rank + 1);
    r.operands.b = random_matrix(r.group, n * k, (uint32_t)rank + 100);
    r.operands.first = (rank + 1) % ranks;
    void *c[RANKS_MOST];
    for (int to = 0; to < ranks && to < RANKS_MOST; to++)
        check(imbrex_mem_peer(r.group, slots + (size_t)rank * slot_bytes, to, &c[to]));
    r.operands.c = c;
    r.kernel = EXAMPLE_KERNEL(r.group, rs, .gemm = &shape, .signals = ranks * (1 + (int)chunks));
    shape.algorithm = NULL;
    check(imbrex_plan_gemm_rs(r.group, &shape, &r.plan));
    r.plan_args = (imbrex_args){ .a = r.operands.a,
                                 .b = r.operands.b,
                                 .c = example_memory(r.group, rows * n * 2, NULL) };

    size_t own_rows = (size_t)(rank + 1) * m / of - (size_t)rank * m / of;
    one_run(&r);
    one_plan_run(&r);
    int wrong = count_wrong(&r, own_rows * n * 2); /* at once, when a missing wait shows */
    double us = example_time(r.group, one_run, &r);
    double plan_us = example_time(r.group, one_plan_run, &r);
    wrong += count_wrong(&r, own_rows * n * 2);
    if (rank == 0)
        printf("gemm_rs of %zu x %zu x %zu with hooks on %d ranks of %s: %.1f us; the library's: "
               "%.1f us, %.2f of its speed\n",
               m, n, k, ranks, imbrex_group_device(r.group), us, plan_us, plan_us / us);
    return example_end(r.group, wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
