/* rates.c - tables of rates: their lines, which of them counts, and what stands for a table where
 * there is none. */
#include "rates.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Made by the build of src/tune/tables/: all of them, one after the other. */
extern const char imx_rates_tables[];

typedef struct row {
    const char *name, *unit;
    double scale, least, most;
    size_t at;
    bool slower; /* if it is more */
} row;

static const row rows[] = {
#define ROW(field, scale, unit, least, most, slower) \
    { #field, unit, scale, least, most, offsetof(imx_rates, field), slower },
    IMX_RATES_TABLE(ROW)
#undef ROW
};
enum { ROWS = sizeof rows / sizeof *rows, WORD = 128 };

static double *value_of(imx_rates *rates, const row *r)
{
    return (double *)(void *)((char *)rates + r->at);
}

/* ---- a table --------------------------------------------------------------------------------- */

typedef struct reader {
    const char *name;
    const char *model; /* NULL: all rows are its own, and no device is named */
    int line;
    bool opened;   /* a device line stands above, */
    bool has_rows; /* and rows since it */
    bool of_model; /* which are this model's */
    imx_rates *rates;
    uint32_t here;  /* below the same device lines, a bit for each row */
    uint32_t given; /* for the model */
} reader;

static imbrex_status wrong(const reader *r, const char *what, const char *want)
{
    return imx_fail(IMBREX_INVALID, "%s, line %d: %s: want %s", r->name, r->line, what, want);
}

static void list_rows(char *text, size_t size)
{
    imx_text list = { .at = text, .size = size };
    imx_text_add(&list, "device");
    for (int i = 0; i < ROWS; i++)
        imx_text_add(&list, "%s%s", i < ROWS - 1 ? ", " : " or ", rows[i].name);
}

/* Several of them in a row begin one table. */
static imbrex_status read_device(reader *r, const char *model)
{
    if (!r->model)
        return wrong(r, "device", "rows alone: whose they are is known");
    if (!*model)
        return wrong(r, "no device", "its name as `imbrex info` has it, device NVIDIA H200");
    if (r->has_rows || !r->opened) {
        r->of_model = r->has_rows = false;
        r->here = 0;
    }
    r->opened = true;
    r->of_model = r->of_model || strcmp(model, r->model) == 0;
    return IMBREX_OK;
}

static imbrex_status read_row(reader *r, const char *name, const char *number)
{
    char what[2 * WORD], want[2 * WORD];
    imx_text range = { .at = want, .size = sizeof want };
    int i = 0;
    while (i < ROWS && strcmp(rows[i].name, name) != 0)
        i++;
    if (i == ROWS) {
        snprintf(what, sizeof what, "\"%s\" is no rate", name);
        list_rows(want, sizeof want);
        return wrong(r, what, want);
    }
    snprintf(what, sizeof what, "%s is \"%s\"", name, number);
    imx_text_add(&range, "a number from %g to %g, in %s", rows[i].least, rows[i].most,
                 rows[i].unit);
    double value;
    if (!imx_env_parse_real(number, &value) || value < rows[i].least || value > rows[i].most)
        return wrong(r, what, want);
    snprintf(what, sizeof what, "%s", name);
    if (!r->opened)
        return wrong(r, what, "a line \"device NAME\" above it");
    if (r->here >> i & 1)
        return wrong(r, what, "it once for a device");
    r->has_rows = true;
    r->here |= 1u << i;
    if (!r->of_model)
        return IMBREX_OK;
    r->given |= 1u << i;
    *value_of(r->rates, &rows[i]) = value * rows[i].scale;
    return IMBREX_OK;
}

/* Cuts what is around the words. */
static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length && isspace((unsigned char)text[length - 1]))
        length--;
    text[length] = '\0';
    return text;
}

static imbrex_status read_line(reader *r, const char *at, size_t length)
{
    char text[WORD];
    const char *comment = memchr(at, '#', length);
    length = comment ? (size_t)(comment - at) : length;
    if (length >= sizeof text)
        return wrong(r, "the line is long", "a name and a number");
    memcpy(text, at, length);
    text[length] = '\0';
    char *word = trim(text), *rest = word + strcspn(word, " \t");
    if (!*word)
        return IMBREX_OK;
    if (*rest)
        *rest++ = '\0';
    rest = trim(rest);
    return strcmp(word, "device") == 0 ? read_device(r, rest) : read_row(r, word, rest);
}

static imbrex_status read_lines(reader *r, const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        r->line++;
        IMX_TRY(read_line(r, text, length));
        text += length + (text[length] == '\n');
    }
    return IMBREX_OK;
}

imbrex_status imx_rates_parse(const char *text, const char *name, const char *model,
                              imx_rates *rates, uint32_t *given)
{
    reader r = { .name = name, .model = model, .rates = rates };
    IMX_TRY(read_lines(&r, text));
    *given = r.given;
    return IMBREX_OK;
}

imbrex_status imx_rates_check_rows(const char *rows_text, const char *name)
{
    imx_rates ignored;
    reader r = { .name = name, .opened = true, .of_model = true, .rates = &ignored };
    IMX_TRY(read_lines(&r, rows_text));
    if (!r.given)
        return imx_fail(IMBREX_INVALID, "%s has no rate: want lines as \"store 350\"", name);
    return IMBREX_OK;
}

bool imx_rates_built_in(const char *model, imx_rates *out)
{
    uint32_t given = 0;
    imbrex_status read =
        imx_rates_parse(imx_rates_tables, "the library's tables", model, out, &given);
    return read == IMBREX_OK && given;
}

/* ---- where there is no table ----------------------------------------------------------------- */

/* Dense multiplications and additions of 16 bits in a cycle of a multiprocessor.  On Hopper by its
 * own instructions; on others by those that Ampere has. */
static double per_cycle(int arch)
{
    return arch == 90 ? 4096 : arch == 80 || arch == 100 || arch == 103 ? 2048 : 1024;
}

/* GB/s in one direction, as vendors give it: NVLink 3, 4 and 5 of large GPUs, or a bridge; PCIe of
 * 16 lanes at 16 GT/s. */
static double link_of(const imx_rates_device *d)
{
    if (!d->nvlink)
        return 32;
    return d->arch == 80 ? 300 : d->arch == 90 ? 450 : d->arch == 100 || d->arch == 103 ? 900 : 56;
}

/* Shares of what the hardware could do, as an H200 has them; its starts of copies and signals. */
imx_rates imx_rates_of_attributes(const imx_rates_device *d)
{
    double mhz = d->clock_mhz > 0 ? d->clock_mhz : 1500, sms = d->sms > 0 ? d->sms : 1;
    double bf16 = 0.65 * per_cycle(d->arch) * sms * mhz;
    double memory = d->memory_gb_s > 0 ? 0.8 * d->memory_gb_s : 12 * sms;
    double link = 1e3 * link_of(d);
    return (imx_rates){
        .bf16 = bf16,
        .fp8 = d->arch == 90 ? 1.57 * bf16 : bf16,
        .f32 = 0.9 * (d->arch == 80 ? 128 : 256) * sms * mhz,
        .block = 1.14 * bf16 / (2 * sms),
        .block_fp8 = (d->arch == 90 ? 1.88 : 1.14) * bf16 / (2 * sms),
        .memory = 1e3 * memory,
        .store = 0.78 * link,
        .slices = 0.56 * link,
        .copy = 0.62 * link,
        .copy_us = 35,
        .signal_us = 2.2,
        .clock = 0.8 * mhz,
    };
}

/* ---- which counts ---------------------------------------------------------------------------- */

void imx_rates_file_name(const char *model, char name[IMX_RATES_NAME])
{
    int length = snprintf(name, IMX_RATES_NAME, "rates-%s", model);
    length = (int)imx_min(length, IMX_RATES_NAME - 5);
    for (int i = 0; i < length; i++)
        name[i] = (char)(isalnum((unsigned char)name[i]) ? name[i] : '-');
    snprintf(name + length, (size_t)(IMX_RATES_NAME - length), ".txt");
}

static bool lacks(uint32_t given, int one, int other)
{
    return given >> one & 1 && !(given >> other & 1);
}

/* What nobody times by itself goes with what it is a part of. */
static void follow(uint32_t given, const imx_rates *before, imx_rates *out)
{
    if (lacks(given, IMX_RATES_AT_bf16, IMX_RATES_AT_block))
        out->block *= out->bf16 / before->bf16;
    if (lacks(given, IMX_RATES_AT_fp8, IMX_RATES_AT_block_fp8))
        out->block_fp8 *= out->fp8 / before->fp8;
    if (lacks(given, IMX_RATES_AT_store, IMX_RATES_AT_slices))
        out->slices *= out->store / before->store;
}

static imbrex_status read_text(char *text, size_t bytes, const char *path,
                               const imx_rates_device *d, imx_rates *out, imx_text *from)
{
    const imx_rates before = *out;
    uint32_t given = 0;
    imbrex_status status =
        strlen(text) < bytes
            ? imx_fail(IMBREX_INVALID, "%s has a NUL at byte %zu: want lines of text", path,
                       strlen(text))
            : imx_rates_parse(text, path, d->model, out, &given);
    free(text);
    if (status != IMBREX_OK)
        return status;
    follow(given, &before, out);
    if (given)
        imx_text_add(from, "%s, and what it leaves out ", path);
    return IMBREX_OK;
}

static imbrex_status read_named(const char *path, const imx_rates_device *d, imx_rates *out,
                                imx_text *from)
{
    size_t bytes;
    char *text = imx_folder_read_path(path, IMX_RATES_BYTES, &bytes);
    if (!text)
        return imx_fail_errno("IMBREX_RATES is \"%s\", which cannot be read", path);
    return read_text(text, bytes, path, d, out, from);
}

/* One that is not ours alone is left, as the tuning cache is. */
static imbrex_status read_kept(const imx_env *env, const imx_rates_device *d, imx_rates *out,
                               imx_text *from)
{
    imx_folder folder;
    char name[IMX_RATES_NAME], path[sizeof folder.path + sizeof name + 1];
    size_t bytes;
    imx_folder_name(env->cache_dir, &folder);
    imx_rates_file_name(d->model, name);
    char *text = imx_folder_read(&folder, name, IMX_RATES_BYTES, &bytes);
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    if (text)
        return read_text(text, bytes, path, d, out, from);
    if (errno == EPERM)
        imx_text_add(from,
                     "%s is ignored, as it or its folder belongs to someone else or others may "
                     "write it; ",
                     path);
    else if (folder.path[0] && errno != ENOENT)
        imx_text_add(from, "%s is ignored: %s; ", path, strerror(errno));
    return IMBREX_OK;
}

imbrex_status imx_rates_read(const imx_env *env, const imx_rates_device *d, imx_rates *out,
                             imx_text *from)
{
    *out = imx_rates_of_attributes(d);
    bool built_in = imx_rates_built_in(d->model, out);
    IMX_TRY(env->rates[0] ? read_named(env->rates, d, out, from) : read_kept(env, d, out, from));
    if (built_in)
        imx_text_add(from, "built in, of %s", d->model);
    else
        imx_text_add(from, "from the driver's attributes");
    return IMBREX_OK;
}

void imx_rates_slower(imx_rates *rates, const imx_rates *other)
{
    imx_rates copy = *other;
    for (int i = 0; i < ROWS; i++) {
        double *value = value_of(rates, &rows[i]), theirs = *value_of(&copy, &rows[i]);
        if (rows[i].slower ? theirs > *value : theirs < *value)
            *value = theirs;
    }
}
