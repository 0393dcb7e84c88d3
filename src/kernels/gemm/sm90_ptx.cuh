/* sm90_ptx.cuh - the Hopper instructions that the GEMM is made of, one function each: barriers in
 * shared memory (mbarrier), the tensor copy engine (TMA), warpgroup products (wgmma), stmatrix.
 *
 * Shared addresses are 32-bit numbers of the .shared window throughout.
 */
#ifndef IMX_SM90_PTX_CUH
#define IMX_SM90_PTX_CUH

#include "../sm90_tma.cuh"

#define IMX_FN static __device__ __forceinline__

/* The lane, worked out where it stands: a volatile read that the compiler does not move. */
IMX_FN int lane_here(void)
{
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* ---- barriers in shared memory -------------------------------------------------------------- */

/* Arrives at the same barrier of block `cta` of the cluster.  Deliberately not .release.cluster:
 * that form costs a full memory barrier a stage, and what it would order, reads by wgmma, is over
 * once the warpgroup has waited for its products. */
IMX_FN void mbar_arrive_at(uint32_t bar, uint32_t cta)
{
    asm volatile("{\n\t.reg .b32 remote;\n\t"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}"
                 :
                 : "r"(bar), "r"(cta)
                 : "memory");
}

/* The same with what it says: what this thread did before comes before what a thread of that block
 * does after mbar_wait_cluster. */
IMX_FN void mbar_release_at(uint32_t bar, uint32_t cta)
{
    asm volatile("{\n\t.reg .b32 remote;\n\t"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n\t}"
                 :
                 : "r"(bar), "r"(cta)
                 : "memory");
}

IMX_FN void mbar_wait_cluster(uint32_t bar, uint32_t parity)
{
    MBAR_WAIT(".acquire.cluster");
}

/* ---- the cluster ---------------------------------------------------------------------------- */

IMX_FN uint32_t cluster_cta(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

IMX_FN void cluster_barrier(void)
{
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" : : : "memory");
}

IMX_FN uint32_t cluster_address(uint32_t shared, uint32_t cta)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(cta));
    return there;
}

/* 16 bytes to a block of the cluster, counted at a barrier of the same block; both by
 * cluster_address. */
IMX_FN void cluster_store(uint32_t to, uint32_t bar, const float *v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
                 " [%0], {%1, %2, %3, %4}, [%5];"
                 :
                 : "r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(bar)
                 : "memory");
}

/* ---- registers ------------------------------------------------------------------------------ */

#define reg_less(count) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"((int)(count)))
#define reg_more(count) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"((int)(count)))

/* Four (two) 8 x 8 matrices of 16-bit elements, one register each, to the rows that the lanes
 * name. */
IMX_FN void st_matrix4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* The same transposed: to a lane's place goes a column. */
IMX_FN void st_matrix4_turned(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

IMX_FN void st_matrix2_turned(uint32_t to, uint32_t a, uint32_t b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 :
                 : "r"(to), "r"(a), "r"(b)
                 : "memory");
}

IMX_FN void st_matrix2(uint32_t to, uint32_t a, uint32_t b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                 :
                 : "r"(to), "r"(a), "r"(b)
                 : "memory");
}

/* 16 bytes of shared memory. */
IMX_FN uint4 ld_shared(uint32_t from)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

IMX_FN uint32_t ld_shared_word(uint32_t from)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

/* low and high rounded to nearest even, side by side. */
IMX_FN uint32_t pack(float low, float high)
{
    uint32_t both;
#ifdef IMX_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}

IMX_FN float unpack(uint16_t element)
{
    float x;
#ifdef IMX_F16
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(element));
#else
    x = __uint_as_float((uint32_t)element << 16);
#endif
    return x;
}

/* ---- warpgroup products --------------------------------------------------------------------- */

/* d[64, N] = or += a[64, 16] * b, of 8 bits a[64, 32]: this warpgroup's accumulators, N / 2 a
 * thread.  N: the tile's columns, of a turned one its rows. */
#ifdef IMX_TURNED
#define IMX_SUMS_N IMX_TILE_M
#else
#define IMX_SUMS_N IMX_TILE_N
#endif
#define IMX_ACC (IMX_SUMS_N / 2)

/* Columns of a product: all of them, or half of the widest ones' of 8 bits, which are added up in
 * registers of their own. */
#if defined(IMX_EIGHT) && !defined(IMX_FAST) && IMX_TILE_N == 256
#define IMX_PRODUCT_N 128
#elif defined(IMX_EIGHT) && !defined(IMX_FAST) && IMX_TILE_N == 224
#define IMX_PRODUCT_N 112
#else
#define IMX_PRODUCT_N IMX_SUMS_N
#endif
#define IMX_PRODUCT_ACC (IMX_PRODUCT_N / 2)

IMX_FN void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

IMX_FN void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

#define wgmma_wait(left) asm volatile("wgmma.wait_group.sync.aligned " #left ";" : : : "memory")

/* A tile in shared memory as wgmma sees it: 128-byte swizzle, 8-row atoms of 1024 bytes.  leading
 * is the distance of 64-element atoms across the rows, and counts only for b [k, n]. */
IMX_FN uint64_t wgmma_tile(uint32_t address, uint32_t leading_bytes)
{
    uint32_t low = (address & 0x3ffff) >> 4 | leading_bytes >> 4 << 16;
    uint32_t high = 1024 >> 4 | 1u << 30;
    return (uint64_t)high << 32 | low;
}

#define IMX_O(i)                                                                                \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define IMX_O16  IMX_O(0)
#define IMX_O32  IMX_O16, IMX_O(8)
#define IMX_O48  IMX_O32, IMX_O(16)
#define IMX_O64  IMX_O48, IMX_O(24)
#define IMX_O80  IMX_O64, IMX_O(32)
#define IMX_O96  IMX_O80, IMX_O(40)
#define IMX_O112 IMX_O96, IMX_O(48)
#define IMX_O128 IMX_O112, IMX_O(56)
#define IMX_O144 IMX_O128, IMX_O(64)
#define IMX_O160 IMX_O144, IMX_O(72)
#define IMX_O176 IMX_O160, IMX_O(80)
#define IMX_O192 IMX_O176, IMX_O(88)
#define IMX_O208 IMX_O192, IMX_O(96)
#define IMX_O224 IMX_O208, IMX_O(104)
#define IMX_O240 IMX_O224, IMX_O(112)
#define IMX_O256 IMX_O240, IMX_O(120)

#define IMX_S16  "%0,%1,%2,%3,%4,%5,%6,%7"
#define IMX_S32  IMX_S16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define IMX_S48  IMX_S32 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define IMX_S64  IMX_S48 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define IMX_S80  IMX_S64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define IMX_S96  IMX_S80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define IMX_S112 IMX_S96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define IMX_S128 IMX_S112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define IMX_S144 IMX_S128 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define IMX_S160 IMX_S144 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define IMX_S176 IMX_S160 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define IMX_S192 IMX_S176 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define IMX_S208 IMX_S192 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define IMX_S224 IMX_S208 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define IMX_S240 IMX_S224 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define IMX_S256 IMX_S240 ",%120,%121,%122,%123,%124,%125,%126,%127"

/* The operands after the accumulators: a, b, whether to add to d. */
#define IMX_I16  "%8, %9, p", "%10"
#define IMX_I32  "%16, %17, p", "%18"
#define IMX_I48  "%24, %25, p", "%26"
#define IMX_I64  "%32, %33, p", "%34"
#define IMX_I80  "%40, %41, p", "%42"
#define IMX_I96  "%48, %49, p", "%50"
#define IMX_I112 "%56, %57, p", "%58"
#define IMX_I128 "%64, %65, p", "%66"
#define IMX_I144 "%72, %73, p", "%74"
#define IMX_I160 "%80, %81, p", "%82"
#define IMX_I176 "%88, %89, p", "%90"
#define IMX_I192 "%96, %97, p", "%98"
#define IMX_I208 "%104, %105, p", "%106"
#define IMX_I224 "%112, %113, p", "%114"
#define IMX_I240 "%120, %121, p", "%122"
#define IMX_I256 "%128, %129, p", "%130"

/* Of turned tiles, also multiples of 8. */
#define IMX_O4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define IMX_O136  IMX_O128, IMX_O4(64)
#define IMX_O152  IMX_O144, IMX_O4(72)
#define IMX_O168  IMX_O160, IMX_O4(80)
#define IMX_O184  IMX_O176, IMX_O4(88)
#define IMX_O200  IMX_O192, IMX_O4(96)
#define IMX_S136  IMX_S128 ",%64,%65,%66,%67"
#define IMX_S152  IMX_S144 ",%72,%73,%74,%75"
#define IMX_S168  IMX_S160 ",%80,%81,%82,%83"
#define IMX_S184  IMX_S176 ",%88,%89,%90,%91"
#define IMX_S200  IMX_S192 ",%96,%97,%98,%99"
#define IMX_I136  "%68, %69, p", "%70"
#define IMX_I152  "%76, %77, p", "%78"
#define IMX_I168  "%84, %85, p", "%86"
#define IMX_I184  "%92, %93, p", "%94"
#define IMX_I200  "%100, %101, p", "%102"

/* Columns of a product, its types, and the signs of a and b, of 16 bits also which way they lie. */
#if defined(IMX_EIGHT)
#if IMX_EIGHT == 4
#define IMX_TYPES "k32.f32.e4m3.e4m3"
#else
#define IMX_TYPES "k32.f32.e5m2.e4m3"
#endif
#define IMX_HOW ", 1, 1"
#elif defined(IMX_F16)
#define IMX_TYPES "k16.f32.f16.f16"
#else
#define IMX_TYPES "k16.f32.bf16.bf16"
#endif
#if defined(IMX_B_KN) && defined(IMX_TURNED)
#define IMX_HOW ", 1, 1, 1, 0"
#elif defined(IMX_B_KN)
#define IMX_HOW ", 1, 1, 0, 1"
#elif !defined(IMX_HOW)
#define IMX_HOW ", 1, 1, 0, 0"
#endif

#define IMX_JOIN(a, b)     IMX_JOIN_(a, b)
#define IMX_JOIN_(a, b)    a##b
#define IMX_WGMMA(n, s, i) IMX_WGMMA_(n, s, i)
#define IMX_WGMMA_(n, s, operands, add)                    \
    "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add ", 0;\n\t" \
    "wgmma.mma_async.sync.aligned.m64n" #n IMX_TYPES " {" s "}, " operands IMX_HOW ";\n\t}"

IMX_FN void wgmma(float (&d)[IMX_PRODUCT_ACC], uint64_t a, uint64_t b, int add)
{
    asm volatile(
        IMX_WGMMA(IMX_PRODUCT_N, IMX_JOIN(IMX_S, IMX_PRODUCT_N), IMX_JOIN(IMX_I, IMX_PRODUCT_N))
        : IMX_JOIN(IMX_O, IMX_PRODUCT_N)
        : "l"(a), "l"(b), "r"(add));
}

#endif /* IMX_SM90_PTX_CUH */
