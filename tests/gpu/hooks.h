/* hooks.h - hooks_kernel.h as tests launch it: a case, its memory, and what has to come out, which
 * the library's own gemm_rs says. */
#ifndef HOOKS_H
#define HOOKS_H

#include "imbrex_device.h"
#include "ranks.h"

typedef struct hooks_case {
    imbrex_gemm_desc gemm;
    bool text;      /* the kernel is compiled, not the program's own */
    bool backwards; /* tiles in the opposite order */
    int runs;
    const char *options;   /* of text; NULL: none */
    const char *says;      /* a part of what it has to fail with; NULL: it must not */
    imbrex_stream foreign; /* of another GPU, which is tried first and refused; NULL: none */
} hooks_case;

extern const imbrexd_entry *const hooks_entry;

const char *hooks_file(void);

/* A rank's part of it; 0, or 1 when it has said why not. */
int hooks_run(imbrex_group *group, const hooks_case *c);

#endif /* HOOKS_H */
