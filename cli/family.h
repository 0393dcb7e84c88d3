/* family.h - the processes below this one, also those whose parent has left them behind. */
#ifndef CLI_FAMILY_H
#define CLI_FAMILY_H

typedef struct family family;

/* From here on, orphans below this process become its children.  NULL, with errno, on failure. */
family *family_begin(void);

/* Kills and reaps all children that came after family_begin, and theirs, then undoes it.  Where the
 * kernel does not list them, as without /proc, to find some takes seconds.  NULL is fine. */
void family_end(family *kin);

#endif /* CLI_FAMILY_H */
