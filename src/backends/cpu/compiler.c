/* compiler.c - runs the machine's C compiler, without a shell: a word is a word, whatever is in it.
 *
 * Text and object lie in a folder that is gone when the call returns, beside imbrex_device.h and
 * what belongs to it, so that no install is needed.  The text begins with a #line that gives it the
 * caller's name.  It is no standard input: what that includes is looked for in the program's
 * own folder first.  Messages come out into a file in memory. */
#define _GNU_SOURCE
#include "compiler.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include "base/limit.h"
#include "base/source.h"
#include "base/temporary.h"

extern char **environ;

enum { PATH_MOST = PATH_MAX + 64, LIMIT_MS = 120000, SAID_MOST = 1800 };

/* A kernel and the library that runs it must be of one kind. */
#if defined(__has_feature)
#define SANITIZES(what) __has_feature(what##_sanitizer)
#else
#define SANITIZES(what) 0
#endif
#if defined(__SANITIZE_THREAD__) || SANITIZES(thread)
#define OWN_OPTION "-fsanitize=thread"
#elif defined(__SANITIZE_ADDRESS__) || SANITIZES(address)
#define OWN_OPTION "-fsanitize=address"
#else
#define OWN_OPTION "-pthread"
#endif

/* hidden: else a function of the kernel's would be the program's, or libc's, of that name.  Errors:
 * what older C only warns of, and what then crashes. */
static const char *const options[] = { "-std=gnu11",
                                       "-O2",
                                       "-g",
                                       "-shared",
                                       "-fPIC",
                                       "-fvisibility=hidden",
                                       "-Werror=implicit-function-declaration",
                                       "-Werror=int-conversion",
                                       "-Werror=incompatible-pointer-types",
                                       OWN_OPTION,
                                       "-pthread" };
enum { OPTIONS = sizeof options / sizeof options[0], WORDS_MOST = OPTIONS + IMX_USER_WORDS + 16 };

/* Clang has these among incompatible pointers, and no option of this name. */
static const char qualifiers[] = "#ifndef __clang__\n"
                                 "#pragma GCC diagnostic error \"-Wdiscarded-qualifiers\"\n"
                                 "#endif\n";

typedef struct job {
    const imx_user_desc *desc;
    imx_temporary folder;
    char text[PATH_MOST], object[PATH_MOST];
    char include[PATH_MOST];
    char own_folder[PATH_MOST]; /* the compiler's own temporary files lie in ours, too */
    char **environment;
    char *words; /* the caller's options, cut at the blanks */
    int said;
    pid_t pid;
} job;

/* ---- files ----------------------------------------------------------------------------------- */

static imbrex_status put_headers(const job *j)
{
    for (size_t i = 0; i < imx_source_file_count; i++) {
        const imx_source_file *header = &imx_source_files[i];
        if (!strchr(header->name, '/'))
            IMX_TRY(imx_temporary_put(&j->folder, header->name, "", header->text, header->bytes));
    }
    return IMBREX_OK;
}

/* This process's, but for TMPDIR: what the compiler's parts pass to each other is code as well. */
static imbrex_status make_environment(job *j)
{
    static const char name[] = "TMPDIR=";
    size_t count = 0, kept = 0;
    while (environ && environ[count])
        count++;
    IMX_TRY(imx_sys_alloc(count + 2, sizeof *j->environment, &j->environment));
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], name, sizeof name - 1) != 0)
            j->environment[kept++] = environ[i];
    }
    snprintf(j->own_folder, sizeof j->own_folder, "%s%s", name, j->folder.path);
    j->environment[kept] = j->own_folder;
    return IMBREX_OK;
}

static imbrex_status begin(job *j, const imx_folder *kept)
{
    IMX_TRY(imx_temporary_make(kept, &j->folder));
    snprintf(j->text, sizeof j->text, "%s/kernel.c", j->folder.path);
    snprintf(j->object, sizeof j->object, "%s/kernel.so", j->folder.path);
    snprintf(j->include, sizeof j->include, "-I%s", j->folder.path);
    IMX_TRY(make_environment(j));
    IMX_TRY(put_headers(j));
    char line[IMX_SOURCE_LINE], first[IMX_SOURCE_LINE + sizeof qualifiers];
    imx_source_line(j->desc->file, line);
    snprintf(first, sizeof first, "%s%s", qualifiers, line);
    IMX_TRY(imx_temporary_put(&j->folder, "kernel.c", first, j->desc->text, j->desc->text_bytes));
    j->said = imx_sys.memfd_create("messages", MFD_CLOEXEC);
    return j->said < 0 ? imx_fail_errno("cannot create a file in memory (memfd)") : IMBREX_OK;
}

static void end(job *j)
{
    if (j->said >= 0)
        close(j->said);
    imx_temporary_remove(&j->folder);
    free(j->environment);
    free(j->words);
}

/* ---- the compiler ---------------------------------------------------------------------------- */

/* Signals as a program expects to find them, whatever this process does with them. */
static int spawn(job *j, const char *compiler, const char *const *words)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGCHLD);
    sigaddset(&usual, SIGPIPE);
    int error = posix_spawn_file_actions_init(&files);
    if (error)
        return error;
    error = posix_spawnattr_init(&attributes);
    if (error) {
        posix_spawn_file_actions_destroy(&files);
        return error;
    }
    posix_spawn_file_actions_adddup2(&files, j->said, 1);
    posix_spawn_file_actions_adddup2(&files, j->said, 2);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0); /* last: it may be 0 */
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    error =
        posix_spawnp(&j->pid, compiler, &files, &attributes, (char *const *)words, j->environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

/* The caller's words stand behind the text, where libraries have to. */
static void fill_words(job *j, const char *compiler, const char *words[WORDS_MOST])
{
    int count = 0;
    words[count++] = compiler;
    for (int i = 0; i < OPTIONS; i++)
        words[count++] = options[i];
    words[count++] = "-iquote";
    words[count++] = j->desc->folder;
    words[count++] = "-o";
    words[count++] = j->object;
    words[count++] = "-xc";
    words[count++] = j->text;
    words[count++] = "-xnone";
    char *rest = NULL;
    int last = count + IMX_USER_WORDS;
    for (char *word = strtok_r(j->words, IMX_USER_BLANKS, &rest); word && count < last;
         word = strtok_r(NULL, IMX_USER_BLANKS, &rest))
        words[count++] = word;
    words[count++] = j->include;
    words[count++] = "-lm";
    words[count] = NULL;
}

/* Where there is none of the name, the next is tried. */
static imbrex_status start(job *j, const char *wanted, const char **compiler)
{
    const char *usual[] = { "cc", "gcc", "clang" };
    const char *words[WORDS_MOST];
    int error = ENOENT;
    fill_words(j, wanted, words);
    for (int i = 0; i < (*wanted ? 1 : 3) && error == ENOENT; i++) {
        *compiler = words[0] = *wanted ? wanted : usual[i];
        error = spawn(j, *compiler, words);
    }
    if (error && *wanted)
        return imx_fail(IMBREX_UNSUPPORTED, "IMBREX_CC is %s, which does not run: %s", wanted,
                        strerror(error));
    if (error)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "no C compiler for kernel %s: neither cc, gcc nor clang runs (%s); install "
                        "one, set IMBREX_CC, or compile the kernel with the program (desc.entry)",
                        j->desc->name, strerror(error));
    return IMBREX_OK;
}

/* A process that ignores SIGCHLD learns no exit code (ECHILD): the object says how it went. */
static imbrex_status await(job *j, bool *well)
{
    const struct timespec nap = { 0, 2000000 };
    imx_limit limit = imx_limit_of((int64_t)LIMIT_MS * 1000000);
    int code = 0;
    pid_t ended;
    while ((ended = waitpid(j->pid, &code, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
        if (imx_limit_is_over(&limit)) {
            kill(j->pid, SIGKILL);
            waitpid(j->pid, &code, 0);
            return imx_fail(IMBREX_SYSTEM, "the C compiler did not end within %d s",
                            LIMIT_MS / 1000);
        }
        nanosleep(&nap, NULL);
    }
    *well = ended < 0 || (WIFEXITED(code) && WEXITSTATUS(code) == 0);
    return IMBREX_OK;
}

/* From the line of the first error on: the compiler's, or the linker's, behind which it only says
 * that it failed. */
static const char *first_error(const char *said)
{
    static const char *const words[] = { "error", "undefined reference", "/ld: ", "-ld: " };
    const char *first = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const char *at = strstr(said, words[i]);
        if (at && (!first || at < first))
            first = at;
    }
    while (first && first > said && first[-1] != '\n')
        first--;
    return first ? first : said;
}

static imbrex_status complain(const job *j, const char *compiler)
{
    char said[16384];
    ssize_t bytes = pread(j->said, said, sizeof said - 1, 0);
    said[bytes > 0 ? bytes : 0] = '\0';
    return imx_fail(IMBREX_INVALID, "%s does not compile kernel %s:\n%.*s", compiler, j->desc->name,
                    SAID_MOST, first_error(said));
}

static imbrex_status read_object(const job *j, const char *compiler, void **image, size_t *bytes)
{
    struct stat found;
    int fd = imx_temporary_open(&j->folder, "kernel.so");
    if (fd < 0 && errno != ENOENT)
        return imx_fail_errno("cannot open what the C compiler made of kernel %s", j->desc->name);
    if (fd < 0 || fstat(fd, &found) != 0 || found.st_size == 0) {
        if (fd >= 0)
            close(fd);
        return complain(j, compiler);
    }
    void *data = NULL;
    imbrex_status status;
    IMX_GOTO(imx_sys_alloc(1, (size_t)found.st_size, &data));
    if (pread(fd, data, (size_t)found.st_size, 0) != found.st_size) {
        status = imx_fail_errno("cannot read what the C compiler made");
        goto fail;
    }
    close(fd);
    *image = data;
    *bytes = (size_t)found.st_size;
    return IMBREX_OK;
fail:
    close(fd);
    free(data);
    return status;
}

imbrex_status imx_compiler_run(const char *wanted, const imx_folder *kept,
                               const imx_user_desc *desc, void **image, size_t *bytes)
{
    job j = { .desc = desc, .folder.at = -1, .said = -1 };
    const char *compiler = NULL;
    bool well = false;
    imbrex_status status;
    if (imx_env_is_foreign()) /* PATH, and what a compiler reads besides, are its caller's */
        return imx_fail(IMBREX_UNSUPPORTED,
                        "kernel %s is not compiled by a program with more rights than who started "
                        "it: compile it with the program (desc.entry)",
                        desc->name);
    IMX_GOTO(imx_sys_alloc(1, strlen(desc->options) + 1, &j.words));
    strcpy(j.words, desc->options);
    IMX_GOTO(begin(&j, kept));
    IMX_GOTO(start(&j, wanted, &compiler));
    IMX_GOTO(await(&j, &well));
    status = well ? read_object(&j, compiler, image, bytes) : complain(&j, compiler);
fail:
    end(&j);
    return status;
}

/* ---- the key --------------------------------------------------------------------------------- */

/* A home may be that of many machines.  What is linked against a libc may ask an older one for what
 * it has not. */
static void add_machine(imx_cache_key *key)
{
    struct utsname machine = { .machine = "" };
    const size_t pointer = sizeof(void *);
    if (uname(&machine) == 0)
        imx_cache_key_add(key, machine.machine, strlen(machine.machine) + 1);
    imx_cache_key_add(key, &pointer, sizeof pointer);
#ifdef __GLIBC__
    imx_cache_key_add(key, gnu_get_libc_version(), strlen(gnu_get_libc_version()) + 1);
#endif
}

/* What is said of the first processor, but for what changes as it runs. */
static void add_processor(const char *root, imx_cache_key *key)
{
    char path[PATH_MOST], line[512];
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file) && line[0] != '\n') {
        if (strncmp(line, "cpu MHz", 7) != 0 && strncasecmp(line, "bogomips", 8) != 0)
            imx_cache_key_add(key, line, strlen(line));
    }
    if (file)
        fclose(file);
}

void imx_compiler_key(const char *compiler, const char *words, const char *root, imx_cache_key *key)
{
    imx_cache_key_add(key, compiler, strlen(compiler) + 1);
    for (int i = 0; i < OPTIONS; i++)
        imx_cache_key_add(key, options[i], strlen(options[i]) + 1);
    imx_cache_key_add(key, qualifiers, sizeof qualifiers);
    add_machine(key);
    if (strstr(words, "=native")) /* -march=, -mcpu=, -mtune= */
        add_processor(root, key);
}
