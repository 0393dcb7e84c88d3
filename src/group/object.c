/* object.c - lists of what was made from a group. */
#include "object.h"

void imx_object_add(imx_objects *all, imx_object *object)
{
    object->next = all->first;
    all->first = object;
}

void imx_object_made(imx_objects *all, imx_object *object)
{
    object->number = ++all->count;
}

void imx_object_remove(imx_objects *all, imx_object *object)
{
    imx_object **at = &all->first;
    while (*at != object)
        at = &(*at)->next;
    *at = object->next;
}

const imx_object *imx_object_find(const imx_objects *all, int number)
{
    const imx_object *object = all->first;
    while (object && object->number != number)
        object = object->next;
    return object;
}

void imx_object_destroy_all(imx_objects all[IMX_MAKERS])
{
    for (int maker = 0; maker < IMX_MAKERS; maker++)
        while (all[maker].first)
            imx_object_kinds[maker]->destroy(all[maker].first);
}

void imx_object_forsake_all(imx_objects all[IMX_MAKERS])
{
    for (int maker = 0; maker < IMX_MAKERS; maker++)
        while (all[maker].first)
            imx_object_kinds[maker]->forsake(all[maker].first);
}
