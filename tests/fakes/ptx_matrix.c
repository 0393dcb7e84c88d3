/* ptx_matrix.c - products and matrices of a warp: lends its registers to the functions of
 * ptx_tensor.h. */
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

/* false: the warp does not go on from here as the others would: it waits, or has gone on. */
bool ptx_matrices(ptx_warp *w, const ptx_insn *insn, uint32_t pc)
{
    ptx_why why;
    bool ok = true;
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
    default:
        return ptx_group_products(w, insn, pc);
    }
    if (!ok)
        ptx_fault(w, 0, pc, "%s", why.text);
    return true;
}
