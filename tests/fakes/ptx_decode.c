/* ptx_decode.c - from an instruction's name and operands to its code: most stand in the table of
 * ptx_codes.h, the others are families whose names say more. */
#include "ptx_decode.h"

/* ---- names ----------------------------------------------------------------------------------- */

static const struct {
    const char *operands, *names;
} table[] = {
#define PTX_CODE(code, operands, names) { operands, names },
#include "ptx_codes.h"
#undef PTX_CODE
};

/* Whether name stands in a list with blanks between. */
static bool listed(const char *names, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = names; (at = strstr(at, name)); at += length) {
        if ((at == names || at[-1] == ' ') && (at[length] == ' ' || !at[length]))
            return true;
    }
    return false;
}

int ptx_decode_find(const char *name)
{
    for (int i = 0; i < PTX_CODES; i++) {
        if (listed(table[i].names, name))
            return i;
    }
    return PTX_UNKNOWN;
}

void ptx_decode_by_table(decoder *d, int code)
{
    const char *format = table[code].operands, *equals = strchr(format, '=');
    ptx_operand *to[] = { &d->insn->a, &d->insn->b, &d->insn->c };
    size_t length = strlen(d->name);
    bool short_ones = length > 3 && strcmp(d->name + length - 2, "16") == 0;
    int index = 0;
    d->insn->code = (uint16_t)code;
    for (const char *at = format; *at; at++) {
        int bytes = *at == '8' ? 8 : *at == 'p' ? 0 : short_ones ? 2 : 4;
        if (at < equals) {
            d->insn->d = result(d, index++, bytes);
        } else if (at > equals && at - equals <= 3) {
            *to[at - equals - 1] = source(d, index++, bytes);
        } else if (at > equals) {
            push(d, source(d, index++, bytes));
        }
    }
    if (code == PTX_LOP3)
        d->insn->imm = word(d, index++)->number;
    d->failed |= index != d->s->count && code != PTX_PRMT;
}
/* ---- all ------------------------------------------------------------------------------------- */

/* The name without what makes no difference here, in whole and at its points. */
static void split(decoder *d)
{
    size_t used = 0;
    d->name[0] = '\0';
    for (const char *at = d->s->name; *at;) {
        size_t length = strcspn(at, ".");
        bool ftz = length == 3 && (strncmp(at, "ftz", 3) == 0);
        if (!ftz && used + length + 2 < sizeof d->name) {
            used += (size_t)(used > 0);
            if (used)
                d->name[used - 1] = '.';
            memcpy(d->name + used, at, length);
            used += length;
            d->name[used] = '\0';
        }
        at += length + (at[length] == '.');
    }
}

void ptx_decode(ptx_builder *b, const ptx_statement *s, ptx_insn *insn)
{
    decoder d = { .b = b, .s = s, .insn = insn };
    char cut[sizeof d.name], *rest = NULL;
    split(&d);
    strcpy(cut, d.name);
    for (char *at = strtok_r(cut, ".", &rest); at && d.count < 20; at = strtok_r(NULL, ".", &rest))
        d.tokens[d.count++] = at;
    if (d.count)
        d.failed |= !ptx_family_of_values(&d) && !ptx_family_of_copies(&d);
    if (d.failed || !d.count)
        *insn = (ptx_insn){ .code = PTX_UNKNOWN,
                            .line = s->line,
                            .guard = insn->guard,
                            .unless = insn->unless,
                            .d = PTX_NONE,
                            .e = PTX_NONE,
                            .a = PTX_NONE,
                            .b = PTX_NONE,
                            .c = PTX_NONE };
}

int ptx_special(const char *name)
{
    static const struct {
        const char *name;
        int which;
    } all[] = {
        { "%tid.x", PTX_TID_X },
        { "%tid.y", PTX_ZERO },
        { "%tid.z", PTX_ZERO },
        { "%ntid.x", PTX_NTID_X },
        { "%ntid.y", PTX_ONE },
        { "%ntid.z", PTX_ONE },
        { "%ctaid.x", PTX_CTAID_X },
        { "%ctaid.y", PTX_ZERO },
        { "%ctaid.z", PTX_ZERO },
        { "%nctaid.x", PTX_NCTAID_X },
        { "%nctaid.y", PTX_ONE },
        { "%nctaid.z", PTX_ONE },
        { "%laneid", PTX_LANEID },
        { "%warpid", PTX_WARPID },
        { "%clusterid.x", PTX_CLUSTERID_X },
        { "%nclusterid.x", PTX_NCLUSTERID_X },
        { "%cluster_ctarank", PTX_CLUSTER_RANK },
        { "%cluster_ctaid.x", PTX_CLUSTER_RANK },
        { "%cluster_nctarank", PTX_CLUSTER_SIZE },
        { "%cluster_nctaid.x", PTX_CLUSTER_SIZE },
        { "%smid", PTX_SMID },
        { "%nsmid", PTX_NSMID },
        { "%globaltimer", PTX_GLOBALTIMER },
        { "%clock", PTX_CLOCK },
        { "%clock64", PTX_CLOCK },
        { "%lanemask_eq", PTX_LANEMASK_EQ },
        { "%lanemask_lt", PTX_LANEMASK_LT },
        { "%lanemask_le", PTX_LANEMASK_LE },
        { "%lanemask_gt", PTX_LANEMASK_GT },
        { "%lanemask_ge", PTX_LANEMASK_GE },
        { "%dynamic_smem_size", PTX_DYNAMIC_SHARED },
        { "%total_smem_size", PTX_TOTAL_SHARED },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i].name, name) == 0)
            return all[i].which;
    }
    return -1;
}
