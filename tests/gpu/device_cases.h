/* device_cases.h - kernels that try each primitive of imbrex_device.h, written once: on CPU ranks
 * in test_device_cases.c, on GPUs in test_gpu_device.c. */
#ifndef DEVICE_CASES_H
#define DEVICE_CASES_H

#include "device_arena.h"

FN uint32_t value_of(uint64_t round, int rank, unsigned i)
{
    return (uint32_t)round * 1000003 + (uint32_t)rank * 7919 + i;
}

FN void fill(arena *own, uint64_t round, int rank)
{
    imbrexd_sync_block();
    EACH(i, WORDS)
    own->mine[i] = value_of(round, rank, i);
    imbrexd_sync_block();
}

/* ---- who and where --------------------------------------------------------------------------- */

CASE places(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    uint64_t round = 0;
    if (imbrexd_thread() == 0) {
        own->data[0][5] = 1000 + (uint32_t)team.rank;
        *imbrexd_signal(&team, team.rank, 3) = 2000 + (uint64_t)team.rank;
    }
    if (!imbrexd_barrier_all(&team))
        return;
    for (int r = 0; r < team.size; r++) {
        CHECK(at_rank(&team, r, own)->data[0][5], 1000 + (uint64_t)r);
        CHECK(*(uint32_t *)imbrexd_peer(&team, r, &own->data[0][5]), 1000 + (uint64_t)r);
        CHECK(*imbrexd_signal(&team, r, 3), 2000 + (uint64_t)r);
    }
    int r = team.rank;
    CHECK((uint64_t)(at_rank(&team, r, own) == own), 1);
    CHECK(imbrexd_epoch(&team), rounds);
    if (imbrexd_barrier_all(&team) && imbrexd_thread() == 0)
        out->done = rounds;
}

/* ---- copies ---------------------------------------------------------------------------------- */

enum { FORMS = 6 }; /* thread, warp, block, each with _nbi */

FN void put_as(int form, void *dst, const void *src, size_t bytes)
{
    if (form == 0 && imbrexd_thread() == 0)
        imbrexd_put_thread(dst, src, bytes);
    else if (form == 1 && FIRST_WARP)
        imbrexd_put_warp(dst, src, bytes);
    else if (form == 2)
        imbrexd_put_block(dst, src, bytes);
    else if (form == 3 && imbrexd_thread() == 0)
        imbrexd_put_thread_nbi(dst, src, bytes), imbrexd_quiet();
    else if (form == 4 && FIRST_WARP)
        imbrexd_put_warp_nbi(dst, src, bytes), imbrexd_quiet_warp();
    else if (form == 5)
        imbrexd_put_block_nbi(dst, src, bytes), imbrexd_quiet_block();
}

FN void get_as(int form, void *dst, const void *src, size_t bytes)
{
    if (form == 0 && imbrexd_thread() == 0)
        imbrexd_get_thread(dst, src, bytes);
    else if (form == 1 && FIRST_WARP)
        imbrexd_get_warp(dst, src, bytes);
    else if (form == 2)
        imbrexd_get_block(dst, src, bytes);
    else if (form == 3 && imbrexd_thread() == 0)
        imbrexd_get_thread_nbi(dst, src, bytes), imbrexd_quiet();
    else if (form == 4 && FIRST_WARP)
        imbrexd_get_warp_nbi(dst, src, bytes), imbrexd_quiet_warp();
    else if (form == 5)
        imbrexd_get_block_nbi(dst, src, bytes), imbrexd_quiet_block();
}

/* Of round: a few bytes up to all words but one, from addresses of every alignment. */
FN unsigned length_of(uint64_t round)
{
    return (unsigned)(1 + round * 577 % (4 * WORDS - 16));
}

FN unsigned offset_of(uint64_t round)
{
    return (unsigned)(round / FORMS % 3 == 0 ? 0 : round / FORMS % 3 == 1 ? 4 : round % 7);
}

/* Byte i of a copy that began `offset` bytes into words of value_of. */
FN uint8_t byte_of(uint64_t round, int rank, unsigned i)
{
    return (uint8_t)(value_of(round, rank, i / 4) >> 8 * (i % 4));
}

/* Every rank puts to all; a barrier; every rank reads what all put, and a byte more. */
CASE pushes(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    for (uint64_t round = 0; round < rounds; round++) {
        unsigned bytes = length_of(round), offset = offset_of(round);
        fill(own, round, team.rank);
        for (int r = 0; r < team.size; r++) {
            uint8_t *to = (uint8_t *)at_rank(&team, r, own)->data[team.rank];
            EACH(i, 4 * WORDS)
            to[i] = 0;
        }
        imbrexd_sync_block();
        for (int r = 0; r < team.size; r++)
            put_as((int)(round % FORMS), (char *)at_rank(&team, r, own)->data[team.rank] + offset,
                   (char *)own->mine + offset, bytes);
        if (!imbrexd_barrier_all(&team))
            return;
        for (int r = 0; r < team.size; r++) {
            const uint8_t *have = (const uint8_t *)own->data[r];
            EACH(i, 4 * WORDS)
            {
                int inside = i >= offset && i < offset + bytes;
                CHECK(have[i], inside ? byte_of(round, r, i) : 0);
            }
        }
        if (!imbrexd_barrier_all(&team))
            return;
        if (imbrexd_thread() == 0)
            out->done = round + 1;
    }
}

/* The other way round: every rank gets what all have. */
CASE pulls(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    for (uint64_t round = 0; round < rounds; round++) {
        unsigned bytes = length_of(round), offset = offset_of(round);
        fill(own, round, team.rank);
        if (!imbrexd_barrier_all(&team))
            return;
        for (int i = 0; i < team.size; i++) {
            int r = (team.rank + i) % team.size;
            get_as((int)(round % FORMS), (char *)own->back + offset,
                   (char *)at_rank(&team, r, own)->mine + offset, bytes);
            imbrexd_sync_block(); /* what the first thread or warp got is for all to check */
            EACH(j, bytes)
            CHECK(((const uint8_t *)own->back)[offset + j], byte_of(round, r, offset + j));
            imbrexd_sync_block();
        }
        if (!imbrexd_barrier_all(&team))
            return;
        if (imbrexd_thread() == 0)
            out->done = round + 1;
    }
}

/* ---- signals --------------------------------------------------------------------------------- */

/* signal[0]: from the rank before, SET; [1]: likewise, ADD; [2]: credit from the rank behind. */
CASE put_signals(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    int r = (team.rank + team.size - 1) % team.size, next = (team.rank + 1) % team.size;
    arena *to = at_rank(&team, next, own), *from = at_rank(&team, r, own);
    uint64_t added = 0;
    for (uint64_t round = 1; round <= rounds; round++) {
        imbrexd_op op = round % 2 ? IMBREXD_SET : IMBREXD_ADD;
        uint64_t *signal = &to->signal[op], value = op == IMBREXD_SET ? round : 3;
        added += op == IMBREXD_ADD ? 3 : 0;
        fill(own, round, team.rank);
        if (!imbrexd_wait_block(&team, &own->signal[2], 1, round - 1, next))
            return;
        if (round % 3 == 0 && imbrexd_thread() == 0)
            imbrexd_put_signal_thread(to->data[0], own->mine, sizeof own->mine, signal, value, op);
        else if (round % 3 == 1 && FIRST_WARP)
            imbrexd_put_signal_warp(to->data[0], own->mine, sizeof own->mine, signal, value, op);
        else if (round % 3 == 2)
            imbrexd_put_signal_block(to->data[0], own->mine, sizeof own->mine, signal, value, op);
        if (!imbrexd_wait_block(&team, &own->signal[op], 1, op == IMBREXD_SET ? round : added, r))
            return;
        EACH(i, WORDS)
        CHECK(own->data[0][i], value_of(round, r, i));
        imbrexd_notify_block(&from->signal[2], 1, IMBREXD_ADD);
        if (imbrexd_thread() == 0)
            out->done = round;
    }
}

/* The rank before moves signal[0] step by step, each step after signal[1] has said that the wait
 * for the step before is over.  All orders, up and down. */
CASE comparisons(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    enum { STEPS = 6, MIDDLE = 1000 };
    const imbrexd_compare compare[STEPS] = { IMBREXD_EQ, IMBREXD_NE, IMBREXD_GT,
                                             IMBREXD_GE, IMBREXD_LT, IMBREXD_LE };
    const uint64_t with[STEPS] = { MIDDLE, MIDDLE, MIDDLE + 1, MIDDLE + 3, MIDDLE, MIDDLE - 2 };
    const uint64_t step[STEPS] = { MIDDLE,     MIDDLE + 1, MIDDLE + 2,
                                   MIDDLE + 3, MIDDLE - 1, MIDDLE - 2 };
    int r = (team.rank + team.size - 1) % team.size, next = (team.rank + 1) % team.size;
    arena *to = at_rank(&team, next, own), *from = at_rank(&team, r, own);
    uint64_t steps = 0, round = 0;
    for (int c = 0; c < STEPS; c++) {
        CHECK((uint64_t)imbrexd_holds(MIDDLE, compare[c], MIDDLE), c == 0 || c == 3 || c == 5);
        CHECK((uint64_t)imbrexd_holds(MIDDLE - 1, compare[c], MIDDLE), c == 1 || c >= 4);
        CHECK((uint64_t)imbrexd_holds(MIDDLE + 1, compare[c], MIDDLE), c >= 1 && c <= 3);
    }
    for (round = 1; round <= rounds && imbrexd_thread() == 0; round++) {
        for (int c = 0; c < STEPS; c++) {
            to->data[1][c] = value_of(round, team.rank, (unsigned)c);
            imbrexd_signal_op(&to->signal[0], step[c], IMBREXD_SET);
            if (!imbrexd_wait_until(&team, &own->signal[0], compare[c], with[c], r))
                return;
            CHECK(imbrexd_load_acquire(&own->signal[0]), step[c]);
            CHECK(own->data[1][c], value_of(round, r, (unsigned)c));
            imbrexd_signal_op(&from->signal[1], 1, IMBREXD_ADD);
            if (!imbrexd_wait(&team, &own->signal[1], ++steps, next))
                return;
        }
        out->done = round;
    }
}

/* The next of size signals to be at least round, none twice: looked at by hand; -1: give up. */
FN int next_by_hand(const imbrexd_team *team, const uint64_t *signals, const int *came,
                    uint64_t round)
{
    imbrexd_limit limit = IMBREXD_LIMIT;
    do {
        for (int r = 0; r < team->size; r++) {
            if (!came[r] && imbrexd_load_acquire(&signals[r]) >= round)
                return r;
        }
    } while (imbrexd_go_on(team, &limit, -1));
    return -1;
}

/* All ranks post to all, each beginning with another; whoever comes is taken first. */
CASE comers(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    for (uint64_t round = 1; round <= rounds; round++) {
        int came[RANKS_MOST] = { 0 };
        for (int i = 0; i < team.size && imbrexd_thread() == 0; i++) {
            arena *to = at_rank(&team, (team.rank + (int)round + i) % team.size, own);
            to->data[team.rank][0] = value_of(round, team.rank, 0);
            imbrexd_signal_post(&to->signal[team.rank], round);
        }
        for (int i = 0; i < team.size && imbrexd_thread() == 0; i++) {
            int r = round % 2 ? imbrexd_wait_any(&team, own->signal, team.size, came, IMBREXD_GE,
                                                 round, -1)
                              : next_by_hand(&team, own->signal, came, round);
            if (r < 0)
                return;
            CHECK(came[r]++, 0);
            CHECK(own->data[r][0], value_of(round, r, 0));
        }
        if (imbrexd_thread() == 0) {
            int r = imbrexd_wait_any(&team, own->signal, team.size, came, IMBREXD_GE, 0, -1);
            CHECK((uint64_t)r, (uint64_t)team.size);
        }
        if (!imbrexd_barrier_all(&team))
            return;
        if (imbrexd_thread() == 0)
            out->done = round;
    }
}

/* ---- meeting --------------------------------------------------------------------------------- */

/* Words are written and read as atomics here: thread sanitizer does not know that quiet is a fence
 * and makes sync a barrier. */
CASE meetings(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    int first = team.rank - team.node_rank;
    for (uint64_t round = 1; round <= rounds; round++) {
        int node = round / 2 % 2, sync = round % 2, begin = node ? first : 0;
        int end = node ? first + team.node_size : team.size;
        for (int r = begin; r < end; r++) {
            EACH(i, 64)
            imbrexd_store_relaxed(&at_rank(&team, r, own)->word[team.rank][i], round + i);
        }
        if (sync)
            imbrexd_quiet_block();
        if (!(node ? (sync ? imbrexd_sync_node(&team) : imbrexd_barrier_node(&team))
                   : (sync ? imbrexd_sync_all(&team) : imbrexd_barrier_all(&team))))
            return;
        for (int r = begin; r < end; r++) {
            EACH(i, 64)
            CHECK(imbrexd_load_relaxed(&own->word[r][i]), round + i);
        }
        if (!imbrexd_barrier_all(&team))
            return;
        if (imbrexd_thread() == 0)
            out->done = round;
    }
}

CASE broadcasts(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    for (uint64_t round = 0; round < rounds; round++) {
        int r = (int)(round * 3 / 2 % (uint64_t)team.size);
        fill(own, round, team.rank);
        if (!imbrexd_broadcast(&team, own->data[round % 2], own->mine, sizeof own->mine, r))
            return;
        EACH(i, WORDS)
        CHECK(own->data[round % 2][i], value_of(round, r, i));
        if (round % 2 && !imbrexd_barrier_all(&team)) /* for both halves */
            return;
        if (imbrexd_thread() == 0)
            out->done = round + 1;
    }
}

/* ---- atomic operations ----------------------------------------------------------------------- */

FN imbrexd_order order_of(uint64_t i)
{
    return i % 4 == 0   ? IMBREXD_RELAXED
           : i % 4 == 1 ? IMBREXD_ACQUIRE
           : i % 4 == 2 ? IMBREXD_RELEASE
                        : IMBREXD_ACQ_REL;
}

/* All threads of all ranks add to words of rank 0, and to one of their own. */
CASE additions(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    int r = 0;
    arena *first = at_rank(&team, 0, own);
    uint64_t all = imbrexd_threads() * rounds, round = 0;
    for (round = 0; round < rounds; round++) {
        imbrexd_order order = order_of(round);
        imbrexd_atomic_add_u64(&first->sum, 5, order, IMBREXD_SYS);
        imbrexd_atomic_add_u32(&first->count, 1, order, IMBREXD_SYS);
        imbrexd_red_release(&first->seen, 2);
        imbrexd_atomic_add_u64(&own->signal[8], 1, order, IMBREXD_GPU);
        imbrexd_atomic_add_u64(&own->signal[9], 1, order, IMBREXD_BLOCK);
        imbrexd_atomic_add_u32(&own->mine[0], 1, order, IMBREXD_GPU);
        imbrexd_atomic_add_u32(&own->mine[1], 1, order, IMBREXD_BLOCK);
        imbrexd_red_release_gpu(&own->signal[10], 1);
        if (imbrexd_counter_last(&own->mine[2], imbrexd_threads()))
            imbrexd_atomic_add_u64(&own->signal[11], 1, IMBREXD_RELAXED, IMBREXD_GPU);
        imbrexd_sync_block(); /* the counter is empty again */
    }
    if (!imbrexd_barrier_all(&team))
        return;
    CHECK(first->sum, all * 5 * (uint64_t)team.size);
    CHECK(first->count, all * (uint64_t)team.size);
    CHECK(first->seen, all * 2 * (uint64_t)team.size);
    for (int i = 8; i <= 10; i++)
        CHECK(own->signal[i], all);
    CHECK(own->mine[0], all);
    CHECK(own->mine[1], all);
    CHECK(own->signal[11], rounds);
    if (imbrexd_barrier_all(&team) && imbrexd_thread() == 0)
        out->done = rounds;
}

/* One thread of each rank takes a lock in rank 0's memory; what is counted under it is plain. */
CASE locks(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    int r = 0;
    arena *first = at_rank(&team, 0, own);
    uint64_t round = 0;
    for (round = 0; round < rounds && imbrexd_thread() == 0; round++) {
        int narrow = round % 2;
        imbrexd_order order = round % 4 < 2 ? IMBREXD_ACQUIRE : IMBREXD_ACQ_REL;
        imbrexd_limit limit = IMBREXD_LIMIT;
        while (narrow ? imbrexd_atomic_cas_u32(&first->count, 0, 1, order, IMBREXD_SYS)
                      : imbrexd_atomic_cas_u64(&first->lock, 0, 1, order, IMBREXD_SYS)) {
            if (!imbrexd_go_on(&team, &limit, -1))
                return;
        }
        first->data[narrow][0]++;
        if (narrow)
            imbrexd_atomic_cas_u32(&first->count, 1, 0, IMBREXD_RELEASE, IMBREXD_SYS);
        else
            imbrexd_store_release(&first->lock, 0);
    }
    if (!imbrexd_barrier_all(&team))
        return;
    round = rounds;
    CHECK(first->data[0][0], (rounds + 1) / 2 * (uint64_t)team.size);
    CHECK(first->data[1][0], rounds / 2 * (uint64_t)team.size);
    CHECK(imbrexd_atomic_cas_u64(&own->signal[20], 1, 2, IMBREXD_RELAXED, IMBREXD_BLOCK), 0);
    CHECK(imbrexd_atomic_cas_u32(&own->mine[7], 1, 2, IMBREXD_RELAXED, IMBREXD_GPU), 0);
    if (imbrexd_barrier_all(&team) && imbrexd_thread() == 0)
        out->done = rounds;
}

/* ---- LL -------------------------------------------------------------------------------------- */

CASE flagged(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    for (uint64_t round = 1; round <= rounds; round++) {
        int form = (int)(round % 3), there = 1;
        size_t bytes = 4 * (1 + round * 131 % (WORDS - 1));
        uint32_t flag = (uint32_t)round;
        fill(own, round, team.rank);
        for (int r = 0; r < team.size; r++) {
            uint64_t *to = at_rank(&team, r, own)->word[team.rank];
            if (form == 0 && imbrexd_thread() == 0)
                imbrexd_ll_pack_thread(to, own->mine, bytes, flag);
            else if (form == 1 && FIRST_WARP)
                imbrexd_ll_pack_warp(to, own->mine, bytes, flag);
            else if (form == 2)
                imbrexd_ll_pack_block(to, own->mine, bytes, flag);
        }
        for (int r = 0; r < team.size; r++) {
            const uint64_t *from = own->word[r];
            if (form == 0 && imbrexd_thread() == 0)
                there &= imbrexd_ll_unpack_thread(&team, own->back, from, bytes, flag, r);
            else if (form == 1 && FIRST_WARP)
                there &= imbrexd_ll_unpack_warp(&team, own->back, from, bytes, flag, r);
            else if (form == 2)
                there &= imbrexd_ll_unpack_block(&team, own->back, from, bytes, flag, r);
            imbrexd_sync_block();
            EACH(i, bytes / 4)
            CHECK(own->back[i], value_of(round, r, i));
            imbrexd_sync_block();
        }
        if (!imbrexd_all_block(there) || !imbrexd_barrier_all(&team))
            return;
        if (imbrexd_thread() == 0)
            out->done = round;
    }
}

/* ---- nobody comes ---------------------------------------------------------------------------- */

/* All ranks but the last one wait for it, each wait in its turn: rounds says which.  1 in done:
 * the wait gave up. */
CASE nobody(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds)
{
    int last = team.size - 1, there = 1;
    imbrexd_limit limit = IMBREXD_LIMIT;
    if (team.rank == last)
        return;
    switch (rounds) {
    case 0:
        there = imbrexd_barrier_all(&team);
        break;
    case 1:
        there = imbrexd_sync_all(&team);
        break;
    case 2:
        there = imbrexd_wait_block(&team, own->signal, SIGNALS, 1, last);
        break;
    case 3:
        there = imbrexd_wait_until(&team, own->signal, IMBREXD_EQ, 7, last);
        break;
    case 4:
        there = imbrexd_broadcast(&team, own->data[0], own->mine, sizeof own->mine, last);
        break;
    case 5:
        there = imbrexd_ll_unpack_block(&team, own->back, own->word[0], 64, 1, last);
        break;
    case 6:
        there = imbrexd_wait_any(&team, own->signal, SIGNALS, NULL, IMBREXD_GT, 0, last) >= 0;
        break;
    case 7:
        while (!imbrexd_load_relaxed(&own->signal[1]) && there)
            there = imbrexd_go_on(&team, &limit, last);
        break;
    default:
        there = imbrexd_ll_unpack_warp(&team, own->back, own->word[0], 64, 1, last);
    }
    if (!there)
        out->done = 1;
}

#endif /* DEVICE_CASES_H */
