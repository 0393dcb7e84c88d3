/* tuning_cache.h - what imbrex_tune found, kept in a file for later plans: one line a case.
 *
 *     | version | device | links | ranks | operator, shape | algorithm, chunk | us | date | digest
 *     '------------------------ key -----------------------'
 *
 * A line is used for the case of its key alone, and only if its digest is right; the key is
 * compared as text.  Rank 0 reads the file and tells the others (imx_agree_noted), so that ranks
 * whose files differ still make one plan.
 */
#ifndef IMX_TUNING_CACHE_H
#define IMX_TUNING_CACHE_H

#include "request.h"

/* What a variant is to take. */
typedef struct imx_tuning_choice {
    const imx_algorithm *algorithm; /* the first of its name; NULL: nothing was measured */
    int chunk_rows;                 /* 0: as the variant chooses */
} imx_tuning_choice;

/* Local: what is known of a case, if anything.  Adds to why, in words, that it was measured, or why
 * a file that is there does not count. */
void imx_tuning_cache_recall(const imbrex_group *group, const imx_request *request,
                             imx_tuning_choice *out, imx_text *why);

/* Whether imx_tuning_cache_keep would find a folder to write to; SYSTEM and why not. */
imbrex_status imx_tuning_cache_check(const imbrex_group *group) IMX_MUST_CHECK;

/* Puts a case's line in the place of the one before.  figures: what was measured, in words. */
imbrex_status imx_tuning_cache_keep(const imbrex_group *group, const imx_request *request,
                                    const char *algorithm, int chunk_rows,
                                    const char *figures) IMX_MUST_CHECK;

/* Adds the line of `imbrex info`. */
void imx_tuning_cache_info(const char *wanted, imx_text *text);

#endif /* IMX_TUNING_CACHE_H */
