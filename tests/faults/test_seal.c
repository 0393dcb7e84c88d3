/* test_seal.c - somebody between two ranks, who hears all that they say and may change it: what he
 * changes, repeats or sends back is not believed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "bootstrap/handshake.h"
#include "bootstrap/oob.h"
#include "meeting.h"

/* Each message verifies once, at its place, on its side. */
static void test_seal(void **state)
{
    (void)state;
    const imx_seal start = { .key = { 1, 2 } };
    imx_seal there = start, here = start, late = start, other = { .key = { 1, 3 } };
    uint64_t first = imx_seal_next(&there, "a", 1), second = imx_seal_next(&there, "a", 1);
    assert_true(first != second);
    assert_true(first != imx_seal_next(&other, "a", 1));
    assert_true(imx_seal_next(&here, "a", 1) == first);
    assert_true(imx_seal_next(&here, "a", 1) == second);
    assert_true(imx_seal_next(&here, "a", 1) != first);  /* repeated */
    assert_true(imx_seal_next(&late, "a", 1) != second); /* out of order */
    here = start;
    assert_true(imx_seal_next(&here, "b", 1) != first);
    here = start;
    assert_true(imx_seal_next(&here, "a", 2) != first);
}

enum {
    UP = 0,   /* from rank 1 to rank 0 */
    DOWN = 1, /* and back */
    HEADER = sizeof(imx_oob_header),
    UP_START = sizeof(imx_handshake_hello) + sizeof(imx_handshake_proof),
    UP_MESSAGE = HEADER + sizeof(int),
    START = sizeof(imx_handshake_challenge) + sizeof(imx_handshake_verdict),
    DOWN_START = START + HEADER,
    DOWN_MESSAGE = HEADER + 2 * sizeof(int),
    STREAM_MOST = 4096
};

/* What a relay does to the streams of the two ranks.  The group then ends with PEER, and with what
 * the ranks say; NULL: all goes well. */
typedef struct relay_case {
    const char *what;
    int way, at, bytes; /* from byte `at` on so many are changed; 0: the connection ends there */
    int from_way,
        from_at; /* to what was said there; from_way FLIP: their lowest bits are flipped */
    const char *rank_0_says, *rank_1_says;
} relay_case;

enum { FLIP = -1, NEITHER = -1 };

#define OF(field) (int)offsetof(imx_oob_header, field)
#define AT_0(call) \
    "what came to rank 0 as rank 1's in allgather " call " is not what that rank sent"
#define AT_1(call) \
    "what came to rank 1 as rank 0's in allgather " call " is not what that rank sent"
#define RANK_LEFT(rank) "rank " rank " left before"

static const relay_case relay_cases[] = {
    { "nothing", NEITHER, 0, 0, 0, 0, NULL, NULL },
    { "a blob", UP, UP_START + HEADER, 1, FLIP, 0, AT_0("1"), AT_0("1") },
    { "a limit", UP, UP_START + OF(remaining_ms), 1, FLIP, 0, AT_0("1"), AT_0("1") },
    { "a seal", UP, UP_START + OF(seal), 1, FLIP, 0, AT_0("1"), AT_0("1") },
    { "the start", DOWN, START + OF(status), 1, FLIP, 0, RANK_LEFT("1"), AT_1("0") },
    { "the answer", DOWN, DOWN_START + HEADER, 1, FLIP, 0, RANK_LEFT("1"), AT_1("1") },
    { "its digest", DOWN, DOWN_START + OF(digest), 1, FLIP, 0, RANK_LEFT("1"), AT_1("1") },
    { "the first again", UP, UP_START + UP_MESSAGE, UP_MESSAGE, UP, UP_START, AT_0("2"),
      AT_0("2") },
    { "the first answer again", DOWN, DOWN_START + DOWN_MESSAGE, DOWN_MESSAGE, DOWN, DOWN_START,
      NULL, AT_1("2") },
    { "what was asked, sent back", DOWN, DOWN_START, HEADER, UP, UP_START, RANK_LEFT("1"),
      AT_1("1") },
    { "the end", UP, UP_START + HEADER + 2, 0, 0, 0, RANK_LEFT("1"), RANK_LEFT("0") },
};

/* Of one connection: what each side has said so far. */
typedef struct relay {
    const relay_case *is;
    int fds[2]; /* rank 1's, rank 0's */
    char said[2][STREAM_MOST];
    int length[2];
    bool ended;
} relay;

/* Passes on what is there to be read, byte by byte. */
static void pass_on(relay *r, int way)
{
    const relay_case *is = r->is;
    char byte;
    ssize_t got = 1;
    while (!r->ended && (got = recv(r->fds[way], &byte, 1, MSG_DONTWAIT)) == 1) {
        int at = r->length[way];
        bool mine = is->way == way && at >= is->at;
        r->ended = mine && is->bytes == 0;
        assert_in_range(at, 0, STREAM_MOST - 1);
        r->said[way][r->length[way]++] = byte;
        if (mine && at < is->at + is->bytes)
            byte = is->from_way == FLIP ? (char)(byte ^ 1)
                                        : r->said[is->from_way][is->from_at + at - is->at];
        if (!r->ended)
            (void)!send(r->fds[1 - way], &byte, 1, MSG_NOSIGNAL);
    }
    r->ended = r->ended || got == 0 || errno != EAGAIN;
}

static int connect_to_rank_0(int port)
{
    const struct sockaddr_in at = { .sin_family = AF_INET,
                                    .sin_port = htons((uint16_t)port),
                                    .sin_addr = { htonl(INADDR_LOOPBACK + 1) } };
    for (int i = 0; i < 500; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (!connect(fd, (const struct sockaddr *)&at, sizeof at))
            return fd;
        close(fd);
        usleep(10000);
    }
    fail_msg("rank 0 does not listen at 127.0.0.2:%d", port);
    return -1;
}

/* One connection of rank 1's, until it ends. */
static void relay_one(relay *r, int listener, int port)
{
    struct pollfd door = { .fd = listener, .events = POLLIN };
    assert_int_equal(poll(&door, 1, (int)patient(10000)), 1);
    r->fds[UP] = accept(listener, NULL, NULL);
    r->fds[DOWN] = connect_to_rank_0(port);
    r->length[UP] = r->length[DOWN] = 0;
    r->ended = false;
    while (!r->ended) {
        struct pollfd both[2] = { { .fd = r->fds[UP], .events = POLLIN },
                                  { .fd = r->fds[DOWN], .events = POLLIN } };
        assert_in_range(poll(both, 2, (int)patient(10000)), 1, 2);
        for (int way = UP; way <= DOWN; way++)
            if (both[way].revents)
                pass_on(r, way);
    }
    close(r->fds[UP]);
    close(r->fds[DOWN]);
}

static imbrex_status swap_twice(imx_bootstrap *bootstrap)
{
    IMX_TRY(meeting_swap(bootstrap));
    return meeting_swap(bootstrap);
}

static void check(const relay_case *is, int rank, const meeting_result *result, const char *says)
{
    imbrex_status want = says ? IMBREX_PEER : IMBREX_OK;
    if (result->status != want || (says && !strstr(result->text, says)))
        fail_msg("%s: rank %d ends with %s, \"%s\", want %s, \"%s\"", is->what, rank,
                 imbrex_status_name(result->status), result->text, imbrex_status_name(want),
                 says ? says : "");
    assert_in_range(result->took_ms, 0, 5000);
}

/* Rank 0 listens at 127.0.0.2, the relay at 127.0.0.1, where rank 1 looks for it. */
static void play_relay(const relay_case *is)
{
    meeting_rank ranks[2];
    meeting_make(ranks, 2, MEETING_TCP);
    int port = ranks[0].launch.port + 1, listener = meeting_occupy(port);
    strcpy(ranks[0].env.bind, "127.0.0.2");
    ranks[0].then = ranks[1].then = swap_twice;
    meeting_ranks *meeting = meeting_start(ranks, 2);
    relay r = { .is = is };
    do /* a rank that lost patience calls again */
        relay_one(&r, listener, port);
    while (r.length[DOWN] <= START);
    close(listener);
    const meeting_result *results = meeting_join(meeting);
    check(is, 0, &results[0], is->rank_0_says);
    check(is, 1, &results[1], is->rank_1_says);
}

static void test_relay(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof relay_cases / sizeof *relay_cases; i++)
        play_relay(&relay_cases[i]);
}

int main(void)
{
    alarm((unsigned)patient(120));
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_seal), cmocka_unit_test(test_relay) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
