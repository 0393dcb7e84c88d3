/* split.c - makes groups of some ranks of another one.
 *
 *     parent's allgather        the ranks of one color                  parent's allgather
 *     color, key, host    ->    meet at a place of their own, and  ->   how it went
 *                               make a group
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/identity.h"
#include "group.h"
#include "place.h"

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
    int *members;    /* [parent's size]: parent's ranks of this color, in the child's order */
    imx_place place; /* of the child; size 0: none */
} split;

static void end_split(split *s)
{
    imx_place_close(&s->place);
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
    imx_place *place = &s->place;
    place->one_host = true;
    for (int r = 0; own->color >= 0 && r < s->parent->size; r++) {
        if (all[r].color != own->color)
            continue;
        int at = place->size++;
        for (; at > 0 && all[s->members[at - 1]].key > all[r].key; at--)
            s->members[at] = s->members[at - 1];
        s->members[at] = r;
        place->one_host = place->one_host && strcmp(all[r].host, own->host) == 0;
    }
    while (place->rank < place->size && s->members[place->rank] != s->parent->rank)
        place->rank++;
}

static imbrex_status make_child(split *s, imbrex_group **child)
{
    imx_bootstrap *bootstrap;
    const imx_door_offer *offer = &s->offers[s->members[0]];
    IMX_TRY(imx_place_meet(&s->place, offer, s->parent->own_bootstrap, s->parent->timeout_ms,
                           &bootstrap));
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
    mine = imx_place_open(&s->place, &offer);
    IMX_TRY(imx_agree(parent, call, mine, NULL, 0));
    IMX_TRY(imx_agree_allgather(parent, &offer, s->offers, sizeof offer));
    mine = s->place.size ? make_child(s, child) : IMBREX_OK;
    return imx_agree(parent, call, mine, NULL, 0);
}

imbrex_status imbrex_group_split(imbrex_group *parent, int color, int key, imbrex_group **child)
{
    imx_status_enter(__func__);
    IMX_ENTER(parent);
    split s = { .parent = parent, .place = { .call = call, .listener = -1 } };
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
