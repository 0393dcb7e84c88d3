/* cli.c - what was printed must also have arrived, a failure is one sentence, and the bar is drawn
 * ten times a second at most. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launch.h"
#include "text.h"

/* ---- How a command ends ---------------------------------------------------------------------- */

static int reason; /* errno of the first write that failed where it could be seen */

bool cli_flush(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    reason = reason ? reason : errno;
    return false;
}

int cli_finish(int code)
{
    if (cli_flush())
        return code;
    fprintf(stderr, "imbrex: cannot write to standard output%s%s\n", reason ? ": " : "",
            reason ? strerror(reason) : "");
    return code ? code : CLI_FAILED;
}

/* ---- Failures -------------------------------------------------------------------------------- */

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

/* ---- The clock ------------------------------------------------------------------------------- */

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* ---- Progress -------------------------------------------------------------------------------- */

enum { BAR_WIDTH = 30, INTERVAL_MS = 100 };

static void draw(progress *bar, int64_t now)
{
    static const char full[] = "##############################";
    int filled = (int)(bar->done * BAR_WIDTH / bar->total);
    int64_t spent = now - bar->begun_ms;
    fprintf(stderr, "\r%s [%.*s%*s] %lld/%lld", bar->title, filled, full, BAR_WIDTH - filled, "",
            (long long)bar->done, (long long)bar->total);
    if (bar->done > 0 && spent > 1000)
        fprintf(stderr, "  %.0f s left",
                (double)spent / 1000 * (double)(bar->total - bar->done) / (double)bar->done);
    fputs("\033[K", stderr);
    fflush(stderr);
    bar->drawn_ms = now;
}

void progress_begin(progress *bar, const char *title, int64_t total)
{
    if (!bar)
        return;
    const char *terminal = getenv("TERM");
    *bar = (progress){ .title = title, .total = total, .begun_ms = now_ms() };
    bar->shown = total > 0 && isatty(STDERR_FILENO) && !(terminal && !strcmp(terminal, "dumb"));
    if (bar->shown)
        draw(bar, bar->begun_ms);
}

void progress_step(progress *bar)
{
    if (!bar)
        return;
    if (bar->done < bar->total)
        bar->done++;
    if (!bar->shown)
        return;
    int64_t now = now_ms();
    if (now - bar->drawn_ms >= INTERVAL_MS || bar->done == bar->total)
        draw(bar, now);
}

void progress_end(progress *bar)
{
    if (bar && bar->shown)
        fputs("\r\033[K", stderr);
    if (bar)
        bar->shown = false;
}
