/* ptx_mma.c - products of one warp, and matrices of 8 x 8 between registers and shared memory. */
#include "ptx_inside.h"

/* Words along k in a fragment's row, elements of k, and columns of b. */
enum { WORDS = 8, K_MOST = 32, COLUMNS = 8 };

/* What the machine adds up at once. */
typedef float row_of_sums __attribute__((vector_size(COLUMNS * sizeof(float))));

/* Rows of a, or columns of b, as the fragments lay them: lane 4 g + t has word t of row g, and what
 * follows in further registers is 8 rows on, then 4 words on.  to: row behind row. */
static void widen(ptx_type type, const ptx_register *from, int rows, int words, float *to)
{
    uint32_t packed[16 * WORDS];
    for (int i = 0; i < words / 4; i++) {
        for (int row = 0; row < rows; row++) {
            const ptx_register *held = &from[i * (rows / 8) + row / 8];
            for (int t = 0; t < 4; t++)
                packed[row * words + i * 4 + t] = ptx_get(held, row % 8 * 4 + t);
        }
    }
    ptx_widen_row(type, packed, rows * words * 32 / ptx_bits(type), to);
}

bool ptx_mma(int k, ptx_type a_type, ptx_type b_type, const ptx_register *d, const ptx_register *a,
             const ptx_register *b, const ptx_register c[4], ptx_why *why)
{
    if (!ptx_types_meet(a_type, b_type))
        return ptx_refuse(why, "mma: a and b are of types that no product takes together");
    int words = k * ptx_bits(a_type) / 32;
    if (words * 32 != k * ptx_bits(a_type) || (words != 4 && words != 8))
        return ptx_refuse(why, "mma: there is no m16n8k%d of %d bits", k, ptx_bits(a_type));
    float rows[16 * K_MOST], columns[COLUMNS * K_MOST];
    row_of_sums turned[K_MOST], sums[16];
    widen(a_type, a, 16, words, rows);
    widen(b_type, b, 8, words, columns);
    for (int j = 0; j < k; j++)
        for (int n = 0; n < COLUMNS; n++)
            turned[j][n] = columns[n * k + j];
    for (int i = 0; i < 4; i++) /* column 2 t, 2 t + 1, then the same of row g + 8 */
        ptx_get_sums(&c[i], 0, (float *)&sums[i / 2 * 8] + i % 2, COLUMNS);
    for (int m = 0; m < 16; m++) {
        row_of_sums row = sums[m];
        for (int j = 0; j < k; j++)
            row += rows[m * k + j] * turned[j];
        sums[m] = row;
    }
    for (int i = 0; i < 4; i++)
        ptx_set_sums(&d[i], 0, (float *)&sums[i / 2 * 8] + i % 2, COLUMNS);
    return true;
}

/* ---- matrices -------------------------------------------------------------------------------- */

typedef uint16_t matrix[8][8];

/* Lane 4 r + p has elements 2 p and 2 p + 1 of row r, or of column r. */
static void to_lanes(matrix from, bool trans, const ptx_register *to)
{
    for (int lane = 0; lane < 32; lane++) {
        int r = lane / 4, p = lane % 4 * 2;
        uint32_t low = trans ? from[p][r] : from[r][p];
        uint32_t high = trans ? from[p + 1][r] : from[r][p + 1];
        ptx_set(to, lane, high << 16 | low);
    }
}

static void from_lanes(const ptx_register *from, bool trans, matrix to)
{
    for (int lane = 0; lane < 32; lane++) {
        int r = lane / 4, p = lane % 4 * 2;
        uint32_t both = ptx_get(from, lane);
        *(trans ? &to[p][r] : &to[r][p]) = (uint16_t)both;
        *(trans ? &to[p + 1][r] : &to[r][p + 1]) = (uint16_t)(both >> 16);
    }
}

/* Where the rows are. */
static bool find_rows(const char *what, int count, const ptx_shared *shared,
                      const uint32_t address[32], unsigned char *rows[32], ptx_why *why)
{
    if (count != 1 && count != 2 && count != 4)
        return ptx_refuse(why, "%s: no form takes %d matrices", what, count);
    for (int i = 0; i < 8 * count; i++) {
        rows[i] = ptx_shared_at(shared, address[i], 16, 16, what, why);
        if (!rows[i])
            return false;
    }
    return true;
}

bool ptx_ldmatrix(int count, bool trans, const ptx_register *to, const ptx_shared *shared,
                  const uint32_t address[32], ptx_why *why)
{
    unsigned char *rows[32];
    if (!find_rows("ldmatrix", count, shared, address, rows, why))
        return false;
    for (int i = 0; i < count; i++) {
        matrix m;
        for (int r = 0; r < 8; r++)
            memcpy(m[r], rows[8 * i + r], sizeof m[r]);
        to_lanes(m, trans, &to[i]);
    }
    return true;
}

bool ptx_stmatrix(int count, bool trans, const ptx_shared *shared, const uint32_t address[32],
                  const ptx_register *from, ptx_why *why)
{
    unsigned char *rows[32];
    if (!find_rows("stmatrix", count, shared, address, rows, why))
        return false;
    for (int i = 0; i < 8 * count; i++)
        for (int k = 0; k < i; k++)
            if (rows[i] == rows[k])
                return ptx_refuse(why, "stmatrix: lanes %d and %d both write at 0x%x", k, i,
                                  (unsigned)address[i]);
    for (int i = 0; i < count; i++) {
        matrix m;
        from_lanes(&from[i], trans, m);
        for (int r = 0; r < 8; r++)
            memcpy(rows[8 * i + r], m[r], sizeof m[r]);
    }
    return true;
}

void ptx_movmatrix(ptx_register to, ptx_register from)
{
    matrix m;
    from_lanes(&from, false, m);
    to_lanes(m, true, &to);
}
