/* fake_driver.h - a GPU driver and a compiler without a GPU, put where imbrex keeps the real ones.
 *
 * Device memory is shared host memory whose descriptors pass between processes, streams are
 * threads, and a kernel is its CPU form.  What the real driver forbids is an error here too, and
 * what is not given back is counted.
 */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdbool.h>

#include "imbrex.h"

/* From now on imbrex sees so many GPUs.  Before the first group; undoes all settings below. */
void fake_driver_install(int gpus);

/* Overrides an attribute (CU_...) of all GPUs; of those from one on, not by 0. */
void fake_driver_set(int attribute, int value);
void fake_driver_set_from(int gpu, int attribute, int value);
void fake_driver_set_links(int reached); /* whether GPUs reach each other */

void fake_driver_refuse_descriptors(void); /* of memory, whatever the attributes say */

void fake_driver_set_local(int bytes); /* local memory of each kernel's thread */

/* The host's memory in this range is pageable; else all memory is pinned or a GPU's. */
void fake_driver_set_pageable(const void *at, size_t bytes);

/* The n-th call from now on that can fail does; 0: none.  failed: which one did, or NULL. */
void fake_driver_fail(int n);
const char *fake_driver_failed(void);

/* How far the GPUs' clock is behind CLOCK_MONOTONIC. */
enum { FAKE_CLOCK_BEHIND_NS = 1000000000 };

/* Objects that live: contexts, memory, streams... */
int fake_driver_live(void);
int fake_driver_compiled(void); /* kernels since install */
int fake_driver_encoded(void);  /* tensor maps since install */
int fake_driver_loads(void);    /* modules since install */
int fake_driver_modules(void);  /* of them, those that are loaded */
int fake_driver_asked(void);    /* whose memory a pointer is, since install */
int fake_driver_launched(void); /* kernels, by the calling thread, ever */
int fake_driver_told(void);     /* times, by kernels of signals, ever */

/* The launch with the most blocks, by the calling thread since it was asked last. */
typedef struct fake_launch {
    int blocks, cluster;
    bool early; /* it may begin before the kernel ahead of it ends */
} fake_launch;
fake_launch fake_driver_widest(void);

/* A caller's kernel of this name runs so, on every fake GPU from now on. */
void fake_driver_add_kernel(const char *name, const struct imbrexd_entry *entry);

/* A graph, as cuStreamBeginCapture, cuStreamEndCapture, cuGraphLaunch: 0 or the driver's error. */
typedef struct fake_graph fake_graph;
int fake_graph_begin(imbrex_stream stream);
int fake_graph_end(imbrex_stream stream, fake_graph **graph);
void fake_graph_launch(fake_graph *graph, imbrex_stream stream);
void fake_graph_destroy(fake_graph *graph);

#endif /* FAKE_DRIVER_H */
