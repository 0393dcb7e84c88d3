/* failure.h - the last failure of a command in a sentence: its own, or the library's. */
#ifndef CLI_FAILURE_H
#define CLI_FAILURE_H

#include "imbrex.h"

/* Keeps the sentence and returns status. */
IMBREX_TRY failure_note(imbrex_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The sentence of failure_note if there was one since the last look, else imbrex_error(), or for a
 * status without either its name.  Valid until the next failure_note.  Who goes on after a failure
 * calls it too, on ranks that print nothing as well: the sentence would be the next failure's. */
const char *failure_text(imbrex_status status);

/* Says on standard error why a rank of a command ends, group being NULL if none was made.  What is
 * refused on all ranks rank 0 says alone. */
void failure_say(const char *command, imbrex_group *group, imbrex_status status);

/* Waits until the stream is idle, also after a failure, so that nothing on it uses host memory any
 * more.  Returns status, with its sentence kept for failure_text, or after IMBREX_OK the wait's. */
IMBREX_TRY failure_drain(imbrex_status status, imbrex_group *group, imbrex_stream stream);

#endif /* CLI_FAILURE_H */
