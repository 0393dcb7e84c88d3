/* test_check_host.c - what the host reads by itself: the checker finds a last wait that is missing,
 * and a write that does not wait for the host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "ranks.h"

enum { BYTES = 4096, ROUNDS = 4, LOOKS = 20000 };

typedef enum mistake { NONE, NO_WAIT, NO_SYNC, NO_CREDIT } mistake;

/* Symmetric: rank 1's data, its signal, and the credit that rank 0 gives. */
typedef struct box {
    int data[16];
    uint64_t sent, credit;
} box;

/* By other means than the library's, of which the checker knows nothing. */
static void await_data(const box *b, int round)
{
    for (int i = 0; i < LOOKS && __atomic_load_n(&b->data[15], __ATOMIC_ACQUIRE) < round; i++)
        usleep(1000);
}

static imbrex_status receive(imbrex_group *group, box *b, mistake what, int round)
{
    imbrex_status status = IMBREX_OK;
    if (what != NO_WAIT)
        status = imbrex_signal_wait(group, &b->sent, (uint64_t)round, NULL);
    if (status == IMBREX_OK && what != NO_SYNC)
        status = imbrex_stream_sync(group, NULL);
    await_data(b, round);
    if (status == IMBREX_OK)
        status = imbrex_check_read(group, b->data, sizeof b->data);
    if (status == IMBREX_OK)
        status = imbrex_signal_post(group, &b->credit, (uint64_t)round, 1, NULL);
    return status;
}

static imbrex_status send(imbrex_group *group, box *b, mistake what, int *numbers, int round)
{
    imbrex_status status = IMBREX_OK;
    for (int i = 0; i < 16; i++)
        numbers[i] = round;
    if (what != NO_CREDIT)
        status = imbrex_signal_wait(group, &b->credit, (uint64_t)round - 1, NULL);
    if (status == IMBREX_OK)
        status = imbrex_put(group, b->data, numbers, sizeof b->data, 0, NULL);
    if (status == IMBREX_OK)
        status = imbrex_signal_post(group, &b->sent, (uint64_t)round, 0, NULL);
    return status;
}

static const char *const sentences[] = {
    [NO_WAIT] = "the host of rank 0 reads bytes 0 to 64 of 4096 of rank 0's memory",
    [NO_SYNC] = "the host of rank 0 reads bytes 0 to 64 of 4096 of rank 0's memory",
    [NO_CREDIT] = "the host of rank 0", /* that reads, or has read: whoever comes second */
};

static int transfer(imbrex_group *group, void *ctx)
{
    mistake what = *(const mistake *)ctx;
    int numbers[ROUNDS + 1][16], rank = imbrex_group_rank(group);
    box *b;
    imbrex_status status = IMBREX_OK;
    RANK_OK(imbrex_mem_alloc(group, BYTES, (void **)&b));
    for (int round = 1; round <= ROUNDS && status == IMBREX_OK; round++)
        status =
            rank ? send(group, b, what, numbers[round], round) : receive(group, b, what, round);
    /* Nobody waits for the last credit. */
    if (status == IMBREX_OK)
        status = imbrex_barrier(group, NULL);
    imbrex_status synced = imbrex_stream_sync(group, NULL);
    status = status == IMBREX_OK ? synced : status;
    if (what == NONE)
        RANK_OK(status);
    else
        RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), sentences[what]), "%s: %s",
                   imbrex_status_name(status), status == IMBREX_OK ? "" : imbrex_error());
    return 0;
}

static void play(mistake what)
{
    ranks_desc desc = { .size = 2 };
    if (SANITIZED_THREADS && what != NONE)
        skip(); /* it says itself that this is a data race */
    setenv("IMBREX_CHECK", "1", 1);
    int failed = ranks_run(&desc, transfer, &what);
    unsetenv("IMBREX_CHECK");
    assert_int_equal(failed, 0);
}

#define PLAY(name, what)           \
    static void name(void **state) \
    {                              \
        (void)state;               \
        play(what);                \
    }

PLAY(what_is_waited_for_is_read, NONE)
PLAY(a_missing_wait_is_found, NO_WAIT)
PLAY(a_missing_sync_is_found, NO_SYNC)
PLAY(a_missing_credit_is_found, NO_CREDIT)

/* Where nobody checks, and of other memory, nothing is looked at. */
static int unchecked(imbrex_group *group, void *ctx)
{
    (void)ctx;
    void *memory;
    char other[8];
    RANK_OK(imbrex_mem_alloc(group, BYTES, &memory));
    RANK_OK(imbrex_check_read(group, memory, BYTES));
    RANK_OK(imbrex_check_read(group, other, sizeof other));
    RANK_OK(imbrex_check_read(group, NULL, 0));
    RANK_CHECK(imbrex_check_read(group, NULL, 8) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "imbrex_check_read: ptr is NULL"),
               "%s", imbrex_error());
    RANK_CHECK(imbrex_check_read(NULL, memory, 8) == IMBREX_INVALID, "of no group");
    return 0;
}

static void others_are_left_alone(void **state)
{
    (void)state;
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++) {
        ranks_desc desc = { .size = 2, .processes = processes };
        assert_int_equal(ranks_run(&desc, unchecked, NULL), 0);
    }
    setenv("IMBREX_CHECK", "1", 1);
    int failed = ranks_run(&(ranks_desc){ .size = 2 }, unchecked, NULL);
    unsetenv("IMBREX_CHECK");
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_waited_for_is_read), cmocka_unit_test(a_missing_wait_is_found),
        cmocka_unit_test(a_missing_sync_is_found),    cmocka_unit_test(a_missing_credit_is_found),
        cmocka_unit_test(others_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
