/* decode_cases.h - flash_decode on any device against float64: pages and none, both orders of
 * heads, grouped heads, MLA, an E4M3 cache, caps, windows, sinks; ranks without tokens; bits; and
 * lengths and pages that are out of range. */
#ifndef DECODE_CASES_H
#define DECODE_CASES_H

#include "imbrex.h"

/* As a rank: 0 if all is right, else it was said what is not.  ctx: NULL, or for out_of_range a
 * number below DECODE_OUT_OF_RANGE, an int, of 2 ranks, which their group seldom survives. */
enum { DECODE_OUT_OF_RANGE = 9 };
int decode_cases(imbrex_group *group, void *ctx);
int decode_mistakes(imbrex_group *group, void *ctx); /* of 2 ranks on CPUs */
int decode_out_of_range(imbrex_group *group, void *ctx);
int decode_not_a_number(imbrex_group *group, void *ctx); /* of 2 ranks */

#endif /* DECODE_CASES_H */
