/* check_words.c - the checker's signals, which one rank raises, and counters, which many add to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* NULL: not in symmetric memory, or no memory for it: then nothing is known of the word. */
static imx_cpu_check_word *word_at(const void *at, bool make)
{
    imx_cpu_check_piece *piece = imx_cpu_check_piece_of(at);
    if (!piece)
        return NULL;
    imx_cpu_check_word **word = &piece->words[(size_t)((const char *)at - piece->base) / 4];
    if (!*word && make)
        *word = imx_sys.calloc(1, sizeof **word);
    return *word;
}

static void remember(imx_cpu_check_word *word, uint64_t value, const imx_cpu_check_thread *thread)
{
    if (word->count == IMX_CHECK_VALUES) {
        memmove(word->values, word->values + 1, (IMX_CHECK_VALUES - 1) * sizeof word->values[0]);
        word->count--;
    }
    word->values[word->count].value = value;
    word->values[word->count].clock = thread->clock;
    /* A value that many made is made by all of them. */
    if (word->adds && word->count)
        imx_cpu_check_join(&word->values[word->count].clock, &word->values[word->count - 1].clock);
    word->count++;
}

/* ---- what is wrong --------------------------------------------------------------------------- */

/* "signal 3 of rank 1" where it is one of desc.signals of the kernel that the thread runs. */
static void name_signal(const imx_cpu_check_thread *thread, const imx_cpu_check_piece *piece,
                        const uint64_t *signal, char *text, size_t size)
{
    const imbrexd_team *team = thread->team;
    size_t at = (size_t)((const char *)signal - piece->base);
    size_t first = team ? IMBREXD_TEAM_WORDS(team->size) * sizeof *signal : 0;
    if (team && (const char *)team->words[piece->rank] == piece->base && at >= first)
        snprintf(text, size, "signal %zu of rank %d", (at - first) / sizeof *signal, piece->rank);
    else
        snprintf(text, size, "the signal at byte %zu of rank %d's memory", at, piece->rank);
}

/* Whether the thread may raise the word, which was raised before. */
static bool is_its_writer(const imx_cpu_check_thread *thread, const imx_cpu_check_word *word,
                          const uint64_t *signal, uint64_t value, int adds)
{
    const imx_cpu_check_piece *piece = imx_cpu_check_piece_of(signal);
    char who[120], before[120], which[80];
    imx_cpu_check_mark mark = imx_cpu_check_mark_of(thread);
    imx_cpu_check_name(&mark, who, sizeof who);
    imx_cpu_check_name(&word->last, before, sizeof before);
    name_signal(thread, piece, signal, which, sizeof which);
    imbrexd_wait_point point = { .rank = piece->rank, .index = -1 };
    uint64_t have = word->values[word->count - 1].value, next = adds ? have + value : value;
    if (word->adds != (adds != 0))
        imx_cpu_check_report(thread, point,
                             "%s %s %s, which %s %s: a word is posted by one, or a counter that "
                             "all add to",
                             who, adds ? "adds to" : "posts", which, before,
                             adds ? "posted" : "added to");
    else if (next < have)
        imx_cpu_check_report(thread, point, "%s lowers %s from %llu to %llu", who, which,
                             (unsigned long long)have, (unsigned long long)next);
    else if (!adds && (word->last.rank != mark.rank || !imx_cpu_check_before(&word->last, thread)))
        imx_cpu_check_report(thread, point, "%s has two writers: %s, and before, %s", which, who,
                             before);
    else
        return true;
    return false;
}

static bool is_place(const imx_cpu_check_piece *piece, size_t from, size_t to)
{
    int i = 0;
    while (i < piece->place_count && (from < piece->places[i].from || to > piece->places[i].to))
        i++;
    return i < piece->place_count;
}

/* Not at a multiple of its size, which a GPU would not take and this processor does; or among a
 * plan's data. */
static void check_place(const imx_cpu_check_thread *thread, const void *word, size_t bytes,
                        const char *does)
{
    const imx_cpu_check_piece *piece = imx_cpu_check_piece_of(word);
    char who[120];
    if (!piece)
        return;
    size_t at = (size_t)((const char *)word - piece->base);
    bool even = (uintptr_t)word % bytes == 0;
    if (even && (!piece->own || is_place(piece, at, at + bytes)))
        return;
    imbrexd_wait_point point = { .rank = piece->rank, .index = -1 };
    imx_cpu_check_mark mark = imx_cpu_check_mark_of(thread);
    imx_cpu_check_name(&mark, who, sizeof who);
    if (!even)
        imx_cpu_check_report(thread, point,
                             "%s %s a signal at byte %zu of rank %d's memory: want a multiple of "
                             "%zu",
                             who, does, at, piece->rank, bytes);
    else
        imx_cpu_check_report(thread, point,
                             "%s %s a signal at byte %zu of rank %d's memory, where the plan has "
                             "none",
                             who, does, at, piece->rank);
}

/* ---- posts ----------------------------------------------------------------------------------- */

void imx_cpu_check_post(uint64_t *signal, uint64_t value, int adds)
{
    imx_cpu_check_lock();
    imx_cpu_check_thread *thread = imx_cpu_check_self();
    imx_cpu_check_word *word = thread ? word_at(signal, true) : NULL;
    if (thread)
        check_place(thread, signal, sizeof *signal, adds ? "adds to" : "posts");
    if (word && (!word->count || is_its_writer(thread, word, signal, value, adds))) {
        if (adds) /* relaxed: only the first time, before anybody has added */
            value += word->count ? word->values[word->count - 1].value
                                 : __atomic_load_n(signal, __ATOMIC_RELAXED);
        word->adds = adds;
        remember(word, value, thread);
        word->last = imx_cpu_check_mark_of(thread);
    }
    if (thread)
        imx_cpu_check_advance(thread);
    imx_cpu_check_unlock();
}

/* ---- waits ----------------------------------------------------------------------------------- */

void imx_cpu_check_wait(const uint64_t *signal, imbrexd_compare compare, uint64_t value,
                        imbrexd_wait_point point)
{
    imx_cpu_check_lock();
    imx_cpu_check_thread *thread = imx_cpu_check_self();
    if (thread) {
        check_place(thread, signal, sizeof *signal, "waits for");
        thread->waiting = true;
        thread->signal = signal;
        thread->compare = compare;
        thread->value = value;
        thread->point = point;
        if (point.plan && point.what < IMBREXD_POINT_SIGNAL)
            thread->plan = point.plan;
    }
    imx_cpu_check_unlock();
}

/* A value that nobody here raised, a fence: it may order anything that was done so far. */
static void take_all(imx_cpu_check_thread *thread)
{
    imx_cpu_check_join(&thread->clock, &imx_cpu_check.ended);
    for (imx_cpu_check_thread *t = imx_cpu_check.threads; t; t = t->next) {
        if (t == thread)
            continue;
        imx_cpu_check_join(&thread->clock, &t->clock);
        imx_cpu_check_advance(t);
    }
}

void imx_cpu_check_fence(void)
{
    imx_cpu_check_lock();
    imx_cpu_check_thread *thread = imx_cpu_check_self();
    if (thread)
        take_all(thread);
    imx_cpu_check_unlock();
}

static void take_value(imx_cpu_check_thread *thread)
{
    const imx_cpu_check_word *word = word_at(thread->signal, false);
    if (imbrexd_holds(0, thread->compare, thread->value))
        return; /* as it was at first */
    for (int i = 0; word && i < word->count; i++) {
        if (imbrexd_holds(word->values[i].value, thread->compare, thread->value)) {
            imx_cpu_check_join(&thread->clock, &word->values[i].clock);
            return;
        }
    }
    take_all(thread);
}

void imx_cpu_check_came(int arrived)
{
    imx_cpu_check_lock();
    imx_cpu_check_thread *thread = imx_cpu_check_self();
    if (thread && thread->waiting && arrived)
        take_value(thread);
    if (thread)
        thread->waiting = false;
    imx_cpu_check_unlock();
}

void imx_cpu_check_count(uint32_t *counter, int last)
{
    imx_cpu_check_lock();
    imx_cpu_check_thread *thread = imx_cpu_check_self();
    imx_cpu_check_word *word = thread ? word_at(counter, true) : NULL;
    if (thread)
        check_place(thread, counter, sizeof *counter, "counts in");
    if (word && last) {
        imx_cpu_check_join(&thread->clock, &word->values[0].clock);
    } else if (word) {
        imx_cpu_check_join(&word->values[0].clock, &thread->clock);
        imx_cpu_check_advance(thread);
    }
    imx_cpu_check_unlock();
}
