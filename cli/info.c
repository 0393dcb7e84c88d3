/* info.c - `imbrex info`: what this build and this machine can do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "imbrex.h"
#include "options.h"
#include "text.h"

/* The lines "key: value" as one flat object. */
static void print_json(char *lines)
{
    const char *comma = "";
    char *rest = NULL;
    fputs("{", stdout);
    for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        size_t key = strcspn(line, ":");
        const char *value = line[key] ? line + key + 1 : "";
        value += strspn(value, " ");
        printf("%s\n  ", comma);
        text_json(stdout, line, key);
        fputs(": ", stdout);
        text_json(stdout, value, strlen(value));
        comma = ",";
    }
    fputs("\n}\n", stdout);
}

int cli_info(int argc, char **argv)
{
    bool json = false;
    const option options[] = {
        { "json", .flag = &json, .help = "print one flat JSON object" },
        { 0 },
    };
    const options_page page = { .command = "info",
                                .synopsis = "[--json]",
                                .about = "Prints what this build and this machine can do.",
                                .options = options };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);

    size_t size = imbrex_info(NULL, 0) + 1;
    char *lines = malloc(size);
    if (!lines) {
        fputs("imbrex info: out of memory\n", stderr);
        return CLI_FAILED;
    }
    imbrex_info(lines, size);
    if (json)
        print_json(lines);
    else
        fputs(lines, stdout);
    free(lines);
    return CLI_OK;
}
