/* options.c - reads a command line against a table of options. */
#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "text.h"

enum { HELP_COLUMN = 28, WORD_MAX = 32 };

static bool help_wanted;
static const option help_option = { "help", 'h', .flag = &help_wanted, .help = "print this page" };

int options_wrong(const options_page *page, const char *format, ...)
{
    va_list args;
    char *text = NULL;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    va_end(args);
    if (text)
        text_harmless(text, false);
    fprintf(stderr, "imbrex %s: %s\nTry 'imbrex %s --help'.\n", page->command,
            text ? text : "out of memory", page->command);
    free(text);
    return OPTIONS_WRONG;
}

int options_split(const options_page *page, const char *name, const char *text, int most,
                  options_list *out)
{
    char *rest = NULL;
    *out = (options_list){ .text = strdup(text) };
    if (!out->text)
        return options_wrong(page, "out of memory");
    for (char *word = strtok_r(out->text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (out->count == most)
            return options_wrong(page, "--%s names more than %d", name, most);
        out->words[out->count++] = word;
    }
    return out->count ? 0 : options_wrong(page, "--%s names none", name);
}

void options_list_free(options_list *list)
{
    free(list->text);
    *list = (options_list){ 0 };
}

int options_exit(int outcome)
{
    return outcome == OPTIONS_HELPED ? CLI_OK : CLI_USAGE;
}

/* Levenshtein's distance, a row at a time. */
int options_distance(const char *a, const char *b)
{
    size_t columns = strlen(b);
    int row[WORD_MAX + 1];
    if (strlen(a) > WORD_MAX || columns > WORD_MAX)
        return WORD_MAX;
    for (size_t j = 0; j <= columns; j++)
        row[j] = (int)j;
    for (size_t i = 0; a[i]; i++) {
        int diagonal = row[0]++;
        for (size_t j = 0; j < columns; j++) {
            int change = diagonal + (a[i] != b[j]);
            int gap = 1 + (row[j] < row[j + 1] ? row[j] : row[j + 1]);
            diagonal = row[j + 1];
            row[j + 1] = change < gap ? change : gap;
        }
    }
    return row[columns];
}

int options_index(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return 0;
}

static const option *next(const option *o)
{
    o++;
    return !o->name && o->more ? o->more : o;
}

/* ---- Help ------------------------------------------------------------------------------------ */

static void print_option(const option *o)
{
    char left[80];
    const char *value = o->metavar ? o->metavar : o->choices;
    snprintf(left, sizeof left, "  %c%c%s--%s%s%s", o->letter ? '-' : ' ',
             o->letter ? o->letter : ' ', o->letter ? ", " : "  ", o->name, value ? " " : "",
             value ? value : "");
    const char *line = o->help;
    const char *end = strchrnul(line, '\n');
    if (strlen(left) + 2 > HELP_COLUMN) {
        puts(left);
        left[0] = 0;
    }
    printf("%-*s%.*s\n", HELP_COLUMN, left, (int)(end - line), line);
    while (*end) {
        line = end + 1;
        end = strchrnul(line, '\n');
        printf("%*s%.*s\n", HELP_COLUMN, "", (int)(end - line), line);
    }
}

static int print_help(const options_page *page)
{
    printf("usage: imbrex %s %s\n", page->command, page->synopsis);
    if (page->about)
        text_wrap(stdout, 0, "\n%s\n", page->about);
    puts("\noptions:");
    for (const option *o = page->options; o->name; o = next(o))
        print_option(o);
    print_option(&help_option);
    if (page->notes)
        printf("\n%s\n", page->notes);
    return OPTIONS_HELPED;
}

/* NULL: it was never one. */
static const char *instead_of(const options_page *page, const char *name)
{
    for (const option_gone *g = page->gone; g && g->name; g++)
        if (strcmp(g->name, name) == 0)
            return g->instead;
    return NULL;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static int wrong_value(const options_page *page, const option *o, const char *value)
{
    char words[2 * WORD_MAX];
    snprintf(words, sizeof words, "%s %s", o->name, value);
    if (instead_of(page, words))
        return options_wrong(page, "no option --%s any more: %s", words, instead_of(page, words));
    const char *what = o->text ? "one of" : o->integer ? "a whole number" : "a number";
    if (o->text)
        return options_wrong(page, "--%s is '%s': want %s %s", o->name, value, what, o->choices);
    if (o->min == o->max)
        return options_wrong(page, "--%s is '%s': want %s", o->name, value, what);
    if (isinf(o->max))
        return options_wrong(page, "--%s is '%s': want %s, at least %.15g", o->name, value, what,
                             o->min);
    return options_wrong(page, "--%s is '%s': want %s from %.15g to %.15g", o->name, value, what,
                         o->min, o->max);
}

static bool is_choice(const char *choices, const char *value)
{
    size_t length = strlen(value);
    while (length) {
        size_t word = strcspn(choices, "|");
        if (word == length && memcmp(choices, value, length) == 0)
            return true;
        if (!choices[word])
            break;
        choices += word + 1;
    }
    return false;
}

static bool in_limits(const option *o, double value)
{
    return o->min == o->max || (value >= o->min && value <= o->max);
}

/* Returns 0, or what options_wrong returns. */
static int set_value(const options_page *page, const option *o, const char *value)
{
    char *end;
    errno = 0;
    if (o->text) {
        if (o->choices && !is_choice(o->choices, value))
            return wrong_value(page, o, value);
        *o->text = value;
        return 0;
    }
    if (o->integer) {
        long long number = strtoll(value, &end, 10);
        if (end == value || *end || errno || !in_limits(o, (double)number))
            return wrong_value(page, o, value);
        *o->integer = number;
        return 0;
    }
    double number = strtod(value, &end);
    if (end == value || *end || !isfinite(number) || !in_limits(o, number))
        return wrong_value(page, o, value);
    *o->real = number;
    return 0;
}

/* ---- The command line ------------------------------------------------------------------------ */

static const option *find_name(const options_page *page, const char *name, size_t length)
{
    for (const option *o = page->options; o->name; o = next(o))
        if (strlen(o->name) == length && memcmp(o->name, name, length) == 0)
            return o;
    return length == 4 && memcmp(name, "help", 4) == 0 ? &help_option : NULL;
}

static const option *find_letter(const options_page *page, char letter)
{
    for (const option *o = page->options; o->name; o = next(o))
        if (o->letter == letter)
            return o;
    return letter == 'h' ? &help_option : NULL;
}

static int unknown_name(const options_page *page, const char *name, size_t length)
{
    char given[WORD_MAX + 1];
    const char *nearest = NULL;
    int least = 3;
    snprintf(given, sizeof given, "%.*s", (int)length, name);
    if (instead_of(page, given))
        return options_wrong(page, "no option --%s any more: %s", given, instead_of(page, given));
    for (const option *o = page->options; o->name; o = next(o)) {
        int distance = options_distance(given, o->name);
        if (distance < least) {
            least = distance;
            nearest = o->name;
        }
    }
    if (nearest)
        return options_wrong(page, "no option --%s; did you mean --%s?", given, nearest);
    return options_wrong(page, "no option --%s", given);
}

/* One "--name[=value]"; *at is moved past a value of its own. */
static int parse_long(const options_page *page, char **argv, int argc, int *at)
{
    const char *name = argv[*at] + 2;
    size_t length = strcspn(name, "=");
    const char *value = name[length] ? name + length + 1 : NULL;
    const option *o = find_name(page, name, length);
    if (!o)
        return unknown_name(page, name, length);
    if (o->flag) {
        *o->flag = true;
        return value ? options_wrong(page, "--%s takes no value", o->name) : 0;
    }
    if (!value && *at + 1 < argc)
        value = argv[++*at];
    if (!value)
        return options_wrong(page, "--%s needs a value", o->name);
    return set_value(page, o, value);
}

/* One "-abc" or "-n4" or "-n 4". */
static int parse_letters(const options_page *page, char **argv, int argc, int *at)
{
    for (const char *letter = argv[*at] + 1; *letter; letter++) {
        const option *o = find_letter(page, *letter);
        const char name[] = { *letter, 0 };
        if (!o && instead_of(page, name))
            return options_wrong(page, "no option -%c any more: %s", *letter,
                                 instead_of(page, name));
        if (!o)
            return options_wrong(page, "no option -%c", *letter);
        if (o->flag) {
            *o->flag = true;
            continue;
        }
        const char *value = letter[1] ? letter + 1 : *at + 1 < argc ? argv[++*at] : NULL;
        if (!value)
            return options_wrong(page, "-%c needs a value", *letter);
        return set_value(page, o, value);
    }
    return 0;
}

int options_parse(const options_page *page, int argc, char **argv)
{
    int count = 0;
    bool more = true; /* options may still come */
    help_wanted = false;
    for (int at = 1; at < argc; at++) {
        const char *word = argv[at];
        int outcome = 0;
        if (!more || word[0] != '-' || !word[1]) {
            argv[++count] = argv[at];
            more = more && !page->leading;
        } else if (strcmp(word, "--") == 0) {
            more = false;
        } else if (word[1] == '-') {
            outcome = parse_long(page, argv, argc, &at);
        } else {
            outcome = parse_letters(page, argv, argc, &at);
        }
        if (help_wanted)
            return print_help(page);
        if (outcome < 0)
            return outcome;
    }
    if (!page->leading && count > page->most)
        return options_wrong(page, "what is '%s'?", argv[page->most + 1]);
    return count;
}
