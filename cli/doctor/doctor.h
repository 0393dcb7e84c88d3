/* doctor.h - the checks of `imbrex doctor`: what each looks at, and what it finds. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

typedef enum doctor_state {
    DOCTOR_OK,
    DOCTOR_ABSENT, /* not there, or less than it could be: works without */
    DOCTOR_BROKEN
} doctor_state;

/* All zero: nothing to say, and no line. */
typedef struct doctor_finding {
    doctor_state state;
    char what[480];
    char advice[320]; /* ABSENT: what that costs; BROKEN: what to do */
} doctor_finding;

/* Each writes a finding. */
void doctor_ok(doctor_finding *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
void doctor_say(doctor_finding *f, doctor_state state, const char *advice, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* What a check sees: the lines of imbrex_info, and where ranks would meet, as the environment has
 * it outside of a check's own ranks. */
typedef struct doctor_view {
    const char *info;
    const char *address, *port; /* MASTER_ADDR, MASTER_PORT; NULL: unset */
} doctor_view;

/* Of the line "key: value" value[size]; false: there is none. */
bool doctor_line(const doctor_view *view, const char *key, char *value, size_t size);

/* What that line says: all right, or, where it begins with "none", what that is and the advice. */
void doctor_shown(const doctor_view *view, const char *key, doctor_state none, const char *advice,
                  doctor_finding *found);

typedef void doctor_check(const doctor_view *view, doctor_finding *found);

/* machine.c: the host */
doctor_check doctor_settings, doctor_clock, doctor_memory, doctor_locking, doctor_port, doctor_name,
    doctor_cache;

/* parts.c: libraries and GPUs */
doctor_check doctor_gpus, doctor_peers, doctor_symmetric, doctor_nvrtc, doctor_compiler,
    doctor_cublas, doctor_nccl, doctor_mpi;

/* ranks.c: two ranks, which gather and look at what came */
doctor_check doctor_cpu_ranks, doctor_gpu_ranks;

#endif /* CLI_DOCTOR_H */
