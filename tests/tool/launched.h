/* launched.h - a launch of ranks, and what came of it. */
#ifndef LAUNCHED_H
#define LAUNCHED_H

#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#include "launch.h"

/* In a process of its own whose standard files are memory. */
typedef struct launched {
    pid_t pid;
    int out_fd, err_fd;
    char *out, *err; /* after launched_wait: texts */
    size_t out_bytes;
    int status; /* exit code, or -1 */
    double seconds;
    struct timespec begun;
} launched;

/* argv, or NULL and rank_main.  files, if not NULL, take the place of standard output and standard
 * error; -1: memory. */
launched launched_start(const launch_options *options, char *const argv[],
                        int (*rank_main)(int, void *), const char *input, const int files[2]);

/* Until it has ended. */
void launched_wait(launched *l);
void launched_forget(launched *l);

/* Starts ranks that are shells and waits for them. */
launched launched_shell(int ranks, double grace_s, const char *script, const char *input);

/* What is in one of its files; for the caller to free. */
char *launched_text(int fd, size_t *bytes);

/* Until it has written so many lines, or the test fails. */
void launched_await(const launched *l, int lines);

/* Until part is in one of its files, or the test fails. */
void launched_hears(int fd, const char *part);

/* The test fails if part is not in text. */
void launched_says(const char *text, const char *part);

void sleep_ms(int ms);

#endif /* LAUNCHED_H */
