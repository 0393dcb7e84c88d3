/* test_gpu_user_kernel.c - kernels of the caller's on real GPUs: compiled for them, launched,
 * captured in CUDA graphs and replayed; what a wrong one is told there. */
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"
#include "gpu.h"
#include "shift.h"

enum { ROUNDS = 200, ROUNDS_FAKE = 20 };

typedef struct show {
    int (*act)(imbrex_group *group);
    int size;
    bool spread;
} show;

static int rounds(void)
{
    return gpu_is_fake() ? ROUNDS_FAKE : ROUNDS;
}

static const imbrex_kernel_desc plain = { .source = shift_text };

static int launches(imbrex_group *group)
{
    shift *s = calloc(1, sizeof *s);
    imbrex_stream other;
    int failed = shift_open(s, group, &plain);
    RANK_OK(imbrex_stream_create(group, &other));
    for (int round = 0; round < rounds() && !failed; round++) {
        imbrex_stream on = round % 3 ? NULL : other;
        failed = shift_fill(s, round, on) || shift_launch(s, on) || shift_check(s, round, on);
    }
    imbrex_kernel_destroy(s->kernel);
    free(s);
    return failed;
}

static int replays(imbrex_group *group)
{
    shift *s = calloc(1, sizeof *s);
    imbrex_stream stream;
    gpu_graph *graph = NULL;
    int failed = shift_open(s, group, &plain);
    RANK_OK(imbrex_stream_create(group, &stream));
    failed = failed || gpu_graph_begin(stream) || shift_launch(s, stream) ||
             gpu_graph_end(stream, &graph);
    for (int round = 0; round < rounds() && !failed; round++)
        failed = shift_fill(s, round, stream) || gpu_graph_launch(graph, stream) ||
                 gpu_graph_launch(graph, stream) || shift_check(s, round, stream);
    imbrex_status idle = imbrex_stream_sync(group, stream);
    (void)idle;
    gpu_graph_destroy(graph);
    free(s);
    return failed;
}

static int said(imbrex_status got, const char *words)
{
    RANK_CHECK(got == IMBREX_INVALID && strstr(imbrex_error(), words), "%s: %s; want \"%s\"",
               imbrex_status_name(got), imbrex_error(), words);
    return 0;
}

static int mistakes(imbrex_group *group)
{
    shift *s = calloc(1, sizeof *s);
    imbrex_kernel *none = NULL;
    int failed = shift_open(s, group, &plain);
    const shift_args *args = &s->args;
    imbrex_kernel_desc absent = { .name = "absent", .source = shift_text };
    failed = failed || said(imbrex_kernel_create(group, &absent, &none), "no kernel absent");
    imbrex_kernel_desc wrong = { .name = "wrong", .source = wrong_text, .file = "wrong.cu" };
    failed = failed || said(imbrex_kernel_create(group, &wrong, &none),
                            gpu_is_fake() ? "kernel.cu(3): error" : "wrong.cu(1): error");
    failed = failed ||
             said(imbrex_launch(s->kernel, 0, 32, args, sizeof *args, NULL), "grid is 0") ||
             said(imbrex_launch(s->kernel, 1, 1025, args, sizeof *args, NULL), "block is 1025") ||
             said(imbrex_launch(s->kernel, 1, 32, args, 8, NULL), "takes 32");
    for (int round = 0; round < 3 && !failed; round++) /* none of these did any harm */
        failed = shift_fill(s, round, NULL) || shift_launch(s, NULL) || shift_check(s, round, NULL);
    imbrex_kernel_destroy(s->kernel);
    free(s);
    return failed;
}

/* A warp's operations are whole also where the warp is not. */
static int part_of_a_warp(imbrex_group *group)
{
    shift *s = calloc(1, sizeof *s);
    imbrex_kernel *quarters = NULL;
    imbrex_kernel_desc desc = { .name = "quarters", .source = shift_text };
    static int zeros[SHIFT_N];
    int failed = shift_open(s, group, &plain) || shift_fill(s, 1, NULL);
    RANK_OK(imbrex_kernel_create(group, &desc, &quarters));
    for (int block = 97; block <= 128 && !failed; block++) {
        RANK_OK(imbrex_copy(group, s->args.out, zeros, sizeof zeros, NULL));
        RANK_OK(imbrex_launch(quarters, 1, block, &s->args, sizeof s->args, NULL));
        failed = shift_same(s, NULL);
    }
    free(s);
    return failed;
}

/* The last rank launches nothing: the one behind it names the kernel and the signal. */
static int deadline(imbrex_group *group)
{
    int rank = imbrex_group_rank(group), size = imbrex_group_size(group);
    shift *s = calloc(1, sizeof *s);
    int failed = shift_open(s, group, &plain) || shift_fill(s, 0, NULL);
    if (rank != size - 1)
        failed = failed || shift_launch(s, NULL);
    imbrex_status status = imbrex_stream_sync(group, NULL);
    while (status == IMBREX_OK)
        status = imbrex_group_status(group);
    RANK_CHECK(strstr(imbrex_error(), "a signal, number") &&
                   strstr(imbrex_error(), "in kernel shift"),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    free(s);
    return failed;
}

static int show_rank(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const show *what = ctx;
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = gpu_of(rank, what->spread),
        .timeout_ms = what->act == deadline ? 1000 : 20000,
    };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = what->act(group);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int all_ranks(void *ctx)
{
    const show *what = ctx;
    ranks_desc desc = { .size = what->size, .meeting_s = 60 };
    return ranks_run_bare(&desc, show_rank, ctx);
}

static void run(int size, bool spread)
{
    static const struct {
        const char *name;
        int (*act)(imbrex_group *group);
    } rows[] = {
        { "launches", launches },
        { "replays of a graph", replays },
        { "mistakes", mistakes },
        { "part of a warp", part_of_a_warp },
        { "a rank that launches nothing", deadline },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        show s = { rows[i].act, size, spread };
        if (gpu_wanted("%s, %d ranks%s", rows[i].name, size, spread ? ", a GPU each" : ""))
            gpu_report(gpu_isolated(all_ranks, &s, 60));
    }
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    if (gpu_is_fake()) {
        fake_driver_add_kernel("shift", shift_entry);
        fake_driver_add_kernel("quarters", quarters_entry);
    }
    run(2, gpu_count() >= 2);
    run(4, gpu_count() >= 4);
    return gpu_end();
}
