/* step.c - makes and runs the plans and the kernel of a decode step. */
#include <string.h>

#include "decode.h"
#include "place_kernel.h"

/* Blocks have at most so many threads, and a launch so many blocks. */
enum { THREADS = 128, BLOCKS = 1024 };

static imbrex_status make_attend(const decode_step *s, const char *algorithm, imbrex_plan **out)
{
    const decode_shape *shape = &s->shape;
    bool shared = s->peers && !shape->by_heads;
    imbrex_decode_desc desc = {
        .batch = shape->batch,
        .context = shape->context,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .value_dim = shape->head_dim,
        .heads_first = 1,
        .dtype = shape->dtype,
        .algorithm = shared ? algorithm : NULL,
    };
    return imbrex_plan_flash_decode(shared ? s->group : s->alone, &desc, out);
}

static imbrex_status make_products(decode_step *s, const char *algorithm)
{
    const decode_shape *shape = &s->shape;
    int64_t ranks = imbrex_group_size(s->group);
    const imbrex_gemm_desc project = {
        .m = shape->batch,
        .n = shape->width,
        .k = shape->hidden,
        .dtype = shape->dtype,
        .m_least = shape->batch,
    };
    const imbrex_coll_desc gather = {
        .m = ranks * shape->batch, .n = shape->width, .dtype = shape->dtype, .algorithm = algorithm
    };
    imbrex_gemm_desc output = {
        .m = shape->batch,
        .n = shape->hidden,
        .k = (int64_t)shape->own_heads * shape->head_dim,
        .dtype = shape->dtype,
        .m_least = shape->batch,
        .algorithm = s->peers ? algorithm : NULL,
    };
    bool local = !s->peers || shape->by_heads;
    TRY(imbrex_plan_gemm(local ? s->alone : s->group, &project, &s->project));
    if (!local)
        TRY(imbrex_plan_all_gather(s->group, &gather, &s->gather));
    return s->peers ? imbrex_plan_gemm_ar(s->group, &output, &s->output)
                    : imbrex_plan_gemm(s->alone, &output, &s->output);
}

const struct imbrexd_entry *decode_place_entry(void)
{
    return IMBREXD_ENTRY(place);
}

static imbrex_status make_place(decode_step *s)
{
    imbrex_kernel_desc desc = {
        .name = "place",
        .source = decode_place_text,
        .entry = decode_place_entry(),
        .shared_bytes = (size_t)s->shape.head_dim * sizeof(float),
    };
    return imbrex_kernel_create(s->peers && !s->shape.by_heads ? s->group : s->alone, &desc,
                                &s->place);
}

imbrex_status decode_step_create(imbrex_group *group, imbrex_group *alone,
                                 const decode_shape *shape, const char *algorithm, bool peers,
                                 const decode_operands *on, decode_step *out)
{
    decode_step step = {
        .group = group, .alone = alone, .shape = *shape, .peers = peers, .on = *on
    };
    imbrex_status status = make_products(&step, algorithm);
    if (status == IMBREX_OK)
        status = make_attend(&step, algorithm, &step.attend);
    if (status == IMBREX_OK)
        status = make_place(&step);
    if (status == IMBREX_OK)
        *out = step;
    else
        decode_step_destroy(&step);
    return status;
}

void decode_step_destroy(decode_step *step)
{
    imbrex_plan_destroy(step->project);
    imbrex_plan_destroy(step->gather);
    imbrex_plan_destroy(step->attend);
    imbrex_plan_destroy(step->output);
    imbrex_kernel_destroy(step->place);
    memset(step, 0, sizeof *step);
}

imbrex_status decode_step_attend(void *ctx)
{
    const decode_step *s = ctx;
    const imbrex_decode_args args = {
        .q = s->on.q, .k = s->on.k, .v = s->on.v, .lengths = s->on.lengths, .o = s->on.o
    };
    return imbrex_plan_run_decode(s->attend, &args, s->on.stream);
}

static imbrex_status run_place(const decode_step *s)
{
    const decode_shape *shape = &s->shape;
    int64_t heads = shape->batch * (shape->heads + 2 * shape->kv_heads);
    const place_args args = {
        .qkv = shape->by_heads ? s->on.own : s->on.all,
        .q = s->on.q,
        .k = s->on.k,
        .v = s->on.v,
        .turns = s->on.turns,
        .q_norm = s->on.q_norm,
        .k_norm = s->on.k_norm,
        .places = s->on.places,
        .eps = shape->eps,
        .batch = (int)shape->batch,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .dim = shape->head_dim,
        .width = (int)shape->width,
        .context = (int)shape->context,
        .dtype = (int)shape->dtype,
    };
    return imbrex_launch(s->place, (int)(heads < BLOCKS ? heads : BLOCKS), THREADS, &args,
                         sizeof args, s->on.stream);
}

/* On CPU ranks each group has a stream of its own, and where two take part in a step the host waits
 * between them. */
static imbrex_status turn_to(const decode_step *s, imbrex_group *from)
{
    bool two = s->peers && s->shape.by_heads && !s->on.stream;
    return two ? imbrex_stream_sync(from, NULL) : IMBREX_OK;
}

imbrex_status decode_step_run(void *ctx)
{
    const decode_step *s = ctx;
    const imbrex_args first = {
        .a = s->on.x, .b = s->on.project, .bias = s->on.project_bias, .c = s->on.own
    };
    const imbrex_args gather = { .a = s->on.own, .c = s->on.all };
    const imbrex_args last = {
        .a = s->on.o, .b = s->on.output, .bias = s->on.output_bias, .c = s->on.y
    };
    TRY(turn_to(s, s->group));
    TRY(imbrex_plan_run(s->project, &first, s->on.stream));
    if (s->gather)
        TRY(imbrex_plan_run(s->gather, &gather, s->on.stream));
    TRY(run_place(s));
    TRY(decode_step_attend(ctx));
    TRY(turn_to(s, s->alone));
    return imbrex_plan_run(s->output, &last, s->on.stream);
}
