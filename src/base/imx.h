/* imx.h - what every file of imbrex may rely on: status, memory, time, numbers.
 *
 * Words used in this source
 *   rank      one member of a group; a process or a thread
 *   node      the ranks that reach each other's memory by load and store
 *   device    one opened accelerator (or the CPU) of one rank; made by a backend
 *   memory    a piece of device memory as this rank sees it: its own, or a peer's mapped here
 *   signal    a 64-bit word in symmetric memory, one writer, only grows
 *   counter   a 32-bit word of one rank that many blocks add to; the last one empties it
 *   buffer    one of a plan's two workspaces; runs take turns
 *   epoch     how often a buffer has been used, kept in device memory; its signals carry it
 *   credit    a reader's signal to a writer: this epoch of the buffer has been read
 *   point     what a wait waits for, as numbers that a device can record
 */
#ifndef IMX_H
#define IMX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "imbrex.h"

/* ---- status.c -------------------------------------------------------------------------------- */

#define IMX_MUST_CHECK __attribute__((warn_unused_result))

/* Returns on failure. */
#define IMX_TRY(call)                    \
    do {                                 \
        imbrex_status imx_try_ = (call); \
        if (imx_try_ != IMBREX_OK)       \
            return imx_try_;             \
    } while (0)

/* Jumps to fail: on failure, with the status in `status`. */
#define IMX_GOTO(call)                      \
    do {                                    \
        if ((status = (call)) != IMBREX_OK) \
            goto fail;                      \
    } while (0)

/* Every public function that can fail says its name first; imx_fail puts it in front of the
 * sentence. */
void imx_status_enter(const char *function);
const char *imx_status_function(void); /* the latest of this thread's; NULL: none */

/* Notes a sentence for imbrex_error() and returns status.  Whoever first knows the cause calls it;
 * callers pass the status on. */
imbrex_status imx_fail(imbrex_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same for a failed system call: adds errno's text. */
imbrex_status imx_fail_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* INVALID if argument is NULL: says so under its name, with a hint at what to do. */
imbrex_status imx_status_need(const void *argument, const char *name,
                              const char *hint) IMX_MUST_CHECK;

/* INVALID if there is no memory to be read, bytes of it or with 0 a string, as where nobody has
 * initialised a desc.  NULL is fine. */
imbrex_status imx_status_need_place(const void *at, size_t bytes, const char *name) IMX_MUST_CHECK;

/* INVALID if value is not from least to most: says so of of.name, or, where of is NULL, of name. */
imbrex_status imx_status_range(const char *of, const char *name, int64_t value, int64_t least,
                               int64_t most) IMX_MUST_CHECK;

/* UNSUPPORTED if a matrix of rows x cols, neither of them negative, has too many elements. */
imbrex_status imx_status_elements(const char *of, const char *name, int64_t rows,
                                  int64_t cols) IMX_MUST_CHECK;

/* UNSUPPORTED if a byte is not 0: name is the struct's.  reserved: says so of of.name. */
imbrex_status imx_status_reserved(const char *of, const char *name) IMX_MUST_CHECK;
imbrex_status imx_status_need_zero(const void *reserved, size_t bytes,
                                   const char *name) IMX_MUST_CHECK;

/* What fails between true and false is for imx_status_detail alone, and imbrex_error says what it
 * said before: so in functions that return no status, and where a failure is but an answer.  They
 * may be within each other. */
void imx_status_mute(bool mute);

/* The sentence without the function's name: what one rank tells the others. */
const char *imx_status_detail(void);

enum { IMX_STATUS_BYTES = 2048 }; /* of a sentence at most, and what a compiler said */

/* A string written into a caller's buffer as snprintf does: never past size; length: the whole. */
typedef struct imx_text {
    char *at;
    size_t size, length;
} imx_text;

void imx_text_add(imx_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Bytes of the control character at text, which terminals obey: below a blank, DEL, or U+0080 to
 * U+009F in UTF-8; 0: it is none. */
size_t imx_status_control(const char *text);

/* ---- sys.c ---------------------------------------------------------------------------------- */

/* Every call that can fail for want of something goes through one table, so that a test can make
 * the n-th fail. */

struct sockaddr;
struct msghdr;
struct pollfd;
struct iovec;

typedef struct imx_sys_table {
    void *(*calloc)(size_t count, size_t bytes);
    void *(*aligned_alloc)(size_t alignment, size_t bytes);
    int (*memfd_create)(const char *name, unsigned flags);
    int (*ftruncate)(int fd, long bytes);
    int (*fallocate)(int fd, long at, long bytes);
    void *(*mmap)(void *at, size_t bytes, int protection, int flags, int fd, long offset);
    int (*dup)(int fd);
    int (*socket)(int domain, int type, int protocol);
    int (*bind)(int fd, const struct sockaddr *address, unsigned length);
    int (*listen)(int fd, int backlog);
    int (*accept)(int fd, struct sockaddr *address, unsigned *length); /* CLOEXEC, non-blocking */
    int (*connect)(int fd, const struct sockaddr *address, unsigned length);
    long (*sendmsg)(int fd, const struct msghdr *message, int flags);
    long (*recvmsg)(int fd, struct msghdr *message, int flags);
    int (*poll)(struct pollfd *fds, unsigned long count, int timeout_ms);
    int (*eventfd)(unsigned value, int flags);
    int (*thread_create)(unsigned long *thread, void *(*run)(void *), void *arg); /* 0 or errno */
} imx_sys_table;

extern imx_sys_table imx_sys;

/* Zeroed host memory at *(void **)out; never NULL on OK, also for 0 bytes.  Free with free(). */
imbrex_status imx_sys_alloc(size_t count, size_t bytes, void *out) IMX_MUST_CHECK;

/* Whether there is memory to be read, all the bytes, or all of a string.  The kernel is asked. */
bool imx_sys_can_read(const void *at, size_t bytes);
bool imx_sys_can_read_string(const char *text);

/* false: errno says why not all of it. */
bool imx_sys_write_all(int fd, const void *from, size_t bytes);

/* ---- env.c ----------------------------------------------------------------------------------- */

/* The environment variables that imbrex itself knows, one row each, for the parser and for `imbrex
 * info`; docs/environment.md says more of each.  Rows: field, variable, kind, default, what it
 * does. */
#define IMX_ENV_TABLE(ROW)                                                                        \
    ROW(algorithm, "IMBREX_ALGORITHM", text, "", "algorithms of plans whose desc names none")     \
    ROW(cpu_threads, "IMBREX_CPU_THREADS", number, "1",                                           \
        "threads a rank computes with, if desc.sms does not say")                                 \
    ROW(cpu_link, "IMBREX_CPU_LINK", real, "0",                                                   \
        "GB/s of an emulated wire between CPU ranks; 0: none")                                    \
    ROW(cache_dir, "IMBREX_CACHE_DIR", text, "",                                                  \
        "folder of compiled kernels and of the tuning cache; unset: XDG_CACHE_HOME/imbrex or "    \
        "~/.cache/imbrex")                                                                        \
    ROW(rates, "IMBREX_RATES", text, "",                                                          \
        "file of the rates that GPUs' expected times are made of; unset: what `imbrex tune "      \
        "--device` kept, and what is built in")                                                   \
    ROW(cuda_arch, "IMBREX_CUDA_ARCH", number, "0",                                               \
        "80: kernels in the form for every GPU, also where there is a faster one; 0: the GPU's")  \
    ROW(cuda_memory, "IMBREX_CUDA_MEMORY", way, "",                                               \
        "vmm or ipc: how GPU memory passes between processes; unset: vmm where it can")           \
    ROW(nvrtc, "IMBREX_NVRTC", text, "", "file of NVIDIA's run-time compiler; unset: looked for") \
    ROW(cc, "IMBREX_CC", text, "",                                                                \
        "C compiler for kernels of one's own on CPU ranks; unset: cc, gcc or clang")              \
    ROW(chaos_ms, "IMBREX_CHAOS", number, "0",                                                    \
        "sleep up to so many milliseconds before copies, posts and kernels, for tests")           \
    ROW(check, "IMBREX_CHECK", flag, "0",                                                         \
        "1: watch the protocol of ranks that are threads of one process, on the CPU")             \
    ROW(node, "IMBREX_NODE", text, "",                                                            \
        "name of this rank's node; ranks of one host with different names are on several nodes")  \
    ROW(node_ranks, "IMBREX_NODE_RANKS", number, "0",                                             \
        "so many ranks that follow each other form a node, as a trial on one host; 0: all")       \
    ROW(net, "IMBREX_NET", text, "",                                                              \
        "file of the library that carries data between nodes; unset: looked for")                 \
    ROW(nccl, "IMBREX_NCCL", text, "",                                                            \
        "file of NVIDIA's library between nodes of GPUs; unset: looked for")                      \
    ROW(launcher, "IMBREX_LAUNCHER", text, "",                                                    \
        "launcher whose variables count: torchrun, mpirun, mpiexec, srun or none; unset: found")  \
    ROW(token, "IMBREX_TOKEN", text, "", "secret that ranks show each other when they meet")      \
    ROW(bind, "IMBREX_BIND", text, "", "address that rank 0 listens on, if not loopback")         \
    ROW(timeout_ms, "IMBREX_TIMEOUT_MS", number, "30000",                                         \
        "limit on any wait for a peer, if the group's desc does not say")                         \
    ROW(log, "IMBREX_LOG", level, "",                                                             \
        "info or debug: lines on stderr about groups, plans and failures; unset: none")

typedef char imx_env_text[384];
typedef imx_env_text imx_env_way; /* of memory: vmm or ipc */
typedef int64_t imx_env_number;
typedef imx_env_number imx_env_flag; /* 0 or 1 */
typedef double imx_env_real;
typedef enum imx_env_level { IMX_LOG_NOTHING, IMX_LOG_INFO, IMX_LOG_DEBUG } imx_env_level;

typedef struct imx_env {
#define IMX_ENV_FIELD(field, variable, kind, fallback, what) imx_env_##kind field;
    IMX_ENV_TABLE(IMX_ENV_FIELD)
#undef IMX_ENV_FIELD
} imx_env;

/* Reads the environment anew.  INVALID, with the variable and its value, if one does not parse:
 * that one then has its default, so that the rank can still tell the others. */
imbrex_status imx_env_read(imx_env *env) IMX_MUST_CHECK;

/* Adds a line for each variable: what it is now and what it does. */
void imx_env_info(imx_text *text);

/* Adds a line for each variable that looks like one of ours and is none. */
void imx_env_unknown(imx_text *text);

/* The same once a process, on stderr, of those alone that are a slip or two from one of ours. */
void imx_env_unknown_warn(void);

/* Any variable but launchers'; NULL: it is not set.  All are as good as not set where the process
 * has more rights than who started it (set-user-ID and the like): what he left in the environment
 * must not choose what runs with them. */
const char *imx_env_get(const char *variable);
bool imx_env_is_foreign(void); /* there it is so */

/* A whole decimal number, and a finite one with a point, whatever the locale; else false. */
bool imx_env_parse_int(const char *text, int64_t *value);
bool imx_env_parse_real(const char *text, double *value);

/* ---- numbers --------------------------------------------------------------------------------- */

enum { IMX_ELEMENTS_MOST_LOG2 = 56 }; /* of a matrix: keeps all sums of bytes far from overflow */
enum { IMX_TIMEOUT_MS = 30000, IMX_TIMEOUT_MS_MOST = 1000000000 }; /* 11 days */
enum { IMX_SIZE_MOST = INT32_MAX - 4096 }; /* m, n, k: an int still holds them in whole tiles */

static inline int64_t imx_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t imx_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
/* The limit of a wait for a peer; asked: 0 if nobody says. */
static inline int64_t imx_timeout_ms(int64_t asked)
{
    return imx_min(asked > 0 ? asked : IMX_TIMEOUT_MS, IMX_TIMEOUT_MS_MOST);
}
static inline int64_t imx_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline size_t imx_align(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}
/* Whether two ranges share a byte; one of NULL, or without bytes, shares none. */
static inline bool imx_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t at = (uintptr_t)a, other = (uintptr_t)b;
    return a && b && a_bytes && b_bytes &&
           (at < other ? other - at < a_bytes : at - other < b_bytes);
}
static inline size_t imx_dtype_bytes(imbrex_dtype dtype)
{
    return dtype >= IMBREX_E4M3 ? 1 : dtype == IMBREX_F32 ? 4 : 2;
}
enum { IMX_SCALING_BLOCK = 128 }; /* elements of a row, or of a column of b, under one scale */

/* E4M3 and E5M2. */
static inline bool imx_dtype_is_8bit(imbrex_dtype dtype)
{
    return dtype == IMBREX_E4M3 || dtype == IMBREX_E5M2;
}
/* A count of a run, of which the plan allows `most`. */
static inline int64_t imx_count(int64_t asked, int64_t most)
{
    return asked == 0 ? most : asked == IMBREX_NONE ? 0 : asked;
}

/* DEFAULT stands for another one: a desc's dtype for BF16. */
static inline imbrex_dtype imx_dtype_or(imbrex_dtype dtype, imbrex_dtype otherwise)
{
    return dtype == IMBREX_DTYPE_DEFAULT ? otherwise : dtype;
}

enum { IMX_DTYPES = 6 };
extern const char *const imx_dtype_names[IMX_DTYPES]; /* by imbrex_dtype: "bf16" */
const char *imx_dtype_name(imbrex_dtype dtype);       /* the same, of any number */

#endif /* IMX_H */
