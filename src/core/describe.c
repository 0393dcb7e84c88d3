/* describe.c - a plan in one line for people. */
#include "live.h"
#include "plan.h"

static void describe_nodes(const imbrex_plan *plan, imx_text *out)
{
    const imbrex_group *group = plan->group;
    if (group->nodes.count == 1)
        return;
    imx_text_add(out, "; nodes of ");
    imx_nodes_sizes(&group->nodes, out);
    imx_text_add(out, " ranks over %s", group->net_facts.text);
    if (plan->runs)
        imx_text_add(out, "; the latest run sent %llu bytes within the node, %llu to others",
                     (unsigned long long)plan->sent_inside, (unsigned long long)plan->sent_between);
}

static void describe_fewer(const imbrex_plan *plan, imx_text *out)
{
    const char *before = "; runs of up to ";
    for (int i = 0; i < IMX_FEWER; i++) {
        const imbrex_plan *fewer = plan->fewer[i];
        if (!fewer)
            continue;
        imx_text_add(out, "%s%lld rows: %s%s %dx%d", before, (long long)fewer->shape.m,
                     fewer->algorithm->name, fewer->measured ? " (measured)" : "",
                     fewer->config.tile_rows, fewer->config.tile_cols);
        before = ", ";
    }
}

/* What the plan takes of this rank: two halves of each. */
static void describe_memory(const imbrex_plan *plan, imx_text *out)
{
    const double mib = 1 << 20;
    size_t symmetric = plan->offsets.half_bytes, local = plan->offsets.local_bytes;
    for (int i = 0; i < IMX_FEWER; i++) {
        symmetric += plan->fewer[i] ? plan->fewer[i]->offsets.half_bytes : 0;
        local += plan->fewer[i] ? plan->fewer[i]->offsets.local_bytes : 0;
    }
    imx_text_add(out, "; %.2f MiB symmetric, %.2f MiB local", 2 * (double)symmetric / mib,
                 2 * (double)local / mib);
    if (plan->group->target->memory)
        imx_text_add(out, "; symmetric memory: %s", plan->group->target->memory);
}

size_t imbrex_plan_describe(const imbrex_plan *plan, char *text, size_t size)
{
    imx_text out = { .at = text, .size = size };
    if (!imx_live_is(IMX_LIVE_PLAN, plan)) {
        imx_text_add(&out, "no plan");
        return out.length;
    }
    const imx_shape *s = &plan->shape;
    const imx_config *c = &plan->config;
    imx_text_add(&out, "%s m=%lld n=%lld", plan->op->name, (long long)s->m, (long long)s->n);
    if (plan->op->product)
        imx_text_add(&out, " k=%lld b=%s", (long long)s->k,
                     s->layout == IMBREX_NK ? "[n,k]" : "[k,n]");
    int64_t chunk = imx_plan_chunk_rows(plan, s->m);
    imx_text_add(&out, " %s, %d rank%s on %s: %s (%s); chunks of %lld row%s",
                 imx_dtype_name(s->dtype), plan->group->size, plan->group->size == 1 ? "" : "s",
                 plan->group->backend->name, plan->algorithm->name, plan->why, (long long)chunk,
                 chunk == 1 ? "" : "s");
    if (plan->op->product)
        imx_text_add(&out, ", tiles of %dx%d, %d block%s", c->tile_rows, c->tile_cols, c->blocks,
                     c->blocks == 1 ? "" : "s");
    describe_nodes(plan, &out);
    for (int i = 0; i < IMX_KERNELS && plan->group->backend->prepared_describe; i++) {
        const imx_prepared *kernel = plan->kernels[i];
        if (kernel)
            imx_text_add(&out, "; %s", plan->group->backend->prepared_describe(kernel));
    }
    describe_fewer(plan, &out);
    describe_memory(plan, &out);
    return out.length;
}
