/* test_checkpoint.c - an MLP's weights, found in any kind of checkpoint, or the reason why not.
 *
 * With arguments it is a tool for tests/tool/test_safetensors_python.py:
 *     test_checkpoint copy IN OUT                        a file read and written again
 *     test_checkpoint shard CHECKPOINT LAYER R DTYPE OUT gate_up.<r> and down.<r> of all ranks
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mlp/mlp.h"
#include "scratch.h"

static st_error error;

/* ---- Checkpoints ----------------------------------------------------------------------------- */

enum { HIDDEN = 4, FFN = 6 };

static st_tensor weight(const char *name, int64_t rows, int64_t cols, st_dtype dtype)
{
    static const float zeros[64];
    return (st_tensor){
        .name = name, .dtype = dtype, .rank = 2, .shape = { rows, cols }, .data = zeros
    };
}

static void write_file(const char *path, const st_tensor *tensors, size_t count)
{
    if (!st_write(scratch_path(path), tensors, count, NULL, &error))
        fail_msg("%s", error.text);
}

/* A file with the MLP of layer 0 under the prefix. */
static void write_mlp(const char *path, const char *prefix)
{
    char names[3][80];
    static const char *const parts[] = { "gate", "up", "down" };
    for (int i = 0; i < 3; i++)
        snprintf(names[i], sizeof names[i], "%slayers.0.mlp.%s_proj.weight", prefix, parts[i]);
    const st_tensor tensors[] = { weight(names[0], FFN, HIDDEN, ST_BF16),
                                  weight(names[1], FFN, HIDDEN, ST_BF16),
                                  weight(names[2], HIDDEN, FFN, ST_BF16),
                                  weight("norm", 1, HIDDEN, ST_F64) };
    write_file(path, tensors, 4);
}

static void write_text(const char *path, const char *text)
{
    scratch_write(path, text, strlen(text));
}

/* Finds the layer's MLP, or else the error must say this; NULL: it must be found. */
static void find_mlp(const char *path, int layer, const char *says)
{
    checkpoint *from = NULL;
    mlp_weights mlp;
    char prefix[MLP_LAYER_PREFIX];
    error = (st_error){ "" };
    bool found = checkpoint_open(scratch_path(path), &from, &error) &&
                 mlp_layer_find(from, NULL, layer, &mlp, prefix, &error);
    if (found && says)
        fail_msg("found, but should say: %s", says);
    if (!found && (!says || !strstr(error.text, says)))
        fail_msg("says \"%s\", not \"%s\"", error.text, says ? says : "found");
    if (found) {
        assert_int_equal(mlp.hidden, HIDDEN);
        assert_int_equal(mlp.ffn, FFN);
        assert_int_equal(mlp.gate.dtype, IMBREX_BF16);
    }
    checkpoint_close(from);
}

static void test_one_file(void **state)
{
    (void)state;
    scratch_clear();
    find_mlp("absent", 0, "No such file");
    find_mlp("", 0, "holds no *.safetensors");
    write_mlp("weights.safetensors", "model.");
    find_mlp("weights.safetensors", 0, NULL);
    find_mlp("", 0, NULL);
    write_text("._weights.safetensors", "macOS leaves such a file");
    find_mlp("", 0, NULL);
    write_mlp("other.safetensors", "layers.");
    find_mlp("", 0, "holds 2 *.safetensors and no *.safetensors.index.json: name one file");
    write_mlp("model.safetensors", "");
    find_mlp("", 0, NULL);
    find_mlp("", 1, "/model.safetensors: has no layer 1");
    assert_null(strstr(error.text, "//")); /* though the folder's name ends with one */
    find_mlp("weights.safetensors", 1, "has no layer 1: ask for one from 0 to 0");
    find_mlp("weights.safetensors", -1, "has no layer -1: ask");
    find_mlp("other.safetensors", 0,
             "has no tensor model.layers.0.mlp.gate_proj.weight; its 4 "
             "tensors are layers.layers.0.mlp.down_proj.weight, ");
    checkpoint *from;
    matrix x;
    assert_true(checkpoint_open(scratch_path("model.safetensors"), &from, &error));
    assert_false(checkpoint_matrix(from, "x", &x, &error));
    assert_non_null(strstr(error.text, "has no tensor x; its 4 tensors are layers.0.mlp.down"));
    assert_false(checkpoint_matrix(from, "norm", &x, &error));
    assert_non_null(strstr(error.text, "is F64, an unsupported dtype"));
    checkpoint_close(from);
    checkpoint_close(NULL);
    write_file("empty", NULL, 0);
    find_mlp("empty", 0, ": it has none");
}

static void test_shapes_that_do_not_fit(void **state)
{
    (void)state;
    st_tensor good[] = { weight("layers.7.mlp.gate_proj.weight", FFN, HIDDEN, ST_BF16),
                         weight("layers.7.mlp.up_proj.weight", FFN, HIDDEN, ST_BF16),
                         weight("layers.7.mlp.down_proj.weight", HIDDEN, FFN, ST_BF16) };
    st_tensor bad[3];
    write_file("f", good, 3);
    find_mlp("f", 7, NULL);
    write_file("f", good, 2);
    find_mlp("f", 7, "has no tensor layers.7.mlp.down_proj.weight; its 2 tensors are layers.7");
    write_file("f", good, 1);
    find_mlp("f", 7, "up_proj.weight; its only tensor is layers.7.mlp.gate_proj.weight");
    memcpy(bad, good, sizeof bad);
    bad[1].shape[0]++;
    write_file("f", bad, 3);
    find_mlp("f", 7, "layer 7: gate_proj is [6, 4], so up_proj must be [6, 4], but it is [7, 4]");
    memcpy(bad, good, sizeof bad);
    bad[2] = weight(good[2].name, FFN, HIDDEN, ST_BF16);
    write_file("f", bad, 3);
    find_mlp("f", 7, "so down_proj must be [4, 6], but it is [6, 4]");
    memcpy(bad, good, sizeof bad);
    bad[2].dtype = ST_F16;
    write_file("f", bad, 3);
    find_mlp("f", 7, "gate_proj is BF16, but down_proj is F16");
    memcpy(bad, good, sizeof bad);
    bad[1].dtype = ST_F32;
    write_file("f", bad, 3);
    find_mlp("f", 7, "gate_proj is BF16, but up_proj is F32: convert them to one dtype");
    memcpy(bad, good, sizeof bad);
    bad[2].dtype = ST_F8_E4M3;
    write_file("f", bad, 3);
    find_mlp("f", 7, "gate_proj.weight is BF16, but others of the layer are F8_E4M3");
    memcpy(bad, good, sizeof bad);
    bad[0].rank = 1;
    write_file("f", bad, 3);
    find_mlp("f", 7, "has 1 dimension, a matrix has 2");
}

#define INDEX "model.safetensors.index.json"

/* Three files; the MLP is in two of them, and the third is garbage that nobody may open. */
static void write_indexed(void)
{
    const st_tensor one[] = { weight("model.layers.3.mlp.gate_proj.weight", FFN, HIDDEN, ST_BF16),
                              weight("model.layers.3.mlp.up_proj.weight", FFN, HIDDEN, ST_BF16) };
    const st_tensor two = weight("model.layers.3.mlp.down_proj.weight", HIDDEN, FFN, ST_BF16);
    scratch_clear();
    scratch_directory("deep");
    write_file("a..1.safetensors", one, 2);
    write_file("deep/2.safetensors", &two, 1);
    write_text("3.safetensors", "garbage");
    write_text(INDEX, "{\"metadata\": {\"total_size\": 144, \"more\": [[{}]]}, \"weight_map\": {"
                      "\"model.layers.3.mlp.gate_proj.weight\": \"a..1.safetensors\","
                      "\"model.layers.3.mlp.up_proj.weight\": \"./a..1.safetensors\","
                      "\"model.layers.3.mlp.down_proj.weight\": \"deep/2.safetensors\","
                      "\"model.layers.9.mlp.gate_proj.weight\": \"3.safetensors\","
                      "\"lost\": \"a..1.safetensors\", \"gone\": \"4.safetensors\"}}");
}

static void test_index(void **state)
{
    (void)state;
    checkpoint *from;
    matrix x;
    write_indexed();
    find_mlp("", 3, NULL);
    find_mlp(INDEX, 3, NULL);
    find_mlp("", 9, "3.safetensors: holds 7 bytes");
    find_mlp("", 4, "has no layer 4: ask for one from 3 to 9");
    assert_true(checkpoint_open(scratch_path(""), &from, &error));
    assert_false(checkpoint_matrix(from, "lost", &x, &error));
    assert_non_null(strstr(error.text, "has no tensor lost, though the index"));
    assert_false(checkpoint_matrix(from, "gone", &x, &error));
    assert_non_null(strstr(error.text, "4.safetensors: cannot be opened"));
    assert_false(checkpoint_matrix(from, "lots", &x, &error));
    assert_non_null(strstr(error.text, "has no tensor lots; its 6 tensors are model.layers.3"));
    checkpoint_close(from);
}

/* An index of any name, if it is the only one; and it goes before a file of its own. */
static void test_other_index(void **state)
{
    (void)state;
    static const char other[] = "w.safetensors.index.json";
    write_indexed();
    assert_int_equal(rename(scratch_path(INDEX), scratch_path("copy")), 0);
    char from[4200];
    strcpy(from, scratch_path("copy"));
    assert_int_equal(rename(from, scratch_path(other)), 0);
    find_mlp("", 3, NULL);
    write_text("._x.safetensors.index.json", "macOS leaves such a file");
    scratch_directory("x.safetensors.index.json");
    find_mlp("", 3, NULL);
    write_text("v.safetensors.index.json", "{}");
    find_mlp("", 3, "holds 2 *.safetensors.index.json: name one file");
}

/* Others read all tensors of a file that the index names. */
static void test_what_the_index_leaves_out(void **state)
{
    (void)state;
    const st_tensor two[] = { weight("model.layers.3.mlp.down_proj.weight", HIDDEN, FFN, ST_BF16),
                              weight("model.layers.3.mlp.down_proj.bias", 1, HIDDEN, ST_BF16) };
    write_indexed();
    write_file("deep/2.safetensors", two, 2);
    find_mlp("", 3, "does not name the tensor model.layers.3.mlp.down_proj.bias, which is in");
}

static void test_pointers(void **state)
{
    (void)state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    scratch_clear();
    write_text("model.safetensors", pointer);
    find_mlp("", 0, "model.safetensors: is only git-lfs's pointer to the file: run git lfs pull");
    write_text("x.json", pointer);
    find_mlp("x.json", 0, "x.json: is only git-lfs's pointer to the file: run git lfs pull");
}

static void test_bad_index(void **state)
{
    (void)state;
    static const char *const escapes[] = { "..", "../x", "a/../../x", "a/..", "/etc/passwd", "" };
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "", "JSON is wrong" },
        { "[]", "JSON is not an object" },
        { "{}", "has no weight_map object" },
        { "{\"weight_map\": []}", "has no weight_map object" },
        { "{\"weight_map\": {\"a\": 1}}", "tensor a is in 1: it must name a file" },
        { "{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}", "duplicate object key" },
        { "{\"weight_map\": {\"a\": \"x\\u0000y\"}}", "JSON is wrong" },
        { "{\"a\": [[[[[[[[[[]]]]]]]]]]}", "nests deeper than 8" },
    };
    scratch_clear();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text("x.json", bad[i].text);
        find_mlp("x.json", 0, bad[i].says);
    }
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\": {\"good\": \"x\", \"bad\": \"%s\"}}",
                 escapes[i]);
        write_text("x.json", text);
        find_mlp("x.json", 0, "tensor bad is in \"");
        assert_non_null(strstr(error.text, "in the index's own directory or below"));
    }
    scratch_directory("d.json");
    find_mlp("d.json", 0, "holds no *.safetensors");
    scratch_directory("d.json/" INDEX);
    find_mlp("d.json", 0, "is not a regular file");
}

static void test_damaged_index(void **state)
{
    (void)state;
    size_t length;
    int found = 0;
    write_indexed();
    unsigned char *index = scratch_read(INDEX, &length), *damaged = malloc(length);
    assert_non_null(damaged);
    uint64_t random = 1;
    for (int round = 0; round < 3000; round++) {
        checkpoint *from = NULL;
        mlp_weights mlp;
        char prefix[MLP_LAYER_PREFIX];
        memcpy(damaged, index, length);
        random = random * 6364136223846793005 + 1442695040888963407;
        damaged[(random >> 33) % length] = (unsigned char)(random >> 24);
        scratch_write(INDEX, damaged, length);
        if (checkpoint_open(scratch_path(INDEX), &from, &error))
            found += mlp_layer_find(from, NULL, 3, &mlp, prefix, &error);
        checkpoint_close(from);
    }
    assert_true(found > 100 && found < 2900);
    free(damaged);
    free(index);
}

/* ---- The tool -------------------------------------------------------------------------------- */

static int give_up(void)
{
    fprintf(stderr, "%s\n", error.text);
    return 1;
}

static int copy_file(const char *in, const char *out)
{
    st_file *file;
    if (!st_open(in, &file, &error))
        return give_up();
    size_t count = st_count(file);
    st_tensor *tensors = calloc(count + 1, sizeof *tensors);
    for (size_t i = 0; tensors && i < count; i++)
        tensors[i] = *st_at(file, i);
    const char *const metadata[] = { "format", "np", NULL };
    bool good = tensors && st_write(out, tensors, count, metadata, &error);
    free(tensors);
    st_close(file);
    return good ? 0 : give_up();
}

static int write_shards(const char *path, int layer, int ranks, st_dtype to, const char *out)
{
    checkpoint *from = NULL;
    mlp_weights mlp;
    char prefix[MLP_LAYER_PREFIX];
    if (!checkpoint_open(path, &from, &error) ||
        !mlp_layer_find(from, NULL, layer, &mlp, prefix, &error)) {
        checkpoint_close(from);
        return give_up();
    }
    int64_t width = shard_width(mlp.ffn, ranks);
    char(*names)[32] = calloc(2 * (size_t)ranks, sizeof *names);
    st_tensor *tensors = calloc(2 * (size_t)ranks, sizeof *tensors);
    assert_true(names && tensors);
    for (int i = 0; i < 2 * ranks; i++) {
        int rank = i / 2;
        void *data = calloc((size_t)(2 * width * mlp.hidden) + 1, sizeof(float));
        assert_non_null(data);
        tensors[i] = (st_tensor){ .name = names[i], .dtype = to, .rank = 2, .data = data };
        snprintf(names[i], sizeof names[i], "%s.%d", i % 2 ? "down" : "gate_up", rank);
        if (i % 2)
            shard_down(&mlp, rank, ranks, st_dtype_imbrex(to), data);
        else
            shard_gate_up(&mlp, rank, ranks, st_dtype_imbrex(to), data);
        tensors[i].shape[0] = i % 2 ? mlp.hidden : 2 * width;
        tensors[i].shape[1] = i % 2 ? width : mlp.hidden;
    }
    bool good = st_write(out, tensors, 2 * (size_t)ranks, NULL, &error);
    for (int i = 0; i < 2 * ranks; i++)
        free((void *)tensors[i].data);
    free(tensors);
    free(names);
    checkpoint_close(from);
    return good ? 0 : give_up();
}

static int run_tool(int argc, char **argv)
{
    if (!st_has_json())
        return 77;
    if (argc == 4 && strcmp(argv[1], "copy") == 0)
        return copy_file(argv[2], argv[3]);
    if (argc == 7 && strcmp(argv[1], "shard") == 0)
        for (int to = ST_BF16; to <= ST_F32; to++)
            if (strcmp(argv[5], st_dtype_name((st_dtype)to)) == 0)
                return write_shards(argv[2], atoi(argv[3]), atoi(argv[4]), (st_dtype)to, argv[6]);
    fprintf(stderr, "usage: see the head of tests/tool/test_checkpoint.c\n");
    return 2;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_file),
        cmocka_unit_test(test_shapes_that_do_not_fit),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_damaged_index),
        cmocka_unit_test(test_other_index),
        cmocka_unit_test(test_what_the_index_leaves_out),
        cmocka_unit_test(test_pointers),
    };
    if (argc > 1)
        return run_tool(argc, argv);
    if (!st_has_json())
        return 77;
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
