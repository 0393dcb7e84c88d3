/* info.c - `imbrex info`: what this build and this machine can do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* All ranks of a launcher meet; `line` becomes "group: ...". */
static imbrex_status look_at_group(char *line, size_t size, int *rank)
{
    imbrex_group *group;
    imbrex_status status = imbrex_group_create(&(imbrex_group_desc){ 0 }, &group);
    if (status != IMBREX_OK) {
        text_say(stderr, "imbrex info: %s\n", imbrex_error());
        return status;
    }
    int length = snprintf(line, size, "group: ");
    imbrex_group_describe(group, line + length, size - (size_t)length);
    *rank = imbrex_group_rank(group);
    imbrex_group_destroy(group);
    return IMBREX_OK;
}

int cli_info(int argc, char **argv)
{
    enum { GROUP_BYTES = 4096 };
    bool json = false, group = false;
    int rank = 0;
    char line[GROUP_BYTES] = "";
    const option options[] = {
        { "group", .flag = &group,
          .help = "with all ranks of mpirun, srun or torchrun: also which of them\n"
                  "are on which node; rank 0 prints" },
        { "json", .flag = &json, .help = "print one flat JSON object" },
        { 0 },
    };
    const options_page page = { .command = "info",
                                .synopsis = "[--group] [--json]",
                                .about = "Prints what this build and this machine can do.",
                                .options = options };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);

    if (group) {
        imbrex_status status = look_at_group(line, sizeof line, &rank);
        if (status != IMBREX_OK)
            return cli_exit_code(status);
        if (rank > 0)
            return CLI_OK;
    }
    size_t size = imbrex_info(NULL, 0) + 2 + GROUP_BYTES;
    char *lines = malloc(size);
    if (!lines) {
        fputs("imbrex info: out of memory\n", stderr);
        return CLI_FAILED;
    }
    imbrex_info(lines, size);
    size_t length = strlen(lines);
    snprintf(lines + length, size - length, "%s%s", line, group ? "\n" : "");
    if (json)
        print_json(lines);
    else if (isatty(STDOUT_FILENO))
        text_wrap(stdout, 4, "%s", lines);
    else
        text_say(stdout, "%s", lines); /* a line of it can be looked for */
    free(lines);
    return CLI_OK;
}
