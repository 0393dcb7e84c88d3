/* try.h - the macro that returns on failure, of whatever calls the library by its public header. */
#ifndef CLI_TRY_H
#define CLI_TRY_H

#include "imbrex.h"

#define TRY(call)                          \
    do {                                   \
        imbrex_status try_status = (call); \
        if (try_status != IMBREX_OK)       \
            return try_status;             \
    } while (0)

#endif /* CLI_TRY_H */
