/* test_text.c - what names from files and command lines look like on a terminal and in JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text.h"

static const struct {
    const char *text, *strict, *lines;
} cases[] = {
    { "", "", "" },
    { "plain", "plain", "plain" },
    { "a\nb\tc\rd", "a?b?c?d", "a\nb\tc?d" },
    { "\x1b[31m\x7f\x01", "?[31m??", "?[31m??" },
    { "\xc2\x80 \xc2\x9b \xc2\x9f", "? ? ?", "? ? ?" },                /* C1 */
    { "\xc2\xa0 \xc3\x9b", "\xc2\xa0 \xc3\x9b", "\xc2\xa0 \xc3\x9b" }, /* letters beside it */
    { "\xe2\x82\xac\xf0\x9f\x8f\xba", "\xe2\x82\xac\xf0\x9f\x8f\xba",
      "\xe2\x82\xac\xf0\x9f\x8f\xba" },
    { "\x9b!\x80", "?!?", "?!?" },       /* C1 of 8 bits */
    { "\xe9\x9b!", "\xe9?!", "\xe9?!" }, /* behind what is no UTF-8 */
    { "\xc2", "\xc2", "\xc2" },          /* cut short */
    { "\xc2\xc2\x9b\xc2", "\xc2?\xc2", "\xc2?\xc2" },
    { "\xc0\x9b", "\xc0?", "\xc0?" }, /* overlong */
};

static void control_characters_become_marks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[40];
        strcpy(text, cases[i].text);
        text_harmless(text, false);
        assert_string_equal(text, cases[i].strict);
        strcpy(text, cases[i].text);
        text_harmless(text, true);
        assert_string_equal(text, cases[i].lines);
    }
}

static void json_escapes_them(void **state)
{
    (void)state;
    char out[200] = "";
    const char text[] = "\"\\\n\x7f\xc2\x9b\xc2\xa0\x9b";
    FILE *file = fmemopen(out, sizeof out, "w");
    text_json(file, text, strlen(text));
    fclose(file);
    assert_string_equal(out, "\"\\\"\\\\\\u000a\\u007f\\u009b\xc2\xa0\xef\xbf\xbd\"");
}

/* Whatever says the name: each command with it in each place, and nothing that a terminal obeys. */
static void no_command_lets_them_through(void **state)
{
    (void)state;
    static const char *const commands[] = {
        "\"$X\"",
        "mlp --\"$X\"",
        "mlp \"$X\"",
        "mlp --shape \"$X\" --tokens 8",
        "mlp --weights \"$X\" --input \"$X\"",
        "mlp --shape 8,8 --tokens 8 --device \"$X\"",
        "mlp --shape 8,8 --tokens 8 --output \"$X/y\"",
        "mlp --shape 8,8 --tokens 8 --timeline \"$X\"",
        "run -n 1 -- \"./$X\"",
        "run -n \"$X\" -- true",
        "bench \"$X\"",
        "bench ag_gemm --m 8 --n 8 --k 8 --timeline \"$X\"",
        "compile --kernel \"$X:k\" --device cpu",
        "info --\"$X\"",
        "info; IMBREX_CHAOS=\"$X\" \"$T\" info; IMBREX_DEVICE=\"$X\" \"$T\" info",
        "info; IMBREX_ALGORITHM=\"$X\" \"$T\" mlp --shape 8,8 --tokens 8 --rounds 1",
    };
    const char *tool = getenv("IMBREX_TOOL");
    if (!tool)
        skip();
    setenv("T", tool, 1);
    setenv("X",
           "n\xc2\x9b"
           "31m\x1b[7m\x7f\xc2\x90\x9b",
           1);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char command[1000], said[20000];
        snprintf(command, sizeof command, "{ \"$T\" %s; } 2>&1 </dev/null", commands[i]);
        FILE *pipe = popen(command, "r");
        assert_non_null(pipe);
        said[fread(said, 1, sizeof said - 1, pipe)] = '\0';
        pclose(pipe);
        assert_true(strlen(said) > 10);
        char *harmless = strdup(said);
        text_harmless(harmless, true);
        if (strcmp(said, harmless) != 0)
            fail_msg("%s says: %s", commands[i], harmless);
        free(harmless);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_characters_become_marks),
        cmocka_unit_test(json_escapes_them),
        cmocka_unit_test(no_command_lets_them_through),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
