/* sm80_ptx.cuh - the instructions that the GEMM for sm_80 and newer is made of: asynchronous copies
 * into shared memory, loads of fragments, products of one warp.
 *
 * Shared addresses are 32-bit numbers of the .shared window throughout.
 *
 * A fragment of a, 16 rows x 32 bytes of k, is four registers; one of b, 8 columns x 32 bytes of k,
 * two; one of c, 16 x 8 in float32, four.  Lane 4 g + t has c[g][2t], c[g][2t + 1], and the same of
 * row g + 8.
 */
#ifndef IMX_SM80_PTX_CUH
#define IMX_SM80_PTX_CUH

#include "../fragment.cuh"
#include "../vector.cuh"
#include "sm80_shape.cuh"

/* ---- copies ---------------------------------------------------------------------------------- */

/* All copies since the last call become one group, which may be empty. */
IMX_FN void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* Until at most IMX_STAGES - 2 groups of this thread are under way. */
IMX_FN void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(IMX_STAGES - 2) : "memory");
}

IMX_FN uint4 shared_load(uint32_t from)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

IMX_FN void shared_store_word(uint32_t to, uint32_t word)
{
    asm volatile("st.shared.u32 [%0], %1;" : : "r"(to), "r"(word) : "memory");
}

/* ---- fragments ------------------------------------------------------------------------------- */

/* The first two matrices of fragment.cuh's four; lanes from 16 on give no address. */
IMX_FN void load_two_matrices(uint32_t (&to)[2], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(from)
                 : "memory");
}

IMX_FN uint32_t load_word(uint32_t from)
{
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

/* ---- products -------------------------------------------------------------------------------- */

#if defined(IMX_EIGHT)
#define IMX_MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#elif IMX_IS_BF16
#define IMX_MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#elif IMX_IS_F16
#define IMX_MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define IMX_MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#endif

/* c += a b */
IMX_FN void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm(IMX_MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* x as the sum of two numbers of 11 bits, the first rounded to nearest; what is left out is below
 * 2^-21 |x|.  Of infinity and NaN, low is a NaN. */
IMX_FN void split(uint32_t x, uint32_t &high, uint32_t &low)
{
    const uint32_t kept = 0xffffe000;
    high = (x + 0x1000) & kept;
    low = __float_as_uint(__uint_as_float(x) - __uint_as_float(high)) & kept;
}

#endif /* IMX_SM80_PTX_CUH */
