/* ranks.c - R ranks for a test: threads that meet in memory, or forked children that meet through
 * the environment, as under a launcher. */
#include "ranks.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct table {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, arrived;
    unsigned round;
    char *blobs[2]; /* by round's parity: a fast rank may start the next while others still read */
    size_t bytes;
    bool broken;
    const ranks_desc *desc;
    bare_main run;
    void *ctx;
} table;

typedef struct thread_rank {
    table *table;
    imbrex_bootstrap bootstrap;
    pthread_t thread;
    int failed;
} thread_rank;

static int meet(void *ctx, const void *send, void *recv, size_t bytes)
{
    thread_rank *self = ctx;
    table *t = self->table;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += t->desc->meeting_s ? t->desc->meeting_s : 30;
    pthread_mutex_lock(&t->lock);
    unsigned round = t->round;
    char **blob = &t->blobs[round % 2];
    if (t->arrived == 0) {
        *blob = realloc(*blob, (size_t)t->size * bytes);
        t->bytes = bytes;
    }
    t->broken = t->broken || t->bytes != bytes;
    if (!t->broken) {
        memcpy(*blob + (size_t)self->bootstrap.rank * bytes, send, bytes);
        if (++t->arrived == t->size) {
            t->arrived = 0;
            t->round++;
            pthread_cond_broadcast(&t->changed);
        }
    }
    while (!t->broken && t->round == round) {
        if (pthread_cond_timedwait(&t->changed, &t->lock, &until) == ETIMEDOUT)
            t->broken = true;
    }
    if (!t->broken)
        memcpy(recv, *blob, (size_t)t->size * bytes);
    else
        pthread_cond_broadcast(&t->changed);
    int broken = t->broken;
    pthread_mutex_unlock(&t->lock);
    return broken;
}

static void *thread_main(void *arg)
{
    thread_rank *self = arg;
    table *t = self->table;
    self->failed = t->run(self->bootstrap.rank, &self->bootstrap, t->ctx) != 0;
    /* A rank that ends early leaves the others waiting: let them go. */
    pthread_mutex_lock(&t->lock);
    if (self->failed) {
        t->broken = true;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int run_threads(const ranks_desc *desc, bare_main run, void *ctx)
{
    table t = {
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER,
        .size = desc->size,
        .desc = desc,
        .run = run,
        .ctx = ctx,
    };
    thread_rank ranks[64] = { 0 };
    for (int r = 0; r < desc->size; r++) {
        ranks[r].table = &t;
        ranks[r].bootstrap = (imbrex_bootstrap){
            .rank = r, .size = desc->size, .allgather = meet, .ctx = &ranks[r], .once = desc->once
        };
        pthread_create(&ranks[r].thread, NULL, thread_main, &ranks[r]);
    }
    int failed = 0;
    for (int r = 0; r < desc->size; r++) {
        pthread_join(ranks[r].thread, NULL);
        failed += ranks[r].failed;
    }
    free(t.blobs[0]);
    free(t.blobs[1]);
    return failed;
}

/* ---- processes ------------------------------------------------------------------------------- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

enum { PATIENCE_S = 250 }; /* with a child that does a whole table of cases, on a busy machine */

/* The child's wait status.  A stopped child does not hear its alarm: whoever outlives all patience
 * is killed. */
static int reap(pid_t pid, int *patience_ms)
{
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        usleep(1000);
        if (--*patience_ms <= 0)
            kill(pid, SIGKILL);
    }
    return status;
}

static int run_processes(const ranks_desc *desc, bare_main run, void *ctx)
{
    static int meeting;
    pid_t pids[64];
    int patience_ms = (int)patient(PATIENCE_S + 10) * 1000;
    meeting++;
    fflush(NULL);
    for (int r = 0; r < desc->size; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            set_number("RANK", r);
            set_number("WORLD_SIZE", desc->size);
            set_number("LOCAL_RANK", r);
            set_number("LOCAL_WORLD_SIZE", desc->size);
            setenv("MASTER_ADDR", "127.0.0.1", 1);
            set_number("MASTER_PORT", 20000 + (int)(getppid() % 20000) + meeting % 1000);
            char token[32]; /* another program's ports may be the same */
            snprintf(token, sizeof token, "%d.%d", (int)getppid(), meeting);
            setenv("IMBREX_TOKEN", token, 1);
            snprintf(token, sizeof token, "%d/%d", r, desc->size);
            setenv("IMBREX_LAUNCHED", token, 1); /* no other launch has this token */
            alarm((unsigned)patient(PATIENCE_S));
            int failed = run(r, NULL, ctx) != 0;
            fflush(NULL);
            exit(failed); /* not _exit: the leak checker runs at exit */
        }
    }
    int failed = 0;
    for (int r = 0; r < desc->size; r++)
        failed += reap(pids[r], &patience_ms) != 0;
    return failed;
}

/* ---- with a group ---------------------------------------------------------------------------- */

typedef struct grouped {
    const ranks_desc *desc;
    rank_main run;
    void *ctx;
} grouped;

static int with_group(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const grouped *g = ctx;
    (void)rank;
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = "cpu",
        .timeout_ms = g->desc->timeout_ms ? patient(g->desc->timeout_ms) : 20000,
    };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = g->run(group, g->ctx);
    if (failed)
        imbrex_group_abort(group); /* the others need not wait for this one */
    imbrex_group_destroy(group);
    return failed;
}

int ranks_run_bare(const ranks_desc *desc, bare_main run, void *ctx)
{
    char text[16];
    snprintf(text, sizeof text, "%d", desc->node_ranks);
    if (desc->node_ranks)
        setenv("IMBREX_NODE_RANKS", text, 1);
    int failed = (desc->processes ? run_processes : run_threads)(desc, run, ctx);
    if (desc->node_ranks)
        unsetenv("IMBREX_NODE_RANKS");
    return failed;
}

int ranks_run(const ranks_desc *desc, rank_main run, void *ctx)
{
    grouped g = { desc, run, ctx };
    return ranks_run_bare(desc, with_group, &g);
}

int ranks_meet(imbrex_group *group)
{
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

int ranks_expect(imbrex_group *group, const char *part)
{
    imbrex_status status = imbrex_stream_sync(group, NULL);
    RANK_CHECK(status == IMBREX_PEER || status == IMBREX_TIMEOUT, "%s", imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), part), "'%s' says nothing of '%s'", imbrex_error(), part);
    return 0;
}
