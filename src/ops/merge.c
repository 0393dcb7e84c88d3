/* merge.c - states of attention to the owners of their heads, on one node; see merge.h. */
#include "merge.h"

#include "transfer.h"

enum { PACK, MERGE }; /* kernels, from `first` on */
enum { UNITS = 256 }; /* of rows under one signal each, at most */

/* ---- sizes ----------------------------------------------------------------------------------- */

static const imbrex_decode_desc *desc_of(const imx_variant *variant)
{
    return (const void *)variant->plan->desc;
}

int64_t imx_merge_queries(const void *desc)
{
    const imbrex_decode_desc *d = desc;
    return d->queries ? d->queries : 1;
}

/* What is out of range is refused later. */
int64_t imx_merge_width(const void *desc)
{
    const imbrex_decode_desc *d = desc;
    int64_t heads = imx_max(0, imx_min(d->heads, IMX_MERGE_HEADS));
    int64_t value_dim = imx_max(0, imx_min(d->value_dim, IMX_MERGE_VALUES));
    return heads * value_dim * imx_max(1, imx_min(d->queries, IMX_MERGE_QUERIES));
}

int64_t imx_merge_own_heads(const imx_asked *asked)
{
    const imbrex_decode_desc *d = asked->desc;
    return imx_merge_heads(d->replicate, d->heads, asked->group->size, asked->group->rank);
}

static imbrex_status check_count(const char *name, int value, int least, int most)
{
    if (value < least || value > most)
        return imx_fail(IMBREX_INVALID, "desc.%s is %d: want from %d to %d", name, value, least,
                        most);
    return IMBREX_OK;
}

imbrex_status imx_merge_check(const imbrex_group *group, const imx_request *request)
{
    const imbrex_decode_desc *d = (const void *)request->desc;
    (void)group;
    IMX_TRY(check_count("heads", d->heads, 1, IMX_MERGE_HEADS));
    IMX_TRY(check_count("value_dim", d->value_dim, 1, IMX_MERGE_VALUES));
    IMX_TRY(check_count("queries", d->queries, 0, IMX_MERGE_QUERIES));
    if (d->batch * imx_merge_queries(d) > INT32_MAX / IMX_TEAM_MOST / d->heads)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "desc.batch x queries x heads is %lld x %lld x %d: want at most %d",
                        (long long)d->batch, (long long)imx_merge_queries(d), d->heads,
                        INT32_MAX / IMX_TEAM_MOST);
    return IMBREX_OK;
}

/* ---- what a kernel is told ------------------------------------------------------------------- */

/* Heads of the owner that has most. */
static int64_t heads_most(const imx_variant *variant)
{
    const imbrex_decode_desc *d = desc_of(variant);
    return d->replicate ? d->heads : imx_ceil_div(d->heads, variant->plan->group->size);
}

imx_merge_args imx_merge_args_of(const imx_variant *variant, int64_t m, int how)
{
    const imbrex_decode_desc *d = desc_of(variant);
    const imbrex_group *group = variant->plan->group;
    int64_t queries = imx_merge_queries(d), most = variant->shape.m * queries;
    imx_merge_args args = {
        .how = how,
        .dtype = (int)d->dtype,
        .dtype_to = (int)d->dtype,
        .ranks = group->size,
        .rank = group->rank,
        .replicate = d->replicate,
        .heads = d->heads,
        .value_dim = d->value_dim,
        .sources = group->size,
        .own = group->rank,
        .plan = imx_variant_point(variant),
        .own_heads = d->heads,
        .rows = m * queries,
        .unit_rows = imx_max(1, imx_ceil_div(most, UNITS)),
    };
    args.first = args.own_first = imx_merge_head(d->replicate, d->heads, group->size, group->rank);
    args.count = imx_merge_heads(d->replicate, d->heads, group->size, group->rank);
    args.units = imx_ceil_div(most, args.unit_rows);
    args.slot_bytes = (int64_t)imx_merge_slot_bytes(variant, d->dtype);
    args.part_bytes = imx_merge_part_bytes(most * heads_most(variant), d->value_dim,
                                           (int)imx_dtype_bytes(d->dtype));
    return args;
}

size_t imx_merge_slot_bytes(const imx_variant *variant, imbrex_dtype dtype)
{
    const imbrex_decode_desc *d = desc_of(variant);
    int64_t states = variant->shape.m * imx_merge_queries(d) * heads_most(variant);
    return imx_align((size_t)imx_merge_bytes(states, d->value_dim, (int)imx_dtype_bytes(dtype)),
                     256);
}

int64_t imx_merge_owner_states(const imx_run *run, int owner)
{
    const imbrex_decode_desc *d = desc_of(run->variant);
    return run->m * imx_merge_queries(d) *
           imx_merge_heads(d->replicate, d->heads, run->ranks, owner);
}

size_t imx_merge_owner_bytes(const imx_run *run, int owner, imbrex_dtype dtype)
{
    const imbrex_decode_desc *d = desc_of(run->variant);
    return (size_t)imx_merge_bytes(imx_merge_owner_states(run, owner), d->value_dim,
                                   (int)imx_dtype_bytes(dtype));
}

void imx_merge_set_states(const imx_run *run, const imx_merge_states *own, imx_merge_args *args)
{
    args->own_o = own->o;
    args->own_lse = own->lse;
    args->natural = run->decode->natural;
}

void imx_merge_set_results(const imx_run *run, imx_merge_args *args)
{
    args->sinks = run->decode->sinks;
    args->to = run->decode->o;
    args->lse_to = run->decode->lse;
}

/* ---- packing --------------------------------------------------------------------------------- */

size_t imx_merge_packed_bytes(const imx_variant *variant)
{
    size_t owners = desc_of(variant)->replicate ? 1 : (size_t)variant->plan->group->size;
    return owners * imx_merge_slot_bytes(variant, variant->shape.dtype);
}

imbrex_status imx_merge_pack_prepare(imx_variant *variant, int kernel)
{
    imx_merge_args largest = imx_merge_args_of(variant, variant->shape.m, IMX_MERGE_PACKS);
    return imx_variant_prepare(variant, kernel, &imx_kernel_merge, &largest);
}

imbrex_status imx_merge_pack(const imx_run *run, int kernel, const imx_merge_states *own)
{
    imx_merge_args args = imx_merge_args_of(run->variant, run->m, IMX_MERGE_PACKS);
    imx_merge_set_states(run, own, &args);
    args.slots = imx_run_local(run);
    return imx_run_launch(run, run->stream, kernel, &args, sizeof args);
}

const char *imx_merge_packed(const imx_run *run, int owner)
{
    size_t slot = desc_of(run->variant)->replicate ? 0 : (size_t)owner;
    return (const char *)imx_run_local(run) +
           slot * imx_merge_slot_bytes(run->variant, run->variant->shape.dtype);
}

/* ---- by copies ------------------------------------------------------------------------------- */

void imx_merge_copies_needs(const imx_variant *variant, imx_needs *needs)
{
    size_t ranks = (size_t)variant->plan->group->size;
    if (ranks == 1)
        return;
    needs->data_bytes = ranks * imx_merge_slot_bytes(variant, variant->shape.dtype);
    needs->signals = ranks;
    needs->local_bytes = imx_merge_packed_bytes(variant);
}

imbrex_status imx_merge_copies_prepare(imx_variant *variant, int first)
{
    imx_merge_args largest = imx_merge_args_of(variant, variant->shape.m, IMX_MERGE_MERGES);
    if (variant->plan->group->size > 1)
        IMX_TRY(imx_merge_pack_prepare(variant, first + PACK));
    return imx_variant_prepare(variant, first + MERGE, &imx_kernel_merge, &largest);
}

static imbrex_status send_copies(const imx_run *run, int first, const imx_merge_states *own)
{
    size_t slot = imx_merge_slot_bytes(run->variant, run->variant->shape.dtype);
    IMX_TRY(imx_merge_pack(run, first + PACK, own));
    for (int i = 1; i < run->ranks; i++) {
        int to = (run->rank + i) % run->ranks;
        if (!imx_merge_owner_states(run, to))
            continue;
        IMX_TRY(imx_run_copy(run, run->stream,
                             (char *)imx_run_data(run, to) + (size_t)run->rank * slot,
                             imx_merge_packed(run, to),
                             imx_merge_owner_bytes(run, to, run->variant->shape.dtype), to));
        IMX_TRY(imx_run_post(run, run->stream, imx_run_signal(run, to) + run->rank, to));
    }
    return IMBREX_OK;
}

imbrex_status imx_merge_copies(const imx_run *run, int first, const imx_merge_states *own)
{
    imx_merge_args args = imx_merge_args_of(run->variant, run->m, IMX_MERGE_MERGES);
    imx_merge_set_states(run, own, &args);
    imx_merge_set_results(run, &args);
    if (run->ranks > 1)
        IMX_TRY(send_copies(run, first, own));
    if (!imx_merge_owner_states(run, run->rank))
        return IMBREX_OK;
    for (int i = 1; i < run->ranks; i++) {
        int from = (run->rank + run->ranks - i) % run->ranks;
        IMX_TRY(imx_run_wait(run, run->stream, imx_run_signal(run, run->rank) + from,
                             IMX_POINT_PART, from, -1));
    }
    args.slots = run->ranks > 1 ? imx_run_data(run, run->rank) : NULL;
    return imx_run_launch(run, run->stream, first + MERGE, &args, sizeof args);
}

/* ---- by one kernel --------------------------------------------------------------------------- */

void imx_merge_kernel_needs(const imx_variant *variant, int how, imx_needs *needs)
{
    const imx_merge_args largest = imx_merge_args_of(variant, variant->shape.m, how);
    size_t ranks = (size_t)largest.ranks;
    if (how == IMX_MERGE_STORES) {
        needs->data_bytes = ranks * (size_t)largest.slot_bytes;
        needs->signals = ranks * (size_t)largest.units;
        return;
    }
    needs->data_bytes = needs->lines_bytes = 2 * ranks * (size_t)largest.part_bytes;
    needs->done = (size_t)variant->config.blocks;
}

imbrex_status imx_merge_kernel_prepare(imx_variant *variant, int first, int how)
{
    imx_merge_args largest = imx_merge_args_of(variant, variant->shape.m, how);
    return imx_variant_prepare(variant, first, &imx_kernel_merge, &largest);
}

imbrex_status imx_merge_kernel(const imx_run *run, int first, int how, const imx_merge_states *own)
{
    imx_merge_args args = imx_merge_args_of(run->variant, run->m, how);
    if (!args.rows)
        return IMBREX_OK; /* on no rank is there anything to do */
    imx_merge_set_states(run, own, &args);
    imx_merge_set_results(run, &args);
    args.epoch = run->epoch;
    args.ended = imx_run_ended(run);
    args.uses = imx_run_done(run);
    args.team = imx_run_team(run);
    return imx_run_launch(run, run->stream, first, &args, sizeof args);
}

/* ---- what they are expected to take ---------------------------------------------------------- */

double imx_merge_copies_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_sequential_cost(rates, p->sent);
}

/* Both as two H200s took for 1, 8 and 128 sequences of 64 heads of 128: 14.9, 15.3 and 18.0 us, and
 * by words 4.1, 4.5 and 15.9; these are 1 MB to a peer at most. */
double imx_merge_store_cost(const imx_problem *p, const imx_rates *rates)
{
    return 15 + 1.2 * p->sent / rates->store;
}

double imx_merge_ll_cost(const imx_problem *p, const imx_rates *rates)
{
    double most = (double)(1 << 20) * (p->in->ranks - 1);
    return p->sent <= most ? imx_cost_of_signals(rates, 4) + 4 * p->sent / rates->store
                           : IMX_COST_NEVER;
}
