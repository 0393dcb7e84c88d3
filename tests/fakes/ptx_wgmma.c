/* ptx_wgmma.c - products of a warpgroup; descriptors lead to operands in shared memory. */
#include "ptx_inside.h"

/* Rows of a product, its columns at most, k at most, and columns that are added up together. */
enum { ROWS = 64, COLUMNS = 256, K_MOST = 32, TOGETHER = 32, PITCH = COLUMNS + 16 };

/* ---- descriptors --------------------------------------------------------------------------------
 *
 * Memory is units of 16 bytes.  Of rows along k ("K-major") 8 rows of one unit each are a core; of
 * rows along m or n 8 elements of k, one unit each. */

typedef struct place {
    uint32_t start, leading, stride; /* bytes */
    uint32_t span;                   /* bytes of a row that the swizzle mixes; 16: none */
} place;

static bool decode(uint64_t bits, const char *name, place *p, ptx_why *why)
{
    static const uint32_t spans[] = { 16, 128, 64, 32 };
    *p = (place){ .start = (bits & 0x3fff) << 4,
                  .leading = (bits >> 16 & 0x3fff) << 4,
                  .stride = (bits >> 32 & 0x3fff) << 4,
                  .span = spans[bits >> 62] };
    if (bits >> 49 & 7)
        return ptx_refuse(why, "wgmma: the descriptor of %s has a base offset", name);
    if (bits & 0x3ff1c000c000c000)
        return ptx_refuse(why, "wgmma: the descriptor of %s, 0x%016llx, is none", name,
                          (unsigned long long)bits);
    return true;
}

/* What is swizzled: the pattern is 8 rows of span bytes. */
static bool patterns_fit(const place *p, const char *name, bool mn, uint32_t row_bytes,
                         ptx_why *why)
{
    uint32_t pattern = 8 * p->span, within = p->start % p->span;
    bool many = mn && row_bytes > p->span; /* atoms side by side, leading bytes apart */
    if (p->span == 16)
        return true;
    if (p->start % pattern >= p->span || p->stride % pattern || (many && p->leading % pattern))
        return ptx_refuse(why,
                          "wgmma: %s at 0x%x, stride %u, leading %u: swizzled memory repeats "
                          "every %u bytes",
                          name, (unsigned)p->start, (unsigned)p->stride, (unsigned)p->leading,
                          (unsigned)pattern);
    if (within && within + row_bytes > p->span)
        return ptx_refuse(why, "wgmma: %s at 0x%x crosses the %u bytes of its swizzle", name,
                          (unsigned)p->start, (unsigned)p->span);
    return true;
}

/* Row `row` along the other axis, unit `unit` along its own, before swizzling.  row_mn: rows lie
 * along m or n, and are of k. */
static uint32_t linear(const place *p, bool mn, uint32_t row, uint32_t unit)
{
    uint32_t units = p->span / 16, core = row / 8, line = row % 8;
    if (p->span > 16 && mn)
        return unit / units * p->leading + unit % units * 16 + line * p->span + core * p->stride;
    if (p->span > 16)
        return unit * 16 + line * p->span + core * p->stride;
    return line * 16 +
           (mn ? unit * p->stride + core * p->leading : unit * p->leading + core * p->stride);
}

static const unsigned char *unit_at(const place *p, bool mn, uint32_t row, uint32_t unit,
                                    const char *name, const ptx_shared *shared, ptx_why *why)
{
    uint32_t at = p->start + linear(p, mn, row, unit);
    at ^= at >> 3 & (p->span - 16);
    return ptx_shared_at(shared, at, 16, 16, name, why);
}

/* An operand of `many` rows (a) or columns (b) as floats: element i of m or n, j of k, at
 * to[i * step + j * k_step]. */
static bool read_operand(const ptx_wgmma *w, const char *name, int many, float *to, int step,
                         int k_step, const ptx_shared *shared, ptx_why *why)
{
    bool is_a = *name == 'a', mn = is_a ? w->a_mn : w->b_mn;
    ptx_type type = is_a ? w->a_type : w->b_type;
    int per_unit = 128 / ptx_bits(type), k = 2 * per_unit;
    int rows = mn ? k : many, units = mn ? many / per_unit : 2;
    int row_step = mn ? k_step : step, unit_step = mn ? step : k_step;
    place p;
    if (!decode(is_a ? w->a : w->b, name, &p, why) ||
        !patterns_fit(&p, name, mn, (uint32_t)units * 16, why))
        return false;
    for (int row = 0; row < rows; row++) {
        for (int unit = 0; unit < units; unit++) {
            float wide[16];
            uint32_t packed[4];
            const unsigned char *from =
                unit_at(&p, mn, (uint32_t)row, (uint32_t)unit, name, shared, why);
            if (!from)
                return false;
            memcpy(packed, from, sizeof packed);
            ptx_widen_row(type, packed, per_unit, wide);
            float *out = to + row * row_step + unit * per_unit * unit_step;
            for (int i = 0; i < per_unit; i++)
                out[i * unit_step] = wide[i];
        }
    }
    return true;
}

/* As a product of a warp has it, 16 rows a warp. */
static void read_registers(const ptx_wgmma *w, float to[ROWS][K_MOST])
{
    for (int row = 0; row < ROWS; row++) {
        uint32_t packed[8];
        for (int i = 0; i < 8; i++)
            packed[i] = ptx_get(&w->a_registers[i / 4 * 2 + row % 16 / 8],
                                row / 16 * 32 + row % 8 * 4 + i % 4);
        ptx_widen_row(w->a_type, packed, 8 * 32 / ptx_bits(w->a_type), to[row]);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Where a warp's register begins: a warp has 16 rows, four registers 8 columns of them. */
static float *first_of(float c[ROWS][PITCH], int r, int warp)
{
    return &c[warp * 16 + r / 2 % 2 * 8][r / 4 * 8 + r % 2];
}

static void add(float c[ROWS][PITCH], float a[ROWS][K_MOST], float b[K_MOST][PITCH], int n, int k)
{
    for (int at = 0; at < n; at += TOGETHER) {
        for (int row = 0; row < ROWS; row++) {
            float sums[TOGETHER];
            memcpy(sums, &c[row][at], sizeof sums);
            for (int j = 0; j < k; j++)
                for (int i = 0; i < TOGETHER; i++)
                    sums[i] += a[row][j] * b[j][at + i];
            memcpy(&c[row][at], sums, sizeof sums);
        }
    }
}

bool ptx_wgmma_check(const ptx_wgmma *w, ptx_why *why)
{
    place p;
    if (w->n < 8 || w->n > COLUMNS || w->n % 8)
        return ptx_refuse(why, "wgmma: there is no m64n%d", w->n);
    if (!ptx_types_meet(w->a_type, w->b_type))
        return ptx_refuse(why, "wgmma: a and b are of types that no product takes together");
    if ((w->a_mn || w->b_mn) && ptx_bits(w->a_type) != 16)
        return ptx_refuse(why, "wgmma: only 16-bit operands may lie along m or n");
    if (w->a_mn && w->a_registers)
        return ptx_refuse(why, "wgmma: a in registers lies one way");
    if ((w->a_sign != 1 && w->a_sign != -1) || (w->b_sign != 1 && w->b_sign != -1))
        return ptx_refuse(why, "wgmma: operands are taken by 1 or -1");
    return (w->a_registers || decode(w->a, "a", &p, why)) && decode(w->b, "b", &p, why);
}

bool ptx_wgmma_perform(const ptx_wgmma *w, const ptx_shared *shared, ptx_why *why)
{
    float a[ROWS][K_MOST], b[K_MOST][PITCH], c[ROWS][PITCH];
    int k = 256 / ptx_bits(w->a_type);
    if (!ptx_wgmma_check(w, why) ||
        (!w->a_registers && !read_operand(w, "a", ROWS, a[0], K_MOST, 1, shared, why)) ||
        !read_operand(w, "b", w->n, b[0], 1, PITCH, shared, why))
        return false;
    if (w->a_registers)
        read_registers(w, a);
    if (w->a_sign != w->b_sign)
        for (int row = 0; row < ROWS; row++)
            for (int j = 0; j < k; j++)
                a[row][j] = -a[row][j];
    for (int j = 0; j < k; j++) /* columns that are added up with others, and kept nowhere */
        for (int i = w->n; i % TOGETHER; i++)
            b[j][i] = 0.0f;
    memset(c, 0, sizeof c);
    for (int r = 0; w->add && r < w->n / 2; r++)
        for (int warp = 0; warp < 4; warp++)
            ptx_get_sums(&w->d[r], warp, first_of(c, r, warp), PITCH);
    add(c, a, b, w->n, k);
    for (int r = 0; r < w->n / 2; r++)
        for (int warp = 0; warp < 4; warp++)
            ptx_set_sums(&w->d[r], warp, first_of(c, r, warp), PITCH);
    return true;
}
