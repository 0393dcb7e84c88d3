/* cpu.c - the ll kernel on CPU ranks, all of it by block 0. */
#include <stdbool.h>
#include <string.h>

#include "cpu_lines.h"
#include "kernels/dtype.h"

void imx_ll_cpu(const void *args, const imbrexd_block *block);
size_t imx_ll_cpu_scratch(const void *args);

typedef struct ll {
    const imx_ll_args *args;
    const imbrexd_block *block;
    int rank, ranks;
    uint64_t epoch;
} ll;

/* Of all rows; of a sum, all of the matrix. */
static int64_t all_bytes(const ll *p)
{
    return p->args->m * p->args->row_bytes;
}

/* Of rank's shard, from the first byte of all: of its rows, or, with fans, of what it adds up. */
static int64_t first_byte(const ll *p, int rank)
{
    if (p->args->how == IMX_LL_FANS)
        return imx_ll_first(p->args->lines, all_bytes(p), p->ranks, rank);
    return imx_team_row(p->args->m, p->ranks, rank) * p->args->row_bytes;
}

static int64_t shard_bytes(const ll *p, int rank)
{
    return first_byte(p, rank + 1) - first_byte(p, rank);
}

/* What is on its way to a rank: its own part, or what everybody gets. */
typedef struct load {
    const char *from;
    int64_t bytes;
    imx_ll_unit *to;
} load;

static imbrexd_wait_point point_of(const ll *p, int what, int rank)
{
    return (imbrexd_wait_point){ .plan = p->args->plan, .what = what, .rank = rank, .index = -1 };
}

/* What everybody gets of a rank: its rows, or its part of the sum. */
static int of_all(const ll *p)
{
    return p->args->how == IMX_LL_FANS ? IMX_POINT_PART : IMX_POINT_CHUNK;
}

/* A piece of what goes out, which lies nowhere if it is empty. */
static void copy_piece(const load *l, int64_t at, int64_t each, void *to)
{
    size_t here = imx_ll_piece(l->bytes, at, each);
    if (here)
        memcpy(to, l->from + at, here);
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
static void send_words(const ll *p, const load *l)
{
    uint64_t *word = &l->to->first;
    for (int64_t i = 0; i < words(l->bytes); i++) {
        uint32_t data = 0;
        copy_piece(l, i * HALF, HALF, &data);
        imbrexd_store_relaxed(&word[i], p->epoch << 32 | data);
    }
}

/* Of what rank sends to all. */
static int take_words(const ll *p, int from, const imx_ll_unit *unit)
{
    const uint64_t *word = &unit->first;
    int64_t bytes = shard_bytes(p, from);
    char *to = place(p, from);
    for (int64_t i = 0; i < words(bytes); i++) {
        uint32_t data;
        if (!imbrexd_ll_wait(p->block->watch, &word[i], (uint32_t)p->epoch,
                             point_of(p, of_all(p), from), &data))
            return 0;
        memcpy(to + i * HALF, &data, imx_ll_piece(bytes, i * HALF, HALF));
    }
    return 1;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void send_lines(const ll *p, const load *l)
{
    imx_ll_send_lines(l->to, l->from, l->bytes, p->epoch);
}

/* Whether all lines of `bytes` are here. */
static int wait_lines(const ll *p, int what, int from, const imx_ll_unit *unit, int64_t bytes)
{
    return imx_ll_wait_lines(unit, bytes, p->epoch, p->block->watch, point_of(p, what, from));
}

static int take_lines(const ll *p, int from, const imx_ll_unit *unit)
{
    return imx_ll_take_lines(unit, place(p, from), shard_bytes(p, from), p->epoch, p->block->watch,
                             point_of(p, of_all(p), from));
}

static void send(const ll *p, const load *l)
{
    (p->args->lines ? send_lines : send_words)(p, l);
}

/* ---- sums ------------------------------------------------------------------------------------ */

enum { PIECE = IMX_LL_LINE }; /* of a sum at a time: a line, or 30 words */

/* Piece number i of the `bytes` that rank sent. */
static int take_piece(const ll *p, int rank, int64_t bytes, int64_t i, char to[PIECE])
{
    const imx_ll_unit *part = imx_ll_part(p->args, p->rank, rank, p->epoch);
    size_t here = imx_ll_piece(bytes, i * PIECE, PIECE);
    if (p->args->lines) {
        memcpy(to, ((const imx_ll_line *)part)[i].data, here);
        return 1;
    }
    const uint64_t *word = &part->first + i * (PIECE / HALF);
    for (size_t at = 0; at < here; at += HALF, word++) {
        uint32_t data;
        if (!imbrexd_ll_wait(p->block->watch, word, (uint32_t)p->epoch,
                             point_of(p, IMX_POINT_PART, rank), &data))
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

/* to = the sum of all ranks' bytes [first, first + bytes) of the matrix.  Own numbers are read
 * before the sum takes their place: it may be the same memory. */
static int add_up(const ll *p, int64_t first, int64_t bytes)
{
    const imx_ll_args *args = p->args;
    int64_t size = imx_dtype_size(args->dtype);
    const load own = { (const char *)args->from + first, bytes, NULL };
    char *to = (char *)args->to + first;
    for (int r = 0; r < p->ranks && args->lines; r++) {
        if (r != p->rank &&
            !wait_lines(p, IMX_POINT_PART, r, imx_ll_part(args, p->rank, r, p->epoch), bytes))
            return 0;
    }
    imbrexd_check_read(own.from, (size_t)bytes, 0, 1);
    imbrexd_check_write(to, (size_t)bytes, 0, 1);
    if (args->residual)
        imbrexd_check_read((const char *)args->residual + first, (size_t)bytes, 0, 1);
    for (int64_t i = 0; i * PIECE < bytes; i++) {
        float sum[PIECE / 2];
        int64_t count = (int64_t)imx_ll_piece(bytes, i * PIECE, PIECE) / size;
        for (int r = 0; r < p->ranks; r++) {
            _Alignas(8) char room[PIECE];
            if (r == p->rank)
                copy_piece(&own, i * PIECE, PIECE, room);
            else if (!take_piece(p, r, bytes, i, room))
                return 0;
            if (r == 0)
                imx_dtype_widen(args->dtype, room, sum, count);
            else
                imx_dtype_add(args->dtype, room, sum, count);
        }
        add_rest(args, (first + i * PIECE) / size, sum, count);
        imx_dtype_narrow(args->dtype, sum, to + i * PIECE, count);
    }
    return 1;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* The same to all peers: parts, or, of what is added up, sums. */
static void send_to_all(const ll *p, const char *from, int64_t bytes, bool sums)
{
    for (int i = 1; i < p->ranks; i++) {
        int to = (p->rank + i) % p->ranks;
        const load l = { from, bytes,
                         (sums ? imx_ll_sum : imx_ll_part)(p->args, to, p->rank, p->epoch) };
        send(p, &l);
    }
}

static int take_from_all(const ll *p, bool sums)
{
    for (int i = p->ranks - 1; i >= 1; i--) {
        int from = (p->rank + i) % p->ranks;
        const imx_ll_unit *unit =
            (sums ? imx_ll_sum : imx_ll_part)(p->args, p->rank, from, p->epoch);
        if (!(p->args->lines ? take_lines : take_words)(p, from, unit))
            return 0;
    }
    return 1;
}

static void gather(const ll *p)
{
    int64_t bytes = shard_bytes(p, p->rank);
    send_to_all(p, p->args->from, bytes, false);
    if (bytes) {
        imbrexd_check_read(p->args->from, (size_t)bytes, 0, 1);
        char *to = place(p, p->rank);
        if (to != p->args->from)
            memcpy(to, p->args->from, (size_t)bytes);
    }
    take_from_all(p, false);
}

static int fan(const ll *p)
{
    int64_t first = first_byte(p, p->rank), bytes = shard_bytes(p, p->rank);
    for (int i = 1; i < p->ranks; i++) {
        int to = (p->rank + i) % p->ranks;
        const load l = { (const char *)p->args->from + first_byte(p, to), shard_bytes(p, to),
                         imx_ll_part(p->args, to, p->rank, p->epoch) };
        imbrexd_check_read(l.from, (size_t)l.bytes, 0, 1);
        send(p, &l);
    }
    if (!add_up(p, first, bytes))
        return 0;
    send_to_all(p, (const char *)p->args->to + first, bytes, true);
    return take_from_all(p, true);
}

static int reduce(const ll *p)
{
    send_to_all(p, p->args->from, all_bytes(p), false);
    return add_up(p, 0, all_bytes(p));
}

/* Of all rows, whose sums are in their place. */
static void norm_all(const ll *p)
{
    const imbrexd_block alone = { .count = 1, .scratch = p->block->scratch };
    imx_norm_args norm = p->args->norm;
    norm.h = NULL;
    imx_norm_cpu(&norm, &alone);
}

size_t imx_ll_cpu_scratch(const void *untyped)
{
    const imx_ll_args *args = untyped;
    return args->norm.n ? imx_norm_cpu_scratch(&args->norm) : 0;
}

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
    if (args->how == IMX_LL_GATHERS)
        gather(&p);
    else if ((args->how == IMX_LL_FANS ? fan : reduce)(&p) && args->norm.n)
        norm_all(&p);
}
