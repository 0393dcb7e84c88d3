/* place.h - how ranks that can swap bytes get connections of their own.
 *
 *     an exchange of theirs          they                    the same exchange, once more
 *     where the first one is,   ->   all meet there     ->   how it went
 *     and a random key
 *
 * There is nothing to guess and nothing to mistake: who comes to the place has its key from that
 * exchange.
 */
#ifndef IMX_PLACE_H
#define IMX_PLACE_H

#include "bootstrap/bootstrap.h"
#include "bootstrap/door.h"

typedef struct imx_place {
    int rank, size; /* of those that meet there */
    bool one_host;
    const char *call; /* which makes it */
    int listener;     /* -1: none */
} imx_place;

/* The first rank: what the others find it by.  Others: nothing.  imx_place_close it, on failure
 * too. */
imbrex_status imx_place_open(imx_place *place, imx_door_offer *offer) IMX_MUST_CHECK;

/* Collective.  offer: the first rank's.  before: what the ranks swapped by, which adds its secret;
 * NULL: it has none.  timeout_ms: of all that they swap later; to meet they have half of it, so
 * that all are in time to hear how it went. */
imbrex_status imx_place_meet(const imx_place *place, const imx_door_offer *offer,
                             const imx_bootstrap *before, int64_t timeout_ms,
                             imx_bootstrap **out) IMX_MUST_CHECK;

void imx_place_close(imx_place *place);

#endif /* IMX_PLACE_H */
