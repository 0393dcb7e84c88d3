/* test_device.c - the primitives of imbrex_device.h: what they do between ranks that are threads,
 * that the same names compile for GPUs, and that the headers are plain C11 and C++17. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "backends/cuda/nvrtc.h"
#include "device_source.h"
#include "group/group.h"
#include "ranks.h"
#include "sanitized.h"

/* ---- between ranks --------------------------------------------------------------------------- */

enum { WORDS = 1000, ROUNDS = 300, RANKS_MOST = 8 };

/* What each rank has in symmetric memory. */
typedef struct piece {
    uint64_t words[IMBREXD_TEAM_WORDS(RANKS_MOST)]; /* the team's */
    uint64_t sum, posted;
    uint32_t data[RANKS_MOST][WORDS]; /* from each rank */
} piece;

typedef struct place {
    imbrexd_team team;
    char *base[RANKS_MOST];
    uint64_t *words[RANKS_MOST];
    piece *own;
    const imbrexd_watch *watch;
} place;

static int find_place(imbrex_group *group, place *p)
{
    void *own, *peer;
    RANK_OK(imbrex_mem_alloc(group, sizeof(piece), &own));
    *p = (place){ .own = own, .watch = &group->watch };
    p->team = (imbrexd_team){ .rank = imbrex_group_rank(group),
                              .size = imbrex_group_size(group),
                              .base = p->base,
                              .bytes = sizeof(piece),
                              .words = p->words,
                              .watch = group->watch };
    for (int r = 0; r < p->team.size; r++) {
        RANK_OK(imbrex_mem_peer(group, own, r, &peer));
        p->base[r] = peer;
        p->words[r] = ((piece *)peer)->words;
    }
    for (int r = 0; r < p->team.size; r++) {
        uint32_t *there = imbrexd_peer(&p->team, r, p->own->data[1] + 5);
        RANK_CHECK((char *)there == p->base[r] + offsetof(piece, data) + (WORDS + 5) * 4,
                   "rank %d's copy lies elsewhere", r);
    }
    return 0;
}

static const imbrexd_wait_point here = { .rank = -1, .index = -1 };

/* Every rank writes to all, three ways; a barrier; every rank reads what all wrote; a barrier. */
static int puts_and_barriers(imbrex_group *group, void *ctx)
{
    (void)ctx;
    void (*const put[])(void *, const void *, size_t) = { imbrexd_put_thread, imbrexd_put_warp,
                                                          imbrexd_put_block };
    place p;
    if (find_place(group, &p))
        return 1;
    uint32_t mine[WORDS];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < WORDS; i++)
            mine[i] = round * 1000003 + (uint32_t)p.team.rank * 7919 + i;
        for (int r = 0; r < p.team.size; r++)
            put[round % 3](imbrexd_peer(&p.team, r, p.own->data[p.team.rank]), mine, sizeof mine);
        RANK_CHECK(imbrexd_barrier_all(&p.team), "%u", round);
        for (int r = 0; r < p.team.size; r++) {
            for (uint32_t i = 0; i < WORDS; i++) {
                uint32_t want = round * 1000003 + (uint32_t)r * 7919 + i;
                RANK_CHECK(p.own->data[r][i] == want, "round %u, rank %d, word %u: %u, want %u",
                           round, r, i, p.own->data[r][i], want);
            }
        }
        RANK_CHECK(imbrexd_barrier_all(&p.team), "%u", round);
    }
    return 0;
}

/* All ranks add to rank 0's signal; whoever sees the whole sees what all wrote before. */
static int sums(imbrex_group *group, void *ctx)
{
    (void)ctx;
    place p;
    if (find_place(group, &p))
        return 1;
    int ranks = p.team.size;
    uint64_t round_sum = (uint64_t)ranks * (uint64_t)(ranks + 1) / 2;
    piece *first = imbrexd_peer(&p.team, 0, p.own);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        first->data[p.team.rank][0] = (uint32_t)round;
        imbrexd_signal_add(&first->sum, (uint64_t)p.team.rank + 1);
        if (p.team.rank == 0) {
            RANK_CHECK(imbrexd_signal_wait(p.watch, &p.own->sum, round * round_sum, here), "sum");
            for (int r = 0; r < ranks; r++)
                RANK_CHECK(p.own->data[r][0] == round, "round %d, rank %d: %u", (int)round, r,
                           p.own->data[r][0]);
            for (int r = 1; r < ranks; r++)
                imbrexd_signal_post(imbrexd_peer(&p.team, r, &p.own->posted), round);
        } else {
            RANK_CHECK(imbrexd_signal_wait(p.watch, &p.own->posted, round, here), "post");
        }
    }
    RANK_CHECK(p.team.rank || p.own->sum == ROUNDS * round_sum, "the sum is %llu",
               (unsigned long long)p.own->sum);
    return 0;
}

/* A relay of plain data under loads and stores with an order. */
static int loads_and_stores(imbrex_group *group, void *ctx)
{
    (void)ctx;
    place p;
    if (find_place(group, &p))
        return 1;
    piece *next = imbrexd_peer(&p.team, (p.team.rank + 1) % p.team.size, p.own);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t want = p.team.rank ? round : round - 1; /* rank 0 begins each round */
        while ((round % 2 ? imbrexd_load_acquire : imbrexd_load_acquire_gpu)(&p.own->posted) <
               want) {
            RANK_OK(imbrex_group_status(group));
            sched_yield(); /* there may be fewer processors than ranks */
        }
        RANK_CHECK(p.own->data[0][0] == (uint32_t)want, "round %d: %u, want %u", (int)round,
                   p.own->data[0][0], (uint32_t)want);
        next->data[0][0] = (uint32_t)round;
        (round % 2 ? imbrexd_store_release : imbrexd_store_release_gpu)(&next->posted, round);
    }
    return imbrexd_barrier_all(&p.team) ? 0 : 1;
}

/* Rank 1 does not come: the others' barrier gives up, and the fault says who is missing. */
static int nobody_comes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    place p;
    if (find_place(group, &p))
        return 1;
    if (p.team.rank == 1) {
        while (imbrex_group_status(group) == IMBREX_OK)
            usleep(1000);
        return 0;
    }
    int64_t begin_ns = imbrexd_now_ns();
    int there = imbrexd_barrier_all(&p.team);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(!there && took_ms >= patient(300) - 10 && took_ms < patient(3000),
               "%d after %lld ms", there, (long long)took_ms);
    int said_by = (int)(__atomic_load_n(group->abort[p.team.rank], __ATOMIC_ACQUIRE) - 1);
    const imbrexd_fault *fault = &imx_control_of(group, said_by)->fault;
    RANK_CHECK(fault->kind == IMBREXD_FAULT_DEADLINE && fault->point.rank == 1, "%d of rank %d",
               fault->kind, fault->point.rank);
    return 0;
}

static void on_threads(rank_main run, int64_t timeout_ms)
{
    for (int size = 2; size <= 4; size++) {
        ranks_desc desc = { .size = size, .timeout_ms = timeout_ms };
        assert_int_equal(ranks_run(&desc, run, NULL), 0);
    }
}

static void what_is_put_is_there_after_a_barrier(void **state)
{
    (void)state;
    on_threads(puts_and_barriers, 0);
}

static void many_may_add_to_a_signal(void **state)
{
    (void)state;
    on_threads(sums, 0);
}

static void loads_acquire_what_stores_release(void **state)
{
    (void)state;
    on_threads(loads_and_stores, 0);
}

static void a_barrier_has_a_deadline(void **state)
{
    (void)state;
    on_threads(nobody_comes, 300);
}

/* ---- the same names on GPUs ------------------------------------------------------------------ */

/* Multicast is compiled for GPUs and run on CPUs only. */
static const char multimem[] =
    "extern \"C\" __global__ void all(const imbrexd_team team, arena *own)\n"
    "{\n"
    "    float *words = (float *)own->spot, sums[4];\n"
    "    imbrexd_multimem_add_f32x4(&team, words, sums);\n"
    "    sums[0] += imbrexd_multimem_add_f32(&team, words);\n"
    "    imbrexd_multimem_store_f32x4(&team, words + 4, sums);\n"
    "    imbrexd_multimem_store_u64(&team, own->signal, 1);\n"
    "    own->mine[0] = imbrexd_multimem_add_bf16x2(&team, own->back);\n"
    "    imbrexd_fence_tma();\n"
    "    imbrexd_fence_gpu();\n"
    "}\n";

static void all_compile_for_gpus(void **state)
{
    (void)state;
    const char *file = getenv("IMBREX_NVRTC");
    if (SANITIZED) /* only the compiler would be watched */
        skip();
    if (imx_nvrtc_open(file ? file : "") != IMBREX_OK) {
        print_message("skipped: %s\n", imbrex_error());
        skip();
    }
    char *kernels = device_source_all("#define IMBREXD_MULTIMEM");
    assert_non_null(kernels);
    size_t length = strlen(kernels);
    char *source = realloc(kernels, length + sizeof multimem);
    assert_non_null(source);
    memcpy(source + length, multimem, sizeof multimem);
    for (int arch = 80; arch <= 90; arch += 10) {
        void *cubin;
        size_t bytes = 0;
        if (imx_nvrtc_compile("test.cu", source, "", arch, &cubin, &bytes, NULL) != IMBREX_OK)
            fail_msg("sm_%d: %s", arch, imbrex_error());
        assert_true(bytes > 0);
        free(cubin);
    }
    free(source);
}

/* ---- plain C and C++ ------------------------------------------------------------------------- */

static void headers_compile_alone(void **state)
{
    (void)state;
    static const char *const compilers[] = { "gcc -x c -std=c11", "clang -x c -std=c11",
                                             "g++ -x c++ -std=c++17", "clang++ -x c++ -std=c++17" };
    static const char *const headers[] = { "imbrex.h", "imbrex_device.h" };
    const char *root = getenv("IMBREX_SOURCE_DIR");
    int compiled = 0;
    if (SANITIZED) /* which no compiler's verdict depends on */
        skip();
    for (int i = 0; i < 4; i++) {
        char command[1024];
        snprintf(command, sizeof command, "%.*s --version > /dev/null 2>&1",
                 (int)strcspn(compilers[i], " "), compilers[i]);
        if (system(command) != 0)
            continue;
        for (int h = 0; h < 2; h++) {
            snprintf(command, sizeof command,
                     "echo '#include \"%s\"' | %s -pedantic -Wall -Wextra -Wshadow -Werror "
                     "-fsyntax-only -I '%s/include' -",
                     headers[h], compilers[i], root ? root : ".");
            if (system(command) != 0)
                fail_msg("%s", command);
            compiled++;
        }
    }
    if (!compiled)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_is_there_after_a_barrier),
        cmocka_unit_test(many_may_add_to_a_signal),
        cmocka_unit_test(loads_acquire_what_stores_release),
        cmocka_unit_test(a_barrier_has_a_deadline),
        cmocka_unit_test(all_compile_for_gpus),
        cmocka_unit_test(headers_compile_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
