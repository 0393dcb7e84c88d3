/* test_ptx.c - the interpreter of PTX: what instructions give is what C gives, and threads that do
 * not wait for each other, or for a copy, are seen. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ptx.h"

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;

/* ---- values ---------------------------------------------------------------------------------- */

/* name, instruction, where its result is, what C says: of a, b, c with 64, 32 and 16 bits, signed
 * and not, and as f32. */
#define ROWS(ROW)                                                                                 \
    ROW(add_32, "add.s32 %r0, %r1, %r2;", 'r', a + b)                                             \
    ROW(add_64, "add.s64 %rd0, %rd1, %rd2;", 'd', A + B)                                          \
    ROW(sub_16, "sub.s16 %rs0, %rs1, %rs2;", 's', (u16)(ha - hb))                                 \
    ROW(mul_lo, "mul.lo.s32 %r0, %r1, %r2;", 'r', a *b)                                           \
    ROW(mul_wide_s, "mul.wide.s32 %rd0, %r1, %r2;", 'd', (s64)sa *sb)                             \
    ROW(mul_wide_u, "mul.wide.u32 %rd0, %r1, %r2;", 'd', (u64)a *b)                               \
    ROW(mul_wide_16, "mul.wide.u16 %r0, %rs1, %rs2;", 'r', (u32)ha *hb)                           \
    ROW(mul_hi_s, "mul.hi.s32 %r0, %r1, %r2;", 'r', (u32)((s64)sa * sb >> 32))                    \
    ROW(mul_hi_64, "mul.hi.s64 %rd0, %rd1, %rd2;", 'd', (u64)((__int128)sA * sB >> 64))           \
    ROW(mad, "mad.lo.s32 %r0, %r1, %r2, %r3;", 'r', a *b + c)                                     \
    ROW(mad_wide, "mad.wide.s32 %rd0, %r1, %r2, %rd3;", 'd', (u64)((s64)sa * sb) + C)             \
    ROW(div_s, "div.s32 %r0, %r1, %r2;", 'r', sb == 0 ? ~0u : sb == -1 ? 0u - a : (u32)(sa / sb)) \
    ROW(div_u, "div.u64 %rd0, %rd1, %rd2;", 'd', B ? A / B : ~(u64)0)                             \
    ROW(rem_u, "rem.u32 %r0, %r1, %r2;", 'r', b ? a % b : a)                                      \
    ROW(min_s, "min.s64 %rd0, %rd1, %rd2;", 'd', (u64)(sA < sB ? sA : sB))                        \
    ROW(max_u, "max.u32 %r0, %r1, %r2;", 'r', a > b ? a : b)                                      \
    ROW(abs_s, "abs.s32 %r0, %r1;", 'r', sa < 0 ? 0u - a : a)                                     \
    ROW(neg, "neg.s64 %rd0, %rd1;", 'd', 0u - A)                                                  \
    ROW(shl, "shl.b32 %r0, %r1, %r2;", 'r', b < 32 ? a << b : 0)                                  \
    ROW(shl_by, "shl.b64 %rd0, %rd1, 7;", 'd', A << 7)                                            \
    ROW(shr_s, "shr.s32 %r0, %r1, %r2;", 'r', (u32)(sa >> (b < 31 ? b : 31)))                     \
    ROW(shr_u, "shr.u64 %rd0, %rd1, %r2;", 'd', b < 64 ? A >> b : 0)                              \
    ROW(shf, "shf.r.wrap.b32 %r0, %r1, %r2, %r3;", 'r', (u32)(((u64)b << 32 | a) >> (c & 31)))    \
    ROW(shf_l, "shf.l.wrap.b32 %r0, %r1, %r2, %r3;", 'r',                                         \
        (u32)((((u64)b << 32 | a) << (c & 31)) >> 32))                                            \
    ROW(and, "and.b64 %rd0, %rd1, %rd2;", 'd', A &B)                                              \
    ROW(not, "not.b16 %rs0, %rs1;", 's', (u16)~ha)                                                \
    ROW(lop3, "lop3.b32 %r0, %r1, %r2, %r3, 0xca;", 'r', (a & b) | (~a & c))                      \
    ROW(prmt, "prmt.b32 %r0, %r1, %r2, 0x5410;", 'r', (a & 0xffff) | b << 16)                     \
    ROW(bfe, "bfe.u32 %r0, %r1, 5, 9;", 'r', a >> 5 & 511)                                        \
    ROW(bfe_s, "bfe.s32 %r0, %r1, 5, 9;", 'r', (u32)((s32)(a << 18) >> 23))                       \
    ROW(bfi, "bfi.b32 %r0, %r1, %r2, 8, 4;", 'r', (b & ~0xf00u) | (a & 15) << 8)                  \
    ROW(bfi_64, "bfi.b64 %rd0, %rd1, %rd2, 32, 32;", 'd', (B & 0xffffffffu) | A << 32)            \
    ROW(popc, "popc.b32 %r0, %r1;", 'r', (u32)__builtin_popcount(a))                              \
    ROW(clz, "clz.b32 %r0, %r1;", 'r', a ? (u32)__builtin_clz(a) : 32)                            \
    ROW(brev, "brev.b32 %r0, %r1;\nbrev.b32 %r0, %r0;", 'r', a)                                   \
    ROW(selp, "setp.lt.s32 %p1, %r1, %r2;\nselp.b32 %r0, %r1, %r3, %p1;", 'r', sa < sb ? a : c)   \
    ROW(setp, "setp.ge.u64 %p0, %rd1, %rd2;", 'p', A >= B)                                        \
    ROW(setp_and, "setp.ne.s32 %p1, %r1, 0;\nsetp.lt.and.f32 %p0, %f1, %f2, %p1;", 'p',           \
        a != 0 && fa < fb)                                                                        \
    ROW(setp_neu, "setp.neu.f32 %p0, %f1, %f2;", 'p', !(fa == fb))                                \
    ROW(guarded, "setp.gt.s32 %p1, %r1, 5;\nmov.u32 %r0, %r2;\n@%p1 mov.u32 %r0, %r3;", 'r',      \
        sa > 5 ? c : b)                                                                           \
    ROW(pack, "mov.b64 %rd0, {%r1, %r2};", 'd', (u64)b << 32 | a)                                 \
    ROW(unpack, "mov.b64 {%r4, %r0}, %rd1;", 'r', (u32)(A >> 32))                                 \
    ROW(halves, "mov.b32 {%rs4, %rs5}, %r1;\nmov.b32 %r0, {%rs5, %rs4};", 'r', a << 16 | a >> 16) \
    ROW(cvt_s, "cvt.s64.s32 %rd0, %r1;", 'd', (u64)(s64)sa)                                       \
    ROW(cvt_16, "cvt.s32.s16 %r0, %rs1;", 'r', (u32)(s32)(s16)ha)                                 \
    ROW(cvt_8, "cvt.u32.u8 %r0, %r1;", 'r', a & 255)                                              \
    ROW(cvt_down, "cvt.u16.u64 %rs0, %rd1;", 's', (u16)A)                                         \
    ROW(cvt_f, "cvt.rn.f32.s64 %f0, %rd1;", 'f', bits((float)sA))                                 \
    ROW(cvt_i, "cvt.rzi.s32.f32 %r0, %f1;", 'r',                                                  \
        fa != fa         ? 0                                                                      \
        : fa >= 0x1p31f  ? 0x7fffffffu                                                            \
        : fa <= -0x1p31f ? 0x80000000u                                                            \
                         : (u32)(s32)fa)                                                          \
    ROW(floor_f, "cvt.rmi.f32.f32 %f0, %f1;", 'f', bits(floorf(fa)))                              \
    ROW(add_f, "add.f32 %f0, %f1, %f2;", 'f', bits(fa + fb))                                      \
    ROW(fma_f, "fma.rn.f32 %f0, %f1, %f2, %f3;", 'f', bits(fmaf(fa, fb, fc)))                     \
    ROW(div_f, "div.rn.f32 %f0, %f1, %f2;", 'f', bits(fa / fb))                                   \
    ROW(sqrt_f, "sqrt.rn.f32 %f0, %f1;", 'f', bits(sqrtf(fa)))                                    \
    ROW(min_f, "min.f32 %f0, %f1, %f2;", 'f',                                                     \
        bits(fa != fa || fb < fa || (fa == fb && signbit(fb)) ? (fb != fb ? fa : fb) : fa))       \
    ROW(neg_f, "neg.f32 %f0, %f1;", 'f', bits(-fa))                                               \
    ROW(to_bf16, "cvt.rn.bf16.f32 %rs0, %f1;", 's', to_bf16(fa))                                  \
    ROW(of_bf16, "cvt.f32.bf16 %f0, %rs1;", 'f', (u32)ha << 16)                                   \
    ROW(by_f16, "cvt.f32.f16 %f4, %rs1;\ncvt.rn.f16.f32 %rs0, %f4;", 's',                         \
        (ha & 0x7fff) > 0x7c00 ? 0x7fff : ha)                                                     \
    ROW(shared, "st.shared.u32 [%r5], %r1;\nld.shared.u32 %r0, [%r5];", 'r', a)                   \
    ROW(local, "st.local.u64 [room+8], %rd1;\nld.local.u32 %r0, [room+12];", 'r', (u32)(A >> 32)) \
    ROW(swap,                                                                                     \
        "shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;\n"                                               \
        "shfl.sync.bfly.b32 %r0, %r4, 1, 31, -1;",                                                \
        'r', a)

static u32 bits(float x)
{
    u32 all;
    memcpy(&all, &x, 4);
    return all;
}

static float number(u32 all)
{
    float x;
    memcpy(&x, &all, 4);
    return x;
}

/* By the definition: the nearer one of two, or the even one. */
static u16 to_bf16(float x)
{
    u32 low = bits(x) & 0xffff0000u, high = low + 0x10000u;
    if (x != x)
        return 0x7fff;
    u32 rest = bits(x) - low;
    return (u16)((rest > 0x8000 || (rest == 0x8000 && low & 0x10000) ? high : low) >> 16);
}

#define WANT(name, text, where, value)                                      \
    static u64 want_##name(u64 A, u64 B, u64 C)                             \
    {                                                                       \
        u32 a = (u32)A, b = (u32)B, c = (u32)C;                             \
        s32 sa = (s32)a, sb = (s32)b;                                       \
        s64 sA = (s64)A, sB = (s64)B;                                       \
        u16 ha = (u16)A, hb = (u16)B;                                       \
        float fa = number(a), fb = number(b), fc = number(c);               \
        (void)b, (void)c, (void)sa, (void)sb, (void)sA, (void)sB, (void)ha; \
        (void)hb, (void)fa, (void)fb, (void)fc, (void)C;                    \
        return (u64)(value);                                                \
    }
ROWS(WANT)

static const struct {
    const char *name, *text;
    char where;
    u64 (*want)(u64 a, u64 b, u64 c);
} rows[] = {
#define ROW(name, text, where, value) { #name, text, where, want_##name },
    ROWS(ROW)
};

enum { THREADS = 1024 };

static const char head[] = ".version 8.0\n.target sm_90\n.address_size 64\n";
static const char begin[] =
    ".visible .entry k(.param .u64 k_0, .param .u64 k_1)\n{\n"
    ".reg .pred %p<4>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<16>;\n.reg .f32 %f<8>;\n"
    ".reg .b64 %rd<16>;\n.shared .align 16 .b8 own[4096];\n.local .align 8 .b8 room[16];\n"
    "ld.param.u64 %rd4, [k_0];\nld.param.u64 %rd5, [k_1];\nmov.u32 %r6, %tid.x;\n"
    "mul.wide.u32 %rd6, %r6, 24;\nadd.s64 %rd7, %rd4, %rd6;\nld.global.u64 %rd1, [%rd7];\n"
    "ld.global.u64 %rd2, [%rd7+8];\nld.global.u64 %rd3, [%rd7+16];\n"
    "cvt.u32.u64 %r1, %rd1;\ncvt.u32.u64 %r2, %rd2;\ncvt.u32.u64 %r3, %rd3;\n"
    "cvt.u16.u64 %rs1, %rd1;\ncvt.u16.u64 %rs2, %rd2;\nmov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\n"
    "mov.b32 %f3, %r3;\nmov.u32 %r5, own;\nshl.b32 %r7, %r6, 2;\nadd.s32 %r5, %r5, %r7;\n";

static const char *end_of(char where)
{
    switch (where) {
    case 'd':
        return "mov.b64 %rd8, %rd0;\n";
    case 's':
        return "cvt.u64.u16 %rd8, %rs0;\n";
    case 'f':
        return "mov.b32 %r8, %f0;\ncvt.u64.u32 %rd8, %r8;\n";
    case 'p':
        return "selp.u32 %r8, 1, 0, %p0;\ncvt.u64.u32 %rd8, %r8;\n";
    default:
        return "cvt.u64.u32 %rd8, %r0;\n";
    }
}

static const char end[] = "mul.wide.u32 %rd9, %r6, 8;\nadd.s64 %rd10, %rd5, %rd9;\n"
                          "st.global.u64 [%rd10], %rd8;\nret;\n}\n";

/* Runs kernel k of the text on one block; false: why says why not. */
static bool run(const char *text, void *in, void *out, int threads, char why[512])
{
    ptx_module *module = ptx_module_read(text, why);
    if (!module)
        return false;
    _Alignas(64) void *params[8] = { in, out };
    ptx_launch launch = { .module = module,
                          .function = ptx_module_function(module, "k"),
                          .params = params,
                          .blocks = 1,
                          .threads = threads,
                          .cluster = 1 };
    bool ok = ptx_run(&launch, why);
    ptx_module_free(module);
    return ok;
}

static u64 interesting(int i)
{
    static const u64 some[] = { 0,
                                1,
                                2,
                                31,
                                32,
                                0x7f,
                                0x80,
                                0x7fff,
                                0x8000,
                                0x7fffffff,
                                0x80000000,
                                0xffffffff,
                                0x3f800000,
                                0xbfc00000,
                                0x7f800000,
                                0x7fc00001,
                                0x7fffffffffffffff,
                                0x8000000000000000,
                                0xffffffffffffffff,
                                0x3f8000004048f5c3 };
    u64 x = (u64)i * 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    return x % 3 ? some[x / 3 % (sizeof some / sizeof some[0])] : x ^ x >> 32;
}

static void values_are_those_of_c(void **state)
{
    (void)state;
    static u64 in[THREADS][3], out[THREADS];
    for (int i = 0; i < 3 * THREADS; i++)
        in[i / 3][i % 3] = interesting(i);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char text[4096], why[512];
        snprintf(text, sizeof text, "%s%s%s\n%s%s", head, begin, rows[r].text,
                 end_of(rows[r].where), end);
        if (!run(text, in, out, THREADS, why))
            fail_msg("%s: %s", rows[r].name, why);
        for (int i = 0; i < THREADS; i++) {
            u64 want = rows[r].want(in[i][0], in[i][1], in[i][2]);
            bool nans =
                rows[r].where == 'f' && isnan(number((u32)want)) && isnan(number((u32)out[i]));
            if (!nans && want != out[i])
                fail_msg("%s of %#llx, %#llx, %#llx: %#llx, want %#llx", rows[r].name,
                         (unsigned long long)in[i][0], (unsigned long long)in[i][1],
                         (unsigned long long)in[i][2], (unsigned long long)out[i],
                         (unsigned long long)want);
        }
    }
}

/* ---- who does not wait ----------------------------------------------------------------------- */

enum { TRIES = 100 };

/* A kernel in which thread i passes i to thread i ^ `other` through shared memory, `wait` between.
 * How many of so many runs are wrong. */
static int wrong_runs(const char *write, const char *wait, int other, int threads)
{
    static u32 in[THREADS], out[THREADS];
    char text[4096], why[512];
    int wrong = 0;
    for (int i = 0; i < threads; i++)
        in[i] = (u32)i + 1000;
    snprintf(
        text, sizeof text,
        "%s.visible .entry k(.param .u64 k_0, .param .u64 k_1)\n{\n"
        ".reg .pred %%p<4>;\n.reg .b32 %%r<16>;\n.reg .b64 %%rd<16>;\n"
        ".shared .align 16 .b8 own[4096];\n.shared .align 8 .b8 barrier[8];\n"
        "ld.param.u64 %%rd1, [k_0];\nld.param.u64 %%rd2, [k_1];\nmov.u32 %%r1, %%tid.x;\n"
        "mov.u32 %%r2, own;\nshl.b32 %%r3, %%r1, 2;\nadd.s32 %%r4, %%r2, %%r3;\n"
        "cvt.u64.u32 %%rd3, %%r3;\nadd.s64 %%rd4, %%rd1, %%rd3;\nadd.s64 %%rd5, %%rd2, %%rd3;\n"
        "xor.b32 %%r5, %%r3, %d;\nadd.s32 %%r6, %%r2, %%r5;\nmov.u32 %%r10, barrier;\n"
        "mov.u32 %%r12, %d;\n%s\n%s\n"
        "ld.shared.u32 %%r7, [%%r6];\nst.global.u32 [%%rd5], %%r7;\nret;\n}\n",
        head, 4 * other, 4 * threads, write, wait);
    for (int i = 0; i < TRIES; i++) {
        if (!run(text, in, out, threads, why))
            fail_msg("%s", why);
        bool right = true;
        for (int t = 0; t < threads; t++)
            right &= out[t] == (u32)(t ^ other) + 1000;
        wrong += !right;
    }
    return wrong;
}

static const char store[] = "ld.global.u32 %r8, [%rd4];\nst.shared.u32 [%r4], %r8;";

static void a_block_that_does_not_wait_is_seen(void **state)
{
    (void)state;
    assert_int_equal(wrong_runs(store, "bar.sync 0;", 64, 128), 0);
    assert_true(wrong_runs(store, "", 64, 128) > TRIES / 4);
    assert_true(wrong_runs(store, "bar.warp.sync -1;", 64, 128) > TRIES / 4);
}

static void a_warp_that_does_not_wait_is_seen(void **state)
{
    (void)state;
    assert_int_equal(wrong_runs(store, "bar.warp.sync -1;", 1, 32), 0);
    assert_true(wrong_runs(store, "", 1, 32) > 0);
}

static void a_copy_that_is_not_waited_for_is_seen(void **state)
{
    (void)state;
    static const char copy[] = "cp.async.ca.shared.global [%r4], [%rd4], 4;\n"
                               "cp.async.commit_group;";
    assert_int_equal(wrong_runs(copy, "cp.async.wait_group 0;\nbar.sync 0;", 0, 64), 0);
    assert_int_equal(wrong_runs(copy, "bar.sync 0;", 0, 64), TRIES);
    assert_int_equal(wrong_runs(copy, "cp.async.wait_group 1;\nbar.sync 0;", 0, 64), TRIES);
}

static void a_bulk_copy_that_is_not_waited_for_is_seen(void **state)
{
    (void)state;
    static const char copy[] =
        "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $after;\n"
        "mbarrier.init.shared::cta.b64 [%r10], 1;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], %r12;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], %r12, "
        "[%r10];\n$after:\nbar.sync 0;";
    static const char wait[] =
        "{\n.reg .pred p;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%r10], 0;\n@p bra.uni done;\n"
        "bra.uni again;\ndone:\n}";
    assert_int_equal(wrong_runs(copy, wait, 0, 64), 0);
    assert_true(wrong_runs(copy, "", 0, 64) > TRIES / 4);
}

/* ---- what ends a launch ---------------------------------------------------------------------- */

static void refused(const char *text, const char *words)
{
    char whole[2048], why[512] = "";
    static u64 in[THREADS][3], out[THREADS];
    snprintf(whole, sizeof whole, "%s%s%s\nmov.u64 %%rd8, 0;\n%s", head, begin, text, end);
    assert_false(run(whole, in, out, 64, why));
    if (!strstr(why, words))
        fail_msg("no \"%s\" in: %s", words, why);
}

static void mistakes_are_told(void **state)
{
    (void)state;
    refused("ld.shared.u32 %r0, [%r5+4096];", "kernel k, PTX line ");
    refused("ld.shared.u32 %r0, [%r5+4096];",
            "block 0 of 1, thread 0: 4 bytes at 0x1400 are outside");
    refused("ld.shared.u64 %rd0, [%r5+4];", "not aligned in shared memory");
    refused("ld.global.u32 %r0, [%rd1];", "outside global memory");
    refused("ld.local.u32 %r0, [room+16];", "outside local memory");
    refused("frobnicate.u32 %r0, %r1;", "frobnicate.u32 %r0, %r1");
    refused("setp.lt.s32 %p1, %r6, 40;\n@%p1 bra $on;\nbar.sync 0, 96;\n$on:", "never come");
    refused("setp.lt.s32 %p1, %r6, 3;\n@%p1 bra $on;\nshfl.sync.idx.b32 %r0, %r1, 0, 31, 7;\n$on:",
            "without this thread");
    refused("trap;", "traps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_c),
        cmocka_unit_test(a_block_that_does_not_wait_is_seen),
        cmocka_unit_test(a_warp_that_does_not_wait_is_seen),
        cmocka_unit_test(a_copy_that_is_not_waited_for_is_seen),
        cmocka_unit_test(a_bulk_copy_that_is_not_waited_for_is_seen),
        cmocka_unit_test(mistakes_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
