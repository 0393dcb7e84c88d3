/* env_unknown.c - finds variables that look like ours and that nobody reads: misspelt ones. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "imx.h"

enum { NAME_MOST = 40, NEAR = 2 };

static const char *const known[] = {
#define NAME(field, variable, kind, fallback, what) variable,
    IMX_ENV_TABLE(NAME)
#undef NAME
    /* the tool's and the Python module's */
    "IMBREX_CUBLASLT",
    "IMBREX_LAUNCHED",
    "IMBREX_LIBRARY",
    "IMBREX_VLLM",
};

enum { KNOWN = sizeof known / sizeof known[0] };

/* Levenshtein's distance, a row at a time; upper and lower case differ in nothing. */
static int distance(const char *a, const char *b)
{
    int row[NAME_MOST + 1], columns = (int)strlen(b);
    for (int j = 0; j <= columns; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0]++;
        for (int j = 0; j < columns; j++) {
            int change = diagonal + (toupper((unsigned char)a[i]) != toupper((unsigned char)b[j]));
            int gap = 1 + (row[j] < row[j + 1] ? row[j] : row[j + 1]);
            diagonal = row[j + 1];
            row[j + 1] = change < gap ? change : gap;
        }
    }
    return row[columns];
}

/* Whether name is one of ours, or how many slips it is from the nearest. */
static bool is_known(const char *name, int *least, const char **nearest)
{
    *least = NAME_MOST;
    *nearest = NULL;
    for (int i = 0; i < KNOWN; i++) {
        int d = distance(name, known[i]);
        if (strcmp(name, known[i]) == 0)
            return true;
        if (d < *least) {
            *least = d;
            *nearest = known[i];
        }
    }
    return false;
}

/* slips: names that are further from all of ours are passed over; 0: none that begin as ours. */
static void look_at(const char *name, int slips, const char *before, imx_text *text)
{
    int least;
    const char *nearest;
    if (is_known(name, &least, &nearest) || (slips && least > slips) ||
        (least > NEAR && strncasecmp(name, "IMBREX_", 7) != 0))
        return;
    imx_text_add(text, "%s%s: read by nobody here", before, name);
    if (least <= 2 * NEAR)
        imx_text_add(text, "; did you mean %s?", nearest);
    imx_text_add(text, "\n");
}

static void look_at_all(int slips, const char *before, imx_text *text)
{
    for (char **at = environ; at && *at; at++) {
        char name[NAME_MOST + 1] = "";
        size_t length = strcspn(*at, "=");
        for (size_t i = 0; i < length && i < NAME_MOST; i++)
            name[i] = isgraph((unsigned char)(*at)[i]) ? (*at)[i] : '?';
        if (length <= NAME_MOST)
            look_at(name, slips, before, text);
    }
}

void imx_env_unknown(imx_text *text)
{
    look_at_all(0, "env ", text);
}

void imx_env_unknown_warn(void)
{
    static bool warned;
    char lines[8192] = ""; /* more are cut off */
    imx_text text = { .at = lines, .size = sizeof lines };
    if (imx_env_is_foreign() || __atomic_exchange_n(&warned, true, __ATOMIC_RELAXED))
        return;
    look_at_all(NEAR, "imbrex: environment variable ", &text);
    fputs(lines, stderr);
}
