/* text.c - escapes strings for JSON and for markup, makes them harmless to a terminal, breaks lines
 * between words, and draws bars. */
#define _GNU_SOURCE
#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* Bytes of the UTF-8 character at text, 1..4, or 0 if there is none: cut short, overlong, a
 * surrogate, or past U+10FFFF. */
static size_t character(const char *text, size_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    unsigned char first = (unsigned char)text[0];
    if (first < 0x80)
        return 1;
    size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC0 || first >= 0xF8 || bytes > left)
        return 0;
    uint32_t code = first & (0x7Fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        unsigned char next = (unsigned char)text[i];
        if ((next & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (next & 0x3F);
    }
    bool surrogate = code >= 0xD800 && code < 0xE000;
    return code < least[bytes] || surrogate || code > 0x10FFFF ? 0 : bytes;
}

/* Whether a terminal may take the character for a command: C0, DEL, and C1, whose characters begin
 * a longer one, both as UTF-8 and as the bytes that they are in terminals of 8 bits. */
static bool is_control(const char *text, size_t bytes)
{
    unsigned char first = (unsigned char)text[0];
    if (bytes == 2)
        return first == 0xC2 && (unsigned char)text[1] < 0xA0;
    return bytes < 2 && (first < 0x20 || first == 0x7F || (first >= 0x80 && first < 0xA0));
}

void text_harmless(char *text, bool lines)
{
    size_t length = strlen(text), kept = 0;
    for (size_t at = 0, bytes; at < length; at += bytes ? bytes : 1) {
        bytes = character(text + at, length - at);
        size_t whole = bytes ? bytes : 1;
        bool allowed = lines && (text[at] == '\n' || text[at] == '\t');
        if (is_control(text + at, bytes) && !allowed) {
            text[kept++] = '?';
            continue;
        }
        memmove(text + kept, text + at, whole);
        kept += whole;
    }
    text[kept] = '\0';
}

char *text_made(const char *format, va_list args)
{
    char *text = NULL;
    if (vasprintf(&text, format, args) < 0) {
        fputs("imbrex: out of memory\n", stderr);
        return NULL;
    }
    text_harmless(text, true);
    return text;
}

void text_say(FILE *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = text_made(format, args);
    va_end(args);
    if (text)
        fputs(text, file);
    free(text);
}

void text_json(FILE *file, const char *text, size_t length)
{
    fputc('"', file);
    for (size_t at = 0, bytes; at < length; at += bytes ? bytes : 1) {
        bytes = character(text + at, length - at);
        unsigned char c = (unsigned char)text[at];
        if (bytes == 0)
            fputs(replacement, file);
        else if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (is_control(text + at, bytes))
            fprintf(file, "\\u%04x", bytes == 2 ? (unsigned char)text[at + 1] : c);
        else
            fwrite(text + at, 1, bytes, file);
    }
    fputc('"', file);
}

void text_json_number(FILE *file, double value)
{
    if (isfinite(value))
        fprintf(file, "%.9g", value);
    else
        fputs("null", file);
}

void text_json_string_line(FILE *file, const char *key, const char *value, const char *end)
{
    fprintf(file, "  \"%s\": ", key);
    text_json(file, value, strlen(value));
    fprintf(file, "%s\n", end);
}

void text_json_number_line(FILE *file, const char *key, double value, const char *end)
{
    fprintf(file, "  \"%s\": ", key);
    text_json_number(file, value);
    fprintf(file, "%s\n", end);
}

void text_markup(FILE *file, const char *text, size_t length)
{
    for (size_t at = 0, bytes; at < length; at += bytes ? bytes : 1) {
        bytes = character(text + at, length - at);
        char c = text[at];
        bool control = is_control(text + at, bytes) && c != '\n' && c != '\t';
        if (bytes == 0 || control)
            fputs(replacement, file);
        else if (c == '&')
            fputs("&amp;", file);
        else if (c == '<')
            fputs("&lt;", file);
        else if (c == '>')
            fputs("&gt;", file);
        else if (c == '"')
            fputs("&quot;", file);
        else
            fwrite(text + at, 1, bytes, file);
    }
}

/* ---- Lines and bars -------------------------------------------------------------------------- */

int text_width(FILE *file)
{
    struct winsize window;
    int fd = fileno(file);
    if (fd < 0 || !isatty(fd) || ioctl(fd, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 ||
        window.ws_col > TEXT_WIDTH)
        return TEXT_WIDTH;
    return window.ws_col < TEXT_WIDTH_LEAST ? TEXT_WIDTH_LEAST : window.ws_col;
}

/* Characters, which begin with a byte that continues none. */
static int columns(const char *text, size_t bytes)
{
    int count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

/* A line without its newline. */
static void say_line(FILE *file, int indent, int width, const char *line, size_t length)
{
    int column = 0;
    for (size_t at = 0; at < length;) {
        size_t gap = strspn(line + at, " ");
        gap = gap < length - at ? gap : length - at;
        const char *word = line + at + gap;
        size_t bytes = strcspn(word, " \n");
        bytes = bytes < length - at - gap ? bytes : length - at - gap;
        int wide = columns(word, bytes);
        if (column > indent && bytes && column + (int)gap + wide > width) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
        } else {
            fprintf(file, "%*s", (int)gap, "");
            column += (int)gap;
        }
        fwrite(word, 1, bytes, file);
        column += wide;
        at += gap + bytes;
    }
}

void text_wrap(FILE *file, int indent, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = text_made(format, args);
    va_end(args);
    int width = text_width(file);
    for (const char *line = text; line && *line;) {
        size_t bytes = strcspn(line, "\n");
        say_line(file, indent, width, line, bytes);
        line += bytes;
        if (*line) {
            fputc('\n', file);
            line++;
        }
    }
    free(text);
}

void text_bar(FILE *file, const char *name, double value, double mark, double most,
              const char *text)
{
    enum { NAME = 15, TEXT = 10 };
    int room = text_width(file) - NAME - TEXT;
    int length = most > 0 && value > 0 ? (int)(value / most * room + 0.5) : 0;
    int at = most > 0 && mark > 0 ? (int)(mark / most * room + 0.5) : 0;
    length = length > room ? room : length;
    fprintf(file, "  %-*s", NAME - 2, name);
    for (int i = 0; i < room; i++)
        fputc(i < length ? (i + 1 == at && at < length ? ':' : '#') : ' ', file);
    fprintf(file, " %s\n", text);
}
