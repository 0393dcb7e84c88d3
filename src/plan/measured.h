/* measured.h - what imbrex_tune found, kept in a file for later plans: one line a case.
 *
 *     | version | device | links | ranks | operator, shape | algorithm, chunk | us | date | digest
 *     '------------------------ key -----------------------'
 *
 * A line is used for the case of its key alone, and only if its digest is right; the key is
 * compared as text.  Rank 0 reads the file and tells the others (imx_agree_noted), so that ranks
 * whose files differ still make one plan.
 */
#ifndef IMX_MEASURED_H
#define IMX_MEASURED_H

#include "plan.h"

/* What a variant is to take. */
typedef struct imx_measured {
    const imx_algorithm *algorithm; /* the first of its name; NULL: nothing was measured */
    int chunk_rows;                 /* 0: as the variant chooses */
} imx_measured;

/* Local: what is known of a case, if anything.  Adds to why, in words, that it was measured, or why
 * a file that is there does not count. */
void imx_measured_recall(const imbrex_group *group, const imx_request *request, imx_measured *out,
                         imx_text *why);

/* Whether imx_measured_keep would find a folder to write to; SYSTEM and why not. */
imbrex_status imx_measured_check(const imbrex_group *group) IMX_MUST_CHECK;

/* Puts a case's line in the place of the one before.  figures: what was measured, in words. */
imbrex_status imx_measured_keep(const imbrex_group *group, const imx_request *request,
                                const char *algorithm, int chunk_rows,
                                const char *figures) IMX_MUST_CHECK;

/* Adds the line of `imbrex info`. */
void imx_measured_info(const char *wanted, imx_text *text);

#endif /* IMX_MEASURED_H */
