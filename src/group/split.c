/* split.c - makes groups of some ranks of another one.
 *
 *     parent's allgather        the ranks of one color                  parent's allgather
 *     color, key, host    ->    the first opens a place where they      where that place is,
 *                               meet                                    and a random key
 *                               all meet there, and make a group  ->    how it went
 *
 * There is nothing to guess and nothing to mistake: who comes to the place has its key from the
 * parent's exchange.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "bootstrap/door.h"
#include "bootstrap/rendezvous.h"
#include "group.h"

static const char call[] = "imbrex_group_split";

/* What each rank brings. */
typedef struct wish {
    int32_t color, key;
    char host[96]; /* as in imx_identity */
} wish;

typedef struct split {
    imbrex_group *parent;
    wish *wishes;           /* [parent's size] */
    imx_door_offer *offers; /* [parent's size]; of each color's first rank */
    int *members;   /* [parent's size]: parent's ranks of this color, in the child's order */
    int size, rank; /* of the child; size 0: none */
    bool one_host;
    int listener; /* -1: none */
} split;

static void end_split(split *s)
{
    if (s->listener >= 0)
        close(s->listener);
    free(s->wishes);
    free(s->offers);
    free(s->members);
}

static imbrex_status prepare(split *s, int color, int key, wish *own)
{
    size_t size = (size_t)s->parent->size;
    imx_identity here;
    IMX_TRY(imx_sys_alloc(size, sizeof *s->wishes, &s->wishes));
    IMX_TRY(imx_sys_alloc(size, sizeof *s->offers, &s->offers));
    IMX_TRY(imx_sys_alloc(size, sizeof *s->members, &s->members));
    IMX_TRY(imx_identity_read("", &here));
    *own = (wish){ .color = color, .key = key };
    memcpy(own->host, here.host, sizeof own->host);
    return IMBREX_OK;
}

/* In the order of their keys, and of their ranks in the parent where keys are equal. */
static void find_members(split *s)
{
    const wish *all = s->wishes, *own = &all[s->parent->rank];
    s->one_host = true;
    for (int r = 0; own->color >= 0 && r < s->parent->size; r++) {
        if (all[r].color != own->color)
            continue;
        int at = s->size++;
        for (; at > 0 && all[s->members[at - 1]].key > all[r].key; at--)
            s->members[at] = s->members[at - 1];
        s->members[at] = r;
        s->one_host = s->one_host && strcmp(all[r].host, own->host) == 0;
    }
    while (s->rank < s->size && s->members[s->rank] != s->parent->rank)
        s->rank++;
}

/* The first rank of a color: where the others find it. */
static imbrex_status open_place(split *s, imx_door_offer *offer)
{
    if (s->size < 2 || s->rank > 0)
        return IMBREX_OK;
    if (s->one_host)
        return getrandom(offer->key, sizeof offer->key, 0) == (ssize_t)sizeof offer->key
                   ? IMBREX_OK
                   : imx_fail_errno("getrandom failed");
    s->listener = imx_door_open(offer);
    return s->listener >= 0 ? IMBREX_OK : imx_fail_errno("cannot listen for the ranks of a color");
}

/* Half of the limit, so that all are in time for the parent's last meeting. */
static imbrex_status meet(split *s, imx_bootstrap **out)
{
    const imbrex_group *parent = s->parent;
    const imx_door_offer *offer = &s->offers[s->members[0]];
    uint64_t secret[2] = { 0, 0 }; /* over the network, what the parent's token adds */
    if (parent->own_bootstrap)
        imx_bootstrap_secret(parent->own_bootstrap, secret);
    char token[80];
    snprintf(token, sizeof token, "%016llx%016llx%016llx%016llx", (unsigned long long)offer->key[0],
             (unsigned long long)offer->key[1], (unsigned long long)secret[0],
             (unsigned long long)secret[1]);
    imx_socket_address places[IMX_DOOR_ADDRESSES];
    const imx_launch_env launch = { .launcher = "split",
                                    .rank = s->rank,
                                    .size = s->size,
                                    .one_host = s->one_host,
                                    .identified = true,
                                    .said = "imbrex_group_split" };
    const imx_rendezvous_desc desc = {
        .launch = &launch,
        .token = token,
        .bind = "",
        .timeout_ms = imx_max(parent->timeout_ms / 2, 1),
        .later_ms = parent->timeout_ms,
        .alone = true,
        .listener = s->listener,
        .places = places,
        .place_count = s->one_host ? 0 : imx_door_places(offer, places),
    };
    return imx_bootstrap_meet(&desc, out);
}

static imbrex_status make_child(split *s, imbrex_group **child)
{
    imx_bootstrap *bootstrap;
    IMX_TRY(meet(s, &bootstrap));
    return imx_group_create_child(s->parent, bootstrap, child);
}

static imbrex_status make(split *s, int color, int key, imbrex_status mine, imbrex_group **child)
{
    imbrex_group *parent = s->parent;
    wish own = { .color = -1 };
    imx_door_offer offer = { .count = 0 };
    if (mine == IMBREX_OK)
        mine = prepare(s, color, key, &own);
    IMX_TRY(imx_agree(parent, call, mine, NULL, 0));
    IMX_TRY(imx_agree_allgather(parent, &own, s->wishes, sizeof own));
    find_members(s);
    mine = open_place(s, &offer);
    IMX_TRY(imx_agree(parent, call, mine, NULL, 0));
    IMX_TRY(imx_agree_allgather(parent, &offer, s->offers, sizeof offer));
    mine = s->size ? make_child(s, child) : IMBREX_OK;
    return imx_agree(parent, call, mine, NULL, 0);
}

imbrex_status imbrex_group_split(imbrex_group *parent, int color, int key, imbrex_group **child)
{
    imx_status_enter(__func__);
    IMX_ENTER(parent);
    split s = { .parent = parent, .listener = -1 };
    imbrex_group *made = NULL;
    imbrex_status mine = imx_status_need(child, "child", "want where to put the group");
    imbrex_status status = make(&s, color, key, mine, &made);
    end_split(&s);
    if (status == IMBREX_OK)
        *child = made;
    else
        imbrex_group_destroy(made);
    return status;
}
