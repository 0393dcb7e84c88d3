/* test_ptx_route.c - the route kernel as the compiler makes it, for older GPUs and by a cluster for
 * Hopper, run instruction by instruction: what it writes is what the form for CPUs writes, of ids
 * of all kinds, with gaps and without, and where there are more rows than room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/cuda/cuda.h"
#include "fake_nvrtc.h"
#include "kernels/kernels.h"
#include "kernels/route/args.h"
#include "ptx.h"

enum { BLOCKS = 32, SMS = 132, ALIGNMENT = 64 };

static const struct {
    int tokens, top_k, experts, first, here, align, rows, capacity;
} cases[] = {
    { 8192, 8, 128, 0, 128, 16, 70000, 0 },      { 8192, 8, 256, 128, 128, 16, 32000, 250 },
    { 4096, 2, 8, 0, 8, 16, 8400, 0 },           { 3001, 7, 130, 1, 99, 1, 22000, 0 },
    { 2100, 4, 200, 60, 100, 16, 3000, 0 },      { 9000, 1, 1, 0, 1, 512, 9000, 0 },
    { 1300, 64, 2048, 1024, 1024, 4, 90000, 0 },
};
enum { CASES = sizeof cases / sizeof *cases };

/* What a kernel has written, and what it has told. */
typedef struct routed {
    imx_route_args args;
    imbrexd_fault fault;
} routed;

static void *words(int64_t count)
{
    size_t bytes = ((size_t)count * 4 / ALIGNMENT + 1) * ALIGNMENT;
    void *at = aligned_alloc(ALIGNMENT, bytes);
    memset(at, 0x5a, bytes);
    return at;
}

static int32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return (int32_t)(*seed >> 8);
}

/* Ids of experts, and of none below and above. */
static int32_t *packed_of(const imx_route_args *args)
{
    int32_t *packed = words((int64_t)args->tokens * 2 * args->top_k), *at = packed;
    uint32_t seed = (uint32_t)args->tokens;
    for (int t = 0; t < args->tokens; t++, at += 2 * args->top_k) {
        for (int p = 0; p < args->top_k; p++) {
            at[p] = next(&seed) % (args->experts + 3) - 1;
            at[args->top_k + p] = next(&seed);
        }
    }
    return packed;
}

static routed begin(int i, int32_t *packed)
{
    int64_t pairs = (int64_t)cases[i].tokens * cases[i].top_k;
    routed r = { .args = { .step = IMX_ROUTE_ROUTES,
                           .tokens = cases[i].tokens,
                           .top_k = cases[i].top_k,
                           .experts = cases[i].experts,
                           .first = cases[i].first,
                           .here = cases[i].here,
                           .align = cases[i].align,
                           .rows = cases[i].rows,
                           .capacity = cases[i].capacity } };
    r.args.packed = packed ? packed : packed_of(&r.args);
    r.args.expert_begin = words(cases[i].here + 1);
    r.args.expert_rows = words(cases[i].here);
    r.args.row_pair = words(cases[i].rows);
    r.args.pair_row = words(pairs);
    r.args.pair_expert = words(pairs);
    r.args.weights = words(pairs);
    return r;
}

static void end(routed *r)
{
    void *const all[] = { r->args.expert_begin, r->args.expert_rows, r->args.row_pair,
                          r->args.pair_row,     r->args.pair_expert, r->args.weights };
    for (int i = 0; i < 6; i++)
        free(all[i]);
}

static imbrexd_watch watch_of(uint64_t **abort, routed *r)
{
    return (imbrexd_watch){ .abort = abort, .fault = &r->fault, .size = 1 };
}

/* Blocks of the launch as the kernel's form has it. */
static void run_compiled(routed *r, uint64_t **abort, int arch)
{
    const imx_cuda_target target = { .arch = arch, .shared_bytes_most = 227 << 10 };
    const imx_folder none = { 0 };
    imx_cuda_config config = { 0 };
    imx_cuda_launch launch = { 0 };
    char why[512] = "", *said;
    void *text;
    size_t bytes;
    imx_kernel_route.cuda_config(&r->args, &target, arch == 90 ? SMS : BLOCKS, &config);
    imx_kernel_route.cuda_launch(&r->args, &config, &launch);
    assert_int_equal(config.cluster > 1, arch == 90);
    assert_int_equal(imx_cuda_build(&none, &config, arch, &text, &bytes, &said), IMBREX_OK);
    ptx_module *module = ptx_module_read(text, why);
    if (!module)
        fail_msg("%s", why);
    const ptx_function *function = ptx_module_function(module, config.entry);
    imbrexd_watch watch = watch_of(abort, r);
    char *params = words(PTX_PARAM_BYTES / 4);
    memcpy(params + function->params[0].at, &r->args, sizeof r->args);
    memcpy(params + function->params[1].at, &watch, sizeof watch);
    const ptx_launch compiled = { .module = module,
                                  .function = function,
                                  .params = params,
                                  .blocks = launch.blocks,
                                  .threads = config.threads,
                                  .cluster = config.cluster,
                                  .shared_bytes = config.shared_bytes };
    if (!ptx_run(&compiled, why))
        fail_msg("%s", why);
    ptx_module_free(module);
    free(params);
    free(text);
    free(said);
}

#define SAME(what, count) assert_memory_equal(have.args.what, want.args.what, (size_t)(count)*4)

static void check(int i, int arch)
{
    int64_t pairs = (int64_t)cases[i].tokens * cases[i].top_k;
    uint64_t word = 0, *abort = &word;
    routed want = begin(i, NULL), have = begin(i, want.args.packed);
    imbrexd_watch watch = watch_of(&abort, &want);
    const imbrexd_block alone = { .count = 1, .watch = &watch };
    imx_kernel_route.cpu(&want.args, &alone);
    run_compiled(&have, &abort, arch);
    SAME(expert_begin, cases[i].here + 1);
    SAME(expert_rows, cases[i].here);
    SAME(row_pair, cases[i].rows);
    SAME(pair_row, pairs);
    SAME(pair_expert, pairs);
    SAME(weights, pairs);
    assert_int_equal(have.fault.kind, want.fault.kind);
    free(want.args.packed);
    end(&want);
    end(&have);
}

static void by_a_cluster(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++)
        check(i, 90);
}

static void by_blocks_of_their_own(void **state)
{
    (void)state;
    const imx_cuda_target target = { .arch = 90, .shared_bytes_most = 227 << 10 };
    routed shared = begin(0, NULL);
    imx_cuda_config config = { 0 };
    imx_kernel_route.cuda_config(&shared.args, &target, SMS / 2, &config);
    assert_int_equal(config.cluster, 1); /* another rank may be on the GPU */
    free(shared.args.packed);
    end(&shared);
    for (int i = 1; i < CASES; i += 3)
        check(i, 80);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_a_cluster),
        cmocka_unit_test(by_blocks_of_their_own),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (!fake_nvrtc_use_real("")) {
        printf("skipped: %s\n", imbrex_error());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
