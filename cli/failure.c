/* failure.c - one sentence of this process. */
#include "failure.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static char sentence[512];
static bool ours;

imbrex_status failure_note(imbrex_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    ours = true;
    return status;
}

const char *failure_text(imbrex_status status)
{
    bool mine = ours;
    ours = false;
    if (mine)
        return sentence;
    if (status == IMBREX_NO_MEMORY && !*imbrex_error())
        return "out of memory";
    return *imbrex_error() ? imbrex_error() : imbrex_status_name(status);
}

imbrex_status failure_drain(imbrex_status status, imbrex_group *group, imbrex_stream stream)
{
    if (status != IMBREX_OK && !ours) /* the next call of the library forgets its sentence */
        status = failure_note(status, "%s", failure_text(status));
    imbrex_status idle = imbrex_stream_sync(group, stream);
    return status == IMBREX_OK ? idle : status;
}
