/* check_stuck.c - finds waits that nobody will satisfy.
 *
 * A rank is stuck if its host waits for a stream, none of its threads runs, and those that wait do
 * so for stuck ranks.  Ranks that are left when all others have been ruled out wait for ever. */
#include <stdio.h>

#include "check.h"

enum { RANKS_MOST = 64 };

/* Ranks of one process share the memory of their abort words, so rank 0's says which group. */
static const uint64_t *group_of(const imx_device *device)
{
    return device->watch->abort[0];
}

static bool is_held(const imx_cpu_check_thread *t)
{
    return t->waiting && !imbrexd_holds(imbrexd_look(t->signal), t->compare, t->value);
}

/* Not yet; whoever is being woken up runs.  Events have passed `until` where they were recorded
 * again, blocks are counted down to it. */
static bool is_passive(const imx_cpu_check_thread *t)
{
    return t->passive &&
           (t->until ? (int32_t)(__atomic_load_n(t->passive, __ATOMIC_ACQUIRE) - t->until) < 0
                     : __atomic_load_n(t->passive, __ATOMIC_ACQUIRE) != 0);
}

static bool runs(const imx_cpu_check_thread *t)
{
    return t->work > 0 && !is_passive(t) && !is_held(t);
}

/* By itself, whoever it waits for. */
static bool is_still(int rank, const uint64_t *group)
{
    bool waits = false;
    for (const imx_cpu_check_thread *t = imx_cpu_check.threads; t; t = t->next) {
        if (t->device->rank != rank || group_of(t->device) != group)
            continue;
        const imx_cpu_check_thread *awaited = t->device->check->awaited;
        if (runs(t) || !awaited || !awaited->work)
            return false;
        waits = waits || is_held(t);
    }
    return waits;
}

static bool waits_for_stuck(const imx_cpu_check_thread *t, const bool *stuck, int size)
{
    if (t->point.rank >= 0)
        return t->point.rank < size && stuck[t->point.rank];
    for (int r = 0; r < size; r++) { /* nobody says for whom */
        if (!stuck[r])
            return false;
    }
    return true;
}

/* Rules out ranks that may yet be let go. */
static bool rule_out(const uint64_t *group, bool *stuck, int size)
{
    bool changed = false;
    for (const imx_cpu_check_thread *t = imx_cpu_check.threads; t; t = t->next) {
        int rank = t->device->rank;
        if (group_of(t->device) != group || !stuck[rank] || !is_held(t) ||
            waits_for_stuck(t, stuck, size))
            continue;
        stuck[rank] = false;
        changed = true;
    }
    return changed;
}

static const imx_cpu_check_thread *waiting_thread(int rank, const uint64_t *group)
{
    const imx_cpu_check_thread *t = imx_cpu_check.threads;
    while (t && !(t->device->rank == rank && group_of(t->device) == group && is_held(t)))
        t = t->next;
    return t;
}

static void describe_cycle(const imx_cpu_check_thread *first, int size, imx_text *text)
{
    bool seen[RANKS_MOST] = { false };
    const imx_cpu_check_thread *t = first;
    imx_text_add(text, " rank %d", t->device->rank);
    for (int i = 0; i < size && t; i++) {
        int rank = t->device->rank, next = t->point.rank;
        imx_text_add(text, "%s waits for", i ? ", which" : "");
        seen[rank] = true;
        if (next < 0 || next == rank) {
            imx_text_add(text, next < 0 ? " whoever comes, and no rank can" : " itself");
            return;
        }
        imx_text_add(text, " rank %d", next);
        if (t->point.what == IMBREXD_POINT_SIGNAL && t->point.index >= 0)
            imx_text_add(text, " (signal %d)", t->point.index);
        t = seen[next] ? NULL : waiting_thread(next, group_of(first->device));
    }
}

void imx_cpu_check_held(void)
{
    imx_cpu_check_lock();
    uint64_t progress = imx_cpu_check.progress;
    imx_cpu_check_thread *thread = imx_cpu_check_self();
    imx_cpu_check.progress = progress; /* to look is none */
    int size = thread ? thread->device->watch->size : 0;
    bool stuck[RANKS_MOST];
    if (thread && thread->looked == progress && size <= RANKS_MOST && is_held(thread)) {
        const uint64_t *group = group_of(thread->device);
        for (int r = 0; r < size; r++)
            stuck[r] = is_still(r, group);
        while (rule_out(group, stuck, size))
            ;
        if (stuck[thread->device->rank]) {
            char words[400] = "";
            imx_text text = { .at = words, .size = sizeof words };
            imx_user_describe_late("; ", thread->team ? thread->team->watch.late : 0, &text);
            imx_text_add(&text, "):");
            describe_cycle(thread, size, &text);
            imx_cpu_check_report(
                thread, thread->point,
                "a wait that nobody will satisfy (the signal is %llu, not yet %llu%s",
                (unsigned long long)imbrexd_look(thread->signal), (unsigned long long)thread->value,
                words);
        }
    }
    if (thread)
        thread->looked = progress;
    imx_cpu_check_unlock();
}
