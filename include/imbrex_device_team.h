/* imbrex_device_team.h - what kernels do with a team, once for CPUs and GPUs, over the primitives
 * of imbrex_device_cpu.h or imbrex_device_cuda.h.  Include imbrex_device.h, not this.
 */
#ifndef IMBREX_DEVICE_TEAM_H
#define IMBREX_DEVICE_TEAM_H

/* ---- who and where --------------------------------------------------------------------------- */

/* Where rank has what is at `at` here, an address in this rank's piece; NULL: on another node, and
 * what is put, got or posted there is a fault on CPU ranks.  So is another address, and the answer
 * then something that is there; GPUs do not look. */
IMBREXD_FN void *imbrexd_peer(const imbrexd_team *team, int rank, const void *at)
{
    size_t offset = (size_t)at - (size_t)team->base[team->rank];
    if (!imbrexd_inside(team, IMBREXD_POINT_DATA, rank, -1, offset, team->bytes))
        return team->bytes ? (void *)team->base[team->rank] : (void *)at;
    char *base = team->base[rank];
    return base ? base + offset : NULL;
}

/* Signal number index of the team's on rank, which this rank reaches.  Where the own ones begin may
 * be asked for also if there are none. */
IMBREXD_FN uint64_t *imbrexd_signal(const imbrexd_team *team, int rank, int index)
{
    size_t most = (size_t)team->signal_count + (rank == team->rank && !team->signal_count);
    if (!imbrexd_inside(team, IMBREXD_POINT_SIGNAL, rank, index, (size_t)index, most))
        return team->words[team->rank]; /* any: all waits have ended */
    return team->words[rank] + IMBREXD_TEAM_WORDS(team->size) + index;
}

/* Which launch of the kernel this is, from 1. */
IMBREXD_FN uint64_t imbrexd_epoch(const imbrexd_team *team)
{
    return *team->epoch;
}

/* What a wait says of itself if it ends without its value. */
IMBREXD_FN imbrexd_wait_point imbrexd_wait_point_of(const imbrexd_team *team, int what, int rank,
                                                    int index)
{
    imbrexd_wait_point point = { team->kernel, what, rank, index };
    return point;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* put: to a peer, dst from imbrexd_peer; get: from one, src likewise.  Called by one thread, or by
 * all threads of the warp or of the block, with the same arguments.  Any alignment, but 16 bytes of
 * both go fastest, 4 well.  Once it returns, src may be written again (put) and dst be read (get)
 * by all who called; with _nbi only after imbrexd_quiet of the same scope.  When peers see what was
 * put is for a post, a barrier or quiet to say. */
IMBREXD_FN void imbrexd_put_thread_nbi(void *dst, const void *src, size_t bytes)
{
    imbrexd_copy_part(dst, src, bytes, 0, 1);
}

IMBREXD_FN void imbrexd_put_thread(void *dst, const void *src, size_t bytes)
{
    imbrexd_put_thread_nbi(dst, src, bytes);
}

IMBREXD_FN void imbrexd_put_warp_nbi(void *dst, const void *src, size_t bytes)
{
    imbrexd_together(IMBREXD_CALLED_BY_WARP);
    imbrexd_copy_part(dst, src, bytes, imbrexd_lane(), imbrexd_lanes());
}

IMBREXD_FN void imbrexd_put_warp(void *dst, const void *src, size_t bytes)
{
    imbrexd_put_warp_nbi(dst, src, bytes);
    imbrexd_sync_warp();
}

IMBREXD_FN void imbrexd_put_block_nbi(void *dst, const void *src, size_t bytes)
{
    imbrexd_together(IMBREXD_CALLED_BY_BLOCK);
    imbrexd_copy_part(dst, src, bytes, imbrexd_thread(), imbrexd_threads());
}

IMBREXD_FN void imbrexd_put_block(void *dst, const void *src, size_t bytes)
{
    imbrexd_put_block_nbi(dst, src, bytes);
    imbrexd_sync_block();
}

IMBREXD_FN void imbrexd_get_thread_nbi(void *dst, const void *src, size_t bytes)
{
    imbrexd_copy_part(dst, src, bytes, 0, 1);
}

IMBREXD_FN void imbrexd_get_thread(void *dst, const void *src, size_t bytes)
{
    imbrexd_get_thread_nbi(dst, src, bytes);
}

IMBREXD_FN void imbrexd_get_warp_nbi(void *dst, const void *src, size_t bytes)
{
    imbrexd_together(IMBREXD_CALLED_BY_WARP);
    imbrexd_copy_part(dst, src, bytes, imbrexd_lane(), imbrexd_lanes());
}

IMBREXD_FN void imbrexd_get_warp(void *dst, const void *src, size_t bytes)
{
    imbrexd_get_warp_nbi(dst, src, bytes);
    imbrexd_sync_warp();
}

IMBREXD_FN void imbrexd_get_block_nbi(void *dst, const void *src, size_t bytes)
{
    imbrexd_together(IMBREXD_CALLED_BY_BLOCK);
    imbrexd_copy_part(dst, src, bytes, imbrexd_thread(), imbrexd_threads());
}

IMBREXD_FN void imbrexd_get_block(void *dst, const void *src, size_t bytes)
{
    imbrexd_get_block_nbi(dst, src, bytes);
    imbrexd_sync_block();
}

/* ---- order ----------------------------------------------------------------------------------- */

/* imbrexd_fence_post: what this thread has put comes before what it puts or posts next.
 * imbrexd_quiet: all that it has put is there, for all, and all that it got is here.  The same for
 * all threads of a warp or block: */
IMBREXD_FN void imbrexd_quiet_warp(void)
{
    imbrexd_sync_warp();
    imbrexd_quiet();
    imbrexd_sync_warp();
}

/* One thread's fence is enough: it covers what the barrier brought it to know. */
IMBREXD_FN void imbrexd_quiet_block(void)
{
    imbrexd_sync_block();
    if (imbrexd_thread() == 0)
        imbrexd_quiet();
    imbrexd_sync_block();
}

/* ---- signals --------------------------------------------------------------------------------- */

IMBREXD_FN void imbrexd_signal_op(uint64_t *signal, uint64_t value, imbrexd_op op)
{
    if (op == IMBREXD_ADD)
        imbrexd_signal_add(signal, value);
    else
        imbrexd_signal_post(signal, value);
}

/* Puts, then does op to the signal, in the same rank's memory: who sees its new value sees the
 * bytes.  src may be written again when it returns. */
IMBREXD_FN void imbrexd_put_signal_thread(void *dst, const void *src, size_t bytes,
                                          uint64_t *signal, uint64_t value, imbrexd_op op)
{
    imbrexd_put_thread(dst, src, bytes);
    imbrexd_signal_op(signal, value, op);
}

IMBREXD_FN void imbrexd_put_signal_warp(void *dst, const void *src, size_t bytes, uint64_t *signal,
                                        uint64_t value, imbrexd_op op)
{
    imbrexd_put_warp(dst, src, bytes);
    if (imbrexd_lane() == 0)
        imbrexd_signal_op(signal, value, op);
}

IMBREXD_FN void imbrexd_put_signal_block(void *dst, const void *src, size_t bytes, uint64_t *signal,
                                         uint64_t value, imbrexd_op op)
{
    imbrexd_put_block(dst, src, bytes);
    if (imbrexd_thread() == 0)
        imbrexd_signal_op(signal, value, op);
}

/* All threads of the block: what they stored before comes before the signal. */
IMBREXD_FN void imbrexd_notify_block(uint64_t *signal, uint64_t value, imbrexd_op op)
{
    imbrexd_sync_block();
    if (imbrexd_thread() == 0)
        imbrexd_signal_op(signal, value, op);
}

/* Which of the team's signals on this rank it is; -1: another word. */
IMBREXD_FN int imbrexd_signal_index(const imbrexd_team *team, const uint64_t *signal)
{
    const uint64_t *first = team->words[team->rank] + IMBREXD_TEAM_WORDS(team->size);
    size_t index = (size_t)(signal - first);
    return index < (size_t)team->signal_count ? (int)index : -1;
}

/* One thread, until the signal in this rank's memory, which rank `from` posts (-1: unknown),
 * compares so with value.  1: there, and what was written before the post can be read; 0: give up.
 */
IMBREXD_FN int imbrexd_wait_until(const imbrexd_team *team, const uint64_t *signal,
                                  imbrexd_compare compare, uint64_t value, int from)
{
    return imbrexd_signal_wait_until(&team->watch, signal, compare, value,
                                     imbrexd_wait_point_of(team, IMBREXD_POINT_SIGNAL, from,
                                                           imbrexd_signal_index(team, signal)));
}

IMBREXD_FN int imbrexd_wait(const imbrexd_team *team, const uint64_t *signal, uint64_t value,
                            int from)
{
    return imbrexd_wait_until(team, signal, IMBREXD_GE, value, from);
}

/* All threads of a warp, until each of count signals is at least value; all get the same answer.
 * Patiently: they look every half a microsecond, so that many warps may wait for one word. */
IMBREXD_FN int imbrexd_wait_warp(const imbrexd_team *team, const uint64_t *signals, int count,
                                 uint64_t value, int from)
{
    int there = 1, step = (int)imbrexd_lanes();
    for (int i = (int)(imbrexd_lane()); i < count; i += step) {
        imbrexd_wait_point point = imbrexd_wait_point_of(team, IMBREXD_POINT_SIGNAL, from,
                                                         imbrexd_signal_index(team, &signals[i]));
        there &= imbrexd_signal_wait_napping(&team->watch, &signals[i], value, point);
    }
    return imbrexd_all_warp(there);
}

/* All threads of the block, until each of count signals is at least value.  All get the same
 * answer, and no read of the block that follows is made before it: no token has to be consumed.
 * Reads by TMA want imbrexd_fence_tma besides. */
IMBREXD_FN int imbrexd_wait_block(const imbrexd_team *team, const uint64_t *signals, int count,
                                  uint64_t value, int from)
{
    int there = 1, step = (int)imbrexd_threads();
    for (int i = (int)imbrexd_thread(); i < count; i += step) {
        imbrexd_wait_point point = imbrexd_wait_point_of(team, IMBREXD_POINT_SIGNAL, from,
                                                         imbrexd_signal_index(team, &signals[i]));
        there &= imbrexd_signal_wait(&team->watch, &signals[i], value, point);
    }
    return imbrexd_all_block(there);
}

/* ---- waits of one's own ---------------------------------------------------------------------- */

/* How long such a loop has looked already: IMBREXD_LIMIT before it. */
typedef struct imbrexd_limit {
    int64_t begin_ns, looked_ns; /* 0: not that long */
    int32_t polls, pad;
} imbrexd_limit;

#define IMBREXD_LIMIT \
    {                 \
        0, 0, 0, 0    \
    }

/* Looks at the abort word and the clock once in a thousand polls, and then rests: another rank may
 * need this core. */
IMBREXD_FN int imbrexd_limit_allows(imbrexd_limit *limit, const imbrexd_watch *watch,
                                    imbrexd_wait_point point, uint64_t have, uint64_t want)
{
    if (++limit->polls <= 1000)
        return 1;
    limit->polls = 0;
    imbrexd_yield(limit->begin_ns ? limit->looked_ns - limit->begin_ns : 0);
    if (imbrexd_look(watch->abort[watch->rank]))
        return 0;
    int64_t now_ns = imbrexd_now_ns();
    limit->looked_ns = limit->begin_ns ? limit->looked_ns : now_ns;
    limit->begin_ns = limit->begin_ns ? limit->begin_ns : now_ns;
    limit->begin_ns += imbrexd_pause_ns(now_ns - limit->looked_ns, watch->timeout_ns);
    limit->looked_ns = now_ns;
    imbrexd_watch_note(watch, point, now_ns);
    if (now_ns - limit->begin_ns <= watch->timeout_ns)
        return 1;
    imbrexd_fault_raise(watch, IMBREXD_FAULT_DEADLINE, point, have, want);
    return 0;
}

/* One thread, in a loop that looks at memory itself, for a lock or a queue, each time that it has
 * found nothing.  1: look again; 0: give up: the group has failed, now perhaps, since the loop has
 * lasted as long as waits may.  from: the rank that it waits for; -1: unknown. */
IMBREXD_FN int imbrexd_go_on(const imbrexd_team *team, imbrexd_limit *limit, int from)
{
    return imbrexd_limit_allows(limit, &team->watch,
                                imbrexd_wait_point_of(team, IMBREXD_POINT_LOOP, from, -1), 0, 0);
}

/* One thread, until one of count signals in this rank's memory compares so with value: which, from
 * 0, and what was written before its post can be read; -1: give up.  skip: [count], those with
 * something else than 0 are left out; NULL: none.  Where none is left: count, at once. */
IMBREXD_FN int imbrexd_wait_any(const imbrexd_team *team, const uint64_t *signals, int count,
                                const int *skip, imbrexd_compare compare, uint64_t value, int from)
{
    imbrexd_limit limit = IMBREXD_LIMIT;
    imbrexd_wait_point point = imbrexd_wait_point_of(team, IMBREXD_POINT_SIGNAL, from, -1);
    for (;;) {
        int left = 0;
        uint64_t have = 0;
        for (int i = 0; i < count; i++) {
            if (skip && skip[i])
                continue;
            left++;
            have = imbrexd_look(&signals[i]);
            if (imbrexd_holds(have, compare, value)) {
                imbrexd_check_came(&signals[i], compare, value, point);
                return i;
            }
        }
        if (!left)
            return count;
        if (!imbrexd_limit_allows(&limit, &team->watch, point, have, value))
            return -1;
    }
}

/* ---- meeting --------------------------------------------------------------------------------- */

/* Which of a team's words: the row of arrivals, and the epoch's number. */
enum { IMBREXD_MEET_ALL, IMBREXD_MEET_NODE, IMBREXD_BROADCAST };

/* Raises this rank's count of such meetings and returns it.  All threads of the block call; what
 * they stored before comes before what any of them posts next.  relaxed: a number by itself, and
 * whoever calls next comes after this block. */
IMBREXD_FN uint64_t imbrexd_epoch_next(const imbrexd_team *team, int row)
{
    uint64_t *at = team->words[team->rank] + 3 * team->size + row;
    uint64_t epoch = imbrexd_load_relaxed(at) + 1;
    imbrexd_sync_block(); /* all have read it */
    if (imbrexd_thread() == 0)
        imbrexd_store_relaxed(at, epoch);
    return epoch;
}

/* Ends all waits: the kernel wants all ranks, and this one is on another node. */
IMBREXD_FN int imbrexd_unreachable(const imbrexd_team *team, int rank)
{
    imbrexd_fault_raise(&team->watch, IMBREXD_FAULT_UNREACHABLE,
                        imbrexd_wait_point_of(team, IMBREXD_POINT_BARRIER, rank, -1), 0, 0);
    return 0;
}

/* Returns 1 once the ranks from first on, count of them with this one, have come as often as this
 * one; 0 to give up.  ordered: what any thread of their blocks stored before is then visible. */
IMBREXD_FN int imbrexd_meet(const imbrexd_team *team, int row, int first, int count, int ordered)
{
    uint64_t epoch = imbrexd_epoch_next(team, row);
    int there = 1, step = (int)imbrexd_threads();
    for (int i = (int)imbrexd_thread(); i < count; i += step) {
        int r = first + (team->rank - first + i) % count; /* each begins with another one */
        uint64_t *words = team->words[r];
        int at = row * team->size + team->rank;
        if (!words)
            there = imbrexd_unreachable(team, r);
        else if (r != team->rank && ordered)
            imbrexd_signal_post(words + at, epoch);
        else if (r != team->rank)
            imbrexd_signal_post_relaxed(words + at, epoch);
    }
    for (int r = first + (int)imbrexd_thread(); r < first + count; r += step) {
        imbrexd_wait_point point = imbrexd_wait_point_of(team, IMBREXD_POINT_BARRIER, r, -1);
        const uint64_t *at = team->words[team->rank] + row * team->size + r;
        if (r != team->rank && !imbrexd_signal_wait(&team->watch, at, epoch, point))
            there = 0;
    }
    return imbrexd_all_block(there);
}

/* By one block of each rank at a time, by all its threads, equally often on all ranks.  1: all have
 * come, and what any of them put before is visible to all threads of these blocks.  0: give up.
 * A rank on another node ends the kernel and the group with a fault: there are the _node forms. */
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

/* Called like imbrexd_barrier_all: root's bytes of src come to dst, an address in the piece, on all
 * ranks.  1: they can be read here; 0: give up.  That nobody reads dst any more when root begins is
 * the callers' to know, from a barrier for instance. */
IMBREXD_FN int imbrexd_broadcast(const imbrexd_team *team, void *dst, const void *src, size_t bytes,
                                 int root)
{
    if (!imbrexd_inside(team, IMBREXD_POINT_BARRIER, root, -1, 0, 1))
        return 0;
    uint64_t epoch = imbrexd_epoch_next(team, IMBREXD_BROADCAST);
    size_t at = (size_t)IMBREXD_BROADCAST * (size_t)team->size + (size_t)root;
    if (team->rank != root) {
        int there = 1;
        if (imbrexd_thread() == 0)
            there = imbrexd_signal_wait(&team->watch, team->words[team->rank] + at, epoch,
                                        imbrexd_wait_point_of(team, IMBREXD_POINT_DATA, root, -1));
        return imbrexd_all_block(there);
    }
    for (int i = 1; i <= team->size; i++) { /* itself last: the others wait */
        int r = (root + i) % team->size;
        void *there = imbrexd_peer(team, r, dst);
        if (!there)
            return imbrexd_unreachable(team, r);
        if (there != src)
            imbrexd_put_block_nbi(there, src, bytes);
    }
    imbrexd_sync_block();
    for (int r = (int)imbrexd_thread(); r < team->size; r += (int)imbrexd_threads()) {
        if (r != root)
            imbrexd_signal_post(team->words[r] + at, epoch);
    }
    return 1;
}

/* ---- LL: data that carries its own flag ------------------------------------------------------ */

/* A word of eight bytes is four of data below four of flag, and comes as a whole: no fence, no
 * signal, twice the bytes.  For small messages, where a post's round costs more than they do.
 *
 * pack: bytes of src (a multiple of 4, 4-byte aligned, as dst is in unpack) to as many words at ll,
 * 8-byte aligned, a peer's for instance.  unpack: waits for each word to carry flag.  flag differs
 * from what the words carried before (0 in new memory): the epoch will do.  Before words are packed
 * again, who unpacked them has said that he did.  Called like put; all get the same answer, 1, or 0
 * to give up. */
IMBREXD_FN void imbrexd_ll_pack_part(uint64_t *ll, const void *src, size_t bytes, uint32_t flag,
                                     unsigned lane, unsigned lanes)
{
    const uint32_t *data = (const uint32_t *)src;
    for (size_t i = lane; i < bytes / 4; i += lanes)
        imbrexd_store_relaxed(&ll[i], (uint64_t)flag << 32 | data[i]);
}

/* relaxed: the data is in the word itself. */
IMBREXD_FN int imbrexd_ll_wait(const imbrexd_watch *watch, const uint64_t *word, uint32_t flag,
                               imbrexd_wait_point point, uint32_t *data)
{
    imbrexd_limit limit = IMBREXD_LIMIT;
    for (;;) {
        uint64_t have = imbrexd_load_relaxed(word);
        *data = (uint32_t)have;
        if (have >> 32 == flag)
            return 1;
        if (!imbrexd_limit_allows(&limit, watch, point, have >> 32, flag))
            return 0;
    }
}

IMBREXD_FN int imbrexd_ll_unpack_part(const imbrexd_team *team, void *dst, const uint64_t *ll,
                                      size_t bytes, uint32_t flag, int from, unsigned lane,
                                      unsigned lanes)
{
    uint32_t *data = (uint32_t *)dst;
    imbrexd_wait_point point = imbrexd_wait_point_of(team, IMBREXD_POINT_DATA, from, -1);
    int there = 1;
    for (size_t i = lane; there && i < bytes / 4; i += lanes) {
        uint32_t word;
        there = imbrexd_ll_wait(&team->watch, &ll[i], flag, point, &word);
        data[i] = word;
    }
    imbrexd_check_fence(); /* the checker knows no flags */
    return there;
}

IMBREXD_FN void imbrexd_ll_pack_thread(uint64_t *ll, const void *src, size_t bytes, uint32_t flag)
{
    imbrexd_ll_pack_part(ll, src, bytes, flag, 0, 1);
}

IMBREXD_FN void imbrexd_ll_pack_warp(uint64_t *ll, const void *src, size_t bytes, uint32_t flag)
{
    imbrexd_together(IMBREXD_CALLED_BY_WARP);
    imbrexd_ll_pack_part(ll, src, bytes, flag, imbrexd_lane(), imbrexd_lanes());
}

IMBREXD_FN void imbrexd_ll_pack_block(uint64_t *ll, const void *src, size_t bytes, uint32_t flag)
{
    imbrexd_together(IMBREXD_CALLED_BY_BLOCK);
    imbrexd_ll_pack_part(ll, src, bytes, flag, imbrexd_thread(), imbrexd_threads());
}

IMBREXD_FN int imbrexd_ll_unpack_thread(const imbrexd_team *team, void *dst, const uint64_t *ll,
                                        size_t bytes, uint32_t flag, int from)
{
    return imbrexd_ll_unpack_part(team, dst, ll, bytes, flag, from, 0, 1);
}

IMBREXD_FN int imbrexd_ll_unpack_warp(const imbrexd_team *team, void *dst, const uint64_t *ll,
                                      size_t bytes, uint32_t flag, int from)
{
    return imbrexd_all_warp(
        imbrexd_ll_unpack_part(team, dst, ll, bytes, flag, from, imbrexd_lane(), imbrexd_lanes()));
}

IMBREXD_FN int imbrexd_ll_unpack_block(const imbrexd_team *team, void *dst, const uint64_t *ll,
                                       size_t bytes, uint32_t flag, int from)
{
    return imbrexd_all_block(imbrexd_ll_unpack_part(team, dst, ll, bytes, flag, from,
                                                    imbrexd_thread(), imbrexd_threads()));
}

#ifdef IMBREXD_MULTIMEM
#include "imbrex_device_multimem.h"
#endif

#endif /* IMBREX_DEVICE_TEAM_H */
