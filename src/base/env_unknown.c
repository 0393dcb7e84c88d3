/* env_unknown.c - finds variables that look like ours and that nobody reads: misspelt ones. */
#define _GNU_SOURCE
#include <ctype.h>
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

static void look_at(const char *name, imx_text *text)
{
    int least = NAME_MOST;
    const char *nearest = NULL;
    for (int i = 0; i < KNOWN; i++) {
        int d = distance(name, known[i]);
        if (strcmp(name, known[i]) == 0)
            return;
        if (d < least) {
            least = d;
            nearest = known[i];
        }
    }
    if (least > NEAR && strncasecmp(name, "IMBREX_", 7) != 0)
        return;
    imx_text_add(text, "env %s: read by nobody here", name);
    if (least <= 2 * NEAR)
        imx_text_add(text, "; did you mean %s?", nearest);
    imx_text_add(text, "\n");
}

void imx_env_unknown(imx_text *text)
{
    for (char **at = environ; at && *at; at++) {
        char name[NAME_MOST + 1] = "";
        size_t length = strcspn(*at, "=");
        for (size_t i = 0; i < length && i < NAME_MOST; i++)
            name[i] = isgraph((unsigned char)(*at)[i]) ? (*at)[i] : '?';
        if (length <= NAME_MOST)
            look_at(name, text);
    }
}
