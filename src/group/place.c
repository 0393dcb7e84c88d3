/* place.c - how ranks that can swap bytes get connections of their own. */
#include "place.h"

#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include "bootstrap/rendezvous_desc.h"

imbrex_status imx_place_open(imx_place *place, imx_door_offer *offer)
{
    if (place->size < 2 || place->rank > 0)
        return IMBREX_OK;
    if (place->one_host)
        return getrandom(offer->key, sizeof offer->key, 0) == (ssize_t)sizeof offer->key
                   ? IMBREX_OK
                   : imx_fail_errno("getrandom failed");
    place->listener = imx_door_open(offer);
    return place->listener >= 0 ? IMBREX_OK : imx_fail_errno("cannot listen for the other ranks");
}

imbrex_status imx_place_meet(const imx_place *place, const imx_door_offer *offer,
                             const imx_bootstrap *before, int64_t timeout_ms, imx_bootstrap **out)
{
    uint64_t secret[2] = { 0, 0 };
    if (before)
        imx_bootstrap_secret(before, secret);
    char token[80];
    snprintf(token, sizeof token, "%016llx%016llx%016llx%016llx", (unsigned long long)offer->key[0],
             (unsigned long long)offer->key[1], (unsigned long long)secret[0],
             (unsigned long long)secret[1]);
    imx_launch_env launch = { .launcher = "the ranks themselves",
                              .rank = place->rank,
                              .size = place->size,
                              .one_host = place->one_host,
                              .identified = true };
    snprintf(launch.said, sizeof launch.said, "%s", place->call);
    imx_socket_address places[IMX_DOOR_ADDRESSES];
    const imx_rendezvous_desc desc = {
        .launch = &launch,
        .token = token,
        .bind = "",
        .timeout_ms = imx_max(timeout_ms / 2, 1),
        .later_ms = timeout_ms,
        .alone = true,
        .listener = place->listener,
        .places = places,
        .place_count = place->one_host ? 0 : imx_door_places(offer, places),
    };
    return imx_bootstrap_meet(&desc, out);
}

void imx_place_close(imx_place *place)
{
    if (place->listener >= 0)
        close(place->listener);
    place->listener = -1;
}
