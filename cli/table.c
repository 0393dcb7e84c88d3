/* table.c - breaks lines between words, and draws bars. */
#define _GNU_SOURCE
#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "text.h"

int table_width(FILE *file)
{
    struct winsize window;
    int fd = fileno(file);
    if (fd < 0 || !isatty(fd) || ioctl(fd, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 ||
        window.ws_col > TABLE_WIDTH)
        return TABLE_WIDTH;
    return window.ws_col < TABLE_WIDTH_LEAST ? TABLE_WIDTH_LEAST : window.ws_col;
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

void table_say(FILE *file, int indent, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = text_made(format, args);
    va_end(args);
    int width = table_width(file);
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

void table_bar(FILE *file, const char *name, double value, double mark, double most,
               const char *text)
{
    enum { NAME = 15, TEXT = 10 };
    int room = table_width(file) - NAME - TEXT;
    int length = most > 0 && value > 0 ? (int)(value / most * room + 0.5) : 0;
    int at = most > 0 && mark > 0 ? (int)(mark / most * room + 0.5) : 0;
    length = length > room ? room : length;
    fprintf(file, "  %-*s", NAME - 2, name);
    for (int i = 0; i < room; i++)
        fputc(i < length ? (i + 1 == at && at < length ? ':' : '#') : ' ', file);
    fprintf(file, " %s\n", text);
}
