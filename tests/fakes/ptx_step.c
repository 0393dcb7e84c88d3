/* ptx_step.c - what instructions do to the registers of lanes that stand at the same one.  An
 * instruction is looked at once for all of them. */
#include <math.h>

#include "ptx_lanes.h"
#include "ptx_text.h"
#include "ptx_value.h"

/* Wider vectors where the processor has them; a sanitizer starts too late for this. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#ifdef __clang__ /* which warns where it cannot, as without optimisation */
#define INDEPENDENT
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define EACH(...)                                           \
    do {                                                    \
        if (active == PTX_EVERY) {                          \
            INDEPENDENT for (int l = 0; l < PTX_LANES; l++) \
            {                                               \
                __VA_ARGS__;                                \
            }                                               \
        } else {                                            \
            for (uint32_t m = active; m; m &= m - 1) {      \
                int l = __builtin_ctz(m);                   \
                __VA_ARGS__;                                \
            }                                               \
        }                                                   \
    } while (0)

#define AT(type, operand) ((type *)(void *)(base[(operand)&1] + ((operand) & ~1)))
#define A                 a[l]
#define B                 b[l]
#define C                 c[l]

/* result type, source type */
#define CASE_1(code, R, T, value)    \
    case PTX_##code: {               \
        R *d = AT(R, insn->d);       \
        const T *a = AT(T, insn->a); \
        EACH(d[l] = (R)(value));     \
    } break;
#define CASE_2(code, R, T, U, value) \
    case PTX_##code: {               \
        R *d = AT(R, insn->d);       \
        const T *a = AT(T, insn->a); \
        const U *b = AT(U, insn->b); \
        EACH(d[l] = (R)(value));     \
    } break;
#define CASE_3(code, R, T, U, V, value) \
    case PTX_##code: {                  \
        R *d = AT(R, insn->d);          \
        const T *a = AT(T, insn->a);    \
        const U *b = AT(U, insn->b);    \
        const V *c = AT(V, insn->c);    \
        EACH(d[l] = (R)(value));        \
    } break;
#define CASE_BITS(code, value)                                 \
    case PTX_##code: {                                         \
        uint32_t *d = AT(uint32_t, insn->d);                   \
        uint32_t a = *AT(uint32_t, insn->a);                   \
        uint32_t b = insn->b < 0 ? 0 : *AT(uint32_t, insn->b); \
        (void)b;                                               \
        *d = (*d & ~active) | ((value)&active);                \
    } break;

/* ---- comparisons ----------------------------------------------------------------------------- */

#define COMPARE_AS(T, operator)                           \
    do {                                                  \
        const T *a = AT(T, insn->a), *b = AT(T, insn->b); \
        EACH(bits |= a[l] operator b[l] ? 1u << l : 0);   \
    } while (0)
#define COMPARE(T)         \
    switch (insn->sub) {   \
    case PTX_EQ:           \
        COMPARE_AS(T, ==); \
        break;             \
    case PTX_NE:           \
        COMPARE_AS(T, !=); \
        break;             \
    case PTX_LT:           \
        COMPARE_AS(T, <);  \
        break;             \
    case PTX_LE:           \
        COMPARE_AS(T, <=); \
        break;             \
    case PTX_GT:           \
        COMPARE_AS(T, >);  \
        break;             \
    default:               \
        COMPARE_AS(T, >=); \
    }

/* ---- steps ----------------------------------------------------------------------------------- */

void ptx_set_pc(ptx_warp *w, uint32_t lanes, uint32_t pc)
{
    for (uint32_t m = lanes; m; m &= m - 1)
        w->pc[__builtin_ctz(m)] = pc;
}

/* Whether all active lanes of a warp take part, at once. */
static bool is_joint(int code)
{
    return (code >= PTX_WARP_SYNC && code <= PTX_CLUSTER_WAIT && code != PTX_ACTIVE_MASK) ||
           code >= PTX_MMA;
}

/* The lanes that a joint instruction waits for. */
static uint32_t members(const ptx_warp *w, const ptx_insn *insn, int lane)
{
    const ptx_operand *list = w->block->run->module->operands + insn->list;
    switch (insn->code) {
    case PTX_WARP_SYNC:
    case PTX_ELECT:
        return ptx_32(w, insn->a, lane);
    case PTX_SHUFFLE_UP:
    case PTX_SHUFFLE_DOWN:
    case PTX_SHUFFLE_XOR:
    case PTX_SHUFFLE_INDEX:
        return ptx_32(w, list[0], lane);
    case PTX_VOTE_ALL:
    case PTX_VOTE_ANY:
    case PTX_VOTE_UNI:
    case PTX_VOTE_BALLOT:
    case PTX_MATCH_ANY_32:
    case PTX_MATCH_ANY_64:
    case PTX_REDUX:
        return ptx_32(w, insn->b, lane);
    default:
        return PTX_EVERY;
    }
}

WIDE int ptx_step(ptx_warp *w, uint32_t lanes, uint32_t pc, uint32_t stop, bool others, int most)
{
    ptx_runner *run = w->block->run;
    const ptx_insn *insns = run->module->insns;
    unsigned char *const base[2] = { w->registers, run->module->constants };
    int steps = 0;
    for (; steps < most && pc != stop; steps++) {
        const ptx_insn *insn = &insns[pc];
        uint32_t active = lanes;
        if (insn->guard >= 0) {
            uint32_t guard = *AT(uint32_t, insn->guard);
            active &= insn->unless ? ~guard : guard;
            if (!active) {
                pc++;
                continue;
            }
        }
        if (is_joint(insn->code)) {
            if (active != lanes) {
                ptx_set_pc(w, lanes & ~active, pc + 1);
                lanes = active;
                others = true;
            }
            uint32_t wanted = members(w, insn, __builtin_ctz(active));
            bool all = active == w->live && !(active & ~wanted);
            if (!all)
                active = lanes = ptx_gather(w, active, pc, wanted);
            if (!active)
                return steps + 1;
            if (all && insn->code == PTX_WARP_SYNC) {
                pc++;
                continue;
            }
        }
        switch ((ptx_code)insn->code) {
#include "ptx_arithmetic.h"
        case PTX_BFI_32: {
            u32 *d = AT(u32, insn->d);
            const u32 *a = AT(u32, insn->a), *b = AT(u32, insn->b), *c = AT(u32, insn->c);
            const u32 *n = AT(u32, run->module->operands[insn->list]);
            EACH(d[l] = (u32)insert(A, B, C, n[l], 32));
        } break;
        case PTX_BFI_64: {
            u64 *d = AT(u64, insn->d);
            const u64 *a = AT(u64, insn->a), *b = AT(u64, insn->b);
            const u32 *c = AT(u32, insn->c), *n = AT(u32, run->module->operands[insn->list]);
            EACH(d[l] = insert(A, B, C, n[l], 64));
        } break;
            CASE_BITS(MOV_P, a)
        case PTX_SELP_32: {
            u32 *d = AT(u32, insn->d), p = *AT(u32, insn->c);
            const u32 *a = AT(u32, insn->a), *b = AT(u32, insn->b);
            EACH(d[l] = p & 1u << l ? A : B);
        } break;
        case PTX_SELP_64: {
            u64 *d = AT(u64, insn->d);
            u32 p = *AT(u32, insn->c);
            const u64 *a = AT(u64, insn->a), *b = AT(u64, insn->b);
            EACH(d[l] = p & 1u << l ? A : B);
        } break;
        case PTX_MOV_SPECIAL:
            for (uint32_t m = active; m; m &= m - 1) {
                int l = __builtin_ctz(m);
                ptx_lanes_put(w, insn->d, l, insn->bytes, ptx_lanes_special(w, insn->sub, l));
            }
            break;
        case PTX_MOV_SHARED:
            for (uint32_t m = active; m; m &= m - 1)
                ptx_lanes_put(w, insn->d, __builtin_ctz(m), insn->bytes,
                              ptx_own_base(w->block) + (u64)insn->imm);
            break;
        case PTX_PACK:
            ptx_lanes_pack(w, insn, active, false);
            break;
        case PTX_UNPACK:
            ptx_lanes_pack(w, insn, active, true);
            break;
        case PTX_MOV_128:
            for (uint32_t m = active; m; m &= m - 1) {
                int l = __builtin_ctz(m);
                memmove(ptx_place(w, insn->d) + 16 * l, ptx_place(w, insn->a) + 16 * l, 16);
            }
            break;
        case PTX_SETP_S16:
        case PTX_SETP_U16: {
            u32 bits = 0;
            const u32 *a = AT(u32, insn->a), *b = AT(u32, insn->b);
            bool is_signed = insn->code == PTX_SETP_S16;
            EACH(bits |= (u32)ptx_lanes_compare(is_signed ? (int16_t)A : (int)A,
                                                is_signed ? (int16_t)B : (int)B, insn->sub)
                         << l);
            ptx_lanes_set(w, insn, active, bits);
        } break;
        case PTX_SETP_S32: {
            u32 bits = 0;
            COMPARE(s32)
            ptx_lanes_set(w, insn, active, bits);
        } break;
        case PTX_SETP_U32: {
            u32 bits = 0;
            COMPARE(u32)
            ptx_lanes_set(w, insn, active, bits);
        } break;
        case PTX_SETP_S64: {
            u32 bits = 0;
            COMPARE(s64)
            ptx_lanes_set(w, insn, active, bits);
        } break;
        case PTX_SETP_U64: {
            u32 bits = 0;
            COMPARE(u64)
            ptx_lanes_set(w, insn, active, bits);
        } break;
        case PTX_SETP_F32:
        case PTX_SETP_F64:
        case PTX_SETP_F16:
        case PTX_SETP_BF16: {
            u32 bits = 0;
            EACH(bits |= (u32)ptx_lanes_compare(ptx_lanes_number(w, insn, insn->a, l),
                                                ptx_lanes_number(w, insn, insn->b, l), insn->sub)
                         << l);
            ptx_lanes_set(w, insn, active, bits);
        } break;
        case PTX_CVT_INTEGERS:
            if (insn->imm == (4 | 8 << 8) && insn->to_bytes == 4) {
                u32 *d = AT(u32, insn->d);
                const u64 *a = AT(u64, insn->a);
                EACH(d[l] = (u32)A);
            } else if (insn->imm == (8 | 4 << 8) && insn->bytes == 4 && insn->to_bytes == 8) {
                u64 *d = AT(u64, insn->d);
                const s32 *a = AT(s32, insn->a);
                if (insn->kind == PTX_SIGNED)
                    EACH(d[l] = (u64)(s64)A);
                else
                    EACH(d[l] = (u32)A);
            } else {
                ptx_lanes_convert_integers(w, insn, active);
            }
            break;
        case PTX_CVT_F32_INTEGER:
        case PTX_CVT_F64_INTEGER:
        case PTX_CVT_INTEGER_F32:
        case PTX_CVT_INTEGER_F64:
        case PTX_CVT_F32_F32:
            ptx_lanes_convert(w, insn, active);
            break;
        case PTX_CVT_TF32_F32: {
            ptx_to to = { .type = PTX_TF32, .rounding = PTX_RNA };
            u32 *d = AT(u32, insn->d);
            const float *a = AT(float, insn->a);
            EACH(d[l] = ptx_narrow(&to, A));
        } break;
        case PTX_IS_SHARED:
        case PTX_IS_GLOBAL: {
            u32 bits = 0;
            const u64 *a = AT(u64, insn->a);
            u64 wanted = insn->code == PTX_IS_SHARED ? PTX_GENERIC_SHARED : 0;
            EACH(bits |= (u32)((A & PTX_GENERIC_SPACE) == wanted) << l);
            u32 *d = AT(u32, insn->d);
            *d = (*d & ~active) | bits;
        } break;
        case PTX_LOAD:
            ptx_load(w, insn, pc, active);
            break;
        case PTX_STORE:
            run->moved++;
            ptx_store(w, insn, pc, active);
            break;
        case PTX_ATOMIC:
            run->moved++;
            ptx_atomically(w, insn, pc, active);
            break;
        case PTX_FENCE:
            PTX_FENCE_OF(__ATOMIC_SEQ_CST);
            break;
        case PTX_PREFETCH:
        case PTX_NOTHING:
            break;
        case PTX_SLEEP:
            w->yielded |= lanes;
            ptx_set_pc(w, lanes, pc + 1);
            return steps + 1;
        case PTX_BRANCH: {
            u32 target = (u32)insn->imm;
            if (active != lanes) {
                ptx_set_pc(w, active, target);
                ptx_set_pc(w, lanes & ~active, pc + 1);
                return steps + 1;
            }
            if (others) {
                ptx_set_pc(w, lanes, target);
                return steps + 1;
            }
            pc = target;
            continue;
        }
        case PTX_CALL: {
            u32 *back = AT(u32, insn->d);
            EACH(back[l] = pc + 1);
            ptx_set_pc(w, active, (u32)insn->imm);
            ptx_set_pc(w, lanes & ~active, pc + 1);
            return steps + 1;
        }
        case PTX_RETURN: {
            const u32 *back = AT(u32, insn->a);
            EACH(w->pc[l] = back[l]);
            ptx_set_pc(w, lanes & ~active, pc + 1);
            return steps + 1;
        }
        case PTX_EXIT:
            ptx_set_pc(w, lanes & ~active, pc + 1);
            w->live &= ~active;
            run->moved++;
            ptx_ended(w);
            return steps + 1;
        case PTX_TRAP:
            ptx_fault(w, __builtin_ctz(active), pc, "the kernel traps");
            return steps + 1;
        case PTX_WARP_SYNC: /* lanes may have come at different ones */
            for (uint32_t m = active; m; m &= m - 1)
                w->pc[__builtin_ctz(m)]++;
            return steps + 1;
        case PTX_SHUFFLE_UP:
        case PTX_SHUFFLE_DOWN:
        case PTX_SHUFFLE_XOR:
        case PTX_SHUFFLE_INDEX:
            ptx_lanes_shuffle(w, insn, active);
            break;
        case PTX_VOTE_ALL:
        case PTX_VOTE_ANY:
        case PTX_VOTE_UNI:
        case PTX_VOTE_BALLOT: {
            u32 yes = *AT(u32, insn->a) & active, *d = AT(u32, insn->d);
            bool over = insn->code == PTX_VOTE_ALL   ? yes == active
                        : insn->code == PTX_VOTE_ANY ? yes != 0
                                                     : yes == 0 || yes == active;
            if (insn->code == PTX_VOTE_BALLOT)
                EACH(d[l] = yes);
            else
                *d = (*d & ~active) | (over ? active : 0);
        } break;
        case PTX_MATCH_ANY_32:
        case PTX_MATCH_ANY_64:
            ptx_lanes_match(w, insn, active);
            break;
        case PTX_REDUX:
            ptx_lanes_reduce(w, insn, active);
            break;
        case PTX_ACTIVE_MASK: {
            u32 *d = AT(u32, insn->d);
            EACH(d[l] = active);
        } break;
        case PTX_ELECT: {
            u32 *d = AT(u32, insn->d), *e = AT(u32, insn->e);
            u32 first = (u32)__builtin_ctz(active);
            EACH(d[l] = first);
            *e = (*e & ~active) | 1u << first;
        } break;
        case PTX_BARRIER:
        case PTX_BARRIER_ARRIVE:
        case PTX_BARRIER_RED:
            run->moved++;
            ptx_meet(w, insn, pc, active);
            return steps + 1;
        case PTX_CLUSTER_ARRIVE:
            run->moved++;
            ptx_cluster_arrive(w, active);
            break;
        case PTX_CLUSTER_WAIT:
            if (!ptx_cluster_over(w)) {
                ptx_set_pc(w, lanes, pc);
                w->yielded |= lanes;
                return steps + 1;
            }
            break;
        case PTX_COPY_ASYNC:
        case PTX_COPY_COMMIT:
        case PTX_COPY_WAIT:
        case PTX_COPY_ARRIVE:
        case PTX_BULK_LOAD:
        case PTX_BULK_STORE:
        case PTX_BULK_PASS:
        case PTX_BULK_COMMIT:
        case PTX_BULK_WAIT:
        case PTX_TENSOR_LOAD:
        case PTX_TENSOR_STORE:
        case PTX_TENSOR_PREFETCH:
            if (!ptx_copies(w, insn, pc, active)) {
                ptx_set_pc(w, lanes, pc);
                w->yielded |= lanes;
                return steps + 1;
            }
            break;
        case PTX_STORE_ASYNC:
        case PTX_MBARRIER_INIT:
        case PTX_MBARRIER_END:
        case PTX_MBARRIER_ARRIVE:
        case PTX_MBARRIER_EXPECT:
        case PTX_MBARRIER_TRY:
        case PTX_MBARRIER_TRY_PARITY:
            if (!ptx_barriers(w, insn, pc, active)) { /* some phase goes on: they do, later */
                ptx_set_pc(w, lanes, pc + 1);
                w->yielded |= lanes;
                return steps + 1;
            }
            break;
        case PTX_MMA:
        case PTX_LOAD_MATRIX:
        case PTX_STORE_MATRIX:
        case PTX_MOVE_MATRIX:
        case PTX_WGMMA:
        case PTX_WGMMA_FENCE:
        case PTX_WGMMA_COMMIT:
        case PTX_WGMMA_WAIT:
            run->moved++;
            if (!ptx_matrices(w, insn, pc))
                return steps + 1;
            break;
        default: {
            char line[160];
            ptx_fault(w, __builtin_ctz(active), pc, "nobody has taught me this instruction: %s",
                      ptx_module_line(run->module, insn->line, line));
            return steps + 1;
        }
        }
        if (run->failed)
            return steps + 1;
        pc++;
    }
    ptx_set_pc(w, lanes, pc);
    return steps;
}
