/* table.h - text and bars for people, no wider than the terminal and no wider than 100 columns. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdio.h>

enum { TABLE_WIDTH = 100, TABLE_WIDTH_LEAST = 40 };

/* Columns of a line: the terminal's if file is one, from TABLE_WIDTH_LEAST to TABLE_WIDTH. */
int table_width(FILE *file);

/* As text_say, but a line that is too long goes on in the next, below column `indent`.  A word that
 * does not fit any line stays whole. */
void table_say(FILE *file, int indent, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A row of a bar chart: a name, a bar of `value`, `text` behind it.  most: what fills the line;
 * mark: where a colon stands, if the bar reaches that. */
void table_bar(FILE *file, const char *name, double value, double mark, double most,
               const char *text);

#endif /* CLI_TABLE_H */
