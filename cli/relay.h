/* relay.h - brings what the ranks write to the launcher's own output, whole lines at a time, and
 * what is typed to rank 0.
 *
 *     rank 0 stdout ─pipe─┐
 *     rank 1 stdout ─pipe─┴─ lines, "[rank] " before each ── queue ── standard output
 *     rank 0 stderr ─pipe─┐
 *     rank 1 stderr ─pipe─┴─ lines ─────────────────────────── queue ── standard error
 *     terminal ── rank 0 stdin, through a pipe, because a rank's process group is not the
 *                 terminal's foreground group and may not read from it
 *
 * Nothing here blocks but relay_step.  Ranks are held, by their full pipes, while a reader of the
 * launcher's output is slow; they get SIGPIPE once it is gone, as if they had written there.
 */
#ifndef CLI_RELAY_H
#define CLI_RELAY_H

#include <stdbool.h>

typedef struct relay relay;

relay *relay_create(int ranks, bool prefix);
void relay_destroy(relay *lines); /* closes the pipes; NULL is fine */

/* Makes a rank's pipes.  ends gets the file descriptors for its standard input, output and error,
 * close-on-exec and for the caller to close; -1: the rank keeps what it has.  False, with errno, if
 * that fails. */
bool relay_attach(relay *lines, int rank, int ends[3]);

/* Waits for a pipe, or fd, or timeout_ms (-1: none) at most, and moves what there is.  True if fd
 * can be read. */
bool relay_step(relay *lines, int fd, int timeout_ms);

/* A line of the launcher's own, to standard error, after what the ranks wrote there so far. */
void relay_say(relay *lines, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool relay_hears(const relay *lines); /* some process still holds a pipe of a rank */
void relay_deafen(relay *lines);      /* hear no more; what was heard is queued */
bool relay_lost(const relay *lines);  /* standard output took no more, and was not just closed */
bool relay_empty(const relay *lines); /* all that was heard is written */

#endif /* CLI_RELAY_H */
