/* user_source.h - the text of a caller's kernel, and what its compiled form depends on. */
#ifndef IMX_USER_SOURCE_H
#define IMX_USER_SOURCE_H

#include "base/cache.h"

typedef struct imx_user_source {
    char *text; /* and a NUL; NULL: there is none */
    size_t bytes;
    char file[256];   /* what it is called in messages */
    char folder[256]; /* that the file is in */
    imx_cache_key key;
} imx_user_source;

/* Takes source, or reads file if that is NULL; both NULL: there is no text, which is fine.  options
 * and all files that the text includes, as far as they can be found, become part of the key. */
imbrex_status imx_user_source_read(const char *name, const char *source, const char *file,
                                   const char *options, imx_user_source *out) IMX_MUST_CHECK;

void imx_user_source_free(imx_user_source *source);

#endif /* IMX_USER_SOURCE_H */
