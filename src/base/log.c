/* log.c - lines of IMBREX_LOG, which say what a rank does. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void imx_log(int rank, int size, const char *format, ...)
{
    char line[IMX_STATUS_BYTES];
    int begin = snprintf(line, sizeof line, "imbrex [%d/%d] ", rank, size);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + begin, sizeof line - 1 - (size_t)begin, format, arguments);
    va_end(arguments);
    size_t length = strlen(line);
    line[length] = '\n';
    ssize_t written = write(STDERR_FILENO, line, length + 1);
    (void)written; /* nobody is there to be told */
}
