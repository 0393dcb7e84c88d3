/* ptx_lanes.c - instructions that go by lanes: special registers, parts of registers, what lanes
 * tell each other, conversions and comparisons that are not frequent. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "fake_driver.h"
#include "ptx_lanes.h"
#include "ptx_text.h"
#include "ptx_value.h"

/* ---- larger ones ----------------------------------------------------------------------------- */

static u64 now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000u + (u64)now.tv_nsec;
}

u64 ptx_lanes_special(const ptx_warp *w, int which, int lane)
{
    const ptx_block *block = w->block;
    const ptx_launch *launch = block->run->launch;
    u32 bit = 1u << lane;
    switch (which) {
    case PTX_TID_X:
        return (u64)(w->index * PTX_LANES + lane);
    case PTX_ONE:
        return 1;
    case PTX_NTID_X:
        return (u64)launch->threads;
    case PTX_CTAID_X:
        return (u64)block->index;
    case PTX_NCTAID_X:
        return (u64)launch->blocks;
    case PTX_LANEID:
        return (u64)lane;
    case PTX_WARPID:
        return (u64)w->index;
    case PTX_CLUSTERID_X:
        return (u64)(block->index / launch->cluster);
    case PTX_NCLUSTERID_X:
        return (u64)(launch->blocks / launch->cluster);
    case PTX_CLUSTER_RANK:
        return (u64)block->rank;
    case PTX_CLUSTER_SIZE:
        return (u64)launch->cluster;
    case PTX_SMID:
        return (u64)block->index;
    case PTX_NSMID:
        return (u64)launch->blocks;
    case PTX_GLOBALTIMER:
        return now_ns() - FAKE_CLOCK_BEHIND_NS;
    case PTX_CLOCK:
        return now_ns() * 2;
    case PTX_LANEMASK_EQ:
        return bit;
    case PTX_LANEMASK_LT:
        return bit - 1;
    case PTX_LANEMASK_LE:
        return bit | (bit - 1);
    case PTX_LANEMASK_GT:
        return ~(bit | (bit - 1));
    case PTX_LANEMASK_GE:
        return ~(bit - 1);
    case PTX_DYNAMIC_SHARED:
        return launch->shared_bytes;
    case PTX_TOTAL_SHARED:
        return block->run->shared_size;
    default:
        return 0;
    }
}

void ptx_lanes_put(ptx_warp *w, ptx_operand to, int lane, int bytes, u64 value)
{
    if (bytes == 8)
        ((u64 *)(void *)ptx_place(w, to))[lane] = value;
    else
        ((u32 *)(void *)ptx_place(w, to))[lane] = bytes == 2 ? (u32)value & 0xffff : (u32)value;
}

static u64 get(const ptx_warp *w, ptx_operand from, int lane, int bytes)
{
    return bytes == 8 ? ptx_64(w, from, lane) : ptx_32(w, from, lane);
}

void ptx_lanes_pack(ptx_warp *w, const ptx_insn *insn, uint32_t active, bool unpack)
{
    const ptx_operand *list = w->block->run->module->operands + insn->list;
    int bytes = insn->bytes, whole = bytes * insn->list_count;
    int lane_bytes = whole < 8 ? 4 : whole;
    ptx_operand one = unpack ? insn->a : insn->d;
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        unsigned char *at = ptx_place(w, one) + l * lane_bytes, value[16] = { 0 };
        if (unpack)
            memcpy(value, at, (size_t)lane_bytes);
        for (int i = 0; i < insn->list_count; i++) {
            u64 part = unpack ? 0 : get(w, list[i], l, bytes);
            if (unpack) {
                memcpy(&part, value + i * bytes, (size_t)bytes);
                ptx_lanes_put(w, list[i], l, bytes, part);
            } else {
                memcpy(value + i * bytes, &part, (size_t)bytes);
            }
        }
        if (!unpack)
            memcpy(at, value, (size_t)lane_bytes);
    }
}

void ptx_lanes_shuffle(ptx_warp *w, const ptx_insn *insn, uint32_t active)
{
    u32 from[PTX_LANES], bits = 0;
    memcpy(from, ptx_place(w, insn->a), sizeof from);
    u32 *to = (u32 *)(void *)ptx_place(w, insn->d);
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        u32 by = ptx_32(w, insn->b, l), clamp = ptx_32(w, insn->c, l);
        u32 segment = clamp >> 8 & 31, most = (u32)l & segment;
        most |= clamp & 31 & ~segment;
        u32 lane = (u32)l, least_lane = lane & segment, source;
        bool there;
        by &= 31;
        if (insn->code == PTX_SHUFFLE_UP) {
            source = lane - by;
            there = (s32)source >= (s32)most;
        } else if (insn->code == PTX_SHUFFLE_DOWN) {
            source = lane + by;
            there = source <= most;
        } else if (insn->code == PTX_SHUFFLE_XOR) {
            source = lane ^ by;
            there = source <= most;
        } else {
            source = least_lane | (by & ~segment);
            there = source <= most;
        }
        source = there ? source : lane;
        to[l] = from[source & 31];
        bits |= (u32)there << l;
    }
    if (insn->e >= 0) {
        u32 *p = (u32 *)(void *)ptx_place(w, insn->e);
        *p = (*p & ~active) | bits;
    }
}

void ptx_lanes_match(ptx_warp *w, const ptx_insn *insn, uint32_t active)
{
    int bytes = insn->code == PTX_MATCH_ANY_64 ? 8 : 4;
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        u32 same = 0;
        for (uint32_t k = active; k; k &= k - 1) {
            int o = __builtin_ctz(k);
            same |= (u32)(get(w, insn->a, o, bytes) == get(w, insn->a, l, bytes)) << o;
        }
        ptx_lanes_put(w, insn->d, l, 4, same);
    }
}

void ptx_lanes_reduce(ptx_warp *w, const ptx_insn *insn, uint32_t active)
{
    int first = __builtin_ctz(active);
    u32 sum = ptx_32(w, insn->a, first);
    bool is_signed = insn->kind == PTX_SIGNED;
    for (uint32_t m = active & (active - 1); m; m &= m - 1) {
        u32 x = ptx_32(w, insn->a, __builtin_ctz(m));
        bool less = is_signed ? (s32)x < (s32)sum : x < sum;
        sum = insn->sub == PTX_ADD   ? sum + x
              : insn->sub == PTX_MIN ? (less ? x : sum)
              : insn->sub == PTX_MAX ? (less ? sum : x)
              : insn->sub == PTX_AND ? sum & x
              : insn->sub == PTX_OR  ? sum | x
                                     : sum ^ x;
    }
    for (uint32_t m = active; m; m &= m - 1)
        ptx_lanes_put(w, insn->d, __builtin_ctz(m), 4, sum);
}

/* cvt of those that are not frequent. */
void ptx_lanes_convert(ptx_warp *w, const ptx_insn *insn, uint32_t active)
{
    int to_width = (int)(insn->imm & 255), from_width = (int)(insn->imm >> 8);
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        u64 bits = get(w, insn->a, l, from_width), value = 0;
        float f;
        double x;
        memcpy(&f, &bits, 4);
        memcpy(&x, &bits, 8);
        u64 integer = extended(bits, insn->kind, insn->kind == PTX_FLOAT ? 8 : insn->bytes);
        switch (insn->code) {
        case PTX_CVT_F32_INTEGER:
            f = insn->kind == PTX_SIGNED ? (float)(s64)integer : (float)integer;
            memcpy(&value, &f, 4);
            break;
        case PTX_CVT_F64_INTEGER:
            x = insn->kind == PTX_SIGNED ? (double)(s64)integer : (double)integer;
            memcpy(&value, &x, 8);
            break;
        case PTX_CVT_INTEGER_F32:
        case PTX_CVT_INTEGER_F64:
            value = to_integer(insn->code == PTX_CVT_INTEGER_F32 ? f : x, insn->sub, insn->to_kind,
                               insn->to_bytes);
            break;
        default: /* f32 to f32: to whole numbers, or between 0 and 1 */
            f = insn->releases ? (f > 0 ? fminf(f, 1) : 0) : (float)rounded(f, insn->sub);
            memcpy(&value, &f, 4);
        }
        ptx_lanes_put(w, insn->d, l, to_width, value);
    }
}

void ptx_lanes_convert_integers(ptx_warp *w, const ptx_insn *insn, uint32_t active)
{
    int to_width = (int)(insn->imm & 255), from_width = (int)(insn->imm >> 8);
    for (uint32_t m = active; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        u64 x = extended(get(w, insn->a, l, from_width), insn->kind, insn->bytes);
        ptx_lanes_put(w, insn->d, l, to_width, extended(x, insn->to_kind, insn->to_bytes));
    }
}

bool ptx_lanes_compare(double a, double b, int how)
{
    bool ordered = a == a && b == b;
    switch (how) {
    case PTX_EQ:
        return a == b;
    case PTX_NE:
        return ordered && a != b;
    case PTX_LT:
        return a < b;
    case PTX_LE:
        return a <= b;
    case PTX_GT:
        return a > b;
    case PTX_GE:
        return a >= b;
    case PTX_NUM:
        return ordered;
    case PTX_NAN:
        return !ordered;
    case PTX_EQU:
        return !ordered || a == b;
    case PTX_NEU:
        return !ordered || a != b;
    case PTX_LTU:
        return !ordered || a < b;
    case PTX_LEU:
        return !ordered || a <= b;
    case PTX_GTU:
        return !ordered || a > b;
    default:
        return !ordered || a >= b;
    }
}

double ptx_lanes_number(const ptx_warp *w, const ptx_insn *insn, ptx_operand from, int l)
{
    double x;
    float f;
    switch (insn->code) {
    case PTX_SETP_F64:
        memcpy(&x, ptx_place(w, from) + 8 * l, 8);
        return x;
    case PTX_SETP_F32:
        memcpy(&f, ptx_place(w, from) + 4 * l, 4);
        return f;
    case PTX_SETP_F16:
        return ptx_f16_to_f32(ptx_32(w, from, l));
    default:
        return ptx_bf16_to_f32(ptx_32(w, from, l));
    }
}

void ptx_lanes_set(ptx_warp *w, const ptx_insn *insn, uint32_t active, u32 bits)
{
    u32 with = insn->kind ? *(const u32 *)(void *)ptx_place(w, insn->c) : 0, other = ~bits;
    with = insn->to_kind ? ~with : with;
    if (insn->kind == 1)
        bits &= with, other &= with;
    else if (insn->kind == 2)
        bits |= with, other |= with;
    else if (insn->kind == 3)
        bits ^= with, other ^= with;
    u32 *d = (u32 *)(void *)ptx_place(w, insn->d);
    *d = (*d & ~active) | (bits & active);
    if (insn->e >= 0) {
        u32 *e = (u32 *)(void *)ptx_place(w, insn->e);
        *e = (*e & ~active) | (other & active);
    }
}
