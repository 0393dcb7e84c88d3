/* fake_crew.h - threads that are kept for the blocks of kernels, of which a test has thousands. */
#ifndef FAKE_CREW_H
#define FAKE_CREW_H

/* work(arg, index) for all indices below count, at once, as they may wait for each other; returns
 * when all have ended.  Index 0 is the caller's own. */
void fake_crew_run(int count, void (*work)(void *arg, int index), void *arg);

#endif /* FAKE_CREW_H */
