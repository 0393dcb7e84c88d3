/* model_config.c - reads config.json, and finds values in it. */
#include "checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef IMX_HAVE_JANSSON

#include <jansson.h>

enum { DEPTH = 64 };

struct model_config {
    char *path;
    json_t *root;
    const json_t *parts[MODEL_CONFIG_PARTS];
    const char *own; /* the name of parts[0], or "" */
};

/* What models of several parts call that of their language model. */
static const char *const part_keys[] = { "text_config", "llm_config", "language_config" };

void model_config_close(model_config *config)
{
    if (!config)
        return;
    json_decref(config->root);
    free(config->path);
    free(config);
}

bool model_config_open(const checkpoint *from, model_config **out, st_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    model_config *config = calloc(1, sizeof *config);
    if (!config)
        return st_fail(error, "no memory is left to read config.json");
    bool good = checkpoint_config(from, &config->path, &text, &bytes, error);
    if (good && text)
        good = (config->root = st_json_load(config->path, text, bytes, DEPTH, error)) != NULL;
    free(text);
    config->own = "";
    for (size_t i = 0; i < sizeof part_keys / sizeof *part_keys; i++) {
        const json_t *part = json_object_get(config->root, part_keys[i]);
        if (json_is_object(part) && !config->parts[0]) {
            config->parts[0] = part;
            config->own = part_keys[i];
        }
    }
    config->parts[1] = config->root;
    if (!good || !config->root) {
        model_config_close(config);
        config = NULL;
    }
    *out = config;
    return good;
}

const char *model_config_path(const model_config *config)
{
    return config->path;
}

const char *model_config_own(const model_config *config)
{
    return config->own;
}

static const json_t *find_section(const model_config *config, const char *path)
{
    const json_t *in = config->root;
    while (*path) {
        char name[64];
        size_t length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        in = json_object_get(in, name);
        path += length + (path[length] == '.');
    }
    return in;
}

const char *model_config_text(const model_config *config, const char *section, const char *key)
{
    return json_string_value(json_object_get(find_section(config, section), key));
}

double model_config_number(const model_config *config, const char *section, const char *key,
                           double otherwise)
{
    const json_t *value = json_object_get(find_section(config, section), key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

bool model_config_is_true(const model_config *config, const char *section, const char *key)
{
    return json_is_true(json_object_get(find_section(config, section), key));
}

const json_t *model_config_part(const model_config *config, int part)
{
    return config->parts[part];
}

const json_t *model_config_value_in(const model_config *config, int part, const char *key)
{
    const json_t *value = json_object_get(config->parts[part], key);
    return json_is_null(value) ? NULL : value;
}

const json_t *model_config_value(const model_config *config, const char *key)
{
    const json_t *own = model_config_value_in(config, 0, key);
    return own ? own : model_config_value_in(config, 1, key);
}

bool model_config_real(const model_config *config, const char *key, double otherwise, double *out,
                       st_error *error)
{
    const json_t *value = model_config_value(config, key);
    *out = value ? json_number_value(value) : otherwise;
    return !value || (json_is_number(value) && *out >= 0) ||
           st_fail(error, "%s: %s is %s: want a number of 0 or more", st_path_tail(config->path),
                   key, st_json_show(value).text);
}

#else /* no jansson: no checkpoint can be opened, either */

struct model_config {
    const char *path;
};

void model_config_close(model_config *config)
{
    (void)config;
}

bool model_config_open(const checkpoint *from, model_config **out, st_error *error)
{
    (void)from;
    *out = NULL;
    return st_fail(error, "this build cannot read config.json: install libjansson-dev");
}

const char *model_config_path(const model_config *config)
{
    return config->path;
}

const char *model_config_own(const model_config *config)
{
    (void)config;
    return "";
}

const char *model_config_text(const model_config *config, const char *section, const char *key)
{
    (void)config, (void)section, (void)key;
    return NULL;
}

double model_config_number(const model_config *config, const char *section, const char *key,
                           double otherwise)
{
    (void)config, (void)section, (void)key;
    return otherwise;
}

bool model_config_is_true(const model_config *config, const char *section, const char *key)
{
    (void)config, (void)section, (void)key;
    return false;
}

bool model_config_real(const model_config *config, const char *key, double otherwise, double *out,
                       st_error *error)
{
    (void)key, (void)otherwise, (void)out;
    return st_fail(error, "%s: cannot be read", config->path);
}

#endif
