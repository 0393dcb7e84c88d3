/* test_safetensors.c - safetensors files: what is written is read, and what is wrong is refused. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "checkpoint.h"
#include "scratch.h"

static st_error error;

/* Opens the file; on failure the error must say this. */
static void refuse(const char *name, const char *says)
{
    st_file *file = NULL;
    error = (st_error){ "" };
    if (st_open(scratch_path(name), &file, &error)) {
        st_close(file);
        fail_msg("opened, but should say: %s", says);
    }
    assert_null(file);
    if (!strstr(error.text, says))
        fail_msg("says \"%s\", not \"%s\"", error.text, says);
}

static st_file *accept_file(const char *name)
{
    st_file *file;
    if (!st_open(scratch_path(name), &file, &error))
        fail_msg("%s", error.text);
    return file;
}

static void write_tensors(const char *name, const st_tensor *tensors, size_t count)
{
    if (!st_write(scratch_path(name), tensors, count, NULL, &error))
        fail_msg("%s", error.text);
}

/* ---- Round trip ------------------------------------------------------------------------------ */

static unsigned char bytes[4096];

static void test_round_trip(void **state)
{
    (void)state;
    static const char *const names[] = { "plain",
                                         "model.layers.0.mlp.gate_proj.weight",
                                         "",
                                         " spaced \"quoted\" \\ / ",
                                         "\xc3\xbc\xe2\x82\xac\xf0\x9f\x8f\xba",
                                         "line\nbreak\x1b[31m" };
    enum { NAMES = sizeof names / sizeof *names, COUNT = ST_DTYPE_COUNT + NAMES };
    static const char *const metadata[] = { "format", "pt", "\xc3\xbc", "\"\n", NULL };
    char dtype_names[ST_DTYPE_COUNT][32];
    st_tensor tensors[COUNT] = { 0 };
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 37 + i / 256);
    for (int i = 0; i < ST_DTYPE_COUNT; i++) {
        snprintf(dtype_names[i], sizeof dtype_names[i], "dtype %s", st_dtype_name((st_dtype)i));
        tensors[i] = (st_tensor){ .name = dtype_names[i],
                                  .dtype = (st_dtype)i,
                                  .rank = 3,
                                  .shape = { 2, i + 1, 4 },
                                  .data = bytes + i };
    }
    for (int i = 0; i < NAMES; i++)
        tensors[ST_DTYPE_COUNT + i] = (st_tensor){ .name = names[i],
                                                   .dtype = ST_U8,
                                                   .rank = i,
                                                   .shape = { i == 3 ? 0 : 1, 1, 1, 1, 1 },
                                                   .data = bytes + 100 + i };
    assert_true(st_write(scratch_path("all"), tensors, COUNT, metadata, &error));

    size_t length;
    unsigned char *raw = scratch_read("all", &length);
    assert_int_equal((raw[0] | raw[1] << 8) % 8, 0);
    free(raw);

    st_file *file = accept_file("all");
    assert_string_equal(st_path(file), scratch_path("all"));
    assert_int_equal(st_count(file), COUNT);
    for (size_t i = 1; i < COUNT; i++)
        assert_true(strcmp(st_at(file, i - 1)->name, st_at(file, i)->name) < 0);
    for (int i = 0; i < COUNT; i++) {
        const st_tensor *found = st_find(file, tensors[i].name);
        size_t expected;
        assert_non_null(found);
        assert_string_equal(found->name, tensors[i].name);
        assert_int_equal(found->dtype, tensors[i].dtype);
        assert_int_equal(found->rank, tensors[i].rank);
        assert_memory_equal(found->shape, tensors[i].shape,
                            sizeof found->shape[0] * (size_t)found->rank);
        assert_true(st_dtype_bytes(found->dtype, found->rank, found->shape, &expected));
        assert_int_equal(found->bytes, expected);
        assert_memory_equal(found->data, tensors[i].data, expected);
    }
    assert_null(st_find(file, "plai"));
    assert_null(st_find(file, "__metadata__"));
    st_close(file);
}

static void test_empty(void **state)
{
    (void)state;
    write_tensors("none", NULL, 0);
    st_file *file = accept_file("none");
    assert_int_equal(st_count(file), 0);
    assert_null(st_find(file, "x"));
    st_close(file);
    st_close(NULL);

    scratch_write_tensors("spaces",
                          "{\"__metadata__\":{\"a\":\"b\"}, \"x\" :{\"shape\":[2],"
                          "\"more\":[1],\"data_offsets\":[0,2],\"dtype\":\"U8\"}} \n  ",
                          2);
    file = accept_file("spaces");
    assert_int_equal(st_count(file), 1);
    assert_memory_equal(st_find(file, "x")->data, "\0\1", 2);
    st_close(file);
}

static void test_matrix(void **state)
{
    (void)state;
    const st_tensor tensors[] = {
        { .name = "f64", .dtype = ST_F64, .rank = 2, .shape = { 1, 2 }, .data = bytes },
        { .name = "cube", .dtype = ST_F32, .rank = 3, .shape = { 1, 1, 2 }, .data = bytes },
        { .name = "good", .dtype = ST_F16, .rank = 2, .shape = { 2, 3 }, .data = bytes },
    };
    matrix out;
    write_tensors("m", tensors, 3);
    st_file *file = accept_file("m");
    assert_false(st_matrix(file, st_find(file, "f64"), &out, &error));
    assert_non_null(strstr(error.text, "tensor f64 is F64, an unsupported dtype"));
    assert_false(st_matrix(file, st_find(file, "cube"), &out, &error));
    assert_non_null(strstr(error.text, "tensor cube has 3 dimensions"));
    assert_true(st_matrix(file, st_find(file, "good"), &out, &error));
    assert_int_equal(out.rows, 2);
    assert_int_equal(out.cols, 3);
    assert_int_equal(out.dtype, IMBREX_F16);
    assert_memory_equal(out.data, bytes, 12);
    assert_false(st_vector(file, st_find(file, "good"), &out, &error));
    assert_non_null(strstr(error.text, "tensor good has 2 dimensions, a vector has 1"));
    st_close(file);
}

/* ---- Refused --------------------------------------------------------------------------------- */

#define U8(shape, begin, end) \
    "{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct {
    const char *header;
    size_t data_bytes;
    const char *says;
} malformed[] = {
    { "", 4, "does not begin with '{'" },
    { " {}", 0, "does not begin with '{'" },
    { "[]", 0, "does not begin with '{'" },
    { "{", 0, "JSON is wrong at byte 1" },
    { "{}}", 0, "JSON is wrong" },
    { "{} x", 0, "JSON is wrong" },
    { "{\"\xff\":1}", 0, "JSON is wrong" },
    { "{\"a\\u0000b\":" U8("[1]", 0, 1) "}", 1, "JSON is wrong" },
    { "{\"a\\ud800\":" U8("[1]", 0, 1) "}", 1, "JSON is wrong" },
    { "{\"a\":" U8("[NaN]", 0, 1) "}", 1, "holds NaN at byte 31, which JSON" },
    { "{\"a\":" U8("[Infinity]", 0, 1) "}", 1, "holds Infinity at byte 36, " },
    { "{\"a\":" U8("[01]", 0, 1) "}", 1, "JSON is wrong" },
    { "{\"a\":" U8("[99999999999999999999]", 0, 1) "}", 1,
      "at byte 48 that 64 bits do not: too big integer near '99999999999999999999'" },
    { "{\"a\":" U8("[1e999]", 0, 1) "}", 1, "64 bits do not: real number overflow near" },
    { "{\"a\":" U8("[1]", 0, 1) ",\"a\":" U8("[1]", 1, 2) "}", 2, "duplicate object key" },
    { "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
      "duplicate object key" },
    { "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "duplicate object key" },
    { "{\"__metadata__\":[]}", 0, "__metadata__ is [], not an object" },
    { "{\"__metadata__\":{\"k\":1}}", 0, "k in __metadata__ is 1, not a string" },
    { "{\"a\":7}", 0, "tensor a is described by 7" },
    { "{\"a\":{}}", 0, "tensor a has the dtype nothing" },
    { "{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "has the dtype 7" },
    { "{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "the dtype \"f32\"" },
    { "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4, "tensor a has the shape nothing" },
    { "{\"a\":" U8("{}", 0, 1) "}", 1, "has the shape {}" },
    { "{\"a\":" U8("[1,1,1,1,1,1,1,1,1,2]", 0, 1) "}", 1, "needs 2 bytes" },
    { "{\"a\":" U8("[1,1,1,1,1,1,1,1,-1]", 0, 1) "}", 1, "tensor a has the size -1" },
    { "{\"a\":" U8("[1,1,1,1,1,1,1,4294967296,4294967296]", 0, 0) "}", 0, "no memory holds" },
    { "{\"a\":" U8("[-1]", 0, 1) "}", 1, "tensor a has the size -1" },
    { "{\"a\":" U8("[1.0]", 0, 1) "}", 1, "has the size 1.0" },
    { "{\"a\":" U8("[\"1\"]", 0, 1) "}", 1, "has the size \"1\"" },
    { "{\"a\":" U8("[null]", 0, 1) "}", 1, "has the size null" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "has the data_offsets nothing" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "data_offsets [0]" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "[0,1,2]" },
    { "{\"a\":" U8("[1]", -1, 0) "}", 1, "data_offsets [-1,0]" },
    { "{\"a\":" U8("[1]", 0, 1.5) "}", 1, "data_offsets [0,1.5]" },
    { "{\"a\":" U8("[1]", 1, 0) "}", 1, "begins at byte 1 and ends before, at 0" },
    { "{\"a\":" U8("[4]", 0, 3) "}", 3, "needs 4 bytes for its shape and U8" },
    { "{\"a\":" U8("[2]", 0, 3) "}", 3, "data_offsets hold 3" },
    { "{\"a\":" U8("[0]", 0, 1) "}", 1, "needs 0 bytes" },
    { "{\"a\":" U8("[4294967296,4294967296]", 0, 0) "}", 0, "no memory holds" },
    { "{\"a\":" U8("[9223372036854775807,3]", 0, 1) "}", 1, "no memory holds" },
    { "{\"a\":" U8("[2305843009213693951,1]", 0, 1) "}", 1, "needs 2305843009213693951 bytes" },
    { "{\"a\":" U8("[9223372036854775807]", 0, 9223372036854775807) "}", 1, "no memory holds" },
    { "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "a part of a byte" },
    { "{\"a\":" U8("[2]", 0, 2) ",\"b\":" U8("[2]", 1, 3) "}", 3, "tensor b begins at byte 1 of" },
    { "{\"b\":" U8("[2]", 0, 2) ",\"a\":" U8("[2]", 0, 2) "}", 2, "begins at byte 0 of" },
    { "{\"a\":" U8("[3]", 0, 3) ",\"b\":" U8("[0]", 1, 1) "}", 3, "tensor b begins at byte 1 of" },
    { "{\"a\":" U8("[1]", 1, 2) "}", 2, "without the hole" },
    { "{\"a\":" U8("[1]", 0, 1) ",\"b\":" U8("[1]", 2, 3) "}", 3, "the one before ends at 1" },
    { "{\"a\":" U8("[0]", 9, 9) "}", 0, "without the hole" },
    { "{\"a\":" U8("[4]", 0, 4) "}", 3, "ends at byte 4 of the data, but the file holds 3" },
    { "{\"a\":" U8("[4]", 0, 4) "}", 5, "the last tensor ends at byte 4" },
    { "{}", 1, "the last tensor ends at byte 0" },
    { "{\"a\":" U8("[[1]]", 0, 1) "}", 1, "has the size [1] in its shape" },
};

static void test_malformed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        scratch_write_tensors("bad", malformed[i].header, malformed[i].data_bytes);
        refuse("bad", malformed[i].says);
        assert_non_null(strstr(error.text, "/bad: "));
    }
}

static void test_not_a_file(void **state)
{
    (void)state;
    refuse("absent", "No such file");
    scratch_directory("directory");
    refuse("directory", "is not a regular file");
    assert_int_equal(mkfifo(scratch_path("fifo"), 0600), 0);
    refuse("fifo", "is not a regular file");
    scratch_write("empty", "", 0);
    refuse("empty", "holds 0 bytes");
    scratch_write("short", "1234567", 7);
    refuse("short", "holds 7 bytes");
    scratch_clear();
}

static void test_length_lies(void **state)
{
    (void)state;
    static const struct {
        uint64_t length;
        const char *says;
    } lies[] = {
        { 0, "does not begin with" },       { 3, "claims a header of 3 bytes, but holds 2" },
        { 100000000, "but holds 2" },       { 100000001, "at most 100000000" },
        { INT64_MAX, "at most 100000000" }, { UINT64_MAX, "18446744073709551615 bytes" },
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        unsigned char file[10] = { 0, 0, 0, 0, 0, 0, 0, 0, '{', '}' };
        for (int k = 0; k < 8; k++)
            file[k] = (unsigned char)(lies[i].length >> 8 * k);
        scratch_write("lie", file, sizeof file);
        refuse("lie", lies[i].says);
    }
}

/* Opening brackets a hundred thousand deep: refused before anything recurses. */
static void test_nesting_bomb(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *header = malloc(DEPTH + 8);
    assert_non_null(header);
    memset(header, '[', DEPTH + 7);
    memcpy(header, "{\"a\":", 5);
    header[DEPTH + 7] = '\0';
    scratch_write_tensors("bomb", header, 0);
    refuse("bomb", "nests deeper than 127");
    for (int i = 0; i + 5 <= DEPTH; i += 5)
        memcpy(header + i, "{\"a\":", 5);
    header[DEPTH] = '\0';
    scratch_write_tensors("bomb", header, 0);
    refuse("bomb", "nests deeper than 127");
    free(header);
}

/* A quote that is escaped ends no name: brackets in that nest nothing, and behind it they do. */
static void test_nesting_behind_a_quote(void **state)
{
    (void)state;
    enum { DEPTH = 1000 };
    char name[DEPTH + 40] = "{\"\\\"";
    memset(name + strlen(name), '[', DEPTH);
    strcat(name, "\":7}");
    scratch_write_tensors("bomb", name, 0);
    refuse("bomb", "is described by 7");
    char header[2 * DEPTH + 40] = "{\"\\\"\":";
    size_t length = strlen(header);
    memset(header + length, '[', DEPTH);
    memset(header + length + DEPTH, ']', DEPTH);
    strcpy(header + length + 2 * (size_t)DEPTH, "}");
    scratch_write_tensors("bomb", header, 0);
    refuse("bomb", "nests deeper than 127");
}

/* What the format's own library reads is read, also where it is of no use here. */
static void test_what_is_beside_does_no_harm(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{\"__metadata__\":null,\"a\":" U8("[1]", 0, 1) "}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"more\":{\"b\":[[{\"c\":1}]]},"
        "\"data_offsets\":[0,1]}}",
        "{\"a\":" U8("[1]", 0, 1) ",\"nine\":" U8("[1,1,1,1,1,1,1,2,3]", 1, 7) "}",
        "{\"a\":" U8("[1]", 0, 1) ",\"none\":" U8("[1,1,1,1,1,1,1,2,0]", 1, 1) "}",
    };
    static const size_t data[] = { 1, 1, 7, 1 };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        matrix out;
        scratch_write_tensors("fine", headers[i], data[i]);
        st_file *file = accept_file("fine");
        assert_int_equal(st_find(file, "a")->bytes, 1);
        if (st_find(file, "nine")) {
            assert_int_equal(st_find(file, "nine")->rank, 9);
            assert_false(st_matrix(file, st_find(file, "nine"), &out, &error));
        }
        st_close(file);
    }
}

static void test_error_is_harmless(void **state)
{
    (void)state;
    scratch_write_tensors("bad", "{\"\\u001b[2J\\n\\u007f\":7}", 0);
    refuse("bad", "tensor ?[2J?? is");
    scratch_write_tensors("bad", "{\"\\u009b31m\\u00a0\":7}", 0);
    refuse("bad", "tensor ?31m\xc2\xa0 is");
    char header[4000] = "{\"";
    memset(header + 2, 'n', 3000);
    strcpy(header + 3002, "\":7}");
    scratch_write_tensors("bad", header, 0);
    refuse("bad", "not by an object: write the file again");
}

/* ---- Damage ---------------------------------------------------------------------------------- */

static unsigned char *valid_file(size_t *length)
{
    const st_tensor tensors[] = {
        { .name = "x", .dtype = ST_F32, .rank = 2, .shape = { 3, 2 }, .data = bytes },
        { .name = "gate\n", .dtype = ST_BF16, .rank = 1, .shape = { 5 }, .data = bytes },
        { .name = "none", .dtype = ST_I64, .rank = 2, .shape = { 4, 0 } },
    };
    const char *const metadata[] = { "format", "pt", NULL };
    assert_true(st_write(scratch_path("valid"), tensors, 3, metadata, &error));
    return scratch_read("valid", length);
}

static void test_truncated_everywhere(void **state)
{
    (void)state;
    size_t length;
    unsigned char *file = valid_file(&length);
    for (size_t cut = 0; cut < length; cut++) {
        scratch_write("cut", file, cut);
        refuse("cut", cut < 8 ? "at least 8" : "cut short");
    }
    file[length] = 0;
    scratch_write("longer", file, length + 1);
    refuse("longer", "the last tensor ends at byte 34");
    free(file);
}

/* Reads every byte that an opened file offers. */
static unsigned touch(const st_file *file)
{
    unsigned sum = 0;
    for (size_t i = 0; i < st_count(file); i++) {
        const st_tensor *tensor = st_at(file, i);
        for (size_t k = 0; k < tensor->bytes; k++)
            sum += ((const unsigned char *)tensor->data)[k];
        assert_ptr_equal(st_find(file, tensor->name), tensor);
    }
    return sum;
}

/* What a damaged file is taken for does not matter; that it is read within its bounds does. */
static void test_random_damage(void **state)
{
    (void)state;
    size_t length, opened = 0, refused = 0;
    unsigned char *file = valid_file(&length), *damaged = malloc(length);
    assert_non_null(damaged);
    uint64_t random = 1;
    for (int round = 0; round < 20000; round++) {
        memcpy(damaged, file, length);
        for (int flips = 1 + round % 3; flips > 0; flips--) {
            random = random * 6364136223846793005 + 1442695040888963407;
            damaged[(random >> 33) % length] = (unsigned char)(random >> 24);
        }
        scratch_write("damaged", damaged, length);
        st_file *opened_file = NULL;
        error.text[0] = '\0';
        if (st_open(scratch_path("damaged"), &opened_file, &error)) {
            bytes[0] ^= touch(opened_file) & 1;
            opened++;
        } else {
            assert_null(opened_file);
            assert_true(strlen(error.text) > 10);
            refused++;
        }
        st_close(opened_file);
    }
    assert_true(opened > 100 && refused > 1000);
    free(damaged);
    free(file);
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void refuse_write(const char *name, const st_tensor *tensors, size_t count,
                         const char *const *metadata, const char *says)
{
    int before = scratch_count();
    error = (st_error){ "" };
    assert_false(st_write(scratch_path(name), tensors, count, metadata, &error));
    if (!strstr(error.text, says))
        fail_msg("says \"%s\", not \"%s\"", error.text, says);
    assert_int_equal(scratch_count(), before);
}

static void test_write_refused(void **state)
{
    (void)state;
    st_tensor good = { .name = "x", .dtype = ST_U8, .rank = 1, .shape = { 4 }, .data = bytes };
    st_tensor twice[] = { good, good }, wrong = good;
    const char *const metadata[] = { "k", "\xff", NULL };
    refuse_write("w", twice, 2, NULL, "name x is taken");
    wrong.name = "__metadata__";
    refuse_write("w", &wrong, 1, NULL, "name __metadata__ is taken");
    wrong.name = "\xc3";
    refuse_write("w", &wrong, 1, NULL, "not UTF-8");
    refuse_write("w", &good, 1, metadata, "metadata is not UTF-8");
    wrong = good;
    wrong.shape[0] = -1;
    refuse_write("w", &wrong, 1, NULL, "shape that cannot be written");
    wrong.rank = ST_MAX_RANK + 1;
    refuse_write("w", &wrong, 1, NULL, "shape that cannot be written");
    refuse_write("no/such/directory", &good, 1, NULL, "No such file");
    scratch_directory("directory");
    refuse_write("directory", &good, 1, NULL, "Is a directory");
    assert_false(st_write("/dev/null", &good, 1, NULL, &error));
    assert_non_null(strstr(error.text, "cannot be written"));
    scratch_clear();
}

/* A disk that fills up, played by a limit: the old file stays, the new one leaves nothing. */
static void test_write_cut_short(void **state)
{
    (void)state;
    st_tensor old = { .name = "old", .dtype = ST_U8, .rank = 1, .shape = { 4 }, .data = bytes };
    st_tensor big = { .name = "big", .dtype = ST_U8, .rank = 1, .shape = { 4000 }, .data = bytes };
    struct rlimit limit, saved;
    write_tensors("w", &old, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
    limit = saved;
    limit.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int before = scratch_count();
    bool written = st_write(scratch_path("w"), &big, 1, NULL, &error);
    int after = scratch_count();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_false(written);
    assert_non_null(strstr(error.text, strerror(EFBIG)));
    assert_int_equal(after, before);
    st_file *file = accept_file("w");
    assert_non_null(st_find(file, "old"));
    st_close(file);
    write_tensors("w", &big, 1);
    file = accept_file("w");
    assert_memory_equal(st_find(file, "big")->data, bytes, 4000);
    st_close(file);
}

/* A reader keeps the old file while the new one takes its name; permissions follow the umask. */
static void test_write_replaces(void **state)
{
    (void)state;
    st_tensor old = { .name = "x", .dtype = ST_U8, .rank = 1, .shape = { 4 }, .data = "aaaa" };
    st_tensor new = { .name = "x", .dtype = ST_U8, .rank = 1, .shape = { 4 }, .data = "bbbb" };
    struct stat info;
    scratch_clear();
    mode_t mask = umask(027);
    write_tensors("w", &old, 1);
    umask(mask);
    assert_int_equal(stat(scratch_path("w"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    st_file *before = accept_file("w");
    write_tensors("w", &new, 1);
    st_file *after = accept_file("w");
    assert_memory_equal(st_find(before, "x")->data, "aaaa", 4);
    assert_memory_equal(st_find(after, "x")->data, "bbbb", 4);
    assert_int_equal(scratch_count(), 1);
    st_close(before);
    st_close(after);
}

/* A build without the JSON library can do one thing: say so. */
static void test_without_json(void **state)
{
    (void)state;
    scratch_write_tensors("x", "{}", 0);
    refuse("x", "install libjansson-dev and build again");
    refuse_write("y", NULL, 0, NULL, "install libjansson-dev and build again");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_length_lies),
        cmocka_unit_test(test_nesting_bomb),
        cmocka_unit_test(test_nesting_behind_a_quote),
        cmocka_unit_test(test_what_is_beside_does_no_harm),
        cmocka_unit_test(test_error_is_harmless),
        cmocka_unit_test(test_truncated_everywhere),
        cmocka_unit_test(test_random_damage),
        cmocka_unit_test(test_write_refused),
        cmocka_unit_test(test_write_cut_short),
        cmocka_unit_test(test_write_replaces),
    };
    const struct CMUnitTest without_json[] = { cmocka_unit_test(test_without_json) };
    if (!st_has_json())
        return cmocka_run_group_tests(without_json, scratch_make, scratch_remove);
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
