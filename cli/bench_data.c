/* bench_data.c - lays the sets out, fills the first and copies it to the others. */
#include "bench_data.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "matrix.h"

/* All sets together are larger than the caches of most machines, and several times those of a GPU;
 * very small ones need not be. */
enum { BYTES_WANTED = 64 << 20, BYTES_WANTED_CUDA = 256 << 20, MOST_SETS = 1024, ALIGNMENT = 256 };

/* Random values are made once and repeated: a prime, so that rows differ. */
enum { BLOCK_ELEMENTS = 1048583 };

static size_t matrix_bytes(const bench_shape *s, int64_t rows, int64_t cols)
{
    return (size_t)(rows * cols * matrix_dtype_bytes(s->dtype));
}

/* The place of the next matrix. */
static size_t place(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end = (at + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

/* The first block comes from the host, and what stands is then doubled. */
static imbrex_status fill(const bench_data *data, uint64_t seed, const bench_shape *s, int64_t rows,
                          int64_t cols, size_t at)
{
    int64_t elements = rows * cols < BLOCK_ELEMENTS ? rows * cols : BLOCK_ELEMENTS;
    size_t bytes = matrix_bytes(s, rows, cols), block = matrix_bytes(s, 1, elements);
    void *host = malloc(block + 1);
    if (!host)
        return IMBREX_NO_MEMORY;
    matrix values = matrix_random(seed, 1, elements, 1);
    matrix_copy(&values, 0, 1, 0, elements, s->dtype, host, elements);
    imbrex_status status = imbrex_copy(data->group, data->sets + at, host, block, NULL);
    for (size_t done = block; done < bytes && status == IMBREX_OK; done *= 2)
        status = imbrex_copy(data->group, data->sets + at + done, data->sets + at,
                             done < bytes - done ? done : bytes - done, NULL);
    status = failure_drain(status, data->group, NULL);
    free(host);
    return status;
}

static imbrex_status fill_all(const bench_data *data, const bench_shape *s)
{
    uint64_t seed = 3 * (uint64_t)imbrex_group_rank(data->group);
    TRY(fill(data, seed, s, s->m, s->op->product ? s->k : s->n, 0));
    if (s->op->product) {
        TRY(fill(data, seed + 1, s, s->k, s->n, data->b));
        TRY(fill(data, seed + 2, s, 1, s->n, data->bias));
    }
    for (int i = 1; i < data->count; i++)
        TRY(imbrex_copy(data->group, data->sets + (size_t)i * data->set_bytes, data->sets, data->c,
                        NULL));
    return imbrex_stream_sync(data->group, NULL);
}

imbrex_status bench_data_open(imbrex_group *group, const bench_shape *s, bench_data *out)
{
    bench_data data = { .group = group };
    int64_t width = s->op->product ? s->k : s->n;
    int64_t row = imbrex_group_rank(group) * s->m / imbrex_group_size(group);
    size_t end = 0;
    place(&end, matrix_bytes(s, s->m, width));
    data.own = s->op->a_is_share ? matrix_bytes(s, row, width) : 0;
    data.b = place(&end, s->op->product ? matrix_bytes(s, s->k, s->n) : 0);
    data.bias = place(&end, s->op->product ? matrix_bytes(s, 1, s->n) : 0);
    data.c = place(&end, matrix_bytes(s, s->m, s->n));
    data.set_bytes = end;
    bool gpu = strncmp(imbrex_group_device(group), "cuda", 4) == 0;
    size_t wanted = gpu ? BYTES_WANTED_CUDA : BYTES_WANTED, count = (wanted + end - 1) / end;
    data.count = count > MOST_SETS ? MOST_SETS : (int)count;

    void *sets;
    TRY(imbrex_mem_alloc(group, (size_t)data.count * end, &sets));
    data.sets = sets;
    *out = data;
    return fill_all(out, s);
}

void bench_data_close(bench_data *data)
{
    if (data->group)
        imbrex_mem_free(data->group, data->sets);
    data->group = NULL;
}

imbrex_args bench_data_args(const bench_data *data, const bench_shape *s, int64_t i, bool whole)
{
    char *set = data->sets + (size_t)(i % data->count) * data->set_bytes;
    return (imbrex_args){
        .a = set + (whole ? 0 : data->own),
        .b = s->op->product ? set + data->b : NULL,
        .bias = s->bias && !whole ? set + data->bias : NULL,
        .c = set + data->c,
        .m = s->m,
    };
}
