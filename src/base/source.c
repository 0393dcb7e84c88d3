/* source.c - puts a kernel source together.
 *
 * One text, not a source and a set of headers: two kernels have an args.h each, which NVRTC, that
 * knows headers by name only, could not tell apart; and the text is the whole key of the cache, so
 * that a change to one kernel leaves the others' cubins alone.
 *
 * A header whose guard is sure to be defined already is left out: with every header in the text as
 * often as it is included, the text of a large kernel would be a thousand times as long.
 */
#include "source.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MOST = 128, DEPTH_MOST = 16, DEFINED_MOST = 96 };

const imx_source_file *imx_source_find(const char *name)
{
    for (size_t i = 0; i < imx_source_file_count; i++) {
        if (strcmp(imx_source_files[i].name, name) == 0)
            return &imx_source_files[i];
    }
    return NULL;
}

void imx_source_line(const char *file, char line[IMX_SOURCE_LINE])
{
    size_t at = (size_t)sprintf(line, "#line 1 \"");
    for (const char *c = file; *c && at < IMX_SOURCE_LINE - 8; c++) {
        if (*c == '"' || *c == '\\')
            line[at++] = '\\';
        line[at++] = *c == '\n' ? ' ' : *c;
    }
    memcpy(line + at, "\"\n", 3);
}

/* folder of `from` + name, with "x/.." taken out; false: too long, or above the root. */
static bool join(const char *from, const char *name, char path[NAME_MOST])
{
    const char *slash = strrchr(from, '/');
    size_t length = slash ? (size_t)(slash - from) : 0;
    memcpy(path, from, length);
    while (strncmp(name, "../", 3) == 0) {
        if (length == 0)
            return false;
        while (length > 0 && path[--length] != '/')
            ;
        name += 3;
    }
    imx_text text = { .at = path + length, .size = NAME_MOST - length };
    imx_text_add(&text, "%s%s", length ? "/" : "", name);
    return text.length < text.size;
}

/* As a compiler looks: beside the file that includes, then from the roots. */
static const imx_source_file *resolve(const char *from, const char *name)
{
    char path[NAME_MOST];
    const imx_source_file *file = join(from, name, path) ? imx_source_find(path) : NULL;
    return file ? file : imx_source_find(name);
}

/* What follows the # of a directive; NULL: the line is none. */
static const char *directive(const char *line)
{
    line += strspn(line, " \t");
    return *line == '#' ? line + 1 + strspn(line + 1, " \t") : NULL;
}

/* How many more conditions hold below this line than above it. */
static int deeper(const char *line)
{
    const char *word = directive(line);
    return !word ? 0 : strncmp(word, "if", 2) == 0 ? 1 : strncmp(word, "endif", 5) == 0 ? -1 : 0;
}

/* The name in a line `#include "name"`; false for any other line. */
static bool included_name(const char *line, char name[NAME_MOST])
{
    const char *at = directive(line);
    if (!at || strncmp(at, "include", 7) != 0)
        return false;
    at += 7 + strspn(at + 7, " \t");
    size_t quoted = *at == '"' ? strcspn(at + 1, "\"\n") : 0;
    if (quoted == 0 || quoted >= NAME_MOST || at[1 + quoted] != '"')
        return false;
    memcpy(name, at + 1, quoted);
    name[quoted] = '\0';
    return true;
}

/* Its first directives are `#ifndef G` and `#define G`, its last line `#endif` with G beside it. */
static bool is_guarded(const imx_source_file *file)
{
    const char *first = file->text;
    while (*first && *first != '#') {
        first += strcspn(first, "\n");
        first += *first == '\n';
    }
    char guard[NAME_MOST], opens[3 * NAME_MOST], ends[2 * NAME_MOST];
    if (sscanf(first, "#ifndef %127s", guard) != 1)
        return false;
    sprintf(opens, "#ifndef %s\n#define %s\n", guard, guard);
    size_t length = (size_t)sprintf(ends, "\n#endif /* %s */\n", guard);
    return strncmp(first, opens, strlen(opens)) == 0 && file->bytes > length &&
           strcmp(file->text + file->bytes - length, ends) == 0;
}

/* As imx_text_add, of thousands of lines, which need no format. */
static void add_lines(imx_text *out, const char *lines, const char *end)
{
    size_t bytes = (size_t)(end - lines);
    if (out->length + bytes < out->size) {
        memcpy(out->at + out->length, lines, bytes);
        out->at[out->length + bytes] = '\0';
    }
    out->length += bytes;
}

typedef struct whole {
    imx_text text;
    const imx_source_file *defined[DEFINED_MOST]; /* headers whose guards are sure to be defined */
    int count;
} whole;

static bool is_defined(const whole *out, const imx_source_file *file)
{
    for (int i = 0; i < out->count; i++) {
        if (out->defined[i] == file)
            return true;
    }
    return false;
}

/* What cannot be found stays as it is: the compiler then says so, with file and line.  sure: no
 * condition can hide this place. */
static imbrex_status expand(const imx_source_file *file, int depth, bool sure, whole *out)
{
    if (depth > DEPTH_MOST)
        return imx_fail(IMBREX_INTERNAL, "%s is included more than %d deep", file->name,
                        DEPTH_MOST);
    bool guarded = is_guarded(file);
    if (sure && guarded && out->count < DEFINED_MOST)
        out->defined[out->count++] = file;
    imx_text_add(&out->text, "#line 1 \"%s\"\n", file->name);
    int number = 0, conditions = guarded ? -1 : 0;
    const char *lines = file->text, *line = lines; /* lines: those that are not copied yet */
    while (*line) {
        size_t length = strcspn(line, "\n");
        const char *next = line + length + (line[length] == '\n');
        char name[NAME_MOST];
        const imx_source_file *other = included_name(line, name) ? resolve(file->name, name) : NULL;
        number++;
        conditions += deeper(line);
        if (other) {
            add_lines(&out->text, lines, line);
            if (is_defined(out, other))
                imx_text_add(&out->text, "\n");
            else {
                IMX_TRY(expand(other, depth + 1, sure && conditions == 0, out));
                imx_text_add(&out->text, "#line %d \"%s\"\n", number + 1, file->name);
            }
            lines = next;
        }
        line = next;
    }
    add_lines(&out->text, lines, line);
    if (line > file->text && line[-1] != '\n')
        imx_text_add(&out->text, "\n");
    return IMBREX_OK;
}

typedef struct kept {
    struct kept *next;
    imx_source source;
    char text[];
} kept;

static imbrex_status put_together(const imx_source_file *file, kept **out)
{
    whole measure = { .count = 0 };
    IMX_TRY(expand(file, 0, true, &measure));
    size_t bytes = measure.text.length;
    kept *k = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *k + bytes + 1, &k));
    whole put = { .text = { .at = k->text, .size = bytes + 1 } };
    imbrex_status status;
    IMX_GOTO(expand(file, 0, true, &put));
    k->source = (imx_source){ .name = file->name, .text = k->text, .bytes = bytes };
    imx_cache_key_add(&k->source.key, k->text, bytes);
    *out = k;
    return IMBREX_OK;
fail:
    free(k);
    return status;
}

imbrex_status imx_source_expand(const char *name, const imx_source **source)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static kept *all;
    const imx_source_file *file = imx_source_find(name);
    if (!file)
        return imx_fail(IMBREX_INTERNAL, "this build holds no kernel source %s", name);
    imbrex_status status = IMBREX_OK;
    pthread_mutex_lock(&lock);
    kept *k = all;
    while (k && k->source.name != file->name)
        k = k->next;
    if (!k && (status = put_together(file, &k)) == IMBREX_OK) {
        k->next = all;
        all = k;
    }
    pthread_mutex_unlock(&lock);
    if (status == IMBREX_OK)
        *source = &k->source;
    return status;
}
