/* backend.h - the seam to a device: what it can do, and nothing about how.
 *
 * A backend is one constant table of functions.  Everything above it (core, ops) calls these and
 * never asks which one it has, only whether it runs anything (imx_backend_runs), and where products
 * are cut, for what architecture (imx_target.arch).
 *
 *   memory    created zeroed and exportable; a rank maps a peer's through a file descriptor (from
 *             another process) or by sharing the object (in the same process).  Reference-counted:
 *             a mapping outlives the rank that made it.
 *   stream    a FIFO; work on one stream runs in order, different streams run at once.  What the
 *             API calls imbrex_stream.
 *   event     marks a place in one stream that another stream can wait for.  Recording again moves
 *             the mark.
 *   signals   a few posts and waits, carried out in order, but for those that may go beside the one
 *             before.  A value is *word + add, read when the stream gets there, so that a replay of
 *             captured work carries new values.  Where a trace wants it, the time as well.
 *   prepared  a kernel made ready when a plan is made: compiled, loaded, scratch taken.  A kernel
 *             is a folder under kernels/, known here by its table row only.
 *
 * Rules for all functions that take a stream: they enqueue, allocate nothing, and may block only
 * while the queue is full.  Once the group's abort word is set, waits end at once, in streams and
 * in kernels, so that a sync returns soon.  Copies, posts and kernels that come after may be
 * skipped (cpu does) or take place (cuda: to look at the word would cost each of them a trip to the
 * host): whoever such a post lets go finds the group failed, and what it reads is nobody's result.
 */
#ifndef IMX_BACKEND_H
#define IMX_BACKEND_H

#include <string.h>

#include "base/cache.h"
#include "base/imx.h"
#include "imbrex_device.h"
#include "kernels/kernels.h"

typedef struct imx_device imx_device;
typedef struct imx_event imx_event;
typedef struct imx_prepared imx_prepared;
typedef struct imx_user imx_user;

/* What a device is, for whoever chooses tiles and blocks. */
typedef struct imx_target {
    char id[40];         /* equal on ranks that share the device; "": it is nobody else's */
    char name[224];      /* what runs as fast as another of this name */
    char model[96];      /* of a GPU: as its driver calls it */
    int index;           /* of the device, as in "name:index" */
    int workers;         /* blocks that a plan has if it asks for none: its SMs, a rank's threads */
    int workers_most;    /* that a plan may ask for */
    int arch;            /* compute capability of a GPU, 90; else 0 */
    size_t shared_bytes; /* of its shared memory that a block may ask for */
    int memory_gb_s;     /* of a GPU, at best; 0: unknown */
    int clock_mhz;       /* likewise */
    size_t cache_bytes;  /* more than its caches hold */
    int alignment;       /* bytes that matrices must be aligned to; 0: to their elements */
    const char *memory;  /* what symmetric memory is, where it is not the usual kind; else NULL */
} imx_target;

typedef struct imx_memory {
    void *base; /* where this rank finds it */
    size_t bytes;
} imx_memory;

/* Bytes [from, to) of a piece of memory that hold signals or counters. */
typedef struct imx_words {
    size_t from, to;
} imx_words;

enum { IMX_WORDS_MOST = 96 }; /* such places of a piece */

typedef struct imx_device_desc {
    int index;      /* of the device, from "name:index"; -1: the backend takes one by local_rank */
    int rank, size; /* in the group */
    int local_rank; /* among the ranks of this host */
    int local_size;
    const imx_env *env;
} imx_device_desc;

typedef enum imx_signal_kind { IMX_POST, IMX_WAIT, IMX_TIME } imx_signal_kind;

typedef struct imx_signal_op {
    imx_signal_kind kind;
    uint64_t *signal;     /* POST: in any rank's memory; WAIT: in one's own; TIME: trace_times */
    const uint64_t *word; /* own memory, or NULL for 0 */
    uint64_t add;         /* the value is *word + add */
    imbrexd_wait_point point; /* WAIT: what to say if it never comes; POST: rank: whose memory */
    bool beside; /* the op before it in the call need not be over, only its value there */
} imx_signal_op;

enum { IMX_SIGNALS_MOST = 16 }; /* that a device carries out as one piece of work, at least */

enum { IMX_ARGS_BYTES = 832 }; /* most that a kernel's args may have */

/* A kernel of the caller's, see imbrex_kernel_desc. */
typedef struct imx_user_desc {
    const char *name;
    const char *text, *file; /* its source, and what it is called; text NULL: there is none */
    size_t text_bytes;
    const char *folder;  /* where what it includes is looked for first */
    const char *options; /* words, or "" */
    imx_cache_key key;   /* of name, text, options and of all files that it includes */
    const imbrexd_entry *entry;
    size_t shared_bytes;
    int resident;
    const imx_kernel *product; /* that the text has hooks for; NULL: it is a kernel by itself */
    const void *largest;       /* args of the product, as in prepare */
    int blocks;                /* likewise */
} imx_user_desc;

/* What a kernel turned out to be. */
typedef struct imx_user_facts {
    size_t args_bytes;
    int threads_most; /* that a block may have */
} imx_user_facts;

typedef struct imx_user_launch {
    int grid, block;
    const void *args; /* copied */
    size_t args_bytes;
    const void *product; /* its args, copied; NULL: there is none */
    size_t product_bytes;
    const imbrexd_team *team; /* its watch is the backend's to fill in; outlives the launch */
    imx_event *after;         /* to be waited for on the stream; NULL: nothing */
} imx_user_launch;

enum { IMX_USER_WORDS = 48 };   /* most that the options of a caller's kernel may have */
#define IMX_USER_BLANKS " \t\n" /* between them */

/* What a product with hooks is launched with: its args, and imx_user_args behind them.  Returns its
 * bytes, at most IMX_ARGS_BYTES. */
static inline size_t imx_user_join(const imx_user_launch *launch, const imbrexd_watch *watch,
                                   const struct imbrexd_hooks *hooks, void *to)
{
    imx_user_args user = { .team = *launch->team, .hooks = hooks };
    size_t at = imx_align(launch->product_bytes, 16);
    user.team.watch = *watch;
    memcpy(user.args, launch->args, launch->args_bytes);
    memcpy(to, launch->product, launch->product_bytes);
    memcpy((char *)to + at, &user, sizeof user);
    return at + sizeof user;
}

/* Of a wait in a kernel: one block may wait for another that begins only when it has ended. */
static inline void imx_user_describe_late(const char *before, int late, imx_text *text)
{
    if (late)
        imx_text_add(text, "%s%d of the launch's blocks %s only after others, see desc.resident",
                     before, late, late == 1 ? "runs" : "run");
}

typedef struct imx_backend {
    const char *name; /* "cpu" */

    /* Whether a group that names no device takes this one.  NULL: yes. */
    bool (*usable)(void);

    /* Adds lines "key: value" about this backend on this machine. */
    void (*info)(imx_text *text);

    /* What device number i would be, without opening it; of arch 0: it cannot be used.
     * false: there is none.  NULL: nobody needs to know. */
    bool (*look)(int i, const imx_env *env, imx_target *target);

    imbrex_status (*open)(const imx_device_desc *desc, imx_device **device);
    /* Drains and destroys the streams that are left; memory may outlive it.  NULL is fine. */
    void (*close)(imx_device *device);

    void (*target)(const imx_device *device, imx_target *target);

    /* Before the first plan: kernels take the form that all devices of this backend have, in so
     * much shared memory a block, as the target says from then on.  NULL: there is but one. */
    void (*take_common_form)(imx_device *device, size_t shared_bytes);

    /* Calls fn(ctx) while the device is the one that other libraries find to be this thread's.
     * NULL: there is no such thing. */
    imbrex_status (*within)(imx_device *device, imbrex_status (*fn)(void *ctx), void *ctx);

    /* A handle that is another stream in each thread; NULL: there is none. */
    imbrex_stream per_thread;

    /* Whether it is one of the device's.  NULL: whoever runs it says so. */
    bool (*stream_is)(const imx_device *device, imbrex_stream stream);

    /* The number of the graph that is being captured on the stream; 0: none.  NULL: never one. */
    uint64_t (*capture)(const imx_device *device, imbrex_stream stream);

    /* Adds in a word what lies between this device and that of a peer, by its target's id.  NULL:
     * nothing runs. */
    void (*link)(const imx_device *device, const char *id, imx_text *text);

    /* Whether 128 aligned bytes that a kernel stores there at once arrive at once. */
    imbrex_status (*whole_lines)(const imx_device *device, const char *id, bool *whole);

    imbrex_status (*memory_create)(imx_device *device, size_t bytes, imx_memory **memory);
    /* Memory that processors and all devices of the node read and write at one address, with loads
     * and stores (not atomics: between host and device those may not be).  For what the host looks
     * at while devices work.  NULL: memory_create's is that. */
    imbrex_status (*memory_create_host)(imx_device *device, size_t bytes, imx_memory **memory);
    imbrex_status (*memory_export)(imx_memory *memory, int *fd); /* for the caller to close */
    /* A peer's counterpart of `like`, this rank's own piece. */
    imbrex_status (*memory_import)(imx_device *device, int fd, const imx_memory *like,
                                   imx_memory **memory);
    imbrex_status (*memory_share)(imx_device *device, imx_memory *of_peer, imx_memory **memory);
    void (*memory_release)(imx_memory *memory); /* NULL is fine */
    bool forked_release; /* also in a child of fork, where a driver would not work */

    /* For a checker of protocols: only streams and kernels write there.  And what it says of a
     * fault of a rank's, NULL: nothing.  Both NULL: there is no checker. */
    void (*memory_own)(const imx_memory *memory, const imx_words *words, int count);
    const char *(*sentence)(imx_device *device, const imbrexd_fault *fault);

    /* For a checker: the host reads there.  What is wrong is a fault.  NULL: there is none. */
    void (*check_read)(imx_device *device, const void *at, size_t bytes);

    /* The watch ends waits; set once, before the first stream.  It and what it points to outlive
     * the device. */
    void (*set_watch)(imx_device *device, const imbrexd_watch *watch);

    /* Spans go to trace from now on; NULL: nowhere, which does not fail, nor do they go anywhere
     * after a failure.  Streams are idle. */
    imbrex_status (*set_trace)(imx_device *device, imbrexd_trace *trace);

    /* Puts there what the device itself still holds.  Streams are idle.  NULL: it holds nothing. */
    imbrex_status (*collect_trace)(imx_device *device);

    imbrex_status (*stream_create)(imx_device *device, imbrex_stream *stream);
    void (*stream_destroy)(imx_device *device, imbrex_stream stream); /* drains it; NULL is fine */
    imbrex_status (*stream_sync)(imx_device *device, imbrex_stream stream); /* blocks until idle */

    imbrex_status (*event_create)(imx_device *device, imx_event **event);
    void (*event_destroy)(imx_device *device, imx_event *event); /* NULL is fine */
    imbrex_status (*event_record)(imx_device *device, imx_event *event, imbrex_stream stream);
    imbrex_status (*event_wait)(imx_device *device, imx_event *event, imbrex_stream stream);

    /* To or from a peer's memory, or within one's own; rank says whose. */
    imbrex_status (*copy)(imx_device *device, void *dst, const void *src, size_t bytes, int rank,
                          imbrex_stream stream);
    /* The same where memory may also be the host's, for which it may block until the stream is
     * idle.  NULL: copy is that. */
    imbrex_status (*copy_any)(imx_device *device, void *dst, const void *src, size_t bytes,
                              int rank, imbrex_stream stream);
    imbrex_status (*signals)(imx_device *device, const imx_signal_op *ops, int count,
                             imbrex_stream stream);

    /* Calls fn(args) when the stream comes to it, on a thread of the stream's own, which fn may
     * hold up; args, of at most IMX_ARGS_BYTES, is copied.  span is what a trace says of it, but
     * for the times.  NULL: streams are no threads here. */
    imbrex_status (*call)(imx_device *device, void (*fn)(const void *args), const void *args,
                          size_t args_bytes, const imbrex_span *span, imbrex_stream stream);

    /* For one thing on the stream that is neither copy nor kernel: the two words to which signals'
     * IMX_TIME before it and after it are to write.  span is what a trace says of it, but for the
     * times.  Returns NULL if there is no trace; the slot may be NULL as well. */
    uint64_t *(*trace_times)(imx_device *device, const imbrex_span *span, imbrex_stream stream);

    /* All that launch must not do: compile, load, take scratch.  largest: args with the largest
     * sizes that a launch will have; its pointers are not followed.  blocks run side by side, all
     * resident. */
    imbrex_status (*prepare)(imx_device *device, const imx_kernel *kernel, const void *largest,
                             int blocks, imx_prepared **prepared);
    void (*prepared_destroy)(imx_device *device, imx_prepared *prepared); /* NULL is fine */

    /* What came of it, in words; NULL: nothing to say.  Lives as long as prepared. */
    const char *(*prepared_describe)(const imx_prepared *prepared);

    /* args is copied.  One prepared kernel runs on one stream at a time. */
    imbrex_status (*launch)(imx_device *device, imx_prepared *prepared, const void *args,
                            size_t args_bytes, imbrex_stream stream);

    /* The same for kernels of the caller's.  user_launch NULL: nothing runs here. */
    imbrex_status (*user_prepare)(imx_device *device, const imx_user_desc *desc, imx_user **user,
                                  imx_user_facts *facts);
    void (*user_destroy)(imx_device *device, imx_user *user); /* NULL is fine */
    imbrex_status (*user_launch)(imx_device *device, imx_user *user, const imx_user_launch *launch,
                                 imbrex_stream stream);
} imx_backend;

/* Or it only compiles. */
static inline bool imx_backend_runs(const imx_backend *backend)
{
    return backend->user_launch;
}

extern const imx_backend imx_backend_cpu, imx_backend_cuda, imx_backend_compile;

#endif /* IMX_BACKEND_H */
