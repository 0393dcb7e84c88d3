/* check.h - the protocol checker (IMBREX_CHECK): which signal orders which access after which.
 *
 * Ranks are threads of one process, so that one checker sees them all.  Everything that runs, a
 * stream's worker or a block's thread, has a vector clock; so have a signal's last values, a
 * counter, an event.  A post hands the poster's clock to the value, a wait takes that of the first
 * value that would have let it go, whatever it found there: what holds by the protocol counts, not
 * what happened to hold.  Bytes of symmetric memory remember who wrote them last and who has read
 * them since.
 *
 *     check.c        threads, clocks, what orders threads of one rank, reports
 *     check_words.c  signals and counters
 *     check_bytes.c  ranges
 *     check_stuck.c  waits that nobody will satisfy
 *
 * All of it is under one lock.  A function without a thread is of the calling thread, and does
 * nothing on one that is not watched.
 */
#ifndef IMX_CPU_CHECK_H
#define IMX_CPU_CHECK_H

#include "device.h"

/* One access or post, for comparisons and for the sentence about it. */
typedef struct imx_cpu_check_mark {
    const char *what; /* "a copy", a kernel's name; NULL: there was none */
    uint32_t thread, epoch;
    int rank, stream, plan;
    int block; /* of several; -1: there are no others */
} imx_cpu_check_mark;

enum { IMX_CHECK_HOST = -2 }; /* in the place of a stream's number */

typedef struct imx_cpu_check_thread {
    struct imx_cpu_check_thread *next;
    const imx_device *device;
    imx_cpu_check_clock clock;
    uint32_t id;
    int stream;
    int plan;                 /* of the latest signal */
    const char *what;         /* it does */
    const imbrexd_team *team; /* of the caller's kernel that it runs; NULL: another, or none */
    int block;                /* of that; -1: it has but one */
    int work;                 /* that it has not finished */
    const uint32_t *passive;  /* it waits for one of its rank until this is `until`; NULL: no */
    uint32_t until;
    bool waiting; /* for this: */
    const uint64_t *signal;
    imbrexd_compare compare;
    uint64_t value;
    imbrexd_wait_point point;
    uint64_t looked; /* imx_cpu_check.progress when it last looked whether all are stuck */
} imx_cpu_check_thread;

/* A word that was raised: its latest values, oldest first, or a counter. */
enum { IMX_CHECK_VALUES = 6 };

typedef struct imx_cpu_check_word {
    bool adds; /* it is added to */
    int count;
    imx_cpu_check_mark last; /* who raised it */
    struct {
        uint64_t value;
        imx_cpu_check_clock clock;
    } values[IMX_CHECK_VALUES];
} imx_cpu_check_word;

enum { IMX_CHECK_READERS = 16 };

/* Bytes [from, the next one's from) that share a history. */
typedef struct imx_cpu_check_range {
    size_t from;
    imx_cpu_check_mark writer;
    int reader_count;
    imx_cpu_check_mark readers[IMX_CHECK_READERS];
} imx_cpu_check_range;

/* So many addresses behind a piece belong to it, and nothing is there: what begins in them is past
 * its end. */
enum { IMX_CPU_CHECK_GUARD = 256 << 20 };

/* A piece of symmetric memory, or of a plan's own. */
typedef struct imx_cpu_check_piece {
    struct imx_cpu_check_piece *next;
    char *base;
    size_t bytes;
    int rank;
    bool own; /* the library's: nobody but streams and kernels writes there */
    imx_words places[IMX_WORDS_MOST]; /* where its signals and counters lie, if it is own */
    int place_count;
    imx_cpu_check_word **words; /* [bytes / 4] */
    imx_cpu_check_range *ranges;
    size_t range_count, range_room;
} imx_cpu_check_piece;

typedef struct imx_cpu_check_state {
    imx_cpu_check_thread *threads;
    imx_cpu_check_piece *pieces;
    uint64_t progress;         /* raised by everything that happens */
    imx_cpu_check_clock ended; /* what threads did that are no more */
} imx_cpu_check_state;

extern imx_cpu_check_state imx_cpu_check;

void imx_cpu_check_lock(void);
void imx_cpu_check_unlock(void);

/* ---- check.c --------------------------------------------------------------------------------- */

/* A thread of the device; NULL where the device is not checked, and then all below do nothing. */
imbrex_status imx_cpu_check_thread_begin(imx_device *device, int stream,
                                         imx_cpu_check_thread **thread) IMX_MUST_CHECK;
void imx_cpu_check_thread_end(imx_cpu_check_thread *thread); /* it has been joined */
void imx_cpu_check_enter(imx_cpu_check_thread *thread);      /* the calling thread is it */
imx_cpu_check_thread *imx_cpu_check_current(void); /* the calling one; NULL: not watched */

/* The same with the lock held; NULL also where its group has failed. */
imx_cpu_check_thread *imx_cpu_check_self(void);

/* It has more pieces of work to do, or fewer; 0: it begins one. */
void imx_cpu_check_work(imx_cpu_check_thread *thread, int more);
/* The calling thread waits for a thread of its own rank, which brings word up or down to `until`
 * before it has no work any more; NULL: no longer. */
void imx_cpu_check_passive(const uint32_t *word, uint32_t until);
void imx_cpu_check_doing(const char *what, int plan); /* plan -1: as before */
void imx_cpu_check_doing_block(const char *what, const imbrexd_team *team,
                               const imbrexd_block *block); /* of a caller's kernel */

/* `to` goes on after what `from` did so far: blocks of a kernel. */
void imx_cpu_check_order(imx_cpu_check_thread *from, imx_cpu_check_thread *to);

/* The same name, which is there for good: reports may name a kernel that is gone. */
const char *imx_cpu_check_keep(const char *name);

/* A kernel that is not of the library's own build finds the checker here, if there is one. */
void imx_cpu_check_lend(const imbrexd_checker **checker);

/* The calling thread hands what it did so far over in *clock, to be freed, and another takes it. */
void imx_cpu_check_give(imx_cpu_check_clock **clock);
void imx_cpu_check_take(imx_cpu_check_clock *const *clock);

/* The device's host waits for a stream; then it has waited for it. */
void imx_cpu_check_host_waits(imx_device *device, const imx_cpu_check_thread *stream);
void imx_cpu_check_host_goes_on(imx_device *device, const imx_cpu_check_thread *stream);

/* The device's host reads what it has waited for, or so it thinks. */
void imx_cpu_check_host_reads(imx_device *device, const void *at, size_t bytes);

/* With the lock held: this thread has found a mistake.  point.plan 0: the thread's. */
void imx_cpu_check_report(const imx_cpu_check_thread *thread, imbrexd_wait_point point,
                          const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The sentence about a fault of a rank's; NULL: there is none. */
const char *imx_cpu_check_sentence(imx_device *device, const imbrexd_fault *fault);

imx_cpu_check_mark imx_cpu_check_mark_of(const imx_cpu_check_thread *thread);
void imx_cpu_check_join(imx_cpu_check_clock *into, const imx_cpu_check_clock *from);
void imx_cpu_check_advance(
    imx_cpu_check_thread *thread); /* what follows is not what was handed over */

static inline bool imx_cpu_check_before(const imx_cpu_check_mark *mark,
                                        const imx_cpu_check_thread *thread)
{
    return mark->epoch <= thread->clock.at[mark->thread];
}

/* "rank 1's copy (stream 2)" */
void imx_cpu_check_name(const imx_cpu_check_mark *mark, char *text, size_t size);

/* ---- check_words.c --------------------------------------------------------------------------- */

void imx_cpu_check_post(uint64_t *signal, uint64_t value, int adds);
void imx_cpu_check_wait(const uint64_t *signal, imbrexd_compare compare, uint64_t value,
                        imbrexd_wait_point point);
void imx_cpu_check_came(int arrived);
void imx_cpu_check_count(uint32_t *counter, int last);
void imx_cpu_check_fence(void);

/* ---- check_bytes.c --------------------------------------------------------------------------- */

void imx_cpu_check_memory(const imx_device *device, const imx_memory *memory);
void imx_cpu_check_memory_own(const imx_memory *memory, const imx_words *words, int count);
void imx_cpu_check_memory_gone(const imx_memory *memory);
imx_cpu_check_piece *
imx_cpu_check_piece_of(const void *at); /* locked; NULL: of no symmetric memory */

int imx_cpu_check_access(const void *at, size_t bytes, size_t stride, size_t rows, int writes);

/* Locked; by a thread that need not be the calling one.  False: a mistake, which was reported. */
bool imx_cpu_check_read_by(const imx_cpu_check_thread *thread, const void *at, size_t bytes);

/* ---- check_stuck.c --------------------------------------------------------------------------- */

/* The calling thread has waited for a while. */
void imx_cpu_check_held(void);

#endif /* IMX_CPU_CHECK_H */
