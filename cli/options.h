/* options.h - one table of options a command: its parser, its --help and its errors.
 *
 *     int64_t ranks = 0;
 *     bool json = false;
 *     const option options[] = {
 *         { "ranks", 'n', .integer = &ranks, .metavar = "R", .min = 1, .max = 64,
 *           .help = "processes to start" },
 *         { "json", 0, .flag = &json, .help = "print JSON" },
 *         { 0 },
 *     };
 *     const options_page page = { .command = "run", .synopsis = "[options]", .options = options };
 *     int given = options_parse(&page, argc, argv);
 *     if (given < 0)
 *         return options_exit(given);
 *
 * Understood: --name value, --name=value, -n value, -nvalue, flags bundled as -xyz, and "--", after
 * which nothing is an option.  Every command has --help and -h.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Exactly one of the four targets is set: it says what the option takes, and keeps the default if
 * the option is not given.  Text lives as long as argv. */
typedef struct option {
    const char *name; /* without dashes; NULL in the last row */
    char letter;      /* or 0 */
    bool *flag;
    int64_t *integer;
    double *real;
    const char **text;
    const char *metavar; /* what --help calls the value */
    const char *choices; /* text: the words allowed, "bf16|f16|f32"; NULL: any */
    double min, max;  /* integer and real, both included; equal: no limit; INFINITY: none above */
    const char *help; /* may hold several lines */
    const struct option *more; /* in the last row: the table goes on there; NULL: it ends */
} option;

/* What an option was once called, without dashes and maybe with its value ("experts whole"), and
 * what to say instead of it. */
typedef struct option_gone {
    const char *name; /* NULL in the last row */
    const char *instead;
} option_gone;

typedef struct options_page {
    const char *command;  /* "run" */
    const char *synopsis; /* "-n R [options] -- COMMAND..." */
    const char *about;    /* a sentence or a few lines; NULL: none */
    const option *options;
    const char *notes;       /* below the options; NULL: none */
    const option_gone *gone; /* NULL: none */
    int most;                /* positional arguments taken; fewer are the command's to judge */
    bool leading; /* options end at the first positional argument: the rest is a command */
} options_page;

enum { OPTIONS_HELPED = -1, OPTIONS_WRONG = -2 };

/* Sets the targets, moves the positional arguments to argv[1]... in order and returns how many
 * there are.  Otherwise it has printed the help (HELPED) or said what is wrong (WRONG). */
int options_parse(const options_page *page, int argc, char **argv);

/* The exit code for HELPED or WRONG. */
int options_exit(int outcome);

/* Says "imbrex COMMAND: sentence" and where the help is; returns OPTIONS_WRONG.  For what a table
 * cannot say, such as two options that exclude each other. */
int options_wrong(const options_page *page, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Where one of an option's choices stands in names[count]; 0 if it does not. */
int options_index(const char *const *names, int count, const char *name);

/* The words of a list, "copy,store". */
enum { OPTIONS_WORDS = 16 };
typedef struct options_list {
    char *text;
    const char *words[OPTIONS_WORDS];
    int count;
} options_list;

/* Of --name: at least one, and at most `most`.  Returns 0, or what options_wrong returns. */
int options_split(const options_page *page, const char *name, const char *text, int most,
                  options_list *out);
void options_list_free(options_list *list);

/* How many letters must change to make one word of the other; for "did you mean". */
int options_distance(const char *a, const char *b);

#endif /* CLI_OPTIONS_H */
