/* test_gpu_experts.c - layers of experts captured in a CUDA graph and replayed with other tokens,
 * which choose other experts, or none: each replay gives the bits of runs of its own. */
#include <stdlib.h>
#include <string.h>

#include "experts.h"
#include "gpu.h"

typedef struct way {
    bool dispatches;
    const char *algorithms[2];
} way;

static const way ways[] = {
    { false, { "copy", "store" } },
    { false, { "ll", "sequential" } },
    { false, { "sequential", "store" } },
    { true, { "store", "sequential" } },
    { true, { "sequential", "store" } },
    { false, { "ll", "ll" } },
    { true, { "ll", "ll" } },
};

typedef struct act {
    experts e;
    imbrex_stream stream, other; /* runs and replays; captures */
    char *room, *sets;           /* device: inputs of all sets */
    char *seen, *want[EXPERTS_SETS];
    gpu_graph *graph;
} act;

static int take(act *t)
{
    imbrex_group *group = t->e.group;
    char *host = malloc(t->e.in_bytes);
    void *at;
    RANK_OK(imbrex_stream_create(group, &t->stream));
    RANK_OK(imbrex_stream_create(group, &t->other));
    RANK_OK(imbrex_mem_alloc(group, EXPERTS_ROOM, &at));
    t->room = at;
    RANK_OK(imbrex_mem_alloc(group, EXPERTS_SETS * EXPERTS_ROOM, &at));
    t->sets = at;
    t->seen = malloc(t->e.out_bytes);
    for (int s = 0; s < EXPERTS_SETS; s++) {
        t->want[s] = malloc(t->e.out_bytes);
        experts_fill(&t->e, s, host);
        RANK_OK(imbrex_copy(group, t->sets + (size_t)s * t->e.in_bytes, host, t->e.in_bytes,
                            t->stream));
        RANK_OK(imbrex_stream_sync(group, t->stream));
    }
    free(host);
    return 0;
}

static int enqueue(const act *t, imbrex_stream stream)
{
    for (int i = 0; i < 2; i++)
        RANK_OK(experts_run(&t->e, i, t->room, 0, stream));
    return 0;
}

/* Set s in the room, behind what is under way; and the result of it, on the host. */
static int bring(const act *t, int s)
{
    RANK_OK(imbrex_copy(t->e.group, t->room, t->sets + (size_t)s * t->e.in_bytes, t->e.in_bytes,
                        t->stream));
    return 0;
}

static int fetch(const act *t, char *to)
{
    RANK_OK(imbrex_copy(t->e.group, to, t->room + t->e.out_at, t->e.out_bytes, t->stream));
    RANK_OK(imbrex_stream_sync(t->e.group, t->stream));
    return 0;
}

static int replay(const act *t, int replays)
{
    for (int i = 0; i < replays; i++) {
        int s = i * 5 % EXPERTS_SETS;
        if (bring(t, s) || gpu_graph_launch(t->graph, t->stream))
            return 1;
        if (i % 3 != 2 && i != replays - 1)
            continue; /* the next one follows at once */
        if (fetch(t, t->seen))
            return 1;
        RANK_CHECK(memcmp(t->seen, t->want[s], t->e.out_bytes) == 0,
                   "replay %d, of tokens %d, differs from a run", i, s);
    }
    return 0;
}

/* Runs of their own before, between and after replays take the other buffer, or the same. */
static int perform(act *t, bool first)
{
    for (int s = 0; s < EXPERTS_SETS; s++) {
        if (bring(t, s) || enqueue(t, t->stream) || fetch(t, first ? t->want[s] : t->seen))
            return 1;
        RANK_CHECK(first || memcmp(t->seen, t->want[s], t->e.out_bytes) == 0,
                   "a run between replays, of tokens %d, differs", s);
    }
    return 0;
}

static int show_rank(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const way *w = ctx;
    int replays = gpu_is_fake() ? 14 : 5000; /* twice */
    imbrex_group_desc desc = { .bootstrap = bootstrap,
                               .device = gpu_of(rank, gpu_count() >= 2),
                               .timeout_ms = 20000 };
    imbrex_group *group;
    act t = { .graph = NULL };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = experts_begin(group, w->dispatches, w->algorithms, &t.e) || take(&t) ||
                 perform(&t, true) || gpu_graph_begin(t.other);
    if (!failed) {
        failed = enqueue(&t, t.other); /* a capture that was begun has to be ended */
        failed |= gpu_graph_end(t.other, &t.graph);
    }
    /* Where ranks share a GPU a graph that copies comes into being only while no kernel runs. */
    void *meeting;
    failed = failed || imbrex_mem_alloc(group, sizeof(uint64_t), &meeting) != IMBREX_OK ||
             replay(&t, replays) || perform(&t, false) || replay(&t, replays);
    if (failed)
        imbrex_group_abort(group);
    imbrex_status idle = imbrex_stream_sync(group, t.stream);
    (void)idle;
    gpu_graph_destroy(t.graph);
    imbrex_group_destroy(group);
    free(t.seen);
    for (int s = 0; s < EXPERTS_SETS; s++)
        free(t.want[s]);
    return failed;
}

static int all_ranks(void *ctx)
{
    ranks_desc desc = { .size = 2, .meeting_s = 60 };
    return ranks_run_bare(&desc, show_rank, ctx);
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        way w = ways[i];
        if (gpu_wanted("%s and %s, replayed, by %s and %s", w.dispatches ? "dispatch" : "ag_moe",
                       w.dispatches ? "combine" : "moe_rs", w.algorithms[0], w.algorithms[1]))
            gpu_report(gpu_isolated(all_ranks, &w, 120));
    }
    return gpu_end();
}
