/* 12_merge_states.c - attention over tokens that lie on all ranks, in a kernel of one's own: each
 * rank attends to its own tokens, and what comes of it is merged by the heads' owners.
 *
 *     imbrex run -n 4 -- example_12_merge_states [--device cuda]
 *
 * A state is | the sum of weights times v [DIM] | the largest score | the sum of weights |, of one
 * head and one rank's tokens.  Block b makes the states of the heads that rank + b owns, sends them
 * there, and merges some of its own rank's heads as soon as all states are here:
 *
 *     block 1   | attend | send to rank + 1 | wait for all | merge |
 *     block 2   | attend | send to rank + 2 | wait for all | merge |
 *     one after the other   | attend to all | barrier | merge all |
 *
 * The inbox has two halves in turn: whoever sends launch u + 2 has merged launch u + 1, whose
 * states every rank sent when it had merged launch u. */
#include "imbrex_device.h"

enum { HEADS = 8, TOKENS = 32, DIM = 16, STATE = DIM + 2 };

typedef struct attend_args {
    const float *q;        /* [HEADS] */
    const float *k, *v;    /* this rank's: [TOKENS], [TOKENS, DIM] */
    float *states, *inbox; /* [HEADS, STATE]; [2, ranks, HEADS, STATE]: symmetric */
    float *out;            /* [own heads, DIM] */
    int overlapped;
} attend_args;

IMBREXD_FN int head_of(const imbrexd_team *team, int rank)
{
    return rank * HEADS / team->size;
}

/* 2^x of a whole number from -100 to 100. */
IMBREXD_FN float power_of_two(float x)
{
    float y = 1;
    for (; x > 0; x--)
        y *= 2;
    for (; x < 0; x++)
        y /= 2;
    return y;
}

/* One number of a head's state: of v, or behind those the largest score and the sum. */
IMBREXD_FN float attend(const attend_args *args, int head, int i)
{
    float most = -100, sum = 0;
    for (int t = 0; t < TOKENS; t++)
        most = args->q[head] * args->k[t] > most ? args->q[head] * args->k[t] : most;
    for (int t = 0; t < TOKENS; t++) {
        float weight = power_of_two(args->q[head] * args->k[t] - most);
        sum += i < DIM ? weight * args->v[t * DIM + i] : weight;
    }
    return i == DIM ? most : sum;
}

IMBREXD_FN void send(const attend_args *args, const imbrexd_team *team, int to, float *inbox,
                     uint64_t epoch)
{
    int first = head_of(team, to), count = head_of(team, to + 1) - first;
    float *states = args->states + first * STATE;
    for (int i = (int)imbrexd_thread(); i < count * STATE; i += (int)imbrexd_threads())
        states[i] = attend(args, first + i / STATE, i % STATE);
    imbrexd_put_signal_block(imbrexd_peer(team, to, inbox + team->rank * HEADS * STATE), states,
                             (size_t)(count * STATE) * sizeof(float),
                             imbrexd_signal(team, to, team->rank), epoch, IMBREXD_SET);
}

/* Own heads from `first` on, every step-th: ranks in their order.  0: give up, as after a wait. */
IMBREXD_FN int merge(const attend_args *args, const imbrexd_team *team, const float *inbox,
                     int first, int step)
{
    int count = head_of(team, team->rank + 1) - head_of(team, team->rank);
    size_t slot = HEADS * STATE * sizeof(float);
    if (!imbrexd_check_read(inbox, (size_t)(count * STATE) * sizeof(float), slot,
                            (size_t)team->size))
        return 0;
    for (int at = (int)imbrexd_thread(); at < count * DIM; at += (int)imbrexd_threads()) {
        const float *states = inbox + at / DIM * STATE;
        float most = -100, sum = 0, value = 0;
        if (at / DIM % step != first)
            continue;
        for (int r = 0; r < team->size; r++) {
            float own = states[r * HEADS * STATE + DIM];
            most = own > most ? own : most;
        }
        for (int r = 0; r < team->size; r++) {
            const float *state = states + r * HEADS * STATE;
            float weight = power_of_two(state[DIM] - most);
            sum += weight * state[DIM + 1];
            value += weight * state[at % DIM];
        }
        args->out[at] = value / sum;
    }
    return 1;
}

IMBREXD_KERNEL(attend_and_merge, attend_args)
{
    int b = imbrexd_block_index(), ranks = team->size, rank = team->rank;
    uint64_t epoch = imbrexd_epoch(team);
    float *inbox = args->inbox + epoch % 2 * (size_t)(ranks * HEADS * STATE);

    if (!args->overlapped) { /* one block */
        for (int i = 0; i < ranks; i++)
            send(args, team, (rank + i) % ranks, inbox, epoch);
        if (imbrexd_barrier_all(team))
            merge(args, team, inbox, 0, 1);
        return;
    }
    send(args, team, (rank + b) % ranks, inbox, epoch);
    for (int i = 0; i < ranks; i++)
        if (!imbrexd_wait_block(team, imbrexd_signal(team, rank, i), 1, epoch, i))
            return;
    merge(args, team, inbox, b, ranks);
}

#ifndef KERNEL
#include "example.h"

typedef struct run {
    imbrex_kernel *kernel;
    attend_args args;
    int rank, ranks;
} run;

/* Scores are whole numbers, so that weights and sums have no error. */
static float q_of(int head)
{
    return (float)(head % 3);
}

static float k_of(int rank, int token)
{
    return (float)((token * 5 + rank * 3) % 4);
}

static float v_of(int rank, int token, int i)
{
    return (float)((token * 7 + rank * 11 + i * 3) % 16);
}

static void launch(void *ctx)
{
    run *r = ctx;
    int blocks = r->args.overlapped ? r->ranks : 1;
    check(imbrex_launch(r->kernel, blocks, 128, &r->args, sizeof r->args, NULL));
}

static float wanted(const void *ctx, int i)
{
    const run *r = ctx;
    int head = r->rank * HEADS / r->ranks + i / DIM;
    float sum = 0, value = 0, most = 3 * q_of(head); /* as the kernel's, on all ranks */
    for (int rank = 0; rank < r->ranks; rank++) {
        for (int t = 0; t < TOKENS; t++) {
            float weight = power_of_two(q_of(head) * k_of(rank, t) - most);
            sum += weight;
            value += weight * v_of(rank, t, i % DIM);
        }
    }
    return value / sum;
}

static int rank_main(int argc, char **argv)
{
    imbrex_group *group = example_begin(argc, argv);
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    int own = (rank + 1) * HEADS / ranks - rank * HEADS / ranks;
    float q[HEADS], k[TOKENS], v[TOKENS * DIM];
    for (int h = 0; h < HEADS; h++)
        q[h] = q_of(h);
    for (int t = 0; t < TOKENS; t++) {
        k[t] = k_of(rank, t);
        for (int i = 0; i < DIM; i++)
            v[t * DIM + i] = v_of(rank, t, i);
    }
    size_t states = HEADS * STATE * sizeof(float);
    run r = { .rank = rank,
              .ranks = ranks,
              .args = { .q = example_memory(group, sizeof q, q),
                        .k = example_memory(group, sizeof k, k),
                        .v = example_memory(group, sizeof v, v),
                        .states = example_memory(group, states, NULL),
                        .inbox = example_memory(group, 2 * (size_t)ranks * states, NULL),
                        .out = example_memory(group, HEADS * DIM * sizeof(float), NULL),
                        .overlapped = 1 } };
    r.kernel = EXAMPLE_KERNEL(group, attend_and_merge, .memory = r.args.inbox, .signals = ranks,
                              .resident = ranks);

    example_result out = { .at = r.args.out, .count = own * DIM, .wanted = wanted };
    double us = example_try(group, &out, launch, &r);
    r.args.overlapped = 0;
    double sequential_us = example_try(group, &out, launch, &r);
    example_say(group, "attention over tokens of all ranks", us, sequential_us);
    return example_end(group, out.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
