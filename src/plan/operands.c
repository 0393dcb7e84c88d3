/* operands.c - lays out sets of matrices and fills them. */
#include "operands.h"

#include <stdlib.h>
#include <string.h>

enum { SETS_MOST = 16, ALIGNMENT = 256 };

/* Random values are made once and repeated: a prime, so that rows differ. */
enum { BLOCK_ELEMENTS = 1048583 };

/* About N(0, 1), between -3.5 and 3.5: four numbers of 16 bits, added. */
static float next_value(uint64_t *state)
{
    uint64_t x = *state; /* xorshift */
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *state = x;
    int64_t sum = (int64_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
    return (float)(sum - 2 * 0xffff) * (1.7320508f / 65536);
}

/* The upper half of a float32 is a bfloat16; a float16 has three bits less of exponent.  What is
 * cut off rounds towards zero, which a random number does not mind. */
static uint16_t shortened(float value, imbrex_dtype dtype)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == IMBREX_BF16)
        return (uint16_t)(bits >> 16);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    const uint32_t least = 113u << 23; /* 2^-14, the least normal float16 */
    return (uint16_t)(sign | (magnitude < least ? 0 : (magnitude - (112u << 23)) >> 13));
}

/* E4M3 has an exponent of four bits, of which 7 is 2^0; an E5M2 is the upper half of a float16. */
static uint8_t shortened_again(float value, imbrex_dtype dtype)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == IMBREX_E5M2)
        return (uint8_t)(shortened(value, IMBREX_F16) >> 8);
    uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    const uint32_t least = 121u << 23; /* 2^-6, the least normal one */
    return (uint8_t)(sign | (magnitude < least ? 0 : (magnitude - (120u << 23)) >> 20));
}

static void put(float value, imbrex_dtype dtype, char *to)
{
    uint16_t half = shortened(value, dtype);
    if (imx_dtype_is_8bit(dtype))
        *to = (char)shortened_again(value, dtype);
    else
        memcpy(to, dtype == IMBREX_F32 ? (void *)&value : (void *)&half, imx_dtype_bytes(dtype));
}

static imbrex_status copy(const imx_operands *o, void *dst, const void *src, size_t bytes)
{
    return imx_stream_copy(o->group, dst, src, bytes, o->group->rank, o->group->stream);
}

static imbrex_status drain(const imx_operands *o)
{
    return o->group->backend->stream_sync(o->group->device, o->group->stream);
}

/* So many bytes of elements of dtype: one block from the host, and what stands is then doubled. */
static imbrex_status fill(const imx_operands *o, imbrex_dtype dtype, char *base, size_t all)
{
    size_t element = imx_dtype_bytes(dtype);
    size_t count = all / element < BLOCK_ELEMENTS ? all / element : BLOCK_ELEMENTS;
    char *host = NULL;
    uint64_t state = 0x9e3779b97f4a7c15 + (uint64_t)o->group->rank;
    IMX_TRY(imx_sys_alloc(count, element, &host));
    for (size_t i = 0; i < count; i++)
        put(next_value(&state), dtype, host + i * element);
    imbrex_status status = copy(o, base, host, count * element);
    for (size_t done = count * element; done < all && status == IMBREX_OK; done *= 2)
        status = copy(o, base + done, base, done < all - done ? done : all - done);
    imbrex_status drained = drain(o); /* also of what came before a copy that failed */
    free(host);
    return status == IMBREX_OK ? drained : status;
}

static imbrex_status fill_integers(const imx_operands *o, const imx_asked *asked,
                                   const imbrex_field *row, char *base)
{
    int64_t count = imx_args_elements(asked, row, asked->shape->m);
    int32_t *host = NULL;
    IMX_TRY(imx_sys_alloc((size_t)count, sizeof *host, &host));
    o->op->timed_integers(asked, row, count, host);
    imbrex_status status = copy(o, base, host, (size_t)count * sizeof *host);
    imbrex_status drained = drain(o);
    free(host);
    return status == IMBREX_OK ? drained : status;
}

/* The operands of one set, which all others are then copies of. */
static imbrex_status fill_all(const imx_operands *o, const imx_asked *asked)
{
    char *base = o->memory->base;
    for (int i = 0; i < o->op->info.args_fields; i++) {
        const imbrex_field *row = &o->op->info.args[i];
        size_t end = o->set_bytes;
        for (int j = i + 1; j < o->op->info.args_fields; j++)
            end = o->wanted[j] && o->at[j] < end ? o->at[j] : end;
        if (!o->wanted[i] || end == o->at[i])
            continue;
        if (row->own[IMX_FIELD_KIND] == IMX_I32 && o->op->timed_integers)
            IMX_TRY(fill_integers(o, asked, row, base + o->at[i]));
        else
            IMX_TRY(fill(o, imx_args_dtype(asked, row), base + o->at[i], end - o->at[i]));
    }
    for (int i = 1; i < o->sets; i++)
        IMX_TRY(copy(o, base + (size_t)i * o->set_bytes, base, o->set_bytes));
    return drain(o);
}

static bool is_wanted(const imx_asked *asked, const imbrex_field *row)
{
    const char *because;
    return imx_args_is_operand(row) && imx_args_part(asked, row, &because) == IMX_MUST;
}

imbrex_status imx_operands_create(imbrex_group *group, const imx_request *r, imx_operands *out)
{
    imx_asked asked = { group, r->op, &r->shape, r->desc, NULL };
    imx_operands o = { .group = group, .op = r->op };
    if (r->op->timed_sizes) {
        r->op->timed_sizes(&asked, &o.sizes);
        asked.args = &o.sizes;
    }
    for (int i = 0; i < o.op->info.args_fields; i++) {
        const imbrex_field *row = &o.op->info.args[i];
        o.at[i] = o.set_bytes;
        o.wanted[i] = is_wanted(&asked, row);
        if (o.wanted[i])
            o.set_bytes =
                imx_align(o.set_bytes + (size_t)imx_args_elements(&asked, row, r->shape.m) *
                                            imx_args_element_bytes(&asked, row),
                          ALIGNMENT);
    }
    o.sets = 1 + (int)imx_min((int64_t)(group->target->cache_bytes / o.set_bytes), SETS_MOST - 1);
    IMX_TRY(group->backend->memory_create(group->device, (size_t)o.sets * o.set_bytes, &o.memory));
    imbrex_status status = fill_all(&o, &asked);
    if (status != IMBREX_OK)
        imx_operands_destroy(&o);
    else
        *out = o;
    return status;
}

void imx_operands_destroy(imx_operands *o)
{
    if (o->memory)
        o->group->backend->memory_release(o->memory);
    o->memory = NULL;
}

void imx_operands_args(const imx_operands *o, int i, imx_given *given)
{
    char *set = (char *)o->memory->base + (size_t)(i % o->sets) * o->set_bytes;
    *given = o->sizes;
    for (int j = 0; j < o->op->info.args_fields; j++) {
        const imbrex_field *row = &o->op->info.args[j];
        bool in_routing = row->own[IMX_FIELD_IN_ROUTING];
        char *base = in_routing ? (char *)&given->routing : (char *)given;
        void *at = set + o->at[j];
        if (!o->wanted[j])
            continue;
        memcpy(base + row->offset, &at, sizeof at);
        if (in_routing)
            given->usual.routing = &given->routing;
    }
}
