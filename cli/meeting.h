/* meeting.h - what ranks find in their environment, so that they find each other. */
#ifndef CLI_MEETING_H
#define CLI_MEETING_H

#include <stdbool.h>

typedef struct meeting {
    char port[8], token[33];
} meeting;

/* A port that nothing listens on now, and a secret that no other run has.  False, with errno. */
bool meeting_choose(meeting *at);

/* Called in a rank's process: RANK, WORLD_SIZE and the rest, see launch.h. */
void meeting_set_environment(const meeting *at, int rank, int ranks);

#endif /* CLI_MEETING_H */
