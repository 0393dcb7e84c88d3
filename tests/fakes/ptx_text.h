/* ptx_text.h - between the reader of PTX and what makes codes of instructions. */
#ifndef PTX_TEXT_H
#define PTX_TEXT_H

#include "ptx.h"

enum { PTX_OPERANDS_MOST = 16, PTX_PARTS_MOST = 160 };

typedef enum ptx_word_kind {
    PTX_WORD_REGISTER,
    PTX_WORD_NUMBER,
    PTX_WORD_SYMBOL,  /* a variable's address, in space */
    PTX_WORD_SPECIAL, /* %tid.x */
    PTX_WORD_SINK,    /* _ */
    PTX_WORD_NAME,    /* a label's or function's */
    PTX_WORD_VECTOR,  /* { , }: parts */
    PTX_WORD_ADDRESS  /* [ base + number, parts ] */
} ptx_word_kind;

/* One operand as it is written. */
typedef struct ptx_word {
    ptx_word_kind kind, base; /* of an address: what is added to number; PTX_WORD_NUMBER: nothing */
    int reg;                  /* virtual */
    int64_t number;
    ptx_space space;
    bool dynamic, negated; /* !p */
    const char *name;
    int parts, part_count; /* of the statement's */
} ptx_word;

typedef enum ptx_class { PTX_CLASS_P, PTX_CLASS_32, PTX_CLASS_64, PTX_CLASS_128 } ptx_class;

typedef struct ptx_register_class {
    uint8_t class, bytes; /* bytes: 2 of .b16 */
} ptx_register_class;

typedef struct ptx_statement {
    const char *name; /* "add.s32" */
    ptx_word words[PTX_OPERANDS_MOST];
    int count;
    ptx_word parts[PTX_PARTS_MOST];
    int part_count;
    bool piped; /* words[0] | words[1] */
    int guard;  /* virtual register, or -1 */
    bool unless;
    uint32_t line;
} ptx_statement;

enum { PTX_CONSTANTS = 8192 };

typedef struct ptx_constant {
    uint64_t value;
    uint32_t class;
    bool there;
    ptx_operand operand;
} ptx_constant;

/* What is being read. */
typedef struct ptx_builder {
    ptx_constant constants[PTX_CONSTANTS];
    ptx_module *module;
    ptx_register_class *registers; /* of the function: a virtual register's class */
    int register_count;
    uint32_t operands_placed;
    uint32_t insn_room, operand_room, constant_room, register_room;
} ptx_builder;

/* Operands before registers have places: 4 * virtual register. */
ptx_operand ptx_builder_constant(ptx_builder *b, uint64_t value, ptx_class class);
uint32_t ptx_builder_operand(ptx_builder *b, ptx_operand operand);
ptx_insn *ptx_builder_insn(ptx_builder *b, uint32_t line);
int ptx_builder_register(ptx_builder *b, ptx_class class, int bytes);

/* Fills in all but a branch's target and a call. */
void ptx_decode(ptx_builder *b, const ptx_statement *s, ptx_insn *insn);

/* Gives the registers of a function places from `at` on; returns the end. */
uint32_t ptx_registers_place(ptx_builder *b, ptx_function *f, uint32_t at);

enum ptx_special {
    PTX_TID_X,
    PTX_ZERO,
    PTX_NTID_X,
    PTX_ONE,
    PTX_CTAID_X,
    PTX_NCTAID_X,
    PTX_LANEID,
    PTX_WARPID,
    PTX_CLUSTERID_X,
    PTX_NCLUSTERID_X,
    PTX_CLUSTER_RANK,
    PTX_CLUSTER_SIZE,
    PTX_SMID,
    PTX_NSMID,
    PTX_GLOBALTIMER,
    PTX_CLOCK,
    PTX_LANEMASK_EQ,
    PTX_LANEMASK_LT,
    PTX_LANEMASK_LE,
    PTX_LANEMASK_GT,
    PTX_LANEMASK_GE,
    PTX_DYNAMIC_SHARED,
    PTX_TOTAL_SHARED
};

int ptx_special(const char *name); /* -1: not known */

#endif /* PTX_TEXT_H */
