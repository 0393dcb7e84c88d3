/* test_blocks.c - blocks of a caller's kernel on CPU ranks: memory of their own, and those of a
 * launch that run only after others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ranks.h"

/* In a rank: its stream, or what another rank has found, ends so; 0 if so. */
static int ends(imbrex_group *group, imbrex_status want, const char *says)
{
    imbrex_status status = imbrex_stream_sync(group, NULL);
    while (want != IMBREX_OK && status == IMBREX_OK) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
