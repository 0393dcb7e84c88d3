/* op.h - what an operator declares: the fields of its desc and args, as rows, and the ways to
 * do it.  All that is said of operators elsewhere is said of these rows.
 */
#ifndef IMX_OP_H
#define IMX_OP_H

#include "group/group.h"
#include "tune/cost.h"

typedef struct imx_op imx_op;
typedef struct imx_run imx_run;
typedef struct imx_request imx_request;
typedef struct imx_variant imx_variant;

/* How much of each an algorithm needs in one buffer. */
typedef struct imx_needs {
    size_t data_bytes; /* shared */
    size_t signals;    /* shared */
    size_t local_bytes;
    size_t done;                  /* local signals; as many counters, and one more */
    size_t lines_at, lines_bytes; /* of data: lines, which carry their signals in them */
} imx_needs;

/* One way to do what an operator does: a block of its file, from `can` to `run`.  Several of one
 * name do it for variants of several kinds: a variant has the first that can. */
typedef struct imx_algorithm {
    const char *name;
    bool by_kernel;  /* a kernel reaches the peers itself: at most IMX_TEAM_MOST ranks */
    bool stores;     /* and stores into their memory under signals: what CPU ranks choose */
    bool over_nodes; /* for ranks on several nodes; else for those of one */
    bool on_request; /* on GPUs: runs where it is named, and is not chosen */
    bool norms;      /* its kernel norms rows, too, where imx_norm_in_kernel says so */
    bool apart;      /* passes on chunks: where it is named, their tiles are of one rank's rows */
    bool slices;     /* slices of k come beneath the product, if that has few rows */
    bool behind;     /* its product may be made alone: it adds up behind that (imx_config.alone) */
    bool at_once;    /* on a GPU all blocks of its kernels must be there: they wait for each other,
                        or for those of the peers, which do the same */
    bool (*can)(const imx_problem *p, imx_text *why_not); /* NULL: always.  why_not ends a sentence
                                                             that begins "X is the algorithm, " */
    double (*cost)(const imx_problem *p, const imx_rates *rates); /* on GPUs of one node, beyond the
                                                                     product; NULL: not chosen */
    void (*layout)(const imx_variant *variant, imx_needs *needs);
    imbrex_status (*prepare)(imx_variant *variant); /* its kernels; NULL: none */
    imbrex_status (*run)(const imx_run *run); /* enqueues all of one run, begin and end included */
} imx_algorithm;

/* What an operator does around any of its algorithms. */
typedef struct imx_around {
    void (*layout)(const imx_variant *variant, imx_needs *needs); /* beyond the algorithm's needs */
    imbrex_status (*prepare)(imx_variant *variant);               /* beyond its kernels */
    imbrex_status (*run)(const imx_run *run);                     /* the algorithm's run in it */
    double (*cost)(const imx_op *op, const imx_algorithm *a, const imx_problem *p,
                   const imx_rates *rates); /* beyond the algorithm's */
} imx_around;

enum { IMX_ALGORITHMS = 12, IMX_KERNELS = 5, IMX_OPERANDS = 20, IMX_DESC_BYTES = 256 };

/* ---- fields ---------------------------------------------------------------------------------- */

/* imbrex_field.own[0]: what a field is to the library. */
typedef enum imx_kind {
    IMX_SIZE = 1, /* int64_t */
    IMX_COUNT,    /* int, from 0 */
    IMX_FLAG,     /* int, 0 or 1 */
    IMX_REAL,     /* float */
    IMX_DTYPE,
    IMX_WIRE, /* imbrex_dtype, E4M3 too */
    IMX_LAYOUT,
    IMX_SCALES,  /* imbrex_scaling */
    IMX_EXPERTS, /* imbrex_experts */
    IMX_NAME,    /* const char * */
    IMX_STRUCT,  /* a pointer to a struct, whose fields have rows of their own; operands follow: */
    IMX_MATRIX,  /* void *: elements of the plan's dtype */
    IMX_RESULT,  /* void *: of the type that imx_op.result gives */
    IMX_WEIGHTS, /* void *: b's elements */
    IMX_OUT,     /* void *: elements of the type of c before it is quantised */
    IMX_I32,     /* int32_t * */
    IMX_FLOATS   /* float * */
} imx_kind;

/* own[IMX_FIELD_DIMS + i]: how far dimension i of an operand reaches in a run of m rows. */
typedef enum imx_extent {
    IMX_END, /* there is no such dimension */
    IMX_ROWS,
    IMX_OWN_ROWS,
    IMX_N,
    IMX_K,
    IMX_B_ROWS, /* n or k, as b lies */
    IMX_B_COLS,
    IMX_SCALE_ROWS,     /* of a's scales, where a has all rows, */
    IMX_SCALE_OWN_ROWS, /* or own ones */
    IMX_SCALE_COLS,
    IMX_SCALE_B_ROWS,
    IMX_OF_OP /* from here on: imx_op.extent knows */
} imx_extent;

enum { IMX_NO_EXTENT = -1 }; /* from imx_op.extent: for this desc the operand ends before it */

/* What is in imbrex_field.own. */
enum { IMX_FIELD_KIND, IMX_FIELD_WIDE, IMX_FIELD_MAY_BE, IMX_FIELD_DIMS, IMX_DIMS = 4 };
enum { IMX_FIELD_IN_ROUTING = IMX_FIELD_DIMS + IMX_DIMS };
enum { IMX_MAY_BE_8_BIT = 1 }; /* in place of wide, of an IMX_DTYPE: E4M3, too */
enum { IMX_APART = 0, IMX_MAY_BE_A = 1, IMX_MAY_BE_RESIDUAL = 2 };

/* A field of a desc or args of the type `of`; also one of a struct in it: norm.eps. */
#define IMX_FIELD(of, field, kind, type, flags, text)                                             \
    {                                                                                             \
#field, type, text, NULL, offsetof(of, field), sizeof(((of *)0)->field), flags, { kind }, \
        {                                                                                         \
            0                                                                                     \
        }                                                                                         \
    }

/* An operand in imbrex_args.  wide: aligned as the device's kernels load and store at once; may_be:
 * an output that may be an input's memory; then its dimensions. */
#define IMX_OPERAND(field, kind, type, flags, wide, may_be, shape, text, ...) \
    IMX_OPERAND_OF(imbrex_args, field, kind, type, flags, wide, may_be, shape, text, __VA_ARGS__)

/* The same in another struct. */
#define IMX_OPERAND_OF(of, field, kind, type, flags, wide, may_be, shape, text, ...) \
    {                                                                                \
#field, type, text, shape, offsetof(of, field), sizeof(void *), flags,       \
            { kind, wide, may_be, __VA_ARGS__ },                                     \
        {                                                                            \
            0                                                                        \
        }                                                                            \
    }

/* A matrix of the plan's dtype. */
#define IMX_MATRIX_OF(field, flags, wide, shape, text, ...) \
    IMX_OPERAND(field, IMX_MATRIX, "matrix", flags, wide, IMX_APART, shape, text, __VA_ARGS__)

/* The same in *args.routing. */
#define IMX_OPERAND_IN_ROUTING(field, kind, type, flags, shape, text, ...)                     \
    {                                                                                          \
        "routing." #field, type, text, shape, offsetof(imbrex_routing, field), sizeof(void *), \
            flags,                                                                             \
            { [IMX_FIELD_KIND] = kind,                                                         \
              [IMX_FIELD_IN_ROUTING] = 1,                                                      \
              [IMX_FIELD_DIMS] = __VA_ARGS__ },                                                \
        {                                                                                      \
            0                                                                                  \
        }                                                                                      \
    }

/* ---- operators ------------------------------------------------------------------------------- */

/* Bytes of a desc that must be 0. */
typedef struct imx_blank {
    const char *name; /* "reserved", "norm.reserved" */
    size_t at, bytes;
    bool of_others; /* no reserved words, but fields that other operators have */
} imx_blank;

#define IMX_BLANK(of, field)                                         \
    {                                                                \
#field, offsetof(of, field), sizeof(((of *)0)->field), false \
    }
#define IMX_BLANK_OF_OTHERS(of, field)                              \
    {                                                               \
#field, offsetof(of, field), sizeof(((of *)0)->field), true \
    }

enum { IMX_BLANKS = 3 };

/* Whether a run has an operand that is optional as declared. */
typedef enum imx_part { IMX_AS_DECLARED, IMX_MAY, IMX_MUST, IMX_MUST_NOT } imx_part;

/* The struct that runs are given, and what is in it. */
typedef struct imx_args_type {
    const char *run; /* the public function that takes it */
    const imx_blank *pointers;
    int pointer_count;
    const imx_blank *sizes; /* where not all operators have the same */
    int size_count;
    imx_blank reserved;
} imx_args_type;

extern const imx_args_type imx_args_usual, imx_args_decode; /* imbrex_args, imbrex_decode_args */

/* What an operand's shape follows from. */
typedef struct imx_asked {
    const imbrex_group *group;
    const imx_op *op;
    const imx_shape *shape;
    const void *desc; /* the operator's */
    const void *args; /* the run's; NULL: none is known, and operands may be larger than asked */
} imx_asked;

struct imx_op {
    imbrex_op_info info;
    const char *call;             /* the public function that makes its plans */
    imx_blank blanks[IMX_BLANKS]; /* of the desc; its own reserved words first */
    bool product;                 /* multiplies */
    bool scatters;                /* rows of c's width go to owners; else a's to all */
    bool own_rows;                /* a run's rows are this rank's: ranks may differ in them */
    bool alone;                   /* has no peers: cut as for one rank */
    const imx_args_type *takes;   /* NULL: imx_args_usual */

    /* Elements that a rank has of a row of the run, where the desc has no n; NULL: it has one. */
    int64_t (*width)(const void *desc);

    /* Beyond what all descs are checked for; NULL: nothing. */
    imbrex_status (*check)(const imbrex_group *group, const imx_request *request);

    /* Beyond what a run's args are checked for; NULL: nothing. */
    imbrex_status (*check_run)(const imx_asked *asked, int64_t m);

    /* What the desc says of an operand, and why, in words; NULL: nothing. */
    imx_part (*part)(const imx_op *op, const void *desc, const imbrex_field *operand,
                     const char **because);

    /* Of IMX_RESULT operands; NULL: there are none. */
    imbrex_dtype (*result)(const imx_asked *asked);

    const imx_around *around; /* NULL: nothing */

    bool scaled;    /* its desc has out and scaling, and dtype may have 8 bits */
    size_t norm_at; /* of the desc's imbrex_norm, with IMX_NORM (ops/norm.h) */

    /* Of a dimension from IMX_OF_OP on, on this rank; NULL: there is none. */
    int64_t (*extent)(const imx_asked *asked, int64_t m, int which);

    /* Of a product by experts: input's experts and expert_rows; NULL: there is none. */
    void (*spread)(const imx_asked *asked, imx_tune_input *input);

    /* Rows that the output with that dimension has room for; NULL: rows follow from the run. */
    int64_t (*capacity)(const imx_asked *asked);

    /* Of a run that is only timed and as large as it can be: sizes in args, and what an operand of
     * integers holds; NULL: there is none. */
    void (*timed_sizes)(const imx_asked *asked, void *args);
    void (*timed_integers)(const imx_asked *asked, const imbrex_field *operand, int64_t count,
                           int32_t *to);

    /* Those of one name beside each other; ends at the first without a name.  One rank alone takes
     * "sequential", whichever is named: there is no peer to send to. */
    imx_algorithm algorithms[IMX_ALGORITHMS];
};

/* The part of an imx_op that follows from its name, the type of its desc and its rows. */
#define IMX_OP(name_, text_, desc_type, desc_rows, args_rows) \
    IMX_OP_OF(name_, text_, desc_type, desc_rows, imbrex_args, args_rows)
#define IMX_OP_OF(name_, text_, desc_type, desc_rows, args_type, args_rows) \
    .info = { .name = #name_,                                               \
              .text = (text_),                                              \
              .desc = (desc_rows),                                          \
              .args = (args_rows),                                          \
              .desc_fields = IMX_OP_ROWS(desc_rows),                        \
              .args_fields = IMX_OP_ROWS(args_rows),                        \
              .desc_bytes = sizeof(desc_type),                              \
              .args_bytes = sizeof(args_type) },                            \
    .call = "imbrex_plan_" #name_, .blanks[0] = IMX_BLANK(desc_type, reserved)
#define IMX_OP_ROWS(rows) ((int)(sizeof(rows) / sizeof(rows)[0]))

/* All of them, in the order of imbrex_op. */
extern const imx_op imx_op_ag_gemm, imx_op_gemm_rs, imx_op_all_gather, imx_op_reduce_scatter,
    imx_op_all_reduce, imx_op_all_to_all, imx_op_gemm_ar, imx_op_gemm, imx_op_ag_moe, imx_op_moe_rs,
    imx_op_dispatch, imx_op_combine, imx_op_merge_states, imx_op_flash_decode;
const imx_op *imx_op_at(int i); /* NULL behind the last */

/* The first of that name from `a` on; NULL: there is none. */
const imx_algorithm *imx_op_algorithm(const imx_algorithm *a, const char *name);

/* INVALID if there is none of that name, or its desc has not so many bytes. */
imbrex_status imx_op_find(const char *name, size_t desc_bytes, const imx_op **op) IMX_MUST_CHECK;

enum { IMX_OPS_MOST = 32 };

#endif /* IMX_OP_H */
