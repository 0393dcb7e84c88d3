/* test_no_token.c - jobs without IMBREX_TOKEN: others can guess where ranks meet, and the ranks say
 * so. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bootstrap/socket.h"
#include "meeting.h"
#include "scratch.h"

static meeting_rank ranks[2]; /* processes are forked with them */

/* Where rank 0 of a job without a token would listen: anybody can find that out. */
static imx_socket_address find_name(const meeting_rank *rank_0)
{
    meeting_rank alone = *rank_0;
    alone.timeout_ms = 50;
    const meeting_result *result = meeting_run(&alone, 1);
    const char *at = strstr(result->text, "@imbrex-");
    unsigned long long name = 0;
    if (!at || sscanf(at, "@imbrex-%16llx", &name) != 1)
        fail_msg("\"%s\" does not say where rank 0 listens", result->text);
    imx_socket_address address;
    imx_socket_unix_address(name, &address);
    return address;
}

/* Holds the name until *release is closed; ready, and still there, when this returns. */
static pid_t hold_name(const imx_socket_address *address, unsigned user, bool listens, int *release)
{
    int ready[2], over[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(over), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(over[1]);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if ((user && setresuid(user, user, user)) ||
            bind(fd, (const struct sockaddr *)&address->at, address->length) ||
            (listens && listen(fd, 8)) || write(ready[1], "", 1) != 1)
            _exit(1);
        _exit((int)read(over[0], &byte, 1));
    }
    close(ready[1]);
    close(over[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    *release = over[1];
    return pid;
}

/* The name is taken: by another user, by one who takes no connections, by a rank 0 like ours. */
static void test_name_taken(void **state)
{
    (void)state;
    static const struct {
        unsigned user;
        bool listens, ends_rank_1;
        const char *says;
        int most_ms; /* a silent one of ours may be a busy rank 0: it has 2 s to answer */
    } cases[] = {
        { 65534, true, true, "user 65534 listens at @imbrex-", 1000 },
        { 0, false, false, "a process that takes no connections holds @imbrex-", 1000 },
        { 0, true, false, "another rank 0 is already listening at @imbrex-", 3000 },
    };
    for (size_t i = geteuid() == 0 ? 0 : 1; i < sizeof cases / sizeof *cases; i++) {
        meeting_make(ranks, 2, MEETING_UNIX);
        for (int r = 0; r < 2; r++) {
            ranks[r].env.token[0] = '\0';
            snprintf(ranks[r].launch.job, sizeof ranks[r].launch.job, "taken %d", (int)getpid());
            ranks[r].timeout_ms = 6000;
        }
        imx_socket_address address = find_name(&ranks[0]);
        int release, ended;
        pid_t holder = hold_name(&address, cases[i].user, cases[i].listens, &release);
        const meeting_result *results = meeting_run(ranks, cases[i].ends_rank_1 ? 2 : 1);
        close(release);
        assert_int_equal(waitpid(holder, &ended, 0), holder);
        for (int r = 0; r < (cases[i].ends_rank_1 ? 2 : 1); r++) {
            meeting_check_status(&results[r], IMBREX_PEER);
            meeting_check_text(&results[r], cases[i].says);
            meeting_check_text(&results[r], "IMBREX_TOKEN");
            assert_in_range(results[r].took_ms, 0, cases[i].most_ms);
        }
    }
}

/* Meets the other rank once more, as another group of the process. */
static imbrex_status meet_again(imx_bootstrap *bootstrap)
{
    const meeting_rank *own = &ranks[imx_bootstrap_public(bootstrap)->rank];
    imx_bootstrap *second = NULL;
    IMX_TRY(imx_bootstrap_open(&own->launch, &own->env, 1, patient(10000), &second));
    imbrex_status status = meeting_swap(second);
    imx_bootstrap_destroy(second);
    return status;
}

/* What two ranks print while they meet twice. */
static char *said_while_meeting(int kind, const char *token)
{
    static char said[2048];
    meeting_make(ranks, 2, kind);
    for (int r = 0; r < 2; r++) {
        strcpy(ranks[r].env.token, token);
        ranks[r].then = meet_again;
        snprintf(ranks[r].launch.job, sizeof ranks[r].launch.job, "said %d", (int)getpid());
    }
    int file = scratch_log(), before = dup(2);
    dup2(file, 2);
    const meeting_result *results = meeting_run(ranks, 2);
    dup2(before, 2);
    ssize_t bytes = pread(file, said, sizeof said - 1, 0);
    said[bytes > 0 ? bytes : 0] = '\0';
    close(before);
    close(file);
    meeting_check_all_ok(results, 2);
    return said;
}

static void test_warning(void **state)
{
    (void)state;
    const char *said = said_while_meeting(MEETING_TCP, "");
    const char *line = strstr(said, "imbrex: rank 0 listens at 127.0.0.1:");
    assert_non_null(line);
    assert_non_null(strstr(line, "without IMBREX_TOKEN: whoever reaches this port can join"));
    assert_int_equal(strchr(said, '\n') - said, strlen(said) - 1); /* one line, of one rank */
    assert_string_equal(said_while_meeting(MEETING_TCP, "a secret"), "");
    assert_string_equal(said_while_meeting(MEETING_UNIX, ""), "");
}

int main(void)
{
    alarm((unsigned)patient(60));
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_name_taken),
                                        cmocka_unit_test(test_warning) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
