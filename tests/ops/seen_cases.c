/* seen_cases.c - several splits of an odd number of tiles, of which queries see the first or the
 * last ones: tiles that no query sees are not read. */
#include "seen_cases.h"

#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"

enum { TOKENS = 2100, PAGE = 16, PAGES = (TOKENS + PAGE - 1) / PAGE, QUERIES = 2 };
enum { DIM = 576, VALUES = 512, HEADS_MOST = 16 };

/* Of a query: where what it sees begins, or ends. */
static const int32_t limits[2][QUERIES][2] = { { { 0, 1700 }, { 0, 1420 } },
                                               { { TOKENS, 900 }, { TOKENS, 1210 } } };

typedef uint16_t row[VALUES];

/* One piece of memory on the host, and on the device. */
typedef struct memory {
    row o[QUERIES * HEADS_MOST];
    float lse[QUERIES * HEADS_MOST];
    int32_t pages[PAGES], lengths[1], seen[QUERIES];
    char q[QUERIES * HEADS_MOST * DIM * 2];
    char k[PAGES * PAGE * DIM * 2];
} memory;

/* Weights and their sums lie about 1, so that lse shows last bits of these. */
static void fill(memory *m)
{
    input_fill(IMBREX_BF16, 5, 0, m->q, QUERIES * HEADS_MOST * DIM);
    input_fill(IMBREX_BF16, 20, 0, m->k, TOKENS * DIM);
    for (int i = 0; i < QUERIES * HEADS_MOST; i++)
        element_set(IMBREX_BF16, m->q, i * DIM, -8);
    for (int i = 0; i < TOKENS; i++)
        element_set(IMBREX_BF16, m->k, i * DIM, 14.375);
    m->lengths[0] = TOKENS;
    for (int i = 0; i < PAGES; i++)
        m->pages[i] = i;
}

static int check(imbrex_group *group, imbrex_plan *plan, int heads, bool by_end, memory *host,
                 memory *device)
{
    enum { WAYS = 4 };
    const imbrex_decode_args args = { .q = device->q,
                                      .k = device->k,
                                      .page_count = PAGES,
                                      .page_stride = PAGES,
                                      .pages = device->pages,
                                      .lengths = device->lengths,
                                      .hidden = by_end ? NULL : device->seen,
                                      .visible = by_end ? device->seen : NULL,
                                      .o = device->o,
                                      .lse = device->lse };
    enum { O_BYTES = sizeof host->o, BYTES = O_BYTES + sizeof host->lse };
    size_t bytes = (size_t)heads * sizeof(row),
           sums = (size_t)heads * sizeof(float); /* of a query */
    char *had = malloc(WAYS * BYTES);
    for (int way = 0; way < WAYS; way++) {
        for (int j = 0; j < QUERIES; j++)
            host->seen[j] = limits[by_end][j][way >> j & 1];
        RANK_OK(imbrex_copy(group, device, host, sizeof *host, NULL));
        RANK_OK(imbrex_plan_run_decode(plan, &args, NULL));
        RANK_OK(imbrex_copy(group, had + (size_t)way * BYTES, device->o, BYTES, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        for (int j = 0; j < QUERIES; j++) {
            int alike = way & 1 << j; /* the other one sees all */
            const char *one = had + (size_t)way * BYTES, *other = had + (size_t)alike * BYTES;
            size_t o = (size_t)j * bytes, lse = O_BYTES + (size_t)j * sums;
            RANK_CHECK(memcmp(one + o, other + o, bytes) == 0 &&
                           memcmp(one + lse, other + lse, sums) == 0,
                       "%d heads: query %d has other bits where the other one sees less", heads, j);
        }
        RANK_CHECK(way == 0 || memcmp(had, had + (size_t)way * BYTES, QUERIES * bytes) != 0,
                   "%d heads: what is not seen counts", heads);
    }
    free(had);
    return 0;
}

int seen_cases(imbrex_group *group, void *ctx)
{
    const int heads = *(const int *)ctx;
    const imbrex_decode_desc desc = { .batch = 1,
                                      .context = TOKENS,
                                      .heads = heads,
                                      .kv_heads = 1,
                                      .head_dim = DIM,
                                      .value_dim = VALUES,
                                      .queries = QUERIES,
                                      .page = PAGE,
                                      .dtype = IMBREX_BF16,
                                      .scale = 0.07f,
                                      .sms = 2 };
    imbrex_plan *plan;
    void *device;
    memory *host = calloc(1, sizeof *host);
    RANK_OK(imbrex_mem_alloc(group, sizeof *host, &device));
    RANK_OK(imbrex_plan_flash_decode(group, &desc, &plan));
    fill(host);
    int failed = check(group, plan, heads, false, host, device) ||
                 check(group, plan, heads, true, host, device);
    if (!failed) {
        imbrex_plan_destroy(plan);
        imbrex_mem_free(group, device);
    }
    free(host);
    return failed;
}
