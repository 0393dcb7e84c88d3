/* env.c - reads the environment variables of the one table in imx.h. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "imx.h"

bool imx_env_parse_int(const char *text, int64_t *value)
{
    if (!isdigit((unsigned char)text[0]) && text[0] != '-')
        return false;
    errno = 0;
    char *end;
    long long parsed = strtoll(text, &end, 10);
    if (errno || end == text || *end)
        return false;
    *value = parsed;
    return true;
}

static imbrex_status read_number(const char *variable, const char *text, int64_t *value)
{
    if (!imx_env_parse_int(text, value) || *value < 0)
        return imx_fail(IMBREX_INVALID, "%s is \"%s\": want a whole number from 0, below 2^63",
                        variable, text);
    return IMBREX_OK;
}

static imbrex_status read_flag(const char *variable, const char *text, int64_t *value)
{
    if (!imx_env_parse_int(text, value) || *value < 0 || *value > 1)
        return imx_fail(IMBREX_INVALID, "%s is \"%s\": want 0 or 1", variable, text);
    return IMBREX_OK;
}

bool imx_env_parse_real(const char *text, double *value)
{
    char *end;
    locale_t plain =
        newlocale(LC_NUMERIC_MASK, "C", (locale_t)0); /* the caller's may have commas */
    if (!plain)
        return false;
    double parsed = strtod_l(text, &end, plain);
    freelocale(plain);
    if (end == text || *end || !isfinite(parsed))
        return false;
    *value = parsed;
    return true;
}

static imbrex_status read_real(const char *variable, const char *text, double *value)
{
    *value = 0;
    if (!imx_env_parse_real(text, value) || *value < 0)
        return imx_fail(IMBREX_INVALID, "%s is \"%s\": want a finite number from 0", variable,
                        text);
    return IMBREX_OK;
}

static imbrex_status read_text(const char *variable, const char *text, imx_env_text *value)
{
    if (strlen(text) >= sizeof *value)
        return imx_fail(IMBREX_INVALID, "%s has %zu characters: at most %zu fit", variable,
                        strlen(text), sizeof *value - 1);
    strcpy(*value, text);
    return IMBREX_OK;
}

static imbrex_status read_way(const char *variable, const char *text, imx_env_text *value)
{
    if (*text && strcmp(text, "vmm") != 0 && strcmp(text, "ipc") != 0)
        return imx_fail(IMBREX_INVALID, "%s is \"%s\": want vmm or ipc", variable, text);
    strcpy(*value, text);
    return IMBREX_OK;
}

static imbrex_status read_level(const char *variable, const char *text, imx_env_level *value)
{
    static const char *const levels[] = { "", "info", "debug" };
    *value = IMX_LOG_NOTHING;
    for (int i = 0; i < (int)(sizeof levels / sizeof levels[0]); i++)
        if (strcmp(text, levels[i]) == 0) {
            *value = (imx_env_level)i;
            return IMBREX_OK;
        }
    return imx_fail(IMBREX_INVALID, "%s is \"%s\": want info or debug", variable, text);
}

const char *imx_env_get(const char *variable)
{
    return secure_getenv(variable);
}

bool imx_env_is_foreign(void)
{
    return getauxval(AT_SECURE) != 0;
}

static const char *variable_or(const char *variable, const char *fallback)
{
    const char *text = imx_env_get(variable);
    return text && *text ? text : fallback; /* empty is unset: scripts clear variables that way */
}

imbrex_status imx_env_read(imx_env *env)
{
    imbrex_status status = IMBREX_OK, fell_back;
#define READ(field, variable, kind, fallback, what)                                         \
    if (read_##kind(variable, variable_or(variable, fallback), &env->field) != IMBREX_OK) { \
        status = IMBREX_INVALID;                                                            \
        fell_back = read_##kind(variable, fallback, &env->field);                           \
        (void)fell_back;                                                                    \
    }
    IMX_ENV_TABLE(READ)
#undef READ
    return status;
}

static void add_line(imx_text *text, const char *variable, const char *fallback, const char *what,
                     bool refused)
{
    const char *value = variable_or(variable, *fallback ? fallback : "unset");
    bool secret = strcmp(variable, "IMBREX_TOKEN") == 0 && *variable_or(variable, "");
    imx_text_add(text, "env %s: %s%s (%s)\n", variable, secret ? "set" : value,
                 refused ? ", which does not parse: groups refuse it" : "", what);
}

void imx_env_info(imx_text *text)
{
    imx_env env;
#define LINE(field, variable, kind, fallback, what) \
    add_line(text, variable, fallback, what,        \
             read_##kind(variable, variable_or(variable, fallback), &env.field) != IMBREX_OK);
    IMX_ENV_TABLE(LINE)
#undef LINE
    imx_env_unknown(text);
}
