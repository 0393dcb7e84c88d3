/* ptx.h - a compiled kernel as the fake driver runs it: PTX, decoded once.
 *
 * ptx_parse.c reads the text, ptx_decode.c finds an instruction's code in the table of ptx_codes.h,
 * ptx_registers.c gives its virtual registers places, ptx_run.c runs blocks, ptx_step.c steps.
 */
#ifndef PTX_H
#define PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PTX_LANES = 32,
    PTX_SHARED_BASE = 0x400, /* where a block's shared memory begins in its window */
    PTX_RANK_SHIFT = 24,     /* a window's number in its cluster, in an address */
    PTX_PARAM_BYTES = 4096
};

/* Generic addresses: where they do not begin so they are the host's own. */
#define PTX_GENERIC_SHARED (1ull << 60)
#define PTX_GENERIC_LOCAL  (2ull << 60)
#define PTX_GENERIC_SPACE  (15ull << 60)

typedef enum ptx_code {
#define PTX_CODE(code, operands, names) PTX_##code,
#include "ptx_codes.h"
#undef PTX_CODE
    PTX_CODES
} ptx_code;

typedef enum ptx_space {
    PTX_GENERIC,
    PTX_GLOBAL,
    PTX_SHARED,
    PTX_CLUSTER,
    PTX_LOCAL,
    PTX_PARAM
} ptx_space;

typedef enum ptx_compare {
    PTX_EQ,
    PTX_NE,
    PTX_LT,
    PTX_LE,
    PTX_GT,
    PTX_GE,
    PTX_EQU, /* also true of a NaN, as the ones after it */
    PTX_NEU,
    PTX_LTU,
    PTX_LEU,
    PTX_GTU,
    PTX_GEU,
    PTX_NUM,
    PTX_NAN
} ptx_compare;

typedef enum ptx_atomic {
    PTX_ADD,
    PTX_MIN,
    PTX_MAX,
    PTX_INC,
    PTX_DEC,
    PTX_CAS,
    PTX_EXCH,
    PTX_AND,
    PTX_OR,
    PTX_XOR
} ptx_atomic;

typedef enum ptx_kind { PTX_BITS, PTX_UNSIGNED, PTX_SIGNED, PTX_FLOAT } ptx_kind;

/* Where an operand is: bytes into a warp's registers, of which one is an array of 32 lanes; with
 * bit 0 into the module's constants.  A predicate is a word of 32 bits.  < 0: there is none. */
typedef int32_t ptx_operand;
enum { PTX_NONE = -1 };

typedef struct ptx_insn {
    uint16_t code;
    uint8_t space, bytes;  /* of memory; bytes of an element */
    uint8_t kind, to_kind; /* of the source and of the result */
    uint8_t to_bytes;
    uint8_t sub; /* comparison, atomic operation, which special register... */
    bool unless, acquires, releases, both; /* both: the list's results are read, too */
    bool dynamic;                          /* imm counts from the dynamic shared memory */
    bool wide;                             /* the address register has 64 bits */
    ptx_operand guard, d, e, a, b, c;
    uint32_t list;                /* of the module's operands */
    uint16_t list_count, results; /* the first ones are results */
    int64_t imm;                  /* of an address, target of a branch */
    uint32_t line;
} ptx_insn;

typedef struct ptx_param {
    const char *name;
    uint32_t at, bytes;
} ptx_param;

enum { PTX_PARAMS_MOST = 16 };

typedef struct ptx_function {
    const char *name;
    bool entry;
    uint32_t first, end; /* instructions */
    ptx_param params[PTX_PARAMS_MOST];
    ptx_param result; /* of a device function; bytes 0: none */
    int param_count;
    uint32_t param_bytes;
    uint32_t register_bytes;
    ptx_operand back; /* of a device function: the lanes' return addresses */
    int threads_most;
} ptx_function;

typedef struct ptx_global {
    const char *name;
    unsigned char *at;
    size_t bytes;
} ptx_global;

typedef struct ptx_module {
    char *text; /* names point into it */
    ptx_insn *insns;
    uint32_t insn_count;
    ptx_operand *operands;
    uint32_t operand_count;
    unsigned char *constants;
    uint32_t constant_bytes;
    ptx_function *functions;
    int function_count;
    ptx_global *globals;
    int global_count;
    uint32_t register_bytes, local_bytes; /* of a warp; of a thread */
    bool lines; /* units of 16 bytes that must arrive together are moved by neighbours */
    uint32_t shared_bytes, dynamic_shared; /* static; where the dynamic begins.  From the base on */
} ptx_module;

/* NULL: why says which line is no PTX.  An instruction that is not known is found when it runs. */
ptx_module *ptx_module_read(const char *text, char why[256]);
void ptx_module_free(ptx_module *module);
const ptx_function *ptx_module_function(const ptx_module *module, const char *name);
const ptx_global *ptx_module_global(const ptx_module *module, const char *name);
const char *ptx_module_line(const ptx_module *module, uint32_t line, char to[160]);

typedef struct ptx_launch {
    const ptx_module *module;
    const ptx_function *function;
    const void *params; /* 64-byte aligned, laid out as the function says */
    int blocks, threads, cluster;
    size_t shared_bytes; /* dynamic */
    int gpu;
} ptx_launch;

/* Runs all blocks until they end.  false: why says what is wrong, where. */
bool ptx_run(const ptx_launch *launch, char why[512]);

#endif /* PTX_H */
