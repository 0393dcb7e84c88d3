/* compile_jobs.h - kernels that the real compiler is to take, each lean: no stack, no spills, and
 * registers and shared memory that a GPU has. */
#ifndef COMPILE_JOBS_H
#define COMPILE_JOBS_H

#include "backends/cuda/cuda.h"

typedef struct compile_job {
    imx_cuda_config config;
    int arch;
    size_t shared_most;
    bool slips_beneath; /* few registers and no shared memory */
} compile_job;

/* The job, there already or new: different shapes may ask for one and the same module. */
compile_job *compile_jobs_add(const imx_cuda_config *config, int arch, size_t shared_most);

int compile_jobs_count(void);

extern const char *compile_jobs_part; /* of texts with that in their names only */
extern bool compile_jobs_keep;        /* the file of compile_reports.h is written anew */

/* Compiles of them, by a process a core, enough to see every two options of a text together, and
 * says on stderr what is wrong; how many processes found something.  The compiler's reports come
 * from a file of the source where that has them, and are kept in IMBREX_CACHE_DIR, or beside the
 * program. */
int compile_jobs_run(void);

#endif /* COMPILE_JOBS_H */
