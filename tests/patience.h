/* patience.h - limits in time in which ranks meet or hear of something.  They are short, so that
 * tests are quick; where the machine is not, IMBREX_TEST_PATIENCE, a whole number, makes all of
 * them so many times as long. */
#ifndef PATIENCE_H
#define PATIENCE_H

#include <stdint.h>
#include <stdlib.h>

static inline int64_t patient(int64_t ms)
{
    const char *times = getenv("IMBREX_TEST_PATIENCE");
    return times ? ms * atoi(times) : ms;
}

#endif /* PATIENCE_H */
