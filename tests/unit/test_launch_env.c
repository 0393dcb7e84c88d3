/* test_launch_env.c - what launchers say of a rank, also where there are several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bootstrap/launch_env.h"

/* Looks "name=value" up in words separated by spaces.  Of its answers the last few hold. */
static const char *find_word(void *ctx, const char *variable)
{
    static char values[16][512];
    static unsigned answers;
    char *value = values[answers++ % 16];
    const char *at = ctx;
    size_t length = strlen(variable);
    while (at && *at) {
        size_t word = strcspn(at, " ");
        if (word > length && !strncmp(at, variable, length) && at[length] == '=') {
            snprintf(value, sizeof values[0], "%.*s", (int)(word - length - 1), at + length + 1);
            return value;
        }
        at += word;
        at += strspn(at, " ");
    }
    return NULL;
}

typedef struct parse_case {
    const char *environment;
    const char *launcher; /* NULL: INVALID, with a sentence that has the words of job */
    int rank, size, local_rank, local_size;
    bool one_host;
    const char *address;
    int port;
    const char *job;
} parse_case;

/* In rank 0 of imbrex run's two. */
#define WITHIN(launched) \
    "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 IMBREX_LAUNCHED=" launched

/* What torchrun sets beside the numbers of a host. */
#define TORCHRUN(rank, size)                                                         \
    "RANK=" #rank " WORLD_SIZE=" #size " ROLE_RANK=" #rank " ROLE_WORLD_SIZE=" #size \
    " TORCHELASTIC_RUN_ID=abc"

static const parse_case parse_cases[] = {
    { "", "none", 0, 1, -1, -1, true, "", 29500, "" },
    { "MASTER_PORT=1 SLURM_JOB_ID=7 SLURM_NTASKS=8", "none", 0, 1, -1, -1, true, "", 29500, "" },
    { "RANK= WORLD_SIZE=", "none", 0, 1, -1, -1, true, "", 29500, "" },

    /* torchrun: one host, several, and just the two variables */
    { "RANK=3 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 MASTER_ADDR=gpu7 MASTER_PORT=40001 "
      "TORCHELASTIC_RUN_ID=abc",
      "torchrun", 3, 4, 3, 4, true, "gpu7", 40001, "abc" },
    { "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=gpu7 MASTER_PORT=40001",
      "torchrun", 5, 8, 1, 4, false, "gpu7", 40001, "" },
    { "RANK=0 WORLD_SIZE=2", "torchrun", 0, 2, -1, -1, true, "", 29500, "" },
    { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost", "torchrun", 0, 2, -1, -1, true, "localhost",
      29500, "" },
    { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.1.1", "torchrun", 0, 2, -1, -1, true, "127.0.1.1",
      29500, "" },
    { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.example.org", "torchrun", 0, 2, -1, -1, false,
      "127.example.org", 29500, "" },
    { "RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1", "torchrun", 0, 2, -1, 1,
      false, "127.0.0.1", 29500, "" },

    /* mpirun, also inside a Slurm job, where its daemon's SLURM_PROCID says nothing */
    { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
      "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=prterun-a-17@1 SLURM_PROCID=0 "
      "SLURM_STEP_ID=0 SLURM_NTASKS=1",
      "mpirun", 1, 2, 1, 2, true, "", 29500, "prterun-a-17@1" },
    { "PMIX_RANK=1 PMIX_NAMESPACE=x", "none", 0, 1, -1, -1, true, "", 29500, "" },

    /* mpiexec */
    { "PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=3 SLURM_PROCID=0 SLURM_STEP_ID=0 "
      "SLURM_NTASKS=1 SLURM_JOB_ID=9",
      "mpiexec", 2, 3, 2, 3, true, "", 29500, "9" },

    /* srun: tasks, and shells that are none */
    { "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=2 SLURM_JOB_ID=9 "
      "SLURM_STEP_ID=4",
      "srun", 1, 2, 1, 2, true, "", 29500, "9.4" },
    { "SLURM_PROCID=7 SLURM_NTASKS=11 SLURM_LOCALID=3 SLURM_STEP_TASKS_PER_NODE=4(x2),3 "
      "SLURM_JOB_ID=9 SLURM_STEP_ID=4 MASTER_ADDR=n1",
      "srun", 7, 11, 3, 4, false, "n1", 29500, "9.4" },
    { "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=9", "none", 0, 1, -1, -1, true, "", 29500, "" },
    { "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=9 SLURM_STEP_ID=4294967290", "none", 0, 1, -1, -1,
      true, "", 29500, "" },

    /* who sets RANK from another launcher's variables has that one's id and hosts; Slurm's pmi2 */
    { "RANK=1 WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 "
      "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=x MASTER_ADDR=n1",
      "torchrun", 1, 4, 1, 2, false, "n1", 29500, "x" },
    { "PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=9.4 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 "
      "SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_JOB_ID=9 SLURM_STEP_ID=4 MASTER_ADDR=n1",
      "mpiexec", 1, 2, 0, 1, false, "n1", 29500, "9.4.9.9.4" },

    /* inner launchers: torchrun in a step of two, an agent a task, and in one of mpirun's two;
     * imbrex run in a shell that is one of four tasks, and in a rank of torchrun's; DeepSpeed's */
    { TORCHRUN(3, 4) " LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 SLURM_PROCID=1 "
                     "SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=9",
      "torchrun", 3, 4, 1, 2, false, "n0", 29500, "abc" },
    { TORCHRUN(1, 2) " LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 "
                     "OMPI_COMM_WORLD_SIZE=4",
      "torchrun", 1, 2, 1, 2, true, "", 29500, "abc" },
    { "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 IMBREX_LAUNCHED=1/2 SLURM_PROCID=0 "
      "SLURM_NTASKS=4 SLURM_STEP_ID=0",
      "torchrun", 1, 2, 1, 2, true, "", 29500, "" },
    { "RANK=1 WORLD_SIZE=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=3 IMBREX_LAUNCHED=1/3 ROLE_RANK=7 "
      "ROLE_WORLD_SIZE=8 TORCHELASTIC_RUN_ID=abc",
      "torchrun", 1, 3, 1, 3, true, "", 29500, "abc" },
    { TORCHRUN(1, 2) " LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 IMBREX_LAUNCHED=0/1", "torchrun", 1, 2, 1, 2,
      true, "", 29500, "abc" },
    { "RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 MASTER_ADDR=n1 SLURM_PROCID=0 SLURM_NTASKS=2 "
      "SLURM_STEP_ID=0",
      "torchrun", 3, 8, 3, -1, false, "n1", 29500, "" },
    { "RANK=3 WORLD_SIZE=4 ROLE_RANK=1 ROLE_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=abc", "torchrun", 3, 4,
      -1, -1, true, "", 29500, "abc" }, /* of two roles */

    /* what a rank of imbrex run has started, which is the inner one on every rank of it, also where
     * the numbers agree; imbrex run in a rank of mpirun's, in a step */
    { WITHIN("0/2,") " PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 PMI_JOBID=x",
      "mpiexec", 0, 2, 0, 2, true, "", 29500, "x" },
    { WITHIN("0/2,") " PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_JOBID=x",
      "mpiexec", 1, 2, 1, 2, true, "", 29500, "x" },
    { WITHIN("0/2,srun=0/20,") " SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_ID=1",
      "srun", 0, 2, 0, -1, true, "", 29500, "1" },
    { WITHIN("0/2,mpirun=1/2,srun=0/4,") " OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "
                                         "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_ID=0",
      "torchrun", 0, 2, 0, 2, true, "", 29500, "" },

    /* one launcher is named */
    { "IMBREX_LAUNCHER=mpirun RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
      "mpirun", 1, 2, -1, -1, true, "", 29500, "" },
    { "IMBREX_LAUNCHER=torchrun RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
      "torchrun", 0, 1, -1, -1, true, "", 29500, "" },
    { "IMBREX_LAUNCHER=torchrun RANK=1 WORLD_SIZE=2 IMBREX_LAUNCHED=3/4", "torchrun", 1, 2, -1, -1,
      true, "", 29500, "" },
    { "IMBREX_LAUNCHER=none RANK=1 WORLD_SIZE=2", "none", 0, 1, -1, -1, true, "", 29500, "" },

    /* left over, or edited: who disagrees, with variables and values */
    { .environment = "RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "
                     "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
      .job = "RANK=0 WORLD_SIZE=1 (torchrun) and OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "
             "(mpirun) disagree" },
    { .environment = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=1 "
                     "OMPI_COMM_WORLD_SIZE=2",
      .job = "IMBREX_LAUNCHER=torchrun or IMBREX_LAUNCHER=mpirun" },
    { .environment = "RANK=0 WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
      .job = "disagree" },
    { .environment = "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
      .job = "disagree" },
    { .environment = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=3 "
                     "OMPI_COMM_WORLD_SIZE=4",
      .job = "imbrex_group_split" },
    { .environment = "PMI_RANK=0 PMI_SIZE=1 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=1",
      .job = "PMI_RANK=0 PMI_SIZE=1 (mpiexec) and SLURM_PROCID=1 SLURM_NTASKS=2 (srun) disagree" },
    { .environment = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 "
                     "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=1",
      .job = "(mpirun) and SLURM_PROCID=1 SLURM_NTASKS=2 (srun) disagree" },
    { .environment = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 IMBREX_LAUNCHED=3/4",
      .job = "RANK=1 WORLD_SIZE=2, but imbrex run has set IMBREX_LAUNCHED=3/4: make a group of "
             "some of a launch's ranks with imbrex_group_split" },
    { .environment = "RANK=1 WORLD_SIZE=4 IMBREX_LAUNCHED=3/4", .job = "IMBREX_LAUNCHED=3/4" },
    { .environment = "RANK=1 WORLD_SIZE=2 IMBREX_LAUNCHED=3/4,", .job = "IMBREX_LAUNCHED=3/4" },
    { .environment = WITHIN("0/2,") " PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0",
      .job = "PMI_RANK=0 PMI_SIZE=1 (mpiexec) and RANK=0 WORLD_SIZE=2 (torchrun) disagree" },
    { .environment = "RANK=1 WORLD_SIZE=2 ROLE_RANK=3 ROLE_WORLD_SIZE=4 TORCHELASTIC_RUN_ID=abc",
      .job = "torchrun has set ROLE_RANK=3 ROLE_WORLD_SIZE=4" },
    { .environment = "RANK=0 WORLD_SIZE=4 ROLE_RANK=3 ROLE_WORLD_SIZE=4 TORCHELASTIC_RUN_ID=abc",
      .job = "torchrun has set ROLE_RANK=3 ROLE_WORLD_SIZE=4" },
    { .environment = "IMBREX_LAUNCHER=pbs RANK=0 WORLD_SIZE=2",
      .job = "IMBREX_LAUNCHER=pbs: want" },
    { .environment = "IMBREX_LAUNCHER=srun RANK=0 WORLD_SIZE=2", .job = "SLURM_NTASKS" },

    /* nonsense; the sentence has the variable, its value or its missing partner */
    { .environment = "RANK=1", .job = "RANK but not WORLD_SIZE" },
    { .environment = "WORLD_SIZE=2", .job = "WORLD_SIZE but not RANK" },
    { .environment = "PMI_RANK=1", .job = "PMI_RANK but not PMI_SIZE" },
    { .environment = "RANK=2 WORLD_SIZE=2", .job = "RANK=2: set it to a number from 0 to 1" },
    { .environment = "RANK=-1 WORLD_SIZE=2", .job = "RANK=-1: set" },
    { .environment = "RANK=one WORLD_SIZE=2", .job = "RANK=one: set" },
    { .environment = "RANK=1x WORLD_SIZE=2", .job = "RANK=1x: set" },
    { .environment = "RANK=0 WORLD_SIZE=0", .job = "WORLD_SIZE=0: set it to a number from 1" },
    { .environment = "RANK=0 WORLD_SIZE=1000000000000", .job = "WORLD_SIZE=1000000000000: set" },
    { .environment = "RANK=0 WORLD_SIZE=99999999999999999999", .job = "WORLD_SIZE=9999999999" },
    { .environment = "RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=4", .job = "LOCAL_WORLD_SIZE=4: set" },
    { .environment = "RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 LOCAL_RANK=2 MASTER_ADDR=a",
      .job = "LOCAL_RANK=2: set it to a number from 0 to 1" },
    { .environment = "RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2", .job = "set MASTER_ADDR" },
    { .environment = "RANK=0 WORLD_SIZE=2 MASTER_PORT=70000", .job = "MASTER_PORT=70000: set" },
    { .environment = "RANK=0 WORLD_SIZE=2 MASTER_PORT=http", .job = "MASTER_PORT=http: set" },
    { .environment = "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=x(2)",
      .job = "SLURM_STEP_TASKS_PER_NODE=x(2)" },
};

static void test_parse(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof parse_cases / sizeof *parse_cases; i++) {
        const parse_case *want = &parse_cases[i];
        imx_launch_env got = { .rank = -7 };
        imbrex_status status =
            imx_launch_env_parse(find_word, (void *)(uintptr_t)want->environment, &got);
        if (status != (want->launcher ? IMBREX_OK : IMBREX_INVALID))
            fail_msg("\"%s\": %s \"%s\"", want->environment, imbrex_status_name(status),
                     status ? imbrex_error() : "");
        if (!want->launcher) {
            if (!strstr(imbrex_error(), want->job))
                fail_msg("\"%s\" does not say \"%s\"", imbrex_error(), want->job);
            assert_int_equal(got.rank, -7); /* outputs are written only on OK */
            continue;
        }
        char a[1024], b[1024];
        snprintf(a, sizeof a, "%s %d/%d local %d/%d %s %s:%d job %s", got.launcher, got.rank,
                 got.size, got.local_rank, got.local_size, got.one_host ? "one host" : "hosts",
                 got.address, got.port, got.job);
        snprintf(b, sizeof b, "%s %d/%d local %d/%d %s %s:%d job %s", want->launcher, want->rank,
                 want->size, want->local_rank, want->local_size,
                 want->one_host ? "one host" : "hosts", want->address, want->port, want->job);
        if (strcmp(a, b))
            fail_msg("\"%s\" gives %s, want %s", want->environment, a, b);
        int rank, size; /* who asks only that hears the same, without what must fit */
        const char *name =
            imx_launch_env_name(find_word, (void *)(uintptr_t)want->environment, &rank, &size);
        if (strcmp(name ? name : "none", want->launcher) || (name && rank != want->rank) ||
            (name && size != want->size))
            fail_msg("\"%s\" is of %s, %d of %d", want->environment, name, rank, size);
    }
}

/* What no group can be made of is said as it is. */
static void test_name(void **state)
{
    (void)state;
    static const struct {
        const char *environment, *name;
        int rank, size;
    } cases[] = {
        { "", NULL, -1, 0 },
        { "WORLD_SIZE=2", "torchrun", -1, 2 },
        { "RANK=1", "torchrun", 1, 0 },
        { "RANK=x WORLD_SIZE=-2", "torchrun", -1, 0 },
        { "RANK=-1 WORLD_SIZE=99999999999", "torchrun", -1, 0 },
        { "IMBREX_LAUNCHER=torchrun", NULL, -1, 0 },
        { "IMBREX_LAUNCHER=nobody RANK=1 WORLD_SIZE=2", NULL, -1, 0 },
        { "IMBREX_LAUNCHER=none RANK=1 WORLD_SIZE=2", NULL, -1, 0 },
        { "IMBREX_LAUNCHER=srun RANK=1 WORLD_SIZE=2 SLURM_NTASKS=3", "srun", -1, 3 },
        { "RANK=1 WORLD_SIZE=3 PMI_RANK=0 PMI_SIZE=2", "torchrun", 1, 3 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rank = 7, size = 7;
        const char *name =
            imx_launch_env_name(find_word, (void *)(uintptr_t)cases[i].environment, &rank, &size);
        if (rank != cases[i].rank || size != cases[i].size || !name != !cases[i].name ||
            (name && strcmp(name, cases[i].name)))
            fail_msg("\"%s\" is of %s, %d of %d", cases[i].environment, name ? name : "none", rank,
                     size);
    }
}

/* Which launches can be told from every other. */
static void test_identified(void **state)
{
    (void)state;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    char hydra[160], own[160];
    pid_t proxy = getpid(), rank = fork(); /* which the test's process plays the proxy of */
    snprintf(own, sizeof own, "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2 PMI_FD=%d", pair[1]);
    if (rank == 0) {
        imx_launch_env env;
        snprintf(hydra, sizeof hydra, "%d", proxy);
        _exit(imx_launch_env_parse(find_word, own, &env) || !env.identified ||
              strcmp(env.job, hydra) != 0);
    }
    int status;
    assert_int_equal(waitpid(rank, &status, 0), rank);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);

    const struct {
        const char *environment;
        bool identified;
    } cases[] = {
        { "RANK=0 WORLD_SIZE=2", false },
        { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", false },
        { "RANK=0 WORLD_SIZE=2 IMBREX_LAUNCHED=0/2", true },
        { "RANK=0 WORLD_SIZE=2 IMBREX_LAUNCHED=0/4 IMBREX_LAUNCHER=torchrun", false },
        { TORCHRUN(0, 2), true },
        { "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=x",
          true },
        { "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=x", true },
        { "PMI_RANK=0 PMI_SIZE=2", false },
        { "PMI_RANK=0 PMI_SIZE=2 SLURM_JOB_ID=9", false }, /* which may have two of them */
        { "PMI_RANK=0 PMI_SIZE=2 I_MPI_HYDRA_UUID=x", true },
        { "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=1 MASTER_ADDR=a I_MPI_HYDRA_UUID=x", false },
        { "PMI_RANK=0 PMI_SIZE=2 PMI_FD=0", false },
        { "PMI_RANK=0 PMI_SIZE=2 PMI_FD=99999999", false },
        { "PMI_RANK=0 PMI_SIZE=2 PMI_JOBID=x", true },
        { "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=9", true },
        { own, false }, /* a pair that this process made is no launcher's */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        imx_launch_env env;
        assert_int_equal(
            imx_launch_env_parse(find_word, (void *)(uintptr_t)cases[i].environment, &env), 0);
        if (env.identified != cases[i].identified)
            fail_msg("\"%s\": %s", cases[i].environment,
                     env.identified ? "identified" : "not identified");
    }
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_name),
        cmocka_unit_test(test_identified),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
