/* relay.c - one poll over the pipes of all ranks. */
#define _GNU_SOURCE
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

enum {
    LINE_MOST = 1 << 20,  /* a longer line is cut */
    QUEUE_MOST = 1 << 16, /* no rank is read while so much waits to be written */
    FOREGROUND_MS = 200   /* how often it is looked whether the terminal has come to us */
};

typedef struct bytes {
    char *at;
    size_t length, capacity;
} bytes;

/* Standard output or standard error of one rank. */
typedef struct source {
    int fd; /* -1: ended */
    bytes line;
} source;

/* Standard output or standard error of the launcher. */
typedef struct sink {
    int fd; /* -1: its reader is gone */
    bytes queue;
    size_t written; /* of queue */
    bool amid;      /* the last byte written was not the end of a line */
    bool colour;
} sink;

struct relay {
    int ranks;
    bool prefix;
    bool lost;     /* see relay_lost */
    bool one_file; /* both sinks are the same: neither may cut into the other's line */
    int next;      /* the sink that writes first: where both are one file, only it does */
    sink sinks[2];
    source *sources; /* [ranks * 2] */
    int typing;      /* to rank 0's standard input; -1: none */
    bytes typed;
    struct pollfd *polls; /* see relay_step */
    char heard[1 << 16];  /* what one read gives, of any of them */
};

enum { POLL_FD, POLL_SINKS, POLL_TERMINAL = 3, POLL_TYPING, POLL_SOURCES };

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* Running out of memory ends the launcher, and thereby its ranks: they die with their parent. */
static void *must(void *memory)
{
    if (memory)
        return memory;
    fputs("imbrex: out of memory\n", stderr);
    _exit(1);
}

static void add(bytes *to, const char *from, size_t length)
{
    if (to->length + length > to->capacity) {
        to->capacity = 2 * (to->length + length) + 256;
        to->at = must(realloc(to->at, to->capacity));
    }
    if (length)
        memcpy(to->at + to->length, from, length);
    to->length += length;
}

static void drop(bytes *from, size_t *length)
{
    from->length -= *length;
    if (from->length)
        memmove(from->at, from->at + *length, from->length);
    *length = 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

relay *relay_create(int ranks, bool prefix)
{
    relay *lines = must(calloc(1, sizeof *lines));
    lines->ranks = ranks;
    lines->prefix = prefix;
    lines->typing = -1;
    lines->sources = must(calloc((size_t)ranks * 2, sizeof *lines->sources));
    for (int s = 0; s < ranks * 2; s++)
        lines->sources[s].fd = -1;
    lines->polls = must(calloc((size_t)ranks * 2 + POLL_SOURCES, sizeof *lines->polls));

    struct stat about[2];
    bool both = true;
    for (int i = 0; i < 2; i++) {
        sink *to = &lines->sinks[i];
        to->fd = i + 1;
        to->colour = isatty(to->fd) && !getenv("NO_COLOR");
        both = fstat(to->fd, &about[i]) == 0 && both;
    }
    lines->one_file =
        both && about[0].st_dev == about[1].st_dev && about[0].st_ino == about[1].st_ino;
    return lines;
}

void relay_destroy(relay *lines)
{
    if (!lines)
        return;
    for (int s = 0; s < lines->ranks * 2; s++) {
        close_fd(&lines->sources[s].fd);
        free(lines->sources[s].line.at);
    }
    for (int i = 0; i < 2; i++)
        free(lines->sinks[i].queue.at);
    close_fd(&lines->typing);
    free(lines->typed.at);
    free(lines->sources);
    free(lines->polls);
    free(lines);
}

bool relay_attach(relay *lines, int rank, int ends[3])
{
    int pipes[3][2] = { { -1, -1 }, { -1, -1 }, { -1, -1 } };
    bool typed = rank == 0 && isatty(STDIN_FILENO);
    for (int i = 0; i < 3; i++)
        if ((i > 0 || typed) && pipe2(pipes[i], O_CLOEXEC) < 0)
            goto fail;
    lines->typing = typed ? pipes[0][1] : lines->typing;
    ends[0] = pipes[0][0];
    for (int i = 1; i < 3; i++) {
        ends[i] = pipes[i][1];
        lines->sources[rank * 2 + i - 1].fd = pipes[i][0];
    }
    return true;
fail:
    for (int i = 0; i < 6; i++)
        close_fd(&pipes[i / 2][i % 2]);
    return false;
}

bool relay_hears(const relay *lines)
{
    for (int s = 0; s < lines->ranks * 2; s++)
        if (lines->sources[s].fd >= 0)
            return true;
    return false;
}

/* ---- Lines ----------------------------------------------------------------------------------- */

static void queue_line(relay *lines, int s, const char *text, size_t length)
{
    sink *to = &lines->sinks[s % 2];
    source *from = &lines->sources[s];
    char prefix[40];
    int rank = s / 2;
    if (to->fd >= 0 && lines->prefix) {
        int size = to->colour ? snprintf(prefix, sizeof prefix, "\033[3%dm[%d]\033[0m ",
                                         1 + rank % 6, rank)
                              : snprintf(prefix, sizeof prefix, "[%d] ", rank);
        add(&to->queue, prefix, (size_t)size);
    }
    if (to->fd >= 0) {
        add(&to->queue, from->line.at, from->line.length);
        add(&to->queue, text, length);
        add(&to->queue, "\n", 1);
    }
    from->line.length = 0;
}

static void end_source(relay *lines, int s)
{
    if (lines->sources[s].line.length)
        queue_line(lines, s, NULL, 0);
    close_fd(&lines->sources[s].fd);
}

void relay_deafen(relay *lines)
{
    for (int s = 0; s < lines->ranks * 2; s++)
        end_source(lines, s);
}

static void hear(relay *lines, int s)
{
    source *from = &lines->sources[s];
    ssize_t length = read(from->fd, lines->heard, sizeof lines->heard);
    if (length < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (length <= 0) {
        end_source(lines, s);
        return;
    }
    const char *at = lines->heard, *end = at + length;
    for (const char *newline; (newline = memchr(at, '\n', (size_t)(end - at))); at = newline + 1)
        queue_line(lines, s, at, (size_t)(newline - at));
    add(&from->line, at, (size_t)(end - at));
    if (from->line.length >= LINE_MOST)
        queue_line(lines, s, NULL, 0);
}

void relay_say(relay *lines, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_harmless(text, false);
    if (lines->sinks[1].fd < 0)
        return;
    add(&lines->sinks[1].queue, text, strlen(text));
    add(&lines->sinks[1].queue, "\n", 1);
}

/* ---- The launcher's output and input --------------------------------------------------------- */

static bool waits_to_write(const sink *to)
{
    return to->fd >= 0 && to->queue.length > to->written;
}

bool relay_lost(const relay *lines)
{
    return lines->lost;
}

bool relay_empty(const relay *lines)
{
    return !waits_to_write(&lines->sinks[0]) && !waits_to_write(&lines->sinks[1]);
}

/* At most PIPE_BUF bytes, which never block once poll has said that a pipe has room; up to the end
 * of a line where there is one. */
static void write_some(relay *lines, int i)
{
    sink *to = &lines->sinks[i];
    const char *from = to->queue.at + to->written;
    size_t length = to->queue.length - to->written;
    if (length > PIPE_BUF) {
        const char *newline = memrchr(from, '\n', PIPE_BUF);
        length = newline ? (size_t)(newline - from) + 1 : PIPE_BUF;
    }
    ssize_t done = write(to->fd, from, length);
    if (done < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (done < 0) {
        to->fd = -1;
        lines->lost = lines->lost || (i == 0 && errno != EPIPE);
        if (errno != EPIPE)
            relay_say(lines, "imbrex: cannot write the output: %s", strerror(errno));
        for (int s = i; s < lines->ranks * 2; s += 2)
            end_source(lines, s);
        return;
    }
    to->written += (size_t)done;
    to->amid = done > 0 ? from[done - 1] != '\n' : to->amid;
    if (to->written == to->queue.length || to->written >= QUEUE_MOST)
        drop(&to->queue, &to->written);
}

static void hear_terminal(relay *lines)
{
    char heard[PIPE_BUF];
    ssize_t length = read(STDIN_FILENO, heard, sizeof heard);
    if (length > 0)
        add(&lines->typed, heard, (size_t)length);
    else if (length == 0 || errno != EINTR)
        close_fd(&lines->typing);
}

static void write_typed(relay *lines)
{
    ssize_t done = write(lines->typing, lines->typed.at, lines->typed.length);
    if (done < 0 && errno != EINTR)
        close_fd(&lines->typing);
    size_t written = done > 0 ? (size_t)done : 0;
    drop(&lines->typed, &written);
}

/* poll leaves out entries whose fd is negative. */
static struct pollfd entry(bool wanted, int fd, short events)
{
    return (struct pollfd){ .fd = wanted ? fd : -1, .events = events };
}

/* In the background, reading from the terminal would stop the launcher.  Nothing wakes it when it
 * is brought to the foreground: until then it looks now and then. */
static bool may_type(const relay *lines, int *timeout_ms)
{
    if (lines->typing < 0 || lines->typed.length > 0)
        return false;
    if (tcgetpgrp(STDIN_FILENO) == getpgrp())
        return true;
    if (*timeout_ms < 0 || *timeout_ms > FOREGROUND_MS)
        *timeout_ms = FOREGROUND_MS;
    return false;
}

bool relay_step(relay *lines, int fd, int timeout_ms)
{
    struct pollfd *polls = lines->polls;
    bool typing = lines->typing >= 0;
    polls[POLL_FD] = entry(true, fd, POLLIN);
    for (int i = 0; i < 2; i++) {
        const sink *other = &lines->sinks[1 - i];
        bool held = lines->one_file && other->amid && waits_to_write(other);
        polls[POLL_SINKS + i] =
            entry(waits_to_write(&lines->sinks[i]) && !held, lines->sinks[i].fd, POLLOUT);
    }
    polls[POLL_TERMINAL] = entry(may_type(lines, &timeout_ms), STDIN_FILENO, POLLIN);
    polls[POLL_TYPING] = entry(typing && lines->typed.length > 0, lines->typing, POLLOUT);
    for (int s = 0; s < lines->ranks * 2; s++)
        polls[POLL_SOURCES + s] =
            entry(lines->sinks[s % 2].queue.length - lines->sinks[s % 2].written < QUEUE_MOST,
                  lines->sources[s].fd, POLLIN);

    int ready = poll(polls, (nfds_t)(lines->ranks * 2 + POLL_SOURCES), timeout_ms);
    if (ready <= 0)
        return false;
    for (int s = 0; s < lines->ranks * 2; s++)
        if (polls[POLL_SOURCES + s].revents)
            hear(lines, s);
    for (int tried = 0; tried < 2; tried++) {
        int i = (lines->next + tried) % 2;
        if (!polls[POLL_SINKS + i].revents || !waits_to_write(&lines->sinks[i]))
            continue;
        write_some(lines, i);
        if (!lines->one_file)
            continue;
        lines->next = 1 - i;
        break; /* it may be amid a line now, and the room that poll has seen is used */
    }
    if (polls[POLL_TERMINAL].revents)
        hear_terminal(lines);
    if (polls[POLL_TYPING].revents)
        write_typed(lines);
    return polls[POLL_FD].revents != 0;
}
