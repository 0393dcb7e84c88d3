/* test_blocks.c - blocks of a caller's kernel on CPU ranks: memory of their own, and those of a
 * launch that run only after others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "net_threads.h"
#include "ranks.h"

/* In a rank: its stream, or what another rank has found, ends so; 0 if so. */
static int ends(imbrex_group *group, imbrex_status want, const char *says)
{
    imbrex_status status = imbrex_stream_sync(group, NULL);
    for (int64_t ms = patient(10000); ms && want != IMBREX_OK && status == IMBREX_OK; ms--) {
        usleep(1000);
        status = imbrex_group_status(group);
    }
    RANK_CHECK(status == want, "%s: %s, want %s", imbrex_status_name(status),
               status == IMBREX_OK ? "" : imbrex_error(), imbrex_status_name(want));
    RANK_CHECK(status == IMBREX_OK || strstr(imbrex_error(), says), "\"%s\", want \"%s\"",
               imbrex_error(), says);
    return 0;
}

/* ---- their memory ---------------------------------------------------------------------------- */

static const char fill_text[] =
    "#include \"imbrex_device.h\"\n"
    "typedef struct { size_t from, to; int block, *skewed; } fill_args;\n"
    "IMBREXD_KERNEL(fill, fill_args)\n"
    "{\n"
    "    char *shared = (char *)imbrexd_shared();\n"
    "    (void)team;\n"
    "    if ((uintptr_t)shared % 64)\n"
    "        *args->skewed = 1;\n"
    "    for (size_t i = args->from; i < args->to; i++)\n"
    "        if (imbrexd_block_index() == args->block)\n"
    "            shared[i] = 0;\n"
    "}\n";

typedef struct fill {
    size_t shared_bytes, from, to; /* zeroes these bytes of it */
    int resident, block;
    const char *says; /* NULL: nothing is wrong */
} fill;

static int fills(imbrex_group *group, void *ctx)
{
    const fill *f = ctx;
    imbrex_kernel *kernel;
    imbrex_kernel_desc desc = { .name = "fill",
                                .source = fill_text,
                                .resident = f->resident,
                                .shared_bytes = f->shared_bytes };
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    int skewed = 0;
    struct {
        size_t from, to;
        int block, *skewed;
    } args = { f->from, f->to, f->block, &skewed };
    if (imbrex_group_rank(group) == 1)
        RANK_OK(imbrex_launch(kernel, 4, 1, &args, sizeof args, NULL));
    int failed = ends(group, f->says ? IMBREX_INVALID : IMBREX_OK, f->says);
    RANK_CHECK(!skewed, "shared memory of %zu bytes is not aligned", f->shared_bytes);
    return failed;
}

#define BEYOND(bytes, block)                                         \
    "kernel fill wrote beyond its " bytes " bytes of shared memory " \
    "(desc.shared_bytes) in block " block ": ask for more"

static void own_memory(void **state)
{
    (void)state;
    static const fill rows[] = {
        { 0, 0, 0, 2, 0, NULL },
        { 64, 0, 64, 2, 3, NULL },
        { 61, 0, 61, 4, 2, NULL },
        { 100000, 0, 100000, 3, 1, NULL },
        { 0, 0, 1, 2, 0, BEYOND("0", "0") },
        { 0, 0, 1024, 4, 3, BEYOND("0", "3") },
        { 64, 0, 65, 2, 3, BEYOND("64", "3") },
        { 64, 64, 65, 1, 2, BEYOND("64", "2") },
        { 61, 0, 62, 4, 2, BEYOND("61", "2") },
        { 61, 70, 71, 4, 2, BEYOND("61", "2") },
        { 100000, 101023, 101024, 3, 1, BEYOND("100000", "1") },
    };
    for (int checked = 0; checked < 2; checked++) {
        setenv("IMBREX_CHECK", checked ? "1" : "0", 1);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            fill row = rows[i];
            ranks_desc desc = { .size = 2 };
            assert_int_equal(ranks_run(&desc, fills, &row), 0);
        }
    }
    unsetenv("IMBREX_CHECK");
}

/* ---- those that run only after others -------------------------------------------------------- */

/* All blocks of a launch wait for all, first in a loop of their own if it loops; one may say
 * nothing. */
static const char meet_text[] =
    "#include \"imbrex_device.h\"\n"
    "typedef struct { int silent, loops; } meet_args;\n"
    "IMBREXD_KERNEL(meet, meet_args)\n"
    "{\n"
    "    uint64_t epoch = imbrexd_epoch(team);\n"
    "    if (imbrexd_block_index() != args->silent)\n"
    "        imbrexd_signal_post(imbrexd_signal(team, team->rank, imbrexd_block_index()), epoch);\n"
    "    imbrexd_limit limit = IMBREXD_LIMIT;\n"
    "    for (int i = 0; args->loops && i < imbrexd_block_count(); i++)\n"
    "        while (imbrexd_load_acquire(imbrexd_signal(team, team->rank, i)) < epoch)\n"
    "            if (!imbrexd_go_on(team, &limit, team->rank))\n"
    "                return;\n"
    "    for (int i = 0; i < imbrexd_block_count(); i++)\n"
    "        if (!imbrexd_wait(team, imbrexd_signal(team, team->rank, i), epoch, team->rank))\n"
    "            return;\n"
    "}\n";

typedef struct meeting {
    int grid, resident;
    struct {
        int silent, loops;
    } args;
    const char *says; /* NULL: nothing is wrong */
} meeting;

static bool checked;

static int meets(imbrex_group *group, void *ctx)
{
    const meeting *m = ctx;
    imbrex_kernel *kernel;
    imbrex_kernel_desc desc = {
        .name = "meet", .source = meet_text, .signals = 8, .resident = m->resident
    };
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    int rank = imbrex_group_rank(group);
    if (rank == 1)
        RANK_OK(imbrex_launch(kernel, m->grid, 1, &m->args, sizeof m->args, NULL));
    imbrex_status wrong = checked ? IMBREX_INVALID : rank == 1 ? IMBREX_TIMEOUT : IMBREX_PEER;
    int failed = ends(group, m->says ? wrong : IMBREX_OK, m->says);
    RANK_CHECK(!m->says || !strstr(imbrex_error(), "waits for nobody"), "%s", imbrex_error());
    return failed;
}

static void late_blocks(void **state)
{
    (void)state;
    static const meeting rows[] = {
        { 4, 4, { -1, 1 }, NULL },
        { 2, 2, { 1, 0 }, "is 0, not yet 1)" },
        { 2, 1, { -1, 0 }, "not yet 1; 1 of the launch's blocks runs only after others, see " },
        { 5, 2, { -1, 0 }, "not yet 1; 3 of the launch's blocks run only after others, see " },
        { 5, 2, { -1, 1 }, "in kernel meet (3 of the launch's blocks run only after others, see " },
    };
    enum { ROWS = sizeof rows / sizeof rows[0] };
    for (int kind = 0; kind < 3; kind++) { /* on one node, on two, checked: which sees no loops */
        checked = kind == 2;
        setenv("IMBREX_CHECK", checked ? "1" : "0", 1);
        for (int i = 0; i < ROWS - checked; i++) {
            meeting row = rows[i];
            ranks_desc desc = { .size = 2,
                                .node_ranks = kind == 1,
                                .timeout_ms = row.says && !checked ? 200 : 0 };
            net_threads_reset();
            assert_int_equal(ranks_run(&desc, meets, &row), 0);
        }
    }
    unsetenv("IMBREX_CHECK");
}

int main(void)
{
    imx_net_of_test = &net_threads;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_memory),
        cmocka_unit_test(late_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
