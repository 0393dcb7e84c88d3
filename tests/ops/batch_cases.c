/* batch_cases.c - a plan of many sequences, of which a block on Hopper takes runs of splits,
 * against a plan of one.  On one multiprocessor rounds are many, so runs are long: of 8 splits in
 * the first batch, of 4 in the second, of 2 in the third.  In the first and the third, two see but
 * a part. */
#include "batch_cases.h"

#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"

enum { DIM = 576, VALUES = 512, HEADS = 16, MANY = 16, TOKENS = 2112, CONTEXT = 1408 };

/* Tokens of sequences; 0: no further one.  Splits are of 128. */
static const int32_t batches[][MANY] = {
    { 1000, 900 }, /* a run each, whose last tile is in part */
    { 1300 },      /* 11 splits: 4, 4 and 3 */
    { 129, 256, 300, 60, 1, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129 },
};
enum { BATCHES = sizeof batches / sizeof *batches, ALONE = 5 /* of a batch, at most */ };

typedef struct result {
    uint16_t o[HEADS * VALUES];
    float lse[HEADS];
} result;

/* One piece of memory on the host, and on the device.  A sequence has tokens of k from the page on
 * that pages say: many have some in common. */
enum { PAGE = 64, PAGES = TOKENS / PAGE, STRIDE = CONTEXT / PAGE };
typedef struct memory {
    uint16_t o[MANY][HEADS * VALUES];
    float lse[MANY][HEADS];
    int32_t pages[MANY][STRIDE], lengths[MANY], hidden[MANY], visible[MANY];
    char q[MANY][HEADS * DIM * 2];
    char k[TOKENS * DIM * 2];
} memory;

static imbrex_status make_plan(imbrex_group *group, int batch, imbrex_plan **plan)
{
    const imbrex_decode_desc desc = { .batch = batch,
                                      .context = CONTEXT,
                                      .heads = HEADS,
                                      .kv_heads = 1,
                                      .head_dim = DIM,
                                      .value_dim = VALUES,
                                      .page = PAGE,
                                      .dtype = IMBREX_F16,
                                      .scale = 0.07f,
                                      .sms = 1 };
    return imbrex_plan_flash_decode(group, &desc, plan);
}

/* Sequences from `first` on of what is on the device; all_see: whole ones. */
static int run(imbrex_group *group, imbrex_plan *plan, memory *device, int first, int count,
               bool all_see, memory *host)
{
    const imbrex_decode_args args = { .batch = count,
                                      .q = device->q[first],
                                      .k = device->k,
                                      .page_count = PAGES,
                                      .page_stride = STRIDE,
                                      .pages = device->pages[first],
                                      .lengths = device->lengths + first,
                                      .hidden = all_see ? NULL : device->hidden + first,
                                      .visible = all_see ? NULL : device->visible + first,
                                      .o = device->o[first],
                                      .lse = device->lse[first] };
    RANK_OK(imbrex_plan_run_decode(plan, &args, NULL));
    RANK_OK(imbrex_copy(group, host, device, sizeof host->o + sizeof host->lse, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static int check(imbrex_group *group, imbrex_plan *together, imbrex_plan *alone, int batch,
                 memory *host, memory *device)
{
    const int32_t *lengths = batches[batch];
    bool all_see = batch == 1;
    int count = 0;
    result *had = calloc(MANY, sizeof *had);
    while (count < MANY && lengths[count])
        count++;
    memcpy(host->lengths, lengths, sizeof host->lengths);
    RANK_OK(imbrex_copy(group, device, host, sizeof *host, NULL));
    if (run(group, together, device, 0, count, all_see, host))
        return 1;
    for (int i = 0; i < count; i++) {
        memcpy(had[i].o, host->o[i], sizeof had[i].o);
        memcpy(had[i].lse, host->lse[i], sizeof had[i].lse);
    }
    for (int i = 0; i < count && i < ALONE; i++) {
        if (run(group, alone, device, i, 1, all_see, host))
            return 1;
        RANK_CHECK(memcmp(had[i].o, host->o[i], sizeof had[i].o) == 0 &&
                       memcmp(had[i].lse, host->lse[i], sizeof had[i].lse) == 0,
                   "%d tokens: other bits alone than with %d others", lengths[i], count - 1);
    }
    free(had);
    return 0;
}

/* Sums of weights lie about 1, so that lse shows last bits of these. */
static void fill(memory *m)
{
    input_fill(IMBREX_F16, 5, 0, m->q, MANY * HEADS * DIM);
    input_fill(IMBREX_F16, 20, 0, m->k, TOKENS * DIM);
    for (int i = 0; i < MANY * HEADS; i++)
        element_set(IMBREX_F16, m->q, i * DIM, -8);
    for (int i = 0; i < TOKENS; i++)
        element_set(IMBREX_F16, m->k, i * DIM, 14.375);
    for (int i = 0; i < MANY; i++) {
        m->hidden[i] = i == 0 ? 300 : 0;
        m->visible[i] = i == 1 ? 200 : CONTEXT;
        for (int page = 0; page < STRIDE; page++)
            m->pages[i][page] = (i * 5 + page) % PAGES;
    }
}

int batch_cases(imbrex_group *group, void *ctx)
{
    imbrex_plan *together, *alone;
    void *device;
    memory *host = calloc(1, sizeof *host);
    (void)ctx;
    RANK_OK(imbrex_mem_alloc(group, sizeof *host, &device));
    RANK_OK(make_plan(group, MANY, &together));
    RANK_OK(make_plan(group, 1, &alone));
    fill(host);
    int failed = 0;
    for (int i = 0; i < BATCHES && !failed; i++)
        failed = check(group, together, alone, i, host, device);
    if (!failed) {
        imbrex_plan_destroy(alone);
        imbrex_plan_destroy(together);
        imbrex_mem_free(group, device);
    }
    free(host);
    return failed;
}
