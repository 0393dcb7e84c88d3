/* checkpoint.c - opens the files of a checkpoint when their tensors are asked for. */
#define _GNU_SOURCE
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "output.h"

enum { MAX_JSON_BYTES = 100000000, NAME_BYTES = 96 };

static const char whole_name[] = "model.safetensors"; /* goes before an index */
static const char index_name[] = "model.safetensors.index.json";
static const char index_ending[] = ".safetensors.index.json", plain_ending[] = ".safetensors";
static const char config_name[] = "config.json";

/* A file of the checkpoint that is open. */
typedef struct shard_file {
    const char *name; /* as in the index; NULL: the only one */
    st_file *file;
} shard_file;

struct checkpoint {
    char *path;       /* of the file or the index */
    st_place *places; /* the index; NULL: one file */
    size_t place_count;
    shard_file *shards;
    size_t shard_count;
};

/* ---- Which file ------------------------------------------------------------------------------ */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool out_of_memory(const char *path, st_error *error)
{
    return st_fail(error, "%s: no memory is left to open it", st_path_tail(path));
}

/* directory/name to *joined, to be freed. */
static bool join(const char *directory, size_t length, const char *name, char **joined,
                 st_error *error)
{
    while (length > 1 && directory[length - 1] == '/')
        length--;
    if (asprintf(joined, "%.*s/%s", (int)length, directory, name) >= 0)
        return true;
    *joined = NULL;
    return out_of_memory(directory, error);
}

/* A name with a dot in front is none of the checkpoint's: macOS leaves ._x.safetensors beside
 * x.safetensors.  Nor is a directory; a link to nowhere may be a file that is not downloaded. */
static bool may_be_ours(DIR *listing, const char *name, const char *ending)
{
    struct stat info;
    return name[0] != '.' && ends_with(name, ending) &&
           (fstatat(dirfd(listing), name, &info, 0) != 0 || !S_ISDIR(info.st_mode));
}

/* The directory's only file of this ending, or NULL if it has none. */
static bool only_file(const char *directory, const char *ending, char **found, st_error *error)
{
    DIR *listing = opendir(directory);
    int count = 0;
    bool good = true;
    if (!listing)
        return st_fail(error, "%s: cannot be listed: %s", st_path_tail(directory), strerror(errno));
    for (struct dirent *entry; good && (entry = readdir(listing));)
        if (may_be_ours(listing, entry->d_name, ending) && count++ == 0)
            good = join(directory, strlen(directory), entry->d_name, found, error);
    closedir(listing);
    if (good && count > 1)
        good = st_fail(error, "%s: holds %d *%s%s: name one file", st_path_tail(directory), count,
                       ending,
                       strcmp(ending, plain_ending) == 0 ? " and no *.safetensors.index.json" : "");
    return good;
}

/* Turns the user's path into that of a file or an index, to be freed also on failure. */
static bool resolve(const char *path, char **file, st_error *error)
{
    const char *const usual[] = { whole_name, index_name };
    struct stat info;
    if (stat(path, &info) != 0)
        return st_fail(error, "%s: cannot be opened: %s", st_path_tail(path), strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return (*file = strdup(path)) || out_of_memory(path, error);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        if (!join(path, strlen(path), usual[i], file, error))
            return false;
        if (stat(*file, &info) == 0)
            return true;
        free(*file);
        *file = NULL;
    }
    if (!only_file(path, index_ending, file, error))
        return false;
    if (!*file && !only_file(path, plain_ending, file, error))
        return false;
    return *file || st_fail(error, "%s: holds no *.safetensors: name another directory or a file",
                            st_path_tail(path));
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* All of a file of JSON, to be freed; `what` it should be. */
static bool read_text(const char *path, const char *what, char **text, size_t *bytes,
                      st_error *error)
{
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return st_fail(error, "%s: is not a regular file: want %s", st_path_tail(path), what);
    FILE *file = fopen(path, "re");
    if (!file)
        return st_fail(error, "%s: cannot be opened: %s", st_path_tail(path), strerror(errno));
    bool good = fstat(fileno(file), &info) == 0 && info.st_size <= MAX_JSON_BYTES;
    if (!good)
        st_fail(error, "%s: holds %lld bytes, %s at most %d: is it one?", st_path_tail(path),
                (long long)info.st_size, what, MAX_JSON_BYTES);
    if (good && !(*text = malloc((size_t)info.st_size + 1)))
        good = out_of_memory(path, error);
    if (good)
        *bytes = fread(*text, 1, (size_t)info.st_size, file);
    if (good && ferror(file))
        good = st_fail(error, "%s: cannot be read", st_path_tail(path));
    if (good && st_is_pointer(*text, *bytes))
        good = st_fail(error, "%s: is only git-lfs's pointer to the file: run git lfs pull",
                       st_path_tail(path));
    fclose(file);
    return good;
}

/* The path of a file of the checkpoint to *path, to be freed. */
static bool locate(const checkpoint *from, const char *name, char **path, st_error *error)
{
    const char *slash = strrchr(from->path, '/');
    if (!name)
        return (*path = strdup(from->path)) || out_of_memory(from->path, error);
    if (slash)
        return join(from->path, (size_t)(slash - from->path), name, path, error);
    return join(".", 1, name, path, error);
}

/* Opens a file of the checkpoint, or finds it open. */
static bool open_shard(checkpoint *from, const char *name, st_file **out, st_error *error)
{
    for (size_t i = 0; i < from->shard_count; i++) {
        if (!name || strcmp(from->shards[i].name, name) == 0) {
            *out = from->shards[i].file;
            return true;
        }
    }
    size_t room = (from->shard_count + 1) * sizeof *from->shards;
    shard_file *shards = realloc(from->shards, room);
    if (!shards)
        return out_of_memory(from->path, error);
    from->shards = shards;
    char *path = NULL;
    bool good = locate(from, name, &path, error) && st_open(path, out, error);
    free(path);
    if (good)
        shards[from->shard_count++] = (shard_file){ .name = name, .file = *out };
    return good;
}

static bool open_index(checkpoint *from, st_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    bool good =
        read_text(from->path, "an index", &text, &bytes, error) &&
        st_json_parse_index(from->path, text, bytes, &from->places, &from->place_count, error);
    free(text);
    return good;
}

bool checkpoint_open(const char *path, checkpoint **out, st_error *error)
{
    st_file *only;
    checkpoint *from = calloc(1, sizeof *from);
    if (!from)
        return out_of_memory(path, error);
    bool good = resolve(path, &from->path, error);
    if (good)
        good = ends_with(from->path, ".json") ? open_index(from, error)
                                              : open_shard(from, NULL, &only, error);
    if (!good) {
        checkpoint_close(from);
        return false;
    }
    *out = from;
    return true;
}

void checkpoint_close(checkpoint *from)
{
    if (!from)
        return;
    for (size_t i = 0; i < from->shard_count; i++)
        st_close(from->shards[i].file);
    free(from->shards);
    st_json_free_index(from->places, from->place_count);
    free(from->path);
    free(from);
}

static bool is_file(const checkpoint *from, const char *name, const char *path)
{
    char *file = NULL;
    st_error error;
    bool same = locate(from, name, &file, &error) && output_same(file, path);
    free(file);
    return same;
}

bool checkpoint_config(const checkpoint *from, char **path, char **text, size_t *bytes,
                       st_error *error)
{
    struct stat info;
    *path = *text = NULL;
    if (!locate(from, config_name, path, error))
        return false;
    char *real = realpath(from->path, NULL), *slash = real ? strrchr(real, '/') : NULL;
    if (lstat(*path, &info) != 0 && errno == ENOENT && slash) {
        free(*path);
        bool good = join(real, (size_t)(slash - real), config_name, path, error);
        if (!good || lstat(*path, &info) != 0) {
            free(real);
            return good;
        }
    }
    free(real);
    return read_text(*path, "a model's config", text, bytes, error);
}

bool checkpoint_has_file(const checkpoint *from, const char *path)
{
    if (!from)
        return false;
    bool found = is_file(from, NULL, path) || is_file(from, config_name, path) ||
                 (from->places && is_file(from, whole_name, path));
    for (size_t i = 0; i < from->place_count && !found; i++)
        if (i == 0 || strcmp(from->places[i].file, from->places[i - 1].file) != 0)
            found = is_file(from, from->places[i].file, path);
    return found;
}

/* ---- Finding --------------------------------------------------------------------------------- */

size_t checkpoint_count(const checkpoint *from)
{
    return from->places ? from->place_count : st_count(from->shards[0].file);
}

const char *checkpoint_name(const checkpoint *from, size_t index)
{
    return from->places ? from->places[index].tensor : st_at(from->shards[0].file, index)->name;
}

/* What there is instead of a missing tensor: a few names, those of other MLPs first. */
bool checkpoint_fail_missing(const checkpoint *from, const char *name, st_error *error)
{
    char list[4 * NAME_BYTES] = "";
    size_t length = 0, listed = 0, count = checkpoint_count(from);
    for (int mlp = 1; mlp >= 0; mlp--) {
        for (size_t i = 0; i < count && listed < 3; i++) {
            const char *other = checkpoint_name(from, i);
            if ((strstr(other, ".mlp.") != NULL) != mlp)
                continue;
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%.70s",
                                       listed++ ? ", " : "", other);
        }
    }
    const char *path = st_path_tail(from->path);
    if (count == 0)
        return st_fail(error, "%s: has no tensor %.80s: it has none", path, name);
    if (count == 1)
        return st_fail(error, "%s: has no tensor %.80s; its only tensor is %s", path, name, list);
    return st_fail(error, "%s: has no tensor %.80s; its %zu tensors are %s%s", path, name, count,
                   list, listed < count ? ", ..." : "");
}

static const st_place *find_place(const checkpoint *from, const char *name)
{
    for (size_t i = 0; i < from->place_count; i++)
        if (strcmp(from->places[i].tensor, name) == 0)
            return &from->places[i];
    return NULL;
}

const char *checkpoint_holder(const checkpoint *from, const char *name)
{
    const st_place *place = find_place(from, name);
    return place ? place->file : from->path;
}

bool checkpoint_has(const checkpoint *from, const char *name)
{
    return from->places ? find_place(from, name) != NULL
                        : st_find(from->shards[0].file, name) != NULL;
}

/* The tensor, where it should be. */
static bool find_tensor(checkpoint *from, const char *name, st_file **file, const st_tensor **out,
                        st_error *error)
{
    if (!checkpoint_has(from, name))
        return checkpoint_fail_missing(from, name, error);
    if (!open_shard(from, from->places ? find_place(from, name)->file : NULL, file, error))
        return false;
    *out = st_find(*file, name);
    return *out ||
           st_fail(error,
                   "%s: has no tensor %.80s, though the index %s says so: download both again",
                   st_path_tail(st_path(*file)), name, st_path_tail(from->path));
}

bool checkpoint_tensor(checkpoint *from, const char *name, const st_tensor **out, st_error *error)
{
    st_file *file;
    return find_tensor(from, name, &file, out, error);
}

bool checkpoint_matrix(checkpoint *from, const char *name, matrix *out, st_error *error)
{
    st_file *file;
    const st_tensor *tensor;
    return find_tensor(from, name, &file, &tensor, error) && st_matrix(file, tensor, out, error);
}

bool checkpoint_vector(checkpoint *from, const char *name, matrix *out, st_error *error)
{
    st_file *file;
    const st_tensor *tensor;
    return find_tensor(from, name, &file, &tensor, error) && st_vector(file, tensor, out, error);
}

const char *checkpoint_path(const checkpoint *from)
{
    return from->path;
}

bool checkpoint_all_listed(const checkpoint *from, const char *prefix, st_error *error)
{
    for (size_t i = 0; from->places && i < from->shard_count; i++) {
        const st_file *file = from->shards[i].file;
        for (size_t k = 0; k < st_count(file); k++) {
            const char *name = st_at(file, k)->name;
            if (strncmp(name, prefix, strlen(prefix)) == 0 && !checkpoint_has(from, name))
                return st_fail(error,
                               "%s: does not name the tensor %.120s, which is in a file that it "
                               "names: download both again",
                               st_path_tail(from->path), name);
        }
    }
    return true;
}

/* ---- Layers, by the names of their tensors --------------------------------------------------- */

const char *const checkpoint_models[CHECKPOINT_MODELS] = { "model.", "", "language_model.model.",
                                                           "model.language_model." };

/* N in "<model>layers.N.<part><anything>", else -1. */
static int layer_of(const char *name, const char *model, const char *part)
{
    int layer, end = 0;
    size_t length = strlen(model);
    if (strncmp(name, model, length) != 0 ||
        sscanf(name + length, "layers.%9d.%n", &layer, &end) != 1 || !end ||
        strncmp(name + length + end, part, strlen(part)) != 0)
        return -1;
    return layer;
}

static bool has_layer(const checkpoint *from, const char *model, const char *part, int layer)
{
    for (size_t i = 0; i < checkpoint_count(from); i++)
        if (layer_of(checkpoint_name(from, i), model, part) == layer)
            return true;
    return false;
}

int checkpoint_find_layer(const checkpoint *from, const char *model, const char *const *parts,
                          int count, int layer, checkpoint_layer found[2])
{
    const char *const *list = model ? &model : checkpoint_models;
    int models = model ? 1 : CHECKPOINT_MODELS, have = 0;
    for (int i = 0; i < models * count && layer >= 0 && have < 2; i++) {
        const checkpoint_layer at = { list[i / count], parts[i % count] };
        if (has_layer(from, at.model, at.part, layer))
            found[have++] = at;
    }
    return have;
}

void checkpoint_find_layers(const checkpoint *from, const char *model, const char *const *parts,
                            int count, int *first, int *last)
{
    const char *const *list = model ? &model : checkpoint_models;
    int models = model ? 1 : CHECKPOINT_MODELS;
    *first = *last = -1;
    for (size_t i = 0; i < checkpoint_count(from); i++) {
        for (int k = 0; k < models * count; k++) {
            int other = layer_of(checkpoint_name(from, i), list[k / count], parts[k % count]);
            if (other >= 0 && (*first < 0 || other < *first))
                *first = other;
            if (other > *last)
                *last = other;
        }
    }
}

bool checkpoint_is_quantised(const char *name)
{
    static const char *const words[] = { "qweight", "qzeros",       "g_idx",  "scale", "zero_point",
                                         "packed",  "weight_shape", "absmax", "quant", ".SCB" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i]))
            return true;
    return false;
}
