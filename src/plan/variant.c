/* variant.c - how a plan does runs of up to so many rows: by which algorithm, cut how, laid out
 * where. */
#include <string.h>

#include "plan.h"

/* ---- algorithms ------------------------------------------------------------------------------ */

/* As imx_op_algorithm, and for how the ranks are spread. */
static const imx_algorithm *fitting(const imbrex_group *group, const imx_algorithm *a,
                                    const char *name)
{
    bool over_nodes = group->nodes.count > 1;
    while ((a = imx_op_algorithm(a, name)) && a->over_nodes != over_nodes)
        a++;
    return a;
}

const char *imx_variant_algorithm(const imbrex_group *group, const imx_op *op, int i)
{
    bool over_nodes = group->nodes.count > 1;
    const char *last = "";
    for (const imx_algorithm *a = op->algorithms; a->name; a++) {
        if (a->over_nodes != over_nodes || strcmp(a->name, last) == 0)
            continue;
        if (i-- == 0)
            return a->name;
        last = a->name;
    }
    return NULL;
}

/* Whether the list, words with commas between, begins with the word. */
static bool begins_with(const char *list, const char *word)
{
    size_t length = strcspn(list, ",");
    return strlen(word) == length && strncmp(list, word, length) == 0;
}

static const char *next_word(const char *list)
{
    const char *comma = strchr(list, ',');
    return comma ? comma + 1 : NULL;
}

/* Whether some operator, maybe another one, has a word of the list. */
static bool is_elsewhere(const char *list)
{
    const imx_op *op;
    for (int i = 0; (op = imx_op_at(i)); i++) {
        for (const imx_algorithm *a = op->algorithms; a->name; a++) {
            for (const char *at = list; at; at = next_word(at)) {
                if (begins_with(at, a->name))
                    return true;
            }
        }
    }
    return false;
}

static imbrex_status fail_unknown(const imx_variant *variant, const char *source, const char *name)
{
    char list[96] = "";
    const char *known;
    imx_text text = { .at = list, .size = sizeof list };
    for (int i = 0; (known = imx_variant_algorithm(variant->plan->group, variant->plan->op, i));
         i++)
        imx_text_add(&text, "%s\"%s\"", i ? ", " : "", known);
    return imx_fail(is_elsewhere(name) ? IMBREX_UNSUPPORTED : IMBREX_INVALID,
                    "%s is \"%.64s\": %s has %s here", source, name, variant->plan->op->info.name,
                    list);
}

/* The algorithm is there, but not for how the ranks are spread. */
static imbrex_status fail_spread(const imx_variant *variant, const char *source, const char *name)
{
    const imx_nodes *nodes = &variant->plan->group->nodes;
    if (nodes->count == 1)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "%s is \"%s\", which is for ranks on several nodes, and these are on one",
                        source, name);
    return imx_fail(IMBREX_UNSUPPORTED,
                    "%s is \"%s\", which is for ranks of one node, and these are on %d: "
                    "\"hierarchical\" and \"sequential\" are for several",
                    source, name, nodes->count);
}

static imbrex_status check_nodes(const imx_variant *variant)
{
    const imx_nodes *nodes = &variant->plan->group->nodes;
    if (nodes->count == 1)
        return IMBREX_OK;
    if (!imx_variant_algorithm(variant->plan->group, variant->plan->op, 0))
        return imx_fail(IMBREX_UNSUPPORTED, "%s is for ranks of one node, and these are on %d",
                        variant->plan->op->info.name, nodes->count);
    if (nodes->equal)
        return IMBREX_OK;
    char sizes[128];
    imx_text text = { .at = sizes, .size = sizeof sizes };
    imx_nodes_sizes(nodes, &text);
    return imx_fail(IMBREX_UNSUPPORTED,
                    "the nodes have %s ranks: %s wants as many on each of several nodes", sizes,
                    variant->plan->op->info.name);
}

static imbrex_status check_kernel(const imx_variant *variant, const char *source, const char *name)
{
    const imbrex_group *group = variant->plan->group;
    if (group->env.cpu_link > 0 && group->size > 1)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "%s is \"%s\", whose stores the wire of IMBREX_CPU_LINK would not slow: "
                        "unset one of them",
                        source, name);
    if (group->size > IMX_TEAM_MOST)
        return imx_fail(IMBREX_UNSUPPORTED, "%s is \"%s\", which is for up to %d ranks, not %d",
                        source, name, IMX_TEAM_MOST, group->size);
    return IMBREX_OK;
}

static imbrex_status find_algorithm(imx_variant *variant, const imx_tune_input *input,
                                    const char *source, const char *name)
{
    const imbrex_group *group = variant->plan->group;
    const imx_algorithm *all = variant->plan->op->algorithms, *a = imx_op_algorithm(all, name);
    char why_not[256] = "";
    imx_text text = { .at = why_not, .size = sizeof why_not };
    if (!imx_variant_algorithm(group, variant->plan->op, 0))
        return check_nodes(variant);
    if (!a)
        return fail_unknown(variant, source, name);
    variant->called = a->name;
    if (!(a = fitting(group, a, name)))
        return fail_spread(variant, source, name);
    IMX_TRY(check_nodes(variant));
    if (a->by_kernel)
        IMX_TRY(check_kernel(variant, source, name));
    if (group->size == 1)
        a = fitting(group, all, "sequential");
    const imx_problem problem = imx_cost_problem(input, &variant->config);
    while (a && a->can && !a->can(&problem, &text)) {
        text.length = 0;
        a = fitting(group, a + 1, name);
    }
    variant->algorithm = a;
    return a ? IMBREX_OK : imx_fail(IMBREX_UNSUPPORTED, "%s is \"%s\", %s", source, name, why_not);
}

/* The first name of a list that the operator has for how the ranks are spread; where it has none,
 * the list, which is then refused by what it says. */
static const char *first_known(const imx_variant *variant, const char *list)
{
    const char *known;
    for (const char *at = list; at; at = next_word(at)) {
        for (int i = 0; (known = imx_variant_algorithm(variant->plan->group, variant->plan->op, i));
             i++) {
            if (begins_with(at, known))
                return known;
        }
    }
    return list;
}

/* The desc's word counts first, then the environment's; NULL: there is none. */
static const char *name_of(const imx_variant *variant, const imx_request *r, const char **source)
{
    const imx_env *env = &variant->plan->group->env;
    *source = r->algorithm ? "desc.algorithm" : "IMBREX_ALGORITHM";
    return r->algorithm        ? r->algorithm
           : env->algorithm[0] ? first_known(variant, env->algorithm)
                               : NULL;
}

imbrex_status imx_variant_decide(imx_variant *variant, const imx_request *r)
{
    imx_tune_input input = imx_request_input(variant->plan->group, r);
    const char *source, *name = name_of(variant, r, &source);
    const imx_algorithm *named = name ? imx_op_algorithm(r->op->algorithms, name) : NULL;
    imx_choose_offers(r->op, named, &input);
    variant->shape = r->shape;
    variant->config = imx_tune_config(&input);
    imx_choice choice = imx_choose(r->op, &input, &variant->config);
    imx_text why = { .at = variant->why, .size = sizeof variant->why };
    imx_text_add(&why, "%s", name ? source : choice.why);
    return find_algorithm(variant, &input, source, name ? name : choice.algorithm);
}

/* ---- which there are ------------------------------------------------------------------------- */

/* Steps that hold any run to less than what sequential takes, also between them: by a variant for
 * 1024 rows 700 take more. */
static const int64_t steps[IMX_VARIANTS - 1] = { 64,  128,  256,  384,  512, 640,
                                                 768, 1024, 1280, 1536, 2048 };

int imx_variant_rows(const imbrex_group *group, const imx_request *r, int64_t rows[IMX_VARIANTS])
{
    bool chooses = !r->algorithm && !group->env.algorithm[0] && !r->chunk_rows;
    bool gpus = group->target->arch && group->nodes.count == 1;
    int count = 0;
    rows[count++] = r->shape.m;
    for (int i = 0; i < IMX_VARIANTS - 1 && r->op->product && chooses && gpus; i++) {
        if (steps[i] >= r->m_least && steps[i] <= r->shape.m * 3 / 4)
            rows[count++] = steps[i];
    }
    return count;
}

imx_variant *imx_variant_of(imbrex_plan *plan, int64_t m)
{
    for (int i = 1; i < plan->variant_count; i++) {
        if (m <= plan->variants[i].shape.m)
            return &plan->variants[i];
    }
    return plan->variants;
}

const imx_variant *imx_variant_by_point(const imbrex_group *group, int point)
{
    int which = (int)((unsigned)point >> IMX_VARIANT_SHIFT);
    const imbrex_plan *plan = (const imbrex_plan *)imx_object_find(&group->objects[IMX_OF_LIBRARY],
                                                                   imx_variant_plan_number(point));
    return plan && which < plan->variant_count ? &plan->variants[which] : NULL;
}

/* ---- memory and kernels ---------------------------------------------------------------------- */

enum { ALIGNMENT = 256 };

void imx_variant_lay_out(imx_variant *variant)
{
    imx_needs needs = { 0 };
    variant->algorithm->layout(variant, &needs);
    if (variant->plan->op->around)
        variant->plan->op->around->layout(variant, &needs);
    imx_offsets o = { 0 };
    o.signal_count = needs.signals;
    o.done_count = needs.done;
    o.signals = imx_align((size_t)variant->plan->group->size * sizeof(uint64_t), ALIGNMENT);
    o.data = imx_align(o.signals + needs.signals * sizeof(uint64_t), ALIGNMENT);
    o.lines = o.data + needs.lines_at;
    o.lines_bytes = needs.lines_bytes;
    o.buffer_bytes = imx_align(o.data + needs.data_bytes, ALIGNMENT);
    o.done = ALIGNMENT;
    o.counters = imx_align(o.done + needs.done * sizeof(uint64_t), ALIGNMENT);
    o.ended = imx_align(o.counters + needs.done * sizeof(uint32_t), ALIGNMENT);
    o.local = imx_align(o.ended + sizeof(uint32_t), ALIGNMENT);
    o.local_bytes = imx_align(o.local + needs.local_bytes, ALIGNMENT);
    variant->offsets = o;
}

imbrex_status imx_variant_prepare_blocks(imx_variant *variant, int i, const imx_kernel *kernel,
                                         const void *largest, int blocks)
{
    return variant->plan->group->backend->prepare(variant->plan->group->device, kernel, largest,
                                                  blocks, &variant->kernels[i]);
}

imbrex_status imx_variant_prepare(imx_variant *variant, int i, const imx_kernel *kernel,
                                  const void *largest)
{
    return imx_variant_prepare_blocks(variant, i, kernel, largest, variant->config.blocks);
}

imx_schedule imx_variant_schedule(const imx_variant *variant, int64_t m, int first, int solo)
{
    const imx_config *config = &variant->config;
    int64_t all_rows = imx_ceil_div(variant->shape.m, config->tile_rows) * config->tile_rows;
    return (imx_schedule){
        .m = m,
        .n = variant->shape.n,
        .ranks = config->spanning ? 1 : variant->plan->group->size,
        .first = config->spanning ? 0 : first,
        .chunk_rows = config->spanning ? (int)all_rows : (int)imx_variant_chunk_rows(variant, m),
        .tile_rows = config->tile_rows,
        .tile_cols = config->tile_cols,
        .group = config->group,
        .band = config->spanning ? 0 : config->band,
        .solo = solo,
        .chunks = config->chunks,
        .local = variant->plan->group->nodes.count > 1 ? variant->plan->group->nodes.ranks : 0,
        .spans = config->spans_chunks,
    };
}
