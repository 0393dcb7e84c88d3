/* progress.c - draws the progress bar, ten times a second at most. */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "now.h"

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
