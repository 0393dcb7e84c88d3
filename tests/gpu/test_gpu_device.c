/* test_gpu_device.c - every primitive of imbrex_device.h between real GPUs, or ranks that share
 * one: the kernels of device_cases.h, litmus tests of the orders (device_litmus.h), and with --cost
 * what each takes (device_cost.h). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cuda/cuda.h"
#include "backends/cuda/nvrtc.h"
#include "device_source.h"
#include "gpu.h"
#include "group/group.h"

#include "device_cases.h"
#include "device_cost.h"
#include "device_litmus.h"

enum { LIMIT_S = 120, TIMEOUT_MS = 20000, SHORT_MS = 2000, WAITS = 9 };
enum { THREADS_MOST = 256, REPEATS = 1000 };

typedef void (*device_kernel)(const imbrexd_team team, arena *own, outcome *out, uint64_t rounds);

typedef struct device_case {
    const char *name; /* of the kernel */
    uint64_t rounds;
    int fewest;           /* ranks; 0: what follows is run in another way */
    device_kernel on_cpu; /* the same, for the fake driver */
} device_case;

static const device_case cases[] = {
    { "places", 7, 1, places },
    { "pushes", 120, 1, pushes },
    { "pulls", 120, 1, pulls },
    { "put_signals", 300, 1, put_signals },
    { "comparisons", 50, 1, comparisons },
    { "comers", 300, 1, comers },
    { "meetings", 500, 1, meetings },
    { "broadcasts", 200, 1, broadcasts },
    { "additions", 200, 1, additions },
    { "locks", 400, 1, locks },
    { "flagged", 100, 1, flagged },
    { "messages", 40, 2, messages },
    { "fenced_messages", 40, 2, fenced_messages },
    { "store_buffers", 40, 2, store_buffers },
    { "credits", 40, 2, credits },
    { "nobody", 0, 0, nobody },
    { "cost", 0, 0, cost },
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* ---- the kernels ----------------------------------------------------------------------------- */

enum { CUBIN_MOST = 8 << 20 };

/* Compiled once, for the first GPU's kind, by a child: the compiler may use the driver, and what
 * has used it cannot have children that do. */
static struct {
    void *cubin; /* shared with the child */
    int arch;
} built;

static int compile_main(void *ctx)
{
    (void)ctx;
    size_t bytes;
    void *cubin;
    char *log = NULL;
    const char *file = getenv("IMBREX_NVRTC");
    RANK_OK(imx_nvrtc_open(file ? file : ""));
    char *source = device_source_all("");
    RANK_CHECK(source, "no source");
    RANK_OK(imx_nvrtc_compile("device.cu", source, "", built.arch, &cubin, &bytes, &log));
    RANK_CHECK(bytes <= CUBIN_MOST, "a cubin of %zu bytes", bytes);
    memcpy(built.cubin, cubin, bytes);
    free(source);
    free(cubin);
    free(log);
    return 0;
}

static int compile(void)
{
    built.arch = gpu_arch();
    built.cubin = gpu_shared(CUBIN_MOST);
    return gpu_isolated(compile_main, NULL, LIMIT_S);
}

static int load(const char *name, CUmodule *module, CUfunction *function)
{
    CUresult result = imx_driver->cuModuleLoadData(module, built.cubin);
    RANK_CHECK(result == CUDA_SUCCESS, "cuModuleLoadData: %d", result);
    result = imx_driver->cuModuleGetFunction(function, *module, name);
    RANK_CHECK(result == CUDA_SUCCESS, "no kernel %s: %d", name, result);
    RANK_OK(imx_cuda_function_ready(*function, name, 0));
    return 0;
}

/* ---- on the fake driver ---------------------------------------------------------------------- */

/* Its memory is the host's: the rank's own thread runs the kernel as a CPU's. */
static const imx_driver_calls *fake;
static char fake_cubin;

static CUresult fake_load(CUmodule *module, const void *image)
{
    if (image != &fake_cubin)
        return fake->cuModuleLoadData(module, image);
    *module = (CUmodule)&fake_cubin;
    return CUDA_SUCCESS;
}

static CUresult fake_unload(CUmodule module)
{
    return module == (CUmodule)&fake_cubin ? CUDA_SUCCESS : fake->cuModuleUnload(module);
}

static CUresult fake_function(CUfunction *function, CUmodule module, const char *name)
{
    if (module != (CUmodule)&fake_cubin)
        return fake->cuModuleGetFunction(function, module, name);
    for (int i = 0; i < CASES; i++) {
        if (strcmp(cases[i].name, name) == 0) {
            *function = (CUfunction)&cases[i];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static bool is_case(CUfunction function)
{
    const device_case *c = (const device_case *)function;
    return c >= cases && c < cases + CASES;
}

static CUresult fake_function_load(CUfunction function)
{
    return is_case(function) ? CUDA_SUCCESS : fake->cuFuncLoad(function);
}

static CUresult fake_set_attribute(CUfunction function, int which, int value)
{
    return is_case(function) ? CUDA_SUCCESS : fake->cuFuncSetAttribute(function, which, value);
}

static CUresult fake_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                            void **extra)
{
    const device_case *c = (const device_case *)function;
    if (!is_case(function))
        return fake->cuLaunchKernelEx(config, function, params, extra);
    c->on_cpu(*(const imbrexd_team *)params[0], *(arena **)params[1], *(outcome **)params[2],
              *(const uint64_t *)params[3]);
    return CUDA_SUCCESS;
}

static void extend_fake(void)
{
    static imx_driver_calls table;
    fake = imx_driver;
    table = *fake;
    table.cuModuleLoadData = fake_load;
    table.cuModuleUnload = fake_unload;
    table.cuModuleGetFunction = fake_function;
    table.cuLaunchKernelEx = fake_launch;
    table.cuFuncLoad = fake_function_load;
    table.cuFuncSetAttribute = fake_set_attribute;
    imx_driver = &table;
    built.cubin = &fake_cubin;
}

/* ---- a rank's team --------------------------------------------------------------------------- */

/* In device memory, one for each rank. */
typedef struct tables {
    char *base[RANKS_MOST];
    uint64_t *words[RANKS_MOST], epoch;
    outcome out;
} tables;

typedef struct place {
    imbrexd_team team;
    arena *own;
    tables *device, host;
    CUstream stream; /* the kernels', which the library does not know */
} place;

/* Collective.  The ranks of the group are called nodes of two: memory does not mind. */
static int find_place(imbrex_group *group, place *p)
{
    void *own, *words, *device, *peer;
    int rank = imbrex_group_rank(group), size = imbrex_group_size(group), first = rank / 2 * 2;
    *p = (place){ 0 };
    RANK_OK(imbrex_mem_alloc(group, sizeof(arena), &own));
    RANK_OK(imbrex_mem_alloc(group, (IMBREXD_TEAM_WORDS(size) + SIGNALS) * 8, &words));
    RANK_OK(imbrex_mem_alloc(group, sizeof(tables), &device));
    for (int r = 0; r < size; r++) {
        RANK_OK(imbrex_mem_peer(group, own, r, &peer));
        p->host.base[r] = peer;
        RANK_OK(imbrex_mem_peer(group, words, r, &peer));
        p->host.words[r] = peer;
    }
    p->own = own;
    p->device = device;
    p->team = (imbrexd_team){
        .rank = rank,
        .size = size,
        .node = rank / 2,
        .nodes = (size + 1) / 2,
        .node_rank = rank - first,
        .node_size = size - first < 2 ? 1 : 2,
        .kernel = 1,
        .signal_count = SIGNALS,
        .base = p->device->base,
        .bytes = sizeof(arena),
        .words = p->device->words,
        .epoch = &p->device->epoch,
        .watch = group->device->watch,
    };
    return 0;
}

/* Runs one block of the kernel to its end and brings its outcome.  Ranks meet before: one that
 * still loads or copies could be held up by a kernel that waits for its own. */
static int launch(imbrex_group *group, place *p, CUfunction function, unsigned threads,
                  uint64_t rounds)
{
    p->host.out = (outcome){ 0 };
    RANK_OK(imbrex_copy(group, p->device, &p->host, sizeof p->host, NULL));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    outcome *out = &p->device->out;
    void *params[] = { &p->team, &p->own, &out, &rounds };
    CUlaunchConfig config = {
        .grid = { 1, 1, 1 },
        .block = { threads, 1, 1 },
        .stream = p->stream,
    };
    CUresult launched = imx_driver->cuLaunchKernelEx(&config, function, params, NULL);
    RANK_CHECK(launched == CUDA_SUCCESS, "cuLaunchKernelEx: %d", launched);
    CUresult done = imx_driver->cuStreamSynchronize(p->stream);
    RANK_CHECK(done == CUDA_SUCCESS, "cuStreamSynchronize: %d", done);
    CUresult copied =
        imx_driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)&p->host,
                                  (CUdeviceptr)(uintptr_t)p->device, sizeof p->host, p->stream);
    done = imx_driver->cuStreamSynchronize(p->stream);
    RANK_CHECK(!copied && !done, "cuMemcpyAsync: %d, cuStreamSynchronize: %d", copied, done);
    return 0;
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* What all ranks of a run do; ctx of theirs. */
typedef struct scene {
    const char *kernel;
    uint64_t rounds;
    unsigned threads;
    int size;
    bool spread, processes;
    int64_t timeout_ms;
    int (*act)(const struct scene *s, imbrex_group *group, place *p, CUfunction function);
} scene;

static int run_kernel(const scene *s, imbrex_group *group, place *p, CUfunction function)
{
    p->host.epoch = s->rounds;
    if (launch(group, p, function, s->threads, s->rounds))
        return 1;
    const outcome *out = &p->host.out;
    RANK_CHECK(out->line == 0, "%s, line %d: %llu, want %llu (round %llu, rank %d and rank %d)",
               s->kernel, (int)out->line, (unsigned long long)out->have,
               (unsigned long long)out->want, (unsigned long long)out->round, p->team.rank,
               (int)out->rank);
    RANK_CHECK(out->done == s->rounds, "%s ended after %llu of %llu: %s", s->kernel,
               (unsigned long long)out->done, (unsigned long long)s->rounds,
               imbrex_group_status(group) ? imbrex_error() : "no fault");
    return 0;
}

/* The last rank stays away. */
static int run_nobody(const scene *s, imbrex_group *group, place *p, CUfunction function)
{
    char missing[32];
    if (launch(group, p, function, s->threads, s->rounds))
        return 1;
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    snprintf(missing, sizeof missing, "rank %d", s->size - 1);
    RANK_CHECK((int)p->host.out.done == (p->team.rank < s->size - 1), "wait %d said %d",
               (int)s->rounds, (int)p->host.out.done);
    RANK_CHECK(strstr(imbrex_error(), missing) && strstr(imbrex_error(), "in kernel "),
               "wait %d: '%s', want %s and a kernel", (int)s->rounds, imbrex_error(), missing);
    return 0;
}

/* Once to warm up, once to measure.  Rank 0 prints. */
static int run_costs(const scene *s, imbrex_group *group, place *p, CUfunction function)
{
    for (uint64_t what = 0; what < COST_COUNT; what++) {
        for (int again = 0; again < 2; again++) {
            p->host.epoch++;
            if (launch(group, p, function, s->threads, what | (uint64_t)REPEATS << 8))
                return 1;
            RANK_CHECK(p->host.out.done, "%s gave up: %s", cost_names[what],
                       imbrex_group_status(group) ? imbrex_error() : "no fault");
        }
        if (p->team.rank == 0)
            printf("  %-24s %9.1f ns\n", cost_names[what],
                   (double)p->host.out.have / (double)p->host.out.want);
    }
    return 0;
}

/* Until all ranks have come here: to load a module may take an idle GPU, which it is not once a
 * kernel of another rank of this process waits for this one's. */
static int meet(const imbrex_bootstrap *bootstrap, int size)
{
    char here = 1, all[16];
    RANK_CHECK(size <= (int)sizeof all, "%d ranks", size);
    return bootstrap && bootstrap->allgather(bootstrap->ctx, &here, all, 1);
}

static int with_kernel(const scene *s, const imbrex_bootstrap *bootstrap, imbrex_group *group)
{
    place p;
    CUmodule module = NULL;
    CUfunction function;
    CUcontext before;
    if (find_place(group, &p))
        return 1;
    RANK_OK(imx_cuda_enter(group->device->context, &before));
    CUresult made = imx_driver->cuStreamCreateWithPriority(&p.stream, CU_STREAM_NON_BLOCKING,
                                                           group->device->priority);
    RANK_CHECK(made == CUDA_SUCCESS, "cuStreamCreateWithPriority: %d", made);
    int failed = load(s->kernel, &module, &function) || meet(bootstrap, s->size) ||
                 s->act(s, group, &p, function);
    CUresult destroyed = imx_driver->cuStreamDestroy(p.stream);
    (void)destroyed;
    CUresult unloaded = module ? imx_driver->cuModuleUnload(module) : CUDA_SUCCESS;
    (void)unloaded;
    imx_cuda_leave(group->device->context, before);
    return failed;
}

static int rank_main_of(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const scene *s = ctx;
    imbrex_group *group;
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = gpu_of(rank, s->spread),
        .timeout_ms = s->timeout_ms,
    };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = with_kernel(s, bootstrap, group);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int all_ranks(void *ctx)
{
    scene *s = ctx;
    ranks_desc desc = { .size = s->size, .processes = s->processes };
    return ranks_run_bare(&desc, rank_main_of, s);
}

static void play(const scene *s)
{
    scene copy = *s;
    if (gpu_wanted("%s %d, %d %s on %s, %u threads", s->kernel, (int)s->rounds, s->size,
                   s->processes ? "processes" : "ranks", s->spread ? "a GPU each" : "one GPU",
                   s->threads))
        gpu_report(gpu_isolated(all_ranks, &copy, LIMIT_S));
}

/* On one GPU, on a GPU each, and as processes there; with one warp or many. */
static void play_everywhere(scene s, int fewest)
{
    int most = gpu_is_fake() ? 2 : 4;
    for (s.size = gpu_is_fake() ? 2 : fewest; s.size <= most; s.size *= 2) {
        s.spread = s.processes = false;
        s.threads = s.size == 2 ? 32 : THREADS_MOST;
        play(&s);
        if (gpu_count() < s.size || s.size == 1)
            continue;
        s.spread = true;
        s.threads = s.size == 4 ? 32 : THREADS_MOST;
        play(&s);
        s.processes = true;
        s.threads = THREADS_MOST;
        play(&s);
    }
}

int main(int argc, char **argv)
{
    bool costs = argc > 1 && strcmp(argv[1], "--cost") == 0;
    gpu_begin(argc - costs, argv + costs);
    if (gpu_is_fake())
        extend_fake();
    else if (compile())
        return 1;
    if (costs) {
        for (int size = 2; size <= 4; size += 2)
            play(&(scene){ "cost", REPEATS, THREADS_MOST, size, size <= gpu_count(), false,
                           TIMEOUT_MS, run_costs });
        return gpu_end();
    }
    for (int i = 0; i < CASES && cases[i].fewest; i++)
        play_everywhere(
            (scene){ .kernel = cases[i].name,
                     .rounds = gpu_is_fake() ? cases[i].rounds / 20 + 1 : cases[i].rounds,
                     .timeout_ms = TIMEOUT_MS,
                     .act = run_kernel },
            cases[i].fewest);
    for (uint64_t wait = 0; wait < (gpu_is_fake() ? 1 : WAITS); wait++)
        play(&(scene){ "nobody", wait, 64, 3, gpu_count() >= 3, false, SHORT_MS, run_nobody });
    return gpu_end();
}
