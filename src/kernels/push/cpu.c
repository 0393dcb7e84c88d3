/* cpu.c - the push kernel on CPU ranks: a block sends every count-th chunk of all shards, then puts
 * together the same chunks of what the peers send; lines are block 0's.
 */
#include "args.h"
#include "kernels/dtype.h"

enum { STRIP = 1024 }; /* elements added at a time: they stay in the first-level cache */

void imx_push_cpu(const void *args, const imbrexd_block *block);
size_t imx_push_cpu_scratch(const void *args);

typedef struct push {
    const imx_push_args *args;
    const imbrexd_block *block;
    int rank, ranks;
    uint64_t epoch;
} push;

/* Each owner gets its own rows. */
static int to_owners(const push *p)
{
    return p->args->how != IMX_PUSH_GATHERS;
}

static int adds(const push *p)
{
    return p->args->how == IMX_PUSH_REDUCES;
}

/* Of rank's rows, from the first of all. */
static int64_t first_byte(const push *p, int rank)
{
    return imx_team_row(p->args->m, p->ranks, rank) * p->args->row_bytes;
}

static int64_t shard_bytes(const push *p, int rank)
{
    return first_byte(p, rank + 1) - first_byte(p, rank);
}

/* The rows that `from` sends to `to`: the sender's own, or the receiver's. */
static int64_t sent_bytes(const push *p, int from, int to)
{
    return shard_bytes(p, to_owners(p) ? to : from);
}

static const char *sent(const push *p, int to)
{
    return (const char *)p->args->from + (to_owners(p) ? first_byte(p, to) : 0);
}

/* i = 1, 2, ...: peers in the order in which they need this rank's rows, the rank before first, or
 * make theirs, the rank after first. */
static int peer(const push *p, int i)
{
    return (to_owners(p) ? p->rank + i : p->rank + p->ranks - i) % p->ranks;
}

static int wait(const push *p, const uint64_t *signal, uint64_t value, int what, int rank,
                int64_t index)
{
    imbrexd_wait_point point = {
        .plan = p->args->plan, .what = what, .rank = rank, .index = (int32_t)index
    };
    return imbrexd_signal_wait(p->block->watch, signal, value, point);
}

static int wait_share(const push *p, const uint64_t *signal, int rank, int64_t index)
{
    return wait(p, signal, p->epoch, adds(p) ? IMX_POINT_PART : IMX_POINT_CHUNK, rank, index);
}

/* ---- what arrived ---------------------------------------------------------------------------- */

/* Where rank's shard lies at its holder, in chunks. */
static char *place(const push *p, int holder, int rank)
{
    int64_t at = to_owners(p) ? rank * p->args->slot_bytes : first_byte(p, rank);
    return imx_team_data(&p->args->team, holder) + at;
}

static int64_t words(int64_t bytes)
{
    return (bytes + IMX_PUSH_WORD - 1) / IMX_PUSH_WORD;
}

static void unpack(const imx_push_line *lines, char *to, int64_t bytes)
{
    for (; bytes > 0; lines++, to += IMX_PUSH_WORD, bytes -= IMX_PUSH_WORD)
        memcpy(to, &lines->word, bytes < IMX_PUSH_WORD ? (size_t)bytes : IMX_PUSH_WORD);
}

/* Bytes [at, at + bytes) of rank's shard for this rank, at a word's start; in room if need be. */
static const void *part(const push *p, int rank, int64_t at, int64_t bytes, void *room)
{
    if (rank == p->rank)
        return sent(p, rank) + at;
    if (!p->args->lines)
        return place(p, p->rank, rank) + at;
    unpack(imx_push_lines(p->args, p->rank, rank, p->epoch) + at / IMX_PUSH_WORD, room, bytes);
    return room;
}

/* sum[count] += the bias of the elements from number `first` of the shard on. */
static void add_bias(const push *p, int64_t first, float *sum, int64_t count)
{
    int dtype = p->args->dtype;
    int64_t columns = p->args->row_bytes / imx_dtype_size(dtype);
    for (int64_t i = 0; i < count && p->args->bias;) {
        int64_t column = (first + i) % columns;
        int64_t here = columns - column < count - i ? columns - column : count - i;
        imx_dtype_add(dtype, imx_dtype_at(dtype, p->args->bias, column), sum + i, here);
        i += here;
    }
}

/* to[at, at + bytes) = the parts' sum, in rank order, bias and residual. */
static void add(const push *p, int64_t at, int64_t bytes)
{
    float sum[STRIP], room[STRIP];
    int dtype = p->args->dtype;
    int64_t size = imx_dtype_size(dtype);
    imbrexd_check_read(sent(p, p->rank) + at, (size_t)bytes, 0, 1);
    imbrexd_check_write((char *)p->args->to + at, (size_t)bytes, 0, 1);
    for (int64_t last = at + bytes; at < last; at += STRIP * size) {
        int64_t here = last - at < STRIP * size ? last - at : STRIP * size;
        imx_dtype_widen(dtype, part(p, 0, at, here, room), sum, here / size);
        for (int r = 1; r < p->ranks; r++)
            imx_dtype_add(dtype, part(p, r, at, here, room), sum, here / size);
        add_bias(p, at / size, sum, here / size);
        if (p->args->residual)
            imx_dtype_add(dtype, (const char *)p->args->residual + at, sum, here / size);
        imx_dtype_narrow(dtype, sum, (char *)p->args->to + at, here / size);
    }
}

/* The same of what one rank sent, as it is. */
static void take(const push *p, int rank, int64_t at, int64_t bytes)
{
    int64_t place = to_owners(p) ? rank * shard_bytes(p, p->rank) : first_byte(p, rank);
    char *to = (char *)p->args->to + place + at;
    imbrexd_check_write(to, (size_t)bytes, 0, 1);
    const void *from = part(p, rank, at, bytes, to);
    if (from != to)
        memcpy(to, from, (size_t)bytes);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Of chunk q of a shard of `bytes`; <= 0: there is none. */
static int64_t chunk_bytes(const push *p, int64_t bytes, int64_t q)
{
    int64_t left = bytes - q * p->args->chunk_bytes;
    return left < p->args->chunk_bytes ? left : p->args->chunk_bytes;
}

static void send_chunk(const push *p, int64_t q)
{
    for (int i = 1; i < p->ranks; i++) {
        int to = peer(p, i);
        int64_t at = q * p->args->chunk_bytes;
        int64_t bytes = chunk_bytes(p, sent_bytes(p, p->rank, to), q);
        if (bytes <= 0)
            continue;
        imbrexd_check_read(sent(p, to) + at, (size_t)bytes, 0, 1);
        imbrexd_check_write(place(p, to, p->rank) + at, (size_t)bytes, 0, 1);
        memcpy(place(p, to, p->rank) + at, sent(p, to) + at, (size_t)bytes);
        imbrexd_signal_post(
            imx_team_signal(&p->args->team, to, (int64_t)p->rank * p->args->chunks + q), p->epoch);
    }
}

/* 0: give up. */
static int receive_chunk(const push *p, int64_t q)
{
    const imx_push_args *args = p->args;
    int64_t at = q * args->chunk_bytes, own = chunk_bytes(p, shard_bytes(p, p->rank), q);
    for (int i = p->ranks; i >= 1; i--) { /* oneself first; the others as they come */
        int from = peer(p, i);
        int64_t bytes = chunk_bytes(p, sent_bytes(p, from, p->rank), q);
        const uint64_t *signal =
            imx_team_signal(&args->team, p->rank, (int64_t)from * args->chunks + q);
        if (bytes > 0 && from != p->rank && !wait_share(p, signal, from, q))
            return 0;
        if (bytes > 0 && from != p->rank)
            imbrexd_check_read(place(p, p->rank, from) + at, (size_t)bytes, 0, 1);
        if (bytes > 0 && !adds(p))
            take(p, from, at, bytes);
    }
    if (adds(p) && own > 0)
        add(p, at, own);
    return 1;
}

/* The same chunk of rank's rows, which are in their place. */
static void norm_chunk(const push *p, int rank, int64_t q)
{
    const imbrexd_block alone = { .count = 1, .scratch = p->block->scratch };
    imx_norm_args norm = p->args->norm;
    int64_t row = imx_team_row(p->args->m, p->ranks, rank) + q * p->args->chunk_rows;
    int64_t bytes = chunk_bytes(p, shard_bytes(p, rank), q), at = row * p->args->row_bytes;
    int64_t scales = norm.quant == IMBREX_PER_BLOCK
                         ? (norm.n + IMX_SCALE_BLOCK - 1) / IMX_SCALE_BLOCK
                         : norm.quant == IMBREX_PER_ROW;
    if (bytes <= 0)
        return;
    norm.rows = bytes / p->args->row_bytes;
    norm.in = (const char *)norm.in + at;
    norm.h = NULL;
    norm.normed = norm.normed ? (char *)norm.normed + at : NULL;
    norm.c = (char *)norm.c + (norm.quant ? row * norm.n : at);
    norm.scale = norm.scale ? norm.scale + row * scales : NULL;
    imx_norm_cpu(&norm, &alone);
}

size_t imx_push_cpu_scratch(const void *untyped)
{
    const imx_push_args *args = untyped;
    return args->norm.n ? imx_norm_cpu_scratch(&args->norm) : 0;
}

static void by_chunks(const push *p)
{
    const imx_push_args *args = p->args;
    int64_t first = p->block->index, step = p->block->count;
    for (int64_t q = first; q * args->chunk_bytes < args->most; q += step)
        send_chunk(p, q);
    for (int64_t q = first; q * args->chunk_bytes < args->most; q += step) {
        if (!receive_chunk(p, q))
            return;
        for (int r = 0; r < p->ranks && args->norm.n; r++)
            norm_chunk(p, r, q);
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Only the last line is posted, which sees to it that the others are there before it (release):
 * who waits for it may read them all (acquire). */
static void send_lines(const push *p, int to)
{
    imx_push_line *lines = imx_push_lines(p->args, to, p->rank, p->epoch);
    const char *from = sent(p, to);
    int64_t bytes = sent_bytes(p, p->rank, to);
    imbrexd_check_read(from, (size_t)bytes, 0, 1);
    imbrexd_check_write(lines, (size_t)words(bytes) * sizeof *lines, 0, 1);
    for (int64_t i = 0; i < words(bytes); i++) {
        int64_t left = bytes - i * IMX_PUSH_WORD;
        memcpy(&lines[i].word, from + i * IMX_PUSH_WORD,
               left < IMX_PUSH_WORD ? (size_t)left : IMX_PUSH_WORD);
    }
    if (bytes)
        imbrexd_signal_post(&lines[words(bytes) - 1].epoch, p->epoch);
}

static void by_lines(const push *p)
{
    for (int i = 1; i < p->ranks; i++)
        send_lines(p, peer(p, i));
    for (int i = p->ranks; i >= 1; i--) {
        int from = peer(p, i);
        int64_t bytes = sent_bytes(p, from, p->rank);
        const imx_push_line *lines = imx_push_lines(p->args, p->rank, from, p->epoch);
        if (bytes && from != p->rank && !wait_share(p, &lines[words(bytes) - 1].epoch, from, -1))
            return;
        if (from != p->rank)
            imbrexd_check_read(lines, (size_t)words(bytes) * sizeof *lines, 0, 1);
        if (bytes && !adds(p))
            take(p, from, 0, bytes);
    }
    if (adds(p))
        add(p, 0, shard_bytes(p, p->rank));
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static int wait_credits(const push *p)
{
    uint64_t want = imx_push_credit(p->args, p->epoch);
    for (int i = 1; i < p->ranks; i++) {
        int from = peer(p, i);
        if (!wait(p, imx_team_credit(&p->args->team, p->rank, from), want, IMX_POINT_CREDIT, from,
                  -1))
            return 0;
    }
    return 1;
}

void imx_push_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_push_args *args = untyped;
    const imx_team *team = &args->team;
    push p = {
        .args = args,
        .block = block,
        .rank = team->rank,
        .ranks = team->size,
        .epoch = *args->epoch + 1,
    };
    for (int i = 1; i < p.ranks && block->index == 0; i++)
        imbrexd_signal_post(imx_team_credit(team, peer(&p, i), p.rank), p.epoch - 1);
    if (imbrexd_counter_last(args->ended, (uint32_t)block->count))
        *args->epoch = p.epoch; /* acquired from all who read it */
    if (args->lines && block->index)
        return;
    if (wait_credits(&p))
        (args->lines ? by_lines : by_chunks)(&p);
}
