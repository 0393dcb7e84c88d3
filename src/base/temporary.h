/* temporary.h - a folder for the files of one call, which other programs are given by name: in a
 * place where nobody but this user and the system's owner can put another in its stead. */
#ifndef IMX_TEMPORARY_H
#define IMX_TEMPORARY_H

#include <limits.h>

#include "folder.h"

typedef struct imx_temporary {
    int at;              /* the folder itself, whatever becomes of its name; -1: there is none */
    char path[PATH_MAX]; /* without links; "": there is none */
} imx_temporary;

/* In TMPDIR, else /tmp; or, if others could put their files in its place there, in the folder of
 * what imbrex keeps.  *out may be removed on failure, too. */
imbrex_status imx_temporary_make(const imx_folder *kept, imx_temporary *out) IMX_MUST_CHECK;

/* Opens a file of the folder for reading; -1, with errno, and EPERM if it is no ordinary one of
 * this user's. */
int imx_temporary_open(const imx_temporary *folder, const char *name);

/* Makes a file that is not there yet, of these two texts. */
imbrex_status imx_temporary_put(const imx_temporary *folder, const char *name, const char *first,
                                const char *text, size_t bytes) IMX_MUST_CHECK;

/* With all files that are in it, whoever made them. */
void imx_temporary_remove(imx_temporary *folder);

#endif /* IMX_TEMPORARY_H */
