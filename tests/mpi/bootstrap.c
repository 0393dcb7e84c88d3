/* bootstrap.c - ranks of a program that has started MPI itself meet over it, and gather over nodes:
 *
 *     IMBREX_NODE_RANKS=2 mpirun -n 4 mpi_bootstrap          what was made is freed
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_bootstrap large    more than is sent at once
 *     mpirun -n 2 mpi_bootstrap late                         the last rank comes too late
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_bootstrap leaves   one destroys its group long before
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_bootstrap keeps    MPI ends before the group does
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_bootstrap locks    MPI's end keeps all others out
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_bootstrap forks    a child does its parent no harm
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "imbrex_device.h"
#include "imbrex_mpi.h"

#define CHECK(call)                                                                   \
    do {                                                                              \
        imbrex_status status_ = (call);                                               \
        if (status_ != IMBREX_OK) {                                                   \
            fprintf(stderr, "%s: %s\n", imbrex_status_name(status_), imbrex_error()); \
            return 1;                                                                 \
        }                                                                             \
    } while (0)

/* ---- what the library asks of MPI ------------------------------------------------------------ */

static int made, freed;
static int largest;                 /* atomic: streams send at once */
static int nap_us, too_late, fatal; /* atomic: of those who look for messages */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool locks;

/* A message that MPI says it has sent, and that goes on its way when MPI is called later. */
enum { HELD_BYTES = 64, HELD_NS = 300000000 };
static struct {
    char bytes[HELD_BYTES];
    int64_t since_ns; /* atomic: what follows comes before it; 0: no message yet */
    int count, to, tag;
    MPI_Comm comm;
    bool wanted;
} holding;

int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *out)
{
    made++;
    return PMPI_Comm_create_group(comm, group, tag, out);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    freed++;
    return holding.since_ns ? MPI_SUCCESS : PMPI_Comm_free(comm);
}

int MPI_Isend(const void *at, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    if (holding.wanted && count <= HELD_BYTES) {
        memcpy(holding.bytes, at, (size_t)count);
        holding.count = count;
        holding.to = to;
        holding.tag = tag;
        holding.comm = comm;
        *request = MPI_REQUEST_NULL;
        __atomic_store_n(&holding.since_ns, imbrexd_now_ns(), __ATOMIC_RELEASE);
        return MPI_SUCCESS;
    }
    int before = __atomic_load_n(&largest, __ATOMIC_RELAXED);
    while (count > before && !__atomic_compare_exchange_n(&largest, &before, count, 0,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
    return PMPI_Isend(at, count, type, to, tag, comm, request);
}

static bool is_fatal(MPI_Comm comm)
{
    MPI_Errhandler handler;
    PMPI_Comm_get_errhandler(comm, &handler);
    bool returns = handler == MPI_ERRORS_RETURN;
    PMPI_Errhandler_free(&handler);
    return !returns;
}

int MPI_Finalize(void)
{
    if (locks)
        pthread_mutex_lock(&lock);
    int error = PMPI_Finalize();
    if (locks)
        pthread_mutex_unlock(&lock);
    return error;
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *found, MPI_Status *status)
{
    int ended = 0;
    int64_t since_ns = __atomic_load_n(&holding.since_ns, __ATOMIC_ACQUIRE);
    if (since_ns && holding.count && imbrexd_now_ns() > since_ns + HELD_NS) {
        PMPI_Send(holding.bytes, holding.count, MPI_BYTE, holding.to, holding.tag, holding.comm);
        holding.count = 0;
    }
    usleep((useconds_t)__atomic_load_n(&nap_us, __ATOMIC_RELAXED));
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    PMPI_Finalized(&ended);
    if (ended)
        __atomic_fetch_add(&too_late, 1, __ATOMIC_RELAXED);
    else if (is_fatal(comm))
        __atomic_fetch_add(&fatal, 1, __ATOMIC_RELAXED);
    return ended ? MPI_ERR_OTHER : PMPI_Iprobe(from, tag, comm, found, status);
}

/* ---- gathering ------------------------------------------------------------------------------- */

/* Every rank brings `count` numbers that begin with its own; all get them in order. */
static int gather(const imbrex_bootstrap *bootstrap, int count)
{
    imbrex_group *group;
    imbrex_plan *plan;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu" };
    CHECK(imbrex_group_create(&desc, &group));
    int size = bootstrap->size, rank = bootstrap->rank, wrong = 0;
    float *own = malloc((size_t)count * sizeof *own);
    float *all = calloc((size_t)count * (size_t)size, sizeof *all);
    for (int i = 0; i < count; i++)
        own[i] = (float)(rank + i);
    imbrex_coll_desc numbers = { .m = size, .n = count, .dtype = IMBREX_F32 };
    CHECK(imbrex_plan_all_gather(group, &numbers, &plan));
    CHECK(imbrex_plan_run(plan, &(imbrex_args){ .a = own, .c = all }, NULL));
    CHECK(imbrex_barrier(group, NULL));
    CHECK(imbrex_stream_sync(group, NULL));
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < count; i++)
            wrong += all[(size_t)r * (size_t)count + (size_t)i] != (float)(r + i);
    }
    if (wrong)
        fprintf(stderr, "rank %d has %d wrong numbers\n", rank, wrong);
    free(own);
    free(all);
    imbrex_plan_destroy(plan);
    imbrex_group_destroy(group);
    return wrong > 0;
}

static int several_groups(const imbrex_bootstrap *bootstrap)
{
    for (int i = 0; i < 2; i++) { /* a second group meets over the same */
        if (gather(bootstrap, 1))
            return 1;
    }
    if (made != 2 || freed != made)
        fprintf(stderr, "%d communicators were made, %d freed\n", made, freed);
    return made != 2 || freed != made;
}

static int large(const imbrex_bootstrap *bootstrap)
{
    enum { COUNT = 5 << 20, MOST = 16 << 20 }; /* 20 MiB a rank */
    int failed = gather(bootstrap, COUNT);
    if (largest != MOST)
        fprintf(stderr, "%d bytes were sent at once, not %d\n", largest, MOST);
    return failed || largest != MOST;
}

/* Who gave up gets nothing any more, in memory that may be somebody else's by now. */
static int late(const imbrex_bootstrap *bootstrap)
{
    enum { NONE = -1, WORDS = 1024 };
    static int own[WORDS], all[2 * WORDS];
    memset(all, NONE, sizeof all);
    if (bootstrap->rank == 1)
        usleep(1000000);
    int failed = bootstrap->allgather(bootstrap->ctx, own, all, sizeof own);
    if (bootstrap->rank == 1) {
        usleep(500000);
        _exit(0);
    }
    if (!failed)
        fprintf(stderr, "nobody was late\n");
    for (int i = 0, flag; i < 100; i++) {
        usleep(10000);
        MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    }
    int written = 0;
    for (int i = 0; i < 2 * WORDS; i++)
        written += all[i] != NONE;
    if (written)
        fprintf(stderr, "%d words came after the end\n", written);
    if (failed && !written)
        printf("rank 0 gave up\n");
    fflush(stdout);
    _exit(!failed || written);
}

static sigset_t wakes;

/* What a rank has sent arrives also when its group is no more and it does not call MPI.  The one
 * row is rank 1's, which is away until rank 0 has it. */
static int leaves(const imbrex_bootstrap *bootstrap)
{
    enum { COUNT = 8, LIMIT_MS = 6000, AWAY_S = 9 };
    float own[COUNT] = { 0 }, all[COUNT] = { 0 };
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu", .timeout_ms = LIMIT_MS };
    imbrex_coll_desc numbers = { .m = 1, .n = COUNT, .dtype = IMBREX_F32 };
    imbrex_group *group;
    imbrex_plan *plan;
    pid_t own_pid = getpid(), pids[2];
    MPI_Allgather(&own_pid, sizeof own_pid, MPI_BYTE, pids, sizeof own_pid, MPI_BYTE,
                  MPI_COMM_WORLD);
    own[0] = 5;
    CHECK(imbrex_group_create(&desc, &group));
    CHECK(imbrex_plan_all_gather(group, &numbers, &plan));
    holding.wanted = bootstrap->rank == 1;
    CHECK(imbrex_plan_run(plan, &(imbrex_args){ .a = own, .c = all }, NULL));
    CHECK(imbrex_stream_sync(group, NULL));
    imbrex_group_destroy(group);
    if (bootstrap->rank == 1)
        sigtimedwait(&wakes, NULL, &(struct timespec){ .tv_sec = AWAY_S });
    else
        kill(pids[1], SIGUSR1);
    if (all[0] != own[0])
        fprintf(stderr, "rank %d has %g, not %g\n", bootstrap->rank, (double)all[0],
                (double)own[0]);
    return all[0] != own[0];
}

/* Of a group that nobody destroys, MPI is not called after its end. */
static int keeps(const imbrex_bootstrap *bootstrap)
{
    enum { NAP_US = 300000 };
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu" };
    imbrex_group *group;
    CHECK(imbrex_group_create(&desc, &group));
    __atomic_store_n(&nap_us, NAP_US, __ATOMIC_RELAXED);
    usleep(NAP_US / 2);
    MPI_Finalize();
    usleep(2 * NAP_US);
    int calls = __atomic_load_n(&too_late, __ATOMIC_RELAXED);
    int risks = __atomic_load_n(&fatal, __ATOMIC_RELAXED);
    if (calls)
        fprintf(stderr, "MPI was called after its end\n");
    if (risks)
        fprintf(stderr, "an error of %d calls would have ended the process\n", risks);
    return calls || risks;
}

/* An MPI that holds its one lock while it ends neither waits for who wants that lock, as somebody
 * does on rank 0, nor makes anybody want it who does not, as on rank 1: who would have got it
 * after the end, and called MPI then. */
static int locked(const imbrex_bootstrap *bootstrap)
{
    enum { NAP_US = 300000, GUARD_S = 20 };
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu" };
    imbrex_group *group;
    CHECK(imbrex_group_create(&desc, &group));
    if (bootstrap->rank == 0) {
        __atomic_store_n(&nap_us, NAP_US, __ATOMIC_RELAXED);
        usleep(NAP_US / 2);
    }
    locks = true;
    alarm(GUARD_S);
    MPI_Finalize();
    usleep(NAP_US);
    int calls = __atomic_load_n(&too_late, __ATOMIC_RELAXED);
    if (bootstrap->rank == 1 && calls)
        fprintf(stderr, "MPI was called after its end\n");
    return bootstrap->rank == 1 && calls;
}

static bool is_refused(imbrex_status status)
{
    bool refused = status == IMBREX_INVALID && strstr(imbrex_error(), "a forked child cannot use");
    if (!refused)
        fprintf(stderr, "the child gets %s: %s\n", imbrex_status_name(status), imbrex_error());
    return refused;
}

/* Neither in its calls, nor as it exits with what a program has for that. */
static int forks(const imbrex_bootstrap *bootstrap)
{
    enum { GUARD_S = 20 };
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu" };
    imbrex_coll_desc numbers = { .m = 2, .n = 2, .dtype = IMBREX_F32 };
    float a[4] = { 1, 1 }, c[4] = { 0 };
    imbrex_args args = { .a = a, .c = c };
    imbrex_group *group;
    imbrex_plan *plan;
    CHECK(imbrex_group_create(&desc, &group));
    CHECK(imbrex_plan_all_gather(group, &numbers, &plan));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(GUARD_S);
        bool well = is_refused(imbrex_plan_run(plan, &args, NULL)) &&
                    is_refused(imbrex_stream_sync(group, NULL)) &&
                    is_refused(imbrex_barrier(group, NULL));
        imbrex_group_abort(group);
        imbrex_plan_destroy(plan);
        imbrex_group_destroy(group);
        exit(well ? 0 : 1);
    }
    int status = -1;
    if (waitpid(pid, &status, 0) != pid || status) {
        fprintf(stderr, "the child ended with %#x\n", (unsigned)status);
        return 1;
    }
    CHECK(imbrex_plan_run(plan, &args, NULL));
    CHECK(imbrex_barrier(group, NULL));
    CHECK(imbrex_stream_sync(group, NULL));
    imbrex_group_destroy(group);
    return c[0] != 1 || c[3] != 1;
}

int main(int argc, char **argv)
{
    int level, ended;
    imbrex_bootstrap bootstrap;
    const char *mode = argc > 1 ? argv[1] : "";
    sigemptyset(&wakes);
    sigaddset(&wakes, SIGUSR1);
    sigprocmask(SIG_BLOCK, &wakes, NULL); /* of all threads, MPI's too */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    CHECK(imbrex_bootstrap_mpi(MPI_COMM_WORLD, &bootstrap));
    int failed = strcmp(mode, "late") == 0     ? late(&bootstrap)
                 : strcmp(mode, "large") == 0  ? large(&bootstrap)
                 : strcmp(mode, "leaves") == 0 ? leaves(&bootstrap)
                 : strcmp(mode, "keeps") == 0  ? keeps(&bootstrap)
                 : strcmp(mode, "locks") == 0  ? locked(&bootstrap)
                 : strcmp(mode, "forks") == 0  ? forks(&bootstrap)
                                               : several_groups(&bootstrap);
    if (failed)
        return failed;
    printf("rank %d of %d gathered\n", bootstrap.rank, bootstrap.size);
    MPI_Finalized(&ended);
    if (!ended)
        MPI_Finalize();
    return 0;
}
