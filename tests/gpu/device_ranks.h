/* device_ranks.h - runs the kernels of device_cases.h and device_litmus.h on CPU ranks. */
#ifndef DEVICE_RANKS_H
#define DEVICE_RANKS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "group/group.h"
#include "ranks.h"

#include "device_arena.h"

typedef void (*device_case)(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds);

/* A kernel, and what it is run with; expected: what it leaves in done. */
typedef struct device_run {
    const char *name;
    device_case run;
    uint64_t rounds, expected;
} device_run;

/* What the team's pointers point to. */
typedef struct device_place {
    char *base[RANKS_MOST];
    uint64_t *words[RANKS_MOST], epoch;
    arena *own;
} device_place;

/* Collective.  The ranks of the group are called nodes of two: memory does not mind. */
static inline int device_team(imbrex_group *group, device_place *p, imbrexd_team *team)
{
    void *own, *words, *peer;
    int rank = imbrex_group_rank(group), size = imbrex_group_size(group), first = rank / 2 * 2;
    RANK_OK(imbrex_mem_alloc(group, sizeof(arena), &own));
    RANK_OK(imbrex_mem_alloc(group, (IMBREXD_TEAM_WORDS(size) + SIGNALS) * 8, &words));
    p->own = own;
    for (int r = 0; r < size; r++) {
        RANK_OK(imbrex_mem_peer(group, own, r, &peer));
        p->base[r] = peer;
        RANK_OK(imbrex_mem_peer(group, words, r, &peer));
        p->words[r] = peer;
    }
    *team = (imbrexd_team){
        .rank = rank,
        .size = size,
        .node = rank / 2,
        .nodes = (size + 1) / 2,
        .node_rank = rank - first,
        .node_size = size - first < 2 ? 1 : 2,
        .kernel = 1,
        .signal_count = SIGNALS,
        .base = p->base,
        .bytes = sizeof(arena),
        .words = p->words,
        .epoch = &p->epoch,
        .watch = group->watch,
    };
    return 0;
}

static inline int device_rank(imbrex_group *group, void *ctx)
{
    const device_run *run = ctx;
    device_place place;
    imbrexd_team team;
    outcome out = { 0 };
    if (device_team(group, &place, &team))
        return 1;
    place.epoch = run->rounds;
    run->run(team, place.own, &out, run->rounds);
    RANK_CHECK(out.line == 0, "%s, line %d: %llu, want %llu (round %llu, rank %d and rank %d)",
               run->name, (int)out.line, (unsigned long long)out.have, (unsigned long long)out.want,
               (unsigned long long)out.round, team.rank, (int)out.rank);
    RANK_CHECK(out.done == run->expected, "%s ended after %llu of %llu: %s", run->name,
               (unsigned long long)out.done, (unsigned long long)run->expected,
               imbrex_group_status(group) ? imbrex_error() : "no fault");
    return 0;
}

/* As many rounds as fit a test's time: thread sanitizer's are ten times longer. */
static inline uint64_t device_rounds(uint64_t rounds)
{
    return RANKS_PROCESSES ? rounds : rounds / 10 + 1;
}

/* Runs it on so many ranks and returns how many of them saw something wrong. */
static inline int device_run_on(int size, const char *name, device_case run, uint64_t rounds)
{
    device_run one = { name, run, rounds, rounds };
    ranks_desc desc = { .size = size };
    return ranks_run(&desc, device_rank, &one);
}

#endif /* DEVICE_RANKS_H */
