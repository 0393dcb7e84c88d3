/* ptx_meet.c - where threads wait for each other: within a warp, a block, a cluster. */
#include "ptx_run.h"

/* ---- warps ----------------------------------------------------------------------------------- */

static uint32_t standing(const ptx_warp *w, uint32_t lanes, uint32_t pc)
{
    const ptx_insn *insns = w->block->run->module->insns;
    bool anywhere = insns[pc].code == PTX_WARP_SYNC; /* one of these is as good as another */
    uint32_t found = 0;
    for (uint32_t m = lanes; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        if (w->pc[l] == pc || (anywhere && insns[w->pc[l]].code == PTX_WARP_SYNC))
            found |= 1u << l;
    }
    return found;
}

uint32_t ptx_gather(ptx_warp *w, uint32_t lanes, uint32_t pc, uint32_t members)
{
    ptx_set_pc(w, lanes, pc);
    if (lanes & ~members) {
        ptx_fault(w, __builtin_ctz(lanes & ~members), pc, "the mask %#x is without this thread",
                  members);
        return 0;
    }
    uint32_t wanted = members & w->live, come = lanes | standing(w, w->parked, pc);
    if ((come & wanted) != wanted) {
        w->parked |= lanes;
        return 0;
    }
    w->parked &= ~wanted;
    return wanted;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void let_go(ptx_block *block, ptx_meeting *meeting)
{
    const ptx_runner *run = block->run;
    for (int i = 0; i < run->warps; i++) {
        ptx_warp *w = &block->warps[i];
        uint32_t lanes = meeting->waiting[i];
        meeting->waiting[i] = 0;
        if (!lanes)
            continue;
        uint32_t pc = w->pc[__builtin_ctz(lanes)];
        const ptx_insn *insn = &run->module->insns[pc];
        if (insn->code == PTX_BARRIER_RED) {
            uint32_t *d = (uint32_t *)(void *)ptx_place(w, insn->d);
            bool yes = insn->sub == PTX_AND ? meeting->all : meeting->any;
            if (insn->sub != PTX_ADD)
                *d = (*d & ~lanes) | (yes ? lanes : 0);
            for (uint32_t m = insn->sub == PTX_ADD ? lanes : 0; m; m &= m - 1)
                d[__builtin_ctz(m)] = meeting->sum;
        }
        w->barred &= ~lanes;
        ptx_set_pc(w, lanes, pc + 1);
    }
    *meeting = (ptx_meeting){ .waiting = meeting->waiting };
}

static void look(ptx_block *block, ptx_meeting *meeting)
{
    uint32_t wanted = meeting->wanted;
    if (!meeting->arrived)
        return;
    if (!wanted)
        wanted = (uint32_t)block->live_warps * PTX_LANES;
    if (meeting->arrived >= wanted)
        let_go(block, meeting);
}

void ptx_meet(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t lanes)
{
    int lane = __builtin_ctz(lanes);
    uint32_t id = ptx_32(w, insn->a, lane);
    uint32_t wanted = insn->b < 0 ? 0 : ptx_32(w, insn->b, lane);
    if (id >= PTX_BARRIERS || wanted % PTX_LANES) {
        ptx_fault(w, lane, pc, "barrier %u of %u threads: there are %d, of whole warps", id, wanted,
                  PTX_BARRIERS);
        return;
    }
    ptx_meeting *meeting = &w->block->meetings[id];
    if (meeting->arrived && meeting->wanted != wanted) {
        ptx_fault(w, lane, pc, "barrier %u is of %u threads here and of %u elsewhere", id, wanted,
                  meeting->wanted);
        return;
    }
    if (!meeting->arrived) {
        meeting->wanted = wanted;
        meeting->all = true;
    }
    meeting->arrived += PTX_LANES; /* warps are counted as whole */
    if (insn->code == PTX_BARRIER_RED) {
        uint32_t p = *(uint32_t *)(void *)ptx_place(w, insn->c);
        p = (insn->to_kind ? ~p : p) & lanes;
        meeting->all &= p == lanes;
        meeting->any |= p != 0;
        meeting->sum += (uint32_t)__builtin_popcount(p);
    }
    ptx_set_pc(w, lanes, pc + (insn->code == PTX_BARRIER_ARRIVE));
    if (insn->code != PTX_BARRIER_ARRIVE) {
        meeting->waiting[w->index] |= lanes;
        w->barred |= lanes;
    }
    look(w->block, meeting);
}

/* ---- clusters -------------------------------------------------------------------------------- */

static uint32_t live_in_cluster(const ptx_block *first)
{
    uint32_t count = 0;
    for (int i = 0; i < first->run->launch->cluster; i++) {
        for (int k = 0; k < first->run->warps; k++)
            count += (uint32_t)__builtin_popcount(first[i].warps[k].live);
    }
    return count;
}

static void look_at_cluster(ptx_block *first)
{
    if (first->cluster_arrived && first->cluster_arrived >= live_in_cluster(first)) {
        first->cluster_arrived = 0;
        first->cluster_phase++;
    }
}

void ptx_cluster_arrive(ptx_warp *w, uint32_t lanes)
{
    ptx_block *first = w->block->first;
    w->cluster_phase = first->cluster_phase;
    first->cluster_arrived += (uint32_t)__builtin_popcount(lanes);
    look_at_cluster(first);
}

bool ptx_cluster_over(const ptx_warp *w)
{
    return w->block->first->cluster_phase != w->cluster_phase;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void ptx_ended(ptx_warp *w)
{
    w->parked = 0; /* they look again whom they wait for */
    if (w->live)
        return;
    w->block->live_warps--;
    if (!w->block->live_warps)
        w->block->run->live_blocks--;
    for (int i = 0; i < PTX_BARRIERS; i++)
        look(w->block, &w->block->meetings[i]);
    look_at_cluster(w->block->first);
}
