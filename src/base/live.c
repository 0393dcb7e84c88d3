/* live.c - a table of chains that only grow: an entry is emptied and used again, but never freed,
 * so that one may look while others add and remove. */
#include "live.h"

#include "process.h"

enum { CHAINS_LOG2 = 8, CHAINS = 1 << CHAINS_LOG2 };

typedef struct entry {
    struct entry *next; /* constant */
    uintptr_t key;      /* atomic; 0: free */
} entry;

static entry *chains[CHAINS]; /* atomic */

/* Objects lie at multiples of 8, so there is room for the kind.  Inverted: who looks for leaks
 * takes whatever looks like an address for a reference. */
static uintptr_t key_of(imx_live_kind kind, const void *object)
{
    return ~((uintptr_t)object | (uintptr_t)kind);
}

static entry **chain_of(uintptr_t key)
{
    return &chains[(uint64_t)key * 0x9e3779b97f4a7c15 >> (64 - CHAINS_LOG2)];
}

/* acquire: pairs with the release that put an entry there.  The key itself orders nothing: whoever
 * has a handle has it from where it was made. */
static entry *find(uintptr_t chain, uintptr_t key)
{
    entry *e = __atomic_load_n(chain_of(chain), __ATOMIC_ACQUIRE);
    while (e && __atomic_load_n(&e->key, __ATOMIC_RELAXED) != key)
        e = e->next;
    return e;
}

imbrex_status imx_live_add(imx_live_kind kind, const void *object)
{
    uintptr_t key = key_of(kind, object);
    imbrex_status status = IMBREX_OK;
    imx_process_lock(IMX_LOCK_LIVE);
    entry *e = find(key, 0);
    if (!e && (status = imx_sys_alloc(1, sizeof *e, &e)) == IMBREX_OK) {
        e->next = *chain_of(key);
        __atomic_store_n(chain_of(key), e, __ATOMIC_RELEASE);
    }
    if (status == IMBREX_OK)
        __atomic_store_n(&e->key, key, __ATOMIC_RELAXED);
    imx_process_unlock(IMX_LOCK_LIVE);
    return status;
}

void imx_live_remove(imx_live_kind kind, const void *object)
{
    uintptr_t key = key_of(kind, object);
    imx_process_lock(IMX_LOCK_LIVE);
    entry *e = find(key, key);
    if (e)
        __atomic_store_n(&e->key, 0, __ATOMIC_RELAXED);
    imx_process_unlock(IMX_LOCK_LIVE);
}

bool imx_live_is(imx_live_kind kind, const void *object)
{
    uintptr_t key = key_of(kind, object);
    return object && find(key, key);
}

imbrex_status imx_live_need(imx_live_kind kind, const void *object)
{
    static const struct {
        const char *name, *hint, *kept_by;
    } kinds[] = {
        [IMX_LIVE_GROUP] = { "group", "did imbrex_group_create fail?", "" },
        [IMX_LIVE_PLAN] = { "plan", "did the call that makes it fail?", " or its group" },
        [IMX_LIVE_KERNEL] = { "kernel", "did imbrex_kernel_create fail?", " or its group" },
    };
    const char *name = kinds[kind].name;
    IMX_TRY(imx_status_need(object, name, kinds[kind].hint));
    if (imx_live_is(kind, object))
        return IMBREX_OK;
    return imx_fail(IMBREX_INVALID, "%s, %p, is none that there is: has it%s been destroyed?", name,
                    object, kinds[kind].kept_by);
}
