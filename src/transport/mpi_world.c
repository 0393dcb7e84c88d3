/* mpi_world.c - MPI is started, a bootstrap over it, and how a group gets a communicator. */
#include "mpi_world.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limit.h"
#include "mpi_errand.h"

enum { TAGS = 32768 }; /* what every MPI allows */

/* Beyond its limit, for who looks at that between calls of MPI. */
enum { COME_BACK_NS = 1000000000 };

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

/* ---- bootstrap ------------------------------------------------------------------------------- */

static int64_t bootstrap_limit_ns(void)
{
    const char *text = secure_getenv("IMBREX_TIMEOUT_MS");
    return imx_timeout_ms(text ? strtoll(text, NULL, 10) : 0) * 1000000;
}

bool imx_mpi_world_is_well(void)
{
    int ended = 0;
    return !imx_mpi_carrier_failed() && MPI_Finalized(&ended) == MPI_SUCCESS && !ended;
}

/* Memory of its own: a gathering that has been given up may still write to it, whenever MPI is
 * called again. */
typedef struct gathering {
    imx_mpi_errand errand;
    MPI_Comm comm;
    size_t bytes;
    int64_t limit_ns;
    int failed;
    char *own, *all;
    char room[];
} gathering;

static void gather(imx_mpi_errand *errand)
{
    gathering *g = (gathering *)errand;
    imx_limit limit = imx_limit_of(g->limit_ns);
    MPI_Request request;
    int bytes = (int)g->bytes, done = 0, looks = 0;
    g->failed = MPI_Iallgather(g->own, bytes, MPI_BYTE, g->all, bytes, MPI_BYTE, g->comm,
                               &request) != MPI_SUCCESS;
    for (; !done && !g->failed; imx_mpi_nap(&looks))
        g->failed = MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
                    (!done && imx_limit_is_over(&limit));
}

/* Where MPI may be called by any thread, one is waited for that makes the calls. */
static int gather_within(gathering *g)
{
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level != MPI_THREAD_MULTIPLE || imx_mpi_errand_start(&g->errand))
        gather(&g->errand);
    else if (!imx_mpi_errand_await(&g->errand, g->limit_ns + COME_BACK_NS, NULL))
        return 1;
    return g->failed;
}

/* The communicator as an integer, which MPI has a form for, fits into ctx. */
static int allgather(void *ctx, const void *send, void *recv, size_t bytes)
{
    MPI_Comm comm = MPI_Comm_f2c((MPI_Fint)(intptr_t)ctx);
    int size;
    if (bytes > INT32_MAX || MPI_Comm_size(comm, &size) != MPI_SUCCESS)
        return 1;
    gathering *g = malloc(sizeof *g + bytes * ((size_t)size + 1));
    if (!g)
        return 1;
    *g = (gathering){ .errand.run = gather,
                      .comm = comm,
                      .bytes = bytes,
                      .limit_ns = bootstrap_limit_ns(),
                      .own = g->room,
                      .all = g->room + bytes };
    memcpy(g->own, send, bytes);
    if (gather_within(g)) {
        imx_mpi_carrier_fail();
        return 1;
    }
    memcpy(recv, g->all, bytes * (size_t)size);
    free(g);
    return 0;
}

imbrex_status imbrex_bootstrap_mpi(MPI_Comm comm, imbrex_bootstrap *bootstrap)
{
    MPI_Comm own;
    imbrex_bootstrap made = { .allgather = allgather };
    if (!bootstrap)
        return IMBREX_INVALID;
    if (MPI_Comm_dup(comm, &own) != MPI_SUCCESS ||
        MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN) != MPI_SUCCESS ||
        MPI_Comm_rank(own, &made.rank) != MPI_SUCCESS ||
        MPI_Comm_size(own, &made.size) != MPI_SUCCESS)
        return IMBREX_PEER;
    made.ctx = (void *)(intptr_t)MPI_Comm_c2f(own);
    *bootstrap = made;
    return IMBREX_OK;
}

/* ---- start and end --------------------------------------------------------------------------- */

static pid_t started_by;

/* As the process exits, maybe with groups; a forked child has no part in it.  What is under way may
 * fail before the carrier has ended.  MPI_Finalize waits for all processes of the job, without a
 * limit: of one that left without it mpirun would say that it had failed, and end those that are
 * still at work. */
static void end_mpi(void)
{
    if (getpid() == started_by && imx_mpi_world_is_well() && imx_mpi_carrier_stop() &&
        imx_mpi_world_is_well())
        MPI_Finalize();
}

/* The level of threads that it has been started with, by whomever; -1: it cannot be. */
static int start_once(void)
{
    int started = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&started);
    if (started) {
        MPI_Query_thread(&level);
        return level;
    }
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return -1;
    started_by = getpid();
    atexit(end_mpi);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return level;
}

static imbrex_status fail_mpi(const imx_net_desc *desc, imbrex_status status, const char *what,
                              int error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, text, &length);
    return desc->fail(status, "MPI cannot %s: %s", what, text);
}

static imbrex_status fail_thread(const imx_net_desc *desc, const char *what, int error)
{
    return desc->fail(IMBREX_SYSTEM, "cannot start a thread that %s: %s", what, strerror(error));
}

static imbrex_status start(const imx_net_desc *desc)
{
    int level = start_once();
    if (level < 0)
        return desc->fail(IMBREX_SYSTEM, "MPI_Init_thread failed");
    if (level != MPI_THREAD_MULTIPLE)
        return desc->fail(IMBREX_UNSUPPORTED,
                          "MPI was started with thread level %d, and streams between nodes need "
                          "MPI_THREAD_MULTIPLE (%d): pass that to MPI_Init_thread",
                          level, MPI_THREAD_MULTIPLE);
    int error = imx_mpi_carrier_prepare();
    if (error != MPI_SUCCESS)
        return fail_mpi(desc, IMBREX_SYSTEM, "serve a thread that keeps it going", error);
    error = imx_mpi_carrier_start();
    return error ? fail_thread(desc, "keeps MPI going", error) : IMBREX_OK;
}

/* Ranks may be threads: one of them starts MPI, and the others find it so. */
imbrex_status imx_mpi_world_start(const imx_net_desc *desc)
{
    int ended = 0;
    MPI_Finalized(&ended);
    if (ended)
        return desc->fail(IMBREX_INVALID, "MPI has ended: make groups before MPI_Finalize");
    pthread_mutex_lock(&starting);
    imbrex_status status = start(desc);
    pthread_mutex_unlock(&starting);
    return status;
}

/* ---- a group's communicator ------------------------------------------------------------------ */

int imx_mpi_world_ticket(void)
{
    static unsigned last; /* atomic */
    return (int)(__atomic_fetch_add(&last, 1, __ATOMIC_RELAXED) % TAGS);
}

int imx_mpi_world_tag(int world, int size, int ticket)
{
    int each = TAGS / size > 0 ? TAGS / size : 1; /* tags of a first rank */
    return (world * each + ticket % each) % TAGS;
}

/* MPI_Comm_create_group has no form that does not block, and waits for good for a process that has
 * died.  So a thread of its own makes the call. */
typedef struct calling {
    imx_mpi_errand errand;
    MPI_Group ranks;
    MPI_Comm comm;
    int tag, error;
} calling;

static void call(imx_mpi_errand *errand)
{
    calling *c = (calling *)errand;
    c->error = MPI_Comm_create_group(MPI_COMM_WORLD, c->ranks, c->tag, &c->comm);
}

/* Half the limit: whoever waits here in vain must still be in time for the meeting where the others
 * wait with the reason. */
static int64_t connect_ms(const imx_net_desc *desc)
{
    return desc->timeout_ms / 2;
}

static imbrex_status give_up(const imx_net_desc *desc)
{
    imx_mpi_carrier_fail();
    if (__atomic_load_n(desc->watch->abort[desc->rank], __ATOMIC_ACQUIRE))
        return desc->fail(IMBREX_PEER,
                          "the group has failed while MPI connected the ranks: end all of them, "
                          "without MPI_Finalize, and start them again");
    return desc->fail(IMBREX_TIMEOUT,
                      "MPI cannot connect the ranks: MPI_Comm_create_group has not returned in "
                      "%lld ms, so one of them has died or hangs: end all, without MPI_Finalize, "
                      "and start them again",
                      (long long)connect_ms(desc));
}

static imbrex_status finish(const imx_net_desc *desc, calling *c, MPI_Comm *comm)
{
    int error = c->error;
    MPI_Group_free(&c->ranks);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
    *comm = c->comm;
    free(c);
    return error == MPI_SUCCESS ? IMBREX_OK
                                : fail_mpi(desc, IMBREX_PEER, "connect the ranks", error);
}

imbrex_status imx_mpi_world_connect(const imx_net_desc *desc, const int *world, int tag,
                                    MPI_Comm *comm)
{
    MPI_Group all;
    calling *c = calloc(1, sizeof *c);
    if (!c)
        return desc->fail(IMBREX_NO_MEMORY, "no memory for MPI's part of a group");
    *c = (calling){ .errand.run = call, .tag = tag, .comm = MPI_COMM_NULL };
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, desc->size, world, &c->ranks);
    MPI_Group_free(&all);
    int error = imx_mpi_errand_start(&c->errand);
    if (error) {
        MPI_Group_free(&c->ranks);
        free(c);
        return fail_thread(desc, "connects the nodes", error);
    }
    const uint64_t *abort = desc->watch->abort[desc->rank];
    bool over = imx_mpi_errand_await(&c->errand, connect_ms(desc) * 1000000, abort);
    return over ? finish(desc, c, comm) : give_up(desc);
}
