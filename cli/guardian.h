/* guardian.h - a process that outlives the launcher by a moment, to end what the ranks started. */
#ifndef CLI_GUARDIAN_H
#define CLI_GUARDIAN_H

#include <sys/types.h>

/* If this process ends and has not ended its children, SIGKILL goes to each process group of
 * groups[count] that is not 0 then: shared memory.  The guardian is a child like any other, in a
 * session of its own; killing it calls it off.  Its process, or -1, with errno. */
pid_t guardian_start(const pid_t *groups, int count);

void guardian_end(pid_t guardian); /* there is nothing left for it to end */

#endif /* CLI_GUARDIAN_H */
