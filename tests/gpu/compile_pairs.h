/* compile_pairs.h - which of many forms of one kernel to compile, so that every two options are
 * seen together. */
#ifndef COMPILE_PAIRS_H
#define COMPILE_PAIRS_H

#include <stdbool.h>

/* options: of each form, words with blanks between them.  A word without "=" is a flag, and that a
 * form lacks it is an option, too.  Every two options of a form are together in a chosen one, and
 * one at least is chosen.  Those come first that show most pairs which none did before; at the end
 * those go whose pairs are all in others. */
void compile_pairs_choose(const char *const *options, int count, bool *chosen);

#endif /* COMPILE_PAIRS_H */
