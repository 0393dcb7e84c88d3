/* user.c - kernels of the caller's on CPU ranks: compiled into shared objects, or part of the
 * program; their blocks are tasks of the threads of a prepared kernel.
 *
 * A shared object is loaded from memory: nothing of it has a name that could outlive its rank, and
 * what the cache holds is looked at before it is run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compiler.h"
#include "cpu.h"

struct imx_user {
    imx_kernel kernel; /* what prepared runs: tasks, under the caller's name */
    char name[64];
    const imbrexd_entry *entry;
    void *object; /* dlopen's; NULL: entry is the program's own */
    int fd;       /* its file; -1: none.  Open as long as it is loaded: its path is its name */
    char path[48];
    size_t shared_bytes;
    imx_prepared *prepared;
};

/* What a launch of the caller's kernel is to its prepared one. */
typedef struct task_args {
    const imbrexd_entry *entry;
    const imbrexd_team *team;
    const char *name;
    size_t shared_bytes;
    int grid;
    _Alignas(16) char args[IMX_USER_ARGS_BYTES];
} task_args;

/* Behind the memory of each thread's blocks: who writes there has asked for too little.  So many
 * bytes take some 20 ns to look at. */
enum { GUARD_BYTES = 1024, GUARD = 0xc5 };

static bool is_whole(const char *guard)
{
    return (unsigned char)*guard == GUARD && memcmp(guard, guard + 1, GUARD_BYTES - 1) == 0;
}

/* Thread t takes blocks t, t + threads...: each in turn, so that a block may wait for all that come
 * before it, and for all of the first `resident`. */
static void run_tasks(const void *untyped, const imbrexd_block *thread)
{
    const task_args *tasks = untyped;
    imbrexd_block block = *thread;
    imbrexd_team team = *tasks->team;
    block.count = tasks->grid;
    team.watch.late = (int32_t)imx_max(0, tasks->grid - thread->count);
    char *guard = (char *)block.scratch + tasks->shared_bytes;
    memset(guard, GUARD, GUARD_BYTES);
    for (int64_t index = thread->index; index < tasks->grid; index += thread->count) {
        block.index = (int)index;
        imx_cpu_check_doing_block(tasks->name, &team, &block);
        tasks->entry->run(tasks->args, &team, &block);
        if (is_whole(guard))
            continue;
        imbrexd_wait_point point = { team.kernel, 0, team.rank, block.index };
        imbrexd_fault_raise(block.watch, IMBREXD_FAULT_SHARED, point, 0, tasks->shared_bytes);
    }
    imx_cpu_check_doing(tasks->name, -1); /* the team goes */
}

static size_t scratch_of(const void *shared_bytes)
{
    return *(const size_t *)shared_bytes + GUARD_BYTES;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* What the loader keeps all the same (-z nodelete, say) it would find again for the next file of
 * this number: then the file stays open. */
static void unload(imx_user *user)
{
    void *kept = NULL;
    if (user->object) {
        dlclose(user->object);
        kept = dlopen(user->path, RTLD_NOW | RTLD_NOLOAD);
    }
    if (kept)
        dlclose(kept);
    else if (user->fd >= 0)
        close(user->fd);
    user->object = NULL;
    user->fd = -1;
}

/* The name under which the loader finds the file: of this process's number, so that tools that look
 * at it from outside find it, too; or, where /proc counts processes from elsewhere and that number
 * is none there or another's, of whoever asks. */
static bool name_file(imx_user *user)
{
    struct stat file, named;
    if (fstat(user->fd, &file) != 0)
        return false;
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            snprintf(user->path, sizeof user->path, "/proc/%ld/fd/%d", (long)getpid(), user->fd);
        else
            snprintf(user->path, sizeof user->path, "/proc/self/fd/%d", user->fd);
        if (stat(user->path, &named) == 0 && named.st_dev == file.st_dev &&
            named.st_ino == file.st_ino)
            return true;
    }
    return false;
}

static imbrex_status load(imx_user *user, const void *image, size_t bytes)
{
    unload(user); /* what is left of one that did not load */
    user->fd = imx_sys.memfd_create(user->name, MFD_CLOEXEC);
    if (user->fd < 0)
        return imx_fail_errno("cannot create a file in memory (memfd)");
    if (!imx_sys_write_all(user->fd, image, bytes))
        return imx_fail_errno("cannot write kernel %s into memory", user->name);
    if (!name_file(user))
        return imx_fail(IMBREX_SYSTEM,
                        "kernel %s cannot be loaded from memory: /proc is not mounted, or does not "
                        "show this process; mount it, or compile the kernel with the program "
                        "(desc.entry)",
                        user->name);
    user->object = dlopen(user->path, RTLD_NOW | RTLD_LOCAL);
    if (!user->object)
        return imx_fail(IMBREX_INVALID, "kernel %s does not load: %s", user->name, dlerror());
    return IMBREX_OK;
}

static imbrex_status find_entry(imx_user *user, const imx_user_desc *desc)
{
    char symbol[96];
    snprintf(symbol, sizeof symbol, "imbrexd_entry_%s", user->name);
    user->entry = dlsym(user->object, symbol);
    if (!user->entry)
        return imx_fail(IMBREX_INVALID,
                        "%s has no kernel %s: want %s%s%s in it, or another desc.name", desc->file,
                        user->name, desc->product ? "IMBREXD_GEMM_NAME " : "IMBREXD_KERNEL(",
                        user->name, desc->product ? ", its hooks," : ", ...)");
    return IMBREX_OK;
}

static bool load_kept(imx_user *user, const imx_folder *folder, const imx_cache_key *key)
{
    void *image = NULL;
    size_t bytes = 0;
    if (!imx_cache_load(folder, key, &image, &bytes))
        return false;
    imx_status_mute(true);
    bool loaded = load(user, image, bytes) == IMBREX_OK;
    imx_status_mute(false);
    free(image);
    return loaded;
}

/* What is kept and does not load, another machine's maybe, is compiled anew, and replaced. */
static imbrex_status build(const imx_device *device, const imx_user_desc *desc, imx_user *user)
{
    imx_cache_key key = desc->key;
    imx_folder folder;
    void *image = NULL;
    size_t bytes = 0;
    imx_folder_find(device->env->cache_dir, &folder);
    imx_compiler_key(device->env->cc, desc->options, "", &key);
    if (load_kept(user, &folder, &key))
        return IMBREX_OK;
    IMX_TRY(imx_compiler_run(device->env->cc, &folder, desc, &image, &bytes));
    imbrex_status status = load(user, image, bytes);
    if (status == IMBREX_OK)
        imx_cache_store(&folder, &key, image, bytes);
    free(image);
    return status;
}

/* A product's hooks, where there is a product, and only there. */
static imbrex_status check_hooks(const imx_user_desc *desc, const imbrexd_entry *entry)
{
    if (desc->product && !entry->hooks)
        return imx_fail(IMBREX_INVALID,
                        "kernel %s has no hooks for the product of desc.gemm: want #define "
                        "IMBREXD_GEMM_NAME %s and #include \"imbrex_gemm_kernel.h\"",
                        desc->name, desc->name);
    if (!desc->product && entry->hooks)
        return imx_fail(IMBREX_INVALID, "kernel %s is hooks for a product: want its desc.gemm",
                        desc->name);
    return IMBREX_OK;
}

static imbrex_status find_code(const imx_device *device, const imx_user_desc *desc, imx_user *user)
{
    user->entry = desc->entry;
    if (user->entry)
        return IMBREX_OK;
    if (!desc->text)
        return imx_fail(IMBREX_INVALID, "desc.source, desc.file and desc.entry are NULL: want one");
    if (desc->text_bytes >= SELFMAG && memcmp(desc->text, ELFMAG, SELFMAG) == 0)
        return imx_fail(IMBREX_INVALID,
                        "%s is compiled already, for GPUs perhaps: CPU ranks want its text, or "
                        "desc.entry",
                        desc->file);
    IMX_TRY(build(device, desc, user));
    return find_entry(user, desc);
}

imbrex_status imx_cpu_user_prepare(imx_device *device, const imx_user_desc *desc, imx_user **out,
                                   imx_user_facts *facts)
{
    imx_user *user = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *user, &user));
    user->fd = -1;
    user->shared_bytes = desc->shared_bytes;
    snprintf(user->name, sizeof user->name, "%s", desc->name);
    user->kernel = (imx_kernel){
        .name = device->check ? imx_cpu_check_keep(desc->name) : user->name,
        .cpu = run_tasks,
        .cpu_scratch = scratch_of,
    };
    imbrex_status status;
    IMX_GOTO(find_code(device, desc, user));
    IMX_GOTO(check_hooks(desc, user->entry));
    imx_cpu_check_lend(user->entry->checker);
    if (desc->product) {
        const char *name = user->kernel.name;
        user->kernel = *desc->product;
        user->kernel.name = name;
        IMX_GOTO(imx_cpu_prepare(device, &user->kernel, desc->largest,
                                 desc->blocks + (user->entry->hooks->beside != NULL),
                                 &user->prepared));
    } else {
        IMX_GOTO(imx_cpu_prepare(device, &user->kernel, &desc->shared_bytes, desc->resident,
                                 &user->prepared));
    }
    *facts = (imx_user_facts){ user->entry->args_bytes, user->entry->threads_most };
    *out = user;
    return IMBREX_OK;
fail:
    imx_cpu_user_destroy(device, user);
    return status;
}

void imx_cpu_user_destroy(imx_device *device, imx_user *user)
{
    if (!user)
        return;
    imx_cpu_prepared_destroy(device, user->prepared);
    unload(user);
    free(user);
}

/* ---- launch ---------------------------------------------------------------------------------- */

imbrex_status imx_cpu_user_launch(imx_device *device, imx_user *user, const imx_user_launch *launch,
                                  imbrex_stream stream)
{
    if (launch->after)
        IMX_TRY(imx_cpu_event_wait(device, launch->after, stream));
    if (launch->product) {
        _Alignas(16) char args[IMX_ARGS_BYTES];
        size_t bytes = imx_user_join(launch, device->watch, user->entry->hooks, args);
        return imx_cpu_launch(device, user->prepared, args, bytes, stream);
    }
    task_args tasks = { .entry = user->entry,
                        .team = launch->team,
                        .name = user->kernel.name,
                        .shared_bytes = user->shared_bytes,
                        .grid = launch->grid };
    memcpy(tasks.args, launch->args, launch->args_bytes);
    return imx_cpu_launch(device, user->prepared, &tasks, sizeof tasks, stream);
}
