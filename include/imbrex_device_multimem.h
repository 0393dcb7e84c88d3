/* imbrex_device_multimem.h - stores to all ranks of a node and sums over them in one instruction,
 * NVLink's multicast.  There if IMBREXD_MULTIMEM is defined before imbrex_device.h is included, and
 * used if the team has such an address; else, and on CPUs, they are loops over the ranks.  None
 * orders anything: notify or a barrier comes after stores, a wait before sums.
 */
#ifndef IMBREX_DEVICE_MULTIMEM_H
#define IMBREX_DEVICE_MULTIMEM_H

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define IMBREXD_HAS_MULTIMEM 1
#endif

/* In all pieces of the node at once, where they have `at`; NULL: the team has no such address. */
IMBREXD_FN void *imbrexd_multimem_at(const imbrexd_team *team, const void *at)
{
    char *base = team->multicast;
    return base ? base + ((const char *)at - team->base[team->rank]) : NULL;
}

/* Rank number i of the node's. */
IMBREXD_FN void *imbrexd_node_peer(const imbrexd_team *team, int i, const void *at)
{
    return imbrexd_peer(team, team->rank - team->node_rank + i, at);
}

/* ---- stores: *at = value on all ranks of the node -------------------------------------------- */

IMBREXD_FN void imbrexd_multimem_store_u64(const imbrexd_team *team, uint64_t *at, uint64_t value)
{
#ifdef IMBREXD_HAS_MULTIMEM
    if (team->multicast) {
        asm volatile("multimem.st.relaxed.sys.global.u64 [%0], %1;"
                     :
                     : "l"(imbrexd_multimem_at(team, at)), "l"(value)
                     : "memory");
        return;
    }
#endif
    for (int i = 0; i < team->node_size; i++)
        imbrexd_store_relaxed((uint64_t *)imbrexd_node_peer(team, i, at), value);
}

/* value[4]; at is 16-byte aligned. */
IMBREXD_FN void imbrexd_multimem_store_f32x4(const imbrexd_team *team, float *at,
                                             const float *value)
{
#ifdef IMBREXD_HAS_MULTIMEM
    if (team->multicast) {
        asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(imbrexd_multimem_at(team, at)), "f"(value[0]), "f"(value[1]),
                       "f"(value[2]), "f"(value[3])
                     : "memory");
        return;
    }
#endif
    for (int i = 0; i < team->node_size; i++) {
        float *there = (float *)imbrexd_node_peer(team, i, at);
        for (int j = 0; j < 4; j++)
            there[j] = value[j];
    }
}

/* ---- sums of *at over the node's ranks: in rank order, unless the switch adds ---------------- */

IMBREXD_FN float imbrexd_multimem_add_f32(const imbrexd_team *team, const float *at)
{
    float sum = 0;
#ifdef IMBREXD_HAS_MULTIMEM
    if (team->multicast) {
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];"
                     : "=f"(sum)
                     : "l"(imbrexd_multimem_at(team, at))
                     : "memory");
        return sum;
    }
#endif
    for (int i = 0; i < team->node_size; i++)
        sum += *(const float *)imbrexd_node_peer(team, i, at);
    return sum;
}

/* sum[4]; at is 16-byte aligned. */
IMBREXD_FN void imbrexd_multimem_add_f32x4(const imbrexd_team *team, const float *at, float *sum)
{
#ifdef IMBREXD_HAS_MULTIMEM
    if (team->multicast) {
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
                     : "l"(imbrexd_multimem_at(team, at))
                     : "memory");
        return;
    }
#endif
    for (int j = 0; j < 4; j++) {
        sum[j] = 0;
        for (int i = 0; i < team->node_size; i++)
            sum[j] += ((const float *)imbrexd_node_peer(team, i, at))[j];
    }
}

IMBREXD_FN float imbrexd_float_of_bf16(uint32_t bits)
{
    float value;
    bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To the nearest, ties to even. */
IMBREXD_FN uint32_t imbrexd_bf16_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return bits >> 16 | 64;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* Two bf16 in one word, added in float32 and rounded once. */
IMBREXD_FN uint32_t imbrexd_multimem_add_bf16x2(const imbrexd_team *team, const uint32_t *at)
{
#ifdef IMBREXD_HAS_MULTIMEM
    if (team->multicast) {
        uint32_t sums;
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.bf16x2 %0, [%1];"
                     : "=r"(sums)
                     : "l"(imbrexd_multimem_at(team, at))
                     : "memory");
        return sums;
    }
#endif
    float low = 0, high = 0;
    for (int i = 0; i < team->node_size; i++) {
        uint32_t two = *(const uint32_t *)imbrexd_node_peer(team, i, at);
        low += imbrexd_float_of_bf16(two & 0xffff);
        high += imbrexd_float_of_bf16(two >> 16);
    }
    return imbrexd_bf16_of_float(low) | imbrexd_bf16_of_float(high) << 16;
}

#endif /* IMBREX_DEVICE_MULTIMEM_H */
