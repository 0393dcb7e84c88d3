/* object.h - what is made from a group and waits on its streams.  The group, and whoever says why
 * it has failed, know of such objects what is here: they describe their waits and end themselves.
 */
#ifndef IMX_OBJECT_H
#define IMX_OBJECT_H

#include "base/imx.h"
#include "imbrex_device.h"

/* First member of an object. */
typedef struct imx_object {
    struct imx_object *next;
    int number; /* among those of its maker, from 1: in its wait points; 0: not yet made */
} imx_object;

/* Whose code waits.  Each numbers its own. */
typedef enum imx_maker { IMX_OF_LIBRARY, IMX_OF_CALLER, IMX_MAKERS } imx_maker;

/* What a kind of object does for the group.  Words are parts of a sentence; the object that a point
 * names may be gone by then. */
typedef struct imx_object_kind {
    /* Adds what it is called: an operator, "(plan 1)".  point: imbrexd_wait_point.plan. */
    void (*name)(const imbrex_group *group, int point, imx_text *text);
    /* Adds what was waited for, which is not the group's own: "chunk 0 of rank 1". */
    void (*describe_wait)(const imbrexd_wait_point *point, imx_text *text);
    /* Adds in which way ranks do not do the same, for IMBREXD_FAULT_MISMATCH. */
    void (*describe_mismatch)(const imbrex_group *group, const imbrexd_fault *fault,
                              imx_text *text);
    /* Adds what it did wrong, for faults of the kinds that callers' code alone has. */
    void (*describe_mistake)(const imbrex_group *group, const imbrexd_fault *fault, imx_text *text);
    void (*destroy)(imx_object *object); /* both take it out */
    void (*forsake)(imx_object *object); /* in a child of fork, which has none of its threads */
} imx_object_kind;

/* By their makers: custom/object_kinds.c, which sees all of them. */
extern const imx_object_kind *const imx_object_kinds[IMX_MAKERS];

/* All of a maker's. */
typedef struct imx_objects {
    imx_object *first; /* those that live, newest first */
    int count;         /* made so far */
} imx_objects;

void imx_object_add(imx_objects *all, imx_object *object);

/* Its number: once all ranks have made it, so that it is the same on all. */
void imx_object_made(imx_objects *all, imx_object *object);

void imx_object_remove(imx_objects *all, imx_object *object);

/* NULL: there is none of that number. */
const imx_object *imx_object_find(const imx_objects *all, int number);

void imx_object_destroy_all(imx_objects all[IMX_MAKERS]);
void imx_object_forsake_all(imx_objects all[IMX_MAKERS]);

#endif /* IMX_OBJECT_H */
