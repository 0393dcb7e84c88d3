/* user_source.c - reads a caller's kernel, and every file that it includes into the key of the
 * cache: a header that changed makes another kernel.
 *
 * Which #include takes effect only the compiler knows, and which of several files of its name.  All
 * of them count here, also those in comments: a file too many costs a compilation now and then, one
 * too few would run old code.  What is more than fits here, cannot be read, is named by a macro,
 * or by an option that is not followed here, is therefore compiled each time. */
#include "user_source.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/backend.h"
#include "base/source.h"

enum { TEXT_BYTES_MOST = 16 << 20, PATH_MOST = 512, FILES_MOST = 256 };
enum { FOLDERS_MOST = IMX_USER_WORDS + 256 }; /* of the options and of the environment */

/* NULL with errno, ENOTSUP if it is a pipe or the like, which might never end. */
static FILE *open_file(const char *path)
{
    struct stat found = { 0 };
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    bool regular = fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
    FILE *file = regular ? fdopen(fd, "r") : NULL;
    int error = regular ? errno : S_ISDIR(found.st_mode) ? EISDIR : ENOTSUP;
    if (!file)
        close(fd);
    errno = error;
    return file;
}

/* All of a file and a NUL, or NULL with errno. */
static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = open_file(path);
    char *text = NULL;
    size_t room = 0, got = 0;
    while (file && !feof(file) && !ferror(file) && got <= TEXT_BYTES_MOST) {
        if (got + 1 >= room) {
            room = room ? (size_t)imx_min(2 * (int64_t)room, TEXT_BYTES_MOST + 2) : 65536;
            char *more = realloc(text, room);
            if (!more)
                break;
            text = more;
        }
        got += fread(text + got, 1, room - 1 - got, file);
    }
    bool whole = file && feof(file) && got <= TEXT_BYTES_MOST;
    int error = got > TEXT_BYTES_MOST ? EFBIG : errno;
    if (file)
        fclose(file);
    if (!whole) {
        free(text);
        errno = error;
        return NULL;
    }
    text[got] = '\0';
    *bytes = got;
    return text;
}

/* ---- directives ------------------------------------------------------------------------------ */

#define BLANKS " \t\v\f\r"

/* As the compiler reads it: lines that a backslash joins are one, and a NUL is a blank.  NULL: no
 * memory. */
static char *join_lines(const char *text, size_t bytes)
{
    char *joined = imx_sys.calloc(bytes + 1, 1);
    size_t length = 0;
    for (size_t i = 0; i < bytes && joined; i++) {
        size_t blanks = text[i] == '\\' ? strspn(text + i + 1, BLANKS) : 0;
        if (text[i] == '\\' && text[i + 1 + blanks] == '\n')
            i += 1 + blanks;
        else
            joined[length++] = text[i] ? text[i] : ' ';
    }
    if (joined)
        joined[length] = '\0';
    return joined;
}

/* Where the blanks before `at` begin. */
static const char *before_blanks(const char *text, const char *at)
{
    while (at > text && strchr(BLANKS, at[-1]))
        at--;
    return at;
}

static bool ends(const char *text, const char *at, const char *with)
{
    size_t length = strlen(with);
    return (size_t)(at - text) >= length && memcmp(at - length, with, length) == 0;
}

/* The word at `at` may be a directive's: before it is a #, the first of its line but for comments,
 * or a comment, whose beginning is not looked for. */
static bool may_direct(const char *text, const char *at)
{
    at = before_blanks(text, at);
    if (ends(text, at, "*/"))
        return true;
    size_t mark = ends(text, at, "#") ? 1 : ends(text, at, "%:") ? 2 : 0;
    at = before_blanks(text, at - mark);
    return mark && (at == text || at[-1] == '\n' || ends(text, at, "*/"));
}

/* The length of a word at `at` that takes a file in; 0: it is another. */
static size_t word_at(const char *at)
{
    static const char *const words[] = { "include", "include_next", "import" };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t length = strlen(words[i]);
        if (strncmp(at, words[i], length) == 0 && !isalnum((unsigned char)at[length]) &&
            at[length] != '_')
            return length;
    }
    return 0;
}

/* ---- the key --------------------------------------------------------------------------------- */

typedef struct scan {
    imx_cache_key key;
    char folders[FOLDERS_MOST][PATH_MOST]; /* the first: of the text */
    int folder_count;
    char seen[FILES_MOST][PATH_MOST];
    int seen_count;
    bool too_much; /* something was left out */
} scan;

/* "-I folder", "-Ifolder" and the like, or for files, "-include file". */
static void take_words(scan *s, const char *options, const char *const *flags, int count,
                       void (*take)(scan *s, const char *word, size_t length))
{
    bool next = false;
    for (const char *at = options; *at;) {
        at += strspn(at, IMX_USER_BLANKS);
        size_t length = strcspn(at, IMX_USER_BLANKS), skip = 0;
        for (int i = 0; i < count && !next && !skip; i++) {
            if (strncmp(at, flags[i], strlen(flags[i])) == 0)
                skip = strlen(flags[i]);
        }
        if ((next || skip) && length > skip)
            take(s, at + skip, length - skip);
        next = skip && length == skip;
        at += length;
    }
}

static void take_folder(scan *s, const char *word, size_t length)
{
    for (int i = 0; i < s->folder_count; i++) {
        if (strncmp(s->folders[i], word, length) == 0 && !s->folders[i][length])
            return;
    }
    if (length >= PATH_MOST || s->folder_count == FOLDERS_MOST)
        s->too_much = true;
    else
        snprintf(s->folders[s->folder_count++], PATH_MOST, "%.*s", (int)length, word);
}

/* Folders that compilers look in besides: "one:other", where nothing stands for ".". */
static void take_environment(scan *s)
{
    static const char *const names[] = { "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH" };
    for (int i = 0; i < 3; i++) {
        const char *at = imx_env_get(names[i]);
        for (bool more = at && *at; more;) {
            size_t length = strcspn(at, ":");
            take_folder(s, length ? at : ".", length ? length : 1);
            more = at[length] == ':'; /* behind the last one, too */
            at += length + more;
        }
    }
}

/* Whether one of the words leads to files in a way that is not followed here. */
static bool are_obscure(const char *options)
{
    static const char *const words[] = {
        "@",         "-I=",       "-Wp,",           "-X",     "--include-directory-after",
        "-iprefix",  "-iwith",    "--include-with", "-specs", "--specs",
        "-isysroot", "--sysroot", "-include-pch",   "-B",     "--prefix",
    };
    for (const char *at = options; *at; at += strcspn(at, IMX_USER_BLANKS)) {
        at += strspn(at, IMX_USER_BLANKS);
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
            if (strncmp(at, words[i], strlen(words[i])) == 0)
                return true;
        }
    }
    return false;
}

static void scan_text(scan *s, const char *folder, const char *text, size_t bytes);

/* Or nothing: there is no such file. */
static void scan_file(scan *s, const char *folder, const char *name, size_t length)
{
    char path[PATH_MOST];
    size_t bytes = 0;
    bool whole = *name == '/';
    if (snprintf(path, sizeof path, "%s%s%.*s", whole ? "" : folder, whole ? "" : "/", (int)length,
                 name) >= PATH_MOST ||
        s->seen_count == FILES_MOST) {
        s->too_much = true;
        return;
    }
    for (int k = 0; k < s->seen_count; k++) {
        if (strcmp(path, s->seen[k]) == 0)
            return;
    }
    char *text = read_file(path, &bytes);
    if (!text) {
        s->too_much = s->too_much || (errno != ENOENT && errno != ENOTDIR && errno != EISDIR);
        return;
    }
    memcpy(s->seen[s->seen_count++], path, sizeof path);
    *strrchr(path, '/') = '\0';
    scan_text(s, path, text, bytes);
    free(text);
}

/* Beside the file that includes it, and in all folders: compilers differ in where they look first.
 * One that is nowhere is the compiler's own. */
static void scan_name(scan *s, const char *folder, const char *name, size_t length)
{
    scan_file(s, folder, name, length);
    for (int i = 0; i < s->folder_count; i++)
        scan_file(s, s->folders[i], name, length);
}

static void scan_word(scan *s, const char *word, size_t length)
{
    scan_name(s, ".", word, length);
}

static void scan_text(scan *s, const char *folder, const char *text, size_t bytes)
{
    imx_cache_key_add(&s->key, text, bytes);
    char *joined = join_lines(text, bytes);
    s->too_much = s->too_much || !joined;
    for (const char *at = joined; at && (at = strchr(at, 'i')); at++) {
        size_t length = word_at(at);
        if (!length || !may_direct(joined, at))
            continue;
        const char *name = at + length + strspn(at + length, BLANKS);
        if (*name == '"' || *name == '<')
            scan_name(s, folder, name + 1, strcspn(name + 1, "\">\n"));
        else
            s->too_much = true; /* a macro, or a comment before it */
    }
    free(joined);
}

static imbrex_status find_key(const char *name, const char *options, imx_user_source *source)
{
    scan *s = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *s, &s));
    static const char *const of_folders[] = {
        "--include-path=", "--include-path", "--include-directory=", "--include-directory",
        "-isystem",        "-iquote",        "-idirafter",           "-I",
    };
    static const char *const of_files[] = { "--pre-include=", "--pre-include", "--include=",
                                            "--include",      "-include=",     "-include",
                                            "--imacros=",     "--imacros",     "-imacros" };
    s->too_much = are_obscure(options);
    take_folder(s, source->folder, strlen(source->folder));
    take_words(s, options, of_folders, 8, take_folder);
    take_environment(s);
    take_words(s, options, of_files, 9, scan_word);
    imx_cache_key_add(&s->key, name, strlen(name) + 1);
    imx_cache_key_add(&s->key, options, strlen(options) + 1);
    imx_cache_key_add(&s->key, source->file, strlen(source->file) + 1); /* it is in messages */
    for (size_t i = 0; i < imx_source_file_count; i++) {
        if (!strchr(imx_source_files[i].name, '/')) /* imbrex_device.h and what belongs to it */
            imx_cache_key_add(&s->key, imx_source_files[i].text, imx_source_files[i].bytes);
    }
    scan_text(s, source->folder, source->text, source->bytes);
    int64_t now_ns = imbrexd_now_ns();
    if (s->too_much)
        imx_cache_key_add(&s->key, &now_ns, sizeof now_ns);
    source->key = s->key;
    free(s);
    return IMBREX_OK;
}

/* ---- the text -------------------------------------------------------------------------------- */

static imbrex_status name_file(const char *name, const char *file, imx_user_source *out)
{
    imx_text as = { .at = out->file, .size = sizeof out->file };
    imx_text_add(&as, "%s%s", file ? file : name, file ? "" : ".kernel");
    if (as.length >= as.size)
        return imx_fail(IMBREX_INVALID, "desc.file has %zu characters: want at most %zu", as.length,
                        as.size - 1);
    const char *slash = strrchr(out->file, '/');
    int length = slash && slash > out->file ? (int)(slash - out->file) : 1; /* also of "/" itself */
    imx_text in = { .at = out->folder, .size = sizeof out->folder };
    imx_text_add(&in, "%.*s", length, slash ? out->file : ".");
    return IMBREX_OK;
}

static imbrex_status unreadable(const char *file, int error)
{
    if (error == EFBIG)
        return imx_fail(IMBREX_INVALID, "desc.file, %s, is too large: want at most %d MiB", file,
                        TEXT_BYTES_MOST >> 20);
    errno = error;
    if (error == ENOMEM || error == EMFILE || error == ENFILE)
        return imx_fail_errno("desc.file, %s, cannot be read", file);
    return imx_fail(IMBREX_INVALID, "desc.file, %s, cannot be read: %s", file,
                    error == ENOTSUP ? "want a regular file" : strerror(error));
}

imbrex_status imx_user_source_read(const char *name, const char *source, const char *file,
                                   const char *options, imx_user_source *out)
{
    memset(out, 0, sizeof *out);
    if (!source && !file)
        return IMBREX_OK;
    IMX_TRY(name_file(name, file, out));
    imbrex_status status;
    if (source) {
        out->bytes = strlen(source);
        IMX_GOTO(imx_sys_alloc(1, out->bytes + 1, &out->text));
        memcpy(out->text, source, out->bytes);
    } else {
        out->text = read_file(file, &out->bytes);
        if (!out->text)
            return unreadable(file, errno);
    }
    IMX_GOTO(find_key(name, options, out));
    return IMBREX_OK;
fail:
    imx_user_source_free(out);
    return status;
}

void imx_user_source_free(imx_user_source *source)
{
    free(source->text);
    source->text = NULL;
}
