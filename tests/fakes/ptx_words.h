/* ptx_words.h - PTX as words, and the names that are known at a place of it.  For ptx_parse.c. */
#ifndef PTX_WORDS_H
#define PTX_WORDS_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_text.h"

enum { NAMES_MOST = 512, LABELS_MOST = 1 << 16, WORD_BYTES = 256, SCOPES_MOST = 16 };

/* A name that is declared: a register, some of them (%r<100>), or a variable. */
typedef struct name {
    const char *text;
    size_t length;
    int scope;
    int reg, count; /* of registers, else -1; count 0: not a range */
    ptx_space space;
    int64_t at; /* where the variable is */
    bool dynamic;
} name;

typedef struct label {
    const char *name;
    int scope;
    uint32_t insn; /* here, or which goes there */
    bool call;
} label;

typedef struct reader {
    ptx_builder b;
    const char *at;
    uint32_t line;
    char word[WORD_BYTES]; /* the last one read */
    name names[NAMES_MOST];
    int name_count, scopes[SCOPES_MOST], depth, scope_count;
    int parents[4096];
    label *labels, *jumps;
    int label_count, jump_count;
    char *kept; /* names that outlive their line */
    size_t kept_used, kept_room;
    char *why;
    jmp_buf out;
} reader;

static inline _Noreturn void complain(reader *r, const char *what)
{
    snprintf(r->why, 256, "PTX line %u: %s, at \"%.40s\"", r->line, what, r->word);
    longjmp(r->out, 1);
}

/* ---- words ----------------------------------------------------------------------------------- */

static inline void skip_blanks(reader *r)
{
    for (;; r->at++) {
        if (r->at[0] == '/' && r->at[1] == '/')
            r->at += strcspn(r->at, "\n");
        while (r->at[0] == '/' && r->at[1] == '*') {
            const char *end = strstr(r->at, "*/");
            for (; end && r->at < end + 2; r->at++)
                r->line += *r->at == '\n';
        }
        if (*r->at == '\n')
            r->line++;
        else if (*r->at != ' ' && *r->at != '\t' && *r->at != '\r')
            return;
    }
}

static inline bool in_word(const char *at)
{
    return (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9') ||
           (*at && strchr("_$%.", *at));
}

/* The next word, a character if it is none; "" at the end. */
static inline const char *take(reader *r)
{
    size_t n = 0;
    skip_blanks(r);
    while (n < WORD_BYTES - 3 && (in_word(r->at) || (n && r->at[0] == ':' && r->at[1] == ':'))) {
        if (*r->at == ':')
            r->word[n++] = *r->at++;
        r->word[n++] = *r->at++;
    }
    if (!n && *r->at)
        r->word[n++] = *r->at++;
    r->word[n] = '\0';
    return r->word;
}

static inline char peek(reader *r)
{
    skip_blanks(r);
    return *r->at;
}

static inline bool accept(reader *r, char c)
{
    bool there = peek(r) == c;
    r->at += there;
    return there;
}

static inline void want(reader *r, char c)
{
    char what[] = "want a ' '";
    what[8] = c;
    if (!accept(r, c)) {
        take(r);
        complain(r, what);
    }
}

static inline bool is(const reader *r, const char *word)
{
    return strcmp(r->word, word) == 0;
}

static inline const char *keep(reader *r, const char *word)
{
    size_t bytes = strlen(word) + 1;
    if (r->kept_used + bytes > r->kept_room)
        complain(r, "too many names");
    char *at = r->kept + r->kept_used;
    r->kept_used += bytes;
    return memcpy(at, word, bytes);
}

static inline int64_t number_of(reader *r, const char *word)
{
    char *end;
    if (word[0] == '0' && (word[1] == 'f' || word[1] == 'F' || word[1] == 'd' || word[1] == 'D'))
        return (int64_t)strtoull(word + 2, NULL, 16);
    if (strchr(word, '.')) /* a share of a cache: nothing here asks for it */
        return 0;
    int64_t value = (int64_t)strtoull(word, &end, 0);
    if (end == word || (*end && strcmp(end, "U") != 0))
        complain(r, "want a number");
    return value;
}

static inline int64_t take_number(reader *r)
{
    bool minus = accept(r, '-');
    int64_t value = number_of(r, take(r));
    return minus ? -value : value;
}

/* ---- names ----------------------------------------------------------------------------------- */

static inline void open_scope(reader *r)
{
    if (r->depth + 1 == SCOPES_MOST)
        complain(r, "too many braces");
    int parent = r->scopes[r->depth];
    r->scopes[++r->depth] = ++r->scope_count;
    if (r->scope_count < 4096)
        r->parents[r->scope_count] = parent;
    else
        complain(r, "too many scopes");
}

static inline void close_scope(reader *r)
{
    int scope = r->scopes[r->depth--];
    while (r->name_count && r->names[r->name_count - 1].scope == scope)
        r->name_count--;
}

static inline name *declare(reader *r, const char *text)
{
    if (r->name_count == NAMES_MOST)
        complain(r, "too many names");
    name *n = &r->names[r->name_count++];
    *n = (name){ .text = keep(r, text), .scope = r->scopes[r->depth], .reg = -1 };
    n->length = strlen(text);
    return n;
}

/* *index: which one of a range. */
static inline const name *find(const reader *r, const char *text, int *index)
{
    size_t length = strlen(text), digits = length;
    while (digits && text[digits - 1] >= '0' && text[digits - 1] <= '9')
        digits--;
    for (int i = r->name_count - 1; i >= 0; i--) {
        const name *n = &r->names[i];
        size_t wanted = n->count ? digits : length;
        if (n->length != wanted || memcmp(n->text, text, wanted) != 0)
            continue;
        *index = n->count ? atoi(text + digits) : 0;
        if (!n->count || (digits < length && *index < n->count))
            return n;
    }
    return NULL;
}

static inline size_t type_bytes(reader *r, const char *type)
{
    size_t length = strlen(type);
    if (strcmp(type, ".pred") == 0)
        return 0;
    if (strcmp(type, ".bf16x2") == 0 || strcmp(type, ".f16x2") == 0)
        return 4;
    while (length && type[length - 1] >= '0' && type[length - 1] <= '9')
        length--;
    int bits = atoi(type + length);
    if (type[0] != '.' || bits < 8 || bits > 128)
        complain(r, "want a type");
    return (size_t)bits / 8;
}

static inline uint32_t aligned(uint32_t at, size_t to)
{
    return (at + (uint32_t)to - 1) / (uint32_t)to * (uint32_t)to;
}

#endif /* PTX_WORDS_H */
