/* test_launches.c - ranks of two launches make no group together; who comes too late hears why. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bootstrap/host.h"
#include "bootstrap/socket.h"
#include "meeting.h"

enum { ACTORS = 8 };

/* One process of a test. */
typedef struct actor {
    meeting_rank rank;
    int job;
    imbrex_status status; /* of its last meeting */
    int64_t took_ms;
    bool crossed; /* it has met a rank of another job */
    char text[512];
} actor;

/* Shared with the processes. */
typedef struct scene {
    int stage; /* atomic */
    actor all[ACTORS];
} scene;

static scene *s;

typedef void (*role)(actor *self);

static void reach(int stage)
{
    __atomic_store_n(&s->stage, stage, __ATOMIC_RELEASE);
}

static void await(int stage)
{
    while (__atomic_load_n(&s->stage, __ATOMIC_ACQUIRE) < stage)
        usleep(1000);
}

/* NULL: it failed, and the actor says how. */
static imx_bootstrap *meet(actor *self, uint64_t sequence)
{
    imx_bootstrap *bootstrap = NULL;
    int64_t begun = imx_socket_now_ms();
    self->status = imx_bootstrap_open(&self->rank.launch, &self->rank.env, sequence,
                                      patient(self->rank.timeout_ms), &bootstrap);
    self->took_ms = (imx_socket_now_ms() - begun) / patient(1);
    snprintf(self->text, sizeof self->text, "%s", self->status ? imbrex_error() : "");
    if (self->status != IMBREX_OK)
        return NULL;
    const imbrex_bootstrap *b = imx_bootstrap_public(bootstrap);
    int jobs[ACTORS];
    if (b->allgather(b->ctx, &self->job, jobs, sizeof jobs[0]) == 0)
        for (int r = 0; r < b->size; r++)
            self->crossed = self->crossed || jobs[r] != self->job;
    return bootstrap;
}

static void meet_once(actor *self)
{
    imx_bootstrap_destroy(meet(self, 0));
}

/* All have been started; delays are not patient: nor is rank 0, which settles. */
static void meet_at_1(actor *self)
{
    await(1);
    usleep((useconds_t)self->rank.delay_ms * 1000);
    meet_once(self);
}

static pid_t begin(int who, role play)
{
    pid_t pid = fork();
    if (pid == 0) {
        alarm((unsigned)patient(30));
        play(&s->all[who]);
        _exit(0);
    }
    return pid;
}

static void end(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Actors 0 .. of job 0, then the same of job 1: the same port, token and user. */
static void set_scene(int size, int jobs, int kind)
{
    memset(s, 0, sizeof *s);
    meeting_rank ranks[ACTORS];
    meeting_make(ranks, size, kind);
    for (int i = 0; i < size * jobs; i++) {
        s->all[i] = (actor){ .rank = ranks[i % size], .job = i / size };
        s->all[i].rank.launch.identified = false;
    }
}

static void says(const actor *who, imbrex_status status, const char *words)
{
    if (who->status != status || !strstr(who->text, words))
        fail_msg("rank %d of job %d: %s \"%s\", want %s \"%s\"", who->rank.launch.rank, who->job,
                 imbrex_status_name(who->status), who->text, imbrex_status_name(status), words);
}

/* ---- At once --------------------------------------------------------------------------------- */

/* In any order, some a little later: there is no group of ranks of both. */
static void two_launches_at_once(void **state)
{
    (void)state;
    unsigned seed = 1;
    for (int i = 0; i < 8; i++) {
        pid_t pids[4];
        set_scene(2, 2, i % 2 ? MEETING_TCP : MEETING_UNIX);
        for (int k = 0; k < 4; k++) {
            s->all[k].rank.timeout_ms = 700;
            s->all[k].rank.delay_ms = (int)(rand_r(&seed) % 40);
        }
        for (int k = 0; k < 4; k++)
            pids[k] = begin(k, meet_at_1);
        usleep(20000);
        reach(1);
        for (int k = 0; k < 4; k++)
            end(pids[k]);
        for (int k = 0; k < 4; k++) {
            if (s->all[k].crossed)
                fail_msg("try %d: rank %d of job %d met a rank of the other", i, k % 2, k / 2);
            assert_int_not_equal(s->all[k].status, IMBREX_OK); /* none knows its own */
        }
    }
}

/* Ranks 0 and 1 of different jobs: a rank 1 more, or a rank 0, shows it, and all are told.  On a
 * busy machine it may come too late for that. */
static void a_mixed_pair_hears_of_the_others(void **state)
{
    (void)state;
    for (int third = 1; third < 3; third++) {
        for (int tries = 0; tries == 0 || (tries < 5 && s->all[0].status == IMBREX_OK); tries++) {
            set_scene(2, 2, MEETING_UNIX);
            s->all[third].rank.delay_ms = 100;
            pid_t pids[3] = { begin(0, meet_at_1), begin(3, meet_at_1), begin(third, meet_at_1) };
            reach(1);
            for (int k = 0; k < 3; k++)
                end(pids[k]);
        }
        const char *words = third == 1 ? "two ranks say that they are rank 1" : "another rank 0";
        says(&s->all[0], IMBREX_PEER, words);
        says(&s->all[3], IMBREX_PEER, words);
        says(&s->all[third], IMBREX_PEER, words);
        says(&s->all[third], IMBREX_PEER, "MASTER_PORT");
    }
}

/* ---- Later ----------------------------------------------------------------------------------- */

static void stay_until_3(actor *self)
{
    imx_bootstrap *bootstrap = meet(self, 0);
    if (self->rank.launch.rank == 0)
        reach(1);
    await(3);
    imx_bootstrap_destroy(bootstrap);
}

static void come_at_1(actor *self)
{
    await(1);
    meet_once(self);
}

/* While a group lives its place is taken: also where nobody of it is there to answer but rank 0. */
static void a_second_launch_comes_later(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        set_scene(2, 2, kind);
        pid_t first[2] = { begin(0, stay_until_3), begin(1, stay_until_3) };
        pid_t second[2] = { begin(2, come_at_1), begin(3, come_at_1) };
        for (int k = 0; k < 2; k++)
            end(second[k]);
        reach(3);
        for (int k = 0; k < 2; k++)
            end(first[k]);
        says(&s->all[0], IMBREX_OK, "");
        says(&s->all[1], IMBREX_OK, "");
        says(&s->all[2], IMBREX_PEER, "another rank 0 is already listening");
        says(&s->all[3], IMBREX_PEER, "its 2 ranks are all there: another is rank 1, or two jobs");
        assert_in_range(s->all[2].took_ms, 0, 1500);
        assert_in_range(s->all[3].took_ms, 0, 1500);
    }
}

/* Once it is gone the place is free, though a child that rank 0 forked lives on. */
static void stay_and_fork(actor *self)
{
    imx_bootstrap *bootstrap = meet(self, 0);
    pid_t child = self->rank.launch.rank == 0 ? fork() : 1;
    if (child == 0) {
        imx_bootstrap_destroy(bootstrap); /* no thread of it is here to be waited for */
        reach(1);
        await(3);
        _exit(0);
    }
    await(1);
    imx_bootstrap_destroy(bootstrap);
    if (self->rank.launch.rank == 0)
        reach(2);
    if (child > 1)
        end(child);
}

static void a_forked_child_holds_nothing(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        set_scene(2, 2, kind);
        pid_t first[2] = { begin(0, stay_and_fork), begin(1, stay_and_fork) };
        end(first[1]);
        await(2);
        pid_t second[2] = { begin(2, meet_once), begin(3, meet_once) };
        end(second[0]);
        end(second[1]);
        reach(3);
        end(first[0]);
        for (int k = 0; k < 4; k++) {
            says(&s->all[k], IMBREX_OK, "");
            assert_false(s->all[k].crossed);
        }
    }
}

/* ---- Again ----------------------------------------------------------------------------------- */

/* Job 0 meets and ends, then job 1; then rank 0 of the one and rank 1 of the other call alone. */
static void meet_twice(actor *self)
{
    await(2 * self->job);
    imx_bootstrap *bootstrap = meet(self, 0);
    bool met = bootstrap != NULL;
    imx_bootstrap_destroy(bootstrap);
    __atomic_add_fetch(&s->stage, 1, __ATOMIC_ACQ_REL);
    if (self->rank.launch.rank != self->job)
        return;
    await(4);
    imx_bootstrap_destroy(met ? meet(self, 1) : NULL);
}

static void launches_remember_themselves(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        pid_t pids[4];
        set_scene(2, 2, kind);
        for (int k = 0; k < 4; k++)
            pids[k] = begin(k, meet_twice);
        for (int k = 0; k < 4; k++)
            end(pids[k]);
        says(&s->all[1], IMBREX_OK, "");
        says(&s->all[2], IMBREX_OK, "");
        says(&s->all[0], IMBREX_PEER, "rank 1 is of another job, which shares MASTER_PORT");
        says(&s->all[3], IMBREX_PEER, "rank 1 is of another job");
    }
}

/* ---- Too late -------------------------------------------------------------------------------- */

static void fail_and_stay(actor *self)
{
    imx_bootstrap_destroy(meet(self, 0));
    reach(1);
    await(3);
}

static void leave_early(actor *self)
{
    alarm((unsigned)patient(1)); /* kills it while it waits for rank 2 */
    signal(SIGALRM, SIG_DFL);
    imx_bootstrap_destroy(meet(self, 0));
}

/* Rank 1 dies, rank 0 gives up; rank 2, which comes then, need not wait for all of its time. */
static void a_late_rank_hears_why(void **state)
{
    (void)state;
    for (int kind = MEETING_UNIX; kind <= MEETING_TCP; kind++) {
        set_scene(3, 1, kind);
        for (int k = 0; k < 3; k++)
            s->all[k].rank.launch.identified = true;
        pid_t first = begin(0, fail_and_stay), dies = begin(1, leave_early);
        int status;
        waitpid(dies, &status, 0);
        assert_true(WIFSIGNALED(status));
        end(begin(2, come_at_1));
        reach(3);
        end(first);
        says(&s->all[0], IMBREX_PEER, "rank 1 left before all ranks had come");
        says(&s->all[2], IMBREX_PEER, "rank 1 left before all ranks had come");
        says(&s->all[2], IMBREX_PEER, "the group has failed before this rank came");
        assert_in_range(s->all[2].took_ms, 0, 1500);
    }
}

/* Nobody is there any more: the rank says so, and does not say that rank 0 never ran. */
static void rank_0_is_gone(void **state)
{
    (void)state;
    set_scene(2, 1, MEETING_UNIX);
    s->all[0].rank.timeout_ms = s->all[1].rank.timeout_ms = 300;
    strcpy(s->all[1].rank.launch.said, "RANK=1 WORLD_SIZE=2");
    end(begin(0, meet_once));
    end(begin(1, meet_once));
    says(&s->all[0], IMBREX_TIMEOUT, "rank 1 of 2 did not come");
    says(&s->all[1], IMBREX_TIMEOUT, "is it running, or had it given up before");
    says(&s->all[1], IMBREX_TIMEOUT, "This is rank 1 of 2 by RANK=1 WORLD_SIZE=2");
}

/* A failure after another keeps only so many descriptors, and not for good. */
static void failures_do_not_pile_up(void **state)
{
    (void)state;
    set_scene(2, 1, MEETING_TCP);
    actor *self = &s->all[0];
    int before = meeting_count_fds();
    self->rank.timeout_ms = 30;
    for (uint64_t i = 0; i < 20; i++) {
        assert_null(meet(self, i));
        says(self, IMBREX_TIMEOUT, "rank 1 of 2 did not come");
    }
    assert_in_range(meeting_count_fds(), before, before + 4);
    imx_host_close_failed();
    assert_int_equal(meeting_count_fds(), before);
}

/* ---- Ports ----------------------------------------------------------------------------------- */

static void all_ports_are_taken(void **state)
{
    (void)state;
    set_scene(2, 1, MEETING_TCP);
    for (int k = 0; k < 2; k++) {
        s->all[k].rank.launch.port = 65533;
        s->all[k].rank.timeout_ms = 600;
    }
    int taken[2] = { meeting_occupy(65534), meeting_occupy(65535) };
    pid_t pids[2] = { begin(0, meet_once), begin(1, meet_once) };
    end(pids[0]);
    end(pids[1]);
    says(&s->all[0], IMBREX_SYSTEM, "no free port: 65534 to 65535");
    says(&s->all[1], IMBREX_TIMEOUT, "others hold all of these ports");
    says(&s->all[1], IMBREX_TIMEOUT, "ports 65534 to 65535");

    close(taken[1]); /* the last one is enough */
    for (int k = 0; k < 2; k++)
        s->all[k].rank.timeout_ms = 10000;
    pids[0] = begin(0, meet_once);
    pids[1] = begin(1, meet_once);
    end(pids[0]);
    end(pids[1]);
    close(taken[0]);
    says(&s->all[0], IMBREX_OK, "");
    says(&s->all[1], IMBREX_OK, "");
}

static void rank_0_stays_on_its_host(void **state)
{
    (void)state;
    set_scene(2, 1, MEETING_UNIX);
    strcpy(s->all[0].rank.launch.address, "localhost");
    s->all[0].rank.launch.guessed = true;
    s->all[0].rank.timeout_ms = 100;
    end(begin(0, meet_once));
    says(&s->all[0], IMBREX_TIMEOUT, "only ranks of this host find it, as MASTER_ADDR=localhost");
}

int main(void)
{
    alarm((unsigned)patient(120));
    s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_launches_at_once),
        cmocka_unit_test(a_mixed_pair_hears_of_the_others),
        cmocka_unit_test(a_second_launch_comes_later),
        cmocka_unit_test(a_forked_child_holds_nothing),
        cmocka_unit_test(launches_remember_themselves),
        cmocka_unit_test(a_late_rank_hears_why),
        cmocka_unit_test(rank_0_is_gone),
        cmocka_unit_test(failures_do_not_pile_up),
        cmocka_unit_test(all_ports_are_taken),
        cmocka_unit_test(rank_0_stays_on_its_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
