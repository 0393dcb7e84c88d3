/* choose.c - which algorithm a plan takes if nobody names one: a pure function. */
#include "plan.h"

/* A shard that travels faster than a thread wakes up. */
enum { OVERLAP_BYTES_LEAST = 32768 };

static imx_choice because(const char *algorithm, const char *why)
{
    imx_choice choice = { .algorithm = algorithm };
    imx_text text = { .at = choice.why, .size = sizeof choice.why };
    imx_text_add(&text, "%s", why);
    return choice;
}

/* Whether the ranks of one node may take it.  An emulated wire does not slow a kernel's stores, so
 * they must not pass for a way around it. */
static bool may_run(const imx_algorithm *a, const imx_tune_input *in)
{
    bool kernel_may = in->ranks <= IMX_TEAM_MOST && !in->slow_wire;
    return !a->over_nodes && (!a->by_kernel || kernel_may);
}

static bool may_take(const imx_algorithm *a, const imx_problem *p)
{
    char reason[256];
    imx_text why_not = { .at = reason, .size = sizeof reason };
    return may_run(a, p->in) && (!a->can || a->can(p, &why_not));
}

/* What a run is expected to take beyond the product. */
static double cost_of(const imx_op *op, const imx_algorithm *a, const imx_problem *p)
{
    if (!a->cost || !may_take(a, p))
        return IMX_COST_NEVER;
    return a->cost(p, p->in->rates) + (op->around ? op->around->cost(op, a, p, p->in->rates) : 0);
}

/* The one that is expected to end first. */
static imx_choice by_cost(const imx_op *op, const imx_problem *p)
{
    imx_choice choice = { .algorithm = NULL };
    imx_text why = { .at = choice.why, .size = sizeof choice.why };
    double best = IMX_COST_NEVER;
    imx_text_add(&why, "expected us:");
    for (const imx_algorithm *a = op->algorithms; a->name; a++) {
        double us = p->product + cost_of(op, a, p);
        if (us == IMX_COST_NEVER)
            continue;
        imx_text_add(&why, " %s %.0f%s", a->name, us, a->on_request ? " if asked for" : "");
        if (us < best && !a->on_request) {
            best = us;
            choice.algorithm = a->name;
        }
    }
    return choice.algorithm ? choice : because("sequential", "no expected time is finite");
}

static bool has(const imx_op *op, const imx_problem *p, const char *algorithm)
{
    const imx_algorithm *a = imx_op_algorithm(op->algorithms, algorithm);
    return a && may_take(a, p);
}

/* The algorithm whose kernel stores into peers' memory under signals; NULL: there is none here. */
static const char *storing(const imx_op *op, const imx_problem *p)
{
    for (const imx_algorithm *a = op->algorithms; a->name; a++) {
        if (a->stores && may_take(a, p))
            return a->name;
    }
    return NULL;
}

static imx_choice on_cpus(const imx_op *op, const imx_problem *p)
{
    const imx_tune_input *in = p->in;
    const imx_shape *shape = &in->shape;
    int64_t rows = imx_max(1, imx_ceil_div(shape->m, in->ranks));
    int64_t width = in->product && shape->k < shape->n ? shape->k : shape->n;
    int64_t shard_bytes =
        rows * width * (int64_t)imx_dtype_bytes(in->scatters ? shape->out : shape->dtype);
    bool large = shard_bytes >= OVERLAP_BYTES_LEAST;
    const char *store = storing(op, p);
    if (store && in->scatters)
        return because(store, "the kernel that makes or has a part moves it");
    if (large && has(op, p, "copy"))
        return because("copy", "sending runs beside the rest");
    if (store)
        return because(store, "a shard is sent sooner than a second stream starts");
    if (!large && has(op, p, "ll"))
        return because("ll", "few bytes go to all at once");
    const imx_algorithm *copy = imx_op_algorithm(op->algorithms, "copy");
    if (!copy || copy->by_kernel)
        return because("sequential", in->ranks > IMX_TEAM_MOST
                                         ? "kernels reach at most 16 ranks"
                                         : "kernels would go around the emulated wire");
    return because("sequential", large ? "there is nothing to send beside"
                                       : "a shard is sent sooner than a second stream starts");
}

void imx_choose_offers(const imx_op *op, const imx_algorithm *named, imx_tune_input *in)
{
    in->apart = named && named->apart;
    in->behind = in->slices = false;
    for (const imx_algorithm *a = op->algorithms; a->name; a++) {
        bool may_be_taken = (!named || a == named) && may_run(a, in);
        in->behind = in->behind || (a->behind && may_be_taken);
        in->slices = in->slices || (a->slices && may_be_taken);
    }
}

imx_choice imx_choose(const imx_op *op, const imx_tune_input *in, const imx_config *config)
{
    if (in->nodes > 1)
        return because("hierarchical", "over nodes");
    if (in->ranks == 1)
        return because("sequential", "there is no peer to send to");
    const imx_problem problem = imx_cost_problem(in, config);
    return in->arch ? by_cost(op, &problem) : on_cpus(op, &problem);
}
