/* test_check_kernels.c - the protocol checker and kernels of the caller's: silent on those that are
 * right, and what it says of mistakes names block, signal and address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"

enum { UNDER_TSAN = SANITIZED_THREADS }; /* which says itself that a read comes too early */

/* Block 1 of each rank puts a word into the next one's memory, block 0 takes it: three times, with
 * credits.  But for a mistake. */
static const char text[] =
    "#include \"imbrex_device.h\"\n"
    "enum { WELL, ANY, NO_WAIT, NO_CREDIT, LOWERED, TWO_WRITERS, ADDED, SKEWED_POST, SKEWED_WAIT,\n"
    "       CYCLE, PEEKED };\n"
    "enum { THERE, CREDIT, BESIDE };\n"
    "typedef struct { uint64_t *inbox; int mistake; } hand_args;\n"
    "static int take(const imbrexd_team *team, const hand_args *args, int before, uint64_t n)\n"
    "{\n"
    "    uint64_t *there = imbrexd_signal(team, team->rank, THERE);\n"
    "    if (args->mistake == ANY)\n"
    "        return imbrexd_wait_any(team, there, 1, NULL, IMBREXD_GE, n, before) == 0;\n"
    "    imbrexd_limit limit = IMBREXD_LIMIT;\n"
    "    while (args->mistake == PEEKED && imbrexd_load_relaxed(there) < n)\n"
    "        if (!imbrexd_go_on(team, &limit, before))\n"
    "            return 0;\n"
    "    return args->mistake == NO_WAIT || args->mistake == PEEKED ||\n"
    "           imbrexd_wait(team, there, n, before);\n"
    "}\n"
    "IMBREXD_KERNEL(hand, hand_args)\n"
    "{\n"
    "    int next = (team->rank + 1) % team->size, m = args->mistake;\n"
    "    int before = (team->rank + team->size - 1) % team->size;\n"
    "    uint64_t *far = imbrexd_signal(team, next, BESIDE);\n"
    "    if (m == LOWERED && imbrexd_block_index() == 0)\n"
    "        imbrexd_signal_post(far, 9), imbrexd_signal_post(far, 8);\n"
    "    if (m == TWO_WRITERS || (m == ADDED && imbrexd_block_index() == 0))\n"
    "        imbrexd_signal_post(far, 1);\n"
    "    if (m == ADDED && imbrexd_block_index() == 1)\n"
    "        imbrexd_signal_add(far, 1);\n"
    "    if (m == SKEWED_POST)\n"
    "        imbrexd_signal_post((uint64_t *)((char *)imbrexd_peer(team, next, args->inbox) + 12), "
    "1);\n"
    "    if (m == SKEWED_WAIT)\n"
    "        imbrexd_wait(team, (uint64_t *)((char *)args->inbox + 12), 0, before);\n"
    "    if (m == CYCLE)\n"
    "        imbrexd_wait(team, imbrexd_signal(team, team->rank, BESIDE), 1, before);\n"
    "    for (uint64_t n = 1; n <= 3; n++) {\n"
    "        if (imbrexd_block_index() == 1) {\n"
    "            if (m != NO_CREDIT &&\n"
    "                !imbrexd_wait(team, imbrexd_signal(team, team->rank, CREDIT), n - 1, next))\n"
    "                return;\n"
    "            imbrexd_put_signal_thread(imbrexd_peer(team, next, args->inbox), &n, sizeof n,\n"
    "                                      imbrexd_signal(team, next, THERE), n, IMBREXD_SET);\n"
    "            continue;\n"
    "        }\n"
    "        if (!take(team, args, before, n) || !imbrexd_check_read(args->inbox, sizeof n, 0, "
    "1))\n"
    "            return;\n"
    "        imbrexd_signal_post(imbrexd_signal(team, before, CREDIT), n);\n"
    "    }\n"
    "}\n";

typedef struct hand {
    int mistake;
    const char *says[3]; /* NULL: nothing is wrong; parts of the sentence, of which the last ... */
    const char * or ;    /* ... may be this one, if the other side comes second */
    bool racing;         /* under TSan, too */
} hand;

static int hands(imbrex_group *group, void *ctx)
{
    const hand *h = ctx;
    imbrex_kernel *kernel;
    struct {
        uint64_t *inbox;
        int mistake;
    } args = { .mistake = h->mistake };
    RANK_OK(imbrex_mem_alloc(group, 64, (void **)&args.inbox));
    imbrex_kernel_desc desc = {
        .name = "hand", .source = text, .memory = args.inbox, .signals = 3, .resident = 2
    };
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    imbrex_status status = imbrex_launch(kernel, 2, 1, &args, sizeof args, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    while (h->says[0] && status == IMBREX_OK) /* another rank's kernel is still to find it */
        status = imbrex_group_status(group);
    RANK_CHECK(status == (h->says[0] ? IMBREX_INVALID : IMBREX_OK), "mistake %d: %s %s", h->mistake,
               imbrex_status_name(status), status ? imbrex_error() : "");
    for (int i = 0; i < 3 && h->says[i]; i++) {
        bool last = i == 2 || !h->says[i + 1];
        RANK_CHECK(strstr(imbrex_error(), h->says[i]) ||
                       (last && h->or &&strstr(imbrex_error(), h->or)),
                   "mistake %d: \"%s\", want \"%s\"", h->mistake, imbrex_error(), h->says[i]);
    }
    return 0;
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const char early[] = "or that came too early, and its wait is missing";
    static const char unordered[] = ": no signal orders it after that";
    static const hand rows[] = {
        { 0, { NULL }, NULL, false },
        { 1, { NULL }, NULL, false },
        { 2, { "hand of rank ", "0 to 8 of 64 of rank ", unordered }, early, true },
        { 3, { "(stream 0, block 1)", "0 to 8 of 64 of rank ", early }, unordered, true },
        { 4, { "lowers signal 2 of rank ", "from 9 to 8", ", block " }, NULL, false },
        { 5, { "signal 2 of rank ", " has two writers: hand of rank ", "block 1)" }, NULL, false },
        { 6,
          { ", which hand of rank ", ", block ", " adds to signal 2 " },
          " posts signal 2 ",
          false },
        { 7, { "posts a signal at byte 12 of rank ", "want a multiple of 8" }, NULL, false },
        { 8, { "waits for a signal at byte 12 of rank ", "want a multiple of 8" }, NULL, false },
        { 9,
          { "a wait that nobody will satisfy", " (signal 2), which waits for rank " },
          NULL,
          false },
        { 10, { "0 to 8 of 64 of rank ", " (at 0x", unordered }, early, true },
    };
    setenv("IMBREX_CHECK", "1", 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hand row = rows[i];
        ranks_desc desc = { .size = 2 };
        if (row.racing && UNDER_TSAN)
            continue;
        assert_int_equal(ranks_run(&desc, hands, &row), 0);
    }
    unsetenv("IMBREX_CHECK");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
