/* bench_error.h - the last failure of `imbrex bench` in a sentence: its own, or the library's. */
#ifndef CLI_BENCH_ERROR_H
#define CLI_BENCH_ERROR_H

#include "imbrex.h"

/* Keeps the sentence and returns status. */
IMBREX_TRY bench_fail(imbrex_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The sentence of bench_fail if there was one since the last look, else imbrex_error(), or for a
 * status without either its name.  Valid until the next bench_fail. */
const char *bench_error(imbrex_status status);

#endif /* CLI_BENCH_ERROR_H */
