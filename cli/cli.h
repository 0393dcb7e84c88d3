/* cli.h - the commands of the tool `imbrex` and what they share. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>

#include "imbrex.h"
#include "options.h"

/* Exit codes; `imbrex run` also passes on those of its ranks. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* What the library refuses (a value that is wrong, a device or an algorithm that is not there) was
 * asked for on our command line or in the environment. */
static inline int cli_exit_code(imbrex_status status)
{
    bool refused = status == IMBREX_INVALID || status == IMBREX_UNSUPPORTED;
    return status == IMBREX_OK ? CLI_OK : refused ? CLI_USAGE : CLI_FAILED;
}

/* How many ranks a command has: `given` by --ranks, or if that is 0 `usual`; but as some launcher's
 * rank so many as that has started, which is not to be contradicted.  0: the launcher does not say,
 * which the library will refuse; OPTIONS_WRONG: it was said what is wrong. */
int cli_ranks(const options_page *page, int64_t given, int usual);

/* Calls rank_main(rank, request) on so many ranks, which are started here and write to our output;
 * as some launcher's rank, only in this process, and with rank -1: the library will know it.  The
 * exit code. */
int cli_start(int64_t ranks, int (*rank_main)(int rank, void *ctx), const void *request);

/* Whether all that was printed has arrived so far. */
bool cli_flush(void);

/* The exit code of a process that has printed all: CLI_FAILED, and a sentence, instead of CLI_OK
 * where some of that is lost. */
int cli_finish(int code);

/* One file a command, one row each in main.c's table.  argv[0] is the command's name; the result is
 * the exit code. */
int cli_run(int argc, char **argv);
int cli_mlp(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_compile(int argc, char **argv);
int cli_info(int argc, char **argv);

#endif /* CLI_H */
