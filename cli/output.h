/* output.h - a file that appears whole or not at all: written beside its place, then renamed. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <stdbool.h>

#include "options.h"

typedef struct output {
    char *path;   /* its place: what a link points to, so that the link stays one */
    char *beside; /* where it is written */
    int fd;
} output;

/* Opens o->fd.  Created like any other file, so that the user's umask holds; a path that is there
 * and no regular file is refused.  False, with errno; there is then nothing to end. */
bool output_begin(output *o, const char *path);

/* Closes the file and puts it in its place, or removes it if `good` is false.  False, with errno,
 * unless it is in its place. */
bool output_end(output *o, bool good);

/* Why the last call returned false, from errno, for people. */
const char *output_reason(void);

/* For before long work: whether output_begin would do.  False, with errno. */
bool output_check(const char *path);

/* Whether both paths are one file, or would be one if they were written. */
bool output_same(const char *path, const char *other);

/* Before long work, of a command's --output and --timeline, NULL where they are not given: 0, or
 * what options_wrong returns.  They are rank 0's to write: the other ranks' hosts need not have the
 * folder. */
int output_check_both(const options_page *page, const char *path, const char *picture);

#endif /* CLI_OUTPUT_H */
