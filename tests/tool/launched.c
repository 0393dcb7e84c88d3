/* launched.c - forks what calls the launcher, which wants to be called from an only thread. */
#define _GNU_SOURCE
#include "launched.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "patience.h"
#include "scratch.h"

static double seconds_since(struct timespec begun)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begun.tv_sec) + (double)(now.tv_nsec - begun.tv_nsec) / 1e9;
}

void sleep_ms(int ms)
{
    poll(NULL, 0, ms);
}

launched launched_start(const launch_options *options, char *const argv[],
                        int (*rank_main)(int, void *), const char *input, const int files[2])
{
    launched l = { .out_fd = scratch_log(), .err_fd = scratch_log() };
    int in_fd = memfd_create("in", MFD_CLOEXEC);
    assert_int_equal(write(in_fd, input, strlen(input)), (ssize_t)strlen(input));
    lseek(in_fd, 0, SEEK_SET);
    clock_gettime(CLOCK_MONOTONIC, &l.begun);
    l.pid = fork();
    assert_true(l.pid >= 0);
    if (l.pid == 0) {
        dup2(in_fd, STDIN_FILENO);
        dup2(files && files[0] >= 0 ? files[0] : l.out_fd, STDOUT_FILENO);
        dup2(files && files[1] >= 0 ? files[1] : l.err_fd, STDERR_FILENO);
        close_range(STDERR_FILENO + 1, ~0U, 0); /* a pipe's other end among them */
        _exit(argv ? launch_command(options, argv) : launch_ranks(options, rank_main, NULL));
    }
    close(in_fd);
    return l;
}

char *launched_text(int fd, size_t *bytes)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(pread(fd, text, (size_t)size, 0), size);
    *bytes = (size_t)size;
    return text;
}

void launched_wait(launched *l)
{
    int status;
    size_t err_bytes;
    assert_int_equal(waitpid(l->pid, &status, 0), l->pid);
    l->seconds = seconds_since(l->begun);
    l->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    l->out = launched_text(l->out_fd, &l->out_bytes);
    l->err = launched_text(l->err_fd, &err_bytes);
}

void launched_forget(launched *l)
{
    close(l->out_fd);
    close(l->err_fd);
    free(l->out);
    free(l->err);
}

launched launched_shell(int ranks, double grace_s, const char *script, const char *input)
{
    char *argv[] = { "sh", "-c", (char *)script, NULL };
    launched l = launched_start(&(launch_options){ .ranks = ranks, .grace_s = grace_s }, argv, NULL,
                                input, NULL);
    launched_wait(&l);
    return l;
}

void launched_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in '%s'", part, text);
}

enum { AWAIT_MS = 5000, LOOK_MS = 5 };

void launched_await(const launched *l, int lines)
{
    for (int64_t ms = 0; ms < patient(AWAIT_MS); ms += LOOK_MS, sleep_ms(LOOK_MS)) {
        size_t bytes;
        int found = 0;
        char *text = launched_text(l->out_fd, &bytes);
        for (size_t i = 0; i < bytes; i++)
            found += text[i] == '\n';
        free(text);
        if (found >= lines)
            return;
    }
    fail_msg("no %d lines within %d ms", lines, (int)patient(AWAIT_MS));
}

void launched_hears(int fd, const char *part)
{
    for (int64_t ms = 0; ms < patient(AWAIT_MS); ms += LOOK_MS, sleep_ms(LOOK_MS)) {
        size_t bytes;
        char *text = launched_text(fd, &bytes);
        bool found = strstr(text, part) != NULL;
        free(text);
        if (found)
            return;
    }
    fail_msg("no '%s' within %d ms", part, (int)patient(AWAIT_MS));
}
