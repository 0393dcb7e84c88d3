/* sm90_ptx.cuh - the Hopper instructions that the GEMM is made of, one function each: barriers in
 * shared memory (mbarrier), the tensor copy engine (TMA), warpgroup products (wgmma), stmatrix.
 *
 * Shared addresses are 32-bit numbers of the .shared window throughout.
 */
#ifndef IMX_SM90_PTX_CUH
#define IMX_SM90_PTX_CUH

#include "../sm90_tma.cuh"
#include "../sm90_wgmma.cuh"

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

/* Four (two) 8 x 8 matrices of 16-bit elements, one register each, to the rows that the lanes
 * name. */
IMX_FN void st_matrix4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* As st_matrix4_turned (sm90_wgmma.cuh), of two. */
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
