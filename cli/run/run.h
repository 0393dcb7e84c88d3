/* run.h - what launch.c stands on: the environment of a rank, the relay of what ranks write, and
 * the end of what they leave behind. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include <stdbool.h>
#include <sys/types.h>

/* ---- rank_env.c: what ranks find in their environment, so that they find each other ---------- */

typedef struct rank_env {
    char port[8], token[33];
} rank_env;

/* A port that nothing listens on now, and a secret that no other run has.  False, with errno. */
bool rank_env_choose(rank_env *at);

/* Called in a rank's process: RANK, WORLD_SIZE and the rest, see launch.h. */
void rank_env_set(const rank_env *at, int rank, int ranks);

/* ---- relay.c: lines -------------------------------------------------------------------------- */

/* Brings what the ranks write to the launcher's own output, whole lines at a time, and what is
 * typed to rank 0.
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

/* ---- reaper.c: the processes below this one, also those whose parent has left them behind ---- */

typedef struct family family;

/* From here on, orphans below this process become its children.  NULL, with errno, on failure. */
family *family_begin(void);

/* Kills and reaps all children that came after family_begin, and theirs, then undoes it.  Where the
 * kernel does not list them, as without /proc, to find some takes seconds.  NULL is fine. */
void family_end(family *kin);

/* If this process ends and has not ended its children, SIGKILL goes to each process group of
 * groups[count] that is not 0 then: shared memory.  The guardian is a child like any other, in a
 * session of its own; killing it calls it off.  Its process, or -1, with errno. */
pid_t guardian_start(const pid_t *groups, int count);

void guardian_end(pid_t guardian); /* there is nothing left for it to end */

#endif /* CLI_RUN_H */
