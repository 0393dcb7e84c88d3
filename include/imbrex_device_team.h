/* imbrex_device_team.h - what kernels do with a team, once for CPUs and GPUs, over the primitives of
 * imbrex_device_cpu.h or imbrex_device_cuda.h.  Include imbrex_device.h, not this.
 */
#ifndef IMBREX_DEVICE_TEAM_H
#define IMBREX_DEVICE_TEAM_H

/* ---- who and where --------------------------------------------------------------------------- */

/* Where rank has what is at `at` here, an address in this rank's piece; NULL: on another node. */
IMBREXD_FN void *imbrexd_peer(const imbrexd_team *team, int rank, const void *at)
{
    char *base = team->base[rank];
    return base ? base + ((const char *)at - team->base[team->rank]) : NULL;
}

/* Signal number index of the team's on rank, which this rank reaches. */
IMBREXD_FN uint64_t *imbrexd_signal(const imbrexd_team *team, int rank, int index)
{
    return team->words[rank] + IMBREXD_TEAM_WORDS(team->size) + index;
}

/* Which launch of the kernel this is, from 1. */
IMBREXD_FN uint64_t imbrexd_use(const imbrexd_team *team)
{
    return *team->use;
}

/* ---- meeting --------------------------------------------------------------------------------- */

/* Which of a team's words: the row of arrivals, and the epoch's number. */
enum { IMBREXD_MEET_ALL, IMBREXD_MEET_NODE, IMBREXD_BROADCAST };

/* Raises this rank's count of such meetings and returns it.  All threads of the block call; what
 * they stored before comes before what any of them posts next. */
IMBREXD_FN uint64_t imbrexd_epoch_next(const imbrexd_team *team, int row)
{
    uint64_t *at = team->words[team->rank] + 3 * team->size + row;
    uint64_t epoch = imbrexd_load_acquire_gpu(at) + 1;
    imbrexd_sync_block(); /* all have read it */
    if (imbrexd_thread() == 0)
        imbrexd_store_release_gpu(at, epoch);
    return epoch;
}

/* Returns 1 once the ranks from first on, count of them with this one, have come as often as this
 * one; 0 to give up.  ordered: what any thread of their blocks stored before is then visible. */
IMBREXD_FN int imbrexd_meet(const imbrexd_team *team, int row, int first, int count, int ordered)
{
    uint64_t epoch = imbrexd_epoch_next(team, row);
    imbrexd_site site = { team->kernel, IMBREXD_SITE_BARRIER, 0, -1 };
    int there = 1, step = (int)imbrexd_threads();
    for (int i = (int)imbrexd_thread(); i < count; i += step) {
        int r = first + (team->rank - first + i) % count; /* each begins with another one */
        uint64_t *at = team->words[r] + row * team->size + team->rank;
        if (r != team->rank && ordered)
            imbrexd_signal_post(at, epoch);
        else if (r != team->rank)
            imbrexd_signal_post_relaxed(at, epoch);
    }
    for (int r = first + (int)imbrexd_thread(); r < first + count; r += step) {
        site.rank = r;
        const uint64_t *at = team->words[team->rank] + row * team->size + r;
        if (r != team->rank && !imbrexd_signal_wait(&team->watch, at, epoch, site))
            there = 0;
    }
    return imbrexd_all_block(there);
}

/* By one block of each rank at a time, by all its threads, equally often on all ranks.  1: all have
 * come, and what any of them put before is visible to all threads of these blocks.  0: give up.
 * All ranks must be reachable from each other. */
IMBREXD_FN int imbrexd_barrier_all(const imbrexd_team *team)
{
    return imbrexd_meet(team, IMBREXD_MEET_ALL, 0, team->size, 1);
}

IMBREXD_FN int imbrexd_barrier_node(const imbrexd_team *team)
{
    return imbrexd_meet(team, IMBREXD_MEET_NODE, team->rank - team->node_rank, team->node_size, 1);
}

/* Likewise, but says nothing about what was put: cheaper by a fence. */
IMBREXD_FN int imbrexd_sync_all(const imbrexd_team *team)
{
    return imbrexd_meet(team, IMBREXD_MEET_ALL, 0, team->size, 0);
}

IMBREXD_FN int imbrexd_sync_node(const imbrexd_team *team)
{
    return imbrexd_meet(team, IMBREXD_MEET_NODE, team->rank - team->node_rank, team->node_size, 0);
}

#endif /* IMBREX_DEVICE_TEAM_H */
