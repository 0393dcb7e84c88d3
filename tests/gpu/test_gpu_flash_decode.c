/* test_gpu_flash_decode.c - flash_decode on real GPUs, against float64; what is out of range;
 * what others see; and other sequences. */
#include "batch_cases.h"
#include "decode_cases.h"
#include "gpu.h"
#include "seen_cases.h"

typedef struct decode_test {
    int (*run)(imbrex_group *, void *);
    int ranks, which;
} decode_test;

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    decode_test *test = ctx;
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = gpu_of(rank, true) };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = test->run(group, &test->which);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int ranks(void *ctx)
{
    ranks_desc desc = { .size = ((decode_test *)ctx)->ranks, .processes = true };
    return ranks_run_bare(&desc, on_gpu, ctx);
}

static void check(decode_test test)
{
    gpu_report(gpu_isolated(ranks, &test, 240));
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    for (int size = 1; size <= 3; size++)
        if (gpu_wanted("attention of %d ranks", size))
            check((decode_test){ decode_cases, size, 0 });
    for (int which = 0; which < DECODE_OUT_OF_RANGE; which++)
        if (gpu_wanted("out of range %d", which))
            check((decode_test){ decode_out_of_range, 2, which });
    if (gpu_wanted("no number"))
        check((decode_test){ decode_not_a_number, 2, 0 });
    for (int heads = 8; heads <= 16; heads += 8)
        if (gpu_wanted("seen by others, %d heads", heads))
            check((decode_test){ seen_cases, 1, heads });
    if (gpu_wanted("alone and among others"))
        check((decode_test){ batch_cases, 1, 0 });
    return gpu_end();
}
