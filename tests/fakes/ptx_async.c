/* ptx_async.c - copies that have been asked for: they are done late, in an order by chance, so that
 * who does not wait for one finds what was there before. */
#include <stdlib.h>
#include <string.h>

#include "ptx_run.h"

static void *grown(void *at, int count, int *room, size_t each)
{
    if (count < *room)
        return at;
    *room = *room ? 2 * *room : 64;
    at = realloc(at, (size_t)*room * each);
    if (!at)
        abort();
    return at;
}

/* ---- cp.async: a thread's own ---------------------------------------------------------------- */

static bool start_copies(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t active)
{
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        uint32_t to;
        uint64_t at = ptx_listed_address(w, insn, 0, l), from = ptx_listed_address(w, insn, 1, l);
        ptx_block *block = ptx_shared_block(w->block, at, &to);
        bool reads = ptx_32(w, insn->c, l) > 0; /* else from may be anywhere */
        if (block != w->block || (reads && (from < 65536 || from >> 47))) {
            ptx_fault(w, l, pc, "cp.async from %#llx to %#llx, which are not global and shared",
                      (unsigned long long)from, (unsigned long long)at);
            return true;
        }
        w->copies = grown(w->copies, w->copy_count, &w->copy_room, sizeof *w->copies);
        w->copies[w->copy_count++] = (ptx_copy){ l,   w->groups[l],          w->copy_number,
                                                 to,  ptx_32(w, insn->b, l), ptx_32(w, insn->c, l),
                                                 from };
    }
    w->copy_number++;
    return true;
}

static void finish(ptx_warp *w, const ptx_copy *copy, uint32_t pc)
{
    ptx_shared shared = ptx_block_shared(w->block);
    ptx_why why;
    if (!ptx_copy_async(&shared, copy->to, NULL, copy->from, copy->size, copy->filled, &why))
        ptx_fault(w, copy->lane, pc, "a cp.async before: %s", why.text);
}

/* All of the lanes' groups but the last `kept`. */
static void finish_copies(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t active)
{
    int kept = 0;
    bool all = insn->sub;
    for (int i = 0; i < w->copy_count; i++) {
        ptx_copy copy = w->copies[i];
        if (active >> copy.lane & 1 &&
            (all || (int64_t)copy.group < (int64_t)w->groups[copy.lane] - insn->imm))
            finish(w, &copy, pc);
        else
            w->copies[kept++] = copy;
    }
    w->copy_count = kept;
}

static void finish_before(ptx_warp *w, int lane, uint32_t number, uint32_t pc)
{
    int kept = 0;
    for (int i = 0; i < w->copy_count; i++) {
        ptx_copy copy = w->copies[i];
        if (copy.lane == lane && copy.number < number)
            finish(w, &copy, pc);
        else
            w->copies[kept++] = copy;
    }
    w->copy_count = kept;
}

/* ---- cp.async.bulk: the launch's ------------------------------------------------------------- */

static void fill_late(ptx_warp *w, const ptx_insn *insn, int l, ptx_late *late)
{
    const ptx_operand *list = w->block->run->module->operands + insn->list;
    bool tensor = insn->code == PTX_TENSOR_LOAD || insn->code == PTX_TENSOR_STORE;
    uint64_t to = 0, from = 0, barrier = 0;
    uint32_t at;
    if (insn->code == PTX_COPY_ARRIVE) {
        to = barrier = ptx_address(w, insn, l);
        late->bytes = w->copy_number;
    } else if (tensor) {
        bool load = insn->code == PTX_TENSOR_LOAD;
        late->map = ptx_listed_address(w, insn, 0, l);
        to = ptx_listed_address(w, insn, 1, l);
        barrier = load ? ptx_listed_address(w, insn, 2, l) : 0;
        for (int i = 0; i < insn->to_bytes && i < 5; i++)
            late->x[i] = (int32_t)ptx_32(w, list[(load ? 9 : 6) + i], l);
        from = to;
        late->rank_count = insn->to_bytes;
    } else {
        to = ptx_listed_address(w, insn, 0, l);
        from = ptx_listed_address(w, insn, 1, l);
        barrier = insn->code == PTX_BULK_STORE ? 0 : ptx_listed_address(w, insn, 2, l);
        late->bytes = ptx_32(w, insn->b, l);
    }
    bool stores = insn->code == PTX_BULK_STORE || insn->code == PTX_TENSOR_STORE;
    late->global = stores ? to : from; /* of a pass: the source in its window */
    uint64_t in_shared = stores ? from : to;
    ptx_block *block = ptx_shared_block(w->block, in_shared, &at);
    late->shared = at;
    late->rank = block ? (uint32_t)(block - w->block->first) : 255;
    late->to_ranks = block ? 1u << late->rank : 0;
    if (insn->c >= 0)
        late->to_ranks = ptx_32(w, insn->c, l) & 0xffff;
    if (barrier)
        ptx_shared_block(w->block, barrier, &late->barrier);
}

/* In rounds: some come after much that was asked for later. */
static uint32_t delay(ptx_runner *run)
{
    return ptx_random(run) % (ptx_random(run) % 4 ? 6 : 40);
}

static bool start_late(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t active)
{
    static const ptx_late_kind kinds[] = {
        [PTX_COPY_ARRIVE - PTX_COPY_ARRIVE] = PTX_LATE_ARRIVE,
        [PTX_BULK_LOAD - PTX_COPY_ARRIVE] = PTX_LATE_LOAD,
        [PTX_BULK_STORE - PTX_COPY_ARRIVE] = PTX_LATE_STORE,
        [PTX_BULK_PASS - PTX_COPY_ARRIVE] = PTX_LATE_PASS,
        [PTX_TENSOR_LOAD - PTX_COPY_ARRIVE] = PTX_LATE_TENSOR_LOAD,
        [PTX_TENSOR_STORE - PTX_COPY_ARRIVE] = PTX_LATE_TENSOR_STORE,
    };
    ptx_runner *run = w->block->run;
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        ptx_late late = { .kind = kinds[insn->code - PTX_COPY_ARRIVE],
                          .warp = w,
                          .lane = l,
                          .insn = pc,
                          .group = w->bulk_groups[l],
                          .due = run->round + 1 + delay(run) };
        fill_late(w, insn, l, &late);
        if (!late.to_ranks || late.to_ranks >> run->launch->cluster) {
            ptx_fault(w, l, pc, "no shared memory of the cluster is there");
            return true;
        }
        run->lates = grown(run->lates, run->late_count, &run->late_room, sizeof *run->lates);
        run->lates[run->late_count++] = late;
    }
    return true;
}

static bool load_late(ptx_late *late, ptx_block *to, ptx_why *why)
{
    ptx_shared shared = ptx_block_shared(to);
    const void *map = (const void *)(uintptr_t)late->map;
    uint32_t bytes = late->bytes;
    bool ok;
    if (late->kind == PTX_LATE_TENSOR_LOAD) {
        ok = ptx_map_load(map, late->rank_count, late->x, NULL, &shared, late->shared, &bytes, why);
    } else if (late->kind == PTX_LATE_LOAD) {
        ok = ptx_bulk_load(&shared, late->shared, NULL, late->global, bytes, why);
    } else {
        uint32_t from;
        ptx_block *block = ptx_shared_block(late->warp->block, late->global, &from);
        ptx_shared source = ptx_block_shared(block ? block : to);
        ok = ptx_bulk_pass(&shared, late->shared, &source, from, bytes, why);
    }
    return ok && ptx_barrier_complete(&shared, late->barrier, bytes, why);
}

static void perform(ptx_late *late)
{
    ptx_block *own = late->warp->block;
    ptx_shared shared = ptx_block_shared(own);
    const void *map = (const void *)(uintptr_t)late->map;
    ptx_why why;
    bool ok = true;
    own->run->moved++;
    if (late->kind == PTX_LATE_ARRIVE) {
        finish_before(late->warp, late->lane, late->bytes, late->insn);
        ok = ptx_barrier_arrive(&shared, late->barrier, 1, 0, NULL, &why);
    } else if (late->kind == PTX_LATE_STORE) {
        ok = ptx_bulk_store(NULL, late->global, &shared, late->shared, late->bytes, &why);
    } else if (late->kind == PTX_LATE_TENSOR_STORE) {
        ok = ptx_map_store(map, late->rank_count, late->x, NULL, &shared, late->shared, &why);
    } else {
        for (uint32_t ranks = late->to_ranks; ranks && ok; ranks &= ranks - 1)
            ok = load_late(late, own->first + __builtin_ctz(ranks), &why);
    }
    if (!ok)
        ptx_fault(late->warp, late->lane, late->insn, "%s", why.text);
}

void ptx_late_settle(ptx_runner *run, bool all)
{
    int kept = 0, count = run->late_count;
    for (int i = 0; i < count && !run->failed; i++) {
        ptx_late late = run->lates[i];
        if (all || late.due <= run->round)
            perform(&late);
        else
            run->lates[kept++] = late;
    }
    run->late_count = kept;
}

/* Whether none of the lanes' stores is under way but those of the last `kept` groups. */
static bool stored(const ptx_warp *w, uint32_t active, int64_t kept)
{
    const ptx_runner *run = w->block->run;
    for (int i = 0; i < run->late_count; i++) {
        const ptx_late *late = &run->lates[i];
        if (late->warp == w && active >> late->lane & 1 &&
            (late->kind == PTX_LATE_STORE || late->kind == PTX_LATE_TENSOR_STORE) &&
            (int64_t)late->group < (int64_t)w->bulk_groups[late->lane] - kept)
            return false;
    }
    return true;
}

/* ---- all ------------------------------------------------------------------------------------- */

bool ptx_copies(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t active)
{
    switch (insn->code) {
    case PTX_COPY_ASYNC:
        return start_copies(w, insn, pc, active);
    case PTX_COPY_COMMIT:
        for (uint32_t m = active; m; m &= m - 1)
            w->groups[__builtin_ctz(m)]++;
        return true;
    case PTX_COPY_WAIT:
        finish_copies(w, insn, pc, active);
        return true;
    case PTX_BULK_COMMIT:
        for (uint32_t m = active; m; m &= m - 1)
            w->bulk_groups[__builtin_ctz(m)]++;
        return true;
    case PTX_BULK_WAIT:
        return stored(w, active, insn->imm);
    case PTX_TENSOR_PREFETCH:
        return true;
    default:
        return start_late(w, insn, pc, active);
    }
}

/* ---- barriers in memory ---------------------------------------------------------------------- */

static bool store_async(ptx_warp *w, const ptx_insn *insn, int l, ptx_why *why)
{
    const ptx_operand *list = w->block->run->module->operands + insn->list;
    uint32_t to, barrier, words[4], count = insn->list_count - 6u;
    ptx_block *there = ptx_shared_block(w->block, ptx_listed_address(w, insn, 0, l), &to);
    ptx_block *other = ptx_shared_block(w->block, ptx_listed_address(w, insn, 1, l), &barrier);
    for (uint32_t i = 0; i < count && i < 4; i++)
        words[i] = ptx_32(w, list[6 + i], l);
    if (!there || there != other) {
        strcpy(why->text, "st.async to a block whose barrier it does not name");
        return false;
    }
    ptx_shared shared = ptx_block_shared(there);
    return ptx_store_async(&shared, to, words, (int)count, barrier, why);
}

bool ptx_barriers(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t active)
{
    uint32_t over_all = 0;
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        uint64_t state = 0;
        uint32_t at = 0;
        bool ok = false, over = true;
        ptx_why why;
        if (insn->code == PTX_STORE_ASYNC) {
            w->block->run->moved++;
            ok = store_async(w, insn, l, &why);
            if (!ok)
                ptx_fault(w, l, pc, "%s", why.text);
            continue;
        }
        ptx_block *block = ptx_shared_block(w->block, ptx_address(w, insn, l), &at);
        if (!block) {
            ptx_fault(w, l, pc, "no shared memory of the cluster is there");
            return true;
        }
        ptx_shared shared = ptx_block_shared(block);
        switch (insn->code) {
        case PTX_MBARRIER_INIT:
            ok = ptx_barrier_init(&shared, at, ptx_32(w, insn->b, l), &why);
            break;
        case PTX_MBARRIER_END:
            ok = ptx_barrier_end(&shared, at, &why);
            break;
        case PTX_MBARRIER_ARRIVE: {
            uint32_t number = ptx_32(w, insn->b, l);
            ok = ptx_barrier_arrive(&shared, at, insn->sub ? 1 : number, insn->sub ? number : 0,
                                    &state, &why);
            ((uint64_t *)(void *)ptx_place(w, insn->d))[l] = state;
            break;
        }
        case PTX_MBARRIER_EXPECT:
            ok = ptx_barrier_expect(&shared, at, ptx_32(w, insn->b, l), &why);
            break;
        case PTX_MBARRIER_TRY:
            ok = ptx_barrier_over(&shared, at, ptx_64(w, insn->b, l), &over, &why);
            break;
        default:
            ok = ptx_barrier_parity_over(&shared, at, ptx_32(w, insn->b, l), &over, &why);
        }
        if (!ok) {
            ptx_fault(w, l, pc, "%s", why.text);
            return true;
        }
        over_all |= (uint32_t)over << l;
    }
    if (insn->code != PTX_MBARRIER_TRY && insn->code != PTX_MBARRIER_TRY_PARITY) {
        w->block->run->moved++;
        return true;
    }
    uint32_t *d = (uint32_t *)(void *)ptx_place(w, insn->d);
    *d = (*d & ~active) | over_all;
    return over_all == active;
}
