/* rendezvous.c - what makes a group this group, and how a rank looks for its rank 0. */
#include "rendezvous.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/process.h"
#include "base/siphash.h"
#include "handshake.h"
#include "identity.h"
#include "listener.h"

enum { PATIENCE_MS = 250, PATIENCE_MAX_MS = 2000, NAP_MS = 5, NAP_MAX_MS = 200, ADDRESSES = 8 };

/* The port and the job's name go in beside the token, so that two jobs of one user with the same
 * token, or none, are still strangers to each other. */
static void make_key(const imx_rendezvous_desc *desc, uint64_t key[2])
{
    char secret[1024];
    char token[sizeof(imx_env_text) + 16]; /* all of it counts */
    if (desc->token[0])
        snprintf(token, sizeof token, "token %s", desc->token);
    else
        snprintf(token, sizeof token, "user %u", (unsigned)geteuid());
    snprintf(secret, sizeof secret, "imbrex\n%d\n%s\n%s", desc->launch->port, desc->launch->job,
             token);
    const uint64_t halves[2][2] = { { 0, 1 }, { 0, 2 } };
    key[0] = imx_siphash(halves[0], secret, strlen(secret));
    key[1] = imx_siphash(halves[1], secret, strlen(secret));
}

/* ---- Launches that this process has met ------------------------------------------------------ */

typedef struct acquaintance {
    struct acquaintance *next;
    uint64_t key[2], launch;
} acquaintance;

static acquaintance *known;
static uint64_t known_by; /* a child of fork is another process, and has met nobody */

static acquaintance *find_known(const uint64_t key[2])
{
    if (known_by != imx_process_now()) {
        for (acquaintance *next; known; known = next) {
            next = known->next;
            free(known);
        }
        known_by = imx_process_now();
    }
    acquaintance *at = known;
    while (at && memcmp(at->key, key, sizeof at->key) != 0)
        at = at->next;
    return at;
}

static uint64_t recall(const uint64_t key[2])
{
    imx_process_lock(IMX_LOCK_LAUNCHES);
    const acquaintance *found = find_known(key);
    uint64_t launch = found ? found->launch : 0;
    imx_process_unlock(IMX_LOCK_LAUNCHES);
    return launch;
}

/* The first one counts: groups may be made by several threads at once. */
static imbrex_status remember(const uint64_t key[2], uint64_t launch)
{
    acquaintance *made;
    IMX_TRY(imx_sys_alloc(1, sizeof *made, &made));
    *made = (acquaintance){ .key = { key[0], key[1] }, .launch = launch };
    imx_process_lock(IMX_LOCK_LAUNCHES);
    if (find_known(key)) {
        free(made);
    } else {
        made->next = known;
        known = made;
    }
    imx_process_unlock(IMX_LOCK_LAUNCHES);
    return IMBREX_OK;
}

/* ---- A rank that looks for rank 0 ------------------------------------------------------------ */

typedef struct imx_seeker {
    const imx_rendezvous_desc *desc;
    const imx_handshake_id *id;
    int64_t deadline, patience_ms;
    imx_socket_address addresses[ADDRESSES];
    int count;
    int fd; /* to rank 0; -1: not found yet */
    imx_seal_pair seals;
    uint64_t launch;    /* rank 0's */
    int strangers;      /* ports at which somebody else answered, in the last round */
    char other_key[80]; /* where an imbrex of another key answered; "": nowhere */
} imx_seeker;

static imbrex_status find_addresses(imx_seeker *seeker)
{
    const imx_launch_env *launch = seeker->desc->launch;
    for (int i = 0; i < seeker->desc->place_count && i < ADDRESSES; i++)
        seeker->addresses[seeker->count++] = seeker->desc->places[i];
    if (seeker->count)
        return IMBREX_OK;
    if (launch->one_host) {
        imx_socket_unix_address(imx_handshake_name(seeker->id), &seeker->addresses[0]);
        seeker->count = 1;
        return IMBREX_OK;
    }
    const char *why;
    seeker->count = imx_socket_resolve(launch->address, seeker->addresses, ADDRESSES, &why);
    if (seeker->count == 0)
        return imx_fail(IMBREX_INVALID, "MASTER_ADDR=%.128s does not name a host: %s",
                        launch->address, why);
    return IMBREX_OK;
}

/* One address.  OK without fd: nobody of ours is there now; *stranger: but somebody. */
static imbrex_status try_address(imx_seeker *seeker, const imx_socket_address *address,
                                 bool *stranger)
{
    int64_t first_deadline = imx_min(seeker->deadline, imx_socket_deadline(seeker->patience_ms));
    int fd;
    imx_socket_result connected = imx_socket_connect(address, first_deadline, &fd);
    if (connected == IMX_SOCKET_BROKEN)
        return imx_fail_errno("cannot connect to rank 0 at %s", address->text);
    if (connected != IMX_SOCKET_DONE)
        return IMBREX_OK;

    imx_handshake_outcome outcome;
    imbrex_status status =
        imx_socket_same_user(fd)
            ? imx_handshake_join(fd, seeker->id, first_deadline, seeker->deadline, &outcome)
            : imx_listener_fail_foreign(address, imx_socket_user(fd)); /* rank 0 cannot come */
    if (status == IMBREX_OK && outcome.result == IMX_HANDSHAKE_JOINED) {
        seeker->seals = outcome.seals;
        seeker->launch = outcome.launch;
        seeker->fd = fd;
        return IMBREX_OK;
    }
    close(fd);
    IMX_TRY(status);
    *stranger = true;
    if (outcome.result == IMX_HANDSHAKE_OTHER_KEY)
        memcpy(seeker->other_key, address->text, sizeof seeker->other_key);
    if (outcome.result == IMX_HANDSHAKE_TURNED_AWAY)
        return imx_fail(IMBREX_PEER, "rank 0 at %s turned rank %d away: %s", address->text,
                        seeker->id->rank, outcome.text);
    return IMBREX_OK;
}

static int port_count(const imx_launch_env *launch)
{
    return (int)imx_min(IMX_RENDEZVOUS_PORTS, 65535 - launch->port);
}

static imbrex_status try_all(imx_seeker *seeker)
{
    const imx_launch_env *launch = seeker->desc->launch;
    bool stranger = false;
    if (launch->one_host || seeker->desc->place_count) {
        for (int i = 0; i < seeker->count && seeker->fd < 0; i++)
            IMX_TRY(try_address(seeker, &seeker->addresses[i], &stranger));
        return IMBREX_OK;
    }
    int strangers = 0;
    for (int port = launch->port + 1; port <= launch->port + port_count(launch); port++) {
        stranger = false;
        for (int i = 0; i < seeker->count; i++) {
            imx_socket_set_port(&seeker->addresses[i], port);
            IMX_TRY(try_address(seeker, &seeker->addresses[i], &stranger));
            if (seeker->fd >= 0 || imx_socket_now_ms() >= seeker->deadline)
                return IMBREX_OK;
        }
        strangers += stranger;
    }
    seeker->strangers = strangers;
    return IMBREX_OK;
}

static imbrex_status fail_unanswered(const imx_seeker *seeker)
{
    const imx_launch_env *launch = seeker->desc->launch;
    if (seeker->other_key[0])
        return imx_fail(IMBREX_PEER,
                        "the rank 0 at %s has another token: IMBREX_TOKEN, MASTER_PORT (%d here) "
                        "and the job's id (\"%.64s\" here) must be the same on all ranks",
                        seeker->other_key, launch->port, launch->job);
    char where[192];
    if (seeker->desc->alone)
        return imx_fail(IMBREX_TIMEOUT,
                        "rank 0 of the new group did not answer at %s within %lld ms",
                        seeker->count ? seeker->addresses[0].text : "any address",
                        (long long)seeker->desc->timeout_ms);
    if (launch->one_host)
        snprintf(where, sizeof where, "%s", seeker->addresses[0].text);
    else
        snprintf(where, sizeof where, "%.128s, ports %d to %d,", launch->address, launch->port + 1,
                 launch->port + port_count(launch));
    if (!launch->one_host && seeker->strangers == port_count(launch))
        return imx_fail(IMBREX_TIMEOUT,
                        "rank 0 did not answer at %s within %lld ms: others hold all of these "
                        "ports, so that it finds none free; set MASTER_PORT to another number on "
                        "all ranks",
                        where, (long long)seeker->desc->timeout_ms);
    return imx_fail(IMBREX_TIMEOUT,
                    "rank 0 did not answer at %s within %lld ms: is it running, or had it given up "
                    "before, and are %sIMBREX_TOKEN, MASTER_PORT (%d here) and the job's id "
                    "(\"%.64s\" here) the same there?  (This is rank %d of %d by %s)",
                    where, (long long)seeker->desc->timeout_ms,
                    launch->address[0] ? "MASTER_ADDR, " : "", launch->port, launch->job,
                    launch->rank, launch->size, launch->said);
}

/* Calls again and again, because rank 0 may start later, or may be found on a port that a stranger
 * held first.  Whoever is there but silent gets more time from round to round. */
static imbrex_status seek(imx_seeker *seeker)
{
    int64_t nap_ms = NAP_MS;
    for (;;) {
        IMX_TRY(try_all(seeker));
        int64_t now = imx_socket_now_ms();
        if (seeker->fd >= 0)
            return IMBREX_OK;
        if (now >= seeker->deadline)
            return fail_unanswered(seeker);
        imx_socket_result nap =
            imx_socket_poll(NULL, 0, imx_min(seeker->deadline, now + nap_ms), NULL);
        if (nap == IMX_SOCKET_BROKEN)
            return imx_fail_errno("cannot wait for rank 0");
        nap_ms = imx_min(2 * nap_ms, NAP_MAX_MS);
        seeker->patience_ms = imx_min(2 * seeker->patience_ms, PATIENCE_MAX_MS);
    }
}

static imbrex_status guest_meet(const imx_rendezvous_desc *desc, const imx_handshake_id *id,
                                int64_t deadline, imx_oob *oob, uint64_t *launch)
{
    imx_seeker seeker = {
        .desc = desc, .id = id, .deadline = deadline, .patience_ms = PATIENCE_MS, .fd = -1
    };
    IMX_TRY(find_addresses(&seeker));
    IMX_TRY(seek(&seeker));
    oob->links[0].fd = seeker.fd;
    oob->links[0].seals = seeker.seals;
    *launch = seeker.launch;
    return imx_oob_start(oob, deadline);
}

imbrex_status imx_rendezvous_meet(const imx_rendezvous_desc *desc, imx_oob *oob, imx_host **host)
{
    int64_t deadline = imx_socket_deadline(desc->timeout_ms);
    imx_handshake_id id = { .sequence = desc->sequence,
                            .rank = desc->launch->rank,
                            .size = desc->launch->size };
    make_key(desc, id.key);
    id.launch = recall(id.key);
    IMX_TRY(imx_oob_open(oob, id.rank, id.size,
                         desc->later_ms > 0 ? desc->later_ms : desc->timeout_ms));
    imx_handshake_group_key(&id, oob->key);
    if (id.size == 1)
        return IMBREX_OK;
    uint64_t launch = id.launch;
    if (id.rank > 0) {
        IMX_TRY(guest_meet(desc, &id, deadline, oob, &launch));
    } else {
        uint64_t process[2];
        IMX_TRY(imx_identity_process(process));
        launch = launch ? launch : process[0] | 1; /* 0 is none */
        const bool settles = !desc->launch->identified && !id.launch;
        id.launch = launch;
        IMX_TRY(imx_host_meet(desc, &id, settles, deadline, oob, host));
    }
    return desc->alone ? IMBREX_OK : remember(id.key, launch);
}
