/* kernel.c - kernels of the caller's: what their team needs is made with them, and a launch is
 * checked and handed to the backend.
 *
 * Of a kernel, on this rank, where devices read it:
 *
 *     words, symmetric  | see imbrexd_team |
 *     table, local      | base [size] | words [size] | epoch | counter of blocks that are through |
 */
#include <stdlib.h>
#include <string.h>

#include "base/live.h"
#include "group/group.h"
#include "kernel_waits.h"
#include "product.h"
#include "user_source.h"

enum { SIGNALS_MOST = 1 << 20, RESIDENT_MOST = 1024, THREADS_MOST = 1024, SHARED_MOST = 232448 };

struct imbrex_kernel {
    imx_object object;
    imbrex_group *group;
    imx_product *product; /* NULL: it has none */
    imx_user *user;
    imx_user_facts facts;
    imx_symmetric *words;
    imx_memory *table;
    imx_stream_order order;
    imbrexd_team team;
    uint64_t launches; /* of a product, so far */
    uint64_t hash;     /* of name and text; 0: it did not come to that */
    uint64_t options_hash;
    char name[64];
};

const char *imx_kernel_name(const imbrex_group *group, int number)
{
    const imbrex_kernel *kernel =
        (const imbrex_kernel *)imx_object_find(&group->objects[IMX_OF_CALLER], number);
    return kernel ? kernel->name : "that has been destroyed";
}

/* ---- create ---------------------------------------------------------------------------------- */

static int count_words(const char *options)
{
    int count = 0;
    for (const char *at = options; at && *(at += strspn(at, IMX_USER_BLANKS)); count++)
        at += strcspn(at, IMX_USER_BLANKS);
    return count;
}

static imbrex_status check_desc(const imbrex_kernel_desc *d, imbrex_kernel **out)
{
    IMX_TRY(imx_status_need(d, "desc", "want one, at least with a name and a source"));
    IMX_TRY(imx_status_need(out, "kernel", "want where to put it"));
    /* First: of a desc that nobody has initialised no pointer is to be followed. */
    IMX_TRY(imx_status_need_zero(d->reserved, sizeof d->reserved, "desc"));
    IMX_TRY(imx_status_need(d->name, "desc.name", "want the name in IMBREXD_KERNEL(name, ...)"));
    IMX_TRY(imx_status_need_place(d->name, 0, "desc.name"));
    IMX_TRY(imx_status_need_place(d->source, 0, "desc.source"));
    IMX_TRY(imx_status_need_place(d->file, 0, "desc.file"));
    IMX_TRY(imx_status_need_place(d->options, 0, "desc.options"));
    IMX_TRY(imx_status_need_place(d->entry, sizeof(void *), "desc.entry"));
    IMX_TRY(imx_status_need_place(d->gemm, sizeof *d->gemm, "desc.gemm"));
    size_t length = strlen(d->name);
    if (length < 1 || length >= sizeof((imbrex_kernel *)0)->name ||
        strspn(d->name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") < length)
        return imx_fail(IMBREX_INVALID,
                        "desc.name is \"%.80s\": want a C name of at most %zu characters", d->name,
                        sizeof((imbrex_kernel *)0)->name - 1);
    if (d->signals < 0 || d->signals > SIGNALS_MOST)
        return imx_fail(IMBREX_INVALID, "desc.signals is %d: want from 0 to %d", d->signals,
                        SIGNALS_MOST);
    if (d->resident < 0 || d->resident > RESIDENT_MOST)
        return imx_fail(IMBREX_INVALID, "desc.resident is %d: want from 0 to %d", d->resident,
                        RESIDENT_MOST);
    if (d->shared_bytes > SHARED_MOST)
        return imx_fail(IMBREX_INVALID, "desc.shared_bytes is %zu: no GPU's block has more than %d",
                        d->shared_bytes, SHARED_MOST);
    if (count_words(d->options) > IMX_USER_WORDS)
        return imx_fail(IMBREX_INVALID, "desc.options has %d words: want at most %d",
                        count_words(d->options), IMX_USER_WORDS);
    return IMBREX_OK;
}

/* A .cubin is for one kind of GPU, and the ranks may have several: its name counts. */
static uint64_t hash_of(const imx_user_source *source, const char *name)
{
    static const char cubin[4] = { 0x7f, 'E', 'L', 'F' };
    imx_cache_key key = { { 0 } };
    imx_cache_key_add(&key, name, strlen(name) + 1);
    if (source->text && (source->bytes < 4 || memcmp(source->text, cubin, 4) != 0))
        imx_cache_key_add(&key, source->text, source->bytes);
    return key.words[0];
}

static uint64_t hash_of_options(const char *options)
{
    imx_cache_key key = { { 0 } };
    imx_cache_key_add(&key, options, strlen(options) + 1);
    return key.words[0];
}

/* Local: compiles and loads. */
static imbrex_status prepare(imbrex_kernel *k, const imbrex_kernel_desc *d)
{
    imbrex_group *group = k->group;
    const char *options = d->options ? d->options : "";
    if (d->gemm)
        IMX_TRY(imx_product_create(group, d->gemm, k->name, &k->product));
    imx_user_source source;
    IMX_TRY(imx_user_source_read(d->name, d->source, d->file, options, &source));
    k->hash = hash_of(&source, d->name);
    k->options_hash = hash_of_options(options);
    imx_user_desc desc = {
        .name = k->name,
        .text = source.text,
        .text_bytes = source.bytes,
        .file = source.file,
        .folder = source.folder,
        .options = options,
        .key = source.key,
        .entry = d->entry,
        .shared_bytes = d->shared_bytes,
        .resident = d->resident ? d->resident : (int)imx_min(group->target->workers, RESIDENT_MOST),
        .product = k->product ? &imx_kernel_gemm : NULL,
        .largest = k->product ? &k->product->args : NULL,
        .blocks = k->product ? k->product->blocks : 0,
    };
    imbrex_status status = group->backend->user_prepare(group->device, &desc, &k->user, &k->facts);
    imx_user_source_free(&source);
    if (status == IMBREX_OK && k->facts.args_bytes > IMX_USER_ARGS_BYTES)
        status = imx_fail(IMBREX_INVALID,
                          "kernel %s takes %zu bytes of args: at most %d fit; leave the rest in "
                          "memory, and a pointer to it in args",
                          k->name, k->facts.args_bytes, IMX_USER_ARGS_BYTES);
    return status;
}

/* The piece of symmetric memory that desc.memory lies in. */
static imbrex_status find_memory(imbrex_kernel *k, const void *memory)
{
    void *peer;
    if (!memory)
        return IMBREX_OK;
    return imx_memory_find(k->group, "desc.memory", memory, 1, k->group->rank, &peer);
}

/* Fills the table that devices read, which the host may not reach itself. */
static imbrex_status fill_table(imbrex_kernel *k, const void *memory)
{
    imbrex_group *group = k->group;
    size_t size = (size_t)group->size, bytes = (2 * size + 2) * sizeof(uint64_t);
    IMX_TRY(group->backend->memory_create(group->device, bytes, &k->table));
    uint64_t *table = NULL;
    IMX_TRY(imx_sys_alloc(1, bytes, &table));
    const imx_symmetric *piece = memory ? imx_memory_piece(group, memory) : NULL;
    for (int r = 0; r < group->size; r++) {
        table[r] = piece ? (uintptr_t)imx_memory_at(piece, r, 0) : 0;
        table[size + (size_t)r] = (uintptr_t)imx_memory_at(k->words, r, 0);
    }
    table[2 * size] = 1; /* epoch: of the first launch */
    imbrex_status status =
        imx_stream_copy(group, k->table->base, table, bytes, group->rank, group->kernel_stream);
    if (status == IMBREX_OK)
        status = group->backend->stream_sync(group->device, group->kernel_stream);
    free(table);
    k->team.bytes = piece ? piece->bytes : 0;
    return status;
}

static imbrex_status make_team(imbrex_kernel *k, const imbrex_kernel_desc *d)
{
    imbrex_group *group = k->group;
    if (!group->kernel_stream)
        IMX_TRY(group->backend->stream_create(group->device, &group->kernel_stream));
    IMX_TRY(fill_table(k, d->memory));
    IMX_TRY(imx_stream_order_create(group->backend, group->device, &k->order));
    uint64_t *table = k->table->base;
    k->team.rank = group->rank;
    k->team.size = group->size;
    k->team.node = group->nodes.own;
    k->team.nodes = group->nodes.count;
    k->team.node_rank = group->nodes.local;
    k->team.node_size = group->nodes.ranks;
    k->team.signal_count = d->signals;
    k->team.base = (char *const *)table;
    k->team.words = (uint64_t *const *)(table + group->size);
    k->team.epoch = table + 2 * group->size;
    k->team.watch = group->watch;
    return IMBREX_OK;
}

static imbrex_status create(imbrex_kernel *k, const imbrex_kernel_desc *d, imbrex_status mine)
{
    const char *call = "imbrex_kernel_create";
    imbrex_group *group = k->group;
    if (mine == IMBREX_OK)
        mine = prepare(k, d);
    if (mine == IMBREX_OK)
        mine = find_memory(k, d->memory);
    const imx_symmetric *piece = mine == IMBREX_OK ? imx_memory_piece(group, d->memory) : NULL;
    enum { FIELDS = 9 };
    _Static_assert(FIELDS + IMX_PRODUCT_FIELDS <= IMX_AGREE_FIELDS, "ranks do not tell so much");
    imx_field fields[FIELDS + IMX_PRODUCT_FIELDS] = {
        { .name = "desc.name or the kernel's text", .value = (int64_t)k->hash, .hash = true },
        { .name = "desc.options", .value = (int64_t)k->options_hash, .hash = true },
        { .name = "desc.resident", .value = mine == IMBREX_OK ? d->resident : 0 },
        { .name = "desc.shared_bytes", .value = mine == IMBREX_OK ? (int64_t)d->shared_bytes : 0 },
        { .name = "desc.signals", .value = mine == IMBREX_OK ? d->signals : 0 },
        { .name = "the size of its args", .value = (int64_t)k->facts.args_bytes },
        { .name = "the size of desc.memory's piece", .value = piece ? (int64_t)piece->bytes : 0 },
        { .name = "the number of desc.memory's imbrex_mem_alloc",
          .value = piece ? piece->lent : 0 },
        { .name = "whether there is a desc.gemm", .value = k->product != NULL },
    };
    int count = FIELDS + imx_product_fields(k->product, fields + FIELDS);
    IMX_TRY(imx_agree(group, call, mine, fields, count));
    imx_object_made(&group->objects[IMX_OF_CALLER], &k->object);
    k->team.kernel = k->object.number;
    if (!imx_backend_runs(group->backend))
        return IMBREX_OK;
    size_t words = IMBREXD_TEAM_WORDS(group->size) + (size_t)d->signals;
    IMX_TRY(imx_memory_alloc(group, call, IMBREX_OK, words * sizeof(uint64_t), NULL, 0, &k->words));
    return imx_agree(group, call, make_team(k, d), NULL, 0);
}

/* Also of one that is made in part. */
static void destroy(imbrex_kernel *k)
{
    imbrex_group *group = k->group;
    const imx_backend *backend = group->backend;
    imx_status_mute(true);
    imx_live_remove(IMX_LIVE_KERNEL, k);
    imx_object_remove(&group->objects[IMX_OF_CALLER], &k->object);
    imx_stream_order_destroy(&k->order, group->kernel_stream);
    if (k->user)
        backend->user_destroy(group->device, k->user);
    if (k->table)
        backend->memory_release(k->table);
    imx_memory_free(group, k->words);
    imx_product_destroy(group, k->product);
    free(k);
    imx_status_mute(false);
}

static void destroy_object(imx_object *object)
{
    destroy((imbrex_kernel *)object);
}

static void forsake_object(imx_object *object)
{
    imbrex_kernel *k = (imbrex_kernel *)object;
    imx_live_remove(IMX_LIVE_KERNEL, k);
    imx_object_remove(&k->group->objects[IMX_OF_CALLER], object);
    free(k);
}

const imx_object_kind imx_kernel_kind = {
    .name = imx_kernel_waits_name,
    .describe_wait = imx_kernel_waits_describe,
    .describe_mismatch = imx_kernel_waits_mismatch,
    .describe_mistake = imx_kernel_waits_mistake,
    .destroy = destroy_object,
    .forsake = forsake_object,
};

imbrex_status imbrex_kernel_create(imbrex_group *group, const imbrex_kernel_desc *desc,
                                   imbrex_kernel **out)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(imx_fault_check(group)); /* a rank that is gone would not come to the meeting */
    imbrex_kernel *k = NULL;
    imx_agree_forget_launches(group);
    imbrex_status mine = imx_sys_alloc(1, sizeof *k, &k);
    if (mine == IMBREX_OK)
        mine = imx_live_add(IMX_LIVE_KERNEL, k);
    if (mine != IMBREX_OK) {
        free(k);
        return imx_agree(group, __func__, mine, NULL, 0);
    }
    k->group = group;
    mine = check_desc(desc, out);
    if (mine == IMBREX_OK)
        strcpy(k->name, desc->name);
    imx_object_add(&group->objects[IMX_OF_CALLER], &k->object);
    imbrex_status status = create(k, desc, mine);
    if (status == IMBREX_OK)
        *out = k;
    else
        destroy(k);
    return status;
}

void imbrex_kernel_destroy(imbrex_kernel *k)
{
    IMX_CALL call = { 0 };
    if (imx_live_is(IMX_LIVE_KERNEL, k) && imx_call_await(&call, k->group))
        destroy(k);
}

/* ---- launch ---------------------------------------------------------------------------------- */

static imbrex_status check_args(const imbrex_kernel *k, const void *args, size_t args_bytes)
{
    if (args_bytes != k->facts.args_bytes)
        return imx_fail(IMBREX_INVALID, "args_bytes is %zu: kernel %s takes %zu", args_bytes,
                        k->name, k->facts.args_bytes);
    return args ? IMBREX_OK : imx_fail(IMBREX_INVALID, "args is NULL");
}

static imbrex_status check_blocks(const imbrex_kernel *k, int grid, int block)
{
    if (grid < 1)
        return imx_fail(IMBREX_INVALID, "grid is %d: kernel %s needs at least 1 block", grid,
                        k->name);
    int most = (int)imx_min(THREADS_MOST, k->facts.threads_most);
    if (block < 1 || block > most)
        return imx_fail(IMBREX_INVALID,
                        "block is %d: a block of kernel %s has from 1 to %d threads", block,
                        k->name, most);
    return IMBREX_OK;
}

/* Whether the kernel is of the kind that the call launches. */
static imbrex_status check_kernel(const imbrex_kernel *k, bool product)
{
    const imbrex_group *group = k->group;
    IMX_TRY(imx_fault_check(group));
    IMX_TRY(imx_group_runs(group));
    if (product != (k->product != NULL))
        return imx_fail(IMBREX_INVALID, "kernel %s was made %s desc.gemm: want %s", k->name,
                        product ? "without" : "with",
                        product ? "imbrex_launch" : "imbrex_launch_gemm");
    return IMBREX_OK;
}

/* m: the rows of its product, if it has one. */
static imbrex_status enqueue(imbrex_kernel *k, imx_user_launch *launch, int64_t m,
                             imbrex_stream stream)
{
    imbrex_group *group = k->group;
    IMX_TRY(imx_stream_find(group, &stream));
    if (k->product && m == 0)
        return imx_agree_launch(group, k->team.kernel, ++k->launches, m);
    launch->team = &k->team;
    launch->after = imx_stream_order_begin(&k->order, stream);
    IMX_TRY(group->backend->user_launch(group->device, k->user, launch, stream));
    /* Only now: a launch that this rank alone was refused must not count. */
    imbrex_status agreed = IMBREX_OK;
    if (k->product)
        agreed = imx_agree_launch(group, k->team.kernel, ++k->launches, m);
    IMX_TRY(imx_stream_order_end(&k->order, stream));
    return agreed;
}

imbrex_status imbrex_launch(imbrex_kernel *k, int grid, int block, const void *args,
                            size_t args_bytes, imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_TRY(imx_live_need(IMX_LIVE_KERNEL, k));
    IMX_ENTER_WORK(k->group);
    IMX_TRY(check_kernel(k, false));
    IMX_TRY(check_blocks(k, grid, block));
    IMX_TRY(check_args(k, args, args_bytes));
    imx_user_launch launch = { grid, block, args, args_bytes, .product = NULL };
    return enqueue(k, &launch, 0, stream);
}

imbrex_status imbrex_launch_gemm(imbrex_kernel *k, const imbrex_gemm_operands *operands,
                                 const void *args, size_t args_bytes, imbrex_stream stream)
{
    imx_status_enter(__func__);
    IMX_TRY(imx_live_need(IMX_LIVE_KERNEL, k));
    IMX_ENTER_WORK(k->group);
    IMX_TRY(check_kernel(k, true));
    IMX_TRY(check_args(k, args, args_bytes));
    imx_gemm_args product;
    IMX_TRY(imx_product_args(k->product, k->group, operands, &product));
    imx_user_launch launch = {
        .args = args, .args_bytes = args_bytes, .product = &product, .product_bytes = sizeof product
    };
    return enqueue(k, &launch, product.schedule.m, stream);
}
