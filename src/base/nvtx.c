/* nvtx.c - the part of NVTX's injection interface that ranges need: the tool's library asks for a
 * table of places, and puts its functions there.  The numbers are those of that interface. */
#include "nvtx.h"

#include <dlfcn.h>
#include <pthread.h>

enum { TABLE_CALLBACKS = 1, TABLE_VERSION = 3, VERSION = 3 };
enum { MODULE_CORE = 1, MODULES = 7, PLACES = 16 };
enum { CORE_PUSH = 9, CORE_POP = 11 };

typedef void (*function)(void);

/* How many places a module has; the first is none. */
static const unsigned counts[MODULES] = { 0, 16, 9, 15, 7, 16, 7 };

static function places[MODULES][PLACES];
static function *tables[MODULES][PLACES + 1]; /* a NULL behind the last */

static char problem[320];
static int (*push)(const char *name); /* NULL: there is no tool */
static int (*pop)(void);

static int find_module(int module, function ***table, unsigned *count)
{
    if (module < 1 || module >= MODULES)
        return 0;
    for (unsigned i = 1; i < counts[module]; i++)
        tables[module][i] = &places[module][i];
    if (table)
        *table = tables[module];
    if (count)
        *count = counts[module];
    return 1;
}

static void take_version(uint32_t version)
{
    (void)version;
}

static const void *find_table(uint32_t number)
{
    static const struct {
        size_t bytes;
        int (*find_module)(int module, function ***table, unsigned *count);
    } callbacks = { sizeof callbacks, find_module };
    static const struct {
        size_t bytes;
        uint32_t version, reserved;
        void (*take_version)(uint32_t version);
    } version = { sizeof version, VERSION, 0, take_version };
    return number == TABLE_CALLBACKS ? &callbacks
           : number == TABLE_VERSION ? (void *)&version
                                     : NULL;
}

static void open_tool(void)
{
    const char *path = imx_env_get("NVTX_INJECTION64_PATH");
    if (!path || !*path)
        return;
    void *library = dlopen(path, RTLD_LAZY);
    int (*begin)(const void *(*find)(uint32_t number)) = NULL;
    if (library)
        *(void **)&begin = dlsym(library, "InitializeInjectionNvtx2");
    if (!begin || !begin(find_table)) {
        imx_text text = { .at = problem, .size = sizeof problem };
        imx_text_add(&text, "NVTX_INJECTION64_PATH is %s, so that runs have no names there: %s",
                     path, library ? "it does not start" : dlerror());
        return; /* the library stays: who knows what it began */
    }
    function begins = places[MODULE_CORE][CORE_PUSH], ends = places[MODULE_CORE][CORE_POP];
    if (begins && ends) {
        pop = (int (*)(void))ends;
        push = (int (*)(const char *))begins;
    }
}

const char *imx_nvtx_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_tool);
    return problem;
}

void imx_nvtx_begin(const char *op, int64_t m, const char *algorithm)
{
    char name[96];
    if (!push)
        return;
    imx_text text = { .at = name, .size = sizeof name };
    imx_text_add(&text, "%s m=%lld (%s)", op, (long long)m, algorithm);
    push(name);
}

void imx_nvtx_end(void)
{
    if (push)
        pop();
}
