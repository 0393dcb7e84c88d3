/* main.c - the tool `imbrex`: a table of commands. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli.h"
#include "imbrex.h"
#include "options.h"
#include "text.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} command;

static const command commands[] = {
    { "run", cli_run, "start a program on several ranks of this machine" },
    { "mlp", cli_mlp, "run a transformer's MLP on several ranks: time it, check it, picture it" },
    { "decode", cli_decode, "run a decode step of attention whose cache lies on several ranks" },
    { "bench", cli_bench, "time an operator, overlapped and not, against its product alone" },
    { "tune", cli_tune, "measure what this machine's GPUs do, for plans to choose by" },
    { "compile", cli_compile, "compile kernels ahead, for a GPU that need not be here" },
    { "info", cli_info, "what this build and this machine can do" },
    { "doctor", cli_doctor, "try what imbrex needs of this machine, and say what to do" },
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static int help(void)
{
    puts("imbrex - distributed matrix products whose communication runs beneath the computation\n\n"
         "usage: imbrex COMMAND [options]\n\n"
         "commands:");
    for (int i = 0; i < COMMANDS; i++)
        printf("  %-8s%s\n", commands[i].name, commands[i].help);
    puts("\n"
         "  imbrex COMMAND --help   what a command takes\n"
         "  imbrex --version        the library's version");
    return CLI_OK;
}

static const command *find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown(const char *name)
{
    const char *nearest = NULL;
    int least = 3;
    for (int i = 0; i < COMMANDS; i++) {
        int distance = options_distance(name, commands[i].name);
        if (distance < least) {
            least = distance;
            nearest = commands[i].name;
        }
    }
    text_say(stderr, "imbrex: no command '%s'", name);
    if (nearest)
        fprintf(stderr, "; did you mean '%s'?", nearest);
    fputs("\nTry 'imbrex --help'.\n", stderr);
    return CLI_USAGE;
}

static bool is_limited(int resource)
{
    struct rlimit limit;
    return getrlimit((__rlimit_resource_t)resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/* OpenBLAS starts threads as it is loaded.  Under a limit on addresses these may look for memory
 * without end, and a fork or the end of the process waits for them: begins anew without them.
 * Where that cannot be, or the user has chosen, all stays as it is.  With more rights than the
 * caller's nothing is executed that the caller names. */
static void do_without_blas_threads(char **argv)
{
    const char *self = (const char *)getauxval(AT_EXECFN);
    if (self && !getauxval(AT_SECURE) && (is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA)) &&
        !getenv("OPENBLAS_NUM_THREADS") && setenv("OPENBLAS_NUM_THREADS", "1", 1) == 0)
        execv(self, argv);
}

int main(int argc, char **argv)
{
    do_without_blas_threads(argv);
    if (argc < 2) {
        fputs("imbrex: which command?\nTry 'imbrex --help'.\n", stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) {
        printf("imbrex %s\n", imbrex_version());
        return cli_finish(CLI_OK);
    }
    bool asks = strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
    if (asks && argc < 3)
        return cli_finish(help());
    const command *wanted = find(asks ? argv[2] : name);
    if (!wanted)
        return unknown(asks ? argv[2] : name);
    if (asks) {
        char page[] = "--help";
        return cli_finish(wanted->run(2, (char *[]){ argv[2], page, NULL }));
    }
    return cli_finish(wanted->run(argc - 1, argv + 1));
}
