/* ptx_memory.c - where addresses lead, and what goes there and comes from there.  Global memory is
 * the host's own; everything else has its bounds looked at. */
#include <string.h>

#include "ptx_run.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- addresses ------------------------------------------------------------------------------- */

uint32_t ptx_own_base(const ptx_block *block)
{
    return ((uint32_t)block->rank << PTX_RANK_SHIFT) + PTX_SHARED_BASE;
}

ptx_shared ptx_block_shared(ptx_block *block)
{
    return (ptx_shared){ block->shared, PTX_SHARED_BASE, block->run->shared_size };
}

ptx_block *ptx_shared_block(ptx_block *block, uint64_t address, uint32_t *at)
{
    address &= ~PTX_GENERIC_SHARED;
    uint64_t rank = address >> PTX_RANK_SHIFT;
    *at = (uint32_t)address & ((1u << PTX_RANK_SHIFT) - 1);
    return rank < (uint64_t)block->run->launch->cluster ? block->first + rank : NULL;
}

uint64_t ptx_address(const ptx_warp *w, const ptx_insn *insn, int lane)
{
    if (insn->a >= 0)
        return insn->wide ? ptx_64(w, insn->a, lane) + (uint64_t)insn->imm
                          : ptx_32(w, insn->a, lane) + (uint32_t)insn->imm;
    bool shared = insn->space == PTX_SHARED || insn->space == PTX_CLUSTER;
    return (uint64_t)insn->imm + (shared ? ptx_own_base(w->block) : 0);
}

/* Of instructions with several: a register, what is added, and whether it has 64 bits. */
uint64_t ptx_listed_address(const ptx_warp *w, const ptx_insn *insn, int which, int lane)
{
    const ptx_operand *at = w->block->run->module->operands + insn->list + 3 * which;
    uint64_t offset = ptx_64(w, at[1], lane);
    return ptx_32(w, at[2], lane) ? ptx_64(w, at[0], lane) + offset
                                  : ptx_32(w, at[0], lane) + (uint32_t)offset;
}

static unsigned char *in_shared(ptx_warp *w, uint64_t address, uint32_t bytes)
{
    uint32_t at;
    ptx_block *block = ptx_shared_block(w->block, address, &at);
    uint32_t size = w->block->run->shared_size;
    if (!block || at < PTX_SHARED_BASE || at - PTX_SHARED_BASE > size ||
        bytes > size - (at - PTX_SHARED_BASE))
        return NULL;
    return block->shared + (at - PTX_SHARED_BASE);
}

static unsigned char *in_local(ptx_warp *w, int lane, uint64_t address, uint32_t bytes)
{
    uint32_t size = w->block->run->module->local_bytes;
    if (address > size || bytes > size - address)
        return NULL;
    return w->local + (size_t)lane * size + address;
}

/* NULL: nothing of that space is there. */
static unsigned char *look(ptx_warp *w, int space, int lane, uint64_t address, uint32_t bytes)
{
    const ptx_launch *launch = w->block->run->launch;
    if (space == PTX_GENERIC && address & PTX_GENERIC_SPACE) {
        space = (address & PTX_GENERIC_SPACE) == PTX_GENERIC_SHARED ? PTX_CLUSTER : PTX_LOCAL;
        address &= ~PTX_GENERIC_SPACE;
    }
    switch (space) {
    case PTX_SHARED:
        if (address >> PTX_RANK_SHIFT != (uint64_t)w->block->rank)
            return NULL;
        return in_shared(w, address, bytes);
    case PTX_CLUSTER:
        return in_shared(w, address, bytes);
    case PTX_LOCAL:
        return in_local(w, lane, address, bytes);
    case PTX_PARAM:
        if (address > launch->function->param_bytes ||
            bytes > launch->function->param_bytes - address)
            return NULL;
        return (unsigned char *)(uintptr_t)launch->params + address;
    default:
        return address < 65536 || address >> 47 ? NULL : (unsigned char *)(uintptr_t)address;
    }
}

bool ptx_find(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t active, uint32_t bytes,
              unsigned char *at[PTX_LANES])
{
    static const char *const names[] = { "generic", "global",     "shared", "the cluster's shared",
                                         "local",   "parameters'" };
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        uint64_t address = ptx_address(w, insn, l);
        at[l] = look(w, insn->space, l, address, bytes);
        if (!at[l] || address % bytes) {
            ptx_fault(w, l, pc, "%u bytes at %#llx are %s %s memory", bytes,
                      (unsigned long long)address, at[l] ? "not aligned in" : "outside",
                      names[insn->space]);
            return false;
        }
    }
    return true;
}

/* ---- loads and stores ------------------------------------------------------------------------ */

/* Lines of 16 bytes arrive whole. */
static void copy_16(void *to, const void *from)
{
#ifdef __SSE2__
    _mm_store_si128(to, _mm_load_si128(from));
#else
    uint64_t both[2];
    both[0] = __atomic_load_n((const uint64_t *)from, __ATOMIC_RELAXED);
    both[1] = __atomic_load_n((const uint64_t *)from + 1, __ATOMIC_RELAXED);
    __atomic_store_n((uint64_t *)to, both[0], __ATOMIC_RELAXED);
    __atomic_store_n((uint64_t *)to + 1, both[1], __ATOMIC_RELAXED);
#endif
}

static void read_memory(void *to, const unsigned char *from, uint32_t bytes)
{
    const void *at = from;
    switch (bytes) {
    case 1:
        *(uint8_t *)to = __atomic_load_n((const uint8_t *)at, __ATOMIC_RELAXED);
        break;
    case 2:
        *(uint16_t *)to = __atomic_load_n((const uint16_t *)at, __ATOMIC_RELAXED);
        break;
    case 4:
        *(uint32_t *)to = __atomic_load_n((const uint32_t *)at, __ATOMIC_RELAXED);
        break;
    case 8:
        *(uint64_t *)to = __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
        break;
    default:
        for (uint32_t i = 0; i < bytes; i += 16)
            copy_16((unsigned char *)to + i, from + i);
    }
}

static void write_memory(unsigned char *to, const void *from, uint32_t bytes)
{
    void *at = to;
    switch (bytes) {
    case 1:
        __atomic_store_n((uint8_t *)at, *(const uint8_t *)from, __ATOMIC_RELAXED);
        break;
    case 2:
        __atomic_store_n((uint16_t *)at, *(const uint16_t *)from, __ATOMIC_RELAXED);
        break;
    case 4:
        __atomic_store_n((uint32_t *)at, *(const uint32_t *)from, __ATOMIC_RELAXED);
        break;
    case 8:
        __atomic_store_n((uint64_t *)at, *(const uint64_t *)from, __ATOMIC_RELAXED);
        break;
    default:
        for (uint32_t i = 0; i < bytes; i += 16)
            copy_16(to + i, (const unsigned char *)from + i);
    }
}

static uint64_t extended(uint64_t x, const ptx_insn *insn)
{
    int unused = 64 - 8 * insn->bytes;
    return insn->kind == PTX_SIGNED ? (uint64_t)((int64_t)(x << unused) >> unused) : x;
}

/* Elements of less than 16 bytes into registers of to_bytes, which may be wider. */
static void spread(const ptx_insn *insn, unsigned char *to, int lane, const unsigned char *line)
{
    uint64_t x = 0;
    memcpy(&x, line, insn->bytes);
    x = extended(x, insn);
    if (insn->to_bytes == 8)
        ((uint64_t *)(void *)to)[lane] = x;
    else
        ((uint32_t *)(void *)to)[lane] = insn->to_bytes == 2 ? (uint16_t)x : (uint32_t)x;
}

void ptx_load(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t active)
{
    const ptx_operand *list = w->block->run->module->operands + insn->list;
    uint32_t count = insn->list_count, bytes = insn->bytes * count;
    unsigned char *at[PTX_LANES], *to[8];
    if (count > 8 || !ptx_find(w, insn, pc, active, bytes, at))
        return;
    for (uint32_t i = 0; i < count; i++)
        to[i] = ptx_place(w, list[i]);
    /* The last one first, and stores the other way round: a line of 128 bytes is whole if its last
     * unit is there. */
    for (uint32_t m = active; m;) {
        int l = 31 - __builtin_clz(m);
        m &= ~(1u << l);
        _Alignas(16) unsigned char line[32];
        read_memory(line, at[l], bytes);
        if (insn->bytes == 16)
            memcpy(to[0] + 16 * l, line, 16);
        else if (insn->bytes == 4 && insn->to_bytes == 4)
            for (uint32_t i = 0; i < count; i++)
                memcpy(to[i] + 4 * l, line + 4 * i, 4);
        else
            for (uint32_t i = 0; i < count; i++)
                spread(insn, to[i], l, line + i * insn->bytes);
    }
    if (insn->acquires)
        PTX_FENCE_OF(__ATOMIC_ACQUIRE);
}

void ptx_store(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t active)
{
    const ptx_operand *list = w->block->run->module->operands + insn->list;
    uint32_t count = insn->list_count, bytes = insn->bytes * count;
    uint32_t lane_bytes = insn->to_bytes < 4 ? 4 : insn->to_bytes;
    unsigned char *at[PTX_LANES], *from[8];
    if (count > 8 || !ptx_find(w, insn, pc, active, bytes, at))
        return;
    if (insn->releases)
        PTX_FENCE_OF(__ATOMIC_RELEASE);
    for (uint32_t i = 0; i < count; i++)
        from[i] = ptx_place(w, list[i]);
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        _Alignas(16) unsigned char line[32];
        if (insn->bytes == 4)
            for (uint32_t i = 0; i < count; i++)
                memcpy(line + 4 * i, from[i] + lane_bytes * (uint32_t)l, 4);
        else
            for (uint32_t i = 0; i < count; i++)
                memcpy(line + i * insn->bytes, from[i] + lane_bytes * (uint32_t)l, insn->bytes);
        write_memory(at[l], line, bytes);
    }
}

/* ---- atomics --------------------------------------------------------------------------------- */

static float as_float(uint64_t x)
{
    float f;
    uint32_t bits = (uint32_t)x;
    memcpy(&f, &bits, 4);
    return f;
}

static uint64_t combined(const ptx_insn *insn, uint64_t old, uint64_t b, uint64_t c)
{
    int64_t signed_old = (int64_t)old, signed_b = (int64_t)b;
    bool is_signed = insn->kind == PTX_SIGNED;
    if (insn->bytes == 4 && is_signed) {
        signed_old = (int32_t)old;
        signed_b = (int32_t)b;
    }
    bool less = is_signed ? signed_b < signed_old : b < old;
    switch (insn->sub) {
    case PTX_ADD:
        if (insn->kind == PTX_FLOAT && insn->bytes == 4) {
            float sum = as_float(old) + as_float(b);
            uint32_t bits;
            memcpy(&bits, &sum, 4);
            return bits;
        }
        if (insn->kind == PTX_FLOAT) {
            double x, y;
            memcpy(&x, &old, 8);
            memcpy(&y, &b, 8);
            x += y;
            memcpy(&old, &x, 8);
            return old;
        }
        return old + b;
    case PTX_MIN:
        return less ? b : old;
    case PTX_MAX:
        return less ? old : b;
    case PTX_INC:
        return old >= b ? 0 : old + 1;
    case PTX_DEC:
        return old == 0 || old > b ? b : old - 1;
    case PTX_CAS:
        return old == b ? c : old;
    case PTX_AND:
        return old & b;
    case PTX_OR:
        return old | b;
    case PTX_XOR:
        return old ^ b;
    default:
        return b;
    }
}

void ptx_atomically(ptx_warp *w, const ptx_insn *insn, uint32_t pc, uint32_t active)
{
    unsigned char *at[PTX_LANES];
    if (!ptx_find(w, insn, pc, active, insn->bytes, at))
        return;
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        bool wide = insn->bytes == 8;
        void *word = at[l];
        uint64_t b = wide ? ptx_64(w, insn->b, l) : ptx_32(w, insn->b, l), c = 0, old;
        if (insn->c >= 0)
            c = wide ? ptx_64(w, insn->c, l) : ptx_32(w, insn->c, l);
        if (wide) {
            uint64_t was = __atomic_load_n((uint64_t *)word, __ATOMIC_RELAXED);
            while (!__atomic_compare_exchange_n((uint64_t *)word, &was, combined(insn, was, b, c),
                                                false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
                ;
            old = was;
        } else {
            uint32_t was = __atomic_load_n((uint32_t *)word, __ATOMIC_RELAXED);
            while (!__atomic_compare_exchange_n((uint32_t *)word, &was,
                                                (uint32_t)combined(insn, was, b, c), false,
                                                __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
                ;
            old = was;
        }
        if (insn->d < 0)
            continue;
        if (wide)
            ((uint64_t *)(void *)ptx_place(w, insn->d))[l] = old;
        else
            ((uint32_t *)(void *)ptx_place(w, insn->d))[l] = (uint32_t)old;
    }
}
