/* connect.c - how groups over nodes get hold of MPI, by threads at once and where a rank is gone:
 *
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect threads    two threads a process make groups
 *     IMBREX_NODE_RANKS=1 mpirun -n 1 mpi_connect starts     two ranks want to start MPI
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect late       rank 1 ends long after rank 0
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect gone       rank 1 does not come back from MPI
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect denied     rank 1 gets no thread to drive MPI
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect refused    nor is it told when MPI ends
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect alone      rank 0 gets none that connects it
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect few        MPI has tags for a few plans
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect lost       rank 0's MPI loses itself in a call
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect exits      rank 0 exits with a step under way
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect unmet      and does so as the ranks meet over it
 *
 * and where two ranks do not send what they receive, from the sizes (mismatches) to
 *
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect rows       rank 0 runs a plan with more rows
 *     IMBREX_NODE_RANKS=1 mpirun -n 2 mpi_connect apart      it is only cut up in another way
 */
#define _GNU_SOURCE /* RTLD_NEXT, dladdr */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../ranks.h"
#include "imbrex_device.h"
#include "imbrex_mpi.h"

enum { GROUPS = 2, BYTES = 4096, LATE_MS = 100, LIMIT_MS = 700, MOST_MS = 5000, GUARD_S = 30 };

static bool wants_both, goes;
static int made, started; /* atomic, as is what follows */
static int tags[GROUPS];

/* ---- what the library asks of MPI ------------------------------------------------------------ */

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *level)
{
    __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
    usleep(300000); /* for the other rank to come here, too, if it does not wait */
    return PMPI_Init_thread(argc, argv, wanted, level);
}

int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *out)
{
    int rank, at = __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
    tags[at % GROUPS] = tag;
    for (int ms = 0; wants_both && __atomic_load_n(&made, __ATOMIC_SEQ_CST) < GROUPS; ms++) {
        if (ms == MOST_MS)
            return MPI_ERR_OTHER;
        usleep(1000);
    }
    PMPI_Comm_rank(comm, &rank);
    while (goes && rank == 1)
        pause();
    return PMPI_Comm_create_group(comm, group, tag, out);
}

static int special; /* thread, from 1: one is denied, or comes late; 0: none */
static bool denies, refuses;

int MPI_Comm_set_attr(MPI_Comm comm, int key, void *value)
{
    return refuses ? MPI_ERR_INTERN : PMPI_Comm_set_attr(comm, key, value);
}

static int last_tag, largest_tag; /* last: 0: MPI's own; largest that was sent: atomic */
static int sends;                 /* atomic */
static pthread_t of_main;
static bool loses; /* atomic: itself, in a call of another thread's than main's */

static void lose_itself(void)
{
    while (__atomic_load_n(&loses, __ATOMIC_SEQ_CST) && !pthread_equal(pthread_self(), of_main))
        usleep(1000);
}

int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *found)
{
    int error = PMPI_Comm_get_attr(comm, key, value, found);
    if (key == MPI_TAG_UB && last_tag)
        *(int **)value = &last_tag;
    return error;
}

int MPI_Isend(const void *at, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    int before = __atomic_load_n(&largest_tag, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&sends, 1, __ATOMIC_SEQ_CST);
    while (tag > before && !__atomic_compare_exchange_n(&largest_tag, &before, tag, 0,
                                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
    lose_itself();
    return PMPI_Isend(at, count, type, to, tag, comm, request);
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    lose_itself();
    return PMPI_Test(request, done, status);
}

/* The first one that the engine wants is the one that drives MPI, the second connects a group. */
__attribute__((visibility("default"))) int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
    typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    Dl_info file;
    if (special && dladdr(*(void **)&run, &file) && strstr(file.dli_fname, "libimbrex_mpi") &&
        --special == 0) {
        if (denies)
            return EAGAIN;
        usleep(LATE_MS * 1000);
    }
    void *found = dlsym(RTLD_NEXT, "pthread_create");
    return (*(create **)&found)(thread, attributes, run, arg);
}

/* ---- all at an end --------------------------------------------------------------------------- */

/* Without MPI_Finalize, which not all can call.  mpirun then ends the others, hence the barrier. */
static void leave(void)
{
    MPI_Request request;
    fflush(stdout);
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (int ms = 0, done = 0; !done && ms < 2 * MOST_MS; ms++) {
        usleep(1000);
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    _exit(0);
}

/* ---- groups of two threads ------------------------------------------------------------------- */

typedef struct member {
    pthread_t thread;
    imbrex_bootstrap bootstrap;
    int failed;
} member;

static int meet_once(const imbrex_bootstrap *bootstrap)
{
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu" };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    imbrex_group_destroy(group);
    return 0;
}

static void *run_member(void *arg)
{
    member *m = arg;
    m->failed = meet_once(&m->bootstrap);
    return NULL;
}

static int threads(void)
{
    member members[GROUPS] = { 0 };
    int failed = 0;
    wants_both = true;
    for (int i = 0; i < GROUPS; i++)
        RANK_OK(imbrex_bootstrap_mpi(MPI_COMM_WORLD, &members[i].bootstrap));
    for (int i = 0; i < GROUPS; i++)
        pthread_create(&members[i].thread, NULL, run_member, &members[i]);
    for (int i = 0; i < GROUPS; i++) {
        pthread_join(members[i].thread, NULL);
        failed += members[i].failed;
    }
    RANK_CHECK(!failed && made == GROUPS, "%d groups failed, %d were made", failed, made);
    RANK_CHECK(tags[0] != tags[1], "groups that are made at once have the tag %d", tags[0]);
    RANK_CHECK(tags[0] >= 0 && tags[0] < 32768 && tags[1] >= 0 && tags[1] < 32768,
               "tags are %d and %d", tags[0], tags[1]);
    printf("rank %d: the tags differ\n", members[0].bootstrap.rank);
    MPI_Finalize();
    return 0;
}

/* ---- ranks that are threads of one process --------------------------------------------------- */

static int finds_mpi(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu" };
    imbrex_group *group;
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status == IMBREX_UNSUPPORTED && strstr(imbrex_error(), "are both rank 0 of 1"),
               "rank %d: %s: %s", rank, imbrex_status_name(status), imbrex_error());
    return 0;
}

/* What the process has started is not for a child of it to end. */
static int leaves_mpi_alone(void)
{
    int how = -1, after = 0;
    pid_t child = fork();
    if (child == 0)
        exit(0);
    for (; waitpid(child, &how, WNOHANG) == 0 && after < MOST_MS; after++)
        usleep(1000);
    if (after == MOST_MS)
        kill(child, SIGKILL);
    RANK_CHECK(after < MOST_MS && how == 0, "a forked child ended with %d, after %d ms", how,
               after);
    printf("MPI was started once\n");
    return 0;
}

static int starts(void)
{
    ranks_desc desc = { .size = 2 };
    int failed = ranks_run_bare(&desc, finds_mpi, NULL);
    RANK_CHECK(!failed && started == 1, "%d ranks failed, MPI was started %d times", failed,
               started);
    return leaves_mpi_alone();
}

/* ---- a rank that has work left --------------------------------------------------------------- */

/* It has all the time, also beyond the limit: mpirun would end it if the other left without
 * MPI_Finalize. */
static int late(void)
{
    imbrex_group *group;
    imbrex_group_desc desc = { .device = "cpu", .timeout_ms = patient(LIMIT_MS) };
    RANK_OK(imbrex_group_create(&desc, &group));
    int rank = imbrex_group_rank(group);
    imbrex_group_destroy(group);
    if (rank == 1)
        usleep((useconds_t)patient(4 * LIMIT_MS) * 1000);
    printf("rank %d is done\n", rank);
    return 0;
}

/* ---- a rank that is gone --------------------------------------------------------------------- */

/* Its process stays, so that mpirun does not end the others. */
static int gone(void)
{
    imbrex_bootstrap bootstrap;
    imbrex_group *group;
    goes = true;
    RANK_OK(imbrex_bootstrap_mpi(MPI_COMM_WORLD, &bootstrap));
    imbrex_group_desc desc = { .bootstrap = &bootstrap,
                               .device = "cpu",
                               .timeout_ms = patient(LIMIT_MS) };
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_status status = imbrex_group_create(&desc, &group);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(status == IMBREX_TIMEOUT || status == IMBREX_PEER, "%s", imbrex_status_name(status));
    char words[80];
    snprintf(words, sizeof words, "MPI_Comm_create_group has not returned in %lld ms",
             (long long)patient(LIMIT_MS) / 2);
    RANK_CHECK(strstr(imbrex_error(), words), "%s", imbrex_error());
    RANK_CHECK(took_ms >= patient(LIMIT_MS) / 2 && took_ms < patient(MOST_MS), "it took %lld ms",
               (long long)took_ms);
    printf("rank %d gave up\n", bootstrap.rank);
    leave();
    return 0;
}

/* ---- a rank that cannot go on ---------------------------------------------------------------- */

static int denied(int rank, bool thread)
{
    imbrex_group *group;
    denies = rank == 1;
    special = denies && thread;
    refuses = rank == 1 && !thread;
    char words[128 + MPI_MAX_ERROR_STRING], why[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(MPI_ERR_INTERN, why, &length);
    snprintf(words, sizeof words, "%s: %s",
             thread ? "cannot start a thread that keeps MPI going"
                    : "MPI cannot serve a thread that keeps it going",
             thread ? strerror(EAGAIN) : why);
    imbrex_group_desc desc = { .device = "cpu" };
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status == (rank == 1 ? IMBREX_SYSTEM : IMBREX_PEER) && strstr(imbrex_error(), words),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    printf("rank %d was told\n", rank);
    MPI_Finalize();
    return 0;
}

/* The other one waits for it within MPI, and yet is in time for the meeting that hears why. */
static int alone(int rank)
{
    imbrex_group *group;
    special = 2;
    denies = rank == 0;
    imbrex_group_desc desc = { .device = "cpu", .timeout_ms = patient(LIMIT_MS) };
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status == (rank == 0 ? IMBREX_SYSTEM : IMBREX_PEER) &&
                   strstr(imbrex_error(), "cannot start a thread that connects the nodes"),
               "rank %d: %s: %s", rank, imbrex_status_name(status), imbrex_error());
    printf("rank %d was told\n", rank);
    leave();
    return 0;
}

/* ---- an MPI that does not come back ---------------------------------------------------------- */

/* The steps end at their limit, and neither their streams nor the group's end waits for MPI.  When
 * it comes back, it sends nothing more of a group that is no more. */
static int lost(int rank)
{
    enum { PLANS = 2 };
    static float a[64 * 64], c[2 * 64 * 64];
    imbrex_group *group;
    imbrex_plan *plan[PLANS];
    imbrex_stream stream[PLANS];
    imbrex_coll_desc rows = { .m = 128, .n = 64, .dtype = IMBREX_F32 };
    imbrex_group_desc desc = { .device = "cpu", .timeout_ms = patient(LIMIT_MS) };
    RANK_OK(imbrex_group_create(&desc, &group));
    for (int i = 0; i < PLANS; i++) {
        RANK_OK(imbrex_plan_all_gather(group, &rows, &plan[i]));
        RANK_OK(imbrex_stream_create(group, &stream[i]));
    }
    __atomic_store_n(&loses, rank == 0, __ATOMIC_SEQ_CST);
    int64_t begin_ns = imbrexd_now_ns();
    for (int i = 0; i < PLANS; i++)
        RANK_OK(imbrex_plan_run(plan[i], &(imbrex_args){ .a = a, .c = c }, stream[i]));
    imbrex_status status = imbrex_stream_sync(group, stream[0]);
    RANK_CHECK((status == IMBREX_TIMEOUT || status == IMBREX_PEER) &&
                   strstr(imbrex_error(), "rank"),
               "rank %d: %s: %s", rank, imbrex_status_name(status), imbrex_error());
    imbrex_group_destroy(group);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(took_ms < patient(MOST_MS), "it took %lld ms", (long long)took_ms);
    int before = __atomic_load_n(&sends, __ATOMIC_SEQ_CST);
    __atomic_store_n(&loses, false, __ATOMIC_SEQ_CST);
    usleep(LATE_MS * 1000);
    int late = __atomic_load_n(&sends, __ATOMIC_SEQ_CST) - before;
    RANK_CHECK(!late, "%d messages were sent of a group that is no more", late);
    printf("rank %d went on\n", rank);
    leave();
    return 0;
}

/* Nor do ranks that meet over MPI. */
static int unmet(int rank)
{
    imbrex_bootstrap bootstrap;
    imbrex_group *group;
    RANK_OK(imbrex_bootstrap_mpi(MPI_COMM_WORLD, &bootstrap));
    __atomic_store_n(&loses, rank == 0, __ATOMIC_SEQ_CST);
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_group_desc desc = { .bootstrap = &bootstrap, .device = "cpu" };
    imbrex_status status = imbrex_group_create(&desc, &group);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(status == IMBREX_PEER || status == IMBREX_TIMEOUT, "rank %d: %s", rank,
               imbrex_status_name(status));
    RANK_CHECK(took_ms < patient(MOST_MS), "it took %lld ms", (long long)took_ms);
    printf("rank %d went on\n", rank);
    leave();
    return 0;
}

/* ---- a rank that exits without waiting for its step ------------------------------------------ */

static int64_t exits_ns;

/* After what the library does as the process exits, since it was asked for before. */
static void is_through(void)
{
    int64_t took_ms = (imbrexd_now_ns() - exits_ns) / 1000000;
    if (took_ms < patient(MOST_MS))
        printf("rank 0 is through\n");
}

/* The step fails at its limit, for rank 1 takes no part in it: then nobody waits for rank 1. */
static int exits(void)
{
    imbrex_group *group;
    void *at;
    imbrex_group_desc desc = { .device = "cpu", .timeout_ms = patient(LIMIT_MS) };
    atexit(is_through);
    RANK_OK(imbrex_group_create(&desc, &group));
    RANK_OK(imbrex_mem_alloc(group, BYTES, &at));
    if (imbrex_group_rank(group) == 1) {
        usleep((useconds_t)patient(2 * MOST_MS) * 1000);
        _exit(0);
    }
    imbrex_transfer receive = { .rank = 1, .recv = at, .bytes = BYTES };
    RANK_OK(imbrex_exchange(group, &receive, 1, NULL));
    usleep(LATE_MS * 1000); /* for it to begin */
    exits_ns = imbrexd_now_ns();
    return 0;
}

/* ---- more plans than tags -------------------------------------------------------------------- */

/* Two lanes of exchanges, barriers and each plan. */
static int few(void)
{
    enum { PLANS = 4, TAGS = 2 * (2 + PLANS) };
    static float a[64 * 64], c[2 * 64 * 64];
    imbrex_bootstrap bootstrap;
    imbrex_group *group;
    imbrex_plan *plan;
    last_tag = TAGS - 1;
    RANK_OK(imbrex_bootstrap_mpi(MPI_COMM_WORLD, &bootstrap));
    imbrex_group_desc desc = { .bootstrap = &bootstrap, .device = "cpu" };
    RANK_OK(imbrex_group_create(&desc, &group));
    imbrex_coll_desc rows = { .m = 128, .n = 64, .chunk_rows = 4, .dtype = IMBREX_F32 };
    for (int i = 0; i < PLANS; i++) {
        RANK_OK(imbrex_plan_all_gather(group, &rows, &plan));
        RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = c }, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        imbrex_plan_destroy(plan);
    }
    RANK_CHECK(largest_tag == last_tag, "the tag %d of %d was sent", largest_tag, last_tag);
    imbrex_status status = imbrex_plan_all_gather(group, &rows, &plan);
    RANK_CHECK(status == IMBREX_UNSUPPORTED && strstr(imbrex_error(), "has made 4 plans"), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    printf("rank %d was told\n", bootstrap.rank);
    imbrex_group_destroy(group);
    MPI_Finalize();
    return 0;
}

/* ---- sizes that differ ----------------------------------------------------------------------- */

enum { PIECE = 16 << 20, TRANSFERS = 2 };

/* Rank 0 sends, rank 1 receives; 0: that is all. */
static const struct {
    const char *mode;
    size_t sent[TRANSFERS], received[TRANSFERS];
} mismatches[] = {
    { "more", { 2 * BYTES }, { BYTES } },
    { "less", { BYTES }, { 2 * BYTES } },
    { "more-pieces", { 2 * PIECE }, { PIECE } },
    { "less-pieces", { PIECE }, { 2 * PIECE } },
    { "one-of-two", { PIECE, PIECE }, { 2 * PIECE } },
};

/* Memory that begins with 1, and with 2 from the second transfer on. */
static int exchange(imbrex_group *group, const size_t *bytes, void *at)
{
    int rank = imbrex_group_rank(group), count = 1 + (bytes[1] > 0);
    imbrex_transfer transfers[TRANSFERS] = { 0 };
    char *next = at;
    for (int i = 0; i < count; i++) {
        transfers[i] = (imbrex_transfer){ .rank = !rank, .bytes = bytes[i] };
        if (rank)
            transfers[i].recv = next;
        else
            transfers[i].send = memset(next, i + 1, bytes[i]);
        next += bytes[i];
    }
    RANK_OK(imbrex_exchange(group, transfers, count, NULL));
    return 0;
}

static int mismatch(imbrex_group *group, const char *mode)
{
    enum { COUNT = sizeof mismatches / sizeof *mismatches };
    void *at;
    int i = 0;
    while (i < COUNT && strcmp(mismatches[i].mode, mode) != 0)
        i++;
    RANK_CHECK(i < COUNT, "there is no %s", mode);
    RANK_OK(imbrex_mem_alloc(group, 2 * PIECE, &at));
    return exchange(group, imbrex_group_rank(group) ? mismatches[i].received : mismatches[i].sent,
                    at);
}

static int gather_rows(imbrex_group *group)
{
    static float a[64 * 64], c[64 * 64];
    imbrex_coll_desc desc = { .m = 64, .n = 64, .dtype = IMBREX_F32 };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plan));
    imbrex_args args = { .a = a, .c = c, .m = imbrex_group_rank(group) ? 32 : 64 };
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    return 0;
}

static int sizes(const char *mode)
{
    bool rows = strcmp(mode, "rows") == 0;
    const char *words = rows ? "all ranks must pass the same args.m" : "want the same bytes";
    imbrex_bootstrap bootstrap;
    imbrex_group *group;
    imbrex_status status;
    RANK_OK(imbrex_bootstrap_mpi(MPI_COMM_WORLD, &bootstrap));
    imbrex_group_desc desc = { .bootstrap = &bootstrap, .device = "cpu", .timeout_ms = MOST_MS };
    RANK_OK(imbrex_group_create(&desc, &group));
    if (rows ? gather_rows(group) : mismatch(group, mode))
        return 1;
    for (int ms = 0; (status = imbrex_group_status(group)) == IMBREX_OK && ms < MOST_MS; ms++)
        usleep(1000);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), words), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    printf("rank %d was told: %s\n", bootstrap.rank, imbrex_error());
    leave();
    return 0;
}

/* What is sent in one exchange may be received in two. */
static int apart(void)
{
    enum { EACH = PIECE + BYTES };
    const size_t both[TRANSFERS] = { EACH, EACH }, one[TRANSFERS] = { EACH };
    imbrex_bootstrap bootstrap;
    imbrex_group *group;
    char *at;
    RANK_OK(imbrex_bootstrap_mpi(MPI_COMM_WORLD, &bootstrap));
    imbrex_group_desc desc = { .bootstrap = &bootstrap, .device = "cpu" };
    RANK_OK(imbrex_group_create(&desc, &group));
    RANK_OK(imbrex_mem_alloc(group, 2 * EACH, (void **)&at));
    for (int i = 0; i < 1 + bootstrap.rank; i++) {
        if (exchange(group, bootstrap.rank ? one : both, at + (size_t)i * EACH))
            return 1;
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (size_t i = 0; i < 2 * EACH; i++)
        RANK_CHECK(at[i] == 1 + (i >= EACH), "byte %zu is %d", i, at[i]);
    printf("rank %d has all\n", bootstrap.rank);
    imbrex_group_destroy(group);
    MPI_Finalize();
    return 0;
}

/* What is sent and received in one exchange may be received in one, and then sent in another. */
static int answers(void)
{
    enum { EACH = PIECE + BYTES };
    imbrex_bootstrap bootstrap;
    imbrex_group *group;
    char *at;
    RANK_OK(imbrex_bootstrap_mpi(MPI_COMM_WORLD, &bootstrap));
    imbrex_group_desc desc = { .bootstrap = &bootstrap, .device = "cpu", .timeout_ms = MOST_MS };
    RANK_OK(imbrex_group_create(&desc, &group));
    RANK_OK(imbrex_mem_alloc(group, 2 * EACH, (void **)&at));
    int rank = bootstrap.rank;
    char *sent = at + rank * EACH, *received = at + !rank * EACH;
    const imbrex_transfer transfers[TRANSFERS] = {
        { .rank = !rank,
          .bytes = EACH,
          .send = rank ? NULL : sent,
          .recv = rank ? received : NULL },
        { .rank = !rank,
          .bytes = EACH,
          .send = rank ? sent : NULL,
          .recv = rank ? NULL : received },
    };
    memset(sent, 1 + rank, EACH);
    for (int i = 0; i < 1 + rank; i++)
        RANK_OK(imbrex_exchange(group, &transfers[i], TRANSFERS - rank, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (size_t i = 0; i < 2 * EACH; i++)
        RANK_CHECK(at[i] == 1 + (i >= EACH), "byte %zu is %d", i, at[i]);
    printf("rank %d has all\n", rank);
    imbrex_group_destroy(group);
    MPI_Finalize();
    return 0;
}

int main(int argc, char **argv)
{
    int level, rank;
    const char *mode = argc > 1 ? argv[1] : "";
    alarm(GUARD_S);
    of_main = pthread_self();
    if (strcmp(mode, "starts") == 0)
        return starts();
    if (strcmp(mode, "late") == 0)
        return late();
    if (strcmp(mode, "exits") == 0)
        return exits();
    PMPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return strcmp(mode, "gone") == 0      ? gone()
           : strcmp(mode, "denied") == 0  ? denied(rank, true)
           : strcmp(mode, "refused") == 0 ? denied(rank, false)
           : strcmp(mode, "alone") == 0   ? alone(rank)
           : strcmp(mode, "few") == 0     ? few()
           : strcmp(mode, "lost") == 0    ? lost(rank)
           : strcmp(mode, "unmet") == 0   ? unmet(rank)
           : strcmp(mode, "threads") == 0 ? threads()
           : strcmp(mode, "apart") == 0   ? apart()
           : strcmp(mode, "answers") == 0 ? answers()
                                          : sizes(mode);
}
