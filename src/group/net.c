/* net.c - which engine reaches the other nodes, and how a group gets it. */
#include "net.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "agree.h"
#include "fault_relay.h"

const imx_net_kind *imx_net_of_test;

/* Those that are built in; the one for CPUs is a library of its own. */
static const imx_net_kind *const built_in[] = { &imx_net_nccl, NULL };

#define TEXT(number)    TEXT_OF(number)
#define TEXT_OF(number) #number
#define LIBRARY         "libimbrex_mpi.so." TEXT(IMBREX_VERSION_MAJOR)

/* Beside the file that this code is in. */
static void *open_beside(void)
{
    Dl_info here;
    char path[1024];
    if (!dladdr(&imx_net_of_test, &here) || !here.dli_fname || !strrchr(here.dli_fname, '/'))
        return NULL;
    int folder = (int)(strrchr(here.dli_fname, '/') - here.dli_fname);
    int length = snprintf(path, sizeof path, "%.*s/" LIBRARY, folder, here.dli_fname);
    return length < (int)sizeof path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
}

static const char *path_of(void *library)
{
    struct link_map *map = NULL;
    return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : LIBRARY;
}

/* RTLD_GLOBAL: an MPI loads parts of itself that look for its symbols.  Never closed: an MPI cannot
 * begin twice. */
static imbrex_status load(const char *file, const imx_net_kind **kind)
{
    void *library = file[0] ? NULL : open_beside();
    if (!library)
        library = dlopen(file[0] ? file : LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "the ranks are on several nodes, and the library that carries data between "
                        "them is not there: %s; build imbrex where MPI is, or set IMBREX_NET to "
                        "the file",
                        dlerror());
    *kind = dlsym(library, IMX_NET_SYMBOL);
    return *kind ? IMBREX_OK
                 : imx_fail(IMBREX_UNSUPPORTED,
                            "%s carries no data between nodes for imbrex: set IMBREX_NET to the "
                            "file " LIBRARY " that was built with it",
                            path_of(library));
}

static imbrex_status find_kind(const imbrex_group *group, const imx_net_kind **found)
{
    const char *device = group->backend->name;
    const imx_net_kind *kind = imx_net_of_test;
    for (int i = 0; !kind && built_in[i] && !group->env.net[0]; i++)
        kind = strcmp(built_in[i]->device, device) == 0 ? built_in[i] : NULL;
    if (!kind)
        IMX_TRY(load(group->env.net, &kind));
    if (kind->abi != IMX_NET_ABI)
        return imx_fail(IMBREX_UNSUPPORTED, "the engine \"%s\" is of another version of imbrex",
                        kind->name);
    if (strcmp(kind->device, device) != 0)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "the ranks are on several nodes, and what is here to carry data between "
                        "them, \"%s\", is for \"%s\", not \"%s\"",
                        kind->name, kind->device, device);
    *found = kind;
    return IMBREX_OK;
}

static imbrex_status create(imbrex_group *group)
{
    const imx_net_kind *kind = NULL;
    const imx_net_desc desc = {
        .backend = group->backend,
        .device = group->device,
        .env = &group->env,
        .watch = &group->watch,
        .rank = group->rank,
        .size = group->size,
        .node_of = group->nodes.of,
        .timeout_ms = group->timeout_ms,
        .allgather = imx_agree_allgather_of,
        .ctx = group,
        .fail = imx_fail,
    };
    IMX_TRY(find_kind(group, &kind));
    size_t words = ((size_t)group->nodes.count + 1) * sizeof(uint64_t);
    IMX_TRY(group->backend->memory_create(group->device, words, &group->net_words));
    IMX_TRY(kind->create(&desc, &group->net));
    group->net_kind = kind;
    return IMBREX_OK;
}

imbrex_status imx_net_begin(imbrex_group *group, const char *call, imbrex_status mine)
{
    /* "compile" only compiles: it has nothing to send. */
    bool wanted = group->nodes.count > 1 && imx_backend_runs(group->backend);
    if (mine == IMBREX_OK && wanted)
        mine = create(group);
    IMX_TRY(imx_agree(group, call, mine, NULL, 0));
    if (!wanted)
        return IMBREX_OK;
    mine = group->net_kind->open(group->net);
    if (mine == IMBREX_OK)
        group->net_kind->facts(group->net, &group->net_facts);
    IMX_TRY(imx_agree(group, call, mine, NULL, 0));
    return imx_fault_relay_open(group, &group->relay);
}

void imx_net_end(imbrex_group *group)
{
    group->net_was_stuck = imx_net_stuck(group);
    if (group->net)
        group->net_kind->close(group->net);
    group->net = NULL;
    if (group->net_words && !group->net_was_stuck)
        group->backend->memory_release(group->net_words);
}

imbrex_status imx_net_check_number(const imbrex_group *group, int number)
{
    if (!group->net || number <= group->net_facts.plans)
        return IMBREX_OK;
    return imx_fail(IMBREX_UNSUPPORTED,
                    "the group has made %d plans, and %s tells no more of them apart: keep plans "
                    "that you need again, or make another group",
                    group->net_facts.plans, group->net_facts.text);
}

imbrex_status imx_net_check_stream(const imbrex_group *group, imbrex_stream stream)
{
    if (!group->net || group->net_facts.capturable || !group->backend->capture ||
        !group->backend->capture(group->device, stream))
        return IMBREX_OK;
    return imx_fail(IMBREX_UNSUPPORTED,
                    "a graph is being captured on this stream, and what goes to other nodes over "
                    "%s cannot be captured: enqueue it outside of graphs",
                    group->net_facts.text);
}

void imx_net_info(imx_text *text)
{
    imx_env env;
    imbrex_status fell_back = imx_env_read(&env); /* then the default stands for what is wrong */
    (void)fell_back;
    for (int i = 0; built_in[i]; i++)
        built_in[i]->info(&env, text);
}

imbrex_status imx_net_meet(imbrex_group *group, imbrex_stream stream)
{
    const imx_nodes *nodes = &group->nodes;
    uint64_t *words = group->net_words->base;
    for (int i = 1; i < nodes->count && nodes->local == 0; i++) {
        int to = (nodes->own + i) % nodes->count;
        int from = (nodes->own + nodes->count - i) % nodes->count;
        const imx_net_op ops[] = {
            { false, nodes->first[to], &words[nodes->count], sizeof *words },
            { true, nodes->first[from], &words[from], sizeof *words },
        };
        IMX_TRY(group->net_kind->step(group->net, 0, 0, ops, 2, stream));
    }
    return IMBREX_OK;
}
