/* ptx_decode.h - an instruction while its code is looked for: its name's parts, and how operands of
 * all kinds become an instruction's.  For ptx_decode.c and ptx_families.c. */
#ifndef PTX_DECODE_H
#define PTX_DECODE_H

#include <stdlib.h>
#include <string.h>

#include "ptx_run.h"
#include "ptx_text.h"

typedef struct decoder {
    ptx_builder *b;
    const ptx_statement *s;
    ptx_insn *insn;
    char name[160];
    const char *tokens[20]; /* of the name, at its points */
    int count;
    bool failed;
} decoder;

static inline bool has(const decoder *d, const char *token)
{
    for (int i = 0; i < d->count; i++) {
        if (strcmp(d->tokens[i], token) == 0)
            return true;
    }
    return false;
}

static inline bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Of tokens in this order: whether the name begins with them. */
static inline bool family(const decoder *d, const char *x, const char *y)
{
    return strcmp(d->tokens[0], x) == 0 && (!y || (d->count > 1 && strcmp(d->tokens[1], y) == 0));
}

/* The number of a token, or of what follows a prefix: "v4", "m64n8k16" with 'k'. */
static inline int number_after(const decoder *d, int token, char letter)
{
    const char *at = strchr(d->tokens[token], letter);
    return at ? atoi(at + 1) : 0;
}

typedef struct type {
    ptx_kind kind;
    int bytes;
} type;

static inline bool read_type(const char *token, type *t)
{
    static const struct {
        char letter;
        ptx_kind kind;
    } kinds[] = {
        { 'b', PTX_BITS }, { 'u', PTX_UNSIGNED }, { 's', PTX_SIGNED }, { 'f', PTX_FLOAT }
    };
    int bits = atoi(token + 1);
    for (int i = 0; i < 4; i++) {
        if (token[0] == kinds[i].letter && bits >= 8 &&
            strspn(token + 1, "0123456789") == strlen(token + 1)) {
            *t = (type){ kinds[i].kind, bits / 8 };
            return true;
        }
    }
    return false;
}

static inline type last_type(decoder *d)
{
    type t = { PTX_BITS, 4 };
    if (!read_type(d->tokens[d->count - 1], &t))
        d->failed = true;
    return t;
}

/* ---- operands -------------------------------------------------------------------------------- */

static inline ptx_class class_of(int bytes)
{
    return bytes == 0   ? PTX_CLASS_P
           : bytes < 8  ? PTX_CLASS_32
           : bytes == 8 ? PTX_CLASS_64
                        : PTX_CLASS_128;
}

static inline ptx_operand constant(decoder *d, int64_t value, int bytes)
{
    uint64_t bits = (uint64_t)value;
    if (bytes == 0)
        bits = value ? 0xffffffffu : 0;
    if (bytes == 2)
        bits &= 0xffff;
    if (bytes == 1)
        bits &= 0xff;
    return ptx_builder_constant(d->b, bits, class_of(bytes));
}

/* bytes: 0 of a predicate. */
static inline ptx_operand source_word(decoder *d, const ptx_word *w, int bytes)
{
    if (w->negated)
        d->failed = true;
    if (w->kind == PTX_WORD_REGISTER)
        return 4 * w->reg;
    if (w->kind == PTX_WORD_NAME && strcmp(w->name, "WARP_SZ") == 0)
        return constant(d, PTX_LANES, bytes);
    if (w->kind != PTX_WORD_NUMBER)
        d->failed = true;
    return constant(d, w->number, bytes);
}

static inline const ptx_word *word(decoder *d, int index)
{
    static const ptx_word none = { .kind = PTX_WORD_SINK };
    if (index < d->s->count)
        return &d->s->words[index];
    d->failed = true;
    return &none;
}

static inline ptx_operand source(decoder *d, int index, int bytes)
{
    return source_word(d, word(d, index), bytes);
}

static inline ptx_operand result_word(decoder *d, const ptx_word *w, int bytes)
{
    if (w->kind == PTX_WORD_REGISTER)
        return 4 * w->reg;
    if (w->kind != PTX_WORD_SINK)
        d->failed = true;
    return 4 * ptx_builder_register(d->b, class_of(bytes), bytes);
}

static inline ptx_operand result(decoder *d, int index, int bytes)
{
    return result_word(d, word(d, index), bytes);
}

/* Bytes that a register has, or those of the type. */
static inline int width(const decoder *d, const ptx_word *w, int bytes)
{
    return w->kind == PTX_WORD_REGISTER ? d->b->registers[w->reg].bytes : bytes;
}

static inline void push(decoder *d, ptx_operand operand)
{
    uint32_t at = ptx_builder_operand(d->b, operand);
    if (!d->insn->list_count)
        d->insn->list = at;
    d->insn->list_count++;
}

static inline const ptx_word *part(const decoder *d, const ptx_word *w, int i)
{
    return w->kind == PTX_WORD_VECTOR || w->kind == PTX_WORD_ADDRESS ? &d->s->parts[w->parts + i]
                                                                     : w;
}

static inline int parts(const ptx_word *w)
{
    return w->kind == PTX_WORD_VECTOR ? w->part_count : 1;
}

static inline void push_results(decoder *d, int index, int bytes)
{
    const ptx_word *w = word(d, index);
    for (int i = 0; i < parts(w); i++)
        push(d, result_word(d, part(d, w, i), bytes));
    d->insn->results = d->insn->list_count;
}

static inline void push_sources(decoder *d, int index, int bytes)
{
    const ptx_word *w = word(d, index);
    for (int i = 0; i < parts(w); i++)
        push(d, source_word(d, part(d, w, i), bytes));
}

/* The one address of an instruction. */
static inline void take_address(decoder *d, int index)
{
    const ptx_word *w = word(d, index);
    ptx_insn *insn = d->insn;
    insn->imm = w->number;
    if (w->kind != PTX_WORD_ADDRESS) {
        d->failed = true;
    } else if (w->base == PTX_WORD_REGISTER) {
        insn->a = 4 * w->reg;
        insn->wide = d->b->registers[w->reg].bytes == 8;
    } else if (w->base == PTX_WORD_SYMBOL) {
        insn->dynamic = w->dynamic;
        insn->space = (uint8_t)w->space; /* an argument of a call is .param, too */
    } else if (w->base != PTX_WORD_NUMBER) {
        d->failed = true;
    }
}

/* One of several: what to add, and to what. */
static inline void push_address(decoder *d, int index)
{
    const ptx_word *w = word(d, index);
    if (w->kind != PTX_WORD_ADDRESS || w->base != PTX_WORD_REGISTER) {
        d->failed = true;
        return;
    }
    ptx_operand offset = constant(d, w->number, 8);
    bool wide = d->b->registers[w->reg].bytes == 8;
    push(d, 4 * w->reg);
    push(d, offset);
    push(d, constant(d, wide, 4));
}

static inline ptx_space read_space(const decoder *d)
{
    static const struct {
        const char *token;
        ptx_space space;
    } spaces[] = { { "global", PTX_GLOBAL },
                   { "const", PTX_GLOBAL },
                   { "shared", PTX_SHARED },
                   { "shared::cta", PTX_SHARED },
                   { "shared::cluster", PTX_CLUSTER },
                   { "local", PTX_LOCAL },
                   { "param", PTX_PARAM } };
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        if (has(d, spaces[i].token))
            return spaces[i].space;
    }
    return PTX_GENERIC;
}

static inline void read_order(decoder *d)
{
    d->insn->acquires = has(d, "acquire") || has(d, "acq_rel") || has(d, "sc");
    d->insn->releases = has(d, "release") || has(d, "acq_rel") || has(d, "sc");
    d->insn->space = (uint8_t)read_space(d);
}

static inline int read_atomic(const decoder *d)
{
    static const char *const names[] = { "add", "min",  "max", "inc", "dec",
                                         "cas", "exch", "and", "or",  "xor" };
    for (int i = 0; i < 10; i++) {
        if (has(d, names[i]))
            return i;
    }
    return -1;
}

/* By the table of ptx_codes.h. */
void ptx_decode_by_table(decoder *d, int code);
int ptx_decode_find(const char *name);

/* Families; true: it is one of these. */
bool ptx_family_of_values(decoder *d);
bool ptx_family_of_copies(decoder *d);

#endif /* PTX_DECODE_H */
