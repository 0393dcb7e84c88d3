/* kept_cases.h - quantised or normed sums whose h and normed nobody wants, which a plan keeps by
 * itself, on any device: the bits of those that are wanted, by all operators that add up. */
#ifndef KEPT_CASES_H
#define KEPT_CASES_H

#include <imbrex.h>

/* As a rank: 0 if all is right, else it was said what is not. */
int kept_cases(imbrex_group *group, void *ctx);

#endif /* KEPT_CASES_H */
