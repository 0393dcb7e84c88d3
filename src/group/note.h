/* note.h - a sentence that one rank leaves in its memory for others to read, whenever they do. */
#ifndef IMX_NOTE_H
#define IMX_NOTE_H

#include "base/imx.h"

enum { IMX_NOTE_BYTES = 256 };

typedef struct imx_note {
    uint32_t state; /* atomic; 0: nobody has written, odd: somebody is writing */
    char text[IMX_NOTE_BYTES];
} imx_note;

/* The first text stays: whoever comes later, from any thread, changes nothing.  Here and below,
 * control characters become '?', and what does not fit is cut, between two characters. */
void imx_note_write_once(imx_note *note, const char *text);

/* Takes the place of what was there; "": as if there were nothing.  One thread at a time. */
void imx_note_write(imx_note *note, const char *text);

/* Whether there is something, and nobody is writing. */
bool imx_note_read(const imx_note *note, char text[IMX_NOTE_BYTES]);

#endif /* IMX_NOTE_H */
