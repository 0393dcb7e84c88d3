/* compile_pairs.c - as the header says. */
#include "compile_pairs.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MOST = 256, WORD_BYTES = 48 };

/* An option is 2 * word where a form has the word, and one more where it lacks it. */
typedef struct form {
    int options[WORDS_MOST], count;
} form;

typedef struct pairs {
    char words[WORDS_MOST][WORD_BYTES];
    int count;
    short seen[2 * WORDS_MOST][2 * WORDS_MOST]; /* by so many chosen forms */
} pairs;

static void give_up(const char *what)
{
    fprintf(stderr, "compile_pairs.c: %s: make its bound larger\n", what);
    abort();
}

static int number_of(pairs *p, const char *word, int bytes)
{
    if (bytes >= WORD_BYTES)
        give_up(word);
    for (int i = 0; i < p->count; i++) {
        if (strncmp(p->words[i], word, (size_t)bytes) == 0 && !p->words[i][bytes])
            return i;
    }
    if (p->count == WORDS_MOST)
        give_up(word);
    memcpy(p->words[p->count], word, (size_t)bytes);
    return p->count++;
}

/* Says which words the text has; those that no form had before become known.  The empty one has
 * every form, so that of forms without options one is chosen. */
static void find_words(pairs *p, const char *text, bool has[WORDS_MOST])
{
    memset(has, 0, WORDS_MOST * sizeof *has);
    has[number_of(p, "", 0)] = true;
    while (*(text += strspn(text, " "))) {
        int bytes = (int)strcspn(text, " ");
        has[number_of(p, text, bytes)] = true;
        text += bytes;
    }
}

/* All words are known. */
static form read_form(pairs *p, const char *text)
{
    bool has[WORDS_MOST];
    form f = { .count = 0 };
    find_words(p, text, has);
    for (int i = 0; i < p->count; i++) {
        if (has[i] || !strchr(p->words[i], '='))
            f.options[f.count++] = 2 * i + !has[i];
    }
    return f;
}

/* How many pairs of the form's options were in none before. */
static int count_new(const pairs *p, const form *f)
{
    int count = 0;
    for (int i = 0; i < f->count; i++) {
        for (int j = 0; j <= i; j++)
            count += !p->seen[f->options[i]][f->options[j]];
    }
    return count;
}

/* by: 1, or -1 for a form that is chosen no more. */
static void see(pairs *p, const form *f, short by)
{
    for (int i = 0; i < f->count; i++) {
        for (int j = 0; j <= i; j++)
            p->seen[f->options[i]][f->options[j]] += by;
    }
}

/* Whether the chosen form is needed no more: those after it have shown all of its pairs, too. */
static bool is_spare(pairs *p, const form *f)
{
    see(p, f, -1);
    bool spare = count_new(p, f) == 0;
    if (!spare)
        see(p, f, 1);
    return spare;
}

void compile_pairs_choose(const char *const *options, int count, bool *chosen)
{
    pairs *p = calloc(1, sizeof *p);
    form *forms = calloc((size_t)count + 1, sizeof *forms);
    bool ignored[WORDS_MOST];
    if (!p || !forms)
        give_up("memory");
    for (int i = 0; i < count; i++)
        find_words(p, options[i], ignored);
    for (int i = 0; i < count; i++)
        forms[i] = read_form(p, options[i]);
    memset(chosen, 0, (size_t)count * sizeof *chosen);
    for (int most = 1; most > 0;) {
        int best = 0;
        most = 0;
        for (int i = 0; i < count; i++) {
            int new = chosen[i] ? 0 : count_new(p, &forms[i]);
            if (new > most)
                most = new, best = i;
        }
        if (most > 0) {
            chosen[best] = true;
            see(p, &forms[best], 1);
        }
    }
    for (int i = count - 1; i >= 0; i--)
        chosen[i] = chosen[i] && !is_spare(p, &forms[i]);
    free(forms);
    free(p);
}
