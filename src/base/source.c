/* source.c - puts a kernel source together.
 *
 * One text, not a source and a set of headers: two kernels have an args.h each, which NVRTC, that
 * knows headers by name only, could not tell apart; and the text is the whole key of the cache, so
 * that a change to one kernel leaves the others' cubins alone.
 */
#include "source.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MOST = 128, DEPTH_MOST = 16 };

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

/* The name in a line `#include "name"`; false for any other line. */
static bool included_name(const char *line, size_t length, char name[NAME_MOST])
{
    const char *at = line, *end = line + length;
    at += strspn(at, " \t");
    if (at >= end || *at != '#')
        return false;
    at += 1 + strspn(at + 1, " \t");
    if (strncmp(at, "include", 7) != 0)
        return false;
    at += 7 + strspn(at + 7, " \t");
    size_t quoted = at < end && *at == '"' ? strcspn(at + 1, "\"\n") : 0;
    if (quoted == 0 || quoted >= NAME_MOST || at[1 + quoted] != '"')
        return false;
    memcpy(name, at + 1, quoted);
    name[quoted] = '\0';
    return true;
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

/* What cannot be found stays as it is: the compiler then says so, with file and line. */
static imbrex_status expand(const imx_source_file *file, int depth, imx_text *out)
{
    if (depth > DEPTH_MOST)
        return imx_fail(IMBREX_INTERNAL, "%s is included more than %d deep", file->name,
                        DEPTH_MOST);
    imx_text_add(out, "#line 1 \"%s\"\n", file->name);
    int number = 0;
    const char *lines = file->text, *line = lines; /* lines: those that are not copied yet */
    while (*line) {
        size_t length = strcspn(line, "\n");
        const char *next = line + length + (line[length] == '\n');
        char name[NAME_MOST];
        const imx_source_file *other =
            included_name(line, length, name) ? resolve(file->name, name) : NULL;
        number++;
        if (other) {
            add_lines(out, lines, line);
            IMX_TRY(expand(other, depth + 1, out));
            imx_text_add(out, "#line %d \"%s\"\n", number + 1, file->name);
            lines = next;
        }
        line = next;
    }
    add_lines(out, lines, line);
    if (line > file->text && line[-1] != '\n')
        imx_text_add(out, "\n");
    return IMBREX_OK;
}

typedef struct kept {
    struct kept *next;
    imx_source source;
    char text[];
} kept;

static imbrex_status put_together(const imx_source_file *file, kept **out)
{
    imx_text measure = { 0 };
    IMX_TRY(expand(file, 0, &measure));
    kept *k = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *k + measure.length + 1, &k));
    imx_text text = { .at = k->text, .size = measure.length + 1 };
    imbrex_status status;
    IMX_GOTO(expand(file, 0, &text));
    k->source = (imx_source){ .name = file->name, .text = k->text, .bytes = measure.length };
    imx_cache_key_add(&k->source.key, k->text, measure.length);
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
