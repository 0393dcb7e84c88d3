/* bench_words.c - one table of options for two commands, so that sizes, type and ranks that are not
 * given are the same for both. */
#include "bench_words.h"

#include <string.h>

#include "matrix.h"

const option *bench_words_options(bench_words *w, const option *own)
{
    const double largest = 1 << 24;
    const option rows[BENCH_WORDS_ROWS] = {
        { "m", 0, .integer = &w->m, .metavar = "M", .min = 1, .max = largest,
          .help = "rows, of all ranks together (1024; on a GPU 4096)" },
        { "n", 0, .integer = &w->n, .metavar = "N", .min = 1, .max = largest,
          .help = "columns of one rank's c (1024; on a GPU 4096)" },
        { "k", 0, .integer = &w->k, .metavar = "K", .min = 1, .max = largest,
          .help = "inner size of one rank's product (1024; on a GPU 4096)" },
        { "dtype", 0, .text = &w->dtype, .metavar = "TYPE", .choices = "bf16|f16|f32",
          .help = "bf16, f16 or f32 (f32; on a GPU bf16)" },
        { "layout", 0, .text = &w->layout, .metavar = "ORDER", .choices = "nk|kn",
          .help = "how b lies: nk or kn (nk)" },
        { "shapes", 0, .text = &w->sizes, .metavar = "LIST",
          .help = "several: m,n,k;m,n,k;... or a file with one m,n,k a line;\n"
                  "op:m,n,k is for one operator alone" },
        { "total", 0, .flag = &w->total,
          .help = "n of ag_gemm and k of gemm_rs are of all ranks together" },
        { "chunk-rows", 0, .integer = &w->chunk_rows, .metavar = "N", .min = 0, .max = largest,
          .help = "rows that travel under one signal, rounded up to whole\n"
                  "tiles (0: chosen)" },
        { "sms", 0, .integer = &w->sms, .metavar = "N", .min = 0, .max = 1024,
          .help = "SMs, or threads on cpu, of a rank (0: chosen)" },
        { .more = own },
    };
    memcpy(w->rows, rows, sizeof rows);
    return w->rows;
}

/* A CPU is to be done soon, a GPU to have work for all of it. */
bench_shape bench_words_shape(const bench_words *w, bool gpu)
{
    const int64_t size = gpu ? 4096 : 1024;
    const int64_t rows = w->plan_m && w->plan_m < size ? w->plan_m : size;
    const char *dtype = w->dtype ? w->dtype : gpu ? "bf16" : "f32";
    return (bench_shape){
        .m = w->m ? w->m : rows,
        .n = w->n ? w->n : size,
        .k = w->k ? w->k : size,
        .dtype = (imbrex_dtype)options_index(matrix_dtype_names, MATRIX_DTYPES, dtype),
        .layout = (imbrex_layout)(w->layout ? options_index(bench_layout_names, 2, w->layout) : 0),
        .chunk_rows = (int)w->chunk_rows,
        .sms = (int)w->sms,
        .bias = w->bias,
    };
}
