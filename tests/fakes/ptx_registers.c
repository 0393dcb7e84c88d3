/* ptx_registers.c - gives virtual registers places in a warp's memory: those that are never needed
 * at the same time share one, so that what a warp works with stays in the processor's cache. */
#include <stdlib.h>
#include <string.h>

#include "ptx_text.h"

static const uint32_t class_bytes[] = { 4, 128, 256, 512 };

typedef struct block {
    uint32_t first, end;
    int next[2]; /* or -1 */
} block;

typedef struct placing {
    ptx_builder *b;
    const ptx_function *f;
    block *blocks;
    int block_count;
    int *block_of; /* an instruction's */
    size_t words;
    uint64_t *in, *use, *def; /* bits of registers, by block */
    uint32_t *first, *last;   /* instructions between which a register is needed */
} placing;

/* ---- what an instruction reads and writes ---------------------------------------------------- */

typedef void (*visit)(placing *p, int reg, bool write, void *ctx);

static void visit_one(placing *p, ptx_operand operand, bool write, visit see, void *ctx)
{
    if (operand >= 0 && !(operand & 1))
        see(p, operand / 4, write, ctx);
}

/* Reads come first.  A result under a guard may keep what was there. */
static void visit_all(placing *p, const ptx_insn *insn, visit see, void *ctx)
{
    const ptx_operand *list = p->b->module->operands + insn->list;
    const ptx_operand sources[] = { insn->guard, insn->a, insn->b, insn->c };
    for (int i = 0; i < 4; i++)
        visit_one(p, sources[i], false, see, ctx);
    for (int i = insn->both ? 0 : insn->results; i < insn->list_count; i++)
        visit_one(p, list[i], false, see, ctx);
    for (int write = insn->guard < 0; write < 2; write++) {
        visit_one(p, insn->d, write, see, ctx);
        visit_one(p, insn->e, write, see, ctx);
        for (int i = 0; i < insn->results; i++)
            visit_one(p, list[i], write, see, ctx);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void find_blocks(placing *p)
{
    const ptx_insn *insns = p->b->module->insns;
    uint32_t first = p->f->first, end = p->f->end;
    bool *begins = calloc(end - first + 1, 1);
    p->block_of = calloc(end - first + 1, sizeof *p->block_of);
    p->blocks = calloc(end - first + 1, sizeof *p->blocks);
    begins[0] = true;
    for (uint32_t i = first; i < end; i++) {
        if (insns[i].code == PTX_BRANCH)
            begins[insns[i].imm - first] = true;
        if (insns[i].code == PTX_BRANCH || insns[i].code == PTX_EXIT || insns[i].code == PTX_RETURN)
            begins[i + 1 - first] = true;
    }
    for (uint32_t i = first; i < end; i++) {
        if (begins[i - first])
            p->blocks[p->block_count++] = (block){ i, end, { -1, -1 } };
        if (p->block_count > 1)
            p->blocks[p->block_count - 2].end = p->blocks[p->block_count - 1].first;
        p->block_of[i - first] = p->block_count - 1;
    }
    for (int i = 0; i < p->block_count; i++) {
        const ptx_insn *last = &insns[p->blocks[i].end - 1];
        bool ends = last->code == PTX_BRANCH || last->code == PTX_EXIT || last->code == PTX_RETURN;
        if (last->code == PTX_BRANCH)
            p->blocks[i].next[0] = p->block_of[last->imm - first];
        if (i + 1 < p->block_count && (!ends || last->guard >= 0))
            p->blocks[i].next[1] = i + 1;
    }
    free(begins);
}

static void note_block(placing *p, int reg, bool write, void *ctx)
{
    size_t at = (size_t) * (const int *)ctx * p->words + (size_t)reg / 64;
    uint64_t bit = 1ull << reg % 64;
    if (write)
        p->def[at] |= bit;
    else
        p->use[at] |= bit & ~p->def[at];
}

static uint64_t leaving(const placing *p, int i, size_t word)
{
    uint64_t out = 0;
    for (int k = 0; k < 2; k++) {
        if (p->blocks[i].next[k] >= 0)
            out |= p->in[(size_t)p->blocks[i].next[k] * p->words + word];
    }
    return out;
}

static bool flow_once(placing *p)
{
    bool changed = false;
    for (int i = p->block_count - 1; i >= 0; i--) {
        for (size_t w = 0; w < p->words; w++) {
            size_t at = (size_t)i * p->words + w;
            uint64_t in = p->use[at] | (leaving(p, i, w) & ~p->def[at]);
            changed |= in != p->in[at];
            p->in[at] = in;
        }
    }
    return changed;
}

static void widen(placing *p, int reg, uint32_t at)
{
    p->first[reg] = at < p->first[reg] ? at : p->first[reg];
    p->last[reg] = at > p->last[reg] ? at : p->last[reg];
}

static void note_place(placing *p, int reg, bool write, void *ctx)
{
    (void)write;
    widen(p, reg, *(const uint32_t *)ctx);
}

/* What a product of four warps takes is its own: it may be done later than it stands there. */
static void keep_apart(placing *p, const ptx_insn *insn)
{
    const ptx_operand *list = p->b->module->operands + insn->list;
    for (int i = 0; i < insn->list_count; i++) {
        widen(p, list[i] / 4, p->f->first);
        widen(p, list[i] / 4, p->f->end - 1);
    }
}

static void find_ranges(placing *p)
{
    const ptx_insn *insns = p->b->module->insns;
    for (int i = 0; i < p->block_count; i++) {
        for (uint32_t k = p->blocks[i].first; k < p->blocks[i].end; k++)
            visit_all(p, &insns[k], note_block, &i);
    }
    while (flow_once(p))
        ;
    for (uint32_t k = p->f->first; k < p->f->end; k++) {
        if (insns[k].code == PTX_WGMMA)
            keep_apart(p, &insns[k]);
    }
    for (int i = 0; i < p->block_count; i++) {
        for (uint32_t k = p->blocks[i].first; k < p->blocks[i].end; k++)
            visit_all(p, &insns[k], note_place, &k);
        for (size_t w = 0; w < p->words; w++) {
            uint64_t in = p->in[(size_t)i * p->words + w], out = leaving(p, i, w);
            for (; in; in &= in - 1)
                widen(p, (int)(64 * w) + __builtin_ctzll(in), p->blocks[i].first);
            for (; out; out &= out - 1)
                widen(p, (int)(64 * w) + __builtin_ctzll(out), p->blocks[i].end - 1);
        }
    }
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Registers by the instruction that they begin or end at: heads of lists. */
typedef struct order {
    int *head, *next;
} order;

static order order_by(const placing *p, const uint32_t *at)
{
    size_t insns = p->f->end - p->f->first, registers = (size_t)p->b->register_count;
    order o = { malloc((insns + 1) * sizeof(int)), malloc((registers + 1) * sizeof(int)) };
    memset(o.head, 0xff, (insns + 1) * sizeof(int));
    for (int i = 0; i < (int)registers; i++) {
        if (p->first[i] > p->last[i])
            continue; /* of no use */
        o.next[i] = o.head[at[i] - p->f->first];
        o.head[at[i] - p->f->first] = i;
    }
    return o;
}

static uint32_t place(placing *p, uint32_t at, ptx_operand *places)
{
    order begin = order_by(p, p->first), end = order_by(p, p->last);
    size_t registers = (size_t)p->b->register_count;
    ptx_operand *free_ones[4];
    size_t free_counts[4] = { 0 };
    for (int i = 0; i < 4; i++)
        free_ones[i] = malloc((registers + 1) * sizeof **free_ones);
    uint32_t tops[4] = { 0 };
    for (uint32_t i = 0; i < p->f->end - p->f->first; i++) {
        for (int r = begin.head[i]; r >= 0; r = begin.next[r]) {
            int class = p->b->registers[r].class;
            places[r] = free_counts[class] ? free_ones[class][--free_counts[class]]
                                           : (ptx_operand)tops[class]++;
        }
        for (int r = end.head[i]; r >= 0; r = end.next[r]) {
            int class = p->b->registers[r].class;
            free_ones[class][free_counts[class]++] = places[r];
        }
    }
    uint32_t bases[4];
    for (int class = 0; class < 4; class ++) {
        at = (at + 63) / 64 * 64;
        bases[class] = at;
        at += tops[class] * class_bytes[class];
        free(free_ones[class]);
    }
    for (size_t r = 0; r < registers; r++) {
        int class = p->b->registers[r].class;
        places[r] = (ptx_operand)(bases[class] + (uint32_t)places[r] * class_bytes[class]);
    }
    free(begin.head);
    free(begin.next);
    free(end.head);
    free(end.next);
    return at;
}

static void put(ptx_operand *operand, const ptx_operand *places)
{
    if (*operand >= 0 && !(*operand & 1))
        *operand = places[*operand / 4];
}

uint32_t ptx_registers_place(ptx_builder *b, ptx_function *f, uint32_t at)
{
    placing p = { .b = b, .f = f };
    size_t registers = (size_t)b->register_count;
    ptx_module *m = b->module;
    find_blocks(&p);
    p.words = registers / 64 + 1;
    uint64_t *bits = calloc(3 * p.words * (size_t)p.block_count, sizeof *bits);
    p.in = bits;
    p.use = bits + p.words * (size_t)p.block_count;
    p.def = bits + 2 * p.words * (size_t)p.block_count;
    p.first = malloc((registers + 1) * sizeof *p.first);
    p.last = calloc(registers + 1, sizeof *p.last);
    memset(p.first, 0xff, (registers + 1) * sizeof *p.first);
    find_ranges(&p);
    if (f->back >= 0) { /* the lanes' ways back: from the call to the end */
        widen(&p, f->back / 4, f->first);
        widen(&p, f->back / 4, f->end - 1);
    }
    ptx_operand *places = calloc(registers + 1, sizeof *places);
    at = place(&p, at, places);

    for (uint32_t i = f->first; i < f->end; i++) {
        ptx_insn *insn = &m->insns[i];
        ptx_operand *own[] = { &insn->guard, &insn->d, &insn->e, &insn->a, &insn->b, &insn->c };
        for (int k = 0; k < 6; k++)
            put(own[k], places);
    }
    for (uint32_t i = b->operands_placed; i < m->operand_count; i++)
        put(&m->operands[i], places);
    b->operands_placed = m->operand_count;
    put(&f->back, places);
    for (uint32_t i = f->first; i < f->end; i++) {
        if (m->insns[i].code == PTX_RETURN)
            m->insns[i].a = f->back;
    }
    f->register_bytes = at;
    free(places);
    free(p.first);
    free(p.last);
    free(bits);
    free(p.blocks);
    free(p.block_of);
    return at;
}
