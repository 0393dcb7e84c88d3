/* host.c - one poll over the listening socket, all guests that have yet to prove themselves, and
 * all ranks that already have: whoever is silent, slow or wrong holds up nobody else. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/process.h"
#include "listener.h"

enum {
    GUEST_LIMIT_MS = 2000, /* for the whole handshake */
    SPARE_GUESTS = 64,     /* strangers that may hang around while all ranks call at once */
    SETTLE_MS = 300,       /* from when all are there: two launches that begin at once are told */
    LINGER_MS = 30000,     /* a failed one turns ranks away for so long */
    LINGERING_MOST = 4,    /* at once */
    HELD_MOST = 16,        /* ports of groups that live: others want some of the 32, too */
    LOOK_MS = 50,
    IDLE_MS = 1000
};

struct imx_host {
    const imx_rendezvous_desc *desc; /* until all are there, as oob */
    imx_oob *oob;
    imx_handshake_id id;
    bool one_host;
    int port;
    int64_t timeout_ms;
    int64_t deadline;
    int listener;       /* -1: none */
    bool borrowed;      /* the listener is the caller's */
    int64_t other_user; /* who was sent away from a unix socket; -1: nobody */
    imx_socket_address address;
    int present; /* ranks, this one included */
    imx_handshake_guest *guests;
    int guest_count, guest_max;
    struct pollfd *polls; /* the listener, the guests, the ranks */
    int *polled;          /* which rank polls[1 + guest_count + i] is */

    /* From when ranks are no longer let in. */
    char reason[256]; /* why the group failed; "": it is complete */
    imx_host *next;   /* of those that have a thread */
    unsigned long thread;
    uint64_t process; /* whose the thread is */
    bool keeps;       /* the thread is there; lingers: and ends by itself, with the host */
    bool lingers;
    bool stop; /* atomic */
};

/* ---- Guests ---------------------------------------------------------------------------------- */

static void forget(imx_host *host, int guest)
{
    host->guests[guest] = host->guests[--host->guest_count];
}

static void drop(imx_host *host, int guest)
{
    close(host->guests[guest].fd);
    forget(host, guest);
}

static void drop_oldest(imx_host *host)
{
    int oldest = 0;
    for (int i = 1; i < host->guest_count; i++)
        if (host->guests[i].limit < host->guests[oldest].limit)
            oldest = i;
    drop(host, oldest);
}

/* Lets in who is waiting; a crowd of strangers pushes out the oldest of the crowd. */
static imbrex_status accept_guests(imx_host *host)
{
    for (int i = 0; i < SPARE_GUESTS; i++) {
        int fd = imx_sys.accept(host->listener, NULL, NULL);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && host->guest_count > 0) {
            drop_oldest(host);
            return IMBREX_OK;
        }
        /* accept(2) also hands on what went wrong on the new connection: not our failure. */
        if (fd < 0 &&
            (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EPROTO ||
             errno == ENETDOWN || errno == EHOSTUNREACH || errno == ENETUNREACH || errno == EPERM))
            return IMBREX_OK;
        if (fd < 0)
            return imx_fail_errno("rank 0 cannot accept connections at %s", host->address.text);
        if (!imx_socket_same_user(fd)) {
            host->other_user = imx_socket_user(fd);
            close(fd);
            continue;
        }
        imx_socket_no_delay(fd);
        if (host->guest_count == host->guest_max)
            drop_oldest(host);
        host->guests[host->guest_count++] =
            (imx_handshake_guest){ .fd = fd, .limit = imx_socket_deadline(GUEST_LIMIT_MS) };
    }
    return IMBREX_OK;
}

/* A guest that knows the key, but does not fit: a mistake in how the job was started, which both
 * sides should hear of. */
static imbrex_status misfit(const imx_host *host, const imx_handshake_hello *hello)
{
    if (hello->size != (uint32_t)host->id.size)
        return imx_fail(IMBREX_PEER,
                        "rank %u says that there are %u ranks, rank 0 says %d: set the same "
                        "number on all ranks",
                        hello->rank, hello->size, host->id.size);
    if (hello->rank >= hello->size)
        return imx_fail(IMBREX_PEER, "there is a rank %u, but only %u ranks", hello->rank,
                        hello->size);
    if (hello->rank == 0)
        return imx_fail(IMBREX_PEER,
                        "another rank 0 has come: two ranks have rank 0, or two jobs share "
                        "MASTER_PORT (%d); give each job its own MASTER_PORT or IMBREX_TOKEN",
                        host->port);
    if (host->oob->links[hello->rank].fd >= 0)
        return imx_fail(IMBREX_PEER,
                        "two ranks say that they are rank %u: give each its own number, and each "
                        "job its own MASTER_PORT (%d) or IMBREX_TOKEN",
                        hello->rank, host->port);
    if (hello->launch && hello->launch != host->id.launch)
        return imx_fail(IMBREX_PEER,
                        "rank %u is of another job, which shares MASTER_PORT (%d): give each job "
                        "its own MASTER_PORT or IMBREX_TOKEN",
                        hello->rank, host->port);
    return IMBREX_OK;
}

static void refuse(imx_host *host, int index, const char *why)
{
    (void)!imx_handshake_answer(&host->guests[index], &host->id, IMX_HANDSHAKE_REFUSED, why);
    drop(host, index);
}

/* Ranks are no longer let in. */
static void turn_away(imx_host *host, int index)
{
    char why[256];
    if (host->reason[0])
        snprintf(why, sizeof why, "the group has failed before this rank came: %.200s",
                 host->reason);
    else
        snprintf(why, sizeof why,
                 "its %d ranks are all there: another is rank %u, or two jobs share MASTER_PORT "
                 "(%d); give each job its own MASTER_PORT or IMBREX_TOKEN",
                 host->id.size, host->guests[index].hello.rank, host->port);
    refuse(host, index, why);
}

/* The guest has proved that it knows the key. */
static imbrex_status admit(imx_host *host, int index)
{
    imx_handshake_guest *guest = &host->guests[index];
    const imx_handshake_hello *hello = &guest->hello;
    imbrex_status status = misfit(host, hello);
    if (status != IMBREX_OK) {
        refuse(host, index, imx_status_detail());
        return status;
    }
    if (imx_handshake_answer(guest, &host->id, IMX_HANDSHAKE_WELCOME, "") != IMX_SOCKET_DONE) {
        drop(host, index);
        return IMBREX_OK;
    }
    /* When the first rank gives up, the group has failed: all should hear the same reason. */
    host->deadline = imx_min(host->deadline, imx_socket_deadline(hello->remaining_ms));
    host->oob->links[hello->rank].fd = guest->fd;
    host->oob->links[hello->rank].seals = imx_handshake_seals(guest, &host->id);
    host->present++;
    forget(host, index);
    return IMBREX_OK;
}

/* ---- The loop -------------------------------------------------------------------------------- */

static bool is_missing(const imx_oob_link *link)
{
    return link->fd < 0;
}

static imbrex_status fail_missing(const imx_host *host)
{
    const imx_launch_env *launch = host->desc->launch;
    char ranks[160], stays[320] = "", other[96] = "";
    imx_text text = { .at = ranks, .size = sizeof ranks };
    imx_oob_name_ranks(host->oob, is_missing, &text);
    if (launch->guessed)
        snprintf(stays, sizeof stays,
                 ", where only ranks of this host find it, as MASTER_ADDR=%.64s says: on all ranks "
                 "set the name by which other hosts know this one",
                 launch->address);
    if (host->other_user >= 0)
        snprintf(other, sizeof other,
                 "; a process of user %lld was sent away: run all ranks as one user",
                 (long long)host->other_user);
    return imx_fail(IMBREX_TIMEOUT,
                    "%s of %d did not come within %lld ms (rank 0 listens at %s%s)%s", ranks,
                    host->id.size, (long long)host->timeout_ms, host->address.text, stays, other);
}

/* The listener and the guests; returns how many. */
static int list_guests(imx_host *host)
{
    struct pollfd *at = host->polls;
    *at++ = (struct pollfd){ .fd = host->listener, .events = POLLIN };
    for (int i = 0; i < host->guest_count; i++)
        *at++ = (struct pollfd){ .fd = host->guests[i].fd, .events = POLLIN };
    return (int)(at - host->polls);
}

/* Until something happens, a guest's limit passes, or `until`: all DONE. */
static imx_socket_result wait_for_news(imx_host *host, int64_t until)
{
    struct pollfd *at = host->polls + list_guests(host);
    for (int i = 0; i < host->guest_count; i++)
        until = imx_min(until, host->guests[i].limit);
    int *rank = host->polled;
    for (int r = 1; r < host->id.size; r++) {
        if (is_missing(&host->oob->links[r]))
            continue;
        *at++ = (struct pollfd){ .fd = host->oob->links[r].fd, .events = POLLIN };
        *rank++ = r;
    }
    imx_socket_result result =
        imx_socket_poll(host->polls, (size_t)(at - host->polls), until, NULL);
    return result == IMX_SOCKET_LATE ? IMX_SOCKET_DONE : result;
}

/* Those that were polled.  Backwards, because the last guest takes the place of one that goes. */
static imbrex_status hear_guests(imx_host *host)
{
    for (int i = host->guest_count - 1; i >= 0; i--) {
        imx_socket_result result = IMX_SOCKET_AGAIN;
        if (host->polls[1 + i].revents)
            result = imx_handshake_step(&host->guests[i], &host->id);
        if (result == IMX_SOCKET_DONE && host->keeps)
            turn_away(host, i);
        else if (result == IMX_SOCKET_DONE)
            IMX_TRY(admit(host, i));
        else if (result != IMX_SOCKET_AGAIN || host->guests[i].limit <= imx_socket_now_ms())
            drop(host, i);
    }
    return host->polls[0].revents ? accept_guests(host) : IMBREX_OK;
}

static imbrex_status handle_news(imx_host *host)
{
    /* Ranks first: admitting a guest moves where they stand.  They have nothing to say before the
     * group is complete, so a readable one has left. */
    const struct pollfd *ranks = host->polls + 1 + host->guest_count;
    for (int i = 0; i < host->present - 1; i++)
        if (ranks[i].revents)
            return imx_fail(IMBREX_PEER, "rank %d left before all ranks had come", host->polled[i]);
    return hear_guests(host);
}

static imbrex_status wait_for_all(imx_host *host, bool settles)
{
    int64_t until = host->deadline;
    for (bool all = false; !all || imx_socket_now_ms() < until;) {
        if (wait_for_news(host, until) == IMX_SOCKET_BROKEN)
            return imx_fail_errno("rank 0 cannot wait for the other ranks");
        IMX_TRY(handle_news(host));
        int64_t now = imx_socket_now_ms();
        until = all ? until : host->deadline;
        if (!all && host->present == host->id.size) {
            all = true;
            until = settles ? now + imx_min(SETTLE_MS, (host->deadline - now) / 2) : now;
        } else if (!all && now >= host->deadline) {
            return fail_missing(host);
        }
    }
    return IMBREX_OK;
}

/* ---- Afterwards ------------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static imx_host *kept; /* all that have a thread */

/* A child of fork has no such thread, and must not hold the name. */
static void lock_for_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void unlock_after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void let_go_in_child(void)
{
    for (imx_host *host = kept; host; host = host->next) {
        close(host->listener);
        host->listener = -1;
        host->keeps = false;
    }
    kept = NULL;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    (void)!pthread_atfork(lock_for_fork, unlock_after_fork, let_go_in_child);
}

static void release(imx_host *host)
{
    if (!host)
        return;
    while (host->guest_count > 0)
        drop(host, 0);
    if (host->listener >= 0 && !host->borrowed)
        close(host->listener);
    free(host->guests);
    free(host->polls);
    free(host->polled);
    free(host);
}

/* False: another has taken it off. */
static bool take_off(imx_host *host)
{
    imx_host **at = &kept;
    while (*at && *at != host)
        at = &(*at)->next;
    bool there = *at != NULL;
    if (there)
        *at = host->next;
    return there;
}

/* The thread's poll ends at once: what listened does no more. */
static void stop(imx_host *host)
{
    __atomic_store_n(&host->stop, true, __ATOMIC_RELEASE);
    shutdown(host->listener, SHUT_RDWR);
}

static void *keep(void *arg)
{
    imx_host *host = arg;
    int64_t deadline = imx_socket_deadline(imx_min(host->timeout_ms, LINGER_MS));
    prctl(PR_SET_NAME, "imbrex-host");
    while (!__atomic_load_n(&host->stop, __ATOMIC_ACQUIRE) &&
           (!host->lingers || imx_socket_now_ms() < deadline)) {
        int count = list_guests(host);
        int ready = imx_sys.poll(host->polls, (unsigned long)count,
                                 host->guest_count || host->lingers ? LOOK_MS : IDLE_MS);
        bool well = ready >= 0 || errno == EINTR;
        if (ready == 0)
            for (int i = 0; i < count; i++)
                host->polls[i].revents = 0;
        if (!well || (ready >= 0 && hear_guests(host) != IMBREX_OK))
            imx_sys.poll(NULL, 0, LOOK_MS); /* for want of descriptors: they may come back */
    }
    pthread_mutex_lock(&lock);
    bool own = host->lingers && take_off(host);
    pthread_mutex_unlock(&lock);
    if (own) {
        pthread_detach(pthread_self());
        release(host);
    }
    return NULL;
}

/* Goes on to listen, on a thread. */
static imbrex_status keep_on(imx_host *host)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    host->desc = NULL;
    host->oob = NULL;
    host->process = imx_process_now();
    pthread_mutex_lock(&lock);
    host->keeps = true;
    int error = imx_sys.thread_create(&host->thread, keep, host);
    if (error) {
        host->keeps = false;
    } else {
        host->next = kept;
        kept = host;
    }
    pthread_mutex_unlock(&lock);
    return error ? imx_fail(IMBREX_SYSTEM, "rank 0 cannot start a thread: %s", strerror(error))
                 : IMBREX_OK;
}

void imx_host_close(imx_host *host)
{
    if (!host)
        return;
    pthread_mutex_lock(&lock);
    bool running = host->keeps && imx_process_is(host->process) && take_off(host);
    pthread_mutex_unlock(&lock);
    if (running) {
        stop(host);
        pthread_join(host->thread, NULL);
    }
    release(host);
}

/* Those that linger, but for the newest `most`. */
static void close_failed(int most)
{
    for (;;) {
        imx_host *oldest = NULL;
        int count = 0;
        pthread_mutex_lock(&lock);
        for (imx_host *host = kept; host; host = host->next) {
            oldest = host->lingers ? host : oldest;
            count += host->lingers;
        }
        if (count > most)
            take_off(oldest); /* it is ours now: its thread leaves it alone */
        pthread_mutex_unlock(&lock);
        if (count <= most)
            return;
        stop(oldest);
        pthread_join(oldest->thread, NULL);
        release(oldest);
    }
}

void imx_host_close_failed(void)
{
    close_failed(0);
}

/* Ranks that come too late hear why, and need not wait. */
static void linger(imx_host *host, const char *reason)
{
    snprintf(host->reason, sizeof host->reason, "%.*s", (int)sizeof host->reason - 1, reason);
    host->lingers = true;
    close_failed(LINGERING_MOST - 1);
    imx_status_mute(true);
    if (host->listener < 0 || keep_on(host) != IMBREX_OK)
        release(host);
    imx_status_mute(false);
}

static bool may_hold(const imx_host *host)
{
    int held = 0;
    pthread_mutex_lock(&lock);
    for (const imx_host *other = kept; other; other = other->next)
        held += !other->one_host && !other->lingers;
    pthread_mutex_unlock(&lock);
    return host->one_host || held < HELD_MOST;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static imbrex_status open_host(imx_host *host)
{
    host->guest_max = host->id.size + SPARE_GUESTS;
    size_t polls = (size_t)(1 + host->guest_max + host->id.size);
    IMX_TRY(imx_sys_alloc((size_t)host->guest_max, sizeof *host->guests, &host->guests));
    IMX_TRY(imx_sys_alloc(polls, sizeof *host->polls, &host->polls));
    IMX_TRY(imx_sys_alloc((size_t)host->id.size, sizeof *host->polled, &host->polled));
    if (host->desc->place_count) {
        host->address = host->desc->places[0];
        host->listener = host->desc->listener;
        return IMBREX_OK;
    }
    return imx_listener_open(host->desc, &host->id, host->deadline, &host->address,
                             &host->listener);
}

static imbrex_status gather(imx_host *host, bool settles)
{
    IMX_TRY(open_host(host));
    return wait_for_all(host, settles);
}

imbrex_status imx_host_meet(const imx_rendezvous_desc *desc, const imx_handshake_id *id,
                            bool settles, int64_t deadline, imx_oob *oob, imx_host **out)
{
    imx_host *host;
    IMX_TRY(imx_sys_alloc(1, sizeof *host, &host));
    *host = (imx_host){ .desc = desc,
                        .oob = oob,
                        .id = *id,
                        .one_host = desc->launch->one_host,
                        .port = desc->launch->port,
                        .timeout_ms = desc->timeout_ms,
                        .deadline = deadline,
                        .listener = -1,
                        .other_user = -1,
                        .borrowed = desc->place_count > 0,
                        .present = 1 };
    imbrex_status status = gather(host, settles);
    if (status != IMBREX_OK) {
        status = imx_oob_fail(oob, status);
        if (desc->alone)
            release(host);
        else
            linger(host, oob->text);
        return status;
    }
    deadline = host->deadline;
    if (!desc->alone && may_hold(host))
        status = keep_on(host);
    if (status == IMBREX_OK)
        status = imx_oob_start(oob, deadline);
    else
        status = imx_oob_fail(oob, status);
    if (status == IMBREX_OK && host->keeps)
        *out = host;
    else
        imx_host_close(host);
    return status;
}
