/* compile_reports.c - as the header says.  The file's first line is the compiler's build, each
 * other one a key, registers, bytes of shared memory, and whose they are.  Only what keeps all in
 * registers gets a line. */
#include "compile_reports.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_nvrtc.h"

enum { REPORTS_MOST = 2000, BUILD_MOST = 80 };

typedef struct line {
    imx_cache_key key;
    compile_report report;
} line;

static line lines[REPORTS_MOST];
static int line_count = -1; /* not read yet */
static FILE *out;

/* ---- the compiler's words -------------------------------------------------------------------- */

/* The number before `words` in text, or 0. */
static int number_before(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    while (at && at > text && at[-1] == ' ')
        at--;
    while (at && at > text && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return at ? atoi(at) : 0;
}

/* The largest of all places. */
static int most(const char *log, const char *words)
{
    int largest = 0;
    for (const char *at = log; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        char one[512];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, "\n"), at);
        int here = number_before(one, words);
        largest = here > largest ? here : largest;
    }
    return largest;
}

compile_report compile_reports_read(const char *log)
{
    return (compile_report){ .registers = most(log, "registers"),
                             .shared_bytes = most(log, "bytes smem"),
                             .local_bytes =
                                 most(log, "bytes stack frame") + most(log, "bytes spill stores") +
                                 most(log, "bytes spill loads") + most(log, "bytes lmem") };
}

/* ---- the file -------------------------------------------------------------------------------- */

static void read_all(void)
{
    char build[BUILD_MOST], first[BUILD_MOST + 1] = "";
    FILE *in = fopen(COMPILE_REPORTS, "r");
    line_count = 0;
    if (!in)
        return;
    bool same = fgets(first, sizeof first, in) && fake_nvrtc_build(build) &&
                strncmp(first, build, strlen(build)) == 0 && first[strlen(build)] == '\n';
    for (line l = { .report.local_bytes = 0 };
         same && line_count < REPORTS_MOST &&
         fscanf(in, "%16" SCNx64 "%16" SCNx64 "%d%d%*[^\n]", &l.key.words[0], &l.key.words[1],
                &l.report.registers, &l.report.shared_bytes) == 4;)
        lines[line_count++] = l;
    fclose(in);
}

bool compile_reports_find(const imx_cache_key *key, compile_report *report)
{
    if (line_count < 0)
        read_all();
    for (int i = 0; i < line_count; i++) {
        if (memcmp(&lines[i].key, key, sizeof *key) == 0) {
            *report = lines[i].report;
            return true;
        }
    }
    return false;
}

bool compile_reports_begin(void)
{
    char build[BUILD_MOST];
    out = fake_nvrtc_build(build) ? fopen(COMPILE_REPORTS ".new", "w") : NULL;
    return out && fprintf(out, "%s\n", build) > 0;
}

void compile_reports_add(const imx_cache_key *key, const compile_report *report, const char *name)
{
    fprintf(out, "%016" PRIx64 "%016" PRIx64 " %d %d %s\n", key->words[0], key->words[1],
            report->registers, report->shared_bytes, name);
}

bool compile_reports_end(void)
{
    bool whole = !ferror(out);
    return fclose(out) == 0 && whole && rename(COMPILE_REPORTS ".new", COMPILE_REPORTS) == 0;
}
