/* example_threads.h - ranks as threads of one process, for IMBREX_CHECK, which sees no others:
 *
 *     IMBREX_CHECK=1 example_01_notify_wait --threads 4
 *
 * threads.c is about how it is done. */
#ifndef EXAMPLE_THREADS_H
#define EXAMPLE_THREADS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "imbrex.h"

#ifndef EXAMPLE_WORDS
#define EXAMPLE_WORDS 0 /* an example's own, behind a device: 3, m n k, or none */
#endif

enum { EXAMPLE_THREADS_MOST = 64 };

typedef int (*example_rank_main)(int argc, char **argv);

/* A rank, and what it shares with the others. */
typedef struct example_thread {
    imbrex_bootstrap bootstrap;
    const void *send;
    struct example_thread *all;
    pthread_barrier_t *barrier;
    example_rank_main rank_main;
    int argc, code;
    char **argv;
} example_thread;

/* The calling thread's; NULL: ranks are processes, as the environment says. */
static _Thread_local const imbrex_bootstrap *example_bootstrap;

/* Ends the program for all ranks, by the first that calls it. */
static inline _Noreturn void example_exit(int code)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    exit(code);
}

static inline int example_swap(void *ctx, const void *send, void *recv, size_t bytes)
{
    example_thread *own = ctx;
    own->send = send;
    pthread_barrier_wait(own->barrier);
    for (int r = 0; r < own->bootstrap.size; r++)
        memcpy((char *)recv + (size_t)r * bytes, own->all[r].send, bytes);
    pthread_barrier_wait(own->barrier);
    return 0;
}

static inline void *example_be_rank(void *thread)
{
    example_thread *own = thread;
    example_bootstrap = &own->bootstrap;
    own->code = own->rank_main(own->argc, own->argv);
    return NULL;
}

static inline int example_run_threads(int ranks, int argc, char **argv, example_rank_main rank_main)
{
    static example_thread all[EXAMPLE_THREADS_MOST];
    pthread_t threads[EXAMPLE_THREADS_MOST];
    pthread_barrier_t barrier;
    int code = EXIT_SUCCESS;
    pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
    for (int r = 0; r < ranks; r++) {
        all[r] = (example_thread){
            .bootstrap = { .rank = r, .size = ranks, .allgather = example_swap, .ctx = &all[r] },
            .all = all,
            .barrier = &barrier,
            .rank_main = rank_main,
            .argc = argc,
            .argv = argv
        };
        if (pthread_create(&threads[r], NULL, example_be_rank, &all[r])) {
            fprintf(stderr, "cannot start a thread for rank %d\n", r);
            example_exit(EXIT_FAILURE);
        }
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        code = all[r].code ? all[r].code : code;
    }
    pthread_barrier_destroy(&barrier);
    return code;
}

/* What rank_main returns: as the rank that a launcher made this process, or, after "--threads 4",
 * as four. */
static inline int example_main(int argc, char **argv, example_rank_main rank_main)
{
    const char *name = argv[0];
    long ranks = 0; /* that are threads */
    int understood = 1;
    if (argc > 2 && strcmp(argv[1], "--threads") == 0) {
        char *end;
        ranks = strtol(argv[2], &end, 10);
        understood = ranks > 0 && ranks <= EXAMPLE_THREADS_MOST && *end == '\0';
        argc -= 2, argv += 2;
    }
    if (argc > 1 && (strcmp(argv[1], "--device") != 0 || (argc != 3 && argc != 3 + EXAMPLE_WORDS)))
        understood = 0;
    if (!understood) {
        fprintf(stderr, "usage: %s [--threads 1...%d] [--device cpu|cuda%s]\n", name,
                EXAMPLE_THREADS_MOST, EXAMPLE_WORDS ? " [m n k]" : "");
        return 2;
    }
    return ranks ? example_run_threads((int)ranks, argc, argv, rank_main) : rank_main(argc, argv);
}

#endif /* EXAMPLE_THREADS_H */
