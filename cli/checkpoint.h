/* checkpoint.h - files of a checkpoint: safetensors, read and written, and the config.json beside.
 *
 * A safetensors file has named tensors behind a JSON header:
 *
 *     +---------+----------------------------------+----------------------------------+
 *     | 8 bytes | header: JSON, spaces at its end  | data: every tensor, no holes     |
 *     | length  | {"name": {"dtype", "shape",      | begin and end count from here    |
 *     | of it   |           "data_offsets"}, ...}  |                                  |
 *     +---------+----------------------------------+----------------------------------+
 *
 * A file is mapped, never read whole: opening touches the header's pages, using a tensor touches
 * that tensor's.  Numbers are little-endian, rows lie one after the other, and a tensor may start
 * at any byte: read it with memcpy or through matrix.h. */
#ifndef CLI_CHECKPOINT_H
#define CLI_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "imbrex.h"
#include "matrix.h"

#define ST_MAX_RANK   8
#define ST_MUST_CHECK __attribute__((warn_unused_result))

/* Why a call failed, in a sentence that names the file, the tensor and the number, and says what to
 * do.  Set whenever a function that takes one returns false. */
typedef struct st_error {
    char text[512];
} st_error;

/* Writes the sentence, with control characters made harmless, and returns false. */
bool st_fail(st_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether the text is a pointer that git-lfs left in a file's place: how to get the file itself. */
bool st_is_pointer(const char *text, size_t bytes);

/* The end of a path that is too long for a sentence. */
const char *st_path_tail(const char *path);

/* The dtypes of the format and the bits of an element.  The first three are those of imbrex, in its
 * order. */
#define ST_DTYPE_TABLE(ROW) \
    ROW(BF16, 16)           \
    ROW(F16, 16)            \
    ROW(F32, 32)            \
    ROW(F64, 64)            \
    ROW(C64, 64)            \
    ROW(I64, 64)            \
    ROW(U64, 64)            \
    ROW(I32, 32)            \
    ROW(U32, 32)            \
    ROW(I16, 16)            \
    ROW(U16, 16)            \
    ROW(I8, 8)              \
    ROW(U8, 8)              \
    ROW(BOOL, 8)            \
    ROW(F8_E4M3, 8)         \
    ROW(F8_E5M2, 8)         \
    ROW(F8_E8M0, 8)         \
    ROW(F8_E4M3FNUZ, 8)     \
    ROW(F8_E5M2FNUZ, 8)     \
    ROW(F6_E2M3, 6)         \
    ROW(F6_E3M2, 6)         \
    ROW(F4, 4)

typedef enum st_dtype {
#define ST_DTYPE_NAME(name, bits) ST_##name,
    ST_DTYPE_TABLE(ST_DTYPE_NAME)
#undef ST_DTYPE_NAME
        ST_DTYPE_COUNT
} st_dtype;

/* Of those up to ST_F32, which are the three of imbrex. */
static inline imbrex_dtype st_dtype_imbrex(st_dtype dtype)
{
    _Static_assert(ST_BF16 == 0 && ST_F16 == 1 && ST_F32 == 2 &&
                       (int)IMBREX_F16 == (int)IMBREX_BF16 + 1 &&
                       (int)IMBREX_F32 == (int)IMBREX_BF16 + 2,
                   "the first three dtypes are imbrex's, in its order");
    return (imbrex_dtype)((int)IMBREX_BF16 + (int)dtype);
}

static inline st_dtype st_dtype_of(imbrex_dtype dtype)
{
    return (st_dtype)((int)dtype - (int)IMBREX_BF16);
}

const char *st_dtype_name(st_dtype dtype); /* "BF16" */

/* Bytes of a tensor: false if the product overflows or is not a whole number of bytes. */
bool st_dtype_bytes(st_dtype dtype, int rank, const int64_t *shape, size_t *bytes) ST_MUST_CHECK;

typedef struct st_tensor {
    const char *name;
    st_dtype dtype;
    int rank;                   /* dimensions; 0: a scalar */
    int64_t shape[ST_MAX_RANK]; /* of more dimensions, the last is the product of all that follow */
    const void *data;           /* any alignment */
    size_t bytes;               /* st_write computes it from dtype and shape */
} st_tensor;

/* Whether this build reads and writes JSON, and so safetensors; if not, st_open and st_write fail
 * and say what to install. */
bool st_has_json(void);

typedef struct st_file st_file;

/* Maps the file and checks all of its header: every tensor inside the file, as large as its shape
 * says, none over another, no byte unused. */
bool st_open(const char *path, st_file **file, st_error *error) ST_MUST_CHECK;
void st_close(st_file *file); /* takes NULL; tensors and matrices of the file go with it */

const char *st_path(const st_file *file);
size_t st_count(const st_file *file);
const st_tensor *st_at(const st_file *file, size_t index);       /* in order of name */
const st_tensor *st_find(const st_file *file, const char *name); /* NULL: no such tensor */

/* A tensor as a matrix: it must have two dimensions and a dtype of imbrex. */
bool st_matrix(const st_file *file, const st_tensor *tensor, matrix *out,
               st_error *error) ST_MUST_CHECK;

/* The same of one dimension, as a matrix of one row. */
bool st_vector(const st_file *file, const st_tensor *tensor, matrix *out,
               st_error *error) ST_MUST_CHECK;

/* Writes a file all at once: what stood at path is replaced only when the new one is complete.  The
 * tensors lie in the order given.  metadata: keys and values in turns, then NULL; or NULL. */
bool st_write(const char *path, const st_tensor *tensors, size_t count, const char *const *metadata,
              st_error *error) ST_MUST_CHECK;

/* ---- json.c: the JSON of all these files ----------------------------------------------------- */

/* All use of the JSON library is behind these functions.  A build without it has them too, but for
 * st_json_load and st_json_show, and they say what to install. */

struct json_t; /* jansson's */

/* A tensor as the header describes it: well-formed, its numbers not yet compared with each other or
 * with the file. */
typedef struct st_record {
    st_tensor tensor;   /* data and bytes not set; name is the record's own */
    int64_t begin, end; /* 0 or more, counted from the end of the header */
} st_record;

bool st_json_parse_header(const char *path, const char *text, size_t bytes, st_record **records,
                          size_t *count, st_error *error) ST_MUST_CHECK;
void st_json_free_header(st_record *records, size_t count);

/* The header's text for tensors that lie one after the other, bytes set; free with free(). */
bool st_json_write_header(const char *path, const st_tensor *tensors, size_t count,
                          const char *const *metadata, char **text, st_error *error) ST_MUST_CHECK;

/* One line of an index: this tensor is in that file, a path below the index's directory. */
typedef struct st_place {
    char *tensor, *file;
} st_place;

bool st_json_parse_index(const char *path, const char *text, size_t bytes, st_place **places,
                         size_t *count, st_error *error) ST_MUST_CHECK;
void st_json_free_index(st_place *places, size_t count);

/* The text as an object, to be released with json_decref; NULL with the error set.  depth: how deep
 * it may nest. */
struct json_t *st_json_load(const char *path, const char *text, size_t bytes, int depth,
                            st_error *error);

/* A value for an error message, cut to fit. */
typedef struct st_json_shown {
    char text[49];
} st_json_shown;

st_json_shown st_json_show(const struct json_t *value);

/* ---- checkpoint.c: tensors by name in one safetensors file or many --------------------------- */

/* A checkpoint is named by one of
 *     x.safetensors                     one file
 *     model.safetensors.index.json      an index: which tensor is in which file beside it
 *     a directory                       with model.safetensors, or else that index, or else exactly
 *                                       one *.safetensors.index.json, or else one *.safetensors
 * Of many files only those are opened whose tensors are asked for. */
typedef struct checkpoint checkpoint;

bool checkpoint_open(const char *path, checkpoint **out, st_error *error) ST_MUST_CHECK;
void checkpoint_close(checkpoint *from); /* takes NULL; what was found in it goes with it */

/* Whether a file written to path would take the place of the checkpoint's file, of its index (as a
 * model.safetensors beside it would), of its config.json, or of a file that the index names, opened
 * or not.  False if from is NULL. */
bool checkpoint_has_file(const checkpoint *from, const char *path);

const char *checkpoint_path(const checkpoint *from); /* of the file or the index */

/* The config.json beside that, or else beside what a link there points to: its path and its text,
 * both to be freed, also on failure; no text: there is none. */
bool checkpoint_config(const checkpoint *from, char **path, char **text, size_t *bytes,
                       st_error *error) ST_MUST_CHECK;

/* The names of its tensors. */
size_t checkpoint_count(const checkpoint *from);
const char *checkpoint_name(const checkpoint *from, size_t index);
bool checkpoint_has(const checkpoint *from, const char *name);

/* The file that a tensor is in, as the index names it. */
const char *checkpoint_holder(const checkpoint *from, const char *name);

/* Says that the name is not there and what is, and returns false. */
bool checkpoint_fail_missing(const checkpoint *from, const char *name, st_error *error);

/* The tensor, of any dtype and shape; goes with the checkpoint. */
bool checkpoint_tensor(checkpoint *from, const char *name, const st_tensor **out,
                       st_error *error) ST_MUST_CHECK;

/* The tensor as a matrix that points into its file; a vector is one of one row. */
bool checkpoint_matrix(checkpoint *from, const char *name, matrix *out,
                       st_error *error) ST_MUST_CHECK;
bool checkpoint_vector(checkpoint *from, const char *name, matrix *out,
                       st_error *error) ST_MUST_CHECK;

/* False if one of the files that are open has a name with this prefix that the index does not have:
 * others read it. */
bool checkpoint_all_listed(const checkpoint *from, const char *prefix,
                           st_error *error) ST_MUST_CHECK;

/* What stands before "layers.N." in the names that are looked for. */
enum { CHECKPOINT_MODELS = 4 };
extern const char *const checkpoint_models[CHECKPOINT_MODELS];

/* Where tensors of a layer are: "<model>layers.N.<part>" is before the rest of their names. */
typedef struct checkpoint_layer {
    const char *model, *part;
} checkpoint_layer;

/* Of parts[count], behind `model` or, if that is NULL, each of checkpoint_models: the first two
 * that have layer N.  Returns how many they are. */
int checkpoint_find_layer(const checkpoint *from, const char *model, const char *const *parts,
                          int count, int layer, checkpoint_layer found[2]);

/* The first and the last layer there; -1: there is none. */
void checkpoint_find_layers(const checkpoint *from, const char *model, const char *const *parts,
                            int count, int *first, int *last);

/* Whether the name of a tensor says that a layer is quantised. */
bool checkpoint_is_quantised(const char *name);

/* ---- model_config.c: config.json: its texts, its numbers, its values ------------------------- */

typedef struct model_config model_config;

/* *out is NULL where there is no config.json. */
bool model_config_open(const checkpoint *from, model_config **out, st_error *error) ST_MUST_CHECK;
void model_config_close(model_config *config); /* takes NULL */

const char *model_config_path(const model_config *config);

/* What the config calls the language model's own part, "text_config", or "" where it has none. */
const char *model_config_own(const model_config *config);

/* A string in the object `section` ("": the whole; "text_config.rope_scaling"), or NULL; goes with
 * the config. */
const char *model_config_text(const model_config *config, const char *section, const char *key);

/* A number in that object; otherwise: where there is none. */
double model_config_number(const model_config *config, const char *section, const char *key,
                           double otherwise);

/* Whether that is true. */
bool model_config_is_true(const model_config *config, const char *section, const char *key);

/* The language model's own part (0), or NULL, and the whole (1). */
enum { MODEL_CONFIG_PARTS = 2 };
const struct json_t *model_config_part(const model_config *config, int part);

/* The value of a key there; NULL where it is not there or null. */
const struct json_t *model_config_value_in(const model_config *config, int part, const char *key);

/* The language model's own, or else that of the whole. */
const struct json_t *model_config_value(const model_config *config, const char *key);

/* That value as a number of 0 or more; otherwise: where there is none. */
bool model_config_real(const model_config *config, const char *key, double otherwise, double *out,
                       st_error *error) ST_MUST_CHECK;

#endif /* CLI_CHECKPOINT_H */
