/* machine.c - checks of the host: its settings, clock, memory, and how ranks find each other. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "doctor.h"

/* ---- Settings -------------------------------------------------------------------------------- */

/* Variables that do not parse, and those that are misspelt. */
void doctor_settings(const doctor_view *view, doctor_finding *found)
{
    char wrong[sizeof found->what - 40] = "";
    size_t length = 0;
    bool refused = false;
    for (const char *line = view->info; *line && length < sizeof wrong;) {
        size_t bytes = strcspn(line, "\n");
        const char *why = memmem(line, bytes, ", which does not parse", 22);
        bool unknown = memmem(line, bytes, "read by nobody here", 19) != NULL;
        if (strncmp(line, "env ", 4) == 0 && (why || unknown))
            length +=
                (size_t)snprintf(wrong + length, sizeof wrong - length, "%s%.*s%s",
                                 length ? "; " : "", (int)((why ? why - line : (long)bytes) - 4),
                                 line + 4, why ? ", which does not parse" : "");
        refused = refused || why;
        line += bytes + (line[bytes] == '\n');
    }
    if (refused)
        doctor_say(found, DOCTOR_BROKEN,
                   "no group can be made: unset it, or write it as `imbrex info` says", "%s",
                   wrong);
    else if (*wrong)
        doctor_say(found, DOCTOR_ABSENT, "what was meant by it does not happen", "%s", wrong);
    else
        doctor_ok(found, "all variables that begin with IMBREX_ are known and can be read");
}

/* ---- Clock ----------------------------------------------------------------------------------- */

static double date_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Every wait's deadline and every figure is by CLOCK_MONOTONIC. */
void doctor_clock(const doctor_view *view, doctor_finding *found)
{
    enum { SLEEP_MS = 20, LATE_MS = 200, LOOKS = 2000, SLOW_NS = 1000, APART_MS = 10 };
    const struct timespec nap = { .tv_nsec = SLEEP_MS * 1000000L };
    (void)view;
    double begin = now_us(), date = date_us();
    while (nanosleep(&nap, NULL) != 0)
        ;
    double slept_ms = (now_us() - begin) / 1e3, dated_ms = (date_us() - date) / 1e3;
    begin = now_us();
    for (int i = 0; i < LOOKS; i++)
        (void)now_us();
    double look_ns = (now_us() - begin) * 1e3 / LOOKS;
    if (slept_ms < SLEEP_MS * 0.99)
        doctor_say(found, DOCTOR_BROKEN,
                   "see /sys/devices/system/clocksource; a virtual machine's host may have to be "
                   "asked",
                   "a sleep of %d ms took %.1f ms: the clock is slow or goes back", SLEEP_MS,
                   slept_ms);
    else if (slept_ms > dated_ms + APART_MS || dated_ms > slept_ms + APART_MS)
        doctor_say(found, DOCTOR_ABSENT,
                   "nothing in imbrex goes by the date; it may just have been set",
                   "a sleep took %.1f ms by the clock and %.1f ms by the date", slept_ms, dated_ms);
    else if (slept_ms > LATE_MS)
        doctor_say(found, DOCTOR_ABSENT,
                   "figures are of what else runs here: measure when it is idle",
                   "a sleep of %d ms took %.0f ms: this machine is busy", SLEEP_MS, slept_ms);
    else if (look_ns > SLOW_NS)
        doctor_say(found, DOCTOR_ABSENT,
                   "figures of a few microseconds are off; the clock source tsc is fast",
                   "a look at the clock takes %.0f ns", look_ns);
    else
        doctor_ok(found, "a sleep of %d ms took %.1f ms; a look at it takes %.0f ns", SLEEP_MS,
                  slept_ms, look_ns);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

enum { BYTES = 1 << 20 };

/* As CPU ranks do it: a memfd, which another process maps and writes. */
void doctor_memory(const doctor_view *view, doctor_finding *found)
{
    static const char advice[] = "CPU ranks need memfd_create and mmap: a container's seccomp "
                                 "profile or a limit (ulimit -v, memory of the cgroup) forbids it";
    (void)view;
    int status = 1, fd = memfd_create("imbrex-doctor", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, BYTES) != 0) {
        doctor_say(found, DOCTOR_BROKEN, advice, "no memory to share: %s", strerror(errno));
        return;
    }
    char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pid_t child = at == MAP_FAILED ? -1 : fork();
    if (child == 0) {
        char *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (own == MAP_FAILED)
            _exit(1);
        memset(own, 'i', BYTES);
        _exit(0);
    }
    if (child < 0)
        doctor_say(found, DOCTOR_BROKEN, advice,
                   "memory cannot be mapped, or no process be forked: %s", strerror(errno));
    else if (waitpid(child, &status, 0) != child || status != 0 || at[0] != 'i' ||
             at[BYTES - 1] != 'i')
        doctor_say(found, DOCTOR_BROKEN, advice, "what another process writes does not arrive");
    else
        doctor_ok(found, "a memfd of 1 MiB, written by another process");
}

void doctor_locking(const doctor_view *view, doctor_finding *found)
{
    static const char cost[] =
        "between nodes NCCL and MPI lock memory for InfiniBand: there ulimit "
        "-l unlimited, for the launcher's daemons, too";
    struct rlimit limit;
    (void)view;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        doctor_say(found, DOCTOR_ABSENT, cost, "the limit is unknown: %s", strerror(errno));
    else if (limit.rlim_cur == RLIM_INFINITY)
        doctor_ok(found, "no limit");
    else
        doctor_say(found, DOCTOR_ABSENT, cost, "a process may lock %.4g MiB",
                   (double)limit.rlim_cur / (1 << 20));
}

/* ---- How ranks meet -------------------------------------------------------------------------- */

/* A word from one end of a connection to the other. */
static bool is_heard(int listener, const struct sockaddr_in *at)
{
    char word = 0;
    int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool heard = to >= 0 && connect(to, (const void *)at, sizeof *at) == 0;
    int from = heard ? accept(listener, NULL, NULL) : -1;
    heard = from >= 0 && write(to, "i", 1) == 1 && read(from, &word, 1) == 1 && word == 'i';
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    return heard;
}

void doctor_port(const doctor_view *view, doctor_finding *found)
{
    static const char advice[] =
        "rank 0 listens on a TCP port of 127.0.0.1 or MASTER_ADDR: look at "
        "the firewall, or at the sandbox that this runs in";
    int wanted = view->port ? atoi(view->port) : 0;
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons((uint16_t)wanted) };
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = listener >= 0 && bind(listener, (void *)&at, sizeof at) == 0;
    if (!bound && wanted && (errno == EADDRINUSE || errno == EACCES)) {
        doctor_say(found, DOCTOR_ABSENT, "rank 0 then takes the next free port",
                   "port %d, of MASTER_PORT, cannot be had: %s", wanted, strerror(errno));
    } else if (!bound || listen(listener, 1) != 0 ||
               getsockname(listener, (void *)&at, &size) != 0) {
        doctor_say(found, DOCTOR_BROKEN, advice, "cannot listen on 127.0.0.1: %s", strerror(errno));
    } else if (!is_heard(listener, &at)) {
        doctor_say(found, DOCTOR_BROKEN, advice, "cannot connect to 127.0.0.1, port %d: %s",
                   (int)ntohs(at.sin_port), strerror(errno));
    } else {
        doctor_ok(found, "a connection to 127.0.0.1, port %d%s", (int)ntohs(at.sin_port),
                  wanted ? ", of MASTER_PORT" : "");
    }
    if (listener >= 0)
        close(listener);
}

/* What other hosts would call rank 0. */
void doctor_name(const doctor_view *view, doctor_finding *found)
{
    static const char cost[] = "only jobs on several hosts: give all ranks MASTER_ADDR, an address "
                               "of rank 0's host that others reach";
    const struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM };
    const char *given = view->address;
    char name[256] = "", address[INET_ADDRSTRLEN] = "";
    struct addrinfo *list = NULL;
    if (given)
        snprintf(name, sizeof name, "%s", given);
    else if (gethostname(name, sizeof name - 1) != 0)
        snprintf(name, sizeof name, "localhost");
    int error = getaddrinfo(name, NULL, &hints, &list);
    if (error || !list) {
        doctor_say(found, given ? DOCTOR_BROKEN : DOCTOR_ABSENT,
                   given ? "MASTER_ADDR must be a name or an address that this host knows" : cost,
                   "%s has no IPv4 address: %s", name, error ? gai_strerror(error) : "none");
        return;
    }
    const struct in_addr *at = &((const struct sockaddr_in *)(const void *)list->ai_addr)->sin_addr;
    inet_ntop(AF_INET, at, address, sizeof address);
    if (ntohl(at->s_addr) >> 24 == IN_LOOPBACKNET)
        doctor_say(found, DOCTOR_ABSENT, cost, "%s%s%s, which other hosts do not reach", name,
                   strcmp(name, address) ? " is " : "", strcmp(name, address) ? address : "");
    else
        doctor_ok(found, "%s is %s", name, address);
    freeaddrinfo(list);
}

void doctor_cache(const doctor_view *view, doctor_finding *found)
{
    doctor_shown(view, "kernel cache", DOCTOR_ABSENT,
                 "every start compiles its kernels, about a second each: give IMBREX_CACHE_DIR a "
                 "folder of your own",
                 found);
}
