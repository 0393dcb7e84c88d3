/* test_seal.c - somebody between two ranks, who hears all that they say and may change it: what he
 * changes, repeats or sends back is not believed. */
#define _GNU_SOURCE
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

#include "handshake.h"
#include "meeting.h"
#include "star.h"

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
    HEADER = sizeof(imx_star_header),
    UP_START = sizeof(imx_handshake_hello) + sizeof(imx_handshake_proof),
    UP_MESSAGE = HEADER + sizeof(int),
    DOWN_START = sizeof(imx_handshake_challenge) + sizeof(imx_handshake_verdict) + HEADER,
    DOWN_MESSAGE = HEADER + 2 * sizeof(int),
    STREAM_MOST = 4096
};

/* What a relay between the two ranks does to their streams. */
typedef struct relay_case {
    const char *what;
    int way, at;            /* from this byte on */
    int bytes;              /* so many are changed, and passed on at once; 0: none */
    int from_way, from_at;  /* to what was said there; from_way < 0: their lowest bit is flipped */
    bool cut;               /* instead: the connection ends at that byte */
    imbrex_status wants[2]; /* of rank 0, rank 1 */
    const char *says[2];
} relay_case;

#define FORGED(to, from) "what came to rank " to " as rank " from "'s in allgather "
#define LEFT(rank)       "rank " rank " left before"

static const relay_case relay_cases[] = {
    { .what = "nothing" },
    { "a blob",
      UP,
      UP_START + HEADER,
      1,
      -1,
      0,
      false,
      { IMBREX_PEER, IMBREX_PEER },
      { FORGED("0", "1") "1", FORGED("0", "1") "1" } },
    { "a limit",
      UP,
      UP_START + offsetof(imx_star_header, remaining_ms),
      1,
      -1,
      0,
      false,
      { IMBREX_PEER, IMBREX_PEER },
      { FORGED("0", "1") "1", FORGED("0", "1") "1" } },
    { "a seal",
      UP,
      UP_START + offsetof(imx_star_header, seal),
      1,
      -1,
      0,
      false,
      { IMBREX_PEER, IMBREX_PEER },
      { FORGED("0", "1") "1", FORGED("0", "1") "1" } },
    { "the start",
      DOWN,
      DOWN_START - HEADER + offsetof(imx_star_header, status),
      1,
      -1,
      0,
      false,
      { IMBREX_PEER, IMBREX_PEER },
      { LEFT("1"), FORGED("1", "0") "0" } },
    { "the answer",
      DOWN,
      DOWN_START + HEADER,
      1,
      -1,
      0,
      false,
      { IMBREX_PEER, IMBREX_PEER },
      { LEFT("1"), FORGED("1", "0") "1" } },
    { "an answer's digest",
      DOWN,
      DOWN_START + offsetof(imx_star_header, digest),
      1,
      -1,
      0,
      false,
      { IMBREX_PEER, IMBREX_PEER },
      { LEFT("1"), FORGED("1", "0") "1" } },
    { "the second, by the first again",
      UP,
      UP_START + UP_MESSAGE,
      UP_MESSAGE,
      UP,
      UP_START,
      false,
      { IMBREX_PEER, IMBREX_PEER },
      { FORGED("0", "1") "2", FORGED("0", "1") "2" } },
    { "the second answer, by the first again",
      DOWN,
      DOWN_START + DOWN_MESSAGE,
      DOWN_MESSAGE,
      DOWN,
      DOWN_START,
      false,
      { IMBREX_OK, IMBREX_PEER },
      { "", FORGED("1", "0") "2" } },
    { "the answer, by what was asked",
      DOWN,
      DOWN_START,
      HEADER,
      UP,
      UP_START,
      false,
      { IMBREX_PEER, IMBREX_PEER },
      { LEFT("1"), FORGED("1", "0") "1" } },
    { "the end",
      UP,
      UP_START + HEADER + 2,
      0,
      0,
      0,
      true,
      { IMBREX_PEER, IMBREX_PEER },
      { LEFT("1"), LEFT("0") } },
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
    while (!r->ended && recv(r->fds[way], &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0) {
        int at = r->length[way];
        if (recv(r->fds[way], &byte, 1, 0) != 1 || (is->cut && is->way == way && is->at == at)) {
            r->ended = true;
            break;
        }
        assert_in_range(at, 0, STREAM_MOST - 1);
        r->said[way][r->length[way]++] = byte;
        bool changed = !is->cut && is->way == way && at >= is->at && at < is->at + is->bytes;
        if (changed)
            byte = is->from_way < 0 ? (char)(byte ^ 1)
                                    : r->said[is->from_way][is->from_at + at - is->at];
        (void)!send(r->fds[1 - way], &byte, 1, MSG_NOSIGNAL);
    }
}

/* The first connection that is rank 1's; rank 0 itself asks who holds its port. */
static int accept_rank_1(int listener)
{
    for (;;) {
        struct pollfd door = { .fd = listener, .events = POLLIN };
        assert_int_equal(poll(&door, 1, (int)patient(10000)), 1);
        imx_handshake_hello hello;
        int fd = accept(listener, NULL, NULL);
        if (recv(fd, &hello, sizeof hello, MSG_PEEK | MSG_WAITALL) == sizeof hello &&
            hello.rank == 1)
            return fd;
        close(fd);
    }
}

static imbrex_status swap_twice(imx_bootstrap *bootstrap)
{
    IMX_TRY(meeting_swap(bootstrap));
    return meeting_swap(bootstrap);
}

static void play_relay(const relay_case *is)
{
    meeting_rank ranks[2];
    meeting_make(ranks, 2, MEETING_TCP);
    int port = ranks[0].launch.port, listener = meeting_occupy(port + 1);
    ranks[0].then = ranks[1].then = swap_twice;
    ranks[1].delay_ms = 100;
    meeting_ranks *meeting = meeting_start(ranks, 2);
    relay r = { .is = is, .fds = { accept_rank_1(listener) } };
    r.fds[1] = meeting_connect(port + 2);
    while (!r.ended) {
        struct pollfd both[2] = { { .fd = r.fds[0], .events = POLLIN },
                                  { .fd = r.fds[1], .events = POLLIN } };
        assert_in_range(poll(both, 2, (int)patient(10000)), 1, 2);
        for (int way = UP; way <= DOWN; way++)
            if (both[way].revents)
                pass_on(&r, way);
    }
    close(r.fds[0]);
    close(r.fds[1]);
    close(listener);
    const meeting_result *results = meeting_join(meeting);
    assert_true(r.length[UP] >= UP_START && r.length[DOWN] >= DOWN_START);
    for (int i = 0; i < 2; i++) {
        if (results[i].status != is->wants[i] ||
            (is->says[i] && !strstr(results[i].text, is->says[i])))
            fail_msg("%s changed: rank %d says %s, \"%s\", want %s, \"%s\"", is->what, i,
                     imbrex_status_name(results[i].status), results[i].text,
                     imbrex_status_name(is->wants[i]), is->says[i] ? is->says[i] : "");
        assert_in_range(results[i].took_ms, 0, 5000);
    }
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
