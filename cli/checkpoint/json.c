/* json.c - the JSON of safetensors, through jansson. */
#include "checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void st_json_free_header(st_record *records, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free((char *)records[i].tensor.name);
    free(records);
}

void st_json_free_index(st_place *places, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(places[i].tensor);
        free(places[i].file);
    }
    free(places);
}

#ifdef IMX_HAVE_JANSSON

#include <jansson.h>

bool st_has_json(void)
{
    return true;
}

/* A header nests three deep, but fields that nobody reads may nest deeper in it: as deep as the
 * format's own library follows. */
enum { HEADER_DEPTH = 127, INDEX_DEPTH = 8 };

static bool out_of_memory(const char *path, st_error *error)
{
    return st_fail(error, "%s: no memory is left to read it", st_path_tail(path));
}

/* Whether the text nests deeper than limit: seen before parsing, which recurses and allocates. */
static bool too_deep(const char *text, size_t bytes, int limit)
{
    bool quoted = false;
    int depth = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '{' || c == '['))
            depth++;
        else if (!quoted && (c == '}' || c == ']'))
            depth--;
        if (depth > limit)
            return true;
    }
    return false;
}

/* The word, ending at a byte, by which Python writes what is no number in JSON; NULL: none.  Of
 * -Infinity the parser takes the sign alone. */
static const char *python_number(const char *text, size_t bytes, size_t end)
{
    static const char *const words[] = { "NaN", "Infinity", "-Infinity" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]), taken = *words[i] == '-' ? 1 : length;
        if (end >= taken && end - taken + length <= bytes &&
            memcmp(text + end - taken, words[i], length) == 0)
            return words[i];
    }
    return NULL;
}

static void fail_json(const char *path, const char *text, size_t bytes, const json_error_t *where,
                      st_error *error)
{
    const char *number = python_number(text, bytes, (size_t)where->position);
    path = st_path_tail(path);
    if (number)
        st_fail(error,
                "%s: holds %s at byte %d, which JSON does not have, though Python writes it: put "
                "a number or null there",
                path, number, where->position);
    else if (json_error_code(where) == json_error_numeric_overflow)
        st_fail(error, "%s: holds a number at byte %d that 64 bits do not: %.160s", path,
                where->position, where->text);
    else
        st_fail(error, "%s: its JSON is wrong at byte %d: %.160s: write or download the file again",
                path, where->position, where->text);
}

json_t *st_json_load(const char *path, const char *text, size_t bytes, int depth, st_error *error)
{
    json_error_t where;
    if (too_deep(text, bytes, depth)) {
        st_fail(error, "%s: its JSON nests deeper than %d: write the file again",
                st_path_tail(path), depth);
        return NULL;
    }
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root) {
        fail_json(path, text, bytes, &where, error);
    } else if (!json_is_object(root)) {
        st_fail(error, "%s: its JSON is not an object: write or download the file again",
                st_path_tail(path));
        json_decref(root);
        root = NULL;
    }
    return root;
}

/* A part of a value's text: as much as there is room for. */
static int show_part(const char *part, size_t bytes, void *ctx)
{
    st_json_shown *out = ctx;
    size_t length = strlen(out->text), room = sizeof out->text - 1 - length;
    memcpy(out->text + length, part, bytes < room ? bytes : room);
    return 0;
}

st_json_shown st_json_show(const json_t *value)
{
    st_json_shown out = { "" };
    if (!value)
        return (st_json_shown){ "nothing" };
    json_dump_callback(value, show_part, &out, JSON_ENCODE_ANY | JSON_COMPACT);
    if (strlen(out.text) == sizeof out.text - 1)
        memcpy(out.text + sizeof out.text - 4, "...", 3);
    return out;
}

/* ---- Reading a header ------------------------------------------------------------------------ */

static bool read_size(const json_t *value, int64_t *size)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *size = json_integer_value(value);
    return true;
}

static bool read_dtype(const char *path, const json_t *entry, st_tensor *tensor, st_error *error)
{
    const json_t *value = json_object_get(entry, "dtype");
    const char *text = json_string_value(value);
    for (int i = 0; text && i < ST_DTYPE_COUNT; i++) {
        if (strcmp(text, st_dtype_name((st_dtype)i)) == 0) {
            tensor->dtype = (st_dtype)i;
            return true;
        }
    }
    return st_fail(error,
                   "%s: tensor %.80s has the dtype %s, which this program does not know: convert "
                   "it to BF16, F16 or F32",
                   path, tensor->name, st_json_show(value).text);
}

static bool read_shape(const char *path, const json_t *entry, st_tensor *tensor, st_error *error)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t rank = json_array_size(shape);
    if (!json_is_array(shape))
        return st_fail(error, "%s: tensor %.80s has the shape %s: it must be a list of sizes", path,
                       tensor->name, st_json_show(shape).text);
    tensor->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *size = json_array_get(shape, i);
        int64_t own, *last = &tensor->shape[ST_MAX_RANK - 1];
        if (!read_size(size, i < ST_MAX_RANK ? &tensor->shape[i] : &own))
            return st_fail(error,
                           "%s: tensor %.80s has the size %s in its shape: sizes are whole "
                           "numbers of 0 or more; write the file again",
                           path, tensor->name, st_json_show(size).text);
        if (i >= ST_MAX_RANK && __builtin_mul_overflow(*last, own, last))
            return st_fail(error, "%s: tensor %.80s has a shape that no memory holds", path,
                           tensor->name);
    }
    return true;
}

static bool read_offsets(const char *path, const json_t *entry, st_record *record, st_error *error)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (json_array_size(offsets) != 2 || !read_size(json_array_get(offsets, 0), &record->begin) ||
        !read_size(json_array_get(offsets, 1), &record->end))
        return st_fail(error,
                       "%s: tensor %.80s has the data_offsets %s: they must be two whole numbers "
                       "of 0 or more; write the file again",
                       path, record->tensor.name, st_json_show(offsets).text);
    return true;
}

static bool read_record(const char *path, const json_t *entry, st_record *record, st_error *error)
{
    path = st_path_tail(path);
    if (!json_is_object(entry))
        return st_fail(error,
                       "%s: tensor %.80s is described by %s, not by an object: write the "
                       "file again",
                       path, record->tensor.name, st_json_show(entry).text);
    return read_dtype(path, entry, &record->tensor, error) &&
           read_shape(path, entry, &record->tensor, error) &&
           read_offsets(path, entry, record, error);
}

static bool check_metadata(const char *path, json_t *metadata, st_error *error)
{
    const char *key;
    json_t *value;
    if (!metadata || json_is_null(metadata))
        return true;
    if (!json_is_object(metadata))
        return st_fail(error, "%s: __metadata__ is %s, not an object: write the file again",
                       st_path_tail(path), st_json_show(metadata).text);
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return st_fail(
        error, "%s: %.80s in __metadata__ is %s, not a string: write the file again",
        st_path_tail(path), key, st_json_show(value).text);
    return true;
}

static bool read_records(const char *path, json_t *root, st_record *records, size_t *count,
                         st_error *error)
{
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        st_record *record = &records[*count];
        if (!(record->tensor.name = strdup(name)))
            return out_of_memory(path, error);
        ++*count;
        if (!read_record(path, entry, record, error))
            return false;
    }
    return true;
}

bool st_json_parse_header(const char *path, const char *text, size_t bytes, st_record **out,
                          size_t *out_count, st_error *error)
{
    json_t *root = st_json_load(path, text, bytes, HEADER_DEPTH, error);
    if (!root)
        return false;
    size_t count = 0;
    st_record *records = calloc(json_object_size(root) + 1, sizeof *records);
    bool good = records || out_of_memory(path, error);
    good = good && check_metadata(path, json_object_get(root, "__metadata__"), error) &&
           read_records(path, root, records, &count, error);
    json_decref(root);
    if (!good) {
        st_json_free_header(records, count);
        return false;
    }
    *out = records;
    *out_count = count;
    return true;
}

/* ---- Writing a header ------------------------------------------------------------------------ */

/* Gives value to object, which keeps it also when this fails. */
static bool add(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

static json_t *describe(const st_tensor *tensor, uint64_t begin)
{
    json_t *entry = json_object(), *shape = json_array();
    bool good = add(entry, "dtype", json_string(st_dtype_name(tensor->dtype)));
    for (int i = 0; i < tensor->rank; i++)
        good = json_array_append_new(shape, json_integer(tensor->shape[i])) == 0 && good;
    good = add(entry, "shape", shape) && good;
    good = add(entry, "data_offsets",
               json_pack("[I, I]", (json_int_t)begin, (json_int_t)(begin + tensor->bytes))) &&
           good;
    if (!good) {
        json_decref(entry);
        entry = NULL;
    }
    return entry;
}

static bool add_metadata(json_t *root, const char *const *metadata)
{
    json_t *map = json_object();
    bool good = true;
    for (; good && metadata[0]; metadata += 2)
        good = add(map, metadata[0], json_string(metadata[1]));
    return add(root, "__metadata__", map) && good;
}

static bool add_tensors(const char *path, json_t *root, const st_tensor *tensors, size_t count,
                        st_error *error)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const char *name = tensors[i].name;
        if (strcmp(name, "__metadata__") == 0 || json_object_get(root, name))
            return st_fail(error, "%s: the tensor name %.80s is taken: choose another",
                           st_path_tail(path), name);
        if (!add(root, name, describe(&tensors[i], at)))
            return st_fail(error,
                           "%s: tensor %.80s cannot be described: its name is not UTF-8, or no "
                           "memory is left",
                           st_path_tail(path), name);
        at += tensors[i].bytes;
    }
    return true;
}

/* The object's text, with spaces at its end so that the data begins at a multiple of eight. */
static char *padded_text(const json_t *root)
{
    char *text = json_dumps(root, JSON_COMPACT);
    if (!text)
        return NULL;
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    char *out = malloc(padded + 1);
    if (out) {
        memset(out, ' ', padded);
        memcpy(out, text, length);
        out[padded] = '\0';
    }
    free(text);
    return out;
}

bool st_json_write_header(const char *path, const st_tensor *tensors, size_t count,
                          const char *const *metadata, char **out, st_error *error)
{
    json_t *root = json_object();
    bool good = add_tensors(path, root, tensors, count, error);
    if (good && metadata && !add_metadata(root, metadata))
        good = st_fail(error, "%s: the metadata is not UTF-8, or no memory is left",
                       st_path_tail(path));
    char *text = good ? padded_text(root) : NULL;
    json_decref(root);
    if (good && !text)
        good = st_fail(error, "%s: no memory is left for its header", st_path_tail(path));
    if (good)
        *out = text;
    return good;
}

/* ---- An index -------------------------------------------------------------------------------- */

/* Whether the file lies below the index's directory: no way up, no way from the root. */
static bool stays_below(const char *file)
{
    if (*file == '\0' || *file == '/')
        return false;
    for (const char *part = file; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
            return false;
    }
    return true;
}

static bool read_place(const char *path, const char *tensor, const json_t *value, st_place *place,
                       st_error *error)
{
    const char *file = json_string_value(value);
    if (!file || !stays_below(file))
        return st_fail(error,
                       "%s: says that tensor %.80s is in %s: it must name a file in the index's "
                       "own directory or below",
                       st_path_tail(path), tensor, st_json_show(value).text);
    place->tensor = strdup(tensor);
    place->file = strdup(file);
    return (place->tensor && place->file) || out_of_memory(path, error);
}

bool st_json_parse_index(const char *path, const char *text, size_t bytes, st_place **out,
                         size_t *out_count, st_error *error)
{
    json_t *root = st_json_load(path, text, bytes, INDEX_DEPTH, error);
    if (!root)
        return false;
    json_t *map = json_object_get(root, "weight_map"), *value;
    size_t total = json_object_size(map), count = 0;
    st_place *places = calloc(total + 1, sizeof *places);
    bool good = places || out_of_memory(path, error);
    if (good && !json_is_object(map))
        good = st_fail(error,
                       "%s: has no weight_map object: name a safetensors file or its "
                       "model.safetensors.index.json",
                       st_path_tail(path));
    const char *tensor;
    json_object_foreach(map, tensor, value)
    {
        if (!good)
            break;
        good = read_place(path, tensor, value, &places[count++], error);
    }
    json_decref(root);
    if (!good) {
        st_json_free_index(places, places ? total : 0);
        return false;
    }
    *out = places;
    *out_count = count;
    return true;
}

#else /* no jansson */

bool st_has_json(void)
{
    return false;
}

static bool missing(const char *path, st_error *error)
{
    return st_fail(error,
                   "%s: this build cannot read or write safetensors: install libjansson-dev and "
                   "build again",
                   st_path_tail(path));
}

bool st_json_parse_header(const char *path, const char *text, size_t bytes, st_record **records,
                          size_t *count, st_error *error)
{
    (void)text, (void)bytes, (void)records, (void)count;
    return missing(path, error);
}

bool st_json_write_header(const char *path, const st_tensor *tensors, size_t count,
                          const char *const *metadata, char **text, st_error *error)
{
    (void)tensors, (void)count, (void)metadata, (void)text;
    return missing(path, error);
}

bool st_json_parse_index(const char *path, const char *text, size_t bytes, st_place **places,
                         size_t *count, st_error *error)
{
    (void)text, (void)bytes, (void)places, (void)count;
    return missing(path, error);
}

#endif
