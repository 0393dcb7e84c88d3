/* oob.c - allgather through rank 0, which serves all connections at once: nobody who is slow, dead
 * or wrong can hold up the news for the others. */
#include "oob.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/siphash.h"

#define MAGIC 0x7261747378626d69 /* "imbxstar" */

imbrex_status imx_oob_open(imx_oob *oob, int rank, int size, int64_t timeout_ms)
{
    oob->rank = rank;
    oob->size = size;
    oob->timeout_ms = timeout_ms;
    IMX_TRY(imx_sys_alloc((size_t)size, sizeof *oob->links, &oob->links));
    for (int r = 0; r < size; r++)
        oob->links[r].fd = -1;
    IMX_TRY(imx_sys_alloc((size_t)size, sizeof *oob->polls, &oob->polls));
    return imx_sys_alloc((size_t)size, sizeof *oob->polled, &oob->polled);
}

void imx_oob_close(imx_oob *oob)
{
    for (int r = 0; oob->links && r < oob->size; r++)
        if (oob->links[r].fd >= 0)
            close(oob->links[r].fd);
    free(oob->links);
    free(oob->polls);
    free(oob->polled);
}

/* ---- Seals ----------------------------------------------------------------------------------- */

static void seal(imx_oob_link *link, imx_oob_header *header)
{
    header->seal = 0;
    header->seal = imx_seal_next(&link->seals.send, header, sizeof *header);
}

static bool is_sealed(imx_oob_link *link, const imx_oob_header *header)
{
    imx_oob_header said = *header;
    said.seal = 0;
    return header->seal == imx_seal_next(&link->seals.receive, &said, sizeof said);
}

static uint64_t digest_of(const imx_oob *oob, const void *body, size_t bytes)
{
    return imx_siphash(oob->key, body, bytes);
}

static imbrex_status fail_forged(const imx_oob *oob, int from)
{
    return imx_fail(IMBREX_PEER,
                    "what came to rank %d as rank %d's in allgather %llu is not what that rank "
                    "sent: something between them alters, repeats, reorders or forges it",
                    oob->rank, from, (unsigned long long)oob->call);
}

/* ---- Failure --------------------------------------------------------------------------------- */

void imx_oob_name_ranks(const imx_oob *oob, bool (*wanted)(const imx_oob_link *link),
                        imx_text *text)
{
    enum { MOST = 16 };
    int count = 0, named = 0;
    for (int r = 1; r < oob->size; r++)
        count += wanted(&oob->links[r]);
    imx_text_add(text, count == 1 ? "rank" : "ranks");
    int shown = count <= MOST ? count : MOST;
    for (int r = 1; r < oob->size && named < shown; r++) {
        if (!wanted(&oob->links[r]))
            continue;
        bool last = ++named == count;
        imx_text_add(text, "%s %d", named == 1 ? "" : last ? " and" : ",", r);
    }
    if (count > shown)
        imx_text_add(text, " and %d more", count - shown);
}

/* Best effort, without waiting: an idle connection has room for it. */
static void tell(imx_oob *oob, imbrex_status status)
{
    const bool own = status != IMBREX_PEER && status != IMBREX_TIMEOUT;
    struct {
        imx_oob_header header;
        char text[IMX_OOB_TEXT];
    } message = { .header = { .magic = MAGIC, .call = oob->call } };
    message.header.status = own ? IMBREX_PEER : status;
    snprintf(message.text, sizeof message.text, "%s%.*s", own ? "rank 0 failed: " : "",
             IMX_OOB_TEXT - 16, oob->text);
    message.header.digest = digest_of(oob, message.text, sizeof message.text);
    for (int r = 1; r < oob->size; r++) {
        imx_socket_span span = { (char *)&message, sizeof message };
        imx_oob_link *link = &oob->links[r];
        seal(link, &message.header);
        if (link->fd >= 0 && (link->midway || imx_socket_send(link->fd, &span) != IMX_SOCKET_DONE))
            shutdown(link->fd, SHUT_RDWR);
    }
}

imbrex_status imx_oob_fail(imx_oob *oob, imbrex_status status)
{
    snprintf(oob->text, sizeof oob->text, "%s", imx_status_detail());
    oob->status = status;
    if (oob->rank == 0)
        tell(oob, status);
    else if (oob->links && oob->links[0].fd >= 0)
        shutdown(oob->links[0].fd, SHUT_RDWR);
    return status;
}

/* ---- Rank 0 ---------------------------------------------------------------------------------- */

static bool not_done(const imx_oob_link *link)
{
    return !link->done;
}

static imbrex_status fail_late(const imx_oob *oob, const char *did_not)
{
    char ranks[160];
    imx_text text = { .at = ranks, .size = sizeof ranks };
    imx_oob_name_ranks(oob, not_done, &text);
    return imx_fail(IMBREX_TIMEOUT, "%s of %d did not %s %llu within %lld ms", ranks, oob->size,
                    did_not, (unsigned long long)oob->call, (long long)oob->timeout_ms);
}

/* The group knows why. */
static imbrex_status fail_aborted(const imx_oob *oob)
{
    return imx_fail(IMBREX_PEER, "the group failed before allgather %llu was complete",
                    (unsigned long long)oob->call);
}

/* Polls the links that are not done.  Their number is *count, 0 when all are done. */
static imx_socket_result poll_rest(imx_oob *oob, short events, int64_t deadline, int *count)
{
    *count = 0;
    for (int r = 1; r < oob->size; r++) {
        if (oob->links[r].done)
            continue;
        oob->polls[*count] = (struct pollfd){ .fd = oob->links[r].fd, .events = events };
        oob->polled[(*count)++] = r;
    }
    return *count ? imx_socket_poll(oob->polls, (size_t)*count, deadline, oob->abort)
                  : IMX_SOCKET_DONE;
}

static imbrex_status check_header(const imx_oob *oob, int rank, size_t bytes)
{
    const imx_oob_header *in = &oob->links[rank].in;
    if (in->magic != MAGIC || in->call != oob->call)
        return imx_fail(IMBREX_PEER, "rank %d and rank 0 lost step in allgather %llu", rank,
                        (unsigned long long)oob->call);
    if (in->bytes != bytes)
        return imx_fail(IMBREX_PEER,
                        "rank %d came to allgather %llu with %llu bytes, rank 0 with %zu: the "
                        "ranks do not make the same calls",
                        rank, (unsigned long long)oob->call, (unsigned long long)in->bytes, bytes);
    return IMBREX_OK;
}

static char *blob_of(char *all, int rank, size_t bytes)
{
    return bytes > 0 ? all + (size_t)rank * bytes : NULL; /* all may be NULL then */
}

/* One readable link.  Its deadline counts for all: when the first rank gives up, the allgather has
 * failed, and everyone should hear the same reason. */
static imbrex_status gather_from(imx_oob *oob, int rank, const void *blob, size_t bytes,
                                 int64_t *deadline)
{
    imx_oob_link *link = &oob->links[rank];
    imx_socket_result result = IMX_SOCKET_DONE;
    if (link->header.left > 0) {
        result = imx_socket_recv(link->fd, &link->header);
        if (result == IMX_SOCKET_DONE) {
            if (!is_sealed(link, &link->in))
                return fail_forged(oob, rank);
            IMX_TRY(check_header(oob, rank, bytes));
            *deadline = imx_min(*deadline, imx_socket_deadline(link->in.remaining_ms));
        }
    }
    if (result == IMX_SOCKET_DONE)
        result = imx_socket_recv(link->fd, &link->body);
    if (result == IMX_SOCKET_DONE && link->in.digest != digest_of(oob, blob, bytes))
        return fail_forged(oob, rank);
    link->done = result == IMX_SOCKET_DONE;
    if (result == IMX_SOCKET_GONE)
        return imx_fail(IMBREX_PEER, "rank %d left before allgather %llu was complete", rank,
                        (unsigned long long)oob->call);
    if (result == IMX_SOCKET_BROKEN)
        return imx_fail_errno("receiving from rank %d failed", rank);
    return IMBREX_OK;
}

static imbrex_status gather(imx_oob *oob, char *all, size_t bytes, int64_t deadline)
{
    for (int r = 1; r < oob->size; r++) {
        imx_oob_link *link = &oob->links[r];
        link->done = false;
        link->header = (imx_socket_span){ (char *)&link->in, sizeof link->in };
        link->body = (imx_socket_span){ blob_of(all, r, bytes), bytes };
    }
    for (;;) {
        int count;
        imx_socket_result result = poll_rest(oob, POLLIN, deadline, &count);
        if (count == 0)
            return IMBREX_OK;
        if (result == IMX_SOCKET_LATE)
            return fail_late(oob, "come to allgather");
        if (result == IMX_SOCKET_ABORTED)
            return fail_aborted(oob);
        if (result == IMX_SOCKET_BROKEN)
            return imx_fail_errno("waiting for the other ranks failed");
        for (int i = 0; i < count; i++)
            if (oob->polls[i].revents)
                IMX_TRY(gather_from(oob, oob->polled[i], blob_of(all, oob->polled[i], bytes), bytes,
                                    &deadline));
    }
}

static imx_socket_result scatter_to(imx_oob_link *link)
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
static imbrex_status scatter(imx_oob *oob, const char *all, size_t bytes, int64_t deadline)
{
    const size_t all_bytes = bytes * (size_t)oob->size;
    const imx_oob_header header = {
        .magic = MAGIC, .call = oob->call, .bytes = bytes, .digest = digest_of(oob, all, all_bytes)
    };
    for (int r = 1; r < oob->size; r++) {
        imx_oob_link *link = &oob->links[r];
        link->done = false;
        link->in = header;
        seal(link, &link->in);
        link->header = (imx_socket_span){ (char *)&link->in, sizeof link->in };
        link->body = (imx_socket_span){ (char *)(uintptr_t)all, all_bytes };
    }
    imbrex_status status = IMBREX_OK;
    for (;;) {
        int count;
        imx_socket_result result = poll_rest(oob, POLLOUT, deadline, &count);
        if (count == 0)
            return status;
        if (result == IMX_SOCKET_LATE)
            return fail_late(oob, "take the result of allgather");
        if (result == IMX_SOCKET_ABORTED)
            return fail_aborted(oob);
        if (result == IMX_SOCKET_BROKEN)
            return imx_fail_errno("waiting for the other ranks failed");
        for (int i = 0; i < count; i++) {
            if (!oob->polls[i].revents)
                continue;
            result = scatter_to(&oob->links[oob->polled[i]]);
            if (result == IMX_SOCKET_GONE)
                status = imx_fail(IMBREX_PEER, "rank %d left during allgather %llu", oob->polled[i],
                                  (unsigned long long)oob->call);
            else if (result == IMX_SOCKET_BROKEN)
                status = imx_fail_errno("sending to rank %d failed", oob->polled[i]);
        }
    }
}

/* ---- The other ranks ------------------------------------------------------------------------- */

static imbrex_status fail_at_rank_0(const imx_oob *oob, imx_socket_result result)
{
    char what[40] = "the meeting of all ranks";
    if (oob->call > 0)
        snprintf(what, sizeof what, "allgather %llu", (unsigned long long)oob->call);
    if (result == IMX_SOCKET_GONE)
        return imx_fail(IMBREX_PEER, "rank 0 left before %s was complete", what);
    if (result == IMX_SOCKET_LATE)
        return imx_fail(IMBREX_TIMEOUT, "rank 0 did not answer in %s within %lld ms", what,
                        (long long)oob->timeout_ms);
    if (result == IMX_SOCKET_ABORTED)
        return fail_aborted(oob);
    return imx_fail_errno("rank %d cannot talk to rank 0 in %s", oob->rank, what);
}

/* Sends until done, or until rank 0 speaks or leaves: it never speaks before it has everything,
 * unless to say what went wrong. */
static imx_socket_result offer(const imx_oob *oob, imx_socket_span *span, int64_t deadline)
{
    int fd = oob->links[0].fd;
    imx_socket_result result;
    while ((result = imx_socket_send(fd, span)) == IMX_SOCKET_AGAIN) {
        struct pollfd ready = { .fd = fd, .events = POLLIN | POLLOUT };
        result = imx_socket_poll(&ready, 1, deadline, oob->abort);
        if (result != IMX_SOCKET_DONE || ready.revents & ~POLLOUT)
            return result;
    }
    /* Gone: what it said before may still be there to be read. */
    return result == IMX_SOCKET_GONE ? IMX_SOCKET_DONE : result;
}

/* What follows a header that is believed. */
static imbrex_status take_body(const imx_oob *oob, const imx_oob_header *header, void *body,
                               size_t bytes, int64_t deadline)
{
    imx_socket_result result =
        imx_socket_recv_all(oob->links[0].fd, body, bytes, deadline, oob->abort);
    if (result != IMX_SOCKET_DONE)
        return fail_at_rank_0(oob, result);
    return header->digest == digest_of(oob, body, bytes) ? IMBREX_OK : fail_forged(oob, 0);
}

/* Rank 0's answer: all blobs, or why not. */
static imbrex_status take(imx_oob *oob, void *all, size_t bytes, int64_t deadline)
{
    imx_oob_header header;
    imx_socket_result result =
        imx_socket_recv_all(oob->links[0].fd, &header, sizeof header, deadline, oob->abort);
    if (result != IMX_SOCKET_DONE)
        return fail_at_rank_0(oob, result);
    if (!is_sealed(&oob->links[0], &header))
        return fail_forged(oob, 0);
    if (header.magic != MAGIC)
        return imx_fail(IMBREX_PEER, "rank 0 sent something else than allgather %llu",
                        (unsigned long long)oob->call);
    if (header.status != IMBREX_OK) {
        char text[IMX_OOB_TEXT];
        IMX_TRY(take_body(oob, &header, text, sizeof text, deadline));
        return imx_fail(header.status == IMBREX_TIMEOUT ? IMBREX_TIMEOUT : IMBREX_PEER, "%.*s",
                        IMX_OOB_TEXT, text);
    }
    if (header.call != oob->call || header.bytes != bytes)
        return imx_fail(IMBREX_PEER, "rank %d and rank 0 lost step in allgather %llu", oob->rank,
                        (unsigned long long)oob->call);
    return take_body(oob, &header, all, bytes * (size_t)oob->size, deadline);
}

static imbrex_status swap_with_rank_0(imx_oob *oob, const void *own, void *all, size_t bytes,
                                      int64_t deadline)
{
    imx_oob_header header = { .magic = MAGIC,
                              .call = oob->call,
                              .bytes = bytes,
                              .remaining_ms = imx_max(deadline - imx_socket_now_ms(), 0),
                              .digest = digest_of(oob, own, bytes) };
    seal(&oob->links[0], &header);
    imx_socket_span spans[2] = { { (char *)&header, sizeof header },
                                 { (char *)(uintptr_t)own, bytes } };
    for (int i = 0; i < 2 && (i == 0 || spans[0].left == 0); i++) {
        imx_socket_result result = offer(oob, &spans[i], deadline);
        if (result != IMX_SOCKET_DONE)
            return fail_at_rank_0(oob, result);
    }
    /* Rank 0 keeps the deadline too; with some grace its answer is heard, which knows more. */
    return take(oob, all, bytes, deadline + IMX_OOB_GRACE_MS);
}

/* ---- All ------------------------------------------------------------------------------------- */

imbrex_status imx_oob_start(imx_oob *oob, int64_t deadline)
{
    imbrex_status status = oob->rank == 0 ? scatter(oob, NULL, 0, deadline)
                                          : take(oob, NULL, 0, deadline + IMX_OOB_GRACE_MS);
    return status == IMBREX_OK ? IMBREX_OK : imx_oob_fail(oob, status);
}

imbrex_status imx_oob_allgather(imx_oob *oob, const void *send, void *recv, size_t bytes)
{
    if (oob->status != IMBREX_OK)
        return imx_fail(oob->status, "the bootstrap failed before: %s", oob->text);
    size_t all_bytes;
    if (__builtin_mul_overflow((size_t)oob->size, bytes, &all_bytes))
        return imx_oob_fail(
            oob, imx_fail(IMBREX_INVALID, "%d blobs of %zu bytes do not fit", oob->size, bytes));
    oob->call++;
    int64_t deadline = imx_socket_deadline(oob->timeout_ms);
    imbrex_status status = IMBREX_OK;
    if (oob->rank == 0) {
        if (bytes > 0)
            memmove(recv, send, bytes);
        status = gather(oob, recv, bytes, deadline);
        if (status == IMBREX_OK)
            status = scatter(oob, recv, bytes, deadline);
    } else {
        status = swap_with_rank_0(oob, send, recv, bytes, deadline);
    }
    return status == IMBREX_OK ? IMBREX_OK : imx_oob_fail(oob, status);
}
