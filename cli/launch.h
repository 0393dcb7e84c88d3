/* launch.h - starts ranks as processes of this machine and sees them to their end. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

struct options_page; /* options.h */

typedef enum launch_output {
    LAUNCH_PREFIX, /* whole lines, "[rank] " before each */
    LAUNCH_LINES,  /* whole lines as they are */
    LAUNCH_DIRECT  /* ranks write to our output themselves, a terminal stays one; none reads */
} launch_output;

typedef struct launch_options {
    int ranks; /* at least 1 */
    launch_output output;
    double timeout_s; /* for the whole run; 0: none */
    double grace_s;   /* from the first failure or signal to SIGKILL */
} launch_options;

enum { LAUNCH_GRACE_S = 5, LAUNCH_TIMED_OUT = 124 };

/* Both start options->ranks processes, return when the last has ended, and give 0 or the first
 * failing rank's status: its exit code, or 128 + the signal that killed it; LAUNCH_TIMED_OUT at the
 * timeout; 1 if not all could be started, or if what they printed is lost.  Reasons go to standard
 * error.
 *
 * Environment  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, a random
 *              IMBREX_TOKEN, and IMBREX_LAUNCHED, a copy of the first two as "3/4,"; unless set,
 *              OMP_NUM_THREADS and OPENBLAS_NUM_THREADS are 1, CUDA_DEVICE_MAX_CONNECTIONS is 32.
 * Input        Rank 0 has ours, other ranks none.  Ranks have no terminal, so that /dev/tty fails
 *              with ENXIO: what a program asks there must reach it by a file or by that input.
 * Stops        A rank that a signal stops is told of once, and ends nothing: it may be let go on.
 * Failure      The first rank that fails ends the run.  The others have 2/5 of the grace to notice
 *              and to report what they saw, then get SIGTERM, and SIGKILL when the grace is over.
 * Signals      SIGINT, SIGTERM, SIGHUP and SIGQUIT go to every rank's process group, and start the
 *              grace; a second one, 0.2 s later or more, kills at once.  SIGTSTP stops all, and
 *              they go on when we do; that time counts neither here nor in the waits of CPU ranks.
 *              Of these, what is ignored at the start stays so, as under nohup.
 * Orphans      None.  When the last rank has ended, what ranks left running gets 1 s if it still
 *              holds their output, then SIGKILL: also processes in groups and sessions of their
 *              own, because they become our children (PR_SET_CHILD_SUBREAPER).  If we are killed by
 *              SIGKILL ourselves, the kernel kills every rank (PR_SET_PDEATHSIG), and a guardian
 *              the rest of its process group; what has left that for one of its own stays.
 * Files        Two for each rank: the soft limit is raised here, but not for the ranks.
 *
 * To be called from the only thread of a process. */

/* argv is searched in PATH.  A command that cannot run gives 127 if not found, else 126. */
int launch_command(const launch_options *options, char *const argv[]);

/* Ranks are copies of this process that call rank_main; its result is their exit code.  A library
 * that read OMP_NUM_THREADS when it was loaded does not see it change. */
int launch_ranks(const launch_options *options, int (*rank_main)(int rank, void *ctx), void *ctx);

/* How many ranks a command has: `given` by --ranks, or if that is 0 `usual`; but as some launcher's
 * rank so many as that has started, which is not to be contradicted.  0: the launcher does not say,
 * which the library will refuse; OPTIONS_WRONG: it was said what is wrong. */
int launch_count(const struct options_page *page, int64_t given, int usual);

/* Calls rank_main(rank, request) on so many ranks, which are started here and write to our output;
 * as some launcher's rank, only in this process, and with rank -1: the library will know it.  The
 * exit code. */
int launch_start(int64_t ranks, int (*rank_main)(int rank, void *ctx), const void *request);

/* ---- Whether this process is a rank already -------------------------------------------------- */

/* Some launcher (ours, torchrun, mpirun, srun) has started this process as one of its ranks. */
bool launch_is_rank(void);

/* This process is one that launch_ranks has started. */
bool launch_is_ours(void);

/* This process is not one of the ranks that some launcher has started, or it is their rank 0. */
bool launch_is_first(void);

/* How many ranks that launcher has started; 0: there is none, or it does not say. */
int launch_size(void);

#endif /* CLI_LAUNCH_H */
