/* doctor.c - `imbrex doctor`: tries what matters on this machine and says what to do.  Each check
 * runs in processes of its own: a driver cannot be used on both sides of a fork, and what crashes
 * or hangs is one line. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli.h"
#include "doctor.h"
#include "launch.h"
#include "options.h"
#include "text.h"

/* A driver that nobody uses yet may take half a minute to start. */
enum { RANKS_MOST = 2, INFO_BYTES = 1 << 16, LIMIT_S = 120, GRACE_S = 5 };

static const struct {
    const char *name;
    int ranks;
    doctor_check *check;
} checks[] = {
    { "settings", 1, doctor_settings },
    { "clock", 1, doctor_clock },
    { "shared memory", 1, doctor_memory },
    { "locked memory", 1, doctor_locking },
    { "port", 1, doctor_port },
    { "host's name", 1, doctor_name },
    { "kernel cache", 1, doctor_cache },
    { "C compiler", 1, doctor_compiler },
    { "MPI", 1, doctor_mpi },
    { "2 CPU ranks", 2, doctor_cpu_ranks },
    { "GPUs", 1, doctor_gpus },
    { "peer access", 1, doctor_peers },
    { "GPU memory", 1, doctor_symmetric },
    { "NVRTC", 1, doctor_nvrtc },
    { "cuBLASLt", 1, doctor_cublas },
    { "NCCL", 1, doctor_nccl },
    { "2 GPU ranks", 2, doctor_gpu_ranks },
};

enum { CHECKS = sizeof checks / sizeof checks[0] };

/* Lies in memory that all processes share. */
typedef struct room {
    doctor_check *check;
    doctor_finding found[RANKS_MOST];
    char address[256], port[32]; /* empty: unset */
    char info[INFO_BYTES];
} room;

/* ---- What checks call ------------------------------------------------------------------------ */

void doctor_ok(doctor_finding *f, const char *format, ...)
{
    va_list args;
    *f = (doctor_finding){ .state = DOCTOR_OK };
    va_start(args, format);
    vsnprintf(f->what, sizeof f->what, format, args);
    va_end(args);
}

void doctor_say(doctor_finding *f, doctor_state state, const char *advice, const char *format, ...)
{
    va_list args;
    *f = (doctor_finding){ .state = state };
    snprintf(f->advice, sizeof f->advice, "%s", advice);
    va_start(args, format);
    vsnprintf(f->what, sizeof f->what, format, args);
    va_end(args);
}

bool doctor_line(const doctor_view *view, const char *key, char *value, size_t size)
{
    size_t length = strlen(key);
    for (const char *line = view->info; *line;) {
        size_t bytes = strcspn(line, "\n");
        if (strncmp(line, key, length) == 0 && strncmp(line + length, ": ", 2) == 0) {
            snprintf(value, size, "%.*s", (int)(bytes - length - 2), line + length + 2);
            return true;
        }
        line += bytes + (line[bytes] == '\n');
    }
    return false;
}

void doctor_shown(const doctor_view *view, const char *key, doctor_state none, const char *advice,
                  doctor_finding *found)
{
    char value[sizeof found->what];
    if (!doctor_line(view, key, value, sizeof value))
        return;
    if (strncmp(value, "none", 4) == 0)
        doctor_say(found, none, advice, "%s", value);
    else
        doctor_ok(found, "%s", value);
}

/* ---- Processes ------------------------------------------------------------------------------- */

static int read_info(int rank, void *ctx)
{
    room *r = ctx;
    (void)rank;
    imbrex_info(r->info, sizeof r->info);
    return CLI_OK;
}

static int run_check(int rank, void *ctx)
{
    room *r = ctx;
    const doctor_view view = { .info = r->info,
                               .address = *r->address ? r->address : NULL,
                               .port = *r->port ? r->port : NULL };
    doctor_finding found = { 0 };
    r->check(&view, &found);
    r->found[rank] = found;
    return CLI_OK;
}

static int launch(int ranks, int (*rank_main)(int, void *), room *r)
{
    const launch_options options = {
        .ranks = ranks, .output = LAUNCH_DIRECT, .timeout_s = LIMIT_S, .grace_s = GRACE_S
    };
    return launch_ranks(&options, rank_main, r);
}

/* The worst of what its ranks find. */
static doctor_finding try(room *r, int index)
{
    r->check = checks[index].check;
    for (int i = 0; i < checks[index].ranks; i++)
        doctor_say(&r->found[i], DOCTOR_BROKEN,
                   "look for the reason above, or try it by hand; imbrex info may say more",
                   "the check ended without a word, or not within %d s", LIMIT_S);
    launch(checks[index].ranks, run_check, r);
    doctor_finding worst = r->found[0];
    for (int i = 1; i < checks[index].ranks; i++)
        if (r->found[i].state > worst.state)
            worst = r->found[i];
    return worst;
}

/* ---- Lines ----------------------------------------------------------------------------------- */

static const char *const state_names[] = { "ok", "not there", "broken" };

static void print_line(const char *name, const doctor_finding *f)
{
    enum { INDENT = 29 };
    text_wrap(stdout, INDENT, "  %-11s%-16s%s\n", state_names[f->state], name, f->what);
    if (*f->advice)
        text_wrap(stdout, INDENT + 4, "%*s%s %s\n", INDENT, "",
                  f->state == DOCTOR_BROKEN ? "do:" : "-->", f->advice);
}

static void print_json(const char *name, const doctor_finding *f, bool first)
{
    printf("%s\n  { \"name\": ", first ? "[" : ",");
    text_json(stdout, name, strlen(name));
    printf(", \"state\": \"%s\", \"what\": ", state_names[f->state]);
    text_json(stdout, f->what, strlen(f->what));
    fputs(", \"advice\": ", stdout);
    text_json(stdout, f->advice, strlen(f->advice));
    fputs(" }", stdout);
}

/* What a crash or a hang leaves of the lines says little of what comes behind it. */
static doctor_finding ask_info(room *r)
{
    doctor_finding found = { 0 };
    if (launch(1, read_info, r) != CLI_OK)
        doctor_say(&found, DOCTOR_BROKEN,
                   "try it by hand, and nvidia-smi, which may hang, too; below, parts are missing",
                   "imbrex info crashed, or did not end within %d s", LIMIT_S);
    return found;
}

static int examine(room *r, bool json)
{
    int broken = 0;
    bool first = true;
    for (int i = -1; i < CHECKS; i++) {
        const char *name = i < 0 ? "info" : checks[i].name;
        doctor_finding found = i < 0 ? ask_info(r) : try(r, i);
        broken += found.state == DOCTOR_BROKEN;
        if (!*found.what)
            continue;
        if (json)
            print_json(name, &found, first);
        else
            print_line(name, &found);
        first = false;
        (void)cli_flush(); /* what is lost fails the command at its end */
    }
    if (json)
        puts("\n]");
    else if (broken)
        printf("\n%d broken: imbrex cannot be relied on before that is mended.\n", broken);
    else
        puts("\nNothing is broken.");
    return broken ? CLI_FAILED : CLI_OK;
}

int cli_doctor(int argc, char **argv)
{
    bool json = false;
    const option options[] = {
        { "json", 0, .flag = &json, .help = "print a JSON array instead of lines" },
        { 0 },
    };
    const options_page page = {
        .command = "doctor",
        .synopsis = "[--json]",
        .about = "Tries in seconds what imbrex needs of this machine, and says what to do.",
        .options = options,
        .notes = "ok: it is there and works; not there: imbrex works without, and --> says what "
                 "that costs;\nbroken: it should work and does not, and do: says what helps.\n\n"
                 "exit code: 0; 1 if something is broken; 2 for wrong usage.",
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    if (launch_is_rank())
        return options_exit(options_wrong(
            &page, "this is a rank of some launcher's: start it by itself, once on each host"));
    room *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r == MAP_FAILED) {
        fputs("imbrex doctor: out of memory\n", stderr);
        return CLI_FAILED;
    }
    const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    snprintf(r->address, sizeof r->address, "%s", address ? address : "");
    snprintf(r->port, sizeof r->port, "%s", port ? port : "");
    int code = examine(r, json);
    munmap(r, sizeof *r);
    return code;
}
