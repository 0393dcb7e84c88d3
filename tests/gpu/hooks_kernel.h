/* hooks_kernel.h - hooks of both kinds around one product: c = my rows of the sum of all ranks'
 * all_gather(a) * b.  What runs beside pushes a's rows to all, then adds the parts of c up.
 *
 * With HOOKS_SUM the pipeline adds them up.  With HOOKS_NO_WAIT and the like it is wrong, for a
 * checker to find.
 *
 * Signals on each rank, rows of `size`:
 *     | slots that are free | rows that are read | parts of chunk 0, 1, ... | rows of chunk 0, ...
 */
#ifndef HOOKS_KERNEL_H
#define HOOKS_KERNEL_H

#include "imbrex_gemm.h"

enum { HOOKS_ADDED, HOOKS_READ, HOOKS_ROWS };

typedef struct hooks_args {
    const char *own;    /* [rows, k] */
    char *gathered;     /* symmetric: [m, k], of the others */
    char *slots;        /* symmetric: [ranks] of slot_bytes, each [rows, n] */
    char *c;            /* [rows, n] */
    uint32_t *counters; /* [size * chunks] of pushes */
    uint64_t slot_bytes, element;
    uint64_t backwards; /* tiles in the opposite order */
} hooks_args;

IMBREXD_FN uint64_t *hooks_signal(const imbrexd_team *team, int holder, int row, int from)
{
    return imbrexd_signal(team, holder, row * team->size + from);
}

IMBREXD_FN int hooks_wait_row(const imbrexd_team *team, int row, uint64_t epoch)
{
    return imbrexd_wait_warp(team, hooks_signal(team, team->rank, row, 0), team->size, epoch, -1);
}

/* The epoch whose parts are waited for. */
IMBREXD_FN uint64_t hooks_parts_of(const imbrexd_team *team)
{
#ifdef HOOKS_OLD_PARTS
    return imbrexd_epoch(team) - 1;
#else
    return imbrexd_epoch(team);
#endif
}

IMBREXD_FN unsigned hooks_order(const hooks_args *args, const imbrexd_team *team,
                                const imbrexd_gemm *gemm, unsigned index)
{
    (void)team;
    return args->backwards ? gemm->tiles - 1 - index : index;
}

IMBREXD_FN int hooks_begin(const hooks_args *args, const imbrexd_team *team,
                           const imbrexd_gemm *gemm)
{
    (void)args, (void)gemm;
#ifdef HOOKS_NO_CREDIT
    return 1;
#endif
    return hooks_wait_row(team, HOOKS_ADDED, imbrexd_epoch(team) - 1);
}

IMBREXD_FN int hooks_wait(const hooks_args *args, const imbrexd_team *team,
                          const imbrexd_gemm *gemm, int rank, int chunk)
{
    (void)args;
#ifdef HOOKS_NO_WAIT
    return 1;
#endif
    return imbrexd_wait(team,
                        hooks_signal(team, team->rank, HOOKS_ROWS + gemm->chunks + chunk, rank),
                        imbrexd_epoch(team), rank);
}

IMBREXD_FN void hooks_done(const hooks_args *args, const imbrexd_team *team,
                           const imbrexd_gemm *gemm, int rank, int chunk)
{
    (void)args, (void)gemm;
    imbrexd_signal_post(hooks_signal(team, rank, HOOKS_ROWS + chunk, team->rank),
                        imbrexd_epoch(team));
}

/* A share of every chunk of own rows, to every other rank; the last to count posts. */
IMBREXD_FN void hooks_push(const hooks_args *args, const imbrexd_team *team,
                           const imbrexd_gemm *gemm, int to, unsigned thread, unsigned threads)
{
    int rows;
    size_t row_bytes = (size_t)gemm->k * args->element, at = 0;
    char *theirs = (char *)imbrexd_peer(team, to, args->gathered) +
                   (size_t)imbrexd_gemm_row(gemm, team->rank) * row_bytes;
    for (int q = 0; (rows = imbrexd_gemm_chunk_rows(gemm, team->rank, q)) > 0; q++) {
        size_t bytes = (size_t)rows * row_bytes;
        imbrexd_copy_part(theirs + at, args->own + at, bytes, thread, threads);
        at += bytes;
#ifdef __CUDACC__
        imbrexd_fence_post(); /* the counter's order is one GPU's; a fence would blind a checker */
#endif
        imbrexd_sync_warp();
        if (imbrexd_thread() % imbrexd_lanes() == 0 &&
            imbrexd_counter_last(&args->counters[to * gemm->chunks + q], threads / imbrexd_lanes()))
            imbrexd_signal_post(hooks_signal(team, to, HOOKS_ROWS + gemm->chunks + q, team->rank),
                                imbrexd_epoch(team));
    }
}

IMBREXD_FN int hooks_beside(const hooks_args *args, const imbrexd_team *team,
                            const imbrexd_gemm *gemm, unsigned thread, unsigned threads)
{
#ifndef HOOKS_NO_CREDIT
    if (!hooks_wait_row(team, HOOKS_READ, imbrexd_epoch(team) - 1))
        return 0;
#endif
    for (int i = 1; i < team->size; i++)
        hooks_push(args, team, gemm, (team->rank + i) % team->size, thread, threads);
#ifndef HOOKS_SUM
    int rows;
    size_t at = 0;
    for (int q = 0; (rows = imbrexd_gemm_chunk_rows(gemm, team->rank, q)) > 0; q++) {
        if (!hooks_wait_row(team, HOOKS_ROWS + q, hooks_parts_of(team)))
            return 0;
        imbrexd_gemm_add(gemm, args->c + at, args->slots + at, args->slot_bytes, team->size,
                         rows * gemm->n, thread, threads);
        at += (size_t)rows * (size_t)gemm->n * args->element;
    }
#endif
    return 1;
}

/* Own parts are there already, and only the chunk's last tile posts. */
IMBREXD_FN int hooks_sum(const hooks_args *args, const imbrexd_team *team, const imbrexd_gemm *gemm,
                         int chunk, imbrexd_gemm_sum *sum)
{
    uint64_t epoch = hooks_parts_of(team);
    int before = team->rank, behind = team->size - 1 - before;
    uint64_t *first = hooks_signal(team, team->rank, HOOKS_ROWS + chunk, 0);
    (void)gemm;
    sum->to = args->c;
    sum->parts = args->slots;
    sum->stride_bytes = args->slot_bytes;
    return imbrexd_wait_warp(team, first, before, epoch, -1) &&
           imbrexd_wait_warp(team, first + before + 1, behind, epoch, -1);
}

IMBREXD_FN void hooks_end(const hooks_args *args, const imbrexd_team *team,
                          const imbrexd_gemm *gemm)
{
    (void)args, (void)gemm;
    for (int r = 0; r < team->size; r++) {
        imbrexd_signal_post(hooks_signal(team, r, HOOKS_ADDED, team->rank), imbrexd_epoch(team));
        imbrexd_signal_post(hooks_signal(team, r, HOOKS_READ, team->rank), imbrexd_epoch(team));
    }
}

#define IMBREXD_GEMM_NAME  hooked
#define IMBREXD_GEMM_ARGS  hooks_args
#define IMBREXD_GEMM_ORDER hooks_order
#define IMBREXD_GEMM_BEGIN hooks_begin
#define IMBREXD_GEMM_WAIT  hooks_wait
#define IMBREXD_GEMM_DONE  hooks_done
#ifdef HOOKS_SUM
#define IMBREXD_GEMM_SUM hooks_sum
#endif
#define IMBREXD_GEMM_BESIDE hooks_beside
#define IMBREXD_GEMM_END    hooks_end
#include "imbrex_gemm_kernel.h"

#endif /* HOOKS_KERNEL_H */
