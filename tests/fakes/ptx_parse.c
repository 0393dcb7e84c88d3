/* ptx_parse.c - reads PTX: declarations and statements, with the scopes that braces make. */
#include "ptx_words.h"

/* ---- branches -------------------------------------------------------------------------------- */

static void jump(reader *r, const char *to, bool call)
{
    if (r->jump_count == LABELS_MOST)
        complain(r, "too many branches");
    r->jumps[r->jump_count++] =
        (label){ keep(r, to), r->scopes[r->depth], r->b.module->insn_count, call };
}

static void put_label(reader *r, const char *text)
{
    if (r->label_count == LABELS_MOST)
        complain(r, "too many labels");
    r->labels[r->label_count++] =
        (label){ keep(r, text), r->scopes[r->depth], r->b.module->insn_count, false };
}

static int compare_labels(const void *x, const void *y)
{
    const label *a = x, *b = y;
    int order = strcmp(a->name, b->name);
    return order ? order : (a->scope > b->scope) - (a->scope < b->scope);
}

/* All of a function are known: innermost scope first. */
static void resolve_jumps(reader *r)
{
    qsort(r->labels, (size_t)r->label_count, sizeof *r->labels, compare_labels);
    int calls = 0;
    for (int i = 0; i < r->jump_count; i++) {
        label wanted = r->jumps[i], *found = NULL;
        if (wanted.call) {
            r->jumps[calls++] = wanted;
            continue;
        }
        for (int scope = wanted.scope; !found && scope >= 0; scope = r->parents[scope]) {
            wanted.scope = scope;
            found = bsearch(&wanted, r->labels, (size_t)r->label_count, sizeof *r->labels,
                            compare_labels);
        }
        if (!found) {
            snprintf(r->word, sizeof r->word, "%s", wanted.name);
            complain(r, "no such label");
        }
        r->b.module->insns[wanted.insn].imm = found->insn;
    }
    r->jump_count = calls;
    r->label_count = 0;
}

/* ---- variables ------------------------------------------------------------------------------- */

static void read_registers(reader *r)
{
    size_t bytes = type_bytes(r, take(r));
    ptx_class class = !bytes       ? PTX_CLASS_P
                      : bytes < 8  ? PTX_CLASS_32
                      : bytes == 8 ? PTX_CLASS_64
                                   : PTX_CLASS_128;
    do {
        name *n = declare(r, take(r));
        n->reg = r->b.register_count;
        if (accept(r, '<')) {
            n->count = (int)take_number(r);
            want(r, '>');
        }
        for (int i = 0; i < (n->count ? n->count : 1); i++)
            ptx_builder_register(&r->b, class, (int)bytes);
    } while (accept(r, ','));
    want(r, ';');
}

typedef struct variable {
    size_t align, element, count;
    bool open; /* [] */
    char name[WORD_BYTES];
} variable;

/* ".align 8 .b8 name[24]" */
static variable read_variable(reader *r)
{
    variable v = { .count = 1 };
    while (*take(r) == '.' && (is(r, ".align") || is(r, ".attribute") || is(r, ".ptr") ||
                               is(r, ".v2") || is(r, ".v4"))) {
        if (is(r, ".align"))
            v.align = (size_t)take_number(r);
        else if (is(r, ".v2") || is(r, ".v4"))
            v.count = (size_t)(r->word[2] - '0');
        else if (is(r, ".attribute"))
            while (*take(r) != ')')
                ;
    }
    v.element = type_bytes(r, r->word);
    v.align = v.align ? v.align : v.element * v.count;
    take(r);
    while (is(r, ".ptr") || is(r, ".global") || is(r, ".shared") || is(r, ".align"))
        is(r, ".align") ? (void)(v.align = (size_t)take_number(r), take(r)) : (void)take(r);
    snprintf(v.name, sizeof v.name, "%s", r->word);
    while (accept(r, '[')) {
        v.open = peek(r) == ']';
        v.count *= v.open ? 0 : (size_t)take_number(r);
        want(r, ']');
    }
    return v;
}

static void read_values(reader *r, const variable *v, unsigned char *at, size_t bytes)
{
    size_t used = 0;
    bool braces = accept(r, '{');
    do {
        if (braces && peek(r) == '}')
            break;
        int64_t value = take_number(r);
        if (used + v->element > bytes)
            complain(r, "too many values");
        memcpy(at + used, &value, v->element);
        used += v->element;
    } while (braces && accept(r, ','));
    if (braces)
        want(r, '}');
}

static void read_global(reader *r)
{
    ptx_module *m = r->b.module;
    variable v = read_variable(r);
    size_t bytes = v.element * v.count;
    m->globals = realloc(m->globals, (size_t)(m->global_count + 1) * sizeof *m->globals);
    ptx_global *g = &m->globals[m->global_count++];
    g->name = keep(r, v.name);
    g->bytes = bytes;
    g->at = aligned_alloc(128, (bytes + 128) / 128 * 128);
    memset(g->at, 0, bytes);
    name *n = declare(r, v.name);
    n->space = PTX_GLOBAL;
    n->at = (int64_t)(uintptr_t)g->at;
    if (accept(r, '='))
        read_values(r, &v, g->at, bytes);
    want(r, ';');
}

static void read_shared(reader *r)
{
    ptx_module *m = r->b.module;
    variable v = read_variable(r);
    name *n = declare(r, v.name);
    n->space = PTX_SHARED;
    n->dynamic = v.open;
    if (v.open) {
        m->dynamic_shared = v.align > m->dynamic_shared ? (uint32_t)v.align : m->dynamic_shared;
    } else {
        m->shared_bytes = aligned(m->shared_bytes, v.align);
        n->at = m->shared_bytes;
        m->shared_bytes += (uint32_t)(v.element * v.count);
    }
    want(r, ';');
}

/* A thread's memory: no function calls itself, so each has its own of all. */
static name *declare_local(reader *r, const variable *v)
{
    ptx_module *m = r->b.module;
    name *n = declare(r, v->name);
    m->local_bytes = aligned(m->local_bytes, v->align);
    n->space = PTX_LOCAL;
    n->at = m->local_bytes;
    m->local_bytes += (uint32_t)(v->element * v->count);
    return n;
}

static void read_local(reader *r)
{
    variable v = read_variable(r);
    declare_local(r, &v);
    want(r, ';');
}

/* ---- operands -------------------------------------------------------------------------------- */

static ptx_word read_word(reader *r, ptx_statement *s);

/* What follows '{': words up to '}', into s->parts. */
static void read_parts(reader *r, ptx_statement *s, ptx_word *w)
{
    ptx_word own[PTX_PARTS_MOST];
    int count = 0;
    do {
        if (count == PTX_PARTS_MOST)
            complain(r, "too many operands in braces");
        own[count++] = read_word(r, s);
    } while (accept(r, ','));
    want(r, '}');
    if (s->part_count + count > PTX_PARTS_MOST)
        complain(r, "too many operands in braces");
    w->parts = s->part_count;
    w->part_count = count;
    memcpy(s->parts + s->part_count, own, (size_t)count * sizeof *own);
    s->part_count += count;
}

static ptx_word read_address(reader *r, ptx_statement *s)
{
    ptx_word w = read_word(r, s);
    w.base = w.kind;
    w.kind = PTX_WORD_ADDRESS;
    while (peek(r) == '+' || peek(r) == '-') {
        if (accept(r, '+'))
            w.number += take_number(r);
        else
            w.number += take_number(r); /* with its sign */
    }
    if (accept(r, ',')) {
        want(r, '{');
        read_parts(r, s, &w);
    }
    want(r, ']');
    return w;
}

static ptx_word read_word(reader *r, ptx_statement *s)
{
    ptx_word w = { .kind = PTX_WORD_NUMBER };
    char first = peek(r);
    int index = 0;
    if (accept(r, '{')) {
        w.kind = PTX_WORD_VECTOR;
        read_parts(r, s, &w);
        return w;
    }
    if (accept(r, '['))
        return read_address(r, s);
    w.negated = accept(r, '!');
    if (first == '-' || (first >= '0' && first <= '9')) {
        w.number = take_number(r);
        return w;
    }
    take(r);
    const name *n = find(r, r->word, &index);
    if (n && n->reg >= 0) {
        w.kind = PTX_WORD_REGISTER;
        w.reg = n->reg + index;
    } else if (n && n->space == PTX_GLOBAL) {
        w.number = n->at;
    } else if (n) {
        w.kind = PTX_WORD_SYMBOL;
        w.space = n->space;
        w.number = n->at;
        w.dynamic = n->dynamic;
    } else {
        w.kind = is(r, "_") ? PTX_WORD_SINK : first == '%' ? PTX_WORD_SPECIAL : PTX_WORD_NAME;
        w.name = keep(r, r->word);
    }
    return w;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Copies between two variables of a thread's memory. */
static void copy_local(reader *r, int64_t to, int64_t from, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += 4) {
        int through = ptx_builder_register(&r->b, PTX_CLASS_32, 4);
        uint32_t list = ptx_builder_operand(&r->b, 4 * through);
        for (int store = 0; store < 2; store++) {
            ptx_insn *insn = ptx_builder_insn(&r->b, r->line);
            insn->code = store ? PTX_STORE : PTX_LOAD;
            insn->space = PTX_LOCAL;
            insn->bytes = 4;
            insn->imm = (store ? to : from) + at;
            insn->list = list;
            insn->list_count = 1;
            insn->results = !store;
        }
    }
}

static const ptx_function *find_function(reader *r, const char *wanted)
{
    const ptx_function *f = ptx_module_function(r->b.module, wanted);
    if (!f) {
        snprintf(r->word, sizeof r->word, "%s", wanted);
        complain(r, "no such function before this line");
    }
    return f;
}

/* "(result), function, (params)": arguments are variables of this thread. */
static void read_call(reader *r, int guard, bool unless)
{
    ptx_statement none = { 0 };
    ptx_word result = { 0 }, args[PTX_PARAMS_MOST];
    char callee[WORD_BYTES];
    int count = 0;
    if (accept(r, '(')) {
        result = read_word(r, &none);
        want(r, ')');
        want(r, ',');
    }
    snprintf(callee, sizeof callee, "%s", take(r));
    if (accept(r, ',')) {
        want(r, '(');
        while (peek(r) != ')' && count < PTX_PARAMS_MOST) {
            args[count++] = read_word(r, &none);
            accept(r, ',');
        }
        want(r, ')');
    }
    want(r, ';');
    const ptx_function *f = find_function(r, callee);
    for (int i = 0; i < count && i < f->param_count; i++)
        copy_local(r, f->params[i].at, args[i].number, f->params[i].bytes);
    jump(r, callee, true);
    ptx_insn *insn = ptx_builder_insn(&r->b, r->line);
    insn->code = PTX_CALL;
    insn->guard = guard < 0 ? PTX_NONE : 4 * guard;
    insn->unless = unless;
    if (result.kind == PTX_WORD_SYMBOL)
        copy_local(r, result.number, f->result.at, f->result.bytes);
}

/* ---- statements ------------------------------------------------------------------------------ */

static void read_instruction(reader *r, const char *first, int guard, bool unless)
{
    static _Thread_local ptx_statement s;
    s.name = keep(r, first);
    s.count = s.part_count = 0;
    s.piped = false;
    s.guard = guard;
    s.unless = unless;
    s.line = r->line;
    while (peek(r) != ';') {
        if (s.count == PTX_OPERANDS_MOST)
            complain(r, "too many operands");
        s.words[s.count++] = read_word(r, &s);
        if (accept(r, '|'))
            s.piped = true;
        else
            accept(r, ',');
    }
    want(r, ';');
    bool branches = strncmp(s.name, "bra", 3) == 0 && (s.name[3] == '.' || !s.name[3]);
    if (branches)
        jump(r, s.words[0].name ? s.words[0].name : "", false);
    ptx_insn *insn = ptx_builder_insn(&r->b, r->line);
    uint32_t index = r->b.module->insn_count - 1;
    insn->line = s.line;
    insn->guard = guard < 0 ? PTX_NONE : 4 * guard;
    insn->unless = unless;
    ptx_insn decoded = *insn; /* constants and operands grow meanwhile */
    if (branches)
        decoded.code = PTX_BRANCH;
    else
        ptx_decode(&r->b, &s, &decoded);
    r->b.module->insns[index] = decoded;
}

static void read_statement(reader *r)
{
    bool unless = false;
    int guard = -1, index = 0;
    if (accept(r, '@')) {
        unless = accept(r, '!');
        const name *n = find(r, take(r), &index);
        if (!n || n->reg < 0)
            complain(r, "want a predicate");
        guard = n->reg + index;
    }
    char first[WORD_BYTES];
    snprintf(first, sizeof first, "%s", take(r));
    if (accept(r, ':'))
        put_label(r, first);
    else if (strncmp(first, "call", 4) == 0 && (!first[4] || first[4] == '.'))
        read_call(r, guard, unless);
    else
        read_instruction(r, first, guard, unless);
}

/* Whether it is a directive within a function, which has been read then. */
static bool read_directive(reader *r)
{
    if (peek(r) != '.')
        return false;
    take(r);
    if (is(r, ".reg"))
        read_registers(r);
    else if (is(r, ".shared"))
        read_shared(r);
    else if (is(r, ".local") || is(r, ".param"))
        read_local(r);
    else if (is(r, ".pragma") || is(r, ".loc"))
        r->at += strcspn(r->at, is(r, ".loc") ? "\n" : ";") + !is(r, ".loc");
    else
        complain(r, "an unknown directive");
    return true;
}

static void read_body(reader *r)
{
    int depth = r->depth;
    want(r, '{');
    open_scope(r);
    while (r->depth > depth) {
        if (accept(r, '{'))
            open_scope(r);
        else if (accept(r, '}'))
            close_scope(r);
        else if (!peek(r))
            complain(r, "a function without an end");
        else if (!read_directive(r))
            read_statement(r);
    }
}

/* ---- functions ------------------------------------------------------------------------------- */

static ptx_param read_param(reader *r, ptx_function *f)
{
    if (strcmp(take(r), ".param") != 0)
        complain(r, "want a .param");
    variable v = read_variable(r);
    ptx_param param = { .bytes = (uint32_t)(v.element * v.count) };
    if (f->entry) {
        name *n = declare(r, v.name);
        n->space = PTX_PARAM;
        n->at = f->param_bytes = aligned(f->param_bytes, v.align);
        f->param_bytes += param.bytes;
        param.name = n->text;
        param.at = (uint32_t)n->at;
    } else {
        name *n = declare_local(r, &v);
        param.name = n->text;
        param.at = (uint32_t)n->at;
        r->b.module->local_bytes = aligned(r->b.module->local_bytes, 4);
    }
    return param;
}

static void read_function(reader *r, bool entry)
{
    ptx_module *m = r->b.module;
    int outer = r->scopes[r->depth], names = r->name_count;
    ptx_function f = { .entry = entry, .back = PTX_NONE };
    open_scope(r);
    r->b.register_count = 0;
    if (!entry && accept(r, '(')) {
        f.result = read_param(r, &f);
        want(r, ')');
    }
    f.name = keep(r, take(r));
    if (accept(r, '(')) {
        while (peek(r) != ')') {
            if (f.param_count == PTX_PARAMS_MOST)
                complain(r, "too many parameters");
            ptx_param param = read_param(r, &f);
            f.params[f.param_count++] = param;
            accept(r, ',');
        }
        want(r, ')');
    }
    while (peek(r) == '.') {
        take(r);
        if (is(r, ".maxntid") || is(r, ".reqntid"))
            f.threads_most = (int)take_number(r);
        while (peek(r) != '.' && peek(r) != '{' && peek(r) != ';')
            take(r);
    }
    if (f.param_bytes > PTX_PARAM_BYTES)
        complain(r, "too many bytes of parameters");
    ptx_function *old = (ptx_function *)(uintptr_t)ptx_module_function(m, f.name);
    bool body = peek(r) == '{';
    if (!old) {
        m->functions =
            realloc(m->functions, (size_t)(m->function_count + 1) * sizeof *m->functions);
        old = &m->functions[m->function_count++];
    } else if (body && !entry) { /* callers know the places that it was declared with */
        memcpy(f.params, old->params, sizeof f.params);
        f.result = old->result;
        complain(r, "a function that is declared before it comes");
    }
    int index = (int)(old - m->functions);
    *old = f;
    if (body) {
        if (!entry)
            f.back = 4 * ptx_builder_register(&r->b, PTX_CLASS_32, 4);
        f.first = m->insn_count;
        read_body(r);
        ptx_insn *last = ptx_builder_insn(&r->b, r->line);
        last->code = entry ? PTX_EXIT : PTX_RETURN;
        f.end = m->insn_count;
        for (uint32_t i = f.first; entry && i < f.end; i++) {
            if (m->insns[i].code == PTX_RETURN)
                m->insns[i].code = PTX_EXIT;
        }
        resolve_jumps(r);
        m->register_bytes = ptx_registers_place(&r->b, &f, m->register_bytes);
        m->functions[index] = f;
    } else {
        want(r, ';');
    }
    r->depth--;
    r->name_count = names;
    (void)outer;
}

static void read_top(reader *r)
{
    take(r);
    if (is(r, ".version") || is(r, ".target") || is(r, ".address_size") || is(r, ".file"))
        r->at += strcspn(r->at, "\n");
    else if (is(r, ".visible") || is(r, ".extern") || is(r, ".weak") || is(r, ".common"))
        ;
    else if (is(r, ".global") || is(r, ".const"))
        read_global(r);
    else if (is(r, ".shared"))
        read_shared(r);
    else if (is(r, ".entry") || is(r, ".func"))
        read_function(r, is(r, ".entry"));
    else if (is(r, ".pragma"))
        r->at += strcspn(r->at, ";") + 1;
    else
        complain(r, "an unknown directive");
}

/* ---- all ------------------------------------------------------------------------------------- */

/* What only the end of the text says: where functions and the dynamic shared memory begin. */
static void finish(reader *r)
{
    ptx_module *m = r->b.module;
    m->local_bytes = aligned(m->local_bytes, 16); /* lanes' lie one behind the other */
    m->dynamic_shared =
        aligned(m->shared_bytes + PTX_SHARED_BASE, m->dynamic_shared ? m->dynamic_shared : 16) -
        PTX_SHARED_BASE;
    for (uint32_t i = 0; i < m->insn_count; i++) {
        const ptx_insn *insn = &m->insns[i];
        if (insn->dynamic)
            m->insns[i].imm += m->dynamic_shared;
        m->lines |= (insn->code == PTX_LOAD || insn->code == PTX_STORE) && insn->bytes == 16;
    }
    for (int i = 0; i < r->jump_count; i++) {
        const ptx_function *f = find_function(r, r->jumps[i].name);
        ptx_insn *call = &m->insns[r->jumps[i].insn];
        call->imm = f->first;
        call->d = f->back;
    }
}

static void end(reader *r)
{
    free(r->b.registers);
    free(r->labels);
    free(r->jumps);
    free(r);
}

ptx_module *ptx_module_read(const char *text, char why[256])
{
    reader *r = calloc(1, sizeof *r);
    ptx_module *m = r ? calloc(1, sizeof *m) : NULL;
    if (!m)
        abort();
    size_t length = strlen(text);
    r->kept_room = 2 * length + 65536;
    m->text = malloc(length + 1 + r->kept_room);
    r->labels = calloc(LABELS_MOST, sizeof *r->labels);
    r->jumps = calloc(LABELS_MOST, sizeof *r->jumps);
    if (!m->text || !r->labels || !r->jumps)
        abort();
    memcpy(m->text, text, length + 1);
    r->kept = m->text + length + 1;
    r->b.module = m;
    r->at = m->text;
    r->line = 1;
    r->why = why;
    r->parents[0] = -1;
    if (setjmp(r->out)) {
        end(r);
        ptx_module_free(m);
        return NULL;
    }
    while (peek(r))
        read_top(r);
    finish(r);
    end(r);
    return m;
}
