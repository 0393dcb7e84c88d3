/* status.c - what went wrong, in words, one sentence a thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "imx.h"

static _Thread_local struct {
    const char *function; /* the public one that this thread is in */
    int muted;            /* by so many */
    struct {
        char text[IMX_STATUS_BYTES]; /* "function: sentence" */
        size_t detail;               /* where the sentence starts */
    } said[2];                       /* [1]: while muted, for imx_status_detail alone */
} last;

void imx_status_enter(const char *function)
{
    last.function = function;
    last.said[0].text[0] = '\0';
    last.said[0].detail = 0;
}

const char *imx_status_function(void)
{
    return last.function;
}

void imx_status_mute(bool mute)
{
    if (mute && !last.muted)
        last.said[1].text[last.said[1].detail = 0] = '\0';
    last.muted += mute ? 1 : -1;
}

/* vsnprintf with points in its numbers: the program's locale may have commas, and texts are keys,
 * too. */
static int print(char *at, size_t size, const char *format, va_list args)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = plain ? uselocale(plain) : (locale_t)0;
    int length = vsnprintf(at, size, format, args);
    if (before)
        uselocale(before);
    if (plain)
        freelocale(plain);
    return length;
}

size_t imx_status_control(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0)
        return 2;
    return (at[0] && at[0] < ' ') || at[0] == 0x7f;
}

/* A sentence has values of variables, names of files, and what other ranks said in it, and programs
 * print it to terminals.  A compiler's lines stay lines. */
static void clean(char *text)
{
    char *to = text;
    for (size_t control; *text; text += control ? control : 1) {
        control = *text == '\n' || *text == '\t' ? 0 : imx_status_control(text);
        *to++ = control ? '?' : *text;
    }
    *to = '\0';
}

static void note(const char *format, va_list args, int error)
{
    int at = last.muted > 0;
    imx_text text = { .at = last.said[at].text, .size = IMX_STATUS_BYTES };
    char sentence[IMX_STATUS_BYTES];
    print(sentence, sizeof sentence, format, args);
    clean(sentence);
    if (last.function && !at)
        imx_text_add(&text, "%s: ", last.function);
    last.said[at].detail = text.length;
    imx_text_add(&text, "%s", sentence);
    if (error)
        imx_text_add(&text, ": %s", strerror(error));
}

imbrex_status imx_fail(imbrex_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    note(format, args, 0);
    va_end(args);
    return status;
}

imbrex_status imx_fail_errno(const char *format, ...)
{
    int error = errno;
    va_list args;
    va_start(args, format);
    note(format, args, error);
    va_end(args);
    return error == ENOMEM ? IMBREX_NO_MEMORY : IMBREX_SYSTEM;
}

imbrex_status imx_status_need(const void *argument, const char *name, const char *hint)
{
    return argument ? IMBREX_OK : imx_fail(IMBREX_INVALID, "%s is NULL: %s", name, hint);
}

imbrex_status imx_status_range(const char *of, const char *name, int64_t value, int64_t least,
                               int64_t most)
{
    if (value < least || value > most)
        return imx_fail(IMBREX_INVALID, "%s%s%s is %lld: want from %lld to %lld", of ? of : "",
                        of ? "." : "", name, (long long)value, (long long)least, (long long)most);
    return IMBREX_OK;
}

imbrex_status imx_status_elements(const char *of, const char *name, int64_t rows, int64_t cols)
{
    const int64_t most = (int64_t)1 << IMX_ELEMENTS_MOST_LOG2;
    if (rows > most || cols > most || (cols && rows > most / cols))
        return imx_fail(IMBREX_UNSUPPORTED, "%s%s%s is %lld x %lld: want at most 2^%d elements",
                        of ? of : "", of ? "." : "", name, (long long)rows, (long long)cols,
                        IMX_ELEMENTS_MOST_LOG2);
    return IMBREX_OK;
}

imbrex_status imx_status_reserved(const char *of, const char *name)
{
    return imx_fail(IMBREX_UNSUPPORTED,
                    "%s.%s is not 0: zero-initialise the struct, and use the library that its "
                    "header came with",
                    of, name);
}

imbrex_status imx_status_need_place(const void *at, size_t bytes, const char *name)
{
    if (!at || (bytes ? imx_sys_can_read(at, bytes) : imx_sys_can_read_string(at)))
        return IMBREX_OK;
    return imx_fail(IMBREX_INVALID, "%s is %p, where none can be: is desc initialised?", name, at);
}

imbrex_status imx_status_need_zero(const void *reserved, size_t bytes, const char *name)
{
    const char *at = reserved;
    bool zero = !at[0] && memcmp(at, at + 1, bytes - 1) == 0; /* each is as the next */
    return zero ? IMBREX_OK : imx_status_reserved(name, "reserved");
}

const char *imx_status_detail(void)
{
    int at = last.muted > 0;
    return last.said[at].text + last.said[at].detail;
}

const char *imbrex_error(void)
{
    return last.said[0].text;
}

const char *imbrex_status_name(imbrex_status status)
{
    static const char *const names[] = {
        [IMBREX_OK] = "IMBREX_OK",
        [IMBREX_INVALID] = "IMBREX_INVALID",
        [IMBREX_UNSUPPORTED] = "IMBREX_UNSUPPORTED",
        [IMBREX_NO_MEMORY] = "IMBREX_NO_MEMORY",
        [IMBREX_SYSTEM] = "IMBREX_SYSTEM",
        [IMBREX_DEVICE] = "IMBREX_DEVICE",
        [IMBREX_PEER] = "IMBREX_PEER",
        [IMBREX_TIMEOUT] = "IMBREX_TIMEOUT",
        [IMBREX_INTERNAL] = "IMBREX_INTERNAL",
    };
    bool known = (unsigned)status < sizeof names / sizeof names[0];
    return known ? names[status] : "unknown imbrex_status";
}

void imx_text_add(imx_text *text, const char *format, ...)
{
    bool room = text->length < text->size;
    va_list args;
    va_start(args, format);
    int added = print(room ? text->at + text->length : NULL, room ? text->size - text->length : 0,
                      format, args);
    va_end(args);
    text->length += added > 0 ? (size_t)added : 0;
}

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

const char *imbrex_version(void)
{
    return STRING(IMBREX_VERSION_MAJOR) "." STRING(IMBREX_VERSION_MINOR) "." STRING(
        IMBREX_VERSION_PATCH);
}

const char *const imx_dtype_names[IMX_DTYPES] = {
    "default", "bf16", "f16", "f32", "e4m3", "e5m2",
};

const char *imx_dtype_name(imbrex_dtype dtype)
{
    return (unsigned)dtype < IMX_DTYPES ? imx_dtype_names[dtype] : "unknown dtype";
}
