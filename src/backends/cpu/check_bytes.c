/* check_bytes.c - the checker's ranges: who wrote which bytes last, and who has read them since. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Without memory for it, a piece goes unwatched. */
void imx_cpu_check_memory(const imx_device *device, const imx_memory *memory)
{
    if (!device->check)
        return;
    imx_cpu_check_piece *piece = imx_sys.calloc(1, sizeof *piece);
    imx_cpu_check_word **words = imx_sys.calloc(memory->bytes / 4 + 1, sizeof *words);
    imx_cpu_check_range *ranges = imx_sys.calloc(16, sizeof *ranges);
    if (!piece || !words || !ranges) {
        free(piece);
        free(words);
        free(ranges);
        return;
    }
    *piece = (imx_cpu_check_piece){ .base = memory->base,
                                    .bytes = memory->bytes,
                                    .rank = device->rank,
                                    .words = words,
                                    .ranges = ranges,
                                    .range_count = 1,
                                    .range_room = 16 };
    imx_cpu_check_lock();
    piece->next = imx_cpu_check.pieces;
    imx_cpu_check.pieces = piece;
    imx_cpu_check_unlock();
}

/* The one that it is in, or less than guard bytes behind. */
static imx_cpu_check_piece *piece_at(const void *at, size_t guard)
{
    imx_cpu_check_piece *piece = imx_cpu_check.pieces;
    while (piece && ((const char *)at < piece->base ||
                     (size_t)((const char *)at - piece->base) >= piece->bytes + guard))
        piece = piece->next;
    return piece;
}

imx_cpu_check_piece *imx_cpu_check_piece_of(const void *at)
{
    return piece_at(at, 0);
}

void imx_cpu_check_memory_own(const imx_memory *memory, const imx_words *words, int count)
{
    imx_cpu_check_lock();
    imx_cpu_check_piece *piece = imx_cpu_check_piece_of(memory->base);
    for (int i = 0; piece && i < count && i < IMX_WORDS_MOST; i++)
        piece->places[i] = words[i];
    if (piece) {
        piece->place_count = count;
        piece->own = true;
    }
    imx_cpu_check_unlock();
}

void imx_cpu_check_memory_gone(const imx_memory *memory)
{
    imx_cpu_check_lock();
    imx_cpu_check_piece **at = &imx_cpu_check.pieces;
    while (*at && (*at)->base != memory->base)
        at = &(*at)->next;
    imx_cpu_check_piece *piece = *at;
    if (piece)
        *at = piece->next;
    imx_cpu_check_unlock();
    if (!piece)
        return;
    for (size_t i = 0; i < piece->bytes / 4; i++)
        free(piece->words[i]);
    free(piece->words);
    free(piece->ranges);
    free(piece);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static size_t end_of(const imx_cpu_check_piece *piece, size_t i)
{
    return i + 1 < piece->range_count ? piece->ranges[i + 1].from : piece->bytes;
}

/* The range that byte `at` lies in. */
static size_t find(const imx_cpu_check_piece *piece, size_t at)
{
    size_t low = 0, high = piece->range_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (piece->ranges[middle].from <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The number of the range that begins at `at`, cut if need be; without memory, the one that `at`
 * lies in. */
static size_t cut(imx_cpu_check_piece *piece, size_t at)
{
    size_t i = find(piece, at);
    if (piece->ranges[i].from == at)
        return i;
    if (piece->range_count == piece->range_room) {
        imx_cpu_check_range *more = imx_sys.calloc(2 * piece->range_room, sizeof *more);
        if (!more)
            return i;
        memcpy(more, piece->ranges, piece->range_count * sizeof *more);
        free(piece->ranges);
        piece->ranges = more;
        piece->range_room *= 2;
    }
    imx_cpu_check_range *range = &piece->ranges[i];
    memmove(range + 1, range, (piece->range_count - i) * sizeof *range);
    piece->range_count++;
    range[1].from = at;
    return i + 1;
}

/* ---- what is wrong --------------------------------------------------------------------------- */

typedef struct touching {
    const imx_cpu_check_thread *thread;
    const imx_cpu_check_piece *piece;
    size_t from, to;
    bool writes;
} touching;

static void complain(const touching *a, const char *what, const imx_cpu_check_mark *other,
                     const char *why)
{
    char who[120], whom[120] = "";
    imx_cpu_check_mark mark = imx_cpu_check_mark_of(a->thread);
    imx_cpu_check_name(&mark, who, sizeof who);
    if (other)
        imx_cpu_check_name(other, whom, sizeof whom);
    imbrexd_wait_point point = { .plan = mark.plan ? mark.plan
                                         : other   ? other->plan
                                                   : 0,
                                 .rank = a->piece->rank,
                                 .index = -1 };
    imx_cpu_check_report(a->thread, point,
                         "%s %s bytes %zu to %zu of %zu of rank %d's memory (at %p)%s%s%s", who,
                         a->writes ? "writes" : "reads", a->from, a->to, a->piece->bytes,
                         a->piece->rank, (void *)(a->piece->base + a->from), what, whom, why);
}

/* False: it is not in order, and was reported. */
static bool check_range(const touching *a, const imx_cpu_check_range *range)
{
    if (!range->writer.what && !a->writes && a->piece->own) {
        complain(a, ", which nobody has written", NULL, "");
        return false;
    }
    if (range->writer.what && !imx_cpu_check_before(&range->writer, a->thread)) {
        complain(a, a->writes ? ", as does " : ", which were written by ", &range->writer,
                 ": no signal orders it after that");
        return false;
    }
    for (int i = 0; a->writes && i < range->reader_count; i++) {
        if (imx_cpu_check_before(&range->readers[i], a->thread))
            continue;
        complain(
            a, ", which were read by ", &range->readers[i],
            ": no credit orders it after that, or that came too early, and its wait is missing");
        return false;
    }
    return true;
}

/* Readers that are known to have come before this one need not be kept: who comes after this one
 * comes after them. */
static void add_reader(imx_cpu_check_range *range, const imx_cpu_check_thread *thread)
{
    int kept = 0;
    for (int i = 0; i < range->reader_count; i++) {
        if (!imx_cpu_check_before(&range->readers[i], thread))
            range->readers[kept++] = range->readers[i];
    }
    kept = kept == IMX_CHECK_READERS ? kept - 1 : kept;
    range->readers[kept] = imx_cpu_check_mark_of(thread);
    range->reader_count = kept + 1;
}

/* thread NULL: its group has failed, and all that counts is that there is such memory. */
static bool touch(imx_cpu_check_piece *piece, const imx_cpu_check_thread *thread, size_t from,
                  size_t to, bool writes)
{
    if (to > piece->bytes) {
        if (thread)
            complain(&(touching){ thread, piece, from, to, writes }, ", past its end", NULL, "");
        return false;
    }
    if (!thread)
        return true;
    for (size_t i = cut(piece, from); i < piece->range_count && piece->ranges[i].from < to; i++) {
        if (end_of(piece, i) > to)
            cut(piece, to);
        imx_cpu_check_range *range = &piece->ranges[i];
        touching a = { thread, piece, range->from, end_of(piece, i), writes };
        if (!check_range(&a, range))
            return false;
        if (writes) {
            range->writer = imx_cpu_check_mark_of(thread);
            range->reader_count = 0;
        } else {
            add_reader(range, thread);
        }
    }
    return true;
}

int imx_cpu_check_access(const void *at, size_t bytes, size_t stride, size_t rows, int writes)
{
    if (!bytes || !rows)
        return 1;
    if (bytes == stride) {
        bytes *= rows;
        rows = 1;
    }
    imx_cpu_check_lock();
    const imx_cpu_check_thread *thread = imx_cpu_check_self();
    imx_cpu_check_piece *piece = imx_cpu_check_current() ? piece_at(at, IMX_CPU_CHECK_GUARD) : NULL;
    size_t from = piece ? (size_t)((const char *)at - piece->base) : 0;
    bool fine = true;
    for (size_t row = 0; piece && fine && row < rows; row++, from += stride)
        fine = touch(piece, thread, from, from + bytes, writes);
    imx_cpu_check_unlock();
    return fine;
}

bool imx_cpu_check_read_by(const imx_cpu_check_thread *thread, const void *at, size_t bytes)
{
    imx_cpu_check_piece *piece = bytes ? piece_at(at, IMX_CPU_CHECK_GUARD) : NULL;
    size_t from = piece ? (size_t)((const char *)at - piece->base) : 0;
    return !piece || touch(piece, thread, from, from + bytes, false);
}
