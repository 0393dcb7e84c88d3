/* object.c - lists of what was made from a group. */
#include "object.h"

#include "group.h"

void imx_object_add(imbrex_group *group, imx_maker maker, imx_object *object)
{
    imx_objects *all = &group->objects[maker];
    object->next = all->first;
    all->first = object;
}

void imx_object_made(imbrex_group *group, imx_maker maker, imx_object *object)
{
    object->number = ++group->objects[maker].count;
}

void imx_object_remove(imbrex_group *group, imx_maker maker, imx_object *object)
{
    imx_object **at = &group->objects[maker].first;
    while (*at != object)
        at = &(*at)->next;
    *at = object->next;
}

const imx_object *imx_object_find(const imbrex_group *group, imx_maker maker, int number)
{
    const imx_object *object = group->objects[maker].first;
    while (object && object->number != number)
        object = object->next;
    return object;
}

void imx_object_destroy_all(imbrex_group *group)
{
    for (int maker = 0; maker < IMX_MAKERS; maker++)
        while (group->objects[maker].first)
            imx_object_kinds[maker]->destroy(group->objects[maker].first);
}

void imx_object_forsake_all(imbrex_group *group)
{
    for (int maker = 0; maker < IMX_MAKERS; maker++)
        while (group->objects[maker].first)
            imx_object_kinds[maker]->forsake(group->objects[maker].first);
}
