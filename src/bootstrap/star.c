/* star.c - allgather through rank 0, which serves all connections at once: nobody who is slow, dead
 * or wrong can hold up the news for the others. */
#include "star.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/siphash.h"

#define MAGIC 0x7261747378626d69 /* "imbxstar" */

imbrex_status imx_star_open(imx_star *star, int rank, int size, int64_t timeout_ms)
{
    star->rank = rank;
    star->size = size;
    star->timeout_ms = timeout_ms;
    IMX_TRY(imx_sys_alloc((size_t)size, sizeof *star->links, &star->links));
    for (int r = 0; r < size; r++)
        star->links[r].fd = -1;
    IMX_TRY(imx_sys_alloc((size_t)size, sizeof *star->polls, &star->polls));
    return imx_sys_alloc((size_t)size, sizeof *star->polled, &star->polled);
}

void imx_star_close(imx_star *star)
{
    for (int r = 0; star->links && r < star->size; r++)
        if (star->links[r].fd >= 0)
            close(star->links[r].fd);
    free(star->links);
    free(star->polls);
    free(star->polled);
}

/* ---- Seals ----------------------------------------------------------------------------------- */

static void seal(imx_star_link *link, imx_star_header *header)
{
    header->seal = 0;
    header->seal = imx_seal_next(&link->seals.send, header, sizeof *header);
}

static bool is_sealed(imx_star_link *link, const imx_star_header *header)
{
    imx_star_header said = *header;
    said.seal = 0;
    return header->seal == imx_seal_next(&link->seals.receive, &said, sizeof said);
}

static uint64_t digest_of(const imx_star *star, const void *body, size_t bytes)
{
    return imx_siphash(star->key, body, bytes);
}

static imbrex_status fail_forged(const imx_star *star, int from)
{
    return imx_fail(IMBREX_PEER,
                    "what came to rank %d as rank %d's in allgather %llu is not what that rank "
                    "sent: something between them alters, repeats, reorders or forges it",
                    star->rank, from, (unsigned long long)star->call);
}

/* ---- Failure --------------------------------------------------------------------------------- */

void imx_star_name_ranks(const imx_star *star, bool (*wanted)(const imx_star_link *link),
                         imx_text *text)
{
    enum { MOST = 16 };
    int count = 0, named = 0;
    for (int r = 1; r < star->size; r++)
        count += wanted(&star->links[r]);
    imx_text_add(text, count == 1 ? "rank" : "ranks");
    int shown = count <= MOST ? count : MOST;
    for (int r = 1; r < star->size && named < shown; r++) {
        if (!wanted(&star->links[r]))
            continue;
        bool last = ++named == count;
        imx_text_add(text, "%s %d", named == 1 ? "" : last ? " and" : ",", r);
    }
    if (count > shown)
        imx_text_add(text, " and %d more", count - shown);
}

/* Best effort, without waiting: an idle connection has room for it. */
static void tell(imx_star *star, imbrex_status status)
{
    const bool own = status != IMBREX_PEER && status != IMBREX_TIMEOUT;
    struct {
        imx_star_header header;
        char text[IMX_STAR_TEXT];
    } message = { .header = { .magic = MAGIC, .call = star->call } };
    message.header.status = own ? IMBREX_PEER : status;
    snprintf(message.text, sizeof message.text, "%s%.*s", own ? "rank 0 failed: " : "",
             IMX_STAR_TEXT - 16, star->text);
    message.header.digest = digest_of(star, message.text, sizeof message.text);
    for (int r = 1; r < star->size; r++) {
        imx_socket_span span = { (char *)&message, sizeof message };
        imx_star_link *link = &star->links[r];
        seal(link, &message.header);
        if (link->fd >= 0 && (link->midway || imx_socket_send(link->fd, &span) != IMX_SOCKET_DONE))
            shutdown(link->fd, SHUT_RDWR);
    }
}

imbrex_status imx_star_fail(imx_star *star, imbrex_status status)
{
    snprintf(star->text, sizeof star->text, "%s", imx_status_detail());
    star->status = status;
    if (star->rank == 0)
        tell(star, status);
    else if (star->links && star->links[0].fd >= 0)
        shutdown(star->links[0].fd, SHUT_RDWR);
    return status;
}

/* ---- Rank 0 ---------------------------------------------------------------------------------- */

static bool not_done(const imx_star_link *link)
{
    return !link->done;
}

static imbrex_status fail_late(const imx_star *star, const char *did_not)
{
    char ranks[160];
    imx_text text = { .at = ranks, .size = sizeof ranks };
    imx_star_name_ranks(star, not_done, &text);
    return imx_fail(IMBREX_TIMEOUT, "%s of %d did not %s %llu within %lld ms", ranks, star->size,
                    did_not, (unsigned long long)star->call, (long long)star->timeout_ms);
}

/* The group knows why. */
static imbrex_status fail_aborted(const imx_star *star)
{
    return imx_fail(IMBREX_PEER, "the group failed before allgather %llu was complete",
                    (unsigned long long)star->call);
}

/* Polls the links that are not done.  Their number is *count, 0 when all are done. */
static imx_socket_result poll_rest(imx_star *star, short events, int64_t deadline, int *count)
{
    *count = 0;
    for (int r = 1; r < star->size; r++) {
        if (star->links[r].done)
            continue;
        star->polls[*count] = (struct pollfd){ .fd = star->links[r].fd, .events = events };
        star->polled[(*count)++] = r;
    }
    return *count ? imx_socket_poll(star->polls, (size_t)*count, deadline, star->abort)
                  : IMX_SOCKET_DONE;
}

static imbrex_status check_header(const imx_star *star, int rank, size_t bytes)
{
    const imx_star_header *in = &star->links[rank].in;
    if (in->magic != MAGIC || in->call != star->call)
        return imx_fail(IMBREX_PEER, "rank %d and rank 0 lost step in allgather %llu", rank,
                        (unsigned long long)star->call);
    if (in->bytes != bytes)
        return imx_fail(IMBREX_PEER,
                        "rank %d came to allgather %llu with %llu bytes, rank 0 with %zu: the "
                        "ranks do not make the same calls",
                        rank, (unsigned long long)star->call, (unsigned long long)in->bytes, bytes);
    return IMBREX_OK;
}

static char *blob_of(char *all, int rank, size_t bytes)
{
    return bytes > 0 ? all + (size_t)rank * bytes : NULL; /* all may be NULL then */
}

/* One readable link.  Its deadline counts for all: when the first rank gives up, the allgather has
 * failed, and everyone should hear the same reason. */
static imbrex_status gather_from(imx_star *star, int rank, const void *blob, size_t bytes,
                                 int64_t *deadline)
{
    imx_star_link *link = &star->links[rank];
    imx_socket_result result = IMX_SOCKET_DONE;
    if (link->header.left > 0) {
        result = imx_socket_recv(link->fd, &link->header);
        if (result == IMX_SOCKET_DONE) {
            if (!is_sealed(link, &link->in))
                return fail_forged(star, rank);
            IMX_TRY(check_header(star, rank, bytes));
            *deadline = imx_min(*deadline, imx_socket_deadline(link->in.remaining_ms));
        }
    }
    if (result == IMX_SOCKET_DONE)
        result = imx_socket_recv(link->fd, &link->body);
    if (result == IMX_SOCKET_DONE && link->in.digest != digest_of(star, blob, bytes))
        return fail_forged(star, rank);
    link->done = result == IMX_SOCKET_DONE;
    if (result == IMX_SOCKET_GONE)
        return imx_fail(IMBREX_PEER, "rank %d left before allgather %llu was complete", rank,
                        (unsigned long long)star->call);
    if (result == IMX_SOCKET_BROKEN)
        return imx_fail_errno("receiving from rank %d failed", rank);
    return IMBREX_OK;
}

static imbrex_status gather(imx_star *star, char *all, size_t bytes, int64_t deadline)
{
    for (int r = 1; r < star->size; r++) {
        imx_star_link *link = &star->links[r];
        link->done = false;
        link->header = (imx_socket_span){ (char *)&link->in, sizeof link->in };
        link->body = (imx_socket_span){ blob_of(all, r, bytes), bytes };
    }
    for (;;) {
        int count;
        imx_socket_result result = poll_rest(star, POLLIN, deadline, &count);
        if (count == 0)
            return IMBREX_OK;
        if (result == IMX_SOCKET_LATE)
            return fail_late(star, "come to allgather");
        if (result == IMX_SOCKET_ABORTED)
            return fail_aborted(star);
        if (result == IMX_SOCKET_BROKEN)
            return imx_fail_errno("waiting for the other ranks failed");
        for (int i = 0; i < count; i++)
            if (star->polls[i].revents)
                IMX_TRY(gather_from(star, star->polled[i], blob_of(all, star->polled[i], bytes),
                                    bytes, &deadline));
    }
}

static imx_socket_result scatter_to(imx_star_link *link)
{
    imx_socket_result result = imx_socket_send(link->fd, &link->header);
    if (result == IMX_SOCKET_DONE)
        result = imx_socket_send(link->fd, &link->body);
    link->midway = result != IMX_SOCKET_DONE;
    link->done = result != IMX_SOCKET_AGAIN;
    return result;
}

/* Sends all blobs to everyone.  A rank that is gone does not keep the others from getting theirs:
 * it is the failure of this call only when they have. */
static imbrex_status scatter(imx_star *star, const char *all, size_t bytes, int64_t deadline)
{
    const size_t all_bytes = bytes * (size_t)star->size;
    const imx_star_header header = { .magic = MAGIC,
                                     .call = star->call,
                                     .bytes = bytes,
                                     .digest = digest_of(star, all, all_bytes) };
    for (int r = 1; r < star->size; r++) {
        imx_star_link *link = &star->links[r];
        link->done = false;
        link->in = header;
        seal(link, &link->in);
        link->header = (imx_socket_span){ (char *)&link->in, sizeof link->in };
        link->body = (imx_socket_span){ (char *)(uintptr_t)all, all_bytes };
    }
    imbrex_status status = IMBREX_OK;
    for (;;) {
        int count;
        imx_socket_result result = poll_rest(star, POLLOUT, deadline, &count);
        if (count == 0)
            return status;
        if (result == IMX_SOCKET_LATE)
            return fail_late(star, "take the result of allgather");
        if (result == IMX_SOCKET_ABORTED)
            return fail_aborted(star);
        if (result == IMX_SOCKET_BROKEN)
            return imx_fail_errno("waiting for the other ranks failed");
        for (int i = 0; i < count; i++) {
            if (!star->polls[i].revents)
                continue;
            result = scatter_to(&star->links[star->polled[i]]);
            if (result == IMX_SOCKET_GONE)
                status = imx_fail(IMBREX_PEER, "rank %d left during allgather %llu",
                                  star->polled[i], (unsigned long long)star->call);
            else if (result == IMX_SOCKET_BROKEN)
                status = imx_fail_errno("sending to rank %d failed", star->polled[i]);
        }
    }
}

/* ---- The other ranks ------------------------------------------------------------------------- */

static imbrex_status fail_at_rank_0(const imx_star *star, imx_socket_result result)
{
    char what[40] = "the meeting of all ranks";
    if (star->call > 0)
        snprintf(what, sizeof what, "allgather %llu", (unsigned long long)star->call);
    if (result == IMX_SOCKET_GONE)
        return imx_fail(IMBREX_PEER, "rank 0 left before %s was complete", what);
    if (result == IMX_SOCKET_LATE)
        return imx_fail(IMBREX_TIMEOUT, "rank 0 did not answer in %s within %lld ms", what,
                        (long long)star->timeout_ms);
    if (result == IMX_SOCKET_ABORTED)
        return fail_aborted(star);
    return imx_fail_errno("rank %d cannot talk to rank 0 in %s", star->rank, what);
}

/* Sends until done, or until rank 0 speaks or leaves: it never speaks before it has everything,
 * unless to say what went wrong. */
static imx_socket_result offer(const imx_star *star, imx_socket_span *span, int64_t deadline)
{
    int fd = star->links[0].fd;
    imx_socket_result result;
    while ((result = imx_socket_send(fd, span)) == IMX_SOCKET_AGAIN) {
        struct pollfd ready = { .fd = fd, .events = POLLIN | POLLOUT };
        result = imx_socket_poll(&ready, 1, deadline, star->abort);
        if (result != IMX_SOCKET_DONE || ready.revents & ~POLLOUT)
            return result;
    }
    /* Gone: what it said before may still be there to be read. */
    return result == IMX_SOCKET_GONE ? IMX_SOCKET_DONE : result;
}

/* What follows a header that is believed. */
static imbrex_status take_body(const imx_star *star, const imx_star_header *header, void *body,
                               size_t bytes, int64_t deadline)
{
    imx_socket_result result =
        imx_socket_recv_all(star->links[0].fd, body, bytes, deadline, star->abort);
    if (result != IMX_SOCKET_DONE)
        return fail_at_rank_0(star, result);
    return header->digest == digest_of(star, body, bytes) ? IMBREX_OK : fail_forged(star, 0);
}

/* Rank 0's answer: all blobs, or why not. */
static imbrex_status take(imx_star *star, void *all, size_t bytes, int64_t deadline)
{
    imx_star_header header;
    imx_socket_result result =
        imx_socket_recv_all(star->links[0].fd, &header, sizeof header, deadline, star->abort);
    if (result != IMX_SOCKET_DONE)
        return fail_at_rank_0(star, result);
    if (!is_sealed(&star->links[0], &header))
        return fail_forged(star, 0);
    if (header.magic != MAGIC)
        return imx_fail(IMBREX_PEER, "rank 0 sent something else than allgather %llu",
                        (unsigned long long)star->call);
    if (header.status != IMBREX_OK) {
        char text[IMX_STAR_TEXT];
        IMX_TRY(take_body(star, &header, text, sizeof text, deadline));
        return imx_fail(header.status == IMBREX_TIMEOUT ? IMBREX_TIMEOUT : IMBREX_PEER, "%.*s",
                        IMX_STAR_TEXT, text);
    }
    if (header.call != star->call || header.bytes != bytes)
        return imx_fail(IMBREX_PEER, "rank %d and rank 0 lost step in allgather %llu", star->rank,
                        (unsigned long long)star->call);
    return take_body(star, &header, all, bytes * (size_t)star->size, deadline);
}

static imbrex_status swap_with_rank_0(imx_star *star, const void *own, void *all, size_t bytes,
                                      int64_t deadline)
{
    imx_star_header header = { .magic = MAGIC,
                               .call = star->call,
                               .bytes = bytes,
                               .remaining_ms = imx_max(deadline - imx_socket_now_ms(), 0),
                               .digest = digest_of(star, own, bytes) };
    seal(&star->links[0], &header);
    imx_socket_span spans[2] = { { (char *)&header, sizeof header },
                                 { (char *)(uintptr_t)own, bytes } };
    for (int i = 0; i < 2 && (i == 0 || spans[0].left == 0); i++) {
        imx_socket_result result = offer(star, &spans[i], deadline);
        if (result != IMX_SOCKET_DONE)
            return fail_at_rank_0(star, result);
    }
    /* Rank 0 keeps the deadline too; with some grace its answer is heard, which knows more. */
    return take(star, all, bytes, deadline + IMX_STAR_GRACE_MS);
}

/* ---- All ------------------------------------------------------------------------------------- */

imbrex_status imx_star_start(imx_star *star, int64_t deadline)
{
    imbrex_status status = star->rank == 0 ? scatter(star, NULL, 0, deadline)
                                           : take(star, NULL, 0, deadline + IMX_STAR_GRACE_MS);
    return status == IMBREX_OK ? IMBREX_OK : imx_star_fail(star, status);
}

imbrex_status imx_star_allgather(imx_star *star, const void *send, void *recv, size_t bytes)
{
    if (star->status != IMBREX_OK)
        return imx_fail(star->status, "the bootstrap failed before: %s", star->text);
    size_t all_bytes;
    if (__builtin_mul_overflow((size_t)star->size, bytes, &all_bytes))
        return imx_star_fail(
            star, imx_fail(IMBREX_INVALID, "%d blobs of %zu bytes do not fit", star->size, bytes));
    star->call++;
    int64_t deadline = imx_socket_deadline(star->timeout_ms);
    imbrex_status status = IMBREX_OK;
    if (star->rank == 0) {
        if (bytes > 0)
            memmove(recv, send, bytes);
        status = gather(star, recv, bytes, deadline);
        if (status == IMBREX_OK)
            status = scatter(star, recv, bytes, deadline);
    } else {
        status = swap_with_rank_0(star, send, recv, bytes, deadline);
    }
    return status == IMBREX_OK ? IMBREX_OK : imx_star_fail(star, status);
}
