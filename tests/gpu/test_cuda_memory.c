/* test_cuda_memory.c - GPU memory on a fake driver: which mappings ranks of one process share;
 * where descriptors are refused, that cudaIpc takes over and says so, that operators are right on
 * it, and that nothing leaks whatever fails. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/cuda/driver.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "op_cases.h"
#include "plan/plan.h"

static imbrex_status create(const imbrex_bootstrap *bootstrap, imbrex_group **group)
{
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cuda", .timeout_ms = 2000 };
    return imbrex_group_create(&desc, group);
}

/* ---- what is said ---------------------------------------------------------------------------- */

/* NULL: the usual kind, about which a plan says nothing. */
static void says(const char *why)
{
    static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };
    char info[8192], want[256];
    imbrex_group *group;
    imbrex_plan *plan;
    assert_int_equal(create(&alone, &group), IMBREX_OK);
    assert_int_equal(imbrex_plan_all_gather(group, &(imbrex_coll_desc){ .m = 1, .n = 1 }, &plan),
                     IMBREX_OK);
    snprintf(want, sizeof want, "cudaIpc, because %s", why ? why : "");
    const char *memory = imx_describe_facts(plan).memory;
    if (why ? !memory || strncmp(memory, want, strlen(want)) != 0 : memory != NULL)
        fail_msg("\"%s\" is not \"%s\"", memory ? memory : "", why ? want : "");
    imbrex_group_destroy(group);
    snprintf(want, sizeof want, "\nsymmetric memory: %s%s", why ? "cudaIpc, because " : "cuMem, ",
             why ? why : "");
    imbrex_info(info, sizeof info);
    if (!strstr(info, want))
        fail_msg("info does not say \"%s\":\n%s", want + 1, info);
    assert_int_equal(fake_driver_live(), 0);
}

static void which_kind_and_why(void **state)
{
    (void)state;
    fake_driver_install(1);
    says(NULL);
    fake_driver_refuse_descriptors();
    says("cuMemExportToShareableHandle says CUDA_ERROR_FAKE (801)");
    fake_driver_install(1);
    fake_driver_set(CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
    says("the driver has no virtual memory management (cuMemCreate)");
    fake_driver_install(1);
    fake_driver_set(CU_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0);
    says("this GPU's memory cannot be passed between processes as a file descriptor");
    fake_driver_install(1);
    setenv("IMBREX_CUDA_MEMORY", "ipc", 1);
    says("IMBREX_CUDA_MEMORY asks for it");
    fake_driver_refuse_descriptors();
    setenv("IMBREX_CUDA_MEMORY", "vmm", 1);
    says(NULL);
    unsetenv("IMBREX_CUDA_MEMORY");
}

static int refused(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    imbrex_group *group;
    fake_driver_refuse_descriptors();
    imbrex_status status = create(bootstrap, &group);
    RANK_CHECK(status == IMBREX_UNSUPPORTED || status == IMBREX_PEER, "rank %d: %s: %s", rank,
               imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "cuMemExportToShareableHandle"), "%s", imbrex_error());
    return 0;
}

static void what_is_asked_for_is_not_replaced(void **state)
{
    (void)state;
    char info[8192];
    static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };
    imbrex_group *group;
    fake_driver_install(2);
    setenv("IMBREX_CUDA_MEMORY", "cuda", 1);
    assert_int_equal(create(&alone, &group), IMBREX_INVALID);
    assert_non_null(strstr(imbrex_error(), "IMBREX_CUDA_MEMORY is \"cuda\": want vmm or ipc"));
    imbrex_info(info, sizeof info);
    assert_non_null(strstr(info, "env IMBREX_CUDA_MEMORY: cuda, which does not parse"));
    setenv("IMBREX_CUDA_MEMORY", "vmm", 1);
    ranks_desc desc = { .size = 2, .processes = true };
    if (RANKS_PROCESSES)
        assert_int_equal(ranks_run_bare(&desc, refused, NULL), 0);
    unsetenv("IMBREX_CUDA_MEMORY");
}

/* ---- that it works --------------------------------------------------------------------------- */

enum { WORDS = 1000 };

/* Every rank puts its number into all others' memory. */
static int put_among(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group), size = imbrex_group_size(group);
    int *words, mine[WORDS], got[WORDS];
    void *memory;
    for (int i = 0; i < WORDS; i++)
        mine[i] = rank + 1;
    RANK_OK(imbrex_mem_alloc(group, (size_t)size * sizeof mine, &memory));
    words = memory;
    for (int r = 0; r < size; r++)
        RANK_OK(imbrex_put(group, words + rank * WORDS, mine, sizeof mine, r, NULL));
    RANK_OK(imbrex_barrier(group, NULL));
    for (int r = 0; r < size; r++) {
        RANK_OK(imbrex_copy(group, got, words + r * WORDS, sizeof got, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        RANK_CHECK(got[0] == r + 1 && got[WORDS - 1] == r + 1, "rank %d has %d and %d of rank %d",
                   rank, got[0], got[WORDS - 1], r);
    }
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    imbrex_mem_free(group, memory);
    return 0;
}

/* Every rank leaves in its memory where it has it itself.  ctx: how many GPUs there are. */
static int compare_mappings(imbrex_group *group, void *ctx)
{
    int rank = imbrex_group_rank(group), size = imbrex_group_size(group), gpus = *(const int *)ctx;
    void *memory, *peer, *theirs;
    RANK_OK(imbrex_mem_alloc(group, sizeof memory, &memory));
    RANK_OK(imbrex_put(group, memory, &memory, sizeof memory, rank, NULL));
    RANK_OK(imbrex_barrier(group, NULL));
    for (int r = 0; r < size; r++) {
        bool same_gpu = r % gpus == rank % gpus;
        RANK_OK(imbrex_mem_peer(group, memory, r, &peer));
        RANK_OK(imbrex_copy(group, &theirs, peer, sizeof theirs, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        RANK_CHECK((theirs == peer) == same_gpu, "rank %d has rank %d's memory at %p, itself at %p",
                   rank, r, peer, theirs);
    }
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (rank == 0) /* leaves the others' mappings of it as they are */
        imbrex_mem_free(group, memory);
    RANK_OK(imbrex_barrier(group, NULL));
    if (rank > 0) {
        RANK_OK(imbrex_mem_peer(group, memory, 0, &peer));
        RANK_OK(imbrex_copy(group, &theirs, peer, sizeof theirs, NULL));
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

/* Of another GPU's memory no two threads change one mapping. */
static void one_mapping_a_gpu(void **state)
{
    (void)state;
    for (int gpus = 1; gpus <= 3; gpus++)
        assert_int_equal(fake_ranks_run(&(ranks_desc){ .size = 4 }, gpus, compare_mappings, &gpus),
                         0);
}

static void on_ipc(const ranks_desc *desc, int gpus, rank_main main_of_rank)
{
    setenv("IMBREX_CUDA_MEMORY", "ipc", 1);
    assert_int_equal(fake_ranks_run(desc, gpus, main_of_rank, NULL), 0);
    unsetenv("IMBREX_CUDA_MEMORY");
}

static void threads(void **state)
{
    (void)state;
    on_ipc(&(ranks_desc){ .size = 3 }, 3, put_among);
    on_ipc(&(ranks_desc){ .size = 3 }, 1, put_among);
}

static void processes(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    on_ipc(&(ranks_desc){ .size = 3, .processes = true }, 3, put_among);
    on_ipc(&(ranks_desc){ .size = 2, .processes = true }, 1, op_cases_collectives);
}

static int one_differs(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    imbrex_group *group;
    if (rank == 1)
        fake_driver_refuse_descriptors();
    RANK_OK(create(bootstrap, &group));
    int failed = put_among(group, NULL);
    imbrex_group_destroy(group);
    RANK_CHECK(fake_driver_live() == 0, "rank %d leaves %d objects", rank, fake_driver_live());
    return failed;
}

static void ranks_need_not_agree(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .processes = true };
    if (!RANKS_PROCESSES)
        skip();
    fake_driver_install(1);
    assert_int_equal(ranks_run_bare(&desc, one_differs, NULL), 0);
}

/* ---- whatever fails -------------------------------------------------------------------------- */

/* Where the n-th call fails, *ctx; the other rank must end, too, and neither may leave anything. */
static int fails(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group = NULL;
    const int *n = ctx;
    if (rank == 1)
        fake_driver_fail(*n);
    imbrex_status status = create(bootstrap, &group);
    void *memory;
    if (status == IMBREX_OK)
        status = imbrex_mem_alloc(group, 100, &memory);
    RANK_CHECK(status == IMBREX_OK || status == IMBREX_PEER || status == IMBREX_NO_MEMORY ||
                   status == IMBREX_DEVICE || status == IMBREX_INTERNAL,
               "call %d: rank %d: %s: %s", *n, rank, imbrex_status_name(status), imbrex_error());
    imbrex_group_destroy(group);
    RANK_CHECK(fake_driver_live() == 0, "call %d, %s: rank %d leaves %d objects", *n,
               fake_driver_failed() ? fake_driver_failed() : "none", rank, fake_driver_live());
    const char *call = fake_driver_failed();
    bool ending = call && strcmp(call, "cuStreamSynchronize") == 0; /* a destroy cannot say it */
    RANK_CHECK(!call || ending || status != IMBREX_OK, "call %d, %s: rank 1 did not notice", *n,
               call);
    return 0;
}

static void any_call_fails(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .processes = true };
    if (!RANKS_PROCESSES)
        skip();
    setenv("IMBREX_CUDA_MEMORY", "ipc", 1);
    for (int n = 1; n <= 40; n += 2) {
        fake_driver_install(1);
        assert_int_equal(ranks_run_bare(&desc, fails, &n), 0);
    }
    unsetenv("IMBREX_CUDA_MEMORY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_kind_and_why), cmocka_unit_test(what_is_asked_for_is_not_replaced),
        cmocka_unit_test(one_mapping_a_gpu),  cmocka_unit_test(threads),
        cmocka_unit_test(processes),          cmocka_unit_test(ranks_need_not_agree),
        cmocka_unit_test(any_call_fails),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
