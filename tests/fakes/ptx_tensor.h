/* ptx_tensor.h - what PTX's tensor instructions and asynchronous copies do to registers and memory,
 * as the PTX ISA's tables say it: products, matrices between registers and shared memory, tensor
 * maps, barriers in shared memory, narrow numbers.
 *
 * Each function does its work when it is called.  When that is, who waits for it, and which threads
 * take part, is the caller's.  An asynchronous instruction may read and write its operands at any
 * time until it is waited for: whoever wants to find a wait that is missing calls late.
 *
 * What hardware would fault on, or leave undefined, a function refuses: it returns false, with a
 * sentence in why, and what it was to write is written, or in part, or not.  One thread at a time
 * may touch the memory in question.
 */
#ifndef PTX_TENSOR_H
#define PTX_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ptx_why {
    char text[256];
} ptx_why;

/* A register of 32 bits, of every thread of a warp or warpgroup: thread 32 w + l has it at
 * at + w * warp + l * lane, in the host's order of bytes. */
typedef struct ptx_register {
    unsigned char *at;
    size_t lane, warp; /* bytes */
} ptx_register;

/* A block's shared memory: window address base + i is bytes[i].  base counts, since swizzles are of
 * addresses, and is a multiple of 1024; all of size lies below 2^18. */
typedef struct ptx_shared {
    unsigned char *bytes;
    uint32_t base, size;
} ptx_shared;

/* Where so many bytes of global memory are, or NULL if nothing may read (write) them.  A memory
 * that is NULL is the host's own, at the same addresses. */
typedef struct ptx_memory {
    void *(*find)(void *context, uint64_t address, uint64_t bytes, bool writes);
    void *context;
} ptx_memory;

/* ---- narrow numbers (ptx_number.c) ----------------------------------------------------------- */

typedef enum ptx_type { PTX_F16, PTX_BF16, PTX_TF32, PTX_E4M3, PTX_E5M2 } ptx_type;

/* RN: nearest, ties to even.  RNA: ties away from zero.  RZ: towards zero. */
typedef enum ptx_rounding { PTX_RN, PTX_RNA, PTX_RZ } ptx_rounding;

typedef struct ptx_to {
    ptx_type type;
    ptx_rounding rounding;
    bool relu;      /* what is negative becomes +0, NaN stays NaN */
    bool satfinite; /* what is too large becomes the largest number; always so of 8 bits */
} ptx_to;

int ptx_bits(ptx_type type); /* 8, 16 or 32 */

/* cvt: x in the low bits.  NaN is 0x7fff, of 8 bits 0x7f, of tf32 0x7fffffff.  Too large for a type
 * with infinities and without satfinite: infinity, or the largest number if rounded towards zero.
 * Subnormals are numbers, on both sides.  x is a double so that one rounding is all there is: any
 * float is exact in it. */
uint32_t ptx_narrow(const ptx_to *to, double x);

/* Exact.  Bits above the type's are not looked at, nor the low 13 of tf32. */
float ptx_widen(ptx_type type, uint32_t bits);

/* cvt to f16x2, bf16x2, e4m3x2 or e5m2x2: d = high, low as in the instruction's operands a, b. */
uint32_t ptx_narrow_two(const ptx_to *to, double high, double low);

/* ---- a warp's products and matrices (ptx_mma.c) -------------------------------------------------
 *
 * All 32 lanes take part. */

/* mma.sync.aligned.m16n8k{k}.row.col.f32.{a_type}.{b_type}.f32: d = a b + c.
 *
 * k is 8 or 16 for f16 and bf16, 4 or 8 for tf32, 16 or 32 for e4m3 and e5m2 (which mix); a has two
 * registers and b one for the smaller k, four and two for the larger.  d may be c.
 *
 * Products are exact and added to c in f32, one after another by rising k, each sum rounded to
 * nearest.  Hardware adds in another order, keeps a few bits beyond f32 or (8 bits) fewer than f32
 * has, and truncates: what tests may expect to be equal is sums that are exact, for instance of
 * integers below 2^13 for 8 bits and below 2^24 for others, and of the rest that it is near. */
bool ptx_mma(int k, ptx_type a_type, ptx_type b_type, const ptx_register *d, const ptx_register *a,
             const ptx_register *b, const ptx_register c[4], ptx_why *why);

/* ldmatrix.sync.aligned.m8n8.x{count}[.trans].shared.b16.  address[8 i + r]: row r of matrix i,
 * 16-byte aligned; those from 8 count on are not looked at.  count is 1, 2 or 4. */
bool ptx_ldmatrix(int count, bool trans, const ptx_register *to, const ptx_shared *shared,
                  const uint32_t address[32], ptx_why *why);

/* stmatrix, likewise.  Rows that overlap within one instruction are refused. */
bool ptx_stmatrix(int count, bool trans, const ptx_shared *shared, const uint32_t address[32],
                  const ptx_register *from, ptx_why *why);

/* movmatrix.sync.aligned.m8n8.trans.b16; to may be from. */
void ptx_movmatrix(ptx_register to, ptx_register from);

/* ---- a warpgroup's products (ptx_wgmma.c) ---------------------------------------------------- */

/* wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{f16|bf16}, k32 of e4m3 and e5m2 (which mix), and k8
 * of tf32.  d is n / 2 registers.  a in registers is four, else a descriptor. */
typedef struct ptx_wgmma {
    int n; /* 8, 16 ... 256 */
    ptx_type a_type, b_type;
    const ptx_register *d;
    const ptx_register *a_registers; /* or NULL */
    uint64_t a, b;                   /* descriptors: their values when the instruction was issued */
    bool add;                        /* scale-d: d += a b; else d = a b, whatever d was */
    int a_sign, b_sign;              /* imm-scale-a, -b: 1 or -1 */
    bool a_mn, b_mn;                 /* imm-trans-a, -b: rows of a lie along m, of b along n */
} ptx_wgmma;

/* What can be known when the instruction is issued: shape, types, and the descriptors' form. */
bool ptx_wgmma_check(const ptx_wgmma *product, ptx_why *why);

/* The product, of what d, a's registers and shared memory hold now; hardware may do it at any time
 * from the instruction until wgmma.wait_group returns.  Products of one warpgroup are done in
 * order.  Sums as ptx_mma has them.
 *
 * Swizzles are of the window's addresses, as the copy engine's are.  A descriptor is refused if its
 * atoms do not begin where the swizzle's pattern does, which is what a base offset stands for, or
 * if the product would read outside shared memory. */
bool ptx_wgmma_perform(const ptx_wgmma *product, const ptx_shared *shared, ptx_why *why);

/* ---- tensor maps (ptx_map.c) --------------------------------------------------------------------
 *
 * A map is the 128 opaque bytes of a CUtensorMap, which the encoder writes in a form of its own: a
 * pointer to global memory that nothing was encoded in is refused. */

/* cuTensorMapEncodeTiled, with the driver's numbers for dtype, interleave, swizzle, promotion and
 * fill, and what the driver refuses.  Refused besides, since no kernel takes it: interleaving, NaN
 * for what is outside, packed types, steps other than 1, swizzles of units of more than 16 bytes,
 * and boxes with less in a row than the swizzle spans. */
bool ptx_map_encode(void *map, int dtype, uint32_t rank, const void *address, const uint64_t *sizes,
                    const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                    int interleave, int swizzle, int promotion, int fill, ptx_why *why);

/* cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile: the box at x (innermost first) to
 * shared memory at `to`, zeros where it is outside the tensor.  bytes: of the whole box, for
 * ptx_barrier_complete.  With .multicast::cluster once for every block of the mask, at the same
 * offset in its shared memory, and each completes its own barrier. */
bool ptx_map_load(const void *map, uint32_t rank, const int32_t *x, const ptx_memory *memory,
                  const ptx_shared *shared, uint32_t to, uint32_t *bytes, ptx_why *why);

/* cp.async.bulk.tensor.{rank}d.global.shared::cta.tile: nothing is written outside the tensor. */
bool ptx_map_store(const void *map, uint32_t rank, const int32_t *x, const ptx_memory *memory,
                   const ptx_shared *shared, uint32_t from, ptx_why *why);

/* prefetch.tensormap, cp.async.bulk.prefetch.tensor: nothing but that the map is one. */
bool ptx_map_prefetch(const void *map, uint32_t rank, ptx_why *why);

/* ---- copies without a map (ptx_copy.c) ------------------------------------------------------- */

/* cp.async.{ca|cg}.shared.global [to], [from], size, filled: size is 4, 8 or 16 (cg: 16), of which
 * the first `filled` bytes are read and the rest become zeros. */
bool ptx_copy_async(const ptx_shared *shared, uint32_t to, const ptx_memory *memory, uint64_t from,
                    uint32_t size, uint32_t filled, ptx_why *why);

/* cp.async.bulk, each way.  Addresses and bytes are multiples of 16.  The barrier of the first and
 * the last gets bytes by ptx_barrier_complete. */
bool ptx_bulk_load(const ptx_shared *shared, uint32_t to, const ptx_memory *memory, uint64_t from,
                   uint32_t bytes, ptx_why *why);
bool ptx_bulk_store(const ptx_memory *memory, uint64_t to, const ptx_shared *shared, uint32_t from,
                    uint32_t bytes, ptx_why *why);
bool ptx_bulk_pass(const ptx_shared *there, uint32_t to, const ptx_shared *shared, uint32_t from,
                   uint32_t bytes, ptx_why *why);

/* st.async.weak.shared::cluster.mbarrier::complete_tx::bytes[.v2|.v4] of words of 32 bits: stores
 * them and completes their bytes at the barrier, of the same block.  count is 1, 2 or 4. */
bool ptx_store_async(const ptx_shared *there, uint32_t to, const uint32_t *words, int count,
                     uint32_t barrier, ptx_why *why);

/* ---- barriers in shared memory (ptx_barrier.c) --------------------------------------------------
 *
 * An mbarrier's 8 bytes, in a form of its own: memory in which none was made is refused.  address
 * is of the block's window; at a barrier of another block shared is that block's. */

enum { PTX_BARRIER_MOST = (1 << 20) - 1 }; /* arrivals of a phase, and bytes under way */

/* mbarrier.init, .inval.  An init over a barrier that was not invalidated is refused, so that
 * memory of a block that begins must hold none: zeros do. */
bool ptx_barrier_init(const ptx_shared *shared, uint32_t address, uint32_t arrivals, ptx_why *why);
bool ptx_barrier_end(const ptx_shared *shared, uint32_t address, ptx_why *why);

/* mbarrier.arrive[.expect_tx]: bytes more are expected in this phase, then `arrivals` arrive.
 * state, unless NULL, is the instruction's result.  More arrivals than are pending are refused. */
bool ptx_barrier_arrive(const ptx_shared *shared, uint32_t address, uint32_t arrivals,
                        uint32_t bytes, uint64_t *state, ptx_why *why);

/* mbarrier.expect_tx, and complete_tx, which copies do too: it may come before what expects it, as
 * long as an arrival is pending. */
bool ptx_barrier_expect(const ptx_shared *shared, uint32_t address, uint32_t bytes, ptx_why *why);
bool ptx_barrier_complete(const ptx_shared *shared, uint32_t address, uint32_t bytes, ptx_why *why);

/* mbarrier.test_wait[.parity]: whether the phase of that state, or the last one of that parity, is
 * over.  Before the first phase is over that of parity 1 is. */
bool ptx_barrier_over(const ptx_shared *shared, uint32_t address, uint64_t state, bool *over,
                      ptx_why *why);
bool ptx_barrier_parity_over(const ptx_shared *shared, uint32_t address, uint32_t parity,
                             bool *over, ptx_why *why);

/* "phase 3: 1 of 4 arrivals and 8192 bytes to come", for who reports a wait without end. */
void ptx_barrier_describe(const ptx_shared *shared, uint32_t address, ptx_why *why);

#endif /* PTX_TENSOR_H */
