/* test_collective_failure.c - collective calls in whose middle something happens: an allgather fails
 * on one rank alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "imbrex_device.h"
#include "ranks.h"

/* ---- an allgather that fails on one rank ----------------------------------------------------- */

/* The meetings of imbrex_mem_alloc. */
enum { AGREES = 1, SWAPS, AGREES_AGAIN };
enum { SLOW_MS = 200, BYTES = 1 << 20 };

/* Over another bootstrap; counts what is gathered once it is armed. */
typedef struct flaky {
    const imbrex_bootstrap *inner;
    int fails_at; /* on rank 0, which has what the others brought only if it is SWAPS */
    bool armed;
    int count;
} flaky;

static int gather(void *ctx, const void *send, void *recv, size_t bytes)
{
    flaky *f = ctx;
    f->count += f->armed;
    bool fails = f->armed && f->count == f->fails_at && f->inner->rank == 0;
    if (fails && f->count == AGREES_AGAIN)
        return 1;
    int failed = f->inner->allgather(f->inner->ctx, send, recv, bytes);
    if (f->armed && f->count == SWAPS && f->inner->rank == 1)
        usleep((useconds_t)patient(SLOW_MS) * 1000);
    return failed || fails;
}

/* Rank 0 has freed its piece by the time that rank 1 comes to share it; sanitizers see the use. */
static int shares_late(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    flaky f = { .inner = bootstrap, .fails_at = *(const int *)ctx };
    const imbrex_bootstrap own = { rank, bootstrap->size, gather, &f };
    imbrex_group *group;
    void *memory = NULL;
    RANK_OK(
        imbrex_group_create(&(imbrex_group_desc){ .bootstrap = &own, .device = "cpu" }, &group));
    f.armed = true;
    imbrex_status status = imbrex_mem_alloc(group, BYTES, &memory);
    RANK_CHECK(status == IMBREX_PEER && !memory, "rank %d: %s: %s", rank,
               imbrex_status_name(status), imbrex_error());
    imbrex_group_destroy(group);
    return 0;
}

static void memory_that_is_freed_is_not_shared(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .meeting_s = 2 };
    for (int at = SWAPS; at <= AGREES_AGAIN; at++)
        assert_int_equal(ranks_run_bare(&desc, shares_late, &at), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_that_is_freed_is_not_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
