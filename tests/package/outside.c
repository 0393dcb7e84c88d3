/* outside.c - someone else's program: a group of one rank, and the smallest product. */
#include <imbrex.h>
#include <stdio.h>
#include <string.h>

static int allgather(void *ctx, const void *send, void *recv, size_t bytes)
{
    (void)ctx;
    memcpy(recv, send, bytes);
    return 0;
}

int main(void)
{
    const float a[2] = { 3, 4 }, b[2] = { 5, 6 }; /* a[1, 2] * b[1, 2] transposed = 39 */
    float c[1] = { -1 };
    imbrex_bootstrap one = { .rank = 0, .size = 1, .allgather = allgather };
    imbrex_group_desc group_desc = { .bootstrap = &one, .device = "cpu" };
    imbrex_gemm_desc gemm_desc = { .m = 1, .n = 1, .k = 2, .dtype = IMBREX_F32 };
    imbrex_args args = { .a = a, .b = b, .c = c };
    imbrex_group *group = NULL;
    imbrex_plan *plan = NULL;

    if (imbrex_group_create(&group_desc, &group) != IMBREX_OK ||
        imbrex_plan_ag_gemm(group, &gemm_desc, &plan) != IMBREX_OK ||
        imbrex_plan_run(plan, &args, NULL) != IMBREX_OK ||
        imbrex_stream_sync(group, NULL) != IMBREX_OK)
        fprintf(stderr, "%s\n", imbrex_error());
    imbrex_plan_destroy(plan);
    imbrex_group_destroy(group);
    printf("%s %g\n", imbrex_version(), c[0]);
    return c[0] == 39 ? 0 : 1;
}
