/* place_text.h - the kernel of place_kernel.h for the host: its text, for GPUs, and where it is,
 * for CPU ranks. */
#ifndef CLI_DECODE_PLACE_TEXT_H
#define CLI_DECODE_PLACE_TEXT_H

#include "place.h"

extern const char decode_place_text[]; /* place.h and place_kernel.h: made by the build */
const struct imbrexd_entry *decode_place_entry(void);

#endif /* CLI_DECODE_PLACE_TEXT_H */
