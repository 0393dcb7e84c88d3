/* sm80_load.cuh - from a matrix in global memory into a box of 16-byte units in shared memory, all
 * threads of the block together, asynchronously; what lies beyond the matrix becomes zeros.
 *
 * Without IMX_ALIGNED a unit may begin anywhere: it lies in two aligned windows of 16 bytes.  These
 * are copied as they are, one window more than units in a row, and shifted together later:
 *
 *     matrix     | window         | window         | window         |
 *     units           | unit           | unit           |
 *                shift
 *
 * The rows that a thread loads are a multiple of 16 bytes apart, so all have the same shift.
 */
#ifndef IMX_SM80_LOAD_CUH
#define IMX_SM80_LOAD_CUH

#include "sm80_ptx.cuh"

/* What this thread loads of a matrix next: a unit of several rows, equally far apart. */
typedef struct source {
    const char *at;
    int64_t stride; /* bytes from one row of the matrix to the next */
    int rows;       /* of the matrix, from the unit's row on */
    int left;       /* elements of a row, from the unit on; may be negative */
} source;

/* row, column: of the matrix, at the box's corner; row_units: of a row of the box. */
IMX_FN source source_of(const void *matrix, int64_t rows, int64_t columns, int64_t row,
                        int64_t column, int row_units)
{
    int unit_row = (int)threadIdx.x / row_units, unit = (int)threadIdx.x % row_units;
    source s;
    s.stride = columns * FROM_BYTES;
    s.at = (const char *)matrix + (row + unit_row) * s.stride + column * FROM_BYTES + unit * 16;
    s.rows = (int)(rows - row) - unit_row;
    s.left = (int)(columns - column) - unit * FROM_UNIT;
    return s;
}

/* On to the next stage, where k runs along the rows, or down. */
IMX_FN void step_along(source *s)
{
    s->at += A_ROW;
    s->left -= IMX_TILE_K;
}

#ifdef IMX_B_KN
IMX_FN void step_down(source *s)
{
    s->at += IMX_TILE_K * s->stride;
    s->rows -= IMX_TILE_K;
}
#endif

#ifdef IMX_ALIGNED

/* to: this thread's first unit in the box; to_step: from one of its rows there to the next. */
IMX_FN void copy_box(uint32_t to, int to_step, const source *s, int units, int apart)
{
    const char *from = s->at;
#pragma unroll
    for (int i = 0; i < units; i++) {
        copy_async(to + i * to_step, from, s->left > 0 && i * apart < s->rows ? 16 : 0);
        from += apart * s->stride;
    }
}

#else

IMX_FN int shift_of(const source *s)
{
    return (int)((uintptr_t)s->at & 15);
}

/* Where the window after this thread's first lies in a raw box, which is [rows, row_units] and then
 * the last windows of all rows; and how far away that of its next row is. */
IMX_FN uint32_t second_at(int rows, int row_units)
{
    int row = (int)threadIdx.x / row_units;
    bool last = (int)threadIdx.x % row_units == row_units - 1;
    return last ? (rows * row_units + row) * 16 : threadIdx.x * 16 + 16;
}

IMX_FN int second_step(int apart, int row_units)
{
    bool last = (int)threadIdx.x % row_units == row_units - 1;
    return last ? apart * 16 : apart * row_units * 16;
}

/* The last window of a matrix, which ends inside it: element by element, at once. */
IMX_FN void copy_end(uint32_t to, const char *from, int bytes)
{
    const volatile uint32_t *word = (const volatile uint32_t *)from;
    const volatile uint16_t *half = (const volatile uint16_t *)from;
#pragma unroll 1
    for (int i = 0; i < 4; i++, bytes -= 4) {
        uint32_t x = 0;
        if (bytes >= 4 && FROM_BYTES == 4)
            x = word[i];
        if (bytes >= 2 && FROM_BYTES == 2)
            x = half[2 * i];
        if (bytes >= 4 && FROM_BYTES == 2)
            x |= (uint32_t)half[2 * i + 1] << 16;
        shared_store_word(to + i * 4, x);
    }
}

/* A window that may hold the next row's elements, too.  bytes: of the row from there on; row_left:
 * rows from this one on.  (Copying fewer than 16 bytes would be no way out: that becomes a loop,
 * and still reads 16.) */
IMX_FN void copy_window(uint32_t to, const char *from, int bytes, int row_left)
{
    if (row_left == 1 && bytes > 0 && bytes < 16)
        copy_end(to, from, bytes);
    else
        copy_async(to, from, row_left > 0 && bytes > 0 ? 16 : 0);
}

/* Nothing is read beyond the last 16 bytes that an element of the matrix is in.  Before its begin,
 * up to the window's: no memory that a GPU can reach begins at less than 16 bytes' alignment. */
IMX_FN void copy_windows(uint32_t raw, const source *s, int units, int apart, int row_units)
{
    bool last = (int)threadIdx.x % row_units == row_units - 1;
    uint32_t first = raw + threadIdx.x * 16, second = raw + second_at(units * apart, row_units);
    int shift = shift_of(s), left = s->left < 2 * FROM_UNIT ? s->left : 2 * FROM_UNIT;
    int bytes = left * FROM_BYTES + shift;
    const char *from = s->at - shift;
#pragma unroll
    for (int i = 0; i < units; i++) {
        copy_window(first + i * apart * row_units * 16, from, bytes, s->rows - i * apart);
        if (last)
            copy_window(second + i * apart * 16, from + 16, bytes - 16, s->rows - i * apart);
        from += apart * s->stride;
    }
}

/* 16 bytes from the shift-th on: whole words first, then half a word. */
IMX_FN uint4 join(uint4 first, uint4 second, int shift)
{
    uint32_t v[] = { first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w };
#pragma unroll
    for (int i = 0; i < 6; i++)
        v[i] = shift & 8 ? v[i + 2] : v[i];
#pragma unroll
    for (int i = 0; i < 5; i++)
        v[i] = shift & 4 ? v[i + 1] : v[i];
    uint32_t bits = (shift & 2) * 8;
    return make_uint4(__funnelshift_r(v[0], v[1], bits), __funnelshift_r(v[1], v[2], bits),
                      __funnelshift_r(v[2], v[3], bits), __funnelshift_r(v[3], v[4], bits));
}

/* Ones over what a word has of the first `bytes` of a unit. */
IMX_FN uint32_t mask_of(int word, int bytes)
{
    int here = bytes - word * 4;
    return here >= 4 ? 0xffffffffu : here > 0 ? 0xffffu : 0;
}

/* From a raw box, whose copies this warp has seen come, to this thread's units of a box.  left:
 * elements of a row from these units on. */
IMX_FN void put_box(uint32_t to, int to_step, uint32_t raw, int shift, int left, int units,
                    int apart, int row_units)
{
    uint32_t first = raw + threadIdx.x * 16, second = raw + second_at(units * apart, row_units);
    int step = second_step(apart, row_units);
    uint4 a[UNITS_MOST], b[UNITS_MOST]; /* all loads under way before the first store */
#pragma unroll
    for (int i = 0; i < units; i++) {
        a[i] = shared_load(first + i * apart * row_units * 16);
        b[i] = shared_load(second + i * step);
    }
#pragma unroll
    for (int i = 0; i < units; i++) {
        uint4 v = join(a[i], b[i], shift);
        if (left < FROM_UNIT) {
            v.x &= mask_of(0, left * FROM_BYTES), v.y &= mask_of(1, left * FROM_BYTES);
            v.z &= mask_of(2, left * FROM_BYTES), v.w &= mask_of(3, left * FROM_BYTES);
        }
        shared_store(to + i * to_step, v);
    }
}

#endif /* IMX_ALIGNED */

#endif /* IMX_SM80_LOAD_CUH */
