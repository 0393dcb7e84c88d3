/* device_source.c - reads the kernels of the tests from the source folder: the library's own
 * sources are within it, but not these. */
#include "device_source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/imx.h"
#include "base/source.h"

enum { TEXT_MOST = 1 << 18 };

/* What a file includes of its neighbours is in the text already. */
static int add_file(imx_text *text, const char *name)
{
    const char *root = getenv("IMBREX_SOURCE_DIR");
    char path[1024], line[256];
    snprintf(path, sizeof path, "%s/tests/gpu/%s", root ? root : ".", name);
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "%s: %s; IMBREX_SOURCE_DIR names the source folder\n", path,
                strerror(errno));
        return 1;
    }
    imx_text_add(text, "#line 1 \"%s\"\n", name);
    while (fgets(line, sizeof line, file))
        imx_text_add(text, "%s", strncmp(line, "#include", 8) == 0 ? "\n" : line);
    fclose(file);
    return 0;
}

char *device_source(const char *first, const char *const *files, int count)
{
    const imx_source *header;
    char *whole = malloc(TEXT_MOST);
    if (!whole || imx_source_expand("imbrex_device.h", &header) != IMBREX_OK) {
        fprintf(stderr, "%s\n", imbrex_error());
        free(whole);
        return NULL;
    }
    imx_text text = { .at = whole, .size = TEXT_MOST };
    imx_text_add(&text, "%s\n%s", first, header->text);
    int failed = 0;
    for (int i = 0; i < count && !failed; i++)
        failed = add_file(&text, files[i]);
    if (text.length >= TEXT_MOST) {
        fprintf(stderr, "the kernels' text has %zu bytes, more than %d\n", text.length, TEXT_MOST);
        failed = 1;
    }
    if (!failed)
        return whole;
    free(whole);
    return NULL;
}

char *device_source_all(const char *first)
{
    static const char *const files[] = { "device_arena.h", "device_cases.h", "device_litmus.h",
                                         "device_cost.h" };
    return device_source(first, files, 4);
}
