/* test_api.c - groups, symmetric memory, one-sided operations, streams, silu_mul, texts and spans,
 * on 1 to 4 ranks, threads and processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "imbrex_device.h"
#include "ranks.h"
#include "reference.h"

static void on_all(rank_main run)
{
    for (int size = 1; size <= 4; size++) {
        for (int processes = 0; processes < 2; processes++) {
            ranks_desc desc = { .size = size, .processes = processes };
            assert_int_equal(ranks_run(&desc, run, NULL), 0);
        }
    }
}

#define ON_ALL(name, run)          \
    static void name(void **state) \
    {                              \
        (void)state;               \
        on_all(run);               \
    }

/* ---- symmetric memory ------------------------------------------------------------------------ */

static int memory(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    static const size_t sizes[] = { 1, 255, 4096, 100001 };
    for (size_t s = 0; s < 4; s++) {
        void *ptr;
        RANK_OK(imbrex_mem_alloc(group, sizes[s], &ptr));
        RANK_CHECK((uintptr_t)ptr % 256 == 0, "%p is not 256-byte aligned", ptr);
        unsigned char *own = ptr;
        for (size_t i = 0; i < sizes[s]; i++)
            RANK_CHECK(own[i] == 0, "byte %zu of new memory is %d", i, own[i]);
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));

        /* Every rank writes the last byte, which is its own, of everyone's memory in turn. */
        size_t at = sizes[s] - 1;
        for (int turn = 0; turn < ranks; turn++) {
            void *peer, *base;
            RANK_OK(imbrex_mem_peer(group, own + at, turn, &peer));
            RANK_OK(imbrex_mem_peer(group, own, turn, &base));
            RANK_CHECK((char *)peer - (char *)base == (ptrdiff_t)at, "interior: %td, want %zu",
                       (char *)peer - (char *)base, at);
            RANK_CHECK(turn != rank || peer == own + at, "own memory at %p, not %p", peer,
                       (void *)(own + at));
            if ((turn + 1) % ranks == rank)
                *(unsigned char *)peer = (unsigned char)(rank + 1);
        }
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        int want = (rank + 1) % ranks + 1;
        RANK_CHECK(own[at] == want, "the last byte is %d, want %d", own[at], want);
        void *peer;
        if (at > 0)
            imbrex_mem_free(group, own + at);
        RANK_OK(imbrex_mem_peer(group, own, rank, &peer));
        imbrex_mem_free(group, own);
        RANK_CHECK(imbrex_mem_peer(group, own, rank, &peer) == IMBREX_INVALID, "it was not freed");
    }
    imbrex_mem_free(group, NULL);
    return 0;
}

ON_ALL(symmetric_memory, memory)

/* ---- put, post, wait ------------------------------------------------------------------------- */

enum { ROUNDS = 50, WORDS = 300 };

/* A ring: each rank puts a block to the next and raises its signal; data goes on one stream, the
 * reader works on another, and gives the writer its credit. */
static int ring(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    void *inbox, *words;
    imbrex_stream sender, reader;
    RANK_OK(imbrex_mem_alloc(group, WORDS * sizeof(int), &inbox));
    RANK_OK(imbrex_mem_alloc(group, 2 * sizeof(uint64_t), &words));
    RANK_OK(imbrex_stream_create(group, &sender));
    RANK_OK(imbrex_stream_create(group, &reader));
    uint64_t *arrived = words, *credit = arrived + 1;
    int(*out)[WORDS] = malloc(ROUNDS * sizeof *out), (*in)[WORDS] = malloc(ROUNDS * sizeof *in);
    for (int i = 0; i < ROUNDS * WORDS; i++)
        out[i / WORDS][i % WORDS] = rank * 1000000 + i;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        RANK_OK(imbrex_signal_wait(group, credit, i, sender));
        RANK_OK(imbrex_put(group, inbox, out[i], sizeof out[i], next, sender));
        RANK_OK(imbrex_signal_post(group, arrived, i + 1, next, sender));
        RANK_OK(imbrex_signal_wait(group, arrived, i + 1, reader));
        RANK_OK(imbrex_copy(group, in[i], inbox, sizeof in[i], reader));
        RANK_OK(imbrex_signal_post(group, credit, i + 1, before, reader));
    }
    RANK_OK(imbrex_stream_sync(group, reader));
    RANK_OK(imbrex_stream_sync(group, sender));
    for (int i = 0; i < ROUNDS * WORDS; i++) {
        int want = before * 1000000 + i;
        RANK_CHECK(in[i / WORDS][i % WORDS] == want, "word %d is %d, want %d", i,
                   in[i / WORDS][i % WORDS], want);
    }
    free(out);
    free(in);
    imbrex_stream_destroy(group, sender);
    imbrex_stream_destroy(group, reader);
    imbrex_stream_destroy(group, NULL);
    return 0;
}

ON_ALL(put_post_wait, ring)

/* A stream that waits holds up no other; a post between streams of one rank lets it go. */
static int two_streams(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    void *word;
    imbrex_stream held, free_one;
    RANK_OK(imbrex_mem_alloc(group, sizeof(uint64_t), &word));
    RANK_OK(imbrex_stream_create(group, &held));
    RANK_OK(imbrex_stream_create(group, &free_one));
    int one = 1, seen = 0, other = 0;
    RANK_OK(imbrex_signal_wait(group, word, 7, held));
    RANK_OK(imbrex_copy(group, &seen, &one, sizeof one, held));
    RANK_OK(imbrex_copy(group, &other, &one, sizeof one, free_one));
    RANK_OK(imbrex_stream_sync(group, free_one));
    RANK_CHECK(other == 1 && __atomic_load_n(&seen, __ATOMIC_RELAXED) == 0, "other %d, seen %d",
               other, seen);
    RANK_OK(imbrex_signal_post(group, word, 7, rank, free_one));
    RANK_OK(imbrex_stream_sync(group, held));
    RANK_CHECK(seen == 1, "seen is %d", seen);
    return 0;
}

ON_ALL(streams_run_at_once, two_streams)

static int barriers(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    void *board;
    RANK_OK(imbrex_mem_alloc(group, 4 * sizeof(int), &board));
    int seen[2][4] = { { 0 } };
    for (int i = 1; i <= 1000; i++) {
        /* Between two barriers everyone's word is i; before and after it may not be. */
        for (int r = 0; r < ranks; r++)
            RANK_OK(imbrex_put(group, (int *)board + rank, &i, sizeof i, r, NULL));
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_copy(group, seen[i % 2], board, sizeof seen[0], NULL));
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        for (int r = 0; r < ranks; r++)
            RANK_CHECK(seen[i % 2][r] == i, "barrier %d: rank %d's word is %d", i, r,
                       seen[i % 2][r]);
    }
    return 0;
}

static void barrier_1000_times(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size += 3) {
        for (int processes = 0; processes < 2; processes++) {
            ranks_desc desc = { .size = size, .processes = processes };
            assert_int_equal(ranks_run(&desc, barriers, NULL), 0);
        }
    }
}

/* ---- silu_mul -------------------------------------------------------------------------------- */

enum { SILU_ROWS = 33, SILU_COLS = 70 };

static int check_silu(imbrex_dtype dtype, const char *in, const char *out)
{
    double epsilon = dtype == IMBREX_F32 ? 1e-6 : dtype == IMBREX_F16 ? 0x1p-11 : 0x1p-8;
    for (int i = 0; i < SILU_ROWS * SILU_COLS; i++) {
        int64_t at = (int64_t)(i / SILU_COLS) * 2 * SILU_COLS + i % SILU_COLS;
        double gate = element_get(dtype, in, at), up = element_get(dtype, in, at + SILU_COLS);
        double want = gate / (1 + exp(-gate)) * up, have = element_get(dtype, out, i);
        RANK_CHECK(fabs(have - want) <= epsilon * 1.01 * fabs(want) + 1e-7,
                   "dtype %d: out[%d] is %.9g, want %.9g", (int)dtype, i, have, want);
    }
    return 0;
}

/* On two streams at once, which share the group's one kernel. */
static int silu(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_stream streams[2] = { NULL, NULL };
    RANK_OK(imbrex_stream_create(group, &streams[1]));
    char *in = malloc(SILU_ROWS * SILU_COLS * 8), *out[20];
    for (int d = IMBREX_BF16; d <= IMBREX_F32; d++) {
        input_fill((imbrex_dtype)d, d, 0, in, SILU_ROWS * SILU_COLS * 2);
        for (int i = 0; i < 20; i++) {
            out[i] = malloc(SILU_ROWS * SILU_COLS * 4);
            RANK_OK(imbrex_silu_mul(group, (imbrex_dtype)d, SILU_ROWS, SILU_COLS, in, out[i],
                                    streams[i % 2]));
        }
        RANK_OK(imbrex_silu_mul(group, (imbrex_dtype)d, 0, SILU_COLS, NULL, NULL, NULL));
        RANK_OK(imbrex_stream_sync(group, streams[0]));
        RANK_OK(imbrex_stream_sync(group, streams[1]));
        int failed = 0;
        for (int i = 0; i < 20; i++) {
            failed = failed || check_silu((imbrex_dtype)d, in, out[i]);
            free(out[i]);
        }
        RANK_CHECK(!failed, "two streams");
    }
    /* What is still under way when the group is destroyed ends first. */
    static char late[SILU_ROWS * SILU_COLS * 4];
    static char zeros[SILU_ROWS * SILU_COLS * 8];
    if (imbrex_group_rank(group) == 0) {
        for (int i = 0; i < 50; i++)
            RANK_OK(imbrex_silu_mul(group, IMBREX_F32, SILU_ROWS, SILU_COLS, zeros, late,
                                    streams[i % 2]));
    }
    free(in);
    return 0;
}

static void silu_mul(void **state)
{
    (void)state;
    setenv("IMBREX_CPU_THREADS", "2", 1);
    on_all(silu);
    unsetenv("IMBREX_CPU_THREADS");
}

/* ---- abort ----------------------------------------------------------------------------------- */

static void *abort_soon(void *group)
{
    usleep(30000);
    imbrex_group_abort(group);
    return NULL;
}

static int abort_group(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    void *word;
    RANK_OK(imbrex_mem_alloc(group, 8, &word));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_OK(imbrex_group_status(group));
    int64_t begin_ns = imbrexd_now_ns();
    pthread_t thread;
    if (rank == ranks - 1)
        pthread_create(&thread, NULL, abort_soon, group);
    imbrex_status status = imbrex_signal_wait(group, word, 1, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    if (rank == ranks - 1)
        pthread_join(thread, NULL);
    char who[64];
    snprintf(who, sizeof who, "rank %d%s called imbrex_group_abort", ranks - 1,
             rank == ranks - 1 ? " (this rank)" : "");
    RANK_CHECK(status == IMBREX_PEER && strstr(imbrex_error(), who), "%s: '%s', want '%s'",
               imbrex_status_name(status), imbrex_error(), who);
    RANK_CHECK(took_ms < 10000, "the wait ended after %lld ms", (long long)took_ms);
    RANK_CHECK(imbrex_group_status(group) == IMBREX_PEER, "%s", imbrex_error());
    return 0;
}

ON_ALL(abort_from_another_thread, abort_group)

/* The last rank says why, more than once; all wait for it. */
static int abort_because(imbrex_group *group, const char *why, const char *heard)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    void *word = NULL;
    imbrex_status status = imbrex_mem_alloc(group, 8, &word);
    if (rank == ranks - 1) {
        RANK_CHECK(status == IMBREX_OK, "%s", imbrex_error());
        imbrex_group_abort_because(group, why);
        imbrex_group_abort_because(group, "too late");
    }
    if (status == IMBREX_OK)
        status = imbrex_signal_wait(group, word, 1, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    RANK_CHECK(status == IMBREX_PEER, "%s: '%s'", imbrex_status_name(status), imbrex_error());
    const char *said = strstr(imbrex_error(), "called imbrex_group_abort");
    RANK_CHECK(said && strcmp(said, heard) == 0, "'%s', want '%s'", imbrex_error(), heard);
    return 0;
}

static int abort_with_reason(imbrex_group *group, void *ctx)
{
    (void)ctx;
    return abort_because(group, "KeyError: 'x'\x1b[31m\n\xc2\x9b\x7f of \xc3\xa9",
                         "called imbrex_group_abort: KeyError: 'x'?[31m??? of \xc3\xa9");
}

ON_ALL(abort_says_why, abort_with_reason)

/* Of two bytes a character, behind one of one: the 128th would be cut in two. */
static int abort_with_much(imbrex_group *group, void *ctx)
{
    (void)ctx;
    char why[1024] = "x", heard[1024] = "called imbrex_group_abort: x";
    for (int i = 0; i < 400; i++)
        strcat(why, "\xc3\xa9");
    for (int i = 0; i < 127; i++)
        strcat(heard, "\xc3\xa9");
    return abort_because(group, why, heard);
}

ON_ALL(abort_cuts_its_reason, abort_with_much)

/* ---- texts ----------------------------------------------------------------------------------- */

/* As snprintf: the length of the whole, at most size bytes, the NUL among them. */
#define CHECK_TEXT(call, part)                                                                     \
    do {                                                                                           \
        char text[4096], small[4096];                                                              \
        size_t size = 0;                                                                           \
        char *at = NULL;                                                                           \
        size_t whole = (call);                                                                     \
        RANK_CHECK(whole > 0 && whole < sizeof text, "the length is %zu", whole);                  \
        at = text, size = sizeof text;                                                             \
        RANK_CHECK((call) == whole && strlen(text) == whole, "%zu, not %zu", strlen(text), whole); \
        RANK_CHECK(strstr(text, part), "'%s' has no '%s'", text, part);                            \
        for (size = 1; size <= whole + 1; size += size < whole ? whole - 1 : 1) {                  \
            at = memset(small, 'x', sizeof small);                                                 \
            RANK_CHECK((call) == whole, "size %zu: another length", size);                         \
            RANK_CHECK(small[size - 1] == 0 && small[size] == 'x' &&                               \
                           memcmp(small, text, size - 1) == 0,                                     \
                       "size %zu: '%.*s'", size, (int)size, small);                                \
        }                                                                                          \
    } while (0)

static int texts(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan;
    imbrex_gemm_desc desc = { .m = 64, .n = 32, .k = 16, .algorithm = "sequential" };
    RANK_OK(imbrex_plan_gemm_rs(group, &desc, &plan));
    CHECK_TEXT(imbrex_plan_describe(plan, at, size), "gemm_rs m=64 n=32 k=16");
    CHECK_TEXT(imbrex_plan_facts(plan, at, size), "\"algorithm\": \"sequential\"");
    CHECK_TEXT(imbrex_info(at, size), "version: 0.1.0\n");
    for (int s = IMBREX_OK; s <= IMBREX_INTERNAL; s++)
        RANK_CHECK(strncmp(imbrex_status_name((imbrex_status)s), "IMBREX_", 7) == 0, "%d", s);
    RANK_CHECK(imbrex_status_name((imbrex_status)99), "NULL");
    return 0;
}

ON_ALL(texts_are_cut_as_by_snprintf, texts)

/* ---- spans ----------------------------------------------------------------------------------- */

static int spans(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { MOST = 1000 };
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    static _Thread_local imbrex_span got[MOST];
    static const float a[64 * 16], b[32 * 16];
    float *c = malloc(64 * 32 * sizeof *c);
    imbrex_plan *plan;
    imbrex_gemm_desc desc = { .m = 64,
                              .n = 32,
                              .k = 16,
                              .dtype = IMBREX_F32,
                              .chunk_rows = 4,
                              .algorithm = ranks > 1 ? "copy" : "sequential" };
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plan));
    RANK_CHECK(imbrex_trace_spans(group, NULL, 0) == 0, "spans without a trace");
    size_t counts[4] = { 0 }, all = 0;
    for (int pass = 0; pass < 2; pass++) { /* room for all; room for three */
        RANK_OK(imbrex_trace(group, pass ? 3 : MOST));
        int64_t begin_ns = imbrexd_now_ns();
        RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .b = b, .c = c }, NULL));
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        size_t count = imbrex_trace_spans(group, got, MOST);
        for (size_t i = 0; i < count; i++) {
            const imbrex_span *s = &got[i];
            RANK_CHECK(s->begin_ns >= begin_ns && s->end_ns >= s->begin_ns && s->name[0] &&
                           (unsigned)s->kind <= IMBREX_SPAN_TILE && s->peer < ranks &&
                           (s->kind != IMBREX_SPAN_COPY || s->bytes > 0),
                       "span %zu, '%s', kind %d, peer %d, from %lld to %lld", i, s->name,
                       (int)s->kind, s->peer, (long long)s->begin_ns, (long long)s->end_ns);
            counts[s->kind] += !pass;
        }
        all = pass ? all : count;
        RANK_CHECK(!pass || count == 3, "a trace of 3 has %zu spans", count);
        RANK_CHECK(imbrex_trace_spans(group, NULL, 0) == count, "the count changes");
    }
    int64_t rows = rank_row(64, ranks, rank + 1) - rank_row(64, ranks, rank);
    size_t copies = (size_t)((rows + 3) / 4) * (size_t)(ranks - 1);
    RANK_CHECK(counts[IMBREX_SPAN_COPY] == copies && counts[IMBREX_SPAN_KERNEL] == 1 &&
                   counts[IMBREX_SPAN_TILE] >= 16 && (ranks == 1) == !counts[IMBREX_SPAN_WAIT],
               "%zu spans: %zu copies (want %zu), %zu waits, %zu kernels, %zu tiles", all,
               counts[0], copies, counts[1], counts[2], counts[3]);
    RANK_OK(imbrex_trace(group, 0));
    RANK_CHECK(imbrex_trace_spans(group, got, MOST) == 0, "spans after the trace");
    RANK_CHECK(imbrex_trace(group, SIZE_MAX / 2) == IMBREX_NO_MEMORY, "%s", imbrex_error());
    free(c);
    return 0;
}

ON_ALL(trace_records_spans, spans)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(symmetric_memory),
        cmocka_unit_test(put_post_wait),
        cmocka_unit_test(streams_run_at_once),
        cmocka_unit_test(barrier_1000_times),
        cmocka_unit_test(silu_mul),
        cmocka_unit_test(abort_from_another_thread),
        cmocka_unit_test(abort_says_why),
        cmocka_unit_test(abort_cuts_its_reason),
        cmocka_unit_test(texts_are_cut_as_by_snprintf),
        cmocka_unit_test(trace_records_spans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
