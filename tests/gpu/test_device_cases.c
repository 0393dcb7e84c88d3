/* test_device_cases.c - every primitive of imbrex_device.h between CPU ranks: device_cases.h, whose
 * kernels test_gpu_device.c runs on GPUs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#define IMBREXD_MULTIMEM
#include "imbrex_device.h"

#include "device_ranks.h"

#include "device_cases.h"
#include "device_cost.h"

#define ON_RANKS(title, kernel, rounds)                                                       \
    static void title(void **state)                                                           \
    {                                                                                         \
        (void)state;                                                                          \
        for (int size = 1; size <= 4; size++)                                                 \
            assert_int_equal(device_run_on(size, #kernel, kernel, device_rounds(rounds)), 0); \
    }

ON_RANKS(every_rank_finds_all_others, places, 7)
ON_RANKS(what_is_put_is_there_and_no_more, pushes, 200)
ON_RANKS(what_is_got_is_here, pulls, 200)
ON_RANKS(a_signal_comes_after_what_was_put, put_signals, 200)
ON_RANKS(signals_compare_six_ways, comparisons, 50)
ON_RANKS(whoever_comes_first_is_taken_first, comers, 200)
ON_RANKS(they_meet, meetings, 500)
ON_RANKS(the_root_gives_to_all, broadcasts, 200)
ON_RANKS(additions_are_whole, additions, 2000)
ON_RANKS(a_lock_locks, locks, 500)
ON_RANKS(words_carry_their_flags, flagged, 100)

/* ---- all ranks of a node at once ------------------------------------------------------------- */

/* Rank r brings r + 1, a quarter more in each word. */
static int multimem(imbrex_group *group, void *ctx)
{
    (void)ctx;
    device_place place;
    imbrexd_team team;
    if (device_team(group, &place, &team))
        return 1;
    int first = team.rank - team.node_rank;
    float *words = (float *)place.own->data[0], sums[4], want = 0;
    uint32_t *pairs = place.own->data[2];
    for (int i = 0; i < 4; i++)
        words[i] = (float)(team.rank + 1) + (float)i / 4;
    pairs[0] = imbrexd_bf16_of_float((float)(team.rank + 1)) |
               imbrexd_bf16_of_float(-0.5f * (float)team.rank) << 16;
    for (int i = 0; i < team.node_size; i++)
        want += (float)(first + i + 1);
    RANK_CHECK(imbrexd_barrier_all(&team), "barrier");
    RANK_CHECK(imbrexd_multimem_at(&team, words) == NULL, "a CPU has no multicast");
    RANK_CHECK(imbrexd_multimem_add_f32(&team, words) == want, "%g, want %g",
               (double)imbrexd_multimem_add_f32(&team, words), (double)want);
    imbrexd_multimem_add_f32x4(&team, words, sums);
    for (int i = 0; i < 4; i++) {
        float all = want + (float)(team.node_size * i) / 4;
        RANK_CHECK(sums[i] == all, "word %d: %g, want %g", i, (double)sums[i], (double)all);
    }
    uint32_t two = imbrexd_multimem_add_bf16x2(&team, pairs);
    float high = -0.5f * (want - (float)team.node_size);
    RANK_CHECK(imbrexd_float_of_bf16(two & 0xffff) == want &&
                   imbrexd_float_of_bf16(two >> 16) == high,
               "%g and %g, want %g and %g", (double)imbrexd_float_of_bf16(two & 0xffff),
               (double)imbrexd_float_of_bf16(two >> 16), (double)want, (double)high);

    /* Each rank of the node stores to words of its own in all of them. */
    float mine[4] = { want, (float)team.rank, 3, 4 };
    imbrexd_multimem_store_f32x4(&team, (float *)place.own->data[1] + 4 * team.rank, mine);
    imbrexd_multimem_store_u64(&team, &place.own->word[0][team.rank], (uint64_t)team.rank + 100);
    RANK_CHECK(imbrexd_barrier_all(&team), "barrier");
    for (int r = 0; r < team.size; r++) {
        int inside = r >= first && r < first + team.node_size;
        float have = ((float *)place.own->data[1])[4 * r + 1];
        uint64_t word = place.own->word[0][r];
        RANK_CHECK(have == (float)(inside ? r : 0), "rank %d stored %g", r, (double)have);
        RANK_CHECK(word == (uint64_t)(inside ? r + 100 : 0), "rank %d stored %d", r, (int)word);
    }
    RANK_CHECK(imbrexd_barrier_all(&team), "barrier");
    return 0;
}

static void a_node_is_reached_at_once(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) {
        ranks_desc desc = { .size = size };
        assert_int_equal(ranks_run(&desc, multimem, NULL), 0);
    }
}

static void bf16_is_rounded_to_even(void **state)
{
    (void)state;
    static const struct {
        float value;
        uint32_t bits;
    } cases[] = { { 0, 0 },
                  { 1, 0x3f80 },
                  { -2.5f, 0xc020 },
                  { 1.00390625f, 0x3f80 },
                  { 1.01171875f, 0x3f82 },
                  { 3.4028235e38f, 0x7f80 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(imbrexd_bf16_of_float(cases[i].value), cases[i].bits);
    float nan = imbrexd_float_of_bf16(imbrexd_bf16_of_float(strtof("nan", NULL)));
    assert_true(nan != nan);
}

/* ---- what it takes --------------------------------------------------------------------------- */

static void all_costs_can_be_taken(void **state)
{
    (void)state;
    for (uint64_t what = 0; what < COST_COUNT; what++)
        assert_int_equal(device_run_on(2, cost_names[what], cost, what | 10 << 8), 0);
}

/* ---- nobody comes ---------------------------------------------------------------------------- */

enum { TIMEOUT_MS = 200, ENOUGH_MS = 10000, KINDS = 9 };

/* The last rank stays away: each wait ends in time and says who is missing, and where. */
static int give_up(imbrex_group *group, void *ctx)
{
    uint64_t kind = *(const uint64_t *)ctx;
    device_place place;
    imbrexd_team team;
    outcome out = { 0 };
    char missing[32];
    if (device_team(group, &place, &team))
        return 1;
    int64_t begin_ns = imbrexd_now_ns();
    nobody(team, place.own, &out, kind);
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    snprintf(missing, sizeof missing, "rank %d", team.size - 1);
    RANK_CHECK((int)out.done == (team.rank < team.size - 1), "wait %d said %d", (int)kind,
               (int)out.done);
    RANK_CHECK(took_ms >= patient(TIMEOUT_MS) - 10 && took_ms < patient(TIMEOUT_MS + 3000),
               "wait %d: %lld ms", (int)kind, (long long)took_ms);
    RANK_CHECK(strstr(imbrex_error(), missing) && strstr(imbrex_error(), "in kernel "),
               "wait %d: '%s', want %s and a kernel", (int)kind, imbrex_error(), missing);
    return 0;
}

static void every_wait_has_a_deadline(void **state)
{
    (void)state;
    for (uint64_t kind = 0; kind < KINDS; kind++) {
        ranks_desc desc = { .size = 3, .timeout_ms = TIMEOUT_MS };
        assert_int_equal(ranks_run(&desc, give_up, &kind), 0);
    }
}

/* The last rank does not come, but has the group fail. */
static int give_up_early(imbrex_group *group, void *ctx)
{
    uint64_t kind = *(const uint64_t *)ctx;
    device_place place;
    imbrexd_team team;
    outcome out = { 0 };
    if (device_team(group, &place, &team))
        return 1;
    int64_t begin_ns = imbrexd_now_ns();
    if (team.rank == team.size - 1) {
        usleep(50000);
        imbrex_group_abort(group);
    }
    nobody(team, place.own, &out, kind);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK((int)out.done == (team.rank < team.size - 1), "wait %d said %d", (int)kind,
               (int)out.done);
    RANK_CHECK(imbrex_group_status(group) == IMBREX_PEER &&
                   strstr(imbrex_error(), "imbrex_group_abort"),
               "wait %d: %s", (int)kind, imbrex_error());
    RANK_CHECK(took_ms < ENOUGH_MS, "wait %d: %lld ms", (int)kind, (long long)took_ms);
    return 0;
}

static void an_abort_ends_every_wait(void **state)
{
    (void)state;
    for (uint64_t kind = 0; kind < KINDS; kind++) {
        ranks_desc desc = { .size = 3, .timeout_ms = 2 * ENOUGH_MS };
        assert_int_equal(ranks_run(&desc, give_up_early, &kind), 0);
    }
}

/* A wait for a rank that is not there is noted where nobody knows who has to post. */
static int wait_for_stranger(imbrex_group *group, void *ctx)
{
    int stranger = *(const int *)ctx;
    device_place place;
    imbrexd_team team;
    if (device_team(group, &place, &team))
        return 1;
    int64_t *waiting = calloc((size_t)team.size + 1, sizeof *waiting);
    team.watch.waiting = waiting;
    RANK_CHECK(!imbrexd_wait(&team, place.own->signal, 1, stranger), "the wait did not end");
    RANK_CHECK(!waiting[0] && waiting[team.size], "the wait was noted elsewhere");
    free(waiting);
    RANK_CHECK(imbrex_group_status(group) == IMBREX_TIMEOUT &&
                   strstr(imbrex_error(), "there are ranks 0 to 0"),
               "%s", imbrex_error());
    return 0;
}

static void strangers_are_named(void **state)
{
    (void)state;
    int strangers[] = { 1, 2, 1 << 20 };
    for (int i = 0; i < 3; i++) {
        ranks_desc desc = { .size = 1, .timeout_ms = TIMEOUT_MS };
        assert_int_equal(ranks_run(&desc, wait_for_stranger, &strangers[i]), 0);
    }
}

/* Nobody waits for a root that there is not. */
static int broadcast_from(imbrex_group *group, void *ctx)
{
    int root = *(const int *)ctx;
    device_place place;
    imbrexd_team team;
    if (device_team(group, &place, &team))
        return 1;
    RANK_CHECK(!imbrexd_broadcast(&team, place.own->data, place.own->mine, 8, root), "it came");
    RANK_CHECK(imbrex_group_status(group) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "calls imbrexd_broadcast for rank"),
               "%s", imbrex_error());
    return 0;
}

static void broadcasts_have_a_root(void **state)
{
    (void)state;
    int roots[] = { -1, 2, 1 << 20 };
    for (int i = 0; i < 3; i++) {
        ranks_desc desc = { .size = 2, .timeout_ms = 2 * ENOUGH_MS };
        assert_int_equal(ranks_run(&desc, broadcast_from, &roots[i]), 0);
    }
}

/* ---- another node ---------------------------------------------------------------------------- */

/* The last rank cannot be reached: who wants to meet all is told so at once. */
static int meet_all_over_nodes(imbrex_group *group, void *ctx)
{
    const bool *broadcasts_too = ctx;
    device_place place;
    imbrexd_team team;
    if (device_team(group, &place, &team))
        return 1;
    int last = team.size - 1, there;
    if (team.rank == last) /* its waits end too */
        return imbrexd_wait(&team, place.own->signal, 1, -1);
    place.base[last] = NULL;
    place.words[last] = NULL;
    RANK_CHECK(imbrexd_peer(&team, last, place.own) == NULL, "a peer on another node");
    if (*broadcasts_too)
        there = imbrexd_broadcast(&team, place.own->data, place.own->mine, 64, 0);
    else
        there = imbrexd_barrier_all(&team);
    RANK_CHECK(!there, "all came");
    RANK_CHECK(imbrex_group_status(group) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "rank 2 is on another node"),
               "%s", imbrex_error());
    return 0;
}

static void what_is_on_another_node_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool broadcasts_too = i;
        ranks_desc desc = { .size = 3 };
        assert_int_equal(ranks_run(&desc, meet_all_over_nodes, &broadcasts_too), 0);
    }
}

enum { PUT, GET, POST, ADD, PACK, ATOMIC, OWN, SIGNAL, FAR };

static void reach_far(const imbrexd_team *team, arena *own, uint64_t how)
{
    int last = team->size - 1;
    uint64_t *nowhere = how == SIGNAL ? NULL : imbrexd_peer(team, last, own);
    switch (how) {
    case PUT:
        imbrexd_put_block(nowhere, own->mine, 64);
        break;
    case GET:
        imbrexd_get_thread(own->mine, nowhere + 8, 64);
        break;
    case POST:
        imbrexd_signal_post(nowhere + 1, 1);
        break;
    case ADD:
        imbrexd_signal_op(nowhere, 1, IMBREXD_ADD);
        break;
    case PACK:
        imbrexd_ll_pack_block(nowhere, own->mine, 64, 1);
        break;
    case ATOMIC:
        imbrexd_atomic_add_u64(nowhere, 1, IMBREXD_RELAXED, IMBREXD_SYS);
        break;
    case OWN: /* the far rank is passed over, and what is NULL is another pointer */
        if (!nowhere)
            imbrexd_put_block(own->data, NULL, 64);
        break;
    default:
        imbrexd_signal_post(imbrexd_signal(team, last, 0), 1);
    }
}

/* A fault and no crash, on all ranks. */
static int send_over_nodes(imbrex_group *group, void *ctx)
{
    uint64_t how = *(const uint64_t *)ctx;
    const char *words = how == SIGNAL ? "calls imbrexd_signal, but rank 2 is on another node"
                                      : "uses NULL, either one of its own or what imbrexd_peer "
                                        "returned for rank 2, which is on another node";
    device_place place;
    imbrexd_team team;
    if (device_team(group, &place, &team))
        return 1;
    int last = team.size - 1;
    if (team.rank == 0) {
        place.base[last] = NULL;
        place.words[last] = NULL;
        reach_far(&team, place.own, how);
    } else {
        RANK_CHECK(!imbrexd_wait(&team, place.own->signal, 1, -1), "a wait did not end");
    }
    RANK_CHECK(imbrex_group_status(group) == IMBREX_INVALID && strstr(imbrex_error(), words),
               "%d: %s", (int)how, imbrex_error());
    return 0;
}

static void what_goes_to_another_node_is_told(void **state)
{
    (void)state;
    for (uint64_t how = 0; how < FAR; how++) {
        ranks_desc desc = { .size = 3 };
        assert_int_equal(ranks_run(&desc, send_over_nodes, &how), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_finds_all_others),
        cmocka_unit_test(what_is_put_is_there_and_no_more),
        cmocka_unit_test(what_is_got_is_here),
        cmocka_unit_test(a_signal_comes_after_what_was_put),
        cmocka_unit_test(signals_compare_six_ways),
        cmocka_unit_test(whoever_comes_first_is_taken_first),
        cmocka_unit_test(they_meet),
        cmocka_unit_test(the_root_gives_to_all),
        cmocka_unit_test(additions_are_whole),
        cmocka_unit_test(a_lock_locks),
        cmocka_unit_test(words_carry_their_flags),
        cmocka_unit_test(a_node_is_reached_at_once),
        cmocka_unit_test(bf16_is_rounded_to_even),
        cmocka_unit_test(all_costs_can_be_taken),
        cmocka_unit_test(every_wait_has_a_deadline),
        cmocka_unit_test(an_abort_ends_every_wait),
        cmocka_unit_test(strangers_are_named),
        cmocka_unit_test(broadcasts_have_a_root),
        cmocka_unit_test(what_is_on_another_node_is_named),
        cmocka_unit_test(what_goes_to_another_node_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
