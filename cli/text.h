/* text.h - writes strings for a terminal, in lines and bars of its width, inside JSON, and inside
 * SVG or HTML. */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Names come from files and command lines: each control character, which a terminal might obey, be
 * it of one byte or of C1 as UTF-8, becomes a question mark.  lines: but for newline and tab. */
void text_harmless(char *text, bool lines);

/* As vprintf's, made harmless, with the lines and tabs that it has; for free().  NULL: there is no
 * memory, and standard error says so. */
char *text_made(const char *format, va_list args) __attribute__((format(printf, 1, 0)));

/* As fprintf, made harmless likewise. */
void text_say(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Quoted and escaped, control characters too; a byte that is not UTF-8 becomes U+FFFD. */
void text_json(FILE *file, const char *text, size_t length);

/* null if it is no finite number: JSON has none else. */
void text_json_number(FILE *file, double value);

/* A line of an object, "key": value and what ends it: "," where another follows. */
void text_json_string_line(FILE *file, const char *key, const char *value, const char *end);
void text_json_number_line(FILE *file, const char *key, double value, const char *end);

/* Fit for an element or a double-quoted attribute; control characters and bytes that are not UTF-8
 * become U+FFFD. */
void text_markup(FILE *file, const char *text, size_t length);

/* ---- For people: no wider than the terminal, and no wider than 100 columns ------------------- */

enum { TEXT_WIDTH = 100, TEXT_WIDTH_LEAST = 40 };

/* Columns of a line: the terminal's if file is one, from TEXT_WIDTH_LEAST to TEXT_WIDTH. */
int text_width(FILE *file);

/* As text_say, but a line that is too long goes on in the next, below column `indent`.  A word that
 * does not fit any line stays whole. */
void text_wrap(FILE *file, int indent, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A row of a bar chart: a name, a bar of `value`, `text` behind it.  most: what fills the line;
 * mark: where a colon stands, if the bar reaches that. */
void text_bar(FILE *file, const char *name, double value, double mark, double most,
              const char *text);

#endif /* CLI_TEXT_H */
