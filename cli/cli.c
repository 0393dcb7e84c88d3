/* cli.c - how a command begins, with how many ranks, and how it ends: what was printed must also
 * have arrived, and a full disk is a failure. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "launch.h"

int cli_ranks(const options_page *page, int64_t given, int usual)
{
    int started = launch_size();
    if (!launch_is_rank())
        return given ? (int)given : usual;
    if (given && started && given != started)
        return options_wrong(page, "--ranks is %lld, but the launcher has started %d: leave it out",
                             (long long)given, started);
    return started;
}

int cli_start(int64_t ranks, int (*rank_main)(int rank, void *ctx), const void *request)
{
    void *ctx = (void *)request;
    const launch_options options = {
        .ranks = (int)ranks,
        .output = LAUNCH_DIRECT,
        .grace_s = LAUNCH_GRACE_S,
    };
    return launch_is_rank() ? rank_main(-1, ctx) : launch_ranks(&options, rank_main, ctx);
}

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
