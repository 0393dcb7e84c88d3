/* kept.c - each thread has its own pieces: what one lets go and another takes would order the two,
 * and so hide races from ThreadSanitizer. */
#include "kept.h"

#include <pthread.h>
#include <stdlib.h>

#include "sanitized.h"

#if SANITIZED_ADDRESSES
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { LEAST = 4096, PIECES_MOST = 32 };

/* Before each piece, which is aligned as malloc's. */
typedef struct head {
    _Alignas(max_align_t) struct head *next;
    size_t room; /* bytes, a power of two; 0: it is small, and nobody keeps it */
    size_t used;
} head;

static _Thread_local head *idle; /* the smallest first */
static _Thread_local int idle_count;
static pthread_key_t key; /* its value is idle, once more */

static void end(void *first)
{
    for (head *at = first, *next; at; at = next) {
        next = at->next;
        free(at);
    }
}

static void begin(void)
{
    pthread_key_create(&key, end);
}

/* The first that has room, taken out of the list; or NULL. */
static head *find(size_t bytes)
{
    head **at = &idle, *found;
    while (*at && (*at)->room < bytes)
        at = &(*at)->next;
    if (!(found = *at))
        return NULL;
    *at = found->next;
    idle_count--;
    pthread_setspecific(key, idle);
    return found;
}

static head *make(size_t bytes)
{
    size_t room = bytes < LEAST ? 0 : LEAST;
    while (room && room < bytes)
        room *= 2;
    head *made = malloc(sizeof *made + (room ? room : bytes));
    if (!made)
        abort();
    made->room = room;
    ASAN_POISON_MEMORY_REGION(made + 1, room);
    return made;
}

void *kept_take(size_t bytes)
{
    head *piece = bytes < LEAST ? NULL : find(bytes);
    if (!piece)
        piece = make(bytes);
    piece->used = bytes;
    ASAN_UNPOISON_MEMORY_REGION(piece + 1, bytes);
    return piece + 1;
}

/* Of too many the smallest goes: what is larger serves in its place. */
static void keep(head *piece)
{
    head **at = &idle;
    while (*at && (*at)->room < piece->room)
        at = &(*at)->next;
    piece->next = *at;
    *at = piece;
    if (++idle_count > PIECES_MOST)
        free(find(0));
    pthread_setspecific(key, idle);
}

void kept_drop(void *piece)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    head *gone = piece ? (head *)piece - 1 : NULL;
    if (!gone || !gone->room) {
        free(gone);
        return;
    }
    pthread_once(&once, begin);
    ASAN_POISON_MEMORY_REGION(piece, gone->used);
    keep(gone);
}
