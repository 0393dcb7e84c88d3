/* describe.c - what came of a plan: as facts, in one line for people, and in JSON. */
#include "base/live.h"
#include "plan.h"

/* Threads of a CPU take turns. */
static bool needs_all(const imx_variant *variant)
{
    return variant->algorithm && variant->algorithm->at_once && variant->plan->group->target->arch;
}

imx_plan_facts imx_describe_facts(const imbrex_plan *plan)
{
    const imbrex_group *group = plan->group;
    const imx_variant *all = &plan->variants[0];
    imx_plan_facts facts = {
        .algorithm = all->called,
        .measured = all->measured,
        .chunk_rows = imx_variant_chunk_rows(all, plan->shape.m),
        .tile_rows = all->config.tile_rows,
        .tile_cols = all->config.tile_cols,
        .blocks = all->config.blocks,
        .at_once = needs_all(all) ? all->config.blocks : 0,
        .spanning = all->config.spanning,
        .spans_chunks = all->config.spans_chunks,
        .alone = all->config.alone,
        .parts = all->config.parts,
        .slices = all->config.slices,
        .sent_inside = plan->sent_inside,
        .sent_between = plan->sent_between,
        .symmetric_bytes = plan->shared_bytes,
        .local_bytes = plan->local_bytes,
        .net = group->nodes.count > 1 ? group->net_facts.text : NULL,
        .memory = group->target->memory,
    };
    for (int i = 1; i < plan->variant_count; i++) {
        const imx_variant *fewer = &plan->variants[i];
        facts.fewer[facts.fewer_count++] = (imx_variant_facts){
            .rows = fewer->shape.m,
            .algorithm = fewer->called,
            .measured = fewer->measured,
            .tile_rows = fewer->config.tile_rows,
            .tile_cols = fewer->config.tile_cols,
        };
    }
    return facts;
}

static void describe_nodes(const imbrex_plan *plan, const imx_plan_facts *facts, imx_text *out)
{
    if (!facts->net)
        return;
    imx_text_add(out, "; nodes of ");
    imx_nodes_sizes(&plan->group->nodes, out);
    imx_text_add(out, " ranks over %s", facts->net);
    if (plan->variants[0].runs)
        imx_text_add(out, "; the latest run sent %llu bytes within the node, %llu to others",
                     (unsigned long long)facts->sent_inside,
                     (unsigned long long)facts->sent_between);
}

static void describe_fewer(const imx_plan_facts *facts, imx_text *out)
{
    for (int i = 0; i < facts->fewer_count; i++) {
        const imx_variant_facts *fewer = &facts->fewer[i];
        imx_text_add(out, "%s%lld rows: %s%s %dx%d", i ? ", " : "; runs of up to ",
                     (long long)fewer->rows, fewer->algorithm, fewer->measured ? " (measured)" : "",
                     fewer->tile_rows, fewer->tile_cols);
    }
}

/* What the plan takes of this rank. */
static void describe_memory(const imx_plan_facts *facts, imx_text *out)
{
    const double mib = 1 << 20;
    imx_text_add(out, "; %.2f MiB symmetric, %.2f MiB local", (double)facts->symmetric_bytes / mib,
                 (double)facts->local_bytes / mib);
    if (facts->memory)
        imx_text_add(out, "; symmetric memory: %s", facts->memory);
}

size_t imbrex_plan_memory(const imbrex_plan *plan)
{
    if (!imx_live_is(IMX_LIVE_PLAN, plan))
        return 0;
    const imx_plan_facts facts = imx_describe_facts(plan);
    return facts.symmetric_bytes + facts.local_bytes;
}

int imbrex_plan_captured(const imbrex_plan *plan)
{
    return imx_live_is(IMX_LIVE_PLAN, plan) && imx_stream_order_captured(&plan->order);
}

size_t imbrex_plan_describe(const imbrex_plan *plan, char *text, size_t size)
{
    imx_text out = { .at = text, .size = size };
    if (!imx_live_is(IMX_LIVE_PLAN, plan)) {
        imx_text_add(&out, "no plan");
        return out.length;
    }
    const imx_shape *s = &plan->shape;
    const imx_plan_facts facts = imx_describe_facts(plan);
    bool all = strcmp(imx_args_of_run(plan->op)->name, "m") == 0; /* ranks' rows together */
    imx_text_add(&out, "%s %s=%lld", plan->op->info.name,
                 all ? "m" : imx_request_of_run(plan->op)->name, (long long)s->m);
    if (!plan->op->width)
        imx_text_add(&out, " n=%lld", (long long)s->n);
    if (plan->op->product || (s->k && !plan->op->width))
        imx_text_add(&out, " k=%lld b=%s", (long long)s->k,
                     s->layout == IMBREX_NK ? "[n,k]" : "[k,n]");
    imx_request_add_own(plan->op, plan->desc, &out);
    imx_text_add(&out, " %s, %d rank%s on %s: %s (%s); chunks of %lld row%s",
                 imx_dtype_name(s->dtype), plan->group->size, plan->group->size == 1 ? "" : "s",
                 plan->group->backend->name, facts.algorithm, plan->variants[0].why,
                 (long long)facts.chunk_rows, facts.chunk_rows == 1 ? "" : "s");
    if (plan->op->product)
        imx_text_add(&out, ", tiles of %dx%d%s, %d block%s", facts.tile_rows, facts.tile_cols,
                     facts.spans_chunks ? " with rows of several ranks"
                     : facts.alone      ? " made alone"
                                        : "",
                     facts.blocks, facts.blocks == 1 ? "" : "s");
    if (facts.at_once)
        imx_text_add(&out, "; needs all %d SMs at once", facts.at_once);
    describe_nodes(plan, &facts, &out);
    for (int i = 0; i < IMX_KERNELS && plan->group->backend->prepared_describe; i++) {
        const imx_prepared *kernel = plan->variants[0].kernels[i];
        if (kernel)
            imx_text_add(&out, "; %s", plan->group->backend->prepared_describe(kernel));
    }
    describe_fewer(&facts, &out);
    describe_memory(&facts, &out);
    return out.length;
}

/* ---- the same in JSON ------------------------------------------------------------------------ */

/* With a comma behind it. */
static void add_string(const char *key, const char *value, imx_text *out)
{
    imx_text_add(out, "\"%s\": %s", key, value ? "\"" : "null");
    for (; value && *value; value++) {
        unsigned char c = (unsigned char)*value;
        if (c < ' ' || c > '~') /* a path may have bytes that are no UTF-8 */
            imx_text_add(out, "\\u%04x", c);
        else
            imx_text_add(out, "%s%c", c == '"' || c == '\\' ? "\\" : "", c);
    }
    imx_text_add(out, "%s, ", value ? "\"" : "");
}

static const char *truth(bool is)
{
    return is ? "true" : "false";
}

static void add_tiles(const imbrex_plan *plan, int rows, int cols, imx_text *out)
{
    bool product = plan->op->product;
    imx_text_add(out, "\"tile_rows\": %d, \"tile_cols\": %d", product ? rows : 0,
                 product ? cols : 0);
}

size_t imbrex_plan_facts(const imbrex_plan *plan, char *text, size_t size)
{
    imx_text out = { .at = text, .size = size };
    if (!imx_live_is(IMX_LIVE_PLAN, plan)) {
        imx_text_add(&out, "{}");
        return out.length;
    }
    const imx_plan_facts facts = imx_describe_facts(plan);
    imx_text_add(&out, "{");
    add_string("op", plan->op->info.name, &out);
    add_string("dtype", imx_dtype_name(plan->shape.dtype), &out);
    add_string("device", plan->group->backend->name, &out);
    imx_text_add(&out, "\"ranks\": %d, \"rows\": %lld, ", plan->group->size,
                 (long long)plan->shape.m);
    add_string("algorithm", facts.algorithm, &out);
    add_string("why", plan->variants[0].why, &out);
    imx_text_add(&out, "\"measured\": %s, \"chunk_rows\": %lld, ", truth(facts.measured),
                 (long long)facts.chunk_rows);
    add_tiles(plan, facts.tile_rows, facts.tile_cols, &out);
    imx_text_add(&out, ", \"spans_ranks\": %s, \"made_alone\": %s, ",
                 truth(facts.spanning || facts.spans_chunks), truth(facts.alone));
    imx_text_add(&out, "\"blocks\": %d, \"at_once\": %d, ", facts.blocks, facts.at_once);
    imx_text_add(&out, "\"memory_bytes\": %zu, \"symmetric_bytes\": %zu, \"local_bytes\": %zu, ",
                 facts.symmetric_bytes + facts.local_bytes, facts.symmetric_bytes,
                 facts.local_bytes);
    add_string("symmetric_kind", facts.memory, &out);
    add_string("net", facts.net, &out);
    imx_text_add(&out, "\"sent_inside\": %llu, \"sent_between\": %llu, \"fewer\": [",
                 (unsigned long long)facts.sent_inside, (unsigned long long)facts.sent_between);
    for (int i = 0; i < facts.fewer_count; i++) {
        const imx_variant_facts *fewer = &facts.fewer[i];
        imx_text_add(&out, "%s{\"rows\": %lld, ", i ? ", " : "", (long long)fewer->rows);
        add_string("algorithm", fewer->algorithm, &out);
        imx_text_add(&out, "\"measured\": %s, ", truth(fewer->measured));
        add_tiles(plan, fewer->tile_rows, fewer->tile_cols, &out);
        imx_text_add(&out, "}");
    }
    imx_text_add(&out, "]}");
    return out.length;
}

/* ---- for whoever treats all operators alike -------------------------------------------------- */

imbrex_status imbrex_plan_operand(const imbrex_plan *plan, int i, int64_t m, int64_t shape[4],
                                  imbrex_dtype *dtype)
{
    imx_status_enter(__func__);
    IMX_TRY(imx_live_need(IMX_LIVE_PLAN, plan));
    IMX_TRY(imx_status_need(shape, "shape", "want where to put four sizes"));
    IMX_TRY(imx_status_need(dtype, "dtype", "want where to put it"));
    const imx_op *op = plan->op;
    const imx_asked asked = { plan->group, op, &plan->shape, plan->desc, NULL };
    if (i < 0 || i >= op->info.args_fields || !imx_args_is_operand(&op->info.args[i]))
        return imx_fail(IMBREX_INVALID, "field %d of %s's args is no operand", i, op->info.name);
    const int64_t rows = imx_count(m, plan->shape.m);
    if (rows < 0 || rows > plan->shape.m)
        return imx_fail(IMBREX_INVALID, "m is %lld: want at most %lld, 0 for that or IMBREX_NONE",
                        (long long)m, (long long)plan->shape.m);
    int count = imx_args_dims(&asked, &op->info.args[i], rows, shape);
    while (count < IMX_DIMS)
        shape[count++] = -1;
    *dtype = imx_args_dtype(&asked, &op->info.args[i]);
    return IMBREX_OK;
}

int64_t imbrex_plan_rows(const imbrex_plan *plan)
{
    if (!imx_live_is(IMX_LIVE_PLAN, plan) || !plan->op->capacity)
        return 0;
    const imx_asked asked = { plan->group, plan->op, &plan->shape, plan->desc, NULL };
    return plan->op->capacity(&asked);
}
