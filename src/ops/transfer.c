/* transfer.c - gather and scatter in chunks under signals; see transfer.h for where things lie. */
#include "transfer.h"

#include "norm.h"

imx_needs imx_transfer_both(const imx_needs *first, const imx_needs *second)
{
    imx_needs both = *first;
    both.data_bytes = imx_align(first->data_bytes, 256) + second->data_bytes;
    both.signals += second->signals;
    return both;
}

imx_run imx_transfer_second(const imx_run *run, const imx_needs *first)
{
    imx_run second = *run;
    second.data_at = imx_align(first->data_bytes, 256);
    second.signals_at = first->signals;
    return second;
}

imx_needs imx_transfer_both_apart(const imx_variant *variant, const imx_needs *first,
                                  const imx_needs *second)
{
    imx_needs both = imx_transfer_both(first, second);
    both.signals += (size_t)variant->plan->group->size; /* credits */
    both.done += 1 + second->done;                      /* the epoch */
    if (second->lines_bytes) {
        both.lines_at = imx_align(first->data_bytes, 256) + second->lines_at;
        both.lines_bytes = second->lines_bytes;
    }
    return both;
}

imx_run imx_transfer_apart(const imx_run *run, const imx_needs *first)
{
    imx_run second = imx_transfer_second(run, first);
    second.epoch = imx_run_done(run) + first->done;
    second.done_at = first->done + 1;
    second.credits_at = run->variant->offsets.signals + first->signals * sizeof(uint64_t);
    second.signals_at = first->signals + (size_t)run->ranks;
    return second;
}

imx_needs imx_transfer_both_ll(const imx_needs *first, const imx_needs *second)
{
    imx_needs both = imx_transfer_both(first, second);
    both.done += second->done;
    both.lines_at = first->lines_bytes ? 0 : imx_align(first->data_bytes, 256);
    both.lines_bytes = both.data_bytes - both.lines_at;
    return both;
}

imx_run imx_transfer_second_ll(const imx_run *run, const imx_needs *first)
{
    imx_run second = imx_transfer_second(run, first);
    second.done_at = first->done;
    return second;
}

double imx_transfer_copy_cost(const imx_rates *rates, double sent)
{
    return rates->copy_us + sent / rates->copy;
}

double imx_transfer_sequential_cost(const imx_rates *rates, double sent)
{
    return imx_cost_of_copies(rates, 50) + sent / rates->copy;
}

/* ---- gather ---------------------------------------------------------------------------------- */

void imx_transfer_gather_needs(const imx_variant *variant, int64_t width, imx_needs *needs)
{
    if (variant->plan->group->size == 1)
        return;
    needs->data_bytes = (size_t)variant->shape.m * (size_t)width * imx_transfer_element(variant);
    needs->signals = (size_t)variant->plan->group->size * (size_t)variant->config.chunks;
}

/* What goes along with own rows from chunk q on, into rank's memory. */
static imbrex_status copy_along(const imx_run *run, imbrex_stream stream, int rank, int q,
                                size_t bytes)
{
    size_t at = imx_transfer_along_at(run, q);
    if (!bytes)
        return IMBREX_OK;
    return imx_run_copy(run, stream,
                        (char *)imx_run_data(run, rank) +
                            imx_transfer_along_rank_at(run, run->rank) + at,
                        (const char *)run->along.shard + at, bytes, rank);
}

imbrex_status imx_transfer_gather_chunk(const imx_run *run, imbrex_stream stream, const void *shard,
                                        int64_t width, int to, int q)
{
    size_t at = imx_transfer_chunk_at(run, q, width);
    char *theirs = (char *)imx_run_data(run, to) + imx_transfer_rank_at(run, run->rank, width);
    IMX_TRY(imx_run_copy(run, stream, theirs + at, (const char *)shard + at,
                         imx_transfer_chunk_bytes(run, run->rank, q, width), to));
    IMX_TRY(copy_along(run, stream, to, q, imx_transfer_along_bytes(run, run->rank, q)));
    return imx_run_post(run, stream,
                        imx_run_signal(run, to) + imx_transfer_chunk_number(run, run->rank, q), to);
}

imbrex_status imx_transfer_gather(const imx_run *run, imbrex_stream stream, const void *shard,
                                  int64_t width)
{
    for (int i = 1; i < run->ranks; i++) {
        int to = (run->rank + run->ranks - i) % run->ranks;
        for (int q = 0; q < imx_run_chunks(run, run->rank); q++)
            IMX_TRY(imx_transfer_gather_chunk(run, stream, shard, width, to, q));
    }
    return IMBREX_OK;
}

/* Own rows to where the peers' come in. */
static imbrex_status copy_own(const imx_run *run, imbrex_stream stream, const void *shard,
                              int64_t width)
{
    char *own = (char *)imx_run_data(run, run->rank) + imx_transfer_rank_at(run, run->rank, width);
    size_t rows = (size_t)imx_run_rows(run, run->rank);
    IMX_TRY(imx_run_copy(run, stream, own, shard, rows * imx_transfer_row_bytes(run, width),
                         run->rank));
    return copy_along(run, stream, run->rank, 0, rows * run->along.row_bytes);
}

/* Of own rows those that are in tiles with others'. */
static imbrex_status copy_edges(const imx_run *run, imbrex_stream stream, const void *shard,
                                int64_t width)
{
    imx_schedule schedule = imx_variant_schedule(run->variant, run->m, run->rank, 0);
    imx_schedule_edges edges = imx_schedule_edges_of(&schedule, run->rank);
    size_t row_bytes = imx_transfer_row_bytes(run, width), tail = (size_t)edges.tail * row_bytes;
    size_t bytes = (size_t)imx_run_rows(run, run->rank) * row_bytes;
    char *own = (char *)imx_run_data(run, run->rank) + imx_transfer_rank_at(run, run->rank, width);
    IMX_TRY(imx_run_copy(run, stream, own, shard, (size_t)edges.head * row_bytes, run->rank));
    return imx_run_copy(run, stream, own + tail, (const char *)shard + tail, bytes - tail,
                        run->rank);
}

imbrex_status imx_transfer_keep(const imx_run *run, imbrex_stream stream, const void *shard,
                                int64_t width)
{
    const imx_config *config = &run->variant->config;
    if ((!config->spanning && !config->spans_chunks) || run->ranks == 1)
        return IMBREX_OK;
    int number = imx_transfer_chunk_number(run, run->rank, 0);
    IMX_TRY((config->spanning ? copy_own : copy_edges)(run, stream, shard, width));
    return imx_run_post(run, stream, imx_run_signal(run, run->rank) + number, run->rank);
}

static imbrex_status wait_chunk(const imx_run *run, imbrex_stream stream, int what, int from, int q)
{
    int number = imx_transfer_chunk_number(run, from, q);
    return imx_run_wait(run, stream, imx_run_signal(run, run->rank) + number, what, from, q);
}

imbrex_status imx_transfer_gather_wait(const imx_run *run, imbrex_stream stream)
{
    for (int i = 1; i < run->ranks; i++) {
        int from = (run->rank + i) % run->ranks;
        for (int q = 0; q < imx_run_chunks(run, from); q++)
            IMX_TRY(wait_chunk(run, stream, IMX_POINT_CHUNK, from, q));
    }
    return IMBREX_OK;
}

imbrex_status imx_transfer_gather_out(const imx_run *run, imbrex_stream stream, const void *shard,
                                      int64_t width, void *out, bool all_here)
{
    size_t own = imx_transfer_rank_at(run, run->rank, width);
    size_t own_bytes = (size_t)imx_run_rows(run, run->rank) * imx_transfer_row_bytes(run, width);
    if (shard != (char *)out + own)
        IMX_TRY(imx_run_copy(run, stream, (char *)out + own, shard, own_bytes, run->rank));
    for (int i = 1; i < run->ranks; i++) {
        int from = (run->rank + i) % run->ranks;
        for (int q = 0; q < imx_run_chunks(run, from); q++) {
            size_t at =
                imx_transfer_rank_at(run, from, width) + imx_transfer_chunk_at(run, q, width);
            if (!all_here)
                IMX_TRY(wait_chunk(run, stream, IMX_POINT_CHUNK, from, q));
            IMX_TRY(imx_run_copy(run, stream, (char *)out + at,
                                 (const char *)imx_run_data(run, run->rank) + at,
                                 imx_transfer_chunk_bytes(run, from, q, width), run->rank));
        }
    }
    return IMBREX_OK;
}

imbrex_status imx_transfer_gathered(const imx_run *run, imbrex_stream stream, bool all_here)
{
    if (!run->args->gathered)
        return IMBREX_OK;
    return imx_transfer_gather_out(run, stream, run->args->a, run->variant->shape.k,
                                   run->args->gathered, all_here);
}

imbrex_status imx_transfer_offer(const imx_run *run, const void *shard, int64_t width)
{
    IMX_TRY(copy_own(run, run->stream, shard, width));
    return imx_run_meet(run, imx_transfer_chunk_number(run, run->rank, 0),
                        run->variant->config.chunks, IMX_POINT_CHUNK);
}

static imbrex_status fetch_along(const imx_run *run, imbrex_stream stream, int from, int q)
{
    size_t at = imx_transfer_along_rank_at(run, from) + imx_transfer_along_at(run, q);
    return imx_run_copy(run, stream, (char *)imx_run_data(run, run->rank) + at,
                        (const char *)imx_run_data(run, from) + at,
                        imx_transfer_along_bytes(run, from, q), from);
}

imbrex_status imx_transfer_fetch(const imx_run *run, imbrex_stream stream, int64_t width,
                                 uint64_t *here)
{
    const imx_config *config = &run->variant->config;
    int first = config->spanning || config->spans_chunks ? 0 : 1; /* oneself: here already */
    for (int i = first; i < run->ranks; i++) {
        int from = (run->rank + i) % run->ranks;
        for (int q = 0; q < imx_run_chunks(run, from); q++) {
            size_t at =
                imx_transfer_rank_at(run, from, width) + imx_transfer_chunk_at(run, q, width);
            size_t bytes = i ? imx_transfer_chunk_bytes(run, from, q, width) : 0;
            IMX_TRY(imx_run_copy(run, stream, (char *)imx_run_data(run, run->rank) + at,
                                 (const char *)imx_run_data(run, from) + at, bytes, from));
            if (i && run->along.row_bytes)
                IMX_TRY(fetch_along(run, stream, from, q));
            IMX_TRY(imx_run_post(run, stream, here + imx_transfer_chunk_number(run, from, q),
                                 run->rank));
        }
    }
    return IMBREX_OK;
}

/* ---- small shards ---------------------------------------------------------------------------- */

bool imx_transfer_ll_lines(const imx_variant *variant, int64_t sent)
{
    return variant->plan->group->whole_lines && sent >= variant->config.ll_line_bytes;
}

static imx_ll_args ll_args(const imx_variant *variant, int64_t m, int64_t width, imx_ll_how how)
{
    int ranks = variant->plan->group->size, shards = how == IMX_LL_GATHERS ? ranks : 1;
    int64_t row_bytes = width * (int64_t)imx_transfer_element(variant);
    int64_t most = imx_ceil_div(variant->shape.m, shards) * row_bytes;
    int64_t now = imx_ceil_div(m, shards) * row_bytes;
    int64_t sent = how == IMX_LL_FANS ? imx_ll_share(false, most, ranks) : most;
    bool lines = imx_transfer_ll_lines(variant, sent);
    if (how == IMX_LL_FANS) {
        most = imx_ll_share(lines, most, ranks);
        now = imx_ll_share(lines, now, ranks);
    }
    return (imx_ll_args){
        .m = m,
        .row_bytes = row_bytes,
        .most = now,
        .ranks = ranks,
        .lines = lines,
        .how = how,
        .dtype = (int)variant->shape.out,
        .plan = imx_variant_point(variant),
        .part_bytes = imx_ll_part_bytes(lines, most),
    };
}

double imx_transfer_ll_cost(const imx_rates *rates, double sent, double sent_most)
{
    return sent <= sent_most ? rates->signal_us + 2 * sent / rates->store : IMX_COST_NEVER;
}

void imx_transfer_ll_needs(const imx_variant *variant, int64_t width, imx_ll_how how,
                           imx_needs *needs)
{
    imx_ll_args largest = ll_args(variant, variant->shape.m, width, how);
    size_t parts = (how == IMX_LL_FANS ? 4 : 2) * (size_t)variant->plan->group->size;
    needs->data_bytes = parts * (size_t)largest.part_bytes;
    needs->lines_bytes = needs->data_bytes;
    needs->done = (size_t)variant->config.blocks;
}

imbrex_status imx_transfer_ll_prepare(imx_variant *variant, int kernel, int64_t width,
                                      imx_ll_how how)
{
    imx_ll_args largest = ll_args(variant, variant->shape.m, width, how);
    return imx_variant_prepare(variant, kernel, &imx_kernel_ll, &largest);
}

imbrex_status imx_transfer_ll(const imx_run *run, int kernel, int64_t width, imx_ll_how how,
                              void *to)
{
    imx_ll_args args = ll_args(run->variant, run->m, width, how);
    args.from = run->args->a;
    args.bias = how ? run->args->bias : NULL;
    args.residual = how ? run->args->residual : NULL;
    args.to = to;
    args.uses = imx_run_done(run);
    args.team = imx_run_team(run);
    if (!args.most)
        return IMBREX_OK; /* for no rank there is anything to do */
    return imx_run_launch(run, run->stream, kernel, &args, sizeof args);
}

/* ---- scatter --------------------------------------------------------------------------------- */

size_t imx_transfer_slot_bytes(const imx_variant *variant)
{
    int64_t rows = imx_ceil_div(variant->shape.m, variant->plan->group->size);
    size_t bytes = (size_t)rows * (size_t)variant->shape.n * imx_transfer_element(variant);
    return imx_align(bytes, 256);
}

void imx_transfer_scatter_needs(const imx_variant *variant, imx_needs *needs)
{
    if (variant->plan->group->size == 1)
        return;
    needs->data_bytes = (size_t)variant->plan->group->size * imx_transfer_slot_bytes(variant);
    needs->signals = (size_t)variant->plan->group->size * (size_t)variant->config.chunks;
}

static imbrex_status wait_done(const imx_run *run, imbrex_stream stream, uint64_t *done, int owner,
                               int q)
{
    int product = run->variant->config.spanning ? 0 : imx_transfer_chunk_number(run, owner, q);
    if (!done)
        return IMBREX_OK;
    return imx_run_wait(run, stream, done + product, IMX_POINT_DONE, run->rank, product);
}

imbrex_status imx_transfer_scatter_chunk(const imx_run *run, imbrex_stream stream,
                                         const void *matrix, uint64_t *done, int to, int q)
{
    int64_t width = run->variant->shape.n;
    size_t at = imx_transfer_chunk_at(run, q, width);
    const char *block = (const char *)matrix + imx_transfer_rank_at(run, to, width);
    char *slot =
        (char *)imx_run_data(run, to) + (size_t)run->rank * imx_transfer_slot_bytes(run->variant);
    IMX_TRY(wait_done(run, stream, done, to, q));
    IMX_TRY(imx_run_copy(run, stream, slot + at, block + at,
                         imx_transfer_chunk_bytes(run, to, q, width), to));
    return imx_run_post(run, stream,
                        imx_run_signal(run, to) + imx_transfer_chunk_number(run, run->rank, q), to);
}

imbrex_status imx_transfer_scatter(const imx_run *run, imbrex_stream stream, const void *matrix,
                                   uint64_t *done)
{
    for (int i = 1; i < run->ranks; i++) {
        int to = (run->rank + i) % run->ranks;
        for (int q = 0; q < imx_run_chunks(run, to); q++)
            IMX_TRY(imx_transfer_scatter_chunk(run, stream, matrix, done, to, q));
    }
    return IMBREX_OK;
}

imbrex_status imx_transfer_scatter_wait(const imx_run *run, imbrex_stream stream)
{
    for (int i = 1; i < run->ranks; i++) {
        int from = (run->rank + run->ranks - i) % run->ranks;
        for (int q = 0; q < imx_run_chunks(run, run->rank); q++)
            IMX_TRY(wait_chunk(run, stream, IMX_POINT_PART, from, q));
    }
    return IMBREX_OK;
}

imbrex_status imx_transfer_scatter_out(const imx_run *run, imbrex_stream stream, const void *matrix,
                                       void *out, bool all_here)
{
    int64_t width = run->variant->shape.n;
    size_t block = (size_t)imx_run_rows(run, run->rank) * imx_transfer_row_bytes(run, width);
    const char *own = (const char *)matrix + imx_transfer_rank_at(run, run->rank, width);
    char *to = out;
    IMX_TRY(imx_run_copy(run, stream, to + (size_t)run->rank * block, own, block, run->rank));
    for (int i = 1; i < run->ranks; i++) {
        int from = (run->rank + run->ranks - i) % run->ranks;
        const char *slot = (const char *)imx_run_data(run, run->rank) +
                           (size_t)from * imx_transfer_slot_bytes(run->variant);
        for (int q = 0; q < imx_run_chunks(run, run->rank); q++) {
            size_t at = imx_transfer_chunk_at(run, q, width);
            if (!all_here)
                IMX_TRY(wait_chunk(run, stream, IMX_POINT_PART, from, q));
            IMX_TRY(imx_run_copy(run, stream, to + (size_t)from * block + at, slot + at,
                                 imx_transfer_chunk_bytes(run, run->rank, q, width), run->rank));
        }
    }
    return IMBREX_OK;
}

static imx_reduce_args reduce_args(const imx_variant *variant, int64_t m, int64_t rows)
{
    return (imx_reduce_args){
        .rows = rows,
        .n = variant->shape.n,
        .dtype = (int)variant->shape.out,
        .ranks = variant->plan->group->size,
        .own = variant->plan->group->rank,
        .chunk_rows = (int)imx_variant_chunk_rows(variant, m),
        .chunks = variant->config.chunks,
        .plan = imx_variant_point(variant),
        .every = 1,
        .slot_bytes = (int64_t)imx_transfer_slot_bytes(variant),
    };
}

imbrex_status imx_transfer_scatter_prepare_blocks(imx_variant *variant, int kernel, int blocks)
{
    int64_t m = variant->shape.m;
    imx_reduce_args largest = reduce_args(variant, m, imx_ceil_div(m, variant->plan->group->size));
    return imx_variant_prepare_blocks(variant, kernel, &imx_kernel_reduce, &largest, blocks);
}

imbrex_status imx_transfer_scatter_prepare(imx_variant *variant, int kernel)
{
    return imx_transfer_scatter_prepare_blocks(variant, kernel, variant->config.blocks);
}

bool imx_transfer_adds(const imx_run *run)
{
    return run->ranks > 1 || run->args->bias || run->args->residual;
}

imbrex_status imx_transfer_reduce(const imx_run *run, imbrex_stream stream, int kernel,
                                  const void *matrix, bool arriving)
{
    imx_reduce_args args = reduce_args(run->variant, run->m, imx_run_rows(run, run->rank));
    args.slots = imx_run_data(run, run->rank);
    args.own_part =
        (const char *)matrix + imx_transfer_rank_at(run, run->rank, run->variant->shape.n);
    args.bias = run->args->bias;
    args.residual = run->args->residual;
    args.c = run->args->c;
    args.epoch = run->epoch;
    args.arrived = arriving ? imx_run_signal(run, run->rank) : NULL;
    bool is_there = !imx_transfer_adds(run) && args.c == args.own_part;
    if (!args.rows || !args.n || is_there)
        return IMBREX_OK;
    return imx_run_launch(run, stream, kernel, &args, sizeof args);
}

imbrex_status imx_transfer_reduce_chunk(const imx_run *run, imbrex_stream stream, int kernel,
                                        const void *matrix, uint64_t *done, int q)
{
    int64_t width = run->variant->shape.n;
    size_t at = imx_transfer_chunk_at(run, q, width);
    imx_reduce_args args = reduce_args(run->variant, run->m, imx_run_chunk_rows(run, run->rank, q));
    args.chunk = q;
    args.slots = (char *)imx_run_data(run, run->rank) + at;
    args.own_part = (const char *)matrix + imx_transfer_rank_at(run, run->rank, width) + at;
    args.bias = run->args->bias;
    if (run->args->residual)
        args.residual = (const char *)run->args->residual + at;
    args.c = (char *)run->args->c + at;
    args.epoch = run->epoch;
    args.arrived = imx_run_signal(run, run->rank) + q;
    if (args.rows <= 0 || !args.n)
        return IMBREX_OK;
    IMX_TRY(wait_done(run, stream, done, run->rank, q));
    return imx_run_launch(run, stream, kernel, &args, sizeof args);
}

/* ---- both, by one kernel --------------------------------------------------------------------- */

/* One for each block and then some, so that all are at it and few wait for the last; beyond that
 * many, chunks grow. */
enum { PUSH_CHUNKS_MOST = 2048 };

static int64_t shard_bytes(const imx_variant *variant, int64_t m)
{
    return imx_ceil_div(m, variant->plan->group->size) * variant->shape.n *
           (int64_t)imx_transfer_element(variant);
}

static int push_chunks(const imx_variant *variant)
{
    int64_t pieces =
        imx_ceil_div(shard_bytes(variant, variant->shape.m), variant->config.piece_bytes);
    return (int)imx_min(pieces, PUSH_CHUNKS_MOST);
}

static int64_t push_chunk_bytes(const imx_variant *variant, int64_t shard)
{
    int64_t least = imx_ceil_div(shard, PUSH_CHUNKS_MOST);
    return imx_max(variant->config.piece_bytes, imx_ceil_div(least, 16) * 16);
}

/* Whether the kernel that gathers sums norms them. */
static bool push_norms(const imx_variant *variant, imx_push_how how)
{
    return how == IMX_PUSH_GATHERS && imx_norm_in_kernel(variant);
}

/* The longest shard that goes in lines. */
static int64_t lines_share(const imx_variant *variant)
{
    return imx_min(variant->config.line_bytes / (variant->plan->group->size - 1),
                   shard_bytes(variant, variant->shape.m));
}

static int64_t line_bytes(const imx_variant *variant)
{
    return imx_ceil_div(lines_share(variant), IMX_PUSH_WORD) * (int64_t)sizeof(imx_push_line);
}

/* What the gather or the scatter needs, and behind its data lines, [2][R][line_bytes].  Where a
 * scatter is followed by a gather, which has room in what the scatter needs, lines of both have one
 * place: an epoch of theirs may begin before peers have done with the one before. */
typedef struct push_room {
    imx_needs matrix;
    size_t lines_at;
} push_room;

static push_room push_room_of(const imx_variant *variant, imx_push_how how)
{
    push_room room = { .lines_at = 0 };
    if (how != IMX_PUSH_GATHERS || variant->plan->op->scatters)
        imx_transfer_scatter_needs(variant, &room.matrix);
    else
        imx_transfer_gather_needs(variant, variant->shape.n, &room.matrix);
    room.lines_at = imx_align(room.matrix.data_bytes, 256);
    return room;
}

void imx_transfer_push_needs(const imx_variant *variant, imx_push_how how, imx_needs *needs)
{
    size_t ranks = (size_t)variant->plan->group->size;
    push_room room = push_room_of(variant, how);
    *needs = room.matrix;
    needs->signals = ranks * (size_t)push_chunks(variant);
    needs->lines_at = room.lines_at;
    needs->lines_bytes = 2 * ranks * (size_t)line_bytes(variant);
    needs->data_bytes = needs->lines_at + needs->lines_bytes;
}

static imx_push_args push_args(const imx_variant *variant, int64_t m, imx_push_how how)
{
    int64_t most = shard_bytes(variant, m);
    imx_push_args args = {
        .m = m,
        .row_bytes = variant->shape.n * (int64_t)imx_transfer_element(variant),
        .most = most,
        .dtype = (int)variant->shape.out,
        .ranks = variant->plan->group->size,
        .how = how,
        .lines = most <= lines_share(variant),
        .chunks = push_chunks(variant),
        .chunk_bytes = push_chunk_bytes(variant, most),
        .plan = imx_variant_point(variant),
        .slot_bytes = (int64_t)imx_transfer_slot_bytes(variant),
        .lines_at = (int64_t)push_room_of(variant, how).lines_at,
        .line_bytes = line_bytes(variant),
    };
    if (push_norms(variant, how)) {
        args.norm = imx_norm_largest(variant, m);
        args.lines = 0;
        args.chunk_rows = imx_ceil_div(args.chunk_bytes, args.row_bytes);
        args.chunk_bytes = args.chunk_rows * args.row_bytes;
    }
    return args;
}

double imx_transfer_push_cost(const imx_rates *rates, double sent)
{
    return 6 + sent / rates->store;
}

imbrex_status imx_transfer_push_prepare(imx_variant *variant, int kernel, imx_push_how how)
{
    imx_push_args largest = push_args(variant, variant->shape.m, how);
    return imx_variant_prepare(variant, kernel, &imx_kernel_push, &largest);
}

imbrex_status imx_transfer_push(const imx_run *run, int kernel, imx_push_how how, const void *from,
                                const void *bias)
{
    imx_push_args args = push_args(run->variant, run->m, how);
    args.from = from;
    args.bias = bias;
    args.residual = how == IMX_PUSH_REDUCES ? run->args->residual : NULL;
    args.to = run->args->c;
    args.epoch = run->epoch;
    args.ended = imx_run_ended(run);
    args.team = imx_run_team(run);
    if (push_norms(run->variant, how)) {
        args.norm = imx_norm_of_run(run);
        args.to = imx_norm_kept(run);
    }
    if (!args.most)
        return IMBREX_OK; /* for no rank there is anything to do */
    return imx_run_launch(run, run->stream, kernel, &args, sizeof args);
}
