/* failure.c - one sentence of this process. */
#include "failure.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "cli.h"
#include "launch.h"
#include "text.h"

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

/* Ranks that we started have one command line, one environment and one host.  Others learn from the
 * library what it refused on any of them, once they have a group; what we refuse may be one rank's
 * own matter. */
void failure_say(const char *command, imbrex_group *group, imbrex_status status)
{
    bool shared = launch_is_ours() || (group && !ours);
    bool first = group ? imbrex_group_rank(group) == 0 : launch_is_first();
    const char *why = failure_text(status);
    if (shared && cli_exit_code(status) == CLI_USAGE) {
        if (first)
            text_say(stderr, "imbrex %s: %s\n", command, why);
    } else if (group) {
        text_say(stderr, "imbrex %s: rank %d: %s\n", command, imbrex_group_rank(group), why);
    } else {
        text_say(stderr, "imbrex %s: %s\n", command, why);
    }
}

imbrex_status failure_drain(imbrex_status status, imbrex_group *group, imbrex_stream stream)
{
    if (status != IMBREX_OK && !ours) /* the next call of the library forgets its sentence */
        status = failure_note(status, "%s", failure_text(status));
    imbrex_status idle = imbrex_stream_sync(group, stream);
    return status == IMBREX_OK ? idle : status;
}
