/* compile_pairs.h - which of many forms of one kernel to compile, so that every two options are
 * seen together. */
#ifndef COMPILE_PAIRS_H
#define COMPILE_PAIRS_H

#include <stdbool.h>

/* options: of each form, words with blanks between them.  A word without "=" is a flag, and that a
 * form lacks it is an option, too.  Every two options of a form are together in a chosen one.
 * Forms with many words come first: they have most pairs. */
void compile_pairs_choose(const char *const *options, int count, bool *chosen);

#endif /* COMPILE_PAIRS_H */
