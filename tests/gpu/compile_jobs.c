/* compile_jobs.c - as the header says. */
#define _GNU_SOURCE
#include "compile_jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/cuda/nvrtc.h"
#include "base/source.h"
#include "compile_pairs.h"
#include "compile_reports.h"
#include "fake_nvrtc.h"

enum { JOBS_MOST = 2000, WORKERS_MOST = 16 };

const char *compile_jobs_part = "";
bool compile_jobs_keep;

static compile_job jobs[JOBS_MOST];
static int job_count;
static bool left_out[JOBS_MOST];
static imx_cache_key keys[JOBS_MOST]; /* of their reports */

compile_job *compile_jobs_add(const imx_cuda_config *config, int arch, size_t shared_most)
{
    for (int i = 0; i < job_count; i++) {
        if (jobs[i].arch == arch && strcmp(jobs[i].config.source, config->source) == 0 &&
            strcmp(jobs[i].config.options, config->options) == 0)
            return &jobs[i];
    }
    if (job_count == JOBS_MOST) {
        fprintf(stderr, "more than %d kernels: make JOBS_MOST of them\n", JOBS_MOST);
        abort();
    }
    jobs[job_count] = (compile_job){ .config = *config, .arch = arch, .shared_most = shared_most };
    return &jobs[job_count++];
}

int compile_jobs_count(void)
{
    return job_count;
}

/* ---- the compiler ---------------------------------------------------------------------------- */

/* False, and says why: the kernel is not as lean as it has to be. */
static bool is_lean(const compile_job *j, const compile_report *is)
{
    const imx_cuda_config *config = &j->config;
    size_t shared = config->shared_bytes + (size_t)is->shared_bytes;
    bool lean = is->registers > 0 && is->local_bytes == 0;
    lean &= shared <= j->shared_most && is->registers * config->threads <= 65536;
    lean &= !j->slips_beneath || (is->registers <= 32 && is->shared_bytes == 0);
    if (!lean)
        fprintf(stderr,
                "%s %s, sm_%d: want no stack and no spills, which are %d bytes, at most %zu bytes "
                "of shared memory, which are %zu, and %d registers, which are %d, for each of %d "
                "threads\n",
                config->source, config->options, j->arch, is->local_bytes,
                j->slips_beneath ? 0 : j->shared_most, shared,
                j->slips_beneath ? 32 : 65536 / config->threads, is->registers, config->threads);
    return lean;
}

/* Past what stands at text and is no code: a comment, a #line, a function of the library's that
 * the host calls, blanks and ends of lines before another one; or text itself. */
static const char *skip_no_code(const char *text, bool line_begins)
{
    if (strncmp(text, "//", 2) == 0 || (line_begins && strncmp(text, "#line ", 6) == 0))
        return text + strcspn(text, "\n");
    if (line_begins && strncmp(text, "IMBREX_API ", 11) == 0)
        return text + strcspn(text, ";");
    const char *end = strncmp(text, "/*", 2) == 0 ? strstr(text, "*/") : NULL;
    if (end)
        return end + 2;
    return line_begins ? text + strspn(text, " \n") : text;
}

/* The text's code: what else there is of it may change, and the compiler's report does not. */
static char *code_of(const char *text)
{
    char *code = malloc(strlen(text) + 1), *to = code;
    while (*text) {
        const char *after = skip_no_code(text, to == code || to[-1] == '\n');
        if (after > text) {
            text = after;
            continue;
        }
        const char *begin = text++;
        while (*begin == '\n' && to > code && to[-1] == ' ')
            to--;
        if (*begin == '"' || *begin == '\'') { /* within quotes all is code */
            while (*text && *text != *begin && *text != '\n')
                text += 1 + (*text == '\\' && text[1]);
            text += *text == *begin;
        }
        memcpy(to, begin, (size_t)(text - begin));
        to += text - begin;
    }
    *to = '\0';
    return code;
}

/* What the compiler says depends on nothing else. */
static imx_cache_key key_of(const compile_job *j)
{
    imx_cache_key key = { { 0 } };
    const imx_source *source;
    if (imx_source_expand(j->config.source, &source) == IMBREX_OK) { /* else nor does it compile */
        char *code = code_of(source->text);
        key = fake_nvrtc_key(source->name, code, j->config.options, j->arch);
        free(code);
    }
    imx_cache_key_add(&key, "log", 3);
    return key;
}

/* The compiler's report is wanted, also of what another test has compiled.  kept gets the cubin,
 * too: groups compile a few of these kernels when they are made. */
static imbrex_status build(const imx_folder *kept, const compile_job *j, char **said)
{
    static const imx_folder none = { 0 };
    void *cubin;
    size_t bytes;
    imbrex_status status = imx_cuda_build(kept, &j->config, j->arch, &cubin, &bytes, said);
    if (status == IMBREX_OK && !*said) {
        free(cubin);
        status = imx_cuda_build(&none, &j->config, j->arch, &cubin, &bytes, said);
    }
    if (status == IMBREX_OK)
        free(cubin);
    return status;
}

/* What it says of one that it has compiled, in this run of the test or an earlier one. */
static bool read_log(const imx_folder *kept, const imx_cache_key *key, compile_report *report)
{
    void *log;
    size_t bytes;
    if (!imx_cache_load(kept, key, &log, &bytes))
        return false;
    *report = compile_reports_read(log);
    free(log);
    return true;
}

static bool compiles(const imx_folder *kept, const compile_job *j, const imx_cache_key *key)
{
    compile_report report;
    if (!compile_reports_find(key, &report) && !read_log(kept, key, &report)) {
        char *log;
        if (build(kept, j, &log) != IMBREX_OK) {
            fprintf(stderr, "%s %s, sm_%d: %s\n", j->config.source, j->config.options, j->arch,
                    imbrex_error());
            return false;
        }
        imx_cache_store(kept, key, log, strlen(log) + 1);
        report = compile_reports_read(log);
        free(log);
    }
    return is_lean(j, &report);
}

/* ---- which of them --------------------------------------------------------------------------- */

/* Without what follows from the others: how much fits, which no register knows of. */
static void without_room(const char *options, char *own)
{
    static const char *const words[] = { "-DIMX_SHARED_BYTES=", "-DIMX_STAGES=" };
    strcpy(own, options);
    for (int i = 0; i < 2; i++) {
        char *at = strstr(own, words[i]), *rest = at ? at + strcspn(at, " ") : NULL;
        if (at)
            memmove(at, rest, strlen(rest) + 1);
    }
}

static bool is_like(int i, int j)
{
    return strcmp(jobs[i].config.source, jobs[j].config.source) == 0;
}

/* Of the forms of one text, those that show every two options together, the kind of GPU being an
 * option as well: options are parts that little else of the text knows of. */
static void choose_like(int first)
{
    static char own[JOBS_MOST][40 + sizeof jobs->config.options];
    const char *options[JOBS_MOST] = { 0 };
    bool chosen[JOBS_MOST];
    int numbers[JOBS_MOST], count = 0;
    for (int i = first; i < job_count; i++) {
        if (!is_like(i, first))
            continue;
        int bytes = sprintf(own[count], "sm=%d,%zu ", jobs[i].arch, jobs[i].shared_most);
        without_room(jobs[i].config.options, own[count] + bytes);
        options[count] = own[count];
        numbers[count++] = i;
    }
    compile_pairs_choose(options, count, chosen);
    for (int i = 0; i < count; i++)
        left_out[numbers[i]] = !chosen[i];
}

static bool is_first_of_its_text(int job)
{
    int first = 0;
    while (!is_like(first, job))
        first++;
    return first == job;
}

/* How many before it are chosen, of its text for its kind of GPU. */
static int count_chosen_before(int job)
{
    int count = 0;
    for (int i = 0; i < job; i++)
        count += !left_out[i] && jobs[i].arch == jobs[job].arch && is_like(i, job);
    return count;
}

/* In a quick run one of four of all, but of no text none. */
static int choose(void)
{
    int count = 0;
    for (int i = 0; i < job_count; i++) {
        if (is_first_of_its_text(i))
            choose_like(i);
    }
    for (int i = job_count - 1; i >= 0; i--) {
        left_out[i] |= getenv("IMBREX_TEST_QUICK") && count_chosen_before(i) % 4;
        left_out[i] |= !strstr(jobs[i].config.source, compile_jobs_part);
        count += !left_out[i];
    }
    return count;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Where reports are kept: with all that tests keep, or for one by hand at the same place. */
static imx_folder reports(void)
{
    const char *folder = getenv("IMBREX_CACHE_DIR");
    char beside[4096] = "";
    imx_folder kept = { 0 };
    if (!folder && readlink("/proc/self/exe", beside, sizeof beside - sizeof "cache") > 0) {
        strcpy(strrchr(beside, '/') + 1, "cache");
        folder = beside;
    }
    if (folder)
        imx_folder_find(folder, &kept);
    return kept;
}

/* Takes jobs until there are none; returns how many failed, at most 99. */
static int work(int *next)
{
    imx_folder kept = reports();
    int failed = 0, i;
    while ((i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < job_count)
        failed += !left_out[i] && !compiles(&kept, &jobs[i], &keys[i]);
    return failed < 99 ? failed : 99;
}

/* How many the file of reports has no line of. */
static int count_new(void)
{
    int count = 0;
    compile_report report;
    for (int i = 0; i < job_count; i++) {
        if (left_out[i])
            continue;
        keys[i] = key_of(&jobs[i]);
        count += !compile_reports_find(&keys[i], &report);
    }
    return count;
}

/* The file of reports anew, when all are lean. */
static bool keep(void)
{
    imx_folder kept = reports();
    compile_report report;
    if (!compile_reports_begin())
        return false;
    for (int i = 0; i < job_count; i++) {
        if (!left_out[i] &&
            (compile_reports_find(&keys[i], &report) || read_log(&kept, &keys[i], &report)))
            compile_reports_add(&keys[i], &report, jobs[i].config.source);
    }
    return compile_reports_end();
}

/* The compiler works on one thread at a time. */
int compile_jobs_run(void)
{
    pid_t workers[WORKERS_MOST];
    int count = (int)sysconf(_SC_NPROCESSORS_ONLN), failed = 0;
    int *next = mmap(NULL, sizeof *next, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (next == MAP_FAILED)
        return 1;
    count = count < WORKERS_MOST ? count : WORKERS_MOST;
    printf("%d configurations, %d of them looked at, ", job_count, choose());
    printf("%d of them not in tests/gpu/compiled.txt\n", count_new());
    fflush(stdout);
    for (int i = 0; i < count; i++) {
        if ((workers[i] = fork()) == 0)
            _exit(work(next));
    }
    for (int i = 0; i < count; i++) {
        int status;
        failed += workers[i] < 0 || waitpid(workers[i], &status, 0) != workers[i] || status;
    }
    munmap(next, sizeof *next);
    if (!failed && compile_jobs_keep && (getenv("IMBREX_TEST_QUICK") || !keep())) {
        printf("tests/gpu/compiled.txt is not written: a quick run does not look at all\n");
        failed = 1;
    }
    return failed;
}
