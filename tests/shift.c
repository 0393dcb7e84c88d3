/* shift.c - the kernel of shift.h, both as code of this program and as text; and a wrong one. */
#include "shift.h"

#define BOTH(...)                                                                 \
    __VA_ARGS__                                                                   \
    const char shift_text[] = "#include \"imbrex_device.h\"\n"                    \
                              "typedef struct {\n"                                \
                              "    const int *in; int *out; int *inbox; int n;\n" \
                              "} shift_args;\n"                                   \
                              "#line 1 \"shift\"\n" #__VA_ARGS__;

/* Block b sends and receives its share under signal b; signal blocks + b says that it was read.
 * quarters: four warps, of which the last may lack threads, copy a quarter each. */
BOTH(
    IMBREXD_KERNEL(shift, shift_args) {
        int b = imbrexd_block_index(), blocks = imbrexd_block_count(), ranks = team->size;
        int first = args->n * b / blocks, count = args->n * (b + 1) / blocks - first;
        int next = (team->rank + 1) % ranks, before = (team->rank + ranks - 1) % ranks;
        size_t bytes = (size_t)count * sizeof(int);
        uint64_t epoch = imbrexd_epoch(team);
        imbrexd_wait_point sent = { team->kernel, IMBREXD_POINT_SIGNAL, before, b };
        imbrexd_wait_point read = { team->kernel, IMBREXD_POINT_SIGNAL, next, blocks + b };
        int *shared = (int *)imbrexd_shared();
        uint64_t *own = imbrexd_signal(team, team->rank, 0);

        for (int i = 0; i < count; i++)
            shared[i] = args->in[first + i];
        if (!imbrexd_signal_wait(&team->watch, own + blocks + b, epoch - 1, read))
            return;
        imbrexd_put_block(imbrexd_peer(team, next, args->inbox + first), shared, bytes);
        imbrexd_signal_post(imbrexd_signal(team, next, b), epoch);
        if (!imbrexd_signal_wait(&team->watch, own + b, epoch, sent))
            return;
        imbrexd_put_block(args->out + first, args->inbox + first, bytes);
        imbrexd_signal_post(imbrexd_signal(team, before, blocks + b), epoch);
    }

    IMBREXD_KERNEL(quarters, shift_args) {
        int n = args->n / 4;
        (void)team;
        for (int w = (int)imbrexd_thread() / 32; w < 4; w += ((int)imbrexd_threads() + 31) / 32)
            imbrexd_put_warp(args->out + w * n, args->in + w * n, (size_t)n * sizeof(int));
    })

#define WRONG(name) "int wrong_" name " = nobody_has_declared_" name ";\n"

const char wrong_text[] = WRONG("one") WRONG("two") WRONG("three") WRONG("four") WRONG("five")
    WRONG("six") WRONG("seven") WRONG("eight") WRONG("nine") "#error\n";

const imbrexd_entry *const shift_entry = IMBREXD_ENTRY(shift);
const imbrexd_entry *const quarters_entry = IMBREXD_ENTRY(quarters);

static int number(int rank, int round, int i)
{
    return rank * 1000003 + round * 4001 + i;
}

int shift_open(shift *s, imbrex_group *group, const imbrex_kernel_desc *given)
{
    void *in, *out, *inbox;
    RANK_OK(imbrex_mem_alloc(group, sizeof s->numbers, &in));
    RANK_OK(imbrex_mem_alloc(group, sizeof s->numbers, &out));
    RANK_OK(imbrex_mem_alloc(group, sizeof s->numbers, &inbox));
    imbrex_kernel_desc desc = *given;
    desc.name = "shift";
    desc.memory = (int *)inbox + 3; /* any address of it */
    desc.signals = SHIFT_SIGNALS;
    desc.shared_bytes = SHIFT_SHARED;
    s->group = group;
    s->args = (shift_args){ in, out, inbox, SHIFT_N };
    RANK_OK(imbrex_kernel_create(group, &desc, &s->kernel));
    return 0;
}

int shift_fill(shift *s, int round, imbrex_stream stream)
{
    for (int i = 0; i < SHIFT_N; i++)
        s->numbers[i] = number(imbrex_group_rank(s->group), round, i);
    RANK_OK(imbrex_copy(s->group, (int *)s->args.in, s->numbers, sizeof s->numbers, stream));
    return 0;
}

int shift_launch(shift *s, imbrex_stream stream)
{
    RANK_OK(imbrex_launch(s->kernel, SHIFT_BLOCKS, 64, &s->args, sizeof s->args, stream));
    return 0;
}

int shift_same(const shift *s, imbrex_stream stream)
{
    int out[SHIFT_N];
    RANK_OK(imbrex_copy(s->group, out, s->args.out, sizeof out, stream));
    RANK_OK(imbrex_stream_sync(s->group, stream));
    for (int i = 0; i < SHIFT_N; i++)
        RANK_CHECK(out[i] == s->numbers[i], "out[%d] is %d, want %d", i, out[i], s->numbers[i]);
    return 0;
}

int shift_check(shift *s, int round, imbrex_stream stream)
{
    int size = imbrex_group_size(s->group), rank = imbrex_group_rank(s->group);
    RANK_OK(imbrex_copy(s->group, s->numbers, s->args.out, sizeof s->numbers, stream));
    RANK_OK(imbrex_stream_sync(s->group, stream));
    for (int i = 0; i < SHIFT_N; i++) {
        int want = number((rank + size - 1) % size, round, i);
        RANK_CHECK(s->numbers[i] == want, "round %d: out[%d] is %d, want %d", round, i,
                   s->numbers[i], want);
    }
    return 0;
}
