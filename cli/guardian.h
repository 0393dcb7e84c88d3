/* guardian.h - a process that outlives the launcher by a moment, to end what the ranks started. */
#ifndef CLI_GUARDIAN_H
#define CLI_GUARDIAN_H

#include <stdbool.h>
#include <sys/types.h>

/* If this process ends and has not ended its children, SIGKILL goes to each process group of
 * groups[count] that is not 0 then: shared memory.  The guardian is a child like any other, in a
 * session of its own; killing it calls it off.  False, with errno, on failure. */
bool guardian_start(const pid_t *groups, int count);

#endif /* CLI_GUARDIAN_H */
