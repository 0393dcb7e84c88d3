/* test_kept_kernels.c - kernels of the caller's on CPU ranks that were compiled once: what makes
 * another of one, and what becomes of a file that is of no use. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/cpu/compiler.h"
#include "base/cache.h"
#include "custom/user_source.h"
#include "scratch.h"

/* ---- a compiler that notes each of its runs -------------------------------------------------- */

static char compiler[512], cache[512];

static void put(const char *name, const char *text)
{
    scratch_write(name, text, strlen(text));
}

static int runs(void)
{
    size_t bytes = 0;
    unsigned char *log = scratch_read("log", &bytes);
    free(log);
    return (int)bytes;
}

static void keep(const char *variable, char *before, size_t size)
{
    const char *value = getenv(variable);
    snprintf(before, size, "%s", value ? value : "");
}

static int begin(void **state)
{
    char script[1024];
    int failed = scratch_make(state);
    keep("IMBREX_CC", compiler, sizeof compiler);
    keep("IMBREX_CACHE_DIR", cache, sizeof cache);
    snprintf(script, sizeof script, "#!/bin/sh\nprintf x >>%s\nexec %s \"$@\"\n",
             scratch_path("log"), *compiler ? compiler : "cc");
    put("log", "");
    put("cc", script);
    failed |= chmod(scratch_path("cc"), 0700);
    failed |= mkdir(scratch_path("cache"), 0700);
    failed |= setenv("IMBREX_CC", scratch_path("cc"), 1);
    return failed | setenv("IMBREX_CACHE_DIR", scratch_path("cache"), 1);
}

static int end(void **state)
{
    setenv("IMBREX_CC", compiler, 1);
    setenv("IMBREX_CACHE_DIR", cache, 1);
    return scratch_remove(state);
}

/* *out: what the kernel `kept` in a file leaves at args->out. */
static imbrex_status run(const char *name, const char *options, int *out)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group *group = NULL;
    imbrex_group_desc alone = { .bootstrap = &one, .device = "cpu", .timeout_ms = 1000 };
    assert_int_equal(imbrex_group_create(&alone, &group), IMBREX_OK);
    imbrex_kernel *kernel;
    imbrex_kernel_desc desc = { .name = "kept", .file = scratch_path(name), .options = options };
    imbrex_status status = imbrex_kernel_create(group, &desc, &kernel);
    if (status == IMBREX_OK) {
        assert_int_equal(imbrex_launch(kernel, 1, 1, &out, sizeof out, NULL), IMBREX_OK);
        assert_int_equal(imbrex_stream_sync(group, NULL), IMBREX_OK);
    }
    imbrex_group_destroy(group);
    return status;
}

static int value_of(const char *name, const char *options)
{
    int out = 0;
    if (run(name, options, &out) != IMBREX_OK)
        fail_msg("%s", imbrex_error());
    return out;
}

static void refused(const char *name, const char *words)
{
    int out = 0;
    if (run(name, NULL, &out) == IMBREX_OK || !strstr(imbrex_error(), words))
        fail_msg("\"%s\", want \"%s\"", imbrex_error(), words);
}

/* ---- what it includes ------------------------------------------------------------------------ */

#define ARGS   "typedef struct { int *out; } kept_args;\n"
#define DEVICE "#include \"imbrex_device.h\"\n"

static void headers_that_change(void **state)
{
    (void)state;
    static const char text[] = DEVICE "#include \"in/mine.h\"\n"
                                      "IMBREXD_KERNEL(kept, kept_args) { *args->out = VALUE + "
                                      "MORE; }\n";
    char here[4096], options[4300];
    assert_non_null(getcwd(here, sizeof here));
    put("kept.c", text);
    scratch_directory("in");
    put("in/mine.h", "#include \"value.h\"\n" ARGS);
    scratch_directory("elsewhere"); /* where headers of the same names are nobody's */
    scratch_directory("elsewhere/in");
    put("elsewhere/in/mine.h", "#error\n");
    assert_int_equal(chdir(scratch_path("elsewhere")), 0);
    snprintf(options, sizeof options, "-include %s", scratch_path("more.h"));
    int before = runs();
    for (int i = 0; i < 6; i++) { /* new, kept; one header has changed, then the other */
        put("value.h", i >= 2 ? "#define VALUE 2\n" : "#define VALUE 1\n");
        put("more.h", i >= 4 ? "#define MORE 10\n" : "#define MORE 0 \n");
        assert_int_equal(value_of("kept.c", options), (i >= 2 ? 2 : 1) + (i >= 4 ? 10 : 0));
        assert_int_equal(runs() - before, i / 2 + 1);
    }
    assert_int_equal(chdir(here), 0);
}

/* Of two files of one name a compiler takes what it likes, and <> is not "". */
static void headers_of_one_name(void **state)
{
    (void)state;
    static const char *const quotes[] = { "<both.h>", "\"both.h\"" };
    char options[600], text[400];
    scratch_directory("inc");
    put("both.h", "#define BESIDE 1\n#define VALUE 1\n");
    snprintf(options, sizeof options, "-I %s", scratch_path("inc"));
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, DEVICE ARGS "#include %s\n#ifdef BESIDE\n", quotes[i]);
        strcat(text, "#include_next <both.h>\n#endif\n"
                     "IMBREXD_KERNEL(kept, kept_args) { *args->out = NEXT; }\n");
        put("both.c", text);
        for (int value = 1; value <= 3; value++) {
            snprintf(text, sizeof text, "#define NEXT %d\n", value);
            put("inc/both.h", text);
            assert_int_equal(value_of("both.c", options), value);
        }
    }
    int before = runs();
    assert_int_equal(value_of("both.c", options), 3);
    assert_int_equal(runs(), before);
}

static void headers_that_a_macro_names(void **state)
{
    (void)state;
    char options[600];
    put("macro.c", DEVICE ARGS "#include CONFIG_H\n"
                               "IMBREXD_KERNEL(kept, kept_args) { *args->out = VALUE; }\n");
    snprintf(options, sizeof options, "-DCONFIG_H=\"%s\"", scratch_path("config.h"));
    for (int i = 1; i <= 2; i++) {
        put("config.h", i == 1 ? "#define VALUE 1\n" : "#define VALUE 2\n");
        assert_int_equal(value_of("macro.c", options), i);
    }
}

/* Whatever leads to the folder of a header. */
static void folders_of_all_forms(void **state)
{
    (void)state;
    static const struct {
        const char *options, *variable;
    } forms[] = { { "-I %s", NULL },
                  { "--include-directory=%s", NULL },
                  { "--include-directory %s", NULL },
                  { "@%s/options", NULL },
                  { "-Wp,-I%s", NULL },
                  { "", "CPATH" },
                  { "", "C_INCLUDE_PATH" } };
    char options[700], text[600];
    scratch_directory("far");
    put("far.c", DEVICE ARGS "#include <far.h>\n"
                             "IMBREXD_KERNEL(kept, kept_args) { *args->out = VALUE; }\n");
    snprintf(text, sizeof text, "-I%s\n", scratch_path("far"));
    put("far/options", text);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        snprintf(text, sizeof text, forms[i].options, scratch_path("far"));
        snprintf(options, sizeof options, "-DFORM=%zu %s", i, text);
        snprintf(text, sizeof text, "/nowhere:%s:", scratch_path("far"));
        if (forms[i].variable)
            setenv(forms[i].variable, text, 1);
        for (int value = 1; value <= 2; value++) {
            put("far/far.h", value == 1 ? "#define VALUE 1\n" : "#define VALUE 2\n");
            if (value_of("far.c", options) != value)
                fail_msg("form %zu, \"%s\": an old header", i, forms[i].options);
        }
        if (forms[i].variable)
            unsetenv(forms[i].variable);
    }
}

/* Where the compiler looks for what a file includes. */
static void folders_of_files(void **state)
{
    (void)state;
    static const char *const files[][2] = {
        { "kept.c", "." }, { "in/kept.c", "in" }, { "/in/kept.c", "/in" }, { "/kept.c", "/" }
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        imx_user_source source;
        assert_int_equal(imx_user_source_read("kept", "", files[i][0], "", &source), IMBREX_OK);
        assert_string_equal(source.folder, files[i][1]);
        imx_user_source_free(&source);
    }
}

/* However it is written, a header counts; the word alone, as in a comment, keeps nobody from
 * keeping the kernel. */
static void directives_of_all_forms(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "/* x */ #include \"form.h\"\n",  "#\\\ninclude \"form.h\"\n",
        "#inc\\ \nlude \"form.h\"\n",     "%:include \"form.h\"\n",
        "#import \"form.h\"\n",           "# /*\n*/ include \"form.h\"\n",
        "/*\n*/ # include\t\"form.h\"\n",
    };
    const char *source = getenv("IMBREX_SOURCE_DIR");
    char text[600], options[600];
    snprintf(options, sizeof options, "-I%s/include", source ? source : ".");
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        snprintf(text, sizeof text,
                 "/* include what follows\n"
                 " * #include NAME, or do not include it */\n" DEVICE ARGS "%s"
                 "IMBREXD_KERNEL(kept, kept_args) { *args->out = VALUE; }\n",
                 forms[i]);
        put("form.c", text);
        int before = runs();
        for (int k = 0; k < 4; k++) {
            put("form.h", k >= 2 ? "#define VALUE 2\n" : "#define VALUE 1\n");
            int value = value_of("form.c", options);
            if (value != k / 2 + 1 || runs() - before != k / 2 + 1)
                fail_msg("form %zu: %d, want %d, after %d compilations", i, value, k / 2 + 1,
                         runs() - before);
        }
    }
}

/* Blanks, and a last line. */
static void put_large(const char *name, size_t bytes, const char *last)
{
    char *text = malloc(bytes + strlen(last));
    assert_non_null(text);
    memset(text, '\n', bytes);
    memcpy(text + bytes, last, strlen(last));
    scratch_write(name, text, bytes + strlen(last));
    free(text);
}

static void headers_too_large(void **state)
{
    (void)state;
    put("large.c", DEVICE ARGS "#include \"large.h\"\n"
                               "IMBREXD_KERNEL(kept, kept_args) { *args->out = VALUE; }\n");
    for (int i = 1; i <= 2; i++) {
        put_large("large.h", 33 << 20, i == 1 ? "#define VALUE 1\n" : "#define VALUE 2\n");
        assert_int_equal(value_of("large.c", NULL), i);
    }
    put_large("large.c", 16 << 20, "int x;\n");
    refused("large.c", "want at most 16 MiB");
}

/* None is waited for, be it a header of a comment's. */
static void pipes(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    put("piped.c", DEVICE ARGS "/*\n#include \"pipe\"\n*/\n"
                               "IMBREXD_KERNEL(kept, kept_args) { *args->out = 5; }\n");
    assert_int_equal(value_of("piped.c", NULL), 5);
    refused("pipe", "want a regular file");
    refused(".", "Is a directory");
}

/* ---- files of no use ------------------------------------------------------------------------- */

/* Puts into every file of the cache an image that does not load. */
static void spoil(void)
{
    static const char image[] = "the object of another machine";
    imx_folder folder;
    glob_t found;
    char all[600];
    imx_folder_find(scratch_path("cache"), &folder);
    assert_string_equal(folder.why, "");
    snprintf(all, sizeof all, "%s/*.kernel", folder.path);
    assert_int_equal(glob(all, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        imx_cache_key key; /* is in its name */
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        unsigned long long words[2];
        assert_int_equal(sscanf(name, "%16llx%16llx", &words[0], &words[1]), 2);
        key = (imx_cache_key){ { words[0], words[1] } };
        imx_cache_store(&folder, &key, image, sizeof image);
    }
    globfree(&found);
}

static void what_does_not_load_is_replaced(void **state)
{
    (void)state;
    put("plain.c", DEVICE ARGS "IMBREXD_KERNEL(kept, kept_args) { *args->out = 7; }\n");
    int before = runs();
    assert_int_equal(value_of("plain.c", NULL), 7);
    assert_int_equal(runs() - before, 1);
    spoil();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(value_of("plain.c", NULL), 7);
        assert_int_equal(runs() - before, 2);
    }
}

/* ---- what a process holds -------------------------------------------------------------------- */

/* What the loader does not let go of is not taken for what comes after it. */
static void objects_that_stay(void **state)
{
    (void)state;
    char text[200];
    for (int i = 1; i <= 3; i++) {
        snprintf(text, sizeof text,
                 DEVICE ARGS "IMBREXD_KERNEL(kept, kept_args) { *args->out = %d; }\n", i);
        put("stays.c", text);
        assert_int_equal(value_of("stays.c", "-Wl,-z,nodelete"), i);
    }
}

static bool is_empty(const char *folder)
{
    char pattern[512];
    glob_t found = { 0 };
    snprintf(pattern, sizeof pattern, "%s/*", scratch_path(folder));
    bool none = glob(pattern, 0, NULL, &found) == GLOB_NOMATCH;
    globfree(&found);
    return none;
}

/* Its folder is TMPDIR, however long the name, and no other; and nothing stays there, whatever else
 * the compiler is made to write. */
static void folders_to_compile_in(void **state)
{
    (void)state;
    char before[512], name[200], longest[5000];
    keep("TMPDIR", before, sizeof before);
    put("where.c", DEVICE ARGS "IMBREXD_KERNEL(kept, kept_args) { *args->out = 9; }\n");
    memset(name, 'x', sizeof name - 1);
    memset(longest, 'x', sizeof longest - 1);
    name[sizeof name - 1] = longest[sizeof longest - 1] = '\0';
    setenv("TMPDIR", scratch_path(name), 1);
    refused("where.c", scratch_path(name));
    scratch_directory(name);
    assert_int_equal(value_of("where.c", NULL), 9);
    assert_int_equal(value_of("where.c", "-save-temps=obj"), 9);
    assert_true(is_empty(name));
    setenv("TMPDIR", longest, 1);
    put("where.c", DEVICE ARGS "IMBREXD_KERNEL(kept, kept_args) { *args->out = 10; }\n");
    refused("where.c", "TMPDIR has 4999 characters");
    if (*before)
        setenv("TMPDIR", before, 1);
    else
        unsetenv("TMPDIR");
    assert_int_equal(value_of("where.c", NULL), 10);
}

/* ---- machines -------------------------------------------------------------------------------- */

static imx_cache_key key_on(const char *processor, const char *options)
{
    char text[400];
    imx_cache_key key = { { 0 } };
    snprintf(text, sizeof text, "processor : 0\n%s\n\nprocessor : 1\nmodel name : any\n",
             processor);
    put("proc/cpuinfo", text);
    imx_compiler_key("cc", options, scratch_path("."), &key);
    return key;
}

static bool alike(const char *one, const char *other, const char *options)
{
    imx_cache_key a = key_on(one, options), b = key_on(other, options);
    return memcmp(&a, &b, sizeof a) == 0;
}

static void processors(void **state)
{
    (void)state;
    scratch_directory("proc");
    assert_true(alike("flags : sse avx", "flags : sse", "-O3 -DX=1"));
    assert_false(alike("flags : sse avx", "flags : sse    ", "-O3 -march=native"));
    assert_false(alike("Features : sve", "Features : fp ", "-mcpu=native"));
    assert_true(alike("cpu MHz : 1200", "cpu MHz : 3100", "-march=native"));
    assert_true(alike("BogoMIPS : 10", "BogoMIPS : 11", "-march=native"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_that_change),
        cmocka_unit_test(headers_of_one_name),
        cmocka_unit_test(headers_that_a_macro_names),
        cmocka_unit_test(folders_of_all_forms),
        cmocka_unit_test(folders_of_files),
        cmocka_unit_test(directives_of_all_forms),
        cmocka_unit_test(headers_too_large),
        cmocka_unit_test(pipes),
        cmocka_unit_test(what_does_not_load_is_replaced),
        cmocka_unit_test(objects_that_stay),
        cmocka_unit_test(folders_to_compile_in),
        cmocka_unit_test(processors),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
