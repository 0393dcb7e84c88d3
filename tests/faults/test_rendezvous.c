/* test_rendezvous.c - ranks find each other among strangers, or say who is missing. */
#define _GNU_SOURCE
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
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bootstrap/handshake.h"
#include "bootstrap/socket.h"
#include "meeting.h"

static void test_sizes(void **state)
{
    (void)state;
    meeting_check_sizes(NULL);
}

static void test_busy_ports(void **state)
{
    (void)state;
    meeting_rank ranks[3];
    meeting_make(ranks, 3, MEETING_TCP);
    int port = ranks[0].launch.port;
    int agent = meeting_occupy(port), silent = meeting_occupy(port + 1);
    meeting_check_all_ok(meeting_run(ranks, 3), 3);
    close(agent);
    close(silent);
}

static void test_no_free_port(void **state)
{
    (void)state;
    meeting_rank ranks[2];
    meeting_make(ranks, 2, MEETING_TCP);
    ranks[0].launch.port = 65534;
    int taken = meeting_occupy(65535);
    const meeting_result *results = meeting_run(ranks, 1);
    close(taken);
    meeting_check_status(&results[0], IMBREX_SYSTEM);
    meeting_check_text(&results[0], "no free port");
    meeting_check_text(&results[0], "MASTER_PORT");
}

static void test_wrong_address(void **state)
{
    (void)state;
    meeting_rank ranks[2];
    meeting_make(ranks, 2, MEETING_TCP);
    strcpy(ranks[0].launch.address, "192.0.2.1"); /* reserved for documentation: nobody's */
    strcpy(ranks[1].launch.address, "no host has spaces");
    const meeting_result *results = meeting_run(ranks, 2);
    meeting_check_status(&results[0], IMBREX_INVALID);
    meeting_check_text(&results[0], "MASTER_ADDR=192.0.2.1 is not an address of this machine");
    meeting_check_status(&results[1], IMBREX_INVALID);
    meeting_check_text(&results[1], "MASTER_ADDR=no host has spaces does not name a host");
}

static void test_bind(void **state)
{
    (void)state;
    meeting_rank ranks[2];
    meeting_make(ranks, 2, MEETING_TCP);
    strcpy(ranks[0].launch.address, "192.0.2.1"); /* as rank 0 sees it, behind some gateway */
    strcpy(ranks[0].env.bind, "127.0.0.1");
    meeting_check_all_ok(meeting_run(ranks, 2), 2);
}

/* ---- Late and missing ranks ------------------------------------------------------------------ */

static void test_rank_0_late(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        meeting_rank ranks[3];
        meeting_make(ranks, 3, kind);
        ranks[0].delay_ms = 300;
        meeting_check_all_ok(meeting_run(ranks, 3), 3);
    }
}

static void test_missing_ranks(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        meeting_rank ranks[8];
        meeting_make(ranks, 8, kind);
        for (int r = 0; r < 8; r++)
            ranks[r].timeout_ms = 600;
        ranks[2] = ranks[6]; /* 2 and 5 stay away */
        ranks[5] = ranks[7];
        const meeting_result *results = meeting_run(ranks, 6);
        for (int i = 0; i < 6; i++) {
            meeting_check_status(&results[i], IMBREX_TIMEOUT);
            meeting_check_text(&results[i], "ranks 2 and 5 of 8 did not come");
            meeting_check_limit(&results[i], 600);
            assert_in_range(results[i].took_ms, 300, 1600);
        }
    }
}

static void test_rank_0_missing(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        meeting_rank ranks[2];
        meeting_make(ranks, 2, kind);
        ranks[1].timeout_ms = 300;
        const meeting_result *results = meeting_run(&ranks[1], 1);
        meeting_check_status(&results[0], IMBREX_TIMEOUT);
        meeting_check_text(&results[0], "rank 0 did not answer at ");
        meeting_check_limit(&results[0], 300);
        assert_in_range(results[0].took_ms, 300, 1300);
    }
}

/* The rank with the shortest patience ends it for all, and all hear the same. */
static void test_unequal_patience(void **state)
{
    (void)state;
    meeting_rank ranks[3];
    meeting_make(ranks, 3, MEETING_UNIX);
    ranks[1].timeout_ms = 400;
    const meeting_result *results = meeting_run(ranks, 2);
    for (int i = 0; i < 2; i++) {
        meeting_check_status(&results[i], IMBREX_TIMEOUT);
        meeting_check_text(&results[i], "rank 2 of 3 did not come");
        assert_in_range(results[i].took_ms, 300, 1400);
    }
}

static imbrex_status not_reached(imx_bootstrap *bootstrap)
{
    (void)bootstrap;
    return imx_fail(IMBREX_INTERNAL, "met without all ranks");
}

static void test_rank_leaves(void **state)
{
    (void)state;
    meeting_rank ranks[3];
    meeting_make(ranks, 3, MEETING_UNIX);
    ranks[0].then = ranks[1].then = not_reached;
    meeting_ranks *first = meeting_start(ranks, 1);

    pid_t leaver = fork();
    if (leaver == 0) {
        alarm((unsigned)patient(1)); /* kills it while it waits for rank 2 */
        signal(SIGALRM, SIG_DFL);
        imx_bootstrap *bootstrap;
        (void)!imx_bootstrap_open(&ranks[1].launch, &ranks[1].env, 0, 10000, &bootstrap);
        _exit(0);
    }
    int status;
    waitpid(leaver, &status, 0);
    assert_true(WIFSIGNALED(status));
    const meeting_result *results = meeting_join(first);
    meeting_check_status(&results[0], IMBREX_PEER);
    meeting_check_text(&results[0], "rank 1 left before all ranks had come");
}

/* ---- Strangers ------------------------------------------------------------------------------- */

/* Where a group on one host meets: a rank that finds nobody says it. */
static int connect_unix(const meeting_rank *rank, meeting_ranks **meeting)
{
    meeting_rank lost = *rank;
    lost.launch.rank = 1;
    lost.timeout_ms = 1;
    meeting_result found = *meeting_run(&lost, 1);
    const char *name = strstr(found.text, "@imbrex-");
    assert_non_null(name);

    *meeting = meeting_start(rank, 1);
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    size_t bytes = strcspn(name, " ");
    memcpy(at.sun_path, name, bytes);
    at.sun_path[0] = '\0';
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
    for (int i = 0; i < 200; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (!connect(fd, (const struct sockaddr *)&at, length))
            return fd;
        close(fd);
        usleep(10000);
    }
    fail_msg("nobody listens at %s", name);
    return -1;
}

static void disturb(int fds[], int count)
{
    static const char noise[4096] = "GET / HTTP/1.1\r\n\r\n";
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t[]){ 0, 5, sizeof noise, sizeof(imx_handshake_hello) - 1,
                                   sizeof(imx_handshake_hello) }[i % 5];
        if (bytes > 0)
            (void)!send(fds[i], noise, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (i % 7 == 6)
            shutdown(fds[i], SHUT_WR);
    }
}

/* More of them than rank 0 keeps: silent, noisy, half a message, and gone at once.  They hold up
 * nobody. */
static void test_strangers_call(void **state)
{
    (void)state;
    enum { STRANGERS = 150 };
    meeting_rank ranks[3];
    meeting_make(ranks, 3, MEETING_TCP);
    ranks[1].delay_ms = 500;
    ranks[2].delay_ms = 600;
    meeting_ranks *meeting = meeting_start(ranks, 3);
    int fds[STRANGERS];
    for (int i = 0; i < STRANGERS; i++)
        fds[i] = meeting_connect(ranks[0].launch.port + 1);
    disturb(fds, STRANGERS);
    const meeting_result *results = meeting_join(meeting);
    meeting_check_all_ok(results, 3);
    assert_in_range(results[0].took_ms, 400, 1600);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
}

static bool is_closed(int fd)
{
    struct pollfd at = { .fd = fd, .events = POLLIN };
    return poll(&at, 1, 0) == 1;
}

/* All that rank 0 has room for are there and silent.  One more: the oldest goes, not who came last,
 * who may be a rank that has yet to speak. */
static void test_crowd_before_the_ranks(void **state)
{
    (void)state;
    enum { CROWD = 2 + 64, MORE = 5 };
    meeting_rank ranks[2];
    meeting_make(ranks, 2, MEETING_TCP);
    ranks[1].delay_ms = 900;
    meeting_ranks *meeting = meeting_start(ranks, 2);
    int fds[CROWD + MORE];
    for (int i = 0; i < CROWD + MORE; i++) {
        fds[i] = meeting_connect(ranks[0].launch.port + 1);
        usleep(i < MORE || i >= CROWD ? 5000 : 0); /* in this order */
    }
    for (int i = 0; i < 400 && !is_closed(fds[MORE - 1]); i++)
        usleep(1000);
    for (int i = 0; i < MORE; i++)
        assert_true(is_closed(fds[i]) && !is_closed(fds[CROWD + i]));
    meeting_check_all_ok(meeting_join(meeting), 2);
    for (int i = 0; i < CROWD + MORE; i++)
        close(fds[i]);
}

/* Rank 0 loses patience with a guest that says nothing, not with the group. */
static void test_silent_guest(void **state)
{
    (void)state;
    meeting_rank ranks[2];
    meeting_make(ranks, 2, MEETING_TCP);
    ranks[1].delay_ms = 2600;
    meeting_ranks *meeting = meeting_start(ranks, 2);
    struct pollfd guest = { .fd = meeting_connect(ranks[0].launch.port + 1), .events = POLLIN };
    assert_int_equal(poll(&guest, 1, (int)patient(2500)), 1);
    char byte;
    assert_int_equal(recv(guest.fd, &byte, 1, 0), 0);
    close(guest.fd);
    meeting_check_all_ok(meeting_join(meeting), 2);
}

static void test_strangers_call_unix(void **state)
{
    (void)state;
    meeting_rank ranks[2];
    meeting_make(ranks, 2, MEETING_UNIX);
    meeting_ranks *meeting;
    int fd = connect_unix(&ranks[0], &meeting);
    disturb(&fd, 1);
    imx_bootstrap *bootstrap;
    assert_int_equal(imx_bootstrap_open(&ranks[1].launch, &ranks[1].env, 0, 5000, &bootstrap),
                     IMBREX_OK);
    assert_int_equal(meeting_swap(bootstrap), IMBREX_OK);
    imx_bootstrap_destroy(bootstrap);
    close(fd);
    meeting_check_all_ok(meeting_join(meeting), 1);
}

/* Speaks first, like sshd, to everyone; until it is closed.  A process: ranks are forked, and have
 * threads. */
static pid_t greet(int listener)
{
    pid_t child = fork();
    if (child)
        return child;
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            _exit(0);
        static const char banner[200] = "SSH-2.0-OpenSSH_9.2\r\n";
        (void)!send(fd, banner, sizeof banner, MSG_NOSIGNAL);
        close(fd);
    }
}

static void test_strangers_answer(void **state)
{
    (void)state;
    meeting_rank ranks[2];
    meeting_make(ranks, 2, MEETING_TCP);
    int listener = meeting_occupy(ranks[0].launch.port + 1);
    pid_t stranger = greet(listener);
    const meeting_result *results = meeting_run(ranks, 2);
    shutdown(listener, SHUT_RDWR);
    assert_int_equal(waitpid(stranger, NULL, 0), stranger);
    close(listener);
    meeting_check_all_ok(results, 2);
}

static void test_wrong_token(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        meeting_rank ranks[3];
        meeting_make(ranks, 2, kind);
        ranks[2] = ranks[1];
        strcpy(ranks[2].env.token, "guessed");
        ranks[2].timeout_ms = 400;
        ranks[1].delay_ms = 700;
        const meeting_result *results = meeting_run(ranks, 3);
        meeting_check_all_ok(results, 2);
        meeting_check_text(&results[2], "IMBREX_TOKEN");
        if (kind == MEETING_UNIX) { /* the name of the socket follows from the token */
            meeting_check_status(&results[2], IMBREX_TIMEOUT);
            meeting_check_text(&results[2], "rank 0 did not answer");
        } else {
            meeting_check_status(&results[2], IMBREX_PEER);
            meeting_check_text(&results[2], "has another token");
        }
    }
}

/* On one host the right token does not help the wrong user. */
static void test_other_user(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    meeting_rank ranks[3];
    meeting_make(ranks, 2, MEETING_UNIX);
    ranks[2] = ranks[1];
    ranks[2].user = 65534;
    ranks[2].timeout_ms = 400;
    ranks[1].delay_ms = 700;
    const meeting_result *results = meeting_run(ranks, 3);
    meeting_check_all_ok(results, 2);
    meeting_check_status(&results[2], IMBREX_PEER);
    meeting_check_text(&results[2], "user 0 listens at @imbrex-");
}

/* Which of the two the rank that is still to come belongs to nobody could say. */
static void test_second_rank_0(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        meeting_rank ranks[3];
        meeting_make(ranks, 3, kind);
        ranks[2] = ranks[0];
        ranks[2].delay_ms = 250;
        const meeting_result *results = meeting_run(ranks, 3);
        meeting_check_status(&results[0], IMBREX_PEER);
        meeting_check_text(&results[0], "another rank 0 has come");
        meeting_check_status(&results[1], IMBREX_PEER);
        meeting_check_text(&results[1], "another rank 0 has come");
        meeting_check_status(&results[2], IMBREX_PEER);
        meeting_check_text(&results[2], "another rank 0 is already listening");
    }
}

/* ---- Ranks that do not fit ------------------------------------------------------------------- */

static void check_all_say(const meeting_rank *ranks, int count, const char *part)
{
    const meeting_result *results = meeting_run(ranks, count);
    for (int i = 0; i < count; i++) {
        meeting_check_status(&results[i], IMBREX_PEER);
        meeting_check_text(&results[i], part);
        assert_in_range(results[i].took_ms, 0, 2000);
    }
}

static void test_duplicate_rank(void **state)
{
    (void)state;
    meeting_rank ranks[3];
    meeting_make(ranks, 3, MEETING_UNIX);
    ranks[2] = ranks[1];
    check_all_say(ranks, 3, "two ranks say that they are rank 1");
}

static void test_different_size(void **state)
{
    (void)state;
    meeting_rank ranks[3];
    meeting_make(ranks, 3, MEETING_UNIX);
    ranks[2].launch.size = 4;
    ranks[2].delay_ms = 100;
    check_all_say(ranks, 3, "rank 2 says that there are 4 ranks, rank 0 says 3");
}

static void test_rank_out_of_range(void **state)
{
    (void)state;
    meeting_rank ranks[3];
    meeting_make(ranks, 3, MEETING_UNIX);
    ranks[2].launch.rank = 3;
    ranks[2].delay_ms = 100;
    check_all_say(ranks, 3, "there is a rank 3, but only 3 ranks");
}

/* ---- Several groups -------------------------------------------------------------------------- */

/* Two jobs of one user whose MASTER_PORTs lie side by side, and two groups of one job at once: all
 * listen on the same few ports. */
static void test_neighbours(void **state)
{
    (void)state;
    meeting_rank ranks[8];
    meeting_make(ranks, 2, MEETING_TCP);
    for (int i = 2; i < 8; i++)
        ranks[i] = ranks[i % 2];
    ranks[2].sequence = ranks[3].sequence = 1;
    ranks[4].launch.port = ranks[5].launch.port = ranks[0].launch.port + 1;
    strcpy(ranks[6].launch.job, "another");
    strcpy(ranks[7].launch.job, "another");
    meeting_check_all_ok(meeting_run(ranks, 8), 8);
}

static void *meet_from_env(void *arg)
{
    imx_env env = { .timeout_ms = 0 };
    imx_bootstrap *bootstrap;
    imbrex_status *status = arg;
    *status = imx_bootstrap_from_env(&env, 5000, &bootstrap);
    if (*status == IMBREX_OK) {
        *status = meeting_swap(bootstrap);
        imx_bootstrap_destroy(bootstrap);
    }
    return NULL;
}

static void play_from_env(int rank, int port)
{
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    setenv("WORLD_SIZE", "2", 1);
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 1);
    unsetenv("MASTER_ADDR");
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("LOCAL_RANK");

    imbrex_status statuses[4];
    meet_from_env(&statuses[0]); /* in a row */
    meet_from_env(&statuses[1]);
    pthread_t threads[2]; /* and at once */
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, meet_from_env, &statuses[2 + i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        if (statuses[i] != IMBREX_OK)
            _exit(1 + i);
    _exit(0);
}

static void test_several_groups(void **state)
{
    (void)state;
    int port = meeting_port();
    pid_t ranks[2];
    for (int r = 0; r < 2; r++) {
        ranks[r] = fork();
        if (ranks[r] == 0)
            play_from_env(r, port);
    }
    for (int r = 0; r < 2; r++) {
        int status;
        assert_int_equal(waitpid(ranks[r], &status, 0), ranks[r]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0); /* else: 1 + the number of the group */
    }
}

int main(void)
{
    alarm((unsigned)patient(120));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_busy_ports),
        cmocka_unit_test(test_no_free_port),
        cmocka_unit_test(test_wrong_address),
        cmocka_unit_test(test_bind),
        cmocka_unit_test(test_rank_0_late),
        cmocka_unit_test(test_missing_ranks),
        cmocka_unit_test(test_rank_0_missing),
        cmocka_unit_test(test_unequal_patience),
        cmocka_unit_test(test_rank_leaves),
        cmocka_unit_test(test_strangers_call),
        cmocka_unit_test(test_crowd_before_the_ranks),
        cmocka_unit_test(test_silent_guest),
        cmocka_unit_test(test_strangers_call_unix),
        cmocka_unit_test(test_strangers_answer),
        cmocka_unit_test(test_wrong_token),
        cmocka_unit_test(test_other_user),
        cmocka_unit_test(test_second_rank_0),
        cmocka_unit_test(test_duplicate_rank),
        cmocka_unit_test(test_different_size),
        cmocka_unit_test(test_rank_out_of_range),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_several_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
