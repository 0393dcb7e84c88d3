/* text.h - writes strings inside JSON and inside SVG or HTML. */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* Quoted and escaped; a byte that is not UTF-8 becomes U+FFFD. */
void text_json(FILE *file, const char *text, size_t length);

/* null if it is no finite number: JSON has none else. */
void text_json_number(FILE *file, double value);

/* Fit for an element or a double-quoted attribute; control characters and bytes that are not UTF-8
 * become U+FFFD. */
void text_markup(FILE *file, const char *text, size_t length);

#endif /* CLI_TEXT_H */
