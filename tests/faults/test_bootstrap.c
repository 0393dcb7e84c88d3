/* test_bootstrap.c - what ranks swap once they have met. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/siphash.h"
#include "bootstrap/host.h"
#include "meeting.h"

/* The reference vectors: key 00 01 .. 0f, message 00 01 .. of the index's length. */
static void test_siphash(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        uint64_t hash;
    } vectors[] = {
        { 0, 0x726fdb47dd0e0e31 },  { 1, 0x74f839c593dc67fd }, { 2, 0x0d6c8009d9a94f5a },
        { 3, 0x85676696d7fb7e2d },  { 4, 0xcf2794e0277187b7 }, { 5, 0x18765564cd99a68d },
        { 6, 0xcbc9466e58fee3ce },  { 7, 0xab0200f58b01d137 }, { 8, 0x93f5f5799a932462 },
        { 15, 0xa129ca6149be45e5 },
    };
    const uint64_t key[2] = { 0x0706050403020100, 0x0f0e0d0c0b0a0908 };
    unsigned char message[16];
    for (size_t i = 0; i < sizeof message; i++)
        message[i] = (unsigned char)i;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        uint64_t hash = imx_siphash(key, message, vectors[i].bytes);
        if (hash != vectors[i].hash)
            fail_msg("%zu bytes give %016llx, want %016llx", vectors[i].bytes,
                     (unsigned long long)hash, (unsigned long long)vectors[i].hash);
    }
}

/* ---- Allgather ------------------------------------------------------------------------------- */

static imbrex_status swap_bytes(imx_bootstrap *bootstrap, size_t bytes)
{
    const imbrex_bootstrap *b = imx_bootstrap_public(bootstrap);
    char *own = malloc(bytes + 1), *all = malloc((size_t)b->size * bytes + 1);
    memset(own, b->rank + 1, bytes);
    all[(size_t)b->size * bytes] = 77;
    imbrex_status status = IMBREX_OK;
    if (b->allgather(b->ctx, own, all, bytes))
        status = imx_bootstrap_status(bootstrap);
    for (int r = 0; r < b->size && !status; r++) {
        const char *has = all + (size_t)r * bytes;
        size_t i = 0;
        memset(own, r + 1, bytes);
        if (memcmp(has, own, bytes) == 0)
            continue;
        while (has[i] == own[i])
            i++;
        status = imx_fail(IMBREX_INTERNAL, "byte %zu of rank %d is %d", i, r, has[i]);
    }
    if (!status && all[(size_t)b->size * bytes] != 77)
        status = imx_fail(IMBREX_INTERNAL, "wrote beyond the end");
    free(own);
    free(all);
    return status;
}

static imbrex_status swap_many(imx_bootstrap *bootstrap)
{
    for (size_t i = 0; i < 100; i++)
        IMX_TRY(swap_bytes(bootstrap, i * i * 7 % 5000));
    return swap_bytes(bootstrap, 3 << 20); /* far beyond what a socket holds */
}

static void test_allgather(void **state)
{
    (void)state;
    meeting_check_sizes(swap_many);
}

/* The failure stays: a later call says it again, with the same status. */
static imbrex_status fail_twice(imx_bootstrap *bootstrap, size_t bytes)
{
    imbrex_status first = swap_bytes(bootstrap, bytes);
    imbrex_status second = swap_bytes(bootstrap, 0);
    if (first != second || !strstr(imbrex_error(), "the bootstrap failed before: "))
        return imx_fail(IMBREX_INTERNAL, "first %d, then %d", first, second);
    return first;
}

static imbrex_status mismatch(imx_bootstrap *bootstrap)
{
    IMX_TRY(meeting_swap(bootstrap));
    return fail_twice(bootstrap, imx_bootstrap_public(bootstrap)->rank == 2 ? 16 : 8);
}

/* Rank 0 learns of it while both ranks are in the middle of sending more than a socket holds. */
static imbrex_status mismatch_midway(imx_bootstrap *bootstrap)
{
    int rank = imx_bootstrap_public(bootstrap)->rank;
    return fail_twice(bootstrap, rank == 0 ? 0 : (size_t)(8 + rank) << 20);
}

static void test_size_mismatch(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        meeting_rank ranks[4];
        meeting_make(ranks, 4, kind);
        for (int r = 0; r < 4; r++)
            ranks[r].then = mismatch;
        const meeting_result *results = meeting_run(ranks, 4);
        for (int r = 0; r < 4; r++) {
            meeting_check_status(&results[r], IMBREX_PEER);
            meeting_check_text(&results[r],
                               "rank 2 came to allgather 2 with 16 bytes, rank 0 with 8");
        }
        for (int r = 0; r < 4; r++)
            ranks[r].then = mismatch_midway;
        results = meeting_run(ranks, 4);
        for (int r = 0; r < 4; r++) {
            meeting_check_status(&results[r], IMBREX_PEER);
            meeting_check_text(&results[r], " bytes, rank 0 with 0");
            assert_in_range(results[r].took_ms, 0, 3000);
        }
    }
}

static imbrex_status die_as_1(imx_bootstrap *bootstrap)
{
    IMX_TRY(meeting_swap(bootstrap));
    if (imx_bootstrap_public(bootstrap)->rank == 1)
        kill(getpid(), SIGKILL);
    return fail_twice(bootstrap, 8);
}

static imbrex_status die_as_0(imx_bootstrap *bootstrap)
{
    IMX_TRY(meeting_swap(bootstrap));
    if (imx_bootstrap_public(bootstrap)->rank == 0)
        kill(getpid(), SIGKILL);
    return fail_twice(bootstrap, 8);
}

static void test_death(void **state)
{
    (void)state;
    for (int victim = 0; victim < 2; victim++) {
        meeting_rank ranks[3];
        meeting_make(ranks, 3, victim ? MEETING_UNIX : MEETING_TCP);
        for (int r = 0; r < 3; r++)
            ranks[r].then = victim ? die_as_1 : die_as_0;
        ranks[victim].killed = true;
        const meeting_result *results = meeting_run(ranks, 3);
        for (int r = 0; r < 3; r++) {
            if (r == victim)
                continue;
            meeting_check_status(&results[r], IMBREX_PEER);
            meeting_check_text(&results[r], victim ? "rank 1 left" : "rank 0 left");
            assert_in_range(results[r].took_ms, 0, 2000);
        }
    }
}

static imbrex_status late_1_and_3(imx_bootstrap *bootstrap)
{
    IMX_TRY(meeting_swap(bootstrap));
    int rank = imx_bootstrap_public(bootstrap)->rank;
    if (rank == 1 || rank == 3)
        usleep((useconds_t)patient(1000) * 1000);
    return fail_twice(bootstrap, 8);
}

static void test_late(void **state)
{
    (void)state;
    meeting_rank ranks[4];
    meeting_make(ranks, 4, MEETING_UNIX);
    for (int r = 0; r < 4; r++) {
        ranks[r].then = late_1_and_3;
        ranks[r].timeout_ms = 400;
    }
    const meeting_result *results = meeting_run(ranks, 4);
    for (int r = 0; r < 4; r++) {
        meeting_check_status(&results[r], IMBREX_TIMEOUT);
        meeting_check_text(&results[r], "ranks 1 and 3 of 4 did not come to allgather 2");
        meeting_check_limit(&results[r], 400);
        assert_in_range(results[r].took_ms, 300, 1900);
    }
}

/* Rank 2 comes late, rank 3 never: the limit of those that came first counts. */
static imbrex_status late_2_and_3(imx_bootstrap *bootstrap)
{
    IMX_TRY(meeting_swap(bootstrap));
    int rank = imx_bootstrap_public(bootstrap)->rank;
    if (rank >= 2)
        usleep((useconds_t)patient(rank == 2 ? 500 : 2500) * 1000);
    return fail_twice(bootstrap, 8);
}

static void test_late_and_never(void **state)
{
    (void)state;
    meeting_rank ranks[4];
    meeting_make(ranks, 4, MEETING_UNIX);
    for (int r = 0; r < 4; r++) {
        ranks[r].then = late_2_and_3;
        ranks[r].timeout_ms = r == 0 ? 2000 : 800; /* rank 0 alone would wait for longer */
    }
    const meeting_result *results = meeting_run(ranks, 4);
    for (int r = 0; r < 3; r++) {
        meeting_check_status(&results[r], IMBREX_TIMEOUT);
        meeting_check_text(&results[r], "rank 3 of 4 did not come to allgather 2");
        assert_in_range(results[r].took_ms, 700, 1200);
    }
}

/* Rank 1 stays away until the others, whose group has failed, have given up. */
static uint64_t word;

static void *set_word(void *arg)
{
    usleep(100000);
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    return arg;
}

static imbrex_status fail_with_group(imx_bootstrap *bootstrap)
{
    IMX_TRY(meeting_swap(bootstrap));
    pthread_t thread;
    if (imx_bootstrap_public(bootstrap)->rank == 1)
        usleep((useconds_t)patient(2000) * 1000);
    imx_bootstrap_watch(bootstrap, &word);
    pthread_create(&thread, NULL, set_word, NULL);
    imbrex_status status = fail_twice(bootstrap, 8);
    pthread_join(thread, NULL);
    return status;
}

static void test_failed_group(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        meeting_rank ranks[3];
        meeting_make(ranks, 3, kind);
        for (int r = 0; r < 3; r++)
            ranks[r].then = fail_with_group;
        const meeting_result *results = meeting_run(ranks, 3);
        for (int r = 0; r < 3; r++) {
            meeting_check_status(&results[r], IMBREX_PEER);
            meeting_check_text(&results[r], "the group failed before allgather 2 was complete");
            assert_in_range(results[r].took_ms, 0, r == 1 ? 4000 : 1500);
        }
    }
}

/* ---- Faults ---------------------------------------------------------------------------------- */

/* The n-th call of the table that an armed thread makes fails, and no other. */
static _Thread_local bool armed;
static _Thread_local int countdown; /* 0: has failed */
static _Thread_local imbrex_status expected;
static imx_sys_table real;

static bool strikes(int error, imbrex_status status)
{
    if (!armed || countdown == 0 || --countdown > 0)
        return false;
    expected = status;
    errno = error;
    return true;
}

static void *faulty_calloc(size_t count, size_t bytes)
{
    return strikes(ENOMEM, IMBREX_NO_MEMORY) ? NULL : real.calloc(count, bytes);
}

static int faulty_socket(int domain, int type, int protocol)
{
    return strikes(EMFILE, IMBREX_SYSTEM) ? -1 : real.socket(domain, type, protocol);
}

static int faulty_bind(int fd, const struct sockaddr *address, unsigned length)
{
    return strikes(EACCES, IMBREX_SYSTEM) ? -1 : real.bind(fd, address, length);
}

static int faulty_listen(int fd, int backlog)
{
    return strikes(ENOBUFS, IMBREX_SYSTEM) ? -1 : real.listen(fd, backlog);
}

static int faulty_accept(int fd, struct sockaddr *address, unsigned *length)
{
    return strikes(EMFILE, IMBREX_SYSTEM) ? -1 : real.accept(fd, address, length);
}

static int faulty_connect(int fd, const struct sockaddr *address, unsigned length)
{
    return strikes(EACCES, IMBREX_SYSTEM) ? -1 : real.connect(fd, address, length);
}

static long faulty_sendmsg(int fd, const struct msghdr *message, int flags)
{
    return strikes(ENOBUFS, IMBREX_SYSTEM) ? -1 : real.sendmsg(fd, message, flags);
}

static long faulty_recvmsg(int fd, struct msghdr *message, int flags)
{
    return strikes(EIO, IMBREX_SYSTEM) ? -1 : real.recvmsg(fd, message, flags);
}

static int faulty_poll(struct pollfd *fds, unsigned long count, int timeout_ms)
{
    return strikes(ENOMEM, IMBREX_NO_MEMORY) ? -1 : real.poll(fds, count, timeout_ms);
}

enum { SOON_MS = 250, LONG_MS = 10000 };

typedef struct faulty_rank {
    const meeting_rank *rank;
    int nth; /* 0: no call fails */
    bool struck;
    imbrex_status status, expected;
    char text[256];
} faulty_rank;

static void *play_faulty(void *arg)
{
    faulty_rank *rank = arg;
    armed = rank->nth > 0;
    countdown = rank->nth;
    imx_bootstrap *bootstrap = NULL;
    rank->status = imx_bootstrap_open(&rank->rank->launch, &rank->rank->env, rank->rank->sequence,
                                      patient(rank->rank->timeout_ms), &bootstrap);
    for (int i = 0; i < 2 && rank->status == IMBREX_OK; i++)
        rank->status = meeting_swap(bootstrap);
    snprintf(rank->text, sizeof rank->text, "%s", rank->status ? imbrex_error() : "");
    rank->struck = armed && countdown == 0;
    rank->expected = expected;
    armed = false;
    imx_bootstrap_destroy(bootstrap);
    return NULL;
}

/* One round; false when there is no n-th call any more.  Who waits for the victim gives up soon,
 * and a machine that is slow to let ranks meet gets more time once. */
static bool play_round(int kind, int victim, int nth, int limit_ms)
{
    meeting_rank ranks[2];
    faulty_rank faulty[2] = { { .rank = &ranks[0] }, { .rank = &ranks[1] } };
    pthread_t threads[2];
    meeting_make(ranks, 2, kind);
    ranks[0].timeout_ms = ranks[1].timeout_ms = limit_ms;
    faulty[victim].nth = nth;
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, play_faulty, &faulty[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);

    const faulty_rank *it = &faulty[victim], *other = &faulty[1 - victim];
    if (!it->struck || it->status == IMBREX_OK) {
        /* Not struck, or by what a stranger's broken connection gives, which is tried again. */
        bool well = it->status == IMBREX_OK && other->status == IMBREX_OK;
        if (!well && limit_ms == SOON_MS)
            return play_round(kind, victim, nth, LONG_MS);
        if (!well)
            fail_msg("rank %d, call %d: \"%s\" and \"%s\"", victim, nth, it->text, other->text);
        return it->struck;
    }
    if (it->status != it->expected)
        fail_msg("rank %d, call %d: %s, want %s: \"%s\"", victim, nth,
                 imbrex_status_name(it->status), imbrex_status_name(it->expected), it->text);
    /* Rank 0 cannot know whether the last thing that it said was heard. */
    if (victim == 1 && strstr(it->text, "rank 1 cannot talk to rank 0 in allgather 2"))
        return true;
    if (other->status != IMBREX_PEER && other->status != IMBREX_TIMEOUT)
        fail_msg("rank %d, call %d: the other rank says \"%s\"", victim, nth, other->text);
    return true;
}

static void test_faults(void **state)
{
    (void)state;
    imx_host_close_failed(); /* its thread reads the table */
    real = imx_sys;
    imx_sys.calloc = faulty_calloc;
    imx_sys.socket = faulty_socket;
    imx_sys.bind = faulty_bind;
    imx_sys.listen = faulty_listen;
    imx_sys.accept = faulty_accept;
    imx_sys.connect = faulty_connect;
    imx_sys.sendmsg = faulty_sendmsg;
    imx_sys.recvmsg = faulty_recvmsg;
    imx_sys.poll = faulty_poll;
    int before = meeting_count_fds();
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        for (int victim = 0; victim < 2; victim++) {
            int nth = 1;
            while (play_round(kind, victim, nth, SOON_MS))
                nth++;
            assert_in_range(nth, 15, 200); /* so many calls there are, and each has failed once */
        }
    }
    imx_host_close_failed();
    imx_sys = real;
    assert_int_equal(meeting_count_fds(), before);
}

int main(void)
{
    alarm((unsigned)patient(120));
    const struct CMUnitTest tests[] = {

        cmocka_unit_test(test_siphash),       cmocka_unit_test(test_allgather),
        cmocka_unit_test(test_size_mismatch), cmocka_unit_test(test_death),
        cmocka_unit_test(test_late),          cmocka_unit_test(test_late_and_never),
        cmocka_unit_test(test_failed_group),  cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
