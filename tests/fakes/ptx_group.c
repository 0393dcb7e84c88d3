/* ptx_group.c - products of four warps, which are done when they have to be, or by chance before:
 * who reads the sums without waiting, or lets go of the operands too soon, gets wrong values. */
#include <stdlib.h>

#include "ptx_run.h"

enum { PROMPT = 4, REGISTERS = 128 }; /* one product in so many is done at once */

/* A product that has been asked for and not been done. */
struct ptx_product {
    ptx_wgmma what;
    ptx_register d[REGISTERS], a[4];
    uint32_t group, insn;
};

static ptx_warp *first_of(const ptx_warp *w)
{
    return &w->block->warps[w->index / 4 * 4];
}

/* Those of groups before this one, in their order. */
static void finish(ptx_warp *first, int64_t before)
{
    ptx_shared shared = ptx_block_shared(first->block);
    int done = 0;
    while (done < first->product_count && first->products[done]->group < before) {
        ptx_product *p = first->products[done++];
        ptx_why why;
        if (!ptx_wgmma_perform(&p->what, &shared, &why))
            ptx_fault(first, 0, p->insn, "%s", why.text);
        free(p);
    }
    first->product_count -= done;
    for (int i = 0; i < first->product_count; i++)
        first->products[i] = first->products[i + done];
}

/* Four warps: true when the last one of them has come, and then all go on. */
static bool assemble(ptx_warp *w, uint32_t pc)
{
    ptx_block *block = w->block;
    int first = w->index / 4 * 4;
    ptx_set_pc(w, PTX_EVERY, pc);
    w->grouped = true;
    if (first + 4 > block->run->warps) {
        ptx_fault(w, 0, pc, "a warpgroup of less than four warps");
        return false;
    }
    for (int i = first; i < first + 4; i++) {
        if (!block->warps[i].grouped || block->warps[i].pc[0] != pc) {
            w->barred = w->live;
            return false;
        }
    }
    for (int i = first; i < first + 4; i++) {
        block->warps[i].grouped = false;
        block->warps[i].barred = 0;
        ptx_set_pc(&block->warps[i], PTX_EVERY, pc + 1);
    }
    return true;
}

/* What it takes: registers and, of descriptors, their values now. */
static ptx_product *product_of(ptx_warp *first, const ptx_insn *insn, uint32_t pc)
{
    const ptx_operand *list = first->block->run->module->operands + insn->list;
    size_t stride = (size_t)(first[1].registers - first[0].registers);
    bool in_registers = insn->list_count > insn->results;
    ptx_product *p = calloc(1, sizeof *p);
    p->group = first->product_groups;
    p->insn = pc;
    for (int i = 0; i < insn->list_count; i++) {
        ptx_register one = { ptx_place(first, list[i]), 4, stride };
        if (i < insn->results && i < REGISTERS)
            p->d[i] = one;
        else if (i - insn->results < 4)
            p->a[i - insn->results] = one;
    }
    p->what = (ptx_wgmma){
        .n = (int)insn->imm,
        .a_type = insn->kind,
        .b_type = insn->to_kind,
        .d = p->d,
        .a_registers = in_registers ? p->a : NULL,
        .a = in_registers ? 0 : ptx_64(first, insn->a, 0),
        .b = ptx_64(first, insn->b, 0),
        .add = *(const uint32_t *)(const void *)ptx_place(first, insn->c) & 1,
        .a_sign = insn->sub & 1 ? -1 : 1,
        .b_sign = insn->sub & 2 ? -1 : 1,
        .a_mn = insn->sub >> 2 & 1,
        .b_mn = insn->sub >> 3 & 1,
    };
    return p;
}

static void ask(ptx_warp *first, const ptx_insn *insn, uint32_t pc)
{
    ptx_product *p = product_of(first, insn, pc);
    ptx_why why;
    first->products =
        realloc(first->products, (size_t)(first->product_count + 1) * sizeof(ptx_product *));
    first->products[first->product_count++] = p;
    if (!ptx_wgmma_check(&p->what, &why))
        ptx_fault(first, 0, pc, "%s", why.text);
    else if (ptx_random(first->block->run) % PROMPT == 0)
        finish(first, INT64_MAX);
}

/* false: the warp does not go on from here as the others would: it waits, or has gone on. */
bool ptx_group_products(ptx_warp *w, const ptx_insn *insn, uint32_t pc)
{
    switch (insn->code) {
    case PTX_WGMMA:
        if (assemble(w, pc))
            ask(first_of(w), insn, pc);
        return false;
    case PTX_WGMMA_COMMIT:
        w->product_groups++;
        return true;
    case PTX_WGMMA_WAIT:
        finish(first_of(w), (int64_t)w->product_groups - insn->imm);
        return true;
    default: /* a fence: registers are in order */
        return true;
    }
}

void ptx_group_end(ptx_warp *w)
{
    for (int i = 0; i < w->product_count; i++)
        free(w->products[i]);
    free(w->products);
}
