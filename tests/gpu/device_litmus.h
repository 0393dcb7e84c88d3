/* device_litmus.h - litmus tests of the orders that protocols stand on, as kernels for CPU ranks
 * and GPUs: message passing, store buffering, write after read under a credit.
 *
 * Ranks run through arrays of words side by side, each pass with a new number, so that nothing has
 * to be reset; where they cross at one word, a wrong order shows.  Each case runs passes * SPOTS
 * times on each rank.
 */
#ifndef DEVICE_LITMUS_H
#define DEVICE_LITMUS_H

#include "device_arena.h"

/* How long a rank may wait for its neighbour to keep step, in all. */
enum { BUDGET_NS = 200000000 };

/* Tells a neighbour that this rank is at a spot, and waits until one is there too: whoever is ahead
 * waits, so that they stay side by side, if there are processors for both. */
FN void keep_step(arena *to, arena *own, unsigned i, uint64_t round, int64_t *left_ns)
{
    int64_t last_ns = 0;
    imbrexd_store_relaxed(&to->step[i], round);
    for (int polls = 1; imbrexd_load_relaxed(&own->step[i]) < round && *left_ns > 0; polls++) {
        if (polls % 1000)
            continue;
        int64_t now_ns = imbrexd_now_ns();
        *left_ns -= last_ns ? now_ns - last_ns : 0;
        last_ns = now_ns;
    }
}

/* A few looks, so that the first moment at which it is there is caught. */
FN int look(const uint64_t *at, uint64_t value)
{
    int polls = 0;
    while (imbrexd_load_acquire(at) < value && ++polls < 20)
        ;
    return polls < 20;
}

/* Ways to say that a datum is there, one a pass. */
FN void publish(uint64_t *at, uint64_t value, uint32_t *datum_there)
{
    uint32_t datum_here = (uint32_t)value;
    if (value % 5 == 4) {
        imbrexd_put_signal_thread(datum_there, &datum_here, 4, at, value, IMBREXD_SET);
        return;
    }
    *datum_there = datum_here;
    if (value % 5 == 0)
        imbrexd_signal_post(at, value);
    else if (value % 5 == 1)
        imbrexd_store_release(at, value);
    else if (value % 5 == 2)
        imbrexd_red_release(at, 1);
    else
        imbrexd_atomic_cas_u64(at, value - 1, value, IMBREXD_RELEASE, IMBREXD_SYS);
}

/* Message passing: the rank before writes a datum and publishes it; who sees that sees the datum.
 */
CASE messages(const imbrexd_team team, arena *own, outcome *out, uint64_t passes)
{
    int r = (team.rank + team.size - 1) % team.size;
    arena *next = at_rank(&team, (team.rank + 1) % team.size, own);
    int64_t left_ns = BUDGET_NS;
    for (uint64_t round = 1; round <= passes; round++) {
        EACH(i, SPOTS)
        {
            keep_step(next, own, i, round, &left_ns);
            publish(&next->spot[i], round, &next->datum[i]);
            if (look(&own->spot[i], round))
                CHECK(own->datum[i], round);
        }
        if (!imbrexd_barrier_all(&team))
            return;
        if (imbrexd_thread() == 0)
            out->done = round;
    }
}

/* The same with a fence between two stores that order nothing themselves.  The data are atomics:
 * thread sanitizer sees no fence. */
CASE fenced_messages(const imbrexd_team team, arena *own, outcome *out, uint64_t passes)
{
    int r = (team.rank + team.size - 1) % team.size;
    arena *next = at_rank(&team, (team.rank + 1) % team.size, own);
    int64_t left_ns = BUDGET_NS;
    for (uint64_t round = 1; round <= passes; round++) {
        EACH(i, SPOTS / 2)
        {
            keep_step(next, own, i, round, &left_ns);
            imbrexd_store_relaxed(&next->spot[i], round);
            imbrexd_fence_post();
            imbrexd_store_relaxed(&next->spot[SPOTS / 2 + i], round);
            if (look(&own->spot[SPOTS / 2 + i], round))
                CHECK(imbrexd_load_relaxed(&own->spot[i]), round);
        }
        if (!imbrexd_barrier_all(&team))
            return;
        if (imbrexd_thread() == 0)
            out->done = round;
    }
}

/* Store buffering: two ranks each store to a word of their own, are quiet, and read the other's.
 * Not both may miss the other's store. */
CASE store_buffers(const imbrexd_team team, arena *own, outcome *out, uint64_t passes)
{
    int r = (team.rank ^ 1) < team.size ? team.rank ^ 1 : team.rank;
    arena *other = at_rank(&team, r, own);
    int64_t left_ns = BUDGET_NS;
    for (uint64_t round = 1; round <= passes; round++) {
        EACH(i, SPOTS)
        {
            keep_step(other, own, i, round, &left_ns);
            imbrexd_store_relaxed(&own->spot[i], round);
            imbrexd_quiet();
            own->datum[i] = imbrexd_load_relaxed(&other->spot[i]) >= round;
        }
        if (!imbrexd_barrier_all(&team))
            return;
        EACH(i, SPOTS)
        CHECK(own->datum[i] | other->datum[i], 1);
        if (!imbrexd_barrier_all(&team))
            return;
        if (imbrexd_thread() == 0)
            out->done = round;
    }
}

/* Write after read: this rank reads a datum and gives the rank before credit for it; which writes
 * the datum anew once it has the credit, and no earlier. */
CASE credits(const imbrexd_team team, arena *own, outcome *out, uint64_t passes)
{
    int r = (team.rank + team.size - 1) % team.size;
    arena *before = at_rank(&team, r, own);
    arena *next = at_rank(&team, (team.rank + 1) % team.size, own);
    int64_t left_ns = BUDGET_NS;
    for (uint64_t round = 1; round <= passes; round++) {
        EACH(i, SPOTS)
        {
            keep_step(next, own, i, round, &left_ns);
            CHECK(own->datum[i], round - 1);
            if (round % 2)
                imbrexd_signal_post(&before->spot[i], round);
            else
                imbrexd_store_release(&before->spot[i], round);
            if (look(&own->spot[i], round))
                next->datum[i] = (uint32_t)round;
        }
        if (!imbrexd_barrier_all(&team))
            return;
        EACH(i, SPOTS)
        next->datum[i] = (uint32_t)round;
        if (!imbrexd_barrier_all(&team))
            return;
        if (imbrexd_thread() == 0)
            out->done = round;
    }
}

#endif /* DEVICE_LITMUS_H */
