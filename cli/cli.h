/* cli.h - what all commands of the tool `imbrex` share: how they end, why they fail, how far they
 * are. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "imbrex.h"

/* Exit codes; `imbrex run` also passes on those of its ranks. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* What the library refuses (a value that is wrong, a device or an algorithm that is not there) was
 * asked for on our command line or in the environment. */
static inline int cli_exit_code(imbrex_status status)
{
    bool refused = status == IMBREX_INVALID || status == IMBREX_UNSUPPORTED;
    return status == IMBREX_OK ? CLI_OK : refused ? CLI_USAGE : CLI_FAILED;
}

/* Whether all that was printed has arrived so far. */
bool cli_flush(void);

/* The exit code of a process that has printed all: CLI_FAILED, and a sentence, instead of CLI_OK
 * where some of that is lost. */
int cli_finish(int code);

/* ---- Failures: the last one in a sentence, a command's own or the library's ------------------ */

#define TRY(call)                          \
    do {                                   \
        imbrex_status try_status = (call); \
        if (try_status != IMBREX_OK)       \
            return try_status;             \
    } while (0)

/* Keeps the sentence and returns status. */
IMBREX_TRY failure_note(imbrex_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The sentence of failure_note if there was one since the last look, else imbrex_error(), or for a
 * status without either its name.  Valid until the next failure_note.  Who goes on after a failure
 * calls it too, on ranks that print nothing as well: the sentence would be the next failure's. */
const char *failure_text(imbrex_status status);

/* Says on standard error why a rank of a command ends, group being NULL if none was made.  What is
 * refused on all ranks rank 0 says alone. */
void failure_say(const char *command, imbrex_group *group, imbrex_status status);

/* Waits until the stream is idle, also after a failure, so that nothing on it uses host memory any
 * more.  Returns status, with its sentence kept for failure_text, or after IMBREX_OK the wait's. */
IMBREX_TRY failure_drain(imbrex_status status, imbrex_group *group, imbrex_stream stream);

/* ---- The host's clock, which no change of the date moves ------------------------------------- */

int64_t now_ms(void);
double now_us(void);

/* ---- A progress bar on standard error if that is a terminal, and nothing otherwise ----------- */

typedef struct progress {
    const char *title;
    int64_t done, total;
    int64_t begun_ms, drawn_ms; /* CLOCK_MONOTONIC */
    bool shown;
} progress;

/* total > 0 steps are ahead.  title must live until the end.  All three take NULL: no bar. */
void progress_begin(progress *bar, const char *title, int64_t total);
void progress_step(progress *bar);
void progress_end(progress *bar); /* wipes the bar */

/* ---- The commands ---------------------------------------------------------------------------- */

/* One file a command, one row each in main.c's table.  argv[0] is the command's name; the result is
 * the exit code. */
int cli_run(int argc, char **argv);
int cli_mlp(int argc, char **argv);
int cli_decode(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_tune(int argc, char **argv);
int cli_compile(int argc, char **argv);
int cli_info(int argc, char **argv);
int cli_doctor(int argc, char **argv);

#endif /* CLI_H */
