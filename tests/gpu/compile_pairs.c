/* compile_pairs.c - as the header says. */
#include "compile_pairs.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MOST = 256, WORD_BYTES = 48, FORM_WORDS_MOST = 64 };

/* An option is 2 * word where a form has the word, and one more where it lacks it. */
typedef struct pairs {
    char words[WORDS_MOST][WORD_BYTES];
    int count;
    bool seen[2 * WORDS_MOST][2 * WORDS_MOST];
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

/* The words of a form, and how many. */
static int words_of(pairs *p, const char *form, int words[FORM_WORDS_MOST])
{
    int count = 0;
    while (*(form += strspn(form, " "))) {
        int bytes = (int)strcspn(form, " ");
        if (count == FORM_WORDS_MOST)
            give_up(form);
        words[count++] = number_of(p, form, bytes);
        form += bytes;
    }
    return count;
}

static bool is_among(const int *words, int count, int word)
{
    while (count-- > 0) {
        if (words[count] == word)
            return true;
    }
    return false;
}

/* Whether the form has two options that were not together before; now they are. */
static bool adds(pairs *p, const char *form)
{
    int words[FORM_WORDS_MOST], count = words_of(p, form, words);
    int options[WORDS_MOST], number = 0;
    for (int i = 0; i < p->count; i++) {
        bool has = is_among(words, count, i);
        if (has || !strchr(p->words[i], '='))
            options[number++] = 2 * i + !has;
    }
    bool new = false;
    for (int i = 0; i < number; i++) {
        for (int j = 0; j <= i; j++) {
            new |= !p->seen[options[i]][options[j]];
            p->seen[options[i]][options[j]] = true;
        }
    }
    return new;
}

void compile_pairs_choose(const char *const *options, int count, bool *chosen)
{
    pairs *p = calloc(1, sizeof *p);
    int ignored[FORM_WORDS_MOST], most = 0;
    if (!p)
        give_up("memory");
    for (int i = 0; i < count; i++) {
        int words = words_of(p, options[i], ignored);
        most = words > most ? words : most;
    }
    for (int words = most; words >= 0; words--) {
        for (int i = 0; i < count; i++) {
            if (words_of(p, options[i], ignored) == words)
                chosen[i] = adds(p, options[i]);
        }
    }
    free(p);
}
