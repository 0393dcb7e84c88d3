/* exchange_cases.c - what goes between nodes by imbrex_exchange, and what does not. */
#include "exchange_cases.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 25, BYTES = 5000, NODES_MOST = 5, SLOT = BYTES + 1 };

/* Symmetric. */
typedef struct box {
    uint64_t here[2]; /* the latest round of each stream that is here, plus one */
    unsigned char out[ROUNDS][SLOT];
    unsigned char in[ROUNDS][NODES_MOST][SLOT]; /* of each node; from its second byte on */
} box;

static size_t bytes_of(int round, int from, int to)
{
    static const size_t bytes[] = { 1, BYTES, 0, 4096, 777 };
    return bytes[(round + 3 * from + to) % 5];
}

static unsigned char value_of(int round, int from, size_t i)
{
    return (unsigned char)(round * 31 + from * 7 + (int)i % 251);
}

static int number_of(const imbrex_group *group, int rank)
{
    int number = 0;
    while (rank > number &&
           imbrex_group_node(group, rank - number - 1) == imbrex_group_node(group, rank))
        number++;
    return number;
}

static imbrex_status exchange(imbrex_group *group, box *b, int round, imbrex_stream stream)
{
    imbrex_transfer transfers[2 * NODES_MOST];
    int rank = imbrex_group_rank(group), count = 0;
    for (int r = 0; r < imbrex_group_size(group); r++) {
        int node = imbrex_group_node(group, r);
        if (node == imbrex_group_node(group, rank) || number_of(group, r) != number_of(group, rank))
            continue;
        transfers[count++] = (imbrex_transfer){ .rank = r,
                                                .send = b->out[round],
                                                .bytes = bytes_of(round, rank, r) };
        transfers[count++] = (imbrex_transfer){ .rank = r,
                                                .recv = b->in[round][node] + 1,
                                                .bytes = bytes_of(round, r, rank) };
    }
    return imbrex_exchange(group, transfers, count, stream);
}

static int check(const imbrex_group *group, int round, const box *got)
{
    int rank = imbrex_group_rank(group);
    for (int r = 0; r < imbrex_group_size(group); r++) {
        int node = imbrex_group_node(group, r);
        if (node == imbrex_group_node(group, rank) || number_of(group, r) != number_of(group, rank))
            continue;
        const unsigned char *in = got->in[round][node] + 1;
        for (size_t i = 0; i < bytes_of(round, r, rank); i++)
            RANK_CHECK(in[i] == value_of(round, r, i), "round %d: byte %zu of rank %d is %d not %d",
                       round, i, r, in[i], value_of(round, r, i));
    }
    return 0;
}

int exchange_cases(imbrex_group *group, void *ctx)
{
    (void)ctx;
    void *memory;
    imbrex_stream streams[2], reader;
    box *host = calloc(1, sizeof *host);
    RANK_CHECK(host, "no memory");
    RANK_OK(imbrex_mem_alloc(group, sizeof(box), &memory));
    RANK_OK(imbrex_stream_create(group, &streams[0]));
    RANK_OK(imbrex_stream_create(group, &streams[1]));
    RANK_OK(imbrex_stream_create(group, &reader));
    box *b = memory;
    int rank = imbrex_group_rank(group), failed = 0;
    for (int i = 0; i < ROUNDS * SLOT; i++)
        host->out[i / SLOT][i % SLOT] = value_of(i / SLOT, rank, (size_t)(i % SLOT));
    RANK_OK(imbrex_copy(group, b->out, host->out, sizeof b->out, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        imbrex_stream on = streams[round % 2];
        uint64_t number = (uint64_t)round + 1, *here = &b->here[round % 2];
        RANK_OK(exchange(group, b, round, on));
        RANK_OK(imbrex_signal_post(group, here, number, rank, on));
        RANK_OK(imbrex_signal_wait(group, here, number, reader));
        RANK_OK(imbrex_copy(group, host->in[round], b->in[round], sizeof b->in[0], reader));
        if (round % 5 == 4)
            RANK_OK(imbrex_barrier(group, NULL));
    }
    RANK_OK(imbrex_stream_sync(group, reader));
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int round = 0; round < ROUNDS && !failed; round++)
        failed = check(group, round, host);
    RANK_CHECK(imbrex_group_node(group, -1) == -1 &&
                   imbrex_group_node(group, imbrex_group_size(group)) == -1,
               "a node of ranks that are not there");
    imbrex_stream_destroy(group, streams[0]); /* the latest exchange's stream may go */
    imbrex_stream_destroy(group, streams[1]);
    imbrex_stream_destroy(group, reader);
    free(host);
    return failed;
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* As an initializer; what follows is 0. */
#define TRANSFER(to, from, into, size)                                \
    {                                                                 \
        .rank = (to), .send = (from), .recv = (into), .bytes = (size) \
    }

static int refuses(imbrex_group *group, const imbrex_transfer *transfers, int count,
                   imbrex_status want, const char *says)
{
    imbrex_status status = imbrex_exchange(group, transfers, count, NULL);
    RANK_CHECK(status == want && strstr(imbrex_error(), says), "%s, not %s with '%s': %s",
               imbrex_status_name(status), imbrex_status_name(want), says, imbrex_error());
    return 0;
}

int exchange_refusals(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { PIECE = 256, LEAVES = 10 };
    int rank = imbrex_group_rank(group), other = (rank + 2) % 4, local_peer = rank ^ 1, failed = 0;
    static char plain[64];
    void *memory;
    RANK_OK(imbrex_mem_alloc(group, PIECE, &memory));
    char *at = memory;
    const struct {
        imbrex_transfer transfer;
        imbrex_status status;
        const char *says;
    } cases[] = {
        { TRANSFER(4, at, NULL, 8), IMBREX_INVALID, "rank is 4: the group has ranks 0 to 3" },
        { TRANSFER(-1, at, NULL, 8), IMBREX_INVALID, "transfers[0].rank is -1" },
        { TRANSFER(rank, at, NULL, 8), IMBREX_UNSUPPORTED, "use imbrex_put" },
        { TRANSFER(local_peer, at, NULL, 8), IMBREX_UNSUPPORTED, "use imbrex_put" },
        { TRANSFER(other ^ 1, at, NULL, 8), IMBREX_UNSUPPORTED, "want the same number" },
        { TRANSFER(other, NULL, NULL, 8), IMBREX_INVALID, "are both NULL: want one of them" },
        { TRANSFER(other, at, at + 8, 8), IMBREX_INVALID, "are both given: want one of them" },
        { TRANSFER(other, at, NULL, SIZE_MAX), IMBREX_INVALID, "bytes is 18446744073709551615" },
        { TRANSFER(other, NULL, plain, 8), IMBREX_INVALID, "transfers[0].recv, " },
        { TRANSFER(other, NULL, at, PIECE + 1), IMBREX_INVALID, "run past the end of its memory" },
        { { .rank = other, .reserved = { 1 } }, IMBREX_UNSUPPORTED, "transfers[0].reserved" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && !failed; i++)
        failed = refuses(group, &cases[i].transfer, 1, cases[i].status, cases[i].says);
    const imbrex_transfer overlapping[] = { TRANSFER(other, at, NULL, 9),
                                            TRANSFER(other, NULL, at + 8, 8) };
    const imbrex_transfer twice[] = { TRANSFER(other, NULL, at, 9),
                                      TRANSFER(other, NULL, at + 8, 8) };
    failed = failed || refuses(group, NULL, 1, IMBREX_INVALID, "transfers is NULL") ||
             refuses(group, overlapping, -1, IMBREX_INVALID, "count is -1: want from 0 to 8") ||
             refuses(group, overlapping, 9, IMBREX_INVALID, "count is 9: want from 0 to 8") ||
             refuses(NULL, overlapping, 1, IMBREX_INVALID, "group is NULL") ||
             refuses(group, overlapping, 2, IMBREX_INVALID, "two transfers overlap") ||
             refuses(group, twice, 2, IMBREX_INVALID, "two transfers overlap");
    if (failed)
        return failed;

    /* Nothing, sends of the same bytes, and what touches, are right. */
    const imbrex_transfer right[] = {
        TRANSFER(other, at, NULL, LEAVES),
        TRANSFER(other, at, NULL, LEAVES),
        TRANSFER(other, NULL, at + LEAVES, LEAVES),
        TRANSFER(other, NULL, at + 2 * LEAVES, LEAVES),
    };
    char host[4 * LEAVES];
    memset(host, rank + 1, sizeof host);
    RANK_OK(imbrex_copy(group, at, host, LEAVES, NULL));
    RANK_OK(imbrex_exchange(group, NULL, 0, NULL));
    RANK_OK(imbrex_exchange(group, &(imbrex_transfer){ .rank = other }, 1, NULL));
    RANK_OK(imbrex_exchange(group, right, 4, NULL));
    RANK_OK(imbrex_copy(group, host, at, sizeof host, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int i = 0; i < 4 * LEAVES; i++) {
        int want = i < LEAVES ? rank + 1 : i < 3 * LEAVES ? other + 1 : 0;
        RANK_CHECK(host[i] == want, "byte %d is %d, not %d", i, host[i], want);
    }
    imbrex_mem_free(group, memory);
    return 0;
}
