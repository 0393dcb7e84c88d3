/* stream.h - streams of a group, and what is enqueued on them beside plans. */
#ifndef IMX_STREAM_H
#define IMX_STREAM_H

#include "state.h"

/* NULL becomes the default stream.  INVALID: it is another group's, or none. */
static inline imbrex_status imx_stream_find(const imbrex_group *group, imbrex_stream *stream)
{
    const imx_backend *backend = group->backend;
    if (!*stream)
        *stream = group->stream;
    else if (backend->stream_is && !backend->stream_is(group->device, *stream))
        return imx_fail(IMBREX_INVALID,
                        "stream, %p, is not one of this group's: want NULL, or one that "
                        "imbrex_stream_create made with it",
                        *stream);
    return IMBREX_OK;
}

/* A copy where either memory may be any that the caller has.  Plans' runs call the backend's copy,
 * which does not look whose it is. */
imbrex_status imx_stream_copy(const imbrex_group *group, void *dst, const void *src, size_t bytes,
                              int rank, imbrex_stream stream) IMX_MUST_CHECK;

/* Makes imbrex_activate, the norm kernel and imbrex_exchange ready. */
imbrex_status imx_stream_begin(imbrex_group *group) IMX_MUST_CHECK;

/* Waits until the last of each is done and frees what they needed. */
void imx_stream_end(imbrex_group *group);

#endif /* IMX_STREAM_H */
