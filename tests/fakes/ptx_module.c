/* ptx_module.c - what has been read of a module, which grows meanwhile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_text.h"

/* ---- growing --------------------------------------------------------------------------------- */

static void *grown(void *at, uint32_t count, uint32_t *room, size_t each)
{
    if (count < *room)
        return at;
    *room = *room ? 2 * *room : 1024;
    at = realloc(at, *room * each);
    if (!at)
        abort();
    return at;
}

ptx_operand ptx_builder_constant(ptx_builder *b, uint64_t value, ptx_class class)
{
    uint32_t lane = class == PTX_CLASS_128 ? 16 : class == PTX_CLASS_64 ? 8 : 4;
    uint32_t bytes = lane * PTX_LANES;
    ptx_module *m = b->module;
    if (lane == 4)
        value &= 0xffffffffu;
    ptx_constant *known = NULL;
    for (uint32_t i = 0; i < 16; i++) { /* near its place, or there is one more of it */
        uint64_t place = (value + class) * 0x9e3779b97f4a7c15ull >> 51;
        known = &b->constants[(place + i) % PTX_CONSTANTS];
        if (!known->there)
            break;
        if (known->value == value && known->class == (uint32_t) class)
            return known->operand;
    }
    if (m->constant_bytes + bytes > b->constant_room) {
        b->constant_room = 2 * b->constant_room + 4096;
        unsigned char *more = aligned_alloc(64, b->constant_room);
        if (!more)
            abort();
        if (m->constant_bytes)
            memcpy(more, m->constants, m->constant_bytes);
        free(m->constants);
        m->constants = more;
    }
    unsigned char *to = m->constants + m->constant_bytes;
    memset(to, 0, bytes);
    for (uint32_t i = 0; i < PTX_LANES; i++)
        memcpy(to + i * lane, &value, lane < 8 ? lane : 8);
    m->constant_bytes += bytes;
    ptx_operand operand = (ptx_operand)((uint32_t)(to - m->constants) | 1);
    *known = (ptx_constant){ value, class, true, operand };
    return operand;
}

uint32_t ptx_builder_operand(ptx_builder *b, ptx_operand operand)
{
    ptx_module *m = b->module;
    m->operands = grown(m->operands, m->operand_count, &b->operand_room, sizeof *m->operands);
    m->operands[m->operand_count] = operand;
    return m->operand_count++;
}

int ptx_builder_register(ptx_builder *b, ptx_class class, int bytes)
{
    b->registers =
        grown(b->registers, (uint32_t)b->register_count, &b->register_room, sizeof *b->registers);
    b->registers[b->register_count] = (ptx_register_class){ (uint8_t) class, (uint8_t)bytes };
    return b->register_count++;
}

ptx_insn *ptx_builder_insn(ptx_builder *b, uint32_t line)
{
    ptx_module *m = b->module;
    m->insns = grown(m->insns, m->insn_count, &b->insn_room, sizeof *m->insns);
    ptx_insn *insn = &m->insns[m->insn_count++];
    *insn = (ptx_insn){ .guard = PTX_NONE,
                        .d = PTX_NONE,
                        .e = PTX_NONE,
                        .a = PTX_NONE,
                        .b = PTX_NONE,
                        .c = PTX_NONE,
                        .line = line };
    return insn;
}

void ptx_module_free(ptx_module *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->global_count; i++)
        free(m->globals[i].at);
    free(m->globals);
    free(m->functions);
    free(m->constants);
    free(m->operands);
    free(m->insns);
    free(m->text);
    free(m);
}

const ptx_function *ptx_module_function(const ptx_module *m, const char *wanted)
{
    for (int i = 0; i < m->function_count; i++) {
        if (strcmp(m->functions[i].name, wanted) == 0)
            return &m->functions[i];
    }
    return NULL;
}

const ptx_global *ptx_module_global(const ptx_module *m, const char *wanted)
{
    for (int i = 0; i < m->global_count; i++) {
        if (strcmp(m->globals[i].name, wanted) == 0)
            return &m->globals[i];
    }
    return NULL;
}

const char *ptx_module_line(const ptx_module *m, uint32_t line, char to[160])
{
    const char *at = m->text;
    for (uint32_t i = 1; i < line && at; i++)
        at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
    at = at ? at + strspn(at, " \t") : "";
    snprintf(to, 160, "%.*s", (int)strcspn(at, "\n"), at);
    return to;
}
