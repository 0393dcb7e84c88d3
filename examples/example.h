/* example.h - what the host's part of every example does alike: a group, memory, a clock. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "example_threads.h"
#include "imbrex.h"

enum { EXAMPLE_RUNS = 20 };

static inline void check(imbrex_status status)
{
    if (status != IMBREX_OK) {
        fprintf(stderr, "%s\n", imbrex_error());
        example_exit(EXIT_FAILURE);
    }
}

/* Ends the program with the exit code that test runners take for "skipped". */
static inline void example_skip(const char *why)
{
    printf("skipped: %s\n", why);
    example_exit(77);
}

/* "--device cuda", or the CPU: example_main lets nothing else through.  What this machine lacks,
 * such as an engine between nodes, is no fault of the example's. */
static inline imbrex_group *example_begin_on_nodes(int argc, char **argv)
{
    const char *device = argc > 2 ? argv[2] : "cpu";
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = example_bootstrap, .device = device };
    imbrex_status status = imbrex_group_create(&desc, &group);
    if (status == IMBREX_UNSUPPORTED)
        example_skip(imbrex_error());
    check(status);
    return group;
}

/* The same for an example whose kernels reach all ranks. */
static inline imbrex_group *example_begin(int argc, char **argv)
{
    imbrex_group *group = example_begin_on_nodes(argc, argv);
    if (imbrex_group_node(group, imbrex_group_size(group) - 1) > 0)
        example_skip("it is for the ranks of one node");
    return group;
}

/* Where this rank stands among nodes that have as many ranks each. */
typedef struct example_place {
    int rank, ranks;
    int node, nodes;
    int local, mates; /* its number within its node, of so many */
} example_place;

static inline example_place example_find_place(const imbrex_group *group)
{
    example_place p = { .rank = imbrex_group_rank(group), .ranks = imbrex_group_size(group) };
    p.node = imbrex_group_node(group, p.rank);
    p.nodes = imbrex_group_node(group, p.ranks - 1) + 1;
    p.mates = p.ranks / p.nodes;
    p.local = p.rank - p.node * p.mates;
    for (int r = 0; r < p.ranks; r++) {
        if (p.ranks % p.nodes || imbrex_group_node(group, r) != r / p.mates)
            example_skip("it wants as many ranks on each node");
    }
    return p;
}

/* A kernel that the same file holds, for CPUs in entry and for GPUs as text.  desc: the rest. */
static inline imbrex_kernel *example_kernel(imbrex_group *group, const char *file, const char *name,
                                            const struct imbrexd_entry *entry,
                                            imbrex_kernel_desc desc)
{
    imbrex_kernel *kernel;
    desc.name = name;
    desc.file = file;
    desc.options = "-DKERNEL";
    desc.entry = entry;
    check(imbrex_kernel_create(group, &desc, &kernel));
    return kernel;
}
#define EXAMPLE_KERNEL(group, name, ...) \
    example_kernel(group, __FILE__, #name, IMBREXD_ENTRY(name), (imbrex_kernel_desc){ __VA_ARGS__ })

/* Of the host's, for free(). */
static inline void *example_room(size_t bytes)
{
    void *room = malloc(bytes);
    if (!room) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        example_exit(EXIT_FAILURE);
    }
    return room;
}

/* Symmetric memory, which is memory of the group's device, with bytes of `from` in it or zeros. */
static inline void *example_memory(imbrex_group *group, size_t bytes, const void *from)
{
    void *memory;
    check(imbrex_mem_alloc(group, bytes, &memory));
    if (from) {
        check(imbrex_copy(group, memory, from, bytes, NULL));
        check(imbrex_stream_sync(group, NULL));
    }
    return memory;
}

static inline void example_read(imbrex_group *group, void *to, const void *memory, size_t bytes)
{
    check(imbrex_copy(group, to, memory, bytes, NULL));
    check(imbrex_stream_sync(group, NULL));
}

/* Fills memory with what is no number: then nothing that one way to a result left there passes for
 * the next one's.  All ranks call; none goes on to write into a peer's before that is cleared. */
static inline void example_clear(imbrex_group *group, void *memory, size_t bytes)
{
    void *nothing = example_room(bytes);
    memset(nothing, 0xff, bytes);
    check(imbrex_copy(group, memory, nothing, bytes, NULL));
    check(imbrex_barrier(group, NULL));
    check(imbrex_stream_sync(group, NULL));
    free(nothing);
}

/* What an example makes, in memory of the group's device, and what it should be. */
typedef struct example_result {
    float *at;
    int count;
    float (*wanted)(const void *ctx, int i);
    int wrong; /* so many were not, so far */
} example_result;

/* Looks at the result, and tells the first that is wrong. */
static inline void example_look(imbrex_group *group, example_result *result, const void *ctx)
{
    size_t bytes = (size_t)result->count * sizeof(float);
    float *got = example_room(bytes);
    int wrong = 0;
    example_read(group, got, result->at, bytes);
    for (int i = 0; i < result->count; i++) {
        float want = result->wanted(ctx, i);
        if (got[i] != want && !wrong++)
            fprintf(stderr, "rank %d: element %d is %g, should be %g\n", imbrex_group_rank(group),
                    i, (double)got[i], (double)want);
    }
    free(got);
    result->wrong += wrong;
}

/* Microseconds a run takes, of some that follow each other; the first is not counted. */
static inline double example_time(imbrex_group *group, void (*run)(void *ctx), void *ctx)
{
    struct timespec begin, end;
    run(ctx);
    check(imbrex_barrier(group, NULL));
    check(imbrex_stream_sync(group, NULL));
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < EXAMPLE_RUNS; i++)
        run(ctx);
    check(imbrex_stream_sync(group, NULL));
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - begin.tv_sec) * 1e6 +
            (double)(end.tv_nsec - begin.tv_nsec) * 1e-3) /
           EXAMPLE_RUNS;
}

/* Microseconds a run takes that is one way to the result.  The first one is looked at by itself: it
 * shows a wait that is missing, while later ones find the right values of those before. */
static inline double example_try(imbrex_group *group, example_result *result,
                                 void (*run)(void *ctx), void *ctx)
{
    example_clear(group, result->at, (size_t)result->count * sizeof(float));
    run(ctx);
    example_look(group, result, ctx);
    double us = example_time(group, run, ctx);
    example_look(group, result, ctx);
    return us;
}

/* One line from rank 0: what overlapping gained there. */
static inline void example_say(const imbrex_group *group, const char *what, double us,
                               double sequential_us)
{
    if (imbrex_group_rank(group) == 0)
        printf("%s on %d ranks of %s: %.1f us; one after the other: %.1f us\n", what,
               imbrex_group_size(group), imbrex_group_device(group), us, sequential_us);
}

/* The rank's exit code. */
static inline int example_end(imbrex_group *group, int wrong)
{
    if (wrong)
        fprintf(stderr, "rank %d: %d elements are wrong\n", imbrex_group_rank(group), wrong);
    imbrex_group_destroy(group);
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif /* EXAMPLE_H */
