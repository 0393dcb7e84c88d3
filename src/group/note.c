/* note.c - a text under a counter: who reads it sees by the counter whether it was changed
 * meanwhile. */
#include "note.h"

#include <string.h>

/* text as people may see it. */
static void clean_up(const char *text, char clean[IMX_NOTE_BYTES])
{
    size_t length = 0;
    while (*text && length < IMX_NOTE_BYTES - 1) {
        size_t control = imx_status_control(text);
        clean[length++] = control ? '?' : *text;
        text += control ? control : 1;
    }
    /* Not in the middle of a character: its bytes after the first are 10xxxxxx. */
    while (length > 0 && ((unsigned char)*text & 0xc0) == 0x80) {
        text--;
        length--;
    }
    clean[length] = '\0';
}

/* Byte by byte, since another thread or process may be reading.  release, and acquire where they
 * are read: who sees one of these bytes sees the counter as it was set before them, and so that it
 * read in vain. */
static void put(imx_note *note, const char *text)
{
    char clean[IMX_NOTE_BYTES];
    clean_up(text, clean);
    size_t bytes = strlen(clean) + 1;
    for (size_t i = 0; i < bytes; i++)
        __atomic_store_n(&note->text[i], clean[i], __ATOMIC_RELEASE);
}

void imx_note_write_once(imx_note *note, const char *text)
{
    uint32_t unused = 0;
    if (!__atomic_compare_exchange_n(&note->state, &unused, 1, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    put(note, text);
    __atomic_store_n(&note->state, 2, __ATOMIC_RELEASE);
}

void imx_note_write(imx_note *note, const char *text)
{
    uint32_t state = note->state;
    __atomic_store_n(&note->state, state + 1, __ATOMIC_RELAXED);
    put(note, text);
    __atomic_store_n(&note->state, state + 2, __ATOMIC_RELEASE);
}

bool imx_note_read(const imx_note *note, char text[IMX_NOTE_BYTES])
{
    uint32_t state = __atomic_load_n(&note->state, __ATOMIC_ACQUIRE);
    if (state == 0 || state % 2)
        return false;
    size_t i = 0;
    do
        text[i] = __atomic_load_n(&note->text[i], __ATOMIC_ACQUIRE);
    while (text[i++] && i < IMX_NOTE_BYTES);
    text[IMX_NOTE_BYTES - 1] = '\0';
    return text[0] && __atomic_load_n(&note->state, __ATOMIC_RELAXED) == state;
}
