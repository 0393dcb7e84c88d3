/* cpu.h - what the CPU backend's files do for each other. */
#ifndef IMX_CPU_H
#define IMX_CPU_H

#include "check.h"

/* Sleeps on word while it is still seen, until a wake; maybe shorter: look again. */
void imx_cpu_sleep(const uint32_t *word, uint32_t seen);
void imx_cpu_wake(const uint32_t *word);

/* ---- memory.c -------------------------------------------------------------------------------- */

imbrex_status imx_cpu_memory_create(imx_device *device, size_t bytes, imx_memory **memory);
imbrex_status imx_cpu_memory_export(imx_memory *memory, int *fd);
imbrex_status imx_cpu_memory_import(imx_device *device, int fd, const imx_memory *like,
                                    imx_memory **memory);
imbrex_status imx_cpu_memory_share(imx_device *device, imx_memory *of_peer, imx_memory **memory);
void imx_cpu_memory_release(imx_memory *memory);

/* ---- room.c ---------------------------------------------------------------------------------- */

typedef struct imx_cpu_room {
    size_t bytes;    /* that can still be had; SIZE_MAX: nobody knows */
    char owner[100]; /* of the limit, in words */
} imx_cpu_room;

/* root stands before "/proc" and "/sys": "", or a test's folder. */
void imx_cpu_room_look(const char *root, imx_cpu_room *room);

/* What a rank may take between two looks at what there is: ten files are read for each. */
enum { IMX_CPU_ROOM_STEP = 4 << 20 };

/* NO_MEMORY if there is no room for bytes, of which done are taken.  Small pieces are believed to
 * have it until they come to a step together. */
imbrex_status imx_cpu_room_check(imx_device *device, size_t bytes, size_t done) IMX_MUST_CHECK;

/* Something that takes addresses, a thread or a mapping, was refused with an errno: says so, and
 * names the limit on addresses if there is one. */
imbrex_status imx_cpu_room_refused(const char *what, int error);

/* ---- stream.c -------------------------------------------------------------------------------- */

imbrex_status imx_cpu_stream_create(imx_device *device, imbrex_stream *stream);
void imx_cpu_stream_destroy(imx_device *device, imbrex_stream stream);
imbrex_status imx_cpu_stream_sync(imx_device *device, imbrex_stream stream);
bool imx_cpu_stream_is(const imx_device *device, imbrex_stream stream); /* one of the device's */

imbrex_status imx_cpu_event_create(imx_device *device, imx_event **event);
void imx_cpu_event_destroy(imx_device *device, imx_event *event);
void imx_cpu_event_drop(imx_event *event); /* one reference */
imbrex_status imx_cpu_event_record(imx_device *device, imx_event *event, imbrex_stream stream);
imbrex_status imx_cpu_event_wait(imx_device *device, imx_event *event, imbrex_stream stream);

imbrex_status imx_cpu_copy(imx_device *device, void *dst, const void *src, size_t bytes, int rank,
                           imbrex_stream stream);
imbrex_status imx_cpu_signals(imx_device *device, const imx_signal_op *ops, int count,
                              imbrex_stream stream);
imbrex_status imx_cpu_call(imx_device *device, void (*fn)(const void *args), const void *args,
                           size_t args_bytes, const imbrex_span *span, imbrex_stream stream);
imbrex_status imx_cpu_launch(imx_device *device, imx_prepared *prepared, const void *args,
                             size_t args_bytes, imbrex_stream stream);

/* ---- work.c: what a worker does with one entry of its queue ---------------------------------- */

typedef enum imx_cpu_kind {
    IMX_CPU_COPY,
    IMX_CPU_SIGNAL,
    IMX_CPU_LAUNCH,
    IMX_CPU_CALL,
    IMX_CPU_RECORD,
    IMX_CPU_AWAIT,
    IMX_CPU_STOP
} imx_cpu_kind;

struct imx_event {
    uint32_t refs;     /* atomic: the owner's, and of what is enqueued and not yet carried out */
    uint32_t recorded; /* by the host: how often */
    uint32_t reached;  /* atomic, futex: the recording that a stream last came to */
    imx_cpu_check_clock *clock;
};

typedef struct imx_cpu_entry {
    imx_cpu_kind kind;
    union {
        struct {
            void *dst;
            const void *src;
            size_t bytes;
            int rank;
        } copy;
        imx_signal_op signal;
        struct {
            imx_prepared *prepared;
            _Alignas(16) char args[IMX_ARGS_BYTES];
        } launch;
        struct {
            void (*fn)(const void *args);
            imbrex_span span;
            _Alignas(16) char args[IMX_ARGS_BYTES];
        } call;
        struct {
            imx_event *event;
            uint32_t recording;
        } event;
    };
} imx_cpu_entry;

/* Sleeps at random, up to device->chaos_ns or until the group has failed; seed: the thread's. */
void imx_cpu_chaos(const imx_device *device, uint32_t *seed);

/* seed: the stream's own state for the chaos sleeps. */
void imx_cpu_work(imx_device *device, int stream, uint32_t *seed, const imx_cpu_entry *entry);

/* ---- prepared.c: a kernel with its scratch and the threads that run its blocks --------------- */

imbrex_status imx_cpu_prepare(imx_device *device, const imx_kernel *kernel, const void *largest,
                              int blocks, imx_prepared **prepared);
void imx_cpu_prepared_destroy(imx_device *device, imx_prepared *prepared);

/* Runs all blocks, block 0 on the calling thread; returns when the last one has ended. */
void imx_cpu_prepared_run(imx_device *device, imx_prepared *prepared, const void *args, int stream);
const char *imx_cpu_prepared_name(const imx_prepared *prepared);

/* ---- user.c: kernels of the caller's --------------------------------------------------------- */

imbrex_status imx_cpu_user_prepare(imx_device *device, const imx_user_desc *desc, imx_user **user,
                                   imx_user_facts *facts);
void imx_cpu_user_destroy(imx_device *device, imx_user *user);
imbrex_status imx_cpu_user_launch(imx_device *device, imx_user *user, const imx_user_launch *launch,
                                  imbrex_stream stream);

#endif /* IMX_CPU_H */
