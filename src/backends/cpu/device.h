/* device.h - a CPU as a device: a set of worker threads, one a stream. */
#ifndef IMX_CPU_DEVICE_H
#define IMX_CPU_DEVICE_H

#include "backends/backend.h"

enum { IMX_CHECK_THREADS = 256 }; /* that live at once, in a process */

typedef struct imx_cpu_check_clock {
    uint32_t at[IMX_CHECK_THREADS]; /* [t]: how far thread t is known to have come */
} imx_cpu_check_clock;

struct imx_cpu_check_thread;

/* Of a device that is checked. */
typedef struct imx_cpu_check_device {
    imx_cpu_check_clock clock;                  /* what its host has waited for */
    const struct imx_cpu_check_thread *awaited; /* by the host, until it has no work; NULL: none */
    struct imx_cpu_check_thread *host;          /* that reads by itself; NULL: it never has */
} imx_cpu_check_device;

typedef struct imx_cpu_stream imx_cpu_stream;

struct imx_device {
    int rank;
    int local_size;   /* ranks that take memory of this machine */
    int threads;      /* that a rank computes with */
    int64_t chaos_ns; /* sleep up to so long before copies, posts, blocks */
    double link_ns;   /* what a byte to a peer takes on the emulated wire */
    const imbrexd_watch *watch;
    imbrexd_trace *trace;
    const imx_env *env;
    imx_cpu_check_device *check; /* NULL: not checked */
    size_t taken;                /* in small pieces, since a look at what there is */
    imx_cpu_stream *streams;     /* all that live */
    int stream_count;            /* ever made: numbers them */
};

#endif /* IMX_CPU_DEVICE_H */
