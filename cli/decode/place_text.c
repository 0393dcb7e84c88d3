/* place_text.c - the kernel as CPU ranks run it. */
#include "place_text.h"

#include "place_kernel.h"

const struct imbrexd_entry *decode_place_entry(void)
{
    return IMBREXD_ENTRY(place);
}
