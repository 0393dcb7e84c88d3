/* test_gpu_graph.c - runs captured in CUDA graphs on real GPUs and replayed thousands of times,
 * with inputs that change from replay to replay: each gives the bits of a run of its own. */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "op_cases.h"
#include "op_image.h"

enum {
    SETS = 5,     /* of inputs, in turn */
    LOOK = 61,    /* every so manieth replay is looked at */
    IN_FLIGHT = 8 /* replays between two waits of the host */
};

/* What a graph holds: one operator, or the two of an MLP with the gate between them. */
typedef struct block {
    const char *name;
    op_case first, second;     /* second.op NULL: first alone */
    int fewer;                 /* 0, or rows of a run of the first that follows */
    int replays, replays_fake; /* in each of two rounds; 0: it takes too long there */
} block;

static const block blocks[] = {
    { .name = "all_gather, ll in words",
      .first = { .op = "all_gather", .m = 18, .n = 65, .algorithm = "ll" },
      .replays = 5000,
      .replays_fake = 20 },
    { .name = "all_gather, ll in lines",
      .first = { .op = "all_gather", .m = 300, .n = 256, .algorithm = "ll" },
      .replays = 5000,
      .replays_fake = 20 },
    { .name = "ag_gemm, copy",
      .first = { .op = "ag_gemm",
                 .m = 300,
                 .n = 256,
                 .k = 128,
                 .algorithm = "copy",
                 .bias = 1,
                 .chunk_rows = 64 },
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "ag_gemm, copy, beneath a product that holds every multiprocessor",
      .first = { .op = "ag_gemm", .m = 560, .n = 9472, .k = 264, .algorithm = "copy" },
      .replays = 1000 },
    { .name = "ag_gemm, store",
      .first = { .op = "ag_gemm",
                 .m = 300,
                 .n = 256,
                 .k = 128,
                 .algorithm = "store",
                 .chunk_rows = 64 },
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "ag_gemm, store, which the copy engine pushes",
      .first = { .op = "ag_gemm",
                 .m = 1300,
                 .n = 1032,
                 .k = 520,
                 .algorithm = "store",
                 .chunk_rows = 128 },
      .replays = 2000,
      .replays_fake = 4 },
    { .name = "ag_gemm, ring",
      .first = { .op = "ag_gemm",
                 .m = 300,
                 .n = 256,
                 .k = 1088,
                 .algorithm = "ring",
                 .bias = 1,
                 .chunk_rows = 64 },
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "gemm_rs, copy",
      .first = { .op = "gemm_rs",
                 .m = 300,
                 .n = 256,
                 .k = 128,
                 .algorithm = "copy",
                 .chunk_rows = 64 },
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "gemm_rs, by tiles",
      .first = { .op = "gemm_rs",
                 .m = 300,
                 .n = 256,
                 .k = 128,
                 .algorithm = BY_TILES,
                 .chunk_rows = 64 },
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "gemm_rs, by tiles, whose run ends beneath its last sums",
      .first = { .op = "gemm_rs",
                 .m = 1100,
                 .n = 520,
                 .k = 8192,
                 .algorithm = BY_TILES,
                 .sms = 20,
                 .bias = 1 },
      .replays = 2000 },
    { .name = "gemm_rs, sums, of which some leave most of a unit free",
      .first = { .op = "gemm_rs",
                 .m = 100,
                 .n = 1000,
                 .k = 2056,
                 .dtype = IMBREX_F16,
                 .algorithm = BY_TILES },
      .replays = 5000,
      .replays_fake = 5 },
    { .name = "gemm_rs, sums of several rows of tiles",
      .first = { .op = "gemm_rs", .m = 500, .n = 2056, .k = 520, .algorithm = BY_TILES, .bias = 1 },
      .replays = 2000,
      .replays_fake = 4 },
    { .name = "gemm_rs, sums by warps that take turns",
      .first = { .op = "gemm_rs", .m = 400, .n = 6400, .k = 264, .algorithm = BY_TILES },
      .replays = 2000,
      .replays_fake = 4 },
    { .name = "all_reduce, ll, normed by clusters",
      .first = { .op = "all_reduce",
                 .m = 40,
                 .n = 3000,
                 .algorithm = "ll",
                 .norm = { .rms = 1 },
                 .residual = 1 },
      .fewer = 7,
      .replays = 4000,
      .replays_fake = 5 },
    { .name = "all_reduce, ll2, normed, several rows a block",
      .first = { .op = "all_reduce",
                 .m = 300,
                 .n = 1024,
                 .algorithm = "ll2",
                 .norm = { .rms = 1, .quant = IMBREX_PER_ROW },
                 .residual = 1 },
      .fewer = 5,
      .replays = 4000,
      .replays_fake = 5 },
    { .name = "gemm_ar, copy",
      .first = { .op = "gemm_ar",
                 .m = 300,
                 .n = 256,
                 .k = 128,
                 .algorithm = "copy",
                 .bias = 1,
                 .chunk_rows = 64 },
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "gemm_ar, store, in tiles of one rank's rows",
      .first = { .op = "gemm_ar",
                 .m = 300,
                 .n = 256,
                 .k = 128,
                 .algorithm = "store",
                 .chunk_rows = 64 },
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "gemm_ar, store, in tiles of several ranks' rows",
      .first = { .op = "gemm_ar", .m = 100, .n = 1000, .k = 2056, .algorithm = "store", .bias = 1 },
      .replays = 5000,
      .replays_fake = 5 },
    { .name = "gemm_ar, many rows and few",
      .first = { .op = "gemm_ar", .m = 300, .n = 256, .k = 128 },
      .fewer = 100,
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "gemm_ar, ll",
      .first = { .op = "gemm_ar", .m = 60, .n = 1000, .k = 264, .algorithm = "ll", .bias = 1 },
      .fewer = 7,
      .replays = 5000,
      .replays_fake = 20 },
    { .name = "gemm_ar, reduce_push",
      .first = { .op = "gemm_ar",
                 .m = 100,
                 .n = 1000,
                 .k = 2056,
                 .algorithm = "reduce_push",
                 .bias = 1 },
      .fewer = 7,
      .replays = 5000,
      .replays_fake = 5 },
    { .name = "gemm_ar, reduce_push2",
      .first = { .op = "gemm_ar",
                 .m = 100,
                 .n = 1000,
                 .k = 2056,
                 .algorithm = "reduce_push2",
                 .bias = 1 },
      .fewer = 7,
      .replays = 5000,
      .replays_fake = 5 },
    { .name = "ag_gemm, many rows and few",
      .first = { .op = "ag_gemm", .m = 300, .n = 256, .k = 128 },
      .fewer = 50,
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "gemm_rs, many rows and few",
      .first = { .op = "gemm_rs", .m = 300, .n = 256, .k = 128 },
      .fewer = 100,
      .replays = 1000,
      .replays_fake = 12 },
    { .name = "a whole block, copy",
      .first = { .op = "ag_gemm", .m = 200, .n = 256, .k = 128, .algorithm = "copy" },
      .second = { .op = "gemm_rs", .m = 200, .n = 128, .k = 128, .algorithm = "copy" },
      .replays = 5000,
      .replays_fake = 20 },
    { .name = "a whole block, store",
      .first = { .op = "ag_gemm", .m = 200, .n = 256, .k = 128, .algorithm = "store" },
      .second = { .op = "gemm_rs", .m = 200, .n = 128, .k = 128, .algorithm = BY_TILES },
      .replays = 5000,
      .replays_fake = 20 },
    { .name = "a whole block, ll",
      .first = { .op = "ag_gemm", .m = 200, .n = 256, .k = 128, .algorithm = "ll" },
      .second = { .op = "gemm_rs", .m = 200, .n = 128, .k = 128, .algorithm = "ll", .bias = 1 },
      .replays = 5000,
      .replays_fake = 20 },
};

typedef struct act {
    imbrex_group *group;
    const block *block;
    imbrex_stream stream, other; /* runs and replays; captures, as PyTorch has it */
    imbrex_plan *first, *second;
    op_image x, y; /* of the two; a of y is the gate's result */
    char *a[SETS]; /* device: what x.a is to be */
    char *out;     /* device: the end's c */
    size_t out_bytes;
    char *seen;       /* device: out of one replay */
    char *want[SETS]; /* host */
    gpu_graph *graph;
} act;

static int take(act *t)
{
    const block *b = t->block;
    int ranks = imbrex_group_size(t->group), r = imbrex_group_rank(t->group);
    void *at;
    RANK_OK(imbrex_stream_create(t->group, &t->stream));
    RANK_OK(imbrex_stream_create(t->group, &t->other));
    RANK_OK(case_plan(t->group, &b->first, &t->first));
    RANK_OK(imbrex_mem_alloc(t->group, op_image_bytes(&b->first, ranks), &at));
    t->x = op_image_take(&b->first, b->first.m, ranks, r, at);
    t->out = t->x.device + t->x.c.at;
    t->out_bytes = t->x.c.bytes;
    if (b->second.op) {
        RANK_OK(case_plan(t->group, &b->second, &t->second));
        RANK_OK(imbrex_mem_alloc(t->group, op_image_bytes(&b->second, ranks), &at));
        t->y = op_image_take(&b->second, b->second.m, ranks, r, at);
        t->out = t->y.device + t->y.c.at;
        t->out_bytes = t->y.c.bytes;
        if (op_image_upload(t->group, &t->y))
            return 1;
    }
    RANK_OK(imbrex_mem_alloc(t->group, op_image_bytes(&b->first, ranks), &at));
    t->seen = at;
    return op_image_upload(t->group, &t->x);
}

static int take_sets(act *t)
{
    int ranks = imbrex_group_size(t->group), r = imbrex_group_rank(t->group);
    for (int s = 0; s < SETS; s++) {
        op_case c = t->block->first;
        c.input = 100 * s;
        void *at;
        RANK_OK(imbrex_mem_alloc(t->group, op_image_bytes(&c, ranks), &at));
        op_image set = op_image_take(&c, c.m, ranks, r, at);
        if (op_image_upload(t->group, &set))
            return 1;
        t->a[s] = set.device + set.a.at;
        op_image_drop(&set);
        t->want[s] = malloc(t->out_bytes);
    }
    return 0;
}

static int enqueue(act *t, imbrex_stream stream)
{
    const block *b = t->block;
    imbrex_args args = op_image_args(&b->first, &t->x, b->first.m);
    RANK_OK(imbrex_plan_run(t->first, &args, stream));
    args.m = b->fewer;
    if (b->fewer)
        RANK_OK(imbrex_plan_run(t->first, &args, stream));
    if (!t->second)
        return 0;
    RANK_OK(imbrex_silu_mul(t->group, b->first.dtype, b->first.m, b->first.n / 2,
                            t->x.device + t->x.c.at, t->y.device + t->y.a.at, stream));
    args = op_image_args(&b->second, &t->y, b->second.m);
    RANK_OK(imbrex_plan_run(t->second, &args, stream));
    return 0;
}

static int set_input(act *t, int s)
{
    if (t->x.a.bytes)
        RANK_OK(imbrex_copy(t->group, t->x.device + t->x.a.at, t->a[s], t->x.a.bytes, t->stream));
    return 0;
}

static int fetch(act *t, const char *from, char *to)
{
    RANK_OK(imbrex_stream_sync(t->group, t->stream));
    if (t->out_bytes)
        RANK_OK(imbrex_copy(t->group, to, from, t->out_bytes, t->stream));
    RANK_OK(imbrex_stream_sync(t->group, t->stream));
    return 0;
}

/* Runs without a graph: what replays have to give. */
static int record(act *t)
{
    for (int s = 0; s < SETS; s++) {
        if (set_input(t, s) || enqueue(t, t->stream) || fetch(t, t->out, t->want[s]))
            return 1;
    }
    return 0;
}

static int look(act *t, int replay, char *have)
{
    if (fetch(t, t->seen, have))
        return 1;
    const char *want = t->want[replay % SETS];
    size_t at = 0;
    while (at < t->out_bytes && have[at] == want[at])
        at++;
    int64_t e = (int64_t)(at / element_bytes(t->block->first.dtype));
    RANK_CHECK(at == t->out_bytes, "rank %d, %s: replay %d: value %lld is %g, without a graph %g",
               imbrex_group_rank(t->group), t->block->name, replay, (long long)e,
               element_get(t->block->first.dtype, have, e),
               element_get(t->block->first.dtype, want, e));
    return 0;
}

static int replay(act *t)
{
    int replays = gpu_is_fake() ? t->block->replays_fake : t->block->replays, seen = -1;
    char *have = malloc(t->out_bytes + 1);
    for (int i = 0; i < replays; i++) {
        if (set_input(t, i % SETS) || gpu_graph_launch(t->graph, t->stream))
            return 1;
        if (i % LOOK == 0 || i == replays - 1) {
            seen = i;
            if (t->out_bytes)
                RANK_OK(imbrex_copy(t->group, t->seen, t->out, t->out_bytes, t->stream));
        }
        if (i % IN_FLIGHT == IN_FLIGHT - 1 || i == replays - 1)
            RANK_OK(imbrex_stream_sync(t->group, t->stream));
        if (seen >= 0 && (i % IN_FLIGHT == IN_FLIGHT - 1 || i == replays - 1)) {
            if (look(t, seen, have))
                return 1;
            seen = -1;
        }
    }
    free(have);
    return 0;
}

static int perform(act *t)
{
    if (take(t) || take_sets(t) || record(t))
        return 1;
    if (gpu_graph_begin(t->other))
        return 1;
    int failed = enqueue(t, t->other); /* a capture that was begun has to be ended */
    if (gpu_graph_end(t->other, &t->graph) || failed)
        return 1;
    /* Ranks may share a GPU, where a graph that copies comes into being only while no kernel runs:
     * the hosts meet, before any kernel waits for a rank. */
    void *meeting;
    RANK_OK(imbrex_mem_alloc(t->group, sizeof(uint64_t), &meeting));
    /* Runs of their own before, between and after replays take the other buffer, or the same. */
    return replay(t) || record(t) || replay(t);
}

typedef struct show {
    const block *block;
    int size;
    bool spread;
} show;

static int show_rank(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const show *s = ctx;
    act t = { .block = s->block };
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = gpu_of(rank, s->spread),
        .timeout_ms = 20000,
    };
    RANK_OK(imbrex_group_create(&desc, &t.group));
    int failed = perform(&t);
    if (failed)
        imbrex_group_abort(t.group);
    imbrex_status idle = imbrex_stream_sync(t.group, t.stream);
    (void)idle;
    gpu_graph_destroy(t.graph);
    imbrex_group_destroy(t.group);
    for (int i = 0; i < SETS; i++)
        free(t.want[i]);
    op_image_drop(&t.x);
    op_image_drop(&t.y);
    return failed;
}

static int all_ranks(void *ctx)
{
    show *s = ctx;
    ranks_desc desc = { .size = s->size, .meeting_s = 60 };
    return ranks_run_bare(&desc, show_rank, s);
}

static void run(int size, bool spread)
{
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        show s = { &blocks[i], size, spread };
        if (gpu_is_fake() && blocks[i].replays_fake == 0)
            continue;
        if (gpu_wanted("%s, replayed by %d ranks%s", blocks[i].name, size,
                       spread ? ", a GPU each" : ""))
            gpu_report(gpu_isolated(all_ranks, &s, 100));
    }
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    run(2, gpu_count() >= 2);
    if (!gpu_is_fake()) /* which tests this test */
        run(4, gpu_count() >= 4);
    return gpu_end();
}
