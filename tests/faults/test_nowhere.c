/* test_nowhere.c - pointers in descs that lead nowhere, as where nobody has initialised them: a
 * sentence, and the other ranks hear of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>
#include <unistd.h>

#include "ranks.h"

#define INVALID(part, call)                                                                   \
    do {                                                                                      \
        imbrex_status status_ = (call);                                                       \
        RANK_CHECK(status_ == IMBREX_INVALID && strstr(imbrex_error(), part), "%s: %s: '%s'", \
                   #call, imbrex_status_name(status_), imbrex_error());                       \
    } while (0)

static int group_not_initialised(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)rank, (void)ctx;
    imbrex_group *group = NULL;
    imbrex_group_desc desc;
    const int fills[] = { 0xff, 0x80, 0x01, 0x7f };
    for (size_t i = 0; i < sizeof fills / sizeof *fills; i++) {
        memset(&desc, fills[i], sizeof desc);
        INVALID("where none can be: is desc initialised?", imbrex_group_create(&desc, &group));
    }
    RANK_CHECK(!group, "the output was written");
    desc = (imbrex_group_desc){ .bootstrap = bootstrap };
    if (rank == 1)
        memset((void *)&desc.device, 0x80, sizeof desc.device);
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status == (rank == 1 ? IMBREX_INVALID : IMBREX_PEER) &&
                   strstr(imbrex_error(), "desc.device is 0x8080808080808080, where none can be"),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    return 0;
}

/* Names that lie nowhere, or run into where nothing is. */
static int names_nowhere(imbrex_group *group, void *ctx)
{
    (void)ctx;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RANK_CHECK(two != MAP_FAILED && mprotect(two + page, page, PROT_NONE) == 0, "no pages");
    char *end = two + page - 5, *beyond = two + page;
    memcpy(end, "none", 5);
    imbrex_plan *plan = NULL;
    imbrex_kernel *kernel = NULL;
    imbrex_coll_desc coll = { .m = 12, .n = 8, .algorithm = end };
    INVALID("desc.algorithm is \"none\"", imbrex_plan_all_gather(group, &coll, &plan));
    end[4] = 'e';
    INVALID("desc.algorithm is 0x", imbrex_plan_all_gather(group, &coll, &plan));
    const imbrex_kernel_desc good = { .name = "none", .source = "int x;" };
    imbrex_kernel_desc desc = good;
    INVALID("desc.name is 0x", imbrex_kernel_create(group, (desc.name = end, &desc), &kernel));
    desc = good;
    INVALID("desc.source is 0x", imbrex_kernel_create(group, (desc.source = end, &desc), &kernel));
    desc = good;
    INVALID("desc.file is 0x", imbrex_kernel_create(group, (desc.file = beyond, &desc), &kernel));
    desc = good;
    INVALID("desc.options is 0x",
            imbrex_kernel_create(group, (desc.options = end, &desc), &kernel));
    desc = good;
    desc.entry = (const struct imbrexd_entry *)(void *)beyond;
    INVALID("desc.entry is 0x", imbrex_kernel_create(group, &desc, &kernel));
    desc = good;
    desc.gemm = (const imbrex_gemm_desc *)(void *)(beyond - 16);
    INVALID("desc.gemm is 0x", imbrex_kernel_create(group, &desc, &kernel));
    RANK_CHECK(!plan && !kernel, "an output was written");
    munmap(two, 2 * page);
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void descs_that_nobody_initialised(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_bare(&(ranks_desc){ .size = 2 }, group_not_initialised, NULL), 0);
}

static void strings_that_lie_nowhere(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(&(ranks_desc){ .size = 2 }, names_nowhere, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descs_that_nobody_initialised),
        cmocka_unit_test(strings_that_lie_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
