/* sm90_wgmma.cuh - products of a warpgroup on Hopper (wgmma): their order, operands in shared
 * memory, lists of registers and how many of these a warpgroup has; and stmatrix, which brings sums
 * into shared memory.
 *
 * Shared addresses are 32-bit numbers of the .shared window throughout.
 */
#ifndef IMX_SM90_WGMMA_CUH
#define IMX_SM90_WGMMA_CUH

#include "imbrex_device.h"

#define WGMMA_FN static __device__ __forceinline__

#define reg_less(count) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"((int)(count)))
#define reg_more(count) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"((int)(count)))

/* Four 8 x 8 matrices of 16-bit elements, one register each, transposed to the rows that the lanes
 * name: to a lane's place goes a column. */
WGMMA_FN void st_matrix4_turned(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

WGMMA_FN void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

WGMMA_FN void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

#define wgmma_wait(left) asm volatile("wgmma.wait_group.sync.aligned " #left ";" : : : "memory")

/* A tile in shared memory as wgmma sees it: 128-byte swizzle, 8-row atoms of 1024 bytes.  leading
 * is the distance of 64-element atoms across the rows, and counts only for b [k, n]. */
WGMMA_FN uint64_t wgmma_tile(uint32_t address, uint32_t leading_bytes)
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

#define IMX_JOIN(a, b)  IMX_JOIN_(a, b)
#define IMX_JOIN_(a, b) a##b

#endif /* IMX_SM90_WGMMA_CUH */
