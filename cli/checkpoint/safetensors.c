/* safetensors.c - maps safetensors files, checks what their headers claim, and writes new ones.
 *
 * A header is not believed: every number in it is compared with the others and with the size of the
 * file before anything follows it.  Not defended against: a file that another program cuts short
 * while it is mapped here.  Reading beyond its new end raises SIGBUS. */
#define _GNU_SOURCE
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "output.h"
#include "text.h"

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000 };

struct st_file {
    char *path;
    void *map;
    size_t map_bytes;
    st_record *records; /* in order of name */
    size_t count;
};

/* ---- Errors ---------------------------------------------------------------------------------- */

bool st_fail(st_error *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    text_harmless(error->text, false); /* names come from files */
    return false;
}

bool st_is_pointer(const char *text, size_t bytes)
{
    static const char begin[] = "version https://git-lfs";
    return bytes >= sizeof begin - 1 && memcmp(text, begin, sizeof begin - 1) == 0;
}

const char *st_path_tail(const char *path)
{
    size_t length = strlen(path), most = 160;
    return length > most ? path + length - most : path;
}

/* ---- Dtypes ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int bits;
} dtypes[] = {
#define ROW(name, bits) { #name, bits },
    ST_DTYPE_TABLE(ROW)
#undef ROW
};

const char *st_dtype_name(st_dtype dtype)
{
    return dtypes[dtype].name;
}

bool st_dtype_bytes(st_dtype dtype, int rank, const int64_t *shape, size_t *bytes)
{
    size_t bits = (size_t)dtypes[dtype].bits;
    for (int i = 0; i < rank && i < ST_MAX_RANK; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(bits, (size_t)shape[i], &bits))
            return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static int by_place(const void *left, const void *right)
{
    const st_record *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end); /* the empty ones first */
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const st_record *)left)->tensor.name, ((const st_record *)right)->tensor.name);
}

/* In order of place, each tensor must begin where the one before ended: then none overlaps another,
 * no byte is left over, and all lie inside the data. */
static bool check_layout(st_file *file, size_t data_bytes, st_error *error)
{
    const char *path = st_path_tail(file->path);
    uint64_t at = 0;
    qsort(file->records, file->count, sizeof *file->records, by_place);
    for (size_t i = 0; i < file->count; i++) {
        const st_record *record = &file->records[i];
        const char *name = record->tensor.name;
        uint64_t begin = (uint64_t)record->begin, end = (uint64_t)record->end;
        if (begin < at)
            return st_fail(error,
                           "%s: tensor %.80s begins at byte %" PRIu64 " of the data, inside "
                           "%.80s, which ends at %" PRIu64 ": write the file again",
                           path, name, begin, file->records[i - 1].tensor.name, at);
        if (begin > at)
            return st_fail(error,
                           "%s: tensor %.80s begins at byte %" PRIu64 " of the data, but the one "
                           "before ends at %" PRIu64 ": write the file again, without the hole",
                           path, name, begin, at);
        if (end > data_bytes)
            return st_fail(error,
                           "%s: tensor %.80s ends at byte %" PRIu64 " of the data, but the file "
                           "holds %zu: it is cut short; copy or download it again",
                           path, name, end, data_bytes);
        at = end;
    }
    if (at < data_bytes)
        return st_fail(error,
                       "%s: the last tensor ends at byte %" PRIu64 " of the data, but the file "
                       "holds %zu: copy or write it again",
                       path, at, data_bytes);
    return true;
}

static bool check_sizes(const st_file *file, st_error *error)
{
    const char *path = st_path_tail(file->path);
    for (size_t i = 0; i < file->count; i++) {
        st_record *record = &file->records[i];
        st_tensor *tensor = &record->tensor;
        if (record->begin > record->end)
            return st_fail(error,
                           "%s: tensor %.80s begins at byte %" PRId64 " and ends before, at "
                           "%" PRId64 ": write the file again",
                           path, tensor->name, record->begin, record->end);
        if (!st_dtype_bytes(tensor->dtype, tensor->rank, tensor->shape, &tensor->bytes))
            return st_fail(error,
                           "%s: tensor %.80s has a shape that no memory holds, or a part of a "
                           "byte: write the file again",
                           path, tensor->name);
        if (tensor->bytes != (uint64_t)(record->end - record->begin))
            return st_fail(error,
                           "%s: tensor %.80s needs %zu byte%s for its shape and %s, but its "
                           "data_offsets hold %" PRId64 ": write the file again",
                           path, tensor->name, tensor->bytes, tensor->bytes == 1 ? "" : "s",
                           st_dtype_name(tensor->dtype), record->end - record->begin);
    }
    return true;
}

static bool map_file(st_file *file, st_error *error)
{
    const char *path = st_path_tail(file->path);
    struct stat info;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us */
    if (fd < 0)
        return st_fail(error, "%s: cannot be opened: %s", path, strerror(errno));
    bool known = fstat(fd, &info) == 0;
    if (!known)
        st_fail(error, "%s: cannot be examined: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        known = st_fail(error, "%s: is not a regular file: name a safetensors file", path);
    else if (info.st_size < LENGTH_BYTES)
        known = st_fail(error,
                        "%s: holds %lld byte%s, a safetensors file at least %d: copy or download "
                        "it again",
                        path, (long long)info.st_size, info.st_size == 1 ? "" : "s", LENGTH_BYTES);
    if (known) {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            known = st_fail(error, "%s: cannot be mapped: %s", path, strerror(errno));
        else
            file->map = map;
        file->map_bytes = (size_t)info.st_size;
    }
    close(fd);
    return known;
}

static bool read_header(st_file *file, st_error *error)
{
    const char *path = st_path_tail(file->path);
    const unsigned char *start = file->map;
    const char *text = (const char *)start + LENGTH_BYTES;
    uint64_t length = 0, room = file->map_bytes - LENGTH_BYTES;
    if (st_is_pointer(file->map, file->map_bytes))
        return st_fail(error, "%s: is only git-lfs's pointer to the file: run git lfs pull", path);
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | start[i];
    if (length > MAX_HEADER_BYTES)
        return st_fail(error,
                       "%s: claims a header of %" PRIu64 " bytes, at most %d are allowed: is it a "
                       "safetensors file?",
                       path, length, MAX_HEADER_BYTES);
    if (length > room)
        return st_fail(error,
                       "%s: claims a header of %" PRIu64 " bytes, but holds %" PRIu64 " after its "
                       "length: it is cut short; copy or download it again",
                       path, length, room);
    if (length == 0 || text[0] != '{')
        return st_fail(error, "%s: its header does not begin with '{': is it a safetensors file?",
                       path);
    if (!st_json_parse_header(file->path, text, length, &file->records, &file->count, error))
        return false;
    if (!check_sizes(file, error) || !check_layout(file, room - length, error))
        return false;
    for (size_t i = 0; i < file->count; i++)
        file->records[i].tensor.data = text + length + file->records[i].begin;
    qsort(file->records, file->count, sizeof *file->records, by_name);
    return true;
}

bool st_open(const char *path, st_file **out, st_error *error)
{
    st_file *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        st_close(file);
        return st_fail(error, "%s: no memory is left to open it", st_path_tail(path));
    }
    if (!map_file(file, error) || !read_header(file, error)) {
        st_close(file);
        return false;
    }
    *out = file;
    return true;
}

void st_close(st_file *file)
{
    if (!file)
        return;
    st_json_free_header(file->records, file->count);
    if (file->map)
        munmap(file->map, file->map_bytes);
    free(file->path);
    free(file);
}

const char *st_path(const st_file *file)
{
    return file->path;
}

size_t st_count(const st_file *file)
{
    return file->count;
}

const st_tensor *st_at(const st_file *file, size_t index)
{
    return &file->records[index].tensor;
}

const st_tensor *st_find(const st_file *file, const char *name)
{
    st_record wanted = { .tensor.name = name };
    const st_record *found =
        file->count ? bsearch(&wanted, file->records, file->count, sizeof wanted, by_name) : NULL;
    return found ? &found->tensor : NULL;
}

static bool check_kind(const st_file *file, const st_tensor *tensor, int rank, const char *what,
                       st_error *error)
{
    if (tensor->dtype > ST_F32)
        return st_fail(error,
                       "%s: tensor %.80s is %s, an unsupported dtype: convert it to BF16, F16 or "
                       "F32",
                       st_path_tail(file->path), tensor->name, st_dtype_name(tensor->dtype));
    if (tensor->rank != rank)
        return st_fail(error, "%s: tensor %.80s has %d dimension%s, a %s has %d: reshape it",
                       st_path_tail(file->path), tensor->name, tensor->rank,
                       tensor->rank == 1 ? "" : "s", what, rank);
    return true;
}

bool st_matrix(const st_file *file, const st_tensor *tensor, matrix *out, st_error *error)
{
    if (!check_kind(file, tensor, 2, "matrix", error))
        return false;
    *out = (matrix){ .rows = tensor->shape[0],
                     .cols = tensor->shape[1],
                     .dtype = st_dtype_imbrex(tensor->dtype),
                     .data = tensor->data };
    return true;
}

bool st_vector(const st_file *file, const st_tensor *tensor, matrix *out, st_error *error)
{
    if (!check_kind(file, tensor, 1, "vector", error))
        return false;
    *out = (matrix){ .rows = 1,
                     .cols = tensor->shape[0],
                     .dtype = st_dtype_imbrex(tensor->dtype),
                     .data = tensor->data };
    return true;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static bool write_bytes(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t written = write(fd, at, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        at += written;
        bytes -= (size_t)written;
    }
    return true;
}

static bool write_contents(int fd, const char *header, const st_tensor *tensors, size_t count)
{
    uint64_t length = strlen(header);
    unsigned char prefix[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++)
        prefix[i] = (unsigned char)(length >> 8 * i);
    bool good = write_bytes(fd, prefix, sizeof prefix) && write_bytes(fd, header, length);
    for (size_t i = 0; good && i < count; i++)
        good = write_bytes(fd, tensors[i].data, tensors[i].bytes);
    return good;
}

bool st_write(const char *path, const st_tensor *tensors, size_t count, const char *const *metadata,
              st_error *error)
{
    st_tensor *sized = calloc(count ? count : 1, sizeof *sized);
    if (!sized)
        return st_fail(error, "%s: no memory is left to write it", st_path_tail(path));
    char *header = NULL;
    bool good = true;
    for (size_t i = 0; good && i < count; i++) {
        sized[i] = tensors[i];
        if (sized[i].rank < 0 || sized[i].rank > ST_MAX_RANK ||
            !st_dtype_bytes(sized[i].dtype, sized[i].rank, sized[i].shape, &sized[i].bytes))
            good = st_fail(error, "%s: tensor %.80s has a shape that cannot be written",
                           st_path_tail(path), sized[i].name);
    }
    good = good && st_json_write_header(path, sized, count, metadata, &header, error);
    output file;
    if (good && (!output_begin(&file, path) ||
                 !output_end(&file, write_contents(file.fd, header, sized, count))))
        good = st_fail(error, "%s: cannot be written: %s", st_path_tail(path), output_reason());
    free(header);
    free(sized);
    return good;
}
