/* cli.c - what was printed must also have arrived: a full disk is a failure. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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
