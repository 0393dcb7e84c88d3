/* source.h - the kernel sources inside the library, and one of them with all that it includes. */
#ifndef IMX_SOURCE_H
#define IMX_SOURCE_H

#include "cache.h"
#include "imx.h"

typedef struct imx_source_file {
    const char *name; /* below include/ or src/: "imbrex_device.h", "kernels/reduce/sm80.cu" */
    const char *text;
    size_t bytes;
} imx_source_file;

/* Made by the build, see cmake/imbrex_embed.cmake. */
extern const imx_source_file imx_source_files[];
extern const size_t imx_source_file_count;

/* `#line 1 "file"` and a newline: quotes, backslashes and line ends could end it early. */
enum { IMX_SOURCE_LINE = 800 };
void imx_source_line(const char *file, char line[IMX_SOURCE_LINE]);

const imx_source_file *imx_source_find(const char *name); /* NULL: there is none */

/* A file, every #include "..." replaced by that file's text, with #line so that messages name the
 * right file and line. */
typedef struct imx_source {
    const char *name;
    const char *text;
    size_t bytes;
    imx_cache_key key; /* of the text alone */
} imx_source;

/* Put together when first asked for, and there for good. */
imbrex_status imx_source_expand(const char *name, const imx_source **source) IMX_MUST_CHECK;

#endif /* IMX_SOURCE_H */
