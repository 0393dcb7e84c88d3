/* mpi_carrier.c - the thread that calls MPI: it looks at one flight after the other, and round
 * again, until each is over. */
#include "mpi_carrier.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "mpi_errand.h"

/* LINGER: for what is called back to come back.  LEAVE: for MPI to come back at all.  STOP: MPI may
 * hold a lock of its own while it says that it ends, and the carrier may want it. */
enum {
    LOOK_NS = 2000000,
    STIR_NS = 2000000,
    LINGER_NS = 100000000,
    LEAVE_NS = 1000000000,
    STOP_NS = 1000000000
};

/* What has to arrive within a group's timeout_ms, since MPI does not tell of less. */
enum { PIECE_BYTES = 16 << 20 };

/* ---- what the carrier shares with others ----------------------------------------------------- */

/* An operation goes on by itself, one piece at a time: the peer may do in two steps what this one
 * does in one.  Its last piece is shorter than the others, if need be empty, so that no two sizes
 * have the same pieces. */
struct imx_mpi_flight {
    /* the carrier's own */
    MPI_Comm comm;
    int tag, count;
    bool crowded;
    bool returns, turned; /* is called back; its receives have been cancelled */
    imx_net_op ops[IMX_NET_OPS];
    MPI_Request requests[IMX_NET_OPS];
    int bytes[IMX_NET_OPS];   /* that are to arrive; -1: a send */
    size_t next[IMX_NET_OPS]; /* where the next piece begins; beyond the end: there is none */
    imx_limit lingers;
    imx_mpi_view now;

    /* under the lock */
    imx_mpi_flight *after; /* the next one in the queue, then the carrier's */
    imx_mpi_view seen;
    bool called_back; /* atomic */
    bool left;        /* nobody else wants it: the carrier's to free */
};

/* The carrier is started once, told to end by whoever ends MPI, and has ended when it will call MPI
 * no more.  A forked child has not got it, and maybe the lock as it was held. */
enum { NONE, RUNS, TO_END, ENDED };

/* The carrier does not hold the lock while it calls MPI. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, news; /* for the carrier, and from it */
    int state;                 /* atomic */
    int flights;               /* taken, and not left */
    imx_mpi_flight *queue;     /* what the carrier has not heard of yet */
    pid_t pid;
    MPI_Comm comm; /* of this process alone, where an error ends nothing; MPI_Finalize takes it */
    bool prepared;
    bool failed; /* atomic */
} shared = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock: until somebody tells of something, or for so long. */
static void await(pthread_cond_t *told, int64_t ns)
{
    int64_t until_ns = imbrexd_now_ns() + ns;
    const struct timespec until = { until_ns / 1000000000, until_ns % 1000000000 };
    pthread_cond_timedwait(told, &shared.lock, &until);
}

void imx_mpi_carrier_fail(void)
{
    __atomic_store_n(&shared.failed, true, __ATOMIC_RELAXED);
}

bool imx_mpi_carrier_failed(void)
{
    return __atomic_load_n(&shared.failed, __ATOMIC_RELAXED);
}

/* ---- a flight, in the carrier's hands -------------------------------------------------------- */

static void fail(imx_mpi_flight *f, int op, int error)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(error, &class);
    f->now.op = op;
    f->now.error = error;
    f->now.sizes_differ = class == MPI_ERR_TRUNCATE;
}

static bool is_well(const imx_mpi_flight *f)
{
    return f->now.error == MPI_SUCCESS;
}

/* What nobody waits for any more begins nothing: memory may be somebody else's by now, after a call
 * that took its time. */
static bool goes_on(const imx_mpi_flight *f)
{
    return is_well(f) && !__atomic_load_n(&f->called_back, __ATOMIC_RELAXED) &&
           __atomic_load_n(&shared.state, __ATOMIC_RELAXED) == RUNS;
}

static bool has_next(const imx_mpi_flight *f, int op)
{
    return f->next[op] <= f->ops[op].bytes;
}

/* The n-th send meets the n-th receive: what goes one way between two ranks goes in order. */
static bool may_depart(const imx_mpi_flight *f, int op)
{
    for (int i = 0; i < op; i++) {
        if (f->ops[i].rank == f->ops[op].rank && f->ops[i].receives == f->ops[op].receives &&
            has_next(f, i))
            return false;
    }
    return f->requests[op] == MPI_REQUEST_NULL && has_next(f, op);
}

static void depart(imx_mpi_flight *f, int i)
{
    const imx_net_op *op = &f->ops[i];
    char *at = (char *)op->at + f->next[i];
    int bytes = (int)imx_min(op->bytes - f->next[i], PIECE_BYTES);
    f->next[i] += PIECE_BYTES;
    f->bytes[i] = op->receives ? bytes : -1;
    int error = op->receives
                    ? MPI_Irecv(at, bytes, MPI_BYTE, op->rank, f->tag, f->comm, &f->requests[i])
                    : MPI_Isend(at, bytes, MPI_BYTE, op->rank, f->tag, f->comm, &f->requests[i]);
    if (error != MPI_SUCCESS)
        fail(f, i, error);
}

/* Begins a piece of all operations that may and have none under way, receives first.  MPI keeps
 * the order of messages between two ranks with one tag, so that pieces and steps meet their own
 * kind. */
static void depart_all(imx_mpi_flight *f)
{
    for (int receives = 1; receives >= 0; receives--) {
        for (int i = 0; i < f->count && goes_on(f); i++) {
            if (f->ops[i].receives == receives && may_depart(f, i))
                depart(f, i);
        }
    }
}

/* Looks at a request: whether it has come to its end. */
static bool land(imx_mpi_flight *f, int i)
{
    int done = 0, bytes = 0;
    MPI_Status status;
    if (f->requests[i] == MPI_REQUEST_NULL)
        return false;
    int error = MPI_Test(&f->requests[i], &done, &status);
    if (error == MPI_SUCCESS && done && f->bytes[i] >= 0) {
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        error = bytes == f->bytes[i] ? MPI_SUCCESS : MPI_ERR_TRUNCATE;
    }
    if (error != MPI_SUCCESS)
        fail(f, i, error);
    return done;
}

static void fly(imx_mpi_flight *f)
{
    int open = -1, i = 0;
    depart_all(f);
    for (; i < f->count && goes_on(f); i++) {
        f->now.landed += land(f, i);
        if (open < 0 && (f->requests[i] != MPI_REQUEST_NULL || has_next(f, i)))
            open = i;
    }
    if (is_well(f) && open >= 0)
        f->now.op = open;
    f->now.over = is_well(f) && open < 0 && i == f->count;
}

/* A receive that has not begun can be taken back. */
static void turn_back(imx_mpi_flight *f)
{
    f->turned = true;
    f->lingers = imx_limit_of(LINGER_NS);
    for (int i = 0; i < f->count; i++) {
        if (f->requests[i] != MPI_REQUEST_NULL && f->ops[i].receives)
            MPI_Cancel(&f->requests[i]);
    }
}

/* Memory must stay for what is still open at the end. */
static void come_back(imx_mpi_flight *f)
{
    if (!f->turned)
        turn_back(f);
    f->now.lost = false;
    for (int i = 0, done; i < f->count; i++) {
        if (f->requests[i] != MPI_REQUEST_NULL)
            MPI_Test(&f->requests[i], &done, MPI_STATUS_IGNORE);
        f->now.lost |= f->requests[i] != MPI_REQUEST_NULL;
    }
    f->now.over = !f->now.lost || imx_limit_is_over(&f->lingers);
}

/* MPI ends, and nobody may ask it any more. */
static void get_lost(imx_mpi_flight *f)
{
    for (int i = 0; i < f->count; i++)
        f->now.lost |= f->requests[i] != MPI_REQUEST_NULL;
    if (is_well(f))
        f->now.error = MPI_ERR_OTHER;
    f->now.over = true;
}

/* ---- the carrier ----------------------------------------------------------------------------- */

/* Looks at each flight once: whether anything came of that. */
static bool look_at(imx_mpi_flight *all)
{
    bool moved = false;
    for (imx_mpi_flight *f = all; f; f = f->after) {
        int landed = f->now.landed;
        if (f->returns)
            come_back(f);
        else if (is_well(f)) /* else it waits for being called back */
            fly(f);
        moved |= f->now.landed > landed || f->now.over;
    }
    return moved;
}

/* To look for a message that nobody sends is what makes MPI look at all sockets. */
static void stir(void)
{
    int found;
    if (!imx_mpi_carrier_failed())
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, shared.comm, &found, MPI_STATUS_IGNORE);
}

/* With the lock. */
static void say(imx_mpi_flight *f)
{
    bool news = f->now.landed > f->seen.landed || f->now.over || f->now.error != f->seen.error;
    f->seen = f->now;
    if (news)
        pthread_cond_broadcast(&shared.news);
}

/* With the lock: says how far all are, those that are new come last, and hears who is called back.
 * Those that are over are left to who asked for them. */
static imx_mpi_flight *report(imx_mpi_flight *all)
{
    imx_mpi_flight **at = &all;
    while (*at)
        at = &(*at)->after;
    *at = shared.queue;
    shared.queue = NULL;
    at = &all;
    for (imx_mpi_flight *f; (f = *at);) {
        say(f);
        f->returns = f->called_back;
        if (!f->now.over) {
            at = &f->after;
            continue;
        }
        *at = f->after;
        if (f->left)
            free(f);
    }
    return all;
}

/* With the lock: before the next look, unless the last one came to something. */
static void rest(const imx_mpi_flight *all, int looks)
{
    if (shared.queue || (all && !looks))
        return;
    int64_t ns = all ? imx_mpi_nap_ns(looks, all->crowded) : STIR_NS;
    if (ns) {
        await(&shared.work, ns);
        return;
    }
    pthread_mutex_unlock(&shared.lock);
    sched_yield();
    pthread_mutex_lock(&shared.lock);
}

/* With the lock: MPI ends, and nothing may be asked of it any more. */
static void end(imx_mpi_flight *all)
{
    all = report(all);
    for (imx_mpi_flight *f = all; f; f = f->after)
        get_lost(f);
    report(all);
    shared.state = ENDED;
    pthread_cond_broadcast(&shared.news);
}

static void *carry(void *arg)
{
    imx_mpi_flight *all = NULL;
    (void)arg;
    prctl(PR_SET_NAME, "imbrex-mpi");
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: it naps for short times */
    pthread_mutex_lock(&shared.lock);
    for (int looks = 0;;) {
        rest(all, looks);
        if (shared.state != RUNS)
            break;
        all = report(all);
        pthread_mutex_unlock(&shared.lock);
        looks = all && !look_at(all) ? looks + 1 : 0;
        if (!all)
            stir();
        pthread_mutex_lock(&shared.lock);
    }
    end(all);
    pthread_mutex_unlock(&shared.lock);
    return NULL;
}

/* MPI_Finalize, whoever calls it, begins with this, before it ends anything (MPI 3.1, 8.7.1). */
static int mpi_ends(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm;
    (void)key;
    (void)value;
    (void)extra;
    imx_mpi_carrier_stop();
    return MPI_SUCCESS;
}

static void begin_clock(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&shared.work, &monotonic);
    pthread_cond_init(&shared.news, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

int imx_mpi_carrier_prepare(void)
{
    int key;
    if (shared.prepared)
        return MPI_SUCCESS;
    int error = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, mpi_ends, &key, NULL);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_dup(MPI_COMM_SELF, &shared.comm);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_errhandler(shared.comm, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS)
        begin_clock();
    shared.prepared = error == MPI_SUCCESS;
    return error;
}

int imx_mpi_carrier_start(void)
{
    if (shared.pid && shared.pid != getpid())
        return ECANCELED;
    pthread_mutex_lock(&shared.lock);
    int error = shared.state > RUNS ? ECANCELED : 0;
    if (shared.state == NONE) {
        shared.pid = getpid();
        error = imx_mpi_errand_thread(carry, NULL);
        shared.state = error ? NONE : RUNS;
    }
    pthread_mutex_unlock(&shared.lock);
    return error;
}

bool imx_mpi_carrier_stop(void)
{
    if (shared.pid != getpid())
        return true;
    pthread_mutex_lock(&shared.lock);
    while (shared.state == RUNS && shared.flights) /* each has a limit */
        await(&shared.news, LOOK_NS);
    if (shared.state == RUNS) {
        __atomic_store_n(&shared.state, TO_END, __ATOMIC_RELAXED);
        pthread_cond_signal(&shared.work);
    }
    imx_limit limit = imx_limit_of(STOP_NS);
    while (shared.state == TO_END && !imx_limit_is_over(&limit))
        await(&shared.news, LOOK_NS);
    bool ended = shared.state != TO_END;
    pthread_mutex_unlock(&shared.lock);
    return ended;
}

/* ---- a flight, for who asks for it ----------------------------------------------------------- */

static void enqueue(imx_mpi_flight *f)
{
    shared.flights++;
    imx_mpi_flight **at = &shared.queue;
    while (*at)
        at = &(*at)->after;
    *at = f;
    pthread_cond_signal(&shared.work);
}

imx_mpi_flight *imx_mpi_carrier_take(MPI_Comm comm, int tag, const imx_net_op *ops, int count,
                                     bool crowded)
{
    imx_mpi_flight *f = shared.pid == getpid() ? calloc(1, sizeof *f) : NULL;
    if (!f)
        return NULL;
    f->comm = comm;
    f->tag = tag;
    f->count = count;
    f->crowded = crowded;
    f->now.error = f->seen.error = MPI_SUCCESS;
    memcpy(f->ops, ops, (size_t)count * sizeof *ops);
    for (int i = 0; i < count; i++)
        f->requests[i] = MPI_REQUEST_NULL;
    pthread_mutex_lock(&shared.lock);
    bool runs = shared.state == RUNS;
    if (runs)
        enqueue(f);
    pthread_mutex_unlock(&shared.lock);
    if (runs)
        return f;
    free(f);
    return NULL;
}

imx_mpi_view imx_mpi_carrier_look(imx_mpi_flight *f, int landed)
{
    pthread_mutex_lock(&shared.lock);
    if (f->seen.landed == landed && f->seen.error == MPI_SUCCESS && !f->seen.over)
        await(&shared.news, LOOK_NS);
    imx_mpi_view view = f->seen;
    pthread_mutex_unlock(&shared.lock);
    return view;
}

bool imx_mpi_carrier_leave(imx_mpi_flight *f)
{
    imx_limit limit = imx_limit_of(LEAVE_NS);
    pthread_mutex_lock(&shared.lock);
    __atomic_store_n(&f->called_back, true, __ATOMIC_RELAXED);
    while (!f->seen.over && !imx_limit_is_over(&limit))
        await(&shared.news, LOOK_NS);
    bool over = f->seen.over, lost = !over || f->seen.lost;
    f->left = !over;
    shared.flights--;
    pthread_mutex_unlock(&shared.lock);
    if (over)
        free(f);
    return lost;
}
