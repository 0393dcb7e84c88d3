/* cpu.c - the ll kernel on CPU ranks, all of it by block 0. */
#include <string.h>

#include "args.h"
#include "kernels/dtype.h"

void imx_ll_cpu(const void *args, const imbrexd_block *block);

typedef struct ll {
    const imx_ll_args *args;
    const imbrexd_block *block;
    int rank, ranks;
    uint64_t epoch;
} ll;

/* Of rank's rows, from the first of all. */
static int64_t first_byte(const ll *p, int rank)
{
    return imx_team_row(p->args->m, p->ranks, rank) * p->args->row_bytes;
}

static int64_t shard_bytes(const ll *p, int rank)
{
    return first_byte(p, rank + 1) - first_byte(p, rank);
}

/* What rank sends to each peer. */
static int64_t sent_bytes(const ll *p, int rank)
{
    return p->args->reduces ? p->args->most : shard_bytes(p, rank);
}

static imbrexd_wait_point point_of(const ll *p, int rank)
{
    int what = p->args->reduces ? IMX_POINT_PART : IMX_POINT_CHUNK;
    return (imbrexd_wait_point){ .plan = p->args->plan, .what = what, .rank = rank, .index = -1 };
}

/* Bytes of a shard's piece at `at`, where pieces have `each`; 0: there are none. */
static size_t piece(int64_t bytes, int64_t at, int64_t each)
{
    int64_t left = bytes - at;
    return left <= 0 ? 0 : (size_t)(left < each ? left : each);
}

/* The same piece of this rank's shard, which lies nowhere if it is empty. */
static void load(const ll *p, int64_t bytes, int64_t at, int64_t each, void *to)
{
    size_t here = piece(bytes, at, each);
    if (here)
        memcpy(to, (const char *)p->args->from + at, here);
}

/* Where rank's rows go: into memory that a product reads, or the caller. */
static char *place(const ll *p, int rank)
{
    char *to = (char *)p->args->to + first_byte(p, rank);
    imbrexd_check_write(to, (size_t)shard_bytes(p, rank), 0, 1);
    return to;
}

/* ---- words ----------------------------------------------------------------------------------- */

enum { HALF = 4 }; /* bytes of data in a word */

static int64_t words(int64_t bytes)
{
    return 2 * imx_ll_units(0, bytes);
}

/* relaxed: data and flag are one word. */
static void send_words(const ll *p, int to)
{
    uint64_t *word = &imx_ll_part(p->args, to, p->rank, p->epoch)->first;
    int64_t bytes = sent_bytes(p, p->rank);
    for (int64_t i = 0; i < words(bytes); i++) {
        uint32_t data = 0;
        load(p, bytes, i * HALF, HALF, &data);
        imbrexd_store_relaxed(&word[i], p->epoch << 32 | data);
    }
}

static int take_words(const ll *p, int from)
{
    const uint64_t *word = &imx_ll_part(p->args, p->rank, from, p->epoch)->first;
    int64_t bytes = shard_bytes(p, from);
    char *to = place(p, from);
    for (int64_t i = 0; i < words(bytes); i++) {
        uint32_t data;
        if (!imbrexd_ll_wait(p->block->watch, &word[i], (uint32_t)p->epoch, point_of(p, from),
                             &data))
            return 0;
        memcpy(to + i * HALF, &data, piece(bytes, i * HALF, HALF));
    }
    return 1;
}

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct line {
    char data[IMX_LL_LINE];
    uint64_t epoch;
} line;

static int64_t lines(int64_t bytes)
{
    return imx_ll_units(1, bytes) / IMX_LL_UNITS;
}

/* Release, acquire: the epoch comes after its line's data.  Only the last one is posted, for
 * whoever sleeps, and says that all are there. */
static void send_lines(const ll *p, int to)
{
    line *at = (line *)imx_ll_part(p->args, to, p->rank, p->epoch);
    int64_t bytes = sent_bytes(p, p->rank), count = lines(bytes);
    imbrexd_check_write(at, IMX_LL_LINE, sizeof *at, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        load(p, bytes, i * IMX_LL_LINE, IMX_LL_LINE, at[i].data);
        if (i < count - 1)
            imbrexd_store_release(&at[i].epoch, p->epoch);
    }
    imbrexd_signal_post(&at[count - 1].epoch, p->epoch);
}

static int take_lines(const ll *p, int from)
{
    const line *at = (const line *)imx_ll_part(p->args, p->rank, from, p->epoch);
    int64_t bytes = shard_bytes(p, from), count = lines(bytes);
    char *to = place(p, from);
    if (!imbrexd_signal_wait(p->block->watch, &at[count - 1].epoch, p->epoch, point_of(p, from)))
        return 0;
    imbrexd_check_read(at, IMX_LL_LINE, sizeof *at, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * IMX_LL_LINE, at[i].data, piece(bytes, i * IMX_LL_LINE, IMX_LL_LINE));
    return 1;
}

/* ---- sums ------------------------------------------------------------------------------------ */

enum { PIECE = IMX_LL_LINE }; /* of a sum at a time: a line, or 30 words */

/* Whether the lines of rank are here. */
static int wait_lines(const ll *p, int rank)
{
    const line *at = (const line *)imx_ll_part(p->args, p->rank, rank, p->epoch);
    int64_t count = lines(p->args->most);
    if (!imbrexd_signal_wait(p->block->watch, &at[count - 1].epoch, p->epoch, point_of(p, rank)))
        return 0;
    imbrexd_check_read(at, IMX_LL_LINE, sizeof *at, (size_t)count);
    return 1;
}

/* Piece number i of what rank sent. */
static int take_piece(const ll *p, int rank, int64_t i, char to[PIECE])
{
    const imx_ll_unit *part = imx_ll_part(p->args, p->rank, rank, p->epoch);
    size_t bytes = piece(p->args->most, i * PIECE, PIECE);
    if (p->args->lines) {
        memcpy(to, ((const line *)part)[i].data, bytes);
        return 1;
    }
    const uint64_t *word = &part->first + i * (PIECE / HALF);
    for (size_t at = 0; at < bytes; at += HALF, word++) {
        uint32_t data;
        if (!imbrexd_ll_wait(p->block->watch, word, (uint32_t)p->epoch, point_of(p, rank), &data))
            return 0;
        memcpy(to + at, &data, sizeof data);
    }
    return 1;
}

/* sum[count] += bias and residual of the elements from number `first` of the matrix on. */
static void add_rest(const imx_ll_args *args, int64_t first, float *sum, int64_t count)
{
    int64_t columns = args->row_bytes / imx_dtype_size(args->dtype);
    for (int64_t i = 0; i < count && args->bias;) {
        int64_t column = (first + i) % columns;
        int64_t here = columns - column < count - i ? columns - column : count - i;
        imx_dtype_add(args->dtype, imx_dtype_at(args->dtype, args->bias, column), sum + i, here);
        i += here;
    }
    if (args->residual)
        imx_dtype_add(args->dtype, imx_dtype_at(args->dtype, args->residual, first), sum, count);
}

/* Own numbers are read before the sum takes their place: it may be the same memory. */
static int add_up(const ll *p)
{
    const imx_ll_args *args = p->args;
    int64_t size = imx_dtype_size(args->dtype);
    for (int r = 0; r < p->ranks && args->lines; r++) {
        if (r != p->rank && !wait_lines(p, r))
            return 0;
    }
    imbrexd_check_read(args->from, (size_t)args->most, 0, 1);
    imbrexd_check_write(args->to, (size_t)args->most, 0, 1);
    if (args->residual)
        imbrexd_check_read(args->residual, (size_t)args->most, 0, 1);
    for (int64_t i = 0; i * PIECE < args->most; i++) {
        float sum[PIECE / 2];
        int64_t count = (int64_t)piece(args->most, i * PIECE, PIECE) / size;
        for (int r = 0; r < p->ranks; r++) {
            _Alignas(8) char room[PIECE];
            if (r == p->rank)
                load(p, args->most, i * PIECE, PIECE, room);
            else if (!take_piece(p, r, i, room))
                return 0;
            if (r == 0)
                imx_dtype_widen(args->dtype, room, sum, count);
            else
                imx_dtype_add(args->dtype, room, sum, count);
        }
        add_rest(args, i * PIECE / size, sum, count);
        imx_dtype_narrow(args->dtype, sum, (char *)args->to + i * PIECE, count);
    }
    return 1;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

void imx_ll_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_ll_args *args = untyped;
    if (block->index)
        return;
    ll p = {
        .args = args,
        .block = block,
        .rank = args->team.rank,
        .ranks = args->team.size,
        .epoch = ++*args->uses,
    };
    for (int i = 1; i < p.ranks; i++)
        (args->lines ? send_lines : send_words)(&p, (p.rank + i) % p.ranks);
    if (args->reduces) {
        add_up(&p);
        return;
    }
    if (shard_bytes(&p, p.rank)) {
        imbrexd_check_read(args->from, (size_t)shard_bytes(&p, p.rank), 0, 1);
        memcpy(place(&p, p.rank), args->from, (size_t)shard_bytes(&p, p.rank));
    }
    for (int i = p.ranks - 1; i >= 1; i--) {
        if (!(args->lines ? take_lines : take_words)(&p, (p.rank + i) % p.ranks))
            return;
    }
}
