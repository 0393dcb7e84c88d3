/* ptx_matrix.c - products and matrices of a warp and of four warps: registers are lent to
 * ptx_tensor.h's functions. */
#include <string.h>

#include "ptx_run.h"

static ptx_register lend(const ptx_warp *w, ptx_operand operand)
{
    return (ptx_register){ ptx_place(w, operand), 4, 0 };
}

static bool product(ptx_warp *w, const ptx_insn *insn, ptx_why *why)
{
    const ptx_operand *list = w->block->run->module->operands + insn->list;
    ptx_register all[16];
    for (int i = 0; i < insn->list_count && i < 16; i++)
        all[i] = lend(w, list[i]);
    int a = 4, b = a + insn->bytes, c = b + insn->to_bytes;
    return ptx_mma((int)insn->imm, insn->kind, insn->to_kind, all, all + a, all + b, all + c, why);
}

static bool matrices(ptx_warp *w, const ptx_insn *insn, ptx_why *why)
{
    const ptx_operand *list = w->block->run->module->operands + insn->list;
    ptx_shared shared = ptx_block_shared(w->block);
    ptx_register registers[4];
    uint32_t address[PTX_LANES];
    for (int i = 0; i < insn->list_count && i < 4; i++)
        registers[i] = lend(w, list[i]);
    for (int l = 0; l < PTX_LANES; l++) {
        ptx_block *block = ptx_shared_block(w->block, ptx_address(w, insn, l), &address[l]);
        if (block != w->block && l < 8 * insn->list_count) {
            strcpy(why->text, "an address is not of this block's shared memory");
            return false;
        }
    }
    return insn->code == PTX_LOAD_MATRIX
               ? ptx_ldmatrix(insn->list_count, insn->sub, registers, &shared, address, why)
               : ptx_stmatrix(insn->list_count, insn->sub, &shared, address, registers, why);
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

static bool group_product(ptx_warp *w, const ptx_insn *insn, uint32_t pc, ptx_why *why)
{
    const ptx_operand *list = w->block->run->module->operands + insn->list;
    if (!assemble(w, pc))
        return true;
    ptx_warp *first = &w->block->warps[w->index / 4 * 4];
    size_t stride = (size_t)(first[1].registers - first[0].registers);
    ptx_register d[128], a[4];
    for (int i = 0; i < insn->list_count; i++) {
        ptx_register one = { ptx_place(first, list[i]), 4, stride };
        if (i < insn->results)
            d[i] = one;
        else if (i - insn->results < 4)
            a[i - insn->results] = one;
    }
    bool in_registers = insn->list_count > insn->results;
    ptx_wgmma product = {
        .n = (int)insn->imm,
        .a_type = insn->kind,
        .b_type = insn->to_kind,
        .d = d,
        .a_registers = in_registers ? a : NULL,
        .a = in_registers ? 0 : ptx_64(first, insn->a, 0),
        .b = ptx_64(first, insn->b, 0),
        .add = *(const uint32_t *)(const void *)ptx_place(first, insn->c) & 1,
        .a_sign = insn->sub & 1 ? -1 : 1,
        .b_sign = insn->sub & 2 ? -1 : 1,
        .a_mn = insn->sub >> 2 & 1,
        .b_mn = insn->sub >> 3 & 1,
    };
    ptx_shared shared = ptx_block_shared(w->block);
    return ptx_wgmma_check(&product, why) && ptx_wgmma_perform(&product, &shared, why);
}

/* false: the warp does not go on from here as the others would: it waits, or has gone on. */
bool ptx_matrices(ptx_warp *w, const ptx_insn *insn, uint32_t pc)
{
    ptx_why why;
    bool ok = true, goes_on = true;
    if (w->live != PTX_EVERY) {
        ptx_fault(w, 0, pc, "a thread of the warp has ended");
        return true;
    }
    switch (insn->code) {
    case PTX_MMA:
        ok = product(w, insn, &why);
        break;
    case PTX_LOAD_MATRIX:
    case PTX_STORE_MATRIX:
        ok = matrices(w, insn, &why);
        break;
    case PTX_MOVE_MATRIX:
        ptx_movmatrix(lend(w, insn->d), lend(w, insn->a));
        break;
    case PTX_WGMMA:
        ok = group_product(w, insn, pc, &why);
        goes_on = false;
        break;
    default:
        break;
    }
    if (!ok)
        ptx_fault(w, 0, pc, "%s", why.text);
    return goes_on;
}
