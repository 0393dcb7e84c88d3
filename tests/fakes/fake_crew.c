/* fake_crew.c - as the header says. */
#include "fake_crew.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct job {
    void (*work)(void *arg, int index);
    void *arg;
    int left; /* members that have not ended it */
    pthread_cond_t ended;
} job;

typedef struct member {
    struct member *next; /* of those without a job */
    pthread_cond_t given;
    job *job;
    int index;
} member;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static member *idle;

static void *serve(void *arg)
{
    member *m = arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!m->job)
            pthread_cond_wait(&m->given, &lock);
        job *j = m->job;
        pthread_mutex_unlock(&lock);
        j->work(j->arg, m->index);
        pthread_mutex_lock(&lock);
        m->job = NULL;
        m->next = idle;
        idle = m;
        if (--j->left == 0)
            pthread_cond_signal(&j->ended);
    }
    return NULL;
}

/* A child of fork has the memory of its parent's members, and none of them. */
static void forget(void)
{
    pthread_mutex_init(&lock, NULL);
    idle = NULL;
}

static void begin(void)
{
    pthread_atfork(NULL, NULL, forget);
}

/* With the lock held. */
static member *take(void)
{
    pthread_t thread;
    member *m = idle;
    if (m) {
        idle = m->next;
        return m;
    }
    m = calloc(1, sizeof *m);
    if (!m || pthread_cond_init(&m->given, NULL) || pthread_create(&thread, NULL, serve, m)) {
        fprintf(stderr, "fake_crew.c: no thread: the test cannot go on\n");
        abort();
    }
    pthread_detach(thread);
    return m;
}

void fake_crew_run(int count, void (*work)(void *arg, int index), void *arg)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    job j = { .work = work, .arg = arg, .left = count - 1, .ended = PTHREAD_COND_INITIALIZER };
    pthread_once(&once, begin);
    pthread_mutex_lock(&lock);
    for (int i = 1; i < count; i++) {
        member *m = take();
        m->job = &j;
        m->index = i;
        pthread_cond_signal(&m->given);
    }
    pthread_mutex_unlock(&lock);
    work(arg, 0);
    pthread_mutex_lock(&lock);
    while (j.left > 0)
        pthread_cond_wait(&j.ended, &lock);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&j.ended);
}
