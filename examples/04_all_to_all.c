/* 04_all_to_all.c - low-latency all-to-all: tokens go to the ranks of their experts, by LL.
 *
 *     imbrex run -n 4 -- example_04_all_to_all [--device cuda]
 *
 * Which token goes where is known on the device only.  A word before the tokens says how many come;
 * it and they carry flags of their own (see 10_ll_all_gather.c), so that nobody waits for a signal
 * or a barrier, and only tokens that there are travel:
 *
 *     block 1   | count, t3, t7, ... to rank + 1 | count of rank - 1 | its tokens |
 *     block 2   | count, t0, t4, ... to rank + 2    | count of rank - 2 | its tokens |
 *     one after the other   | to each rank: its count, its tokens | barrier | read all |
 *
 * One block a peer: while one packs, others already unpack, each token as soon as it is there. */
#include "imbrex_device.h"

enum { TOKENS = 48, WIDTH = 64, WORDS = 1 + TOKENS * WIDTH }; /* of a message, at most */

typedef struct dispatch_args {
    const float *tokens; /* [TOKENS, WIDTH] */
    const int *expert;   /* [TOKENS]: the rank that a token goes to */
    uint64_t *inbox;     /* [2, ranks, WORDS], symmetric; then as many floats, the plain way */
    float *out;          /* [ranks, WORDS]: a count, and so many tokens of each rank */
    int ll;
} dispatch_args;

/* Packs the count of tokens for `to`, then these, into its inbox at ll, or plainly at floats. */
IMBREXD_FN void send(const dispatch_args *args, int to, uint64_t *ll, float *floats, uint32_t flag)
{
    size_t token = WIDTH * sizeof(float);
    float *count = (float *)imbrexd_shared();
    int k = 0;
    for (int t = 0; t < TOKENS; t++)
        k += args->expert[t] == to;
    *count = (float)k;
    imbrexd_sync_block();
    if (args->ll)
        imbrexd_ll_pack_block(ll, count, sizeof *count, flag);
    else
        imbrexd_put_block(floats, count, sizeof *count);
    k = 0;
    for (int t = 0; t < TOKENS; t++) {
        const float *from = args->tokens + t * WIDTH;
        if (args->expert[t] != to)
            continue;
        if (args->ll)
            imbrexd_ll_pack_block(ll + 1 + k * WIDTH, from, token, flag);
        else
            imbrexd_put_block(floats + 1 + k * WIDTH, from, token);
        k++;
    }
}

IMBREXD_KERNEL(dispatch, dispatch_args)
{
    int b = imbrexd_block_index(), ranks = team->size, rank = team->rank;
    int to = (rank + b) % ranks, from = (rank + ranks - b) % ranks;
    uint64_t epoch = imbrexd_epoch(team);
    size_t all = (size_t)ranks * WORDS, half = epoch % 2 * all;
    uint64_t *ll = args->inbox + half;
    float *floats = (float *)(args->inbox + 2 * all) + half, *out = args->out + from * WORDS;

    for (int i = 0; i < ranks; i++, to = (to + 1) % ranks) {
        send(args, to, (uint64_t *)imbrexd_peer(team, to, ll) + rank * WORDS,
             (float *)imbrexd_peer(team, to, floats) + rank * WORDS, (uint32_t)epoch);
        if (args->ll)
            break; /* other blocks take the others */
    }
    if (!args->ll) {
        if (imbrexd_barrier_all(team))
            imbrexd_get_block(args->out, floats, all * sizeof(float));
        return;
    }
    const uint64_t *inbox = ll + from * WORDS;
    if (!imbrexd_ll_unpack_block(team, out, inbox, sizeof *out, (uint32_t)epoch, from))
        return;
    imbrexd_ll_unpack_block(team, out + 1, inbox + 1, (size_t)out[0] * WIDTH * sizeof(float),
                            (uint32_t)epoch, from);
}

#ifndef KERNEL
#include "example.h"

typedef struct run {
    imbrex_kernel *kernel;
    dispatch_args args;
    int rank, ranks;
} run;

static void launch(void *ctx)
{
    run *r = ctx;
    int blocks = r->args.ll ? r->ranks : 1;
    check(imbrex_launch(r->kernel, blocks, 128, &r->args, sizeof r->args, NULL));
}

static int expert_of(int rank, int token, int ranks)
{
    return (rank * 5 + token * token / 3) % ranks; /* not evenly */
}

static int count_wrong(imbrex_group *group, const run *r)
{
    size_t bytes = (size_t)r->ranks * WORDS * sizeof(float);
    float(*out)[WORDS] = example_room(bytes);
    int wrong = 0;
    example_read(group, out, r->args.out, bytes);
    for (int from = 0; from < r->ranks; from++) {
        int k = 0;
        for (int t = 0; t < TOKENS; t++) {
            if (expert_of(from, t, r->ranks) != r->rank)
                continue;
            for (int i = 0; i < WIDTH; i++)
                wrong += out[from][1 + k * WIDTH + i] != (float)(from * 10000 + t * 100 + i);
            k++;
        }
        wrong += out[from][0] != (float)k;
    }
    free(out);
    return wrong;
}

static int rank_main(int argc, char **argv)
{
    imbrex_group *group = example_begin(argc, argv);
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    float tokens[TOKENS * WIDTH];
    int expert[TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        expert[t] = expert_of(rank, t, ranks);
        for (int i = 0; i < WIDTH; i++)
            tokens[t * WIDTH + i] = (float)(rank * 10000 + t * 100 + i);
    }
    size_t words = 2 * (size_t)ranks * WORDS, out_bytes = (size_t)ranks * WORDS * sizeof(float);
    run r = { .rank = rank,
              .ranks = ranks,
              .args = { .tokens = example_memory(group, sizeof tokens, tokens),
                        .expert = example_memory(group, sizeof expert, expert),
                        .inbox = example_memory(group, words * (8 + sizeof(float)), NULL),
                        .out = example_memory(group, out_bytes, NULL),
                        .ll = 1 } };
    r.kernel = EXAMPLE_KERNEL(group, dispatch, .memory = r.args.inbox, .resident = ranks,
                              .shared_bytes = sizeof(float));

    launch(&r);
    int wrong = count_wrong(group, &r);
    double us = example_time(group, launch, &r);
    wrong += count_wrong(group, &r);
    r.args.ll = 0;
    example_clear(group, r.args.out, out_bytes);
    launch(&r);
    wrong += count_wrong(group, &r);
    double sequential_us = example_time(group, launch, &r);
    wrong += count_wrong(group, &r);
    example_say(group, "all-to-all of 48 tokens a rank", us, sequential_us);
    return example_end(group, wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
