/* kept.h - large pieces of memory that a thread lets go and takes again: their pages, and what a
 * sanitizer keeps of them, are new only once. */
#ifndef KEPT_H
#define KEPT_H

#include <stddef.h>

/* As malloc, but aborts where there is none.  AddressSanitizer tells of who writes behind a piece,
 * and of who uses one after kept_drop, until the thread takes it again. */
void *kept_take(size_t bytes);
void kept_drop(void *piece); /* or NULL */

#endif /* KEPT_H */
