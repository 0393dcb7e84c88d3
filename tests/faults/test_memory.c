/* test_memory.c - memory that cannot be had: refused when it is asked for, with what there is, and
 * never the end of a rank that touches it; and memory that can: there to its last page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/cpu/cpu.h"
#include "ranks.h"
#include "scratch.h"

/* ---- what there is --------------------------------------------------------------------------- */

static void write_text(const char *name, const char *text)
{
    scratch_write(name, text, strlen(text));
}

static void expect_room(size_t bytes, const char *owner)
{
    imx_cpu_room room;
    char root[512];
    snprintf(root, sizeof root, "%s", scratch_path("root"));
    imx_cpu_room_look(root, &room);
    if (room.bytes != bytes || strcmp(room.owner, owner) != 0)
        fail_msg("%zu bytes of '%s', want %zu of '%s'", room.bytes, room.owner, bytes, owner);
}

static void make_folders(const char *const *names, size_t count)
{
    scratch_clear();
    for (size_t i = 0; i < count; i++)
        scratch_directory(names[i]);
}

static void room_of_a_machine(void **state)
{
    (void)state;
    static const char *const folders[] = { "root", "root/proc", "root/proc/self" };
    make_folders(folders, 3);
    expect_room(SIZE_MAX, "");
    write_text("root/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    7000 kB\nMemFree: 1 kB\n");
    expect_room(7000 * 1024, "the machine");
}

/* The second generation: the own group allows more than the one above it. */
static void room_of_a_control_group(void **state)
{
    (void)state;
    static const char *const folders[] = {
        "root",        "root/proc",          "root/proc/self",       "root/sys",
        "root/sys/fs", "root/sys/fs/cgroup", "root/sys/fs/cgroup/a", "root/sys/fs/cgroup/a/b"
    };
    make_folders(folders, 8);
    write_text("root/proc/meminfo", "MemAvailable: 7000 kB\n");
    write_text("root/proc/self/cgroup", "1:name=systemd:/a\n0::/a/b\n");
    write_text("root/sys/fs/cgroup/a/b/memory.max", "max\n");
    write_text("root/sys/fs/cgroup/a/b/memory.current", "1000000\n");
    expect_room(7000 * 1024, "the machine");
    write_text("root/sys/fs/cgroup/a/memory.max", "3000000\n");
    write_text("root/sys/fs/cgroup/a/memory.current", "2000000\n");
    expect_room(1000000, "control group /a");
    write_text("root/sys/fs/cgroup/a/memory.stat",
               "anon 5\ninactive_file 300000\nactive_file 200000\n");
    expect_room(1500000, "control group /a");
    write_text("root/sys/fs/cgroup/a/b/memory.max", "900000\n");
    expect_room(0, "control group /a/b");
}

/* The first generation, in a container whose mount shows the own group as the root. */
static void room_of_an_old_control_group(void **state)
{
    (void)state;
    static const char *const folders[] = {
        "root",        "root/proc",          "root/proc/self",           "root/sys",
        "root/sys/fs", "root/sys/fs/cgroup", "root/sys/fs/cgroup/memory"
    };
    make_folders(folders, 7);
    write_text("root/proc/self/cgroup", "4:memory:/docker/123\n3:cpu:/x\n");
    write_text("root/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000000\n");
    write_text("root/sys/fs/cgroup/memory/memory.usage_in_bytes", "4000000\n");
    write_text("root/sys/fs/cgroup/memory/memory.stat",
               "total_inactive_file 70\ntotal_active_file 30\n");
    expect_room(1000100, "control group /");
}

/* ---- pages ----------------------------------------------------------------------------------- */

static imx_sys_table real;
static int calls, error;
static long longest;

/* As a file system under a timer that interrupts whatever takes long. */
static int flaky_fallocate(int fd, long at, long bytes)
{
    calls++;
    errno = error;
    return bytes > longest ? -1 : real.fallocate(fd, at, bytes);
}

enum { BYTES = 10000000, PAGES_BYTES = (BYTES + 4095) / 4096 * 4096 };

static imbrex_status create(size_t bytes, long *taken)
{
    struct imx_device device = { .local_size = 1 };
    imx_memory *memory;
    int fd;
    IMX_TRY(imx_cpu_memory_create(&device, bytes, &memory));
    IMX_TRY(imx_cpu_memory_export(memory, &fd));
    struct stat found;
    assert_int_equal(fstat(fd, &found), 0);
    *taken = (long)found.st_blocks * 512;
    close(fd);
    imx_cpu_memory_release(memory);
    return IMBREX_OK;
}

static void memory_has_its_pages(void **state)
{
    (void)state;
    long taken = 0;
    assert_int_equal(create(BYTES, &taken), IMBREX_OK);
    assert_int_equal(taken, PAGES_BYTES);
    assert_int_equal(create(1, &taken), IMBREX_OK);
    assert_int_equal(taken, 4096);
}

static void filling_is_interrupted(void **state)
{
    (void)state;
    long taken = 0;
    imx_sys.fallocate = flaky_fallocate;
    error = EINTR, longest = 100000, calls = 0;
    assert_int_equal(create(BYTES, &taken), IMBREX_OK);
    assert_int_equal(taken, PAGES_BYTES);
    assert_in_range(calls, BYTES / longest, 2000);

    error = EOPNOTSUPP, longest = 0;
    assert_int_equal(create(BYTES, &taken), IMBREX_OK);
    assert_int_equal(taken, 0);

    error = ENOSPC;
    assert_int_equal(create(BYTES, &taken), IMBREX_NO_MEMORY);
    assert_non_null(strstr(imbrex_error(), "cannot take 10000000 bytes of memory: there are 0"));
    error = EIO;
    assert_int_equal(create(BYTES, &taken), IMBREX_SYSTEM);
    imx_sys.fallocate = real.fallocate;
}

/* To touch what a shorter file has not would be SIGBUS. */
static void a_shorter_piece_is_refused(void **state)
{
    (void)state;
    struct imx_device device = { .local_size = 1 };
    imx_memory *like, *theirs = NULL;
    assert_int_equal(imx_cpu_memory_create(&device, BYTES, &like), IMBREX_OK);
    int fd = real.memfd_create("shorter", 0);
    assert_true(fd >= 0);
    for (long short_by = 4096; short_by >= 0; short_by = short_by > 1 ? 1 : short_by - 1) {
        assert_int_equal(real.ftruncate(fd, BYTES - short_by), 0);
        imbrex_status status = imx_cpu_memory_import(&device, fd, like, &theirs);
        assert_int_equal(status, short_by ? IMBREX_PEER : IMBREX_OK);
        if (short_by)
            assert_non_null(strstr(imbrex_error(), "a peer's memory has "));
    }
    ((char *)theirs->base)[BYTES - 1] = 1;
    imx_cpu_memory_release(theirs);
    imx_cpu_memory_release(like);
    close(fd);
}

/* Each rank leaves all of them a step beside what it takes itself. */
static void others_keep_their_steps(void **state)
{
    (void)state;
    enum { RANKS = 1 << 20 }; /* more steps than any machine has memory */
    struct imx_device one = { .local_size = 1 }, many = { .local_size = RANKS };
    size_t bytes = 2 * (size_t)IMX_CPU_ROOM_STEP;
    assert_int_equal(imx_cpu_room_check(&one, bytes, 0), IMBREX_OK);
    assert_int_equal(imx_cpu_room_check(&many, bytes, 0), IMBREX_NO_MEMORY);
    assert_non_null(strstr(imbrex_error(), "on each of 1048576 ranks"));
    /* What is left of its own is one step: that is its own. */
    assert_int_equal(imx_cpu_room_check(&many, bytes, bytes - IMX_CPU_ROOM_STEP), IMBREX_OK);
}

/* ---- ranks that ask for too much ------------------------------------------------------------- */

static int expect_refused(imbrex_status status, const char *part)
{
    RANK_CHECK(status == IMBREX_NO_MEMORY, "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), part), "'%s' has no '%s'", imbrex_error(), part);
    return 0;
}

static int ask_too_much(imbrex_group *group, void *ctx)
{
    (void)ctx;
    void *memory = NULL;
    imbrex_plan *plan = NULL;
    imbrex_gemm_desc desc = { .m = 1 << 24, .n = 1 << 24, .k = 1 << 24 };
    if (expect_refused(imbrex_mem_alloc(group, (size_t)1 << 50, &memory),
                       "cannot take 1125899906842624 bytes of memory on each of 2 ranks: "))
        return 1;
    if (expect_refused(imbrex_plan_ag_gemm(group, &desc, &plan), "cannot take ") ||
        expect_refused(imbrex_plan_gemm_rs(group, &desc, &plan), "cannot take "))
        return 1;
    RANK_CHECK(!memory && !plan, "an output was written");
    RANK_OK(imbrex_mem_alloc(group, 1000, &memory));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void too_much_is_refused(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, ask_too_much, NULL), 0);
    desc.processes = RANKS_PROCESSES;
    assert_int_equal(ranks_run(&desc, ask_too_much, NULL), 0);
}

/* Rank 1 may not have files of more than a megabyte. */
static int ask_with_limits(imbrex_group *group, void *ctx)
{
    (void)ctx;
    void *memory;
    int limited = imbrex_group_rank(group) == 1;
    if (limited)
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1 << 20, 1 << 20 });
    imbrex_status status = imbrex_mem_alloc(group, 2 << 20, &memory);
    RANK_CHECK(status == (limited ? IMBREX_NO_MEMORY : IMBREX_PEER), "%s", imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "cannot take 2097152 bytes of memory: RLIMIT_FSIZE (ulimit "
                                      "-f) is 1048576"),
               "%s", imbrex_error());
    RANK_OK(imbrex_mem_alloc(group, 1 << 20, &memory));
    return 0;
}

static void limits_are_kept(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    ranks_desc desc = { .size = 2, .processes = true };
    assert_int_equal(ranks_run(&desc, ask_with_limits, NULL), 0);
}

int main(void)
{
    real = imx_sys;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_of_a_machine),
        cmocka_unit_test(room_of_a_control_group),
        cmocka_unit_test(room_of_an_old_control_group),
        cmocka_unit_test(memory_has_its_pages),
        cmocka_unit_test(filling_is_interrupted),
        cmocka_unit_test(a_shorter_piece_is_refused),
        cmocka_unit_test(others_keep_their_steps),
        cmocka_unit_test(too_much_is_refused),
        cmocka_unit_test(limits_are_kept),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
