/* ptx_families.c - instructions whose names have parts that go together freely: moves, loads and
 * stores, comparisons, conversions, and what threads do together. */
#include "ptx_decode.h"

static void move(decoder *d)
{
    ptx_insn *insn = d->insn;
    type t = last_type(d);
    const ptx_word *to = word(d, 0), *from = word(d, 1);
    if (from->kind == PTX_WORD_VECTOR) {
        insn->code = PTX_PACK;
        insn->bytes = (uint8_t)(t.bytes / parts(from));
        push_sources(d, 1, insn->bytes);
        insn->d = result(d, 0, t.bytes);
    } else if (to->kind == PTX_WORD_VECTOR) {
        insn->code = PTX_UNPACK;
        insn->bytes = (uint8_t)(t.bytes / parts(to));
        push_results(d, 0, insn->bytes);
        insn->a = source(d, 1, t.bytes);
    } else if (from->kind == PTX_WORD_SPECIAL) {
        int which = ptx_special(from->name);
        d->failed |= which < 0;
        insn->code = PTX_MOV_SPECIAL;
        insn->sub = (uint8_t)which;
        insn->bytes = (uint8_t)t.bytes;
        insn->d = result(d, 0, t.bytes);
    } else if (from->kind == PTX_WORD_SYMBOL) {
        insn->code = from->space == PTX_SHARED ? PTX_MOV_SHARED
                     : t.bytes == 8            ? PTX_MOV_64
                                               : PTX_MOV_32;
        insn->bytes = (uint8_t)t.bytes;
        insn->imm = from->number;
        insn->dynamic = from->dynamic;
        insn->d = result(d, 0, t.bytes);
        if (insn->code != PTX_MOV_SHARED)
            insn->a = constant(d, from->number, t.bytes);
    } else if (t.bytes == 16) {
        insn->code = PTX_MOV_128;
        insn->d = result(d, 0, 16);
        insn->a = source(d, 1, 16);
    } else {
        ptx_decode_by_table(d, ptx_decode_find(d->name));
    }
}

static void load_or_store(decoder *d, bool store)
{
    ptx_insn *insn = d->insn;
    type t = last_type(d);
    read_order(d);
    insn->code = store ? PTX_STORE : PTX_LOAD;
    insn->bytes = (uint8_t)t.bytes;
    insn->kind = (uint8_t)t.kind;
    take_address(d, store ? 0 : 1);
    const ptx_word *data = word(d, store ? 1 : 0);
    insn->to_bytes = (uint8_t)width(d, part(d, data, 0), t.bytes);
    for (int i = 0; i < parts(data); i++) { /* a sink or a number is as wide as the others */
        int own = width(d, part(d, data, i), 0);
        insn->to_bytes = (uint8_t)(own ? own : insn->to_bytes);
    }
    if (store)
        push_sources(d, 1, insn->to_bytes);
    else
        push_results(d, 0, insn->to_bytes);
}

static void atomic(decoder *d, bool result_wanted)
{
    ptx_insn *insn = d->insn;
    type t = last_type(d);
    int op = read_atomic(d), at = result_wanted;
    read_order(d);
    insn->code = PTX_ATOMIC;
    insn->bytes = (uint8_t)t.bytes;
    insn->kind = (uint8_t)t.kind;
    insn->sub = (uint8_t)op;
    d->failed |= op < 0 || (t.bytes != 4 && t.bytes != 8);
    take_address(d, at);
    if (result_wanted)
        insn->d = result(d, 0, t.bytes);
    insn->b = source(d, at + 1, t.bytes);
    if (op == PTX_CAS)
        insn->c = source(d, at + 2, t.bytes);
}

static void set_predicate(decoder *d)
{
    static const char *const compares[] = { "eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                            "neu", "ltu", "leu", "gtu", "geu", "num", "nan" };
    static const char *const unsigned_ones[] = { "lo", "ls", "hi", "hs" };
    static const ptx_compare their[] = { PTX_LT, PTX_LE, PTX_GT, PTX_GE };
    ptx_insn *insn = d->insn;
    const char *last = d->tokens[d->count - 1];
    int compare = -1, at = 1, bytes = 2;
    for (int i = 0; i < 14; i++)
        compare = strcmp(d->tokens[1], compares[i]) == 0 ? i : compare;
    for (int i = 0; i < 4; i++)
        compare = strcmp(d->tokens[1], unsigned_ones[i]) == 0 ? (int)their[i] : compare;
    insn->sub = (uint8_t)compare;
    insn->kind = has(d, "and") ? 1 : has(d, "or") ? 2 : has(d, "xor") ? 3 : 0;
    if (strcmp(last, "f16") == 0 || strcmp(last, "bf16") == 0) {
        insn->code = last[0] == 'f' ? PTX_SETP_F16 : PTX_SETP_BF16;
    } else {
        static const uint16_t codes[3][4] = {
            { PTX_SETP_U16, PTX_SETP_U16, PTX_SETP_S16, PTX_UNKNOWN },
            { PTX_SETP_U32, PTX_SETP_U32, PTX_SETP_S32, PTX_SETP_F32 },
            { PTX_SETP_U64, PTX_SETP_U64, PTX_SETP_S64, PTX_SETP_F64 },
        };
        type t = last_type(d);
        bytes = t.bytes;
        d->failed |= bytes < 2 || bytes > 8;
        insn->code = codes[bytes == 8 ? 2 : bytes == 4][t.kind];
    }
    insn->d = result(d, 0, 0);
    if (d->s->piped)
        insn->e = result(d, at++, 0);
    insn->a = source(d, at, bytes);
    insn->b = source(d, at + 1, bytes);
    if (insn->kind) {
        ptx_word with = *word(d, at + 2);
        insn->to_kind = with.negated;
        with.negated = false;
        insn->c = source_word(d, &with, 0);
    }
    d->failed |= compare < 0;
}

static void convert(decoder *d)
{
    static const char *const roundings[] = { "rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi" };
    ptx_insn *insn = d->insn;
    type to, from;
    d->failed |= d->count < 3 || !read_type(d->tokens[d->count - 2], &to) ||
                 !read_type(d->tokens[d->count - 1], &from);
    if (d->failed)
        return;
    insn->sub = PTX_ROUND_RN;
    for (int i = 0; i < 8; i++) {
        if (has(d, roundings[i]))
            insn->sub = (uint8_t)(i % 4);
    }
    insn->releases = has(d, "sat");
    insn->kind = (uint8_t)from.kind;
    insn->bytes = (uint8_t)from.bytes;
    insn->to_kind = (uint8_t)to.kind;
    insn->to_bytes = (uint8_t)to.bytes;
    bool from_float = from.kind == PTX_FLOAT, to_float = to.kind == PTX_FLOAT;
    if (!from_float && !to_float)
        insn->code = insn->releases ? PTX_UNKNOWN : PTX_CVT_INTEGERS;
    else if (from_float && to_float)
        insn->code = from.bytes == 4 && to.bytes == 4 ? PTX_CVT_F32_F32 : PTX_UNKNOWN;
    else if (to_float)
        insn->code = to.bytes == 4   ? PTX_CVT_F32_INTEGER
                     : to.bytes == 8 ? PTX_CVT_F64_INTEGER
                                     : PTX_UNKNOWN;
    else
        insn->code = from.bytes == 4   ? PTX_CVT_INTEGER_F32
                     : from.bytes == 8 ? PTX_CVT_INTEGER_F64
                                       : PTX_UNKNOWN;
    insn->d = result(d, 0, to.bytes);
    insn->a = source(d, 1, from.bytes);
    /* registers may be wider than the types */
    insn->imm = width(d, word(d, 0), to.bytes) | width(d, word(d, 1), from.bytes) << 8;
}

static void shuffle(decoder *d)
{
    ptx_insn *insn = d->insn;
    int at = 1;
    insn->code = has(d, "up")     ? PTX_SHUFFLE_UP
                 : has(d, "down") ? PTX_SHUFFLE_DOWN
                 : has(d, "bfly") ? PTX_SHUFFLE_XOR
                                  : PTX_SHUFFLE_INDEX;
    insn->d = result(d, 0, 4);
    if (d->s->piped)
        insn->e = result(d, at++, 0);
    insn->a = source(d, at, 4);
    insn->b = source(d, at + 1, 4);
    insn->c = source(d, at + 2, 4);
    push(d, source(d, at + 3, 4));
}

static void block_barrier(decoder *d)
{
    ptx_insn *insn = d->insn;
    bool red = has(d, "red");
    int at = red;
    insn->code = has(d, "arrive") ? PTX_BARRIER_ARRIVE : red ? PTX_BARRIER_RED : PTX_BARRIER;
    insn->sub = has(d, "and") ? PTX_AND : has(d, "or") ? PTX_OR : PTX_ADD;
    if (red)
        insn->d = result(d, 0, insn->sub == PTX_ADD ? 4 : 0);
    insn->a = source(d, at++, 4);
    if (d->s->count > at + red)
        insn->b = source(d, at++, 4);
    if (red) {
        ptx_word with = *word(d, at);
        insn->to_kind = with.negated;
        with.negated = false;
        insn->c = source_word(d, &with, 0);
    }
}

static void elect(decoder *d)
{
    d->insn->code = PTX_ELECT;
    d->insn->d = result(d, 0, 4);
    d->insn->e = result(d, 1, 0);
    d->insn->a = source(d, 2, 4);
}

static void redux(decoder *d)
{
    d->insn->code = PTX_REDUX;
    d->insn->sub = (uint8_t)read_atomic(d);
    d->insn->kind = (uint8_t)last_type(d).kind;
    d->insn->d = result(d, 0, 4);
    d->insn->a = source(d, 1, 4);
    d->insn->b = source(d, 2, 4);
}

/* What a cache shall do with memory: a number that nobody looks at. */
static void policy(decoder *d)
{
    d->insn->code = PTX_MOV_64;
    d->insn->d = result(d, 0, 8);
    d->insn->a = constant(d, 0, 8);
}

/* What asks for nothing that shows here. */
static bool is_nothing(const decoder *d)
{
    static const char *const names[] = { "setmaxnreg", "griddepcontrol", "pmevent", "prefetch",
                                         "prefetchu",  "applypriority",  "discard" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(d->tokens[0], names[i]) == 0)
            return true;
    }
    return false;
}

bool ptx_family_of_values(decoder *d)
{
    ptx_insn *insn = d->insn;
    int code = ptx_decode_find(d->name);
    if (family(d, "mov", NULL) && !has(d, "pred"))
        move(d);
    else if (code != PTX_UNKNOWN)
        ptx_decode_by_table(d, code);
    else if (family(d, "st", "async"))
        return false;
    else if (family(d, "ld", NULL) || family(d, "st", NULL) || family(d, "ldu", NULL))
        load_or_store(d, d->name[0] == 's');
    else if (family(d, "atom", NULL) || family(d, "red", NULL))
        atomic(d, d->name[0] == 'a');
    else if (family(d, "setp", NULL) && d->count > 2)
        set_predicate(d);
    else if (family(d, "cvt", NULL))
        convert(d);
    else if (family(d, "shfl", NULL))
        shuffle(d);
    else if (family(d, "barrier", "cluster"))
        insn->code = has(d, "arrive") ? PTX_CLUSTER_ARRIVE : PTX_CLUSTER_WAIT;
    else if (family(d, "bar", NULL) || family(d, "barrier", NULL))
        block_barrier(d);
    else if (family(d, "membar", NULL) || family(d, "fence", NULL))
        insn->code = PTX_FENCE;
    else if (family(d, "ret", NULL))
        insn->code = PTX_RETURN;
    else if (family(d, "nanosleep", NULL))
        insn->code = PTX_SLEEP;
    else if (is_nothing(d))
        insn->code = PTX_NOTHING;
    else if (family(d, "createpolicy", NULL))
        policy(d);
    else if (family(d, "elect", "sync"))
        elect(d);
    else if (family(d, "redux", "sync"))
        redux(d);
    else
        return false;
    return true;
}
