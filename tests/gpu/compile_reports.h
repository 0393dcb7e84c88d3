/* compile_reports.h - what the compiler said of kernels, read, and kept in a file of the source:
 * a compiler that is given the same once more says the same. */
#ifndef COMPILE_REPORTS_H
#define COMPILE_REPORTS_H

#include "base/source.h"

typedef struct compile_report {
    int registers, shared_bytes;
    int local_bytes; /* of the stack, of spills and of what else is not in registers */
} compile_report;

compile_report compile_reports_read(const char *log);

/* The file's report of what has this key; false: there is none, or one by another compiler. */
bool compile_reports_find(const imx_cache_key *key, compile_report *report);

/* Begins the file anew, adds a line, and ends it; false: it could not be written. */
bool compile_reports_begin(void);
void compile_reports_add(const imx_cache_key *key, const compile_report *report, const char *name);
bool compile_reports_end(void);

#endif /* COMPILE_REPORTS_H */
