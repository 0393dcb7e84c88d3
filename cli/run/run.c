/* run.c - `imbrex run`: starts a command on several ranks. */
#include <stdio.h>

#include "cli.h"
#include "launch.h"
#include "options.h"

int cli_run(int argc, char **argv)
{
    int64_t ranks = 0;
    bool bare = false;
    launch_options launch = { .grace_s = LAUNCH_GRACE_S };
    const option options[] = {
        { "ranks", 'n', .integer = &ranks, .metavar = "R", .min = 1, .max = 1024,
          .help = "processes to start (required)" },
        { "timeout", 't', .real = &launch.timeout_s, .metavar = "S", .min = 0, .max = 1e6,
          .help = "end the whole run after so many seconds, with exit code 124; 0: never" },
        { "grace", 0, .real = &launch.grace_s, .metavar = "S", .min = 0, .max = 1e6,
          .help = "seconds that the others have to end after a failure or a\n"
                  "signal; after a failure SIGTERM comes when 2/5 are over (5)" },
        { "no-prefix", 0, .flag = &bare, .help = "leave out the \"[rank] \" before each line" },
        { 0 },
    };
    const options_page page = {
        .command = "run",
        .synopsis = "-n R [options] [--] COMMAND...",
        .about = "Starts R copies of COMMAND on this machine, as ranks of one group, and brings "
                 "their\noutput here, whole lines at a time.",
        .options = options,
        .notes =
            "Ranks find RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT "
            "and\n"
            "IMBREX_TOKEN in their environment; unless they are set, OMP_NUM_THREADS and\n"
            "OPENBLAS_NUM_THREADS are 1, and CUDA_DEVICE_MAX_CONNECTIONS is 32.\n"
            "Rank 0 has the standard input, the others none.  Ranks have no terminal: what asks "
            "there,\nas ssh does for a password, fails at once, and needs a file or that input.\n"
            "SIGINT, SIGTERM, SIGHUP and SIGQUIT reach every rank; a second one kills.  One that "
            "is\n"
            "ignored here, as SIGHUP is under nohup, reaches none.\n\n"
            "exit code: that of the first rank that failed, or 128 + the signal that killed it; "
            "the\nothers are then ended.  0 if none failed, 124 at the timeout, 2 for wrong usage.",
        .leading = true,
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    if (ranks == 0)
        return options_exit(options_wrong(&page, "how many ranks? Give -n R"));
    if (given == 0)
        return options_exit(options_wrong(&page, "which command is to run?"));
    argv[given + 1] = NULL;
    launch.ranks = (int)ranks;
    launch.output = bare ? LAUNCH_LINES : LAUNCH_PREFIX;
    return launch_command(&launch, argv + 1);
}
