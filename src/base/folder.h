/* folder.h - the folder of what imbrex keeps on disk: compiled kernels, the tuning cache.
 *
 * It is this user's alone and lies where nobody else can exchange it, and a file in it is only read
 * if it belongs to this user and nobody else may write it.  Files are replaced whole: whoever reads
 * at the same time finds the old one or the new one.
 */
#ifndef IMX_FOLDER_H
#define IMX_FOLDER_H

#include "imx.h"

struct iovec;

typedef struct imx_folder {
    char path[400]; /* "": there is none */
    char why[480];  /* there is none, in words */
} imx_folder;

/* IMBREX_CACHE_DIR (wanted, or ""), else $XDG_CACHE_HOME/imbrex, else ~/.cache/imbrex.  name: where
 * it would be, whether it is there or not.  find: made if it is not there, and can be written. */
void imx_folder_name(const char *wanted, imx_folder *folder);
void imx_folder_find(const char *wanted, imx_folder *folder);

/* Whether nobody but this user and the system's owner can put another folder in the place of path,
 * which has no links in it; if not, why, and which folder is to blame. */
bool imx_folder_is_firm(const char *path, imx_text *why);

/* Adds a line: where kernels are kept, or why they are not. */
void imx_folder_info(const char *wanted, imx_text *text);

/* All of a file, and a NUL after it, for free(); NULL, with errno, if it is not there, EPERM if it
 * is not ours alone, EFBIG if it has more than `most` bytes. */
void *imx_folder_read(const imx_folder *folder, const char *name, size_t most, size_t *bytes);

/* The same of a file that the user names, wherever it lies and whoever it belongs to. */
void *imx_folder_read_path(const char *path, size_t most, size_t *bytes);

/* Puts the parts one after another into a file; false, with errno, if they did not all get there:
 * then the old file stands. */
bool imx_folder_write(const imx_folder *folder, const char *name, const struct iovec *parts,
                      int count);

/* The same of a file that the user names, to which a link may lead; EINVAL: it is there, and no
 * regular file. */
bool imx_folder_write_path(const char *path, const struct iovec *parts, int count);

/* Waits until no other process, or thread, has the folder locked; close() unlocks.  -1, with errno:
 * it cannot be locked; EWOULDBLOCK: somebody has had it for limit_ms. */
int imx_folder_lock(const imx_folder *folder, int64_t limit_ms);

#endif /* IMX_FOLDER_H */
