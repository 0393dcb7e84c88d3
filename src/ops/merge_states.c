/* merge_states.c - attention over the tokens of all ranks from each rank's own: the owner of a head
 * gets its states from all ranks and weighs them by their sums.
 *
 * sequential    caller   | pack by owner | push, flags | wait for all | merge |
 *
 * store         caller   | one kernel: units of rows go to their owners under signals, and are
 *                          merged as they come |
 *
 * ll            caller   | one kernel: the same in words that carry their flags |
 *
 * hierarchical           over nodes: merge_nodes.c
 *
 * All weigh and add in the same order: on one node the bits are the same.
 */
#include "merge.h"

enum { FIRST }; /* kernel */

static imx_merge_states own_of(const imx_run *run)
{
    return (imx_merge_states){ run->decode->o_partial, run->decode->lse_partial };
}

/* ---- sequential ------------------------------------------------------------------------------ */

static imbrex_status prepare_sequential(imx_variant *variant)
{
    return imx_merge_copies_prepare(variant, FIRST);
}

static imbrex_status run_sequential(const imx_run *run)
{
    const imx_merge_states own = own_of(run);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_merge_copies(run, FIRST, &own));
    return imx_run_end(run);
}

/* ---- store ----------------------------------------------------------------------------------- */

static void lay_out_store(const imx_variant *variant, imx_needs *n)
{
    imx_merge_kernel_needs(variant, IMX_MERGE_STORES, n);
}

static imbrex_status prepare_store(imx_variant *variant)
{
    return imx_merge_kernel_prepare(variant, FIRST, IMX_MERGE_STORES);
}

static imbrex_status run_store(const imx_run *run)
{
    const imx_merge_states own = own_of(run);
    return imx_merge_kernel(run, FIRST, IMX_MERGE_STORES, &own);
}

/* ---- ll -------------------------------------------------------------------------------------- */

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    imx_merge_kernel_needs(variant, IMX_MERGE_LL, n);
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    return imx_merge_kernel_prepare(variant, FIRST, IMX_MERGE_LL);
}

static imbrex_status run_ll(const imx_run *run)
{
    const imx_merge_states own = own_of(run);
    return imx_merge_kernel(run, FIRST, IMX_MERGE_LL, &own);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

static imbrex_status prepare_nodes(imx_variant *variant)
{
    return imx_merge_nodes_prepare(variant, FIRST);
}

static imbrex_status run_nodes(const imx_run *run, bool overlapped)
{
    const imx_merge_states own = own_of(run);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_merge_nodes(run, FIRST, overlapped, &own));
    return imx_run_end(run);
}

static imbrex_status run_hierarchical(const imx_run *run)
{
    return run_nodes(run, true);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    return run_nodes(run, false);
}

/* ---- the operator ---------------------------------------------------------------------------- */

enum { ROWS = IMX_OF_OP, HEADS, OWN_HEADS, VALUES };

static int64_t extent(const imx_asked *asked, int64_t m, int which)
{
    const imbrex_decode_desc *d = asked->desc;
    return which == ROWS        ? m * imx_merge_queries(d)
           : which == HEADS     ? d->heads
           : which == OWN_HEADS ? imx_merge_own_heads(asked)
                                : d->value_dim;
}

#define FIELD(field, ...) IMX_FIELD(imbrex_decode_desc, field, __VA_ARGS__)

static const imbrex_field desc_rows[] = {
    FIELD(batch, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED | IMBREX_FIELD_RUN,
          "sequences of a run, at most"),
    FIELD(heads, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED, "of o, of all ranks"),
    FIELD(value_dim, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED, "numbers of a head of o"),
    FIELD(queries, IMX_COUNT, "int", 0, "rows of a sequence; 0: 1"),
    FIELD(dtype, IMX_DTYPE, "dtype", 0, "of o"),
    FIELD(replicate, IMX_FLAG, "int", 0, "1: each rank gets all heads, not its own alone"),
    FIELD(algorithm, IMX_NAME, "string", 0, "how; none: chosen"),
    FIELD(sms, IMX_COUNT, "int", 0, "SMs or threads that a run may hold; 0: all"),
};

#define OPERAND(field, ...) IMX_OPERAND_OF(imbrex_decode_args, field, __VA_ARGS__)

static const imbrex_field args_rows[] = {
    OPERAND(o_partial, IMX_MATRIX, "matrix", IMBREX_FIELD_INPUT, false, IMX_APART,
            "[m, heads, value_dim]", "softmax over this rank's tokens, times v", ROWS, HEADS,
            VALUES),
    OPERAND(lse_partial, IMX_FLOATS, "float32", IMBREX_FIELD_INPUT, false, IMX_APART, "[m, heads]",
            "logarithm of what it was divided by", ROWS, HEADS),
    OPERAND(sinks, IMX_FLOATS, "float32", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false,
            IMX_APART, "[heads]", "scores of one more token without a value", HEADS),
    OPERAND(o, IMX_MATRIX, "matrix", IMBREX_FIELD_OUTPUT, false, IMX_APART,
            "[m, own heads, value_dim]", "softmax over all tokens, times v", ROWS, OWN_HEADS,
            VALUES),
    OPERAND(lse, IMX_FLOATS, "float32", IMBREX_FIELD_OUTPUT | IMBREX_FIELD_OPTIONAL, false,
            IMX_APART, "[m, own heads]", "its logarithm", ROWS, OWN_HEADS),
    IMX_FIELD(imbrex_decode_args, natural, IMX_FLAG, "int", 0, "1: lse to base e; 0: to base 2"),
    IMX_FIELD(imbrex_decode_args, batch, IMX_SIZE, "int64", IMBREX_FIELD_RUN,
              "sequences of this run; 0: all of the plan's"),
};

const imx_op imx_op_merge_states = {
    IMX_OP_OF(merge_states, "o = attention over all ranks' tokens from each rank's own",
              imbrex_decode_desc, desc_rows, imbrex_decode_args, args_rows),
    .takes = &imx_args_decode,
    .width = imx_merge_width,
    .scatters = true,
    .check = imx_merge_check,
    .extent = extent,
    .algorithms = IMX_MERGE_ALGORITHMS(imx_merge_copies_needs, imx_merge_nodes_needs),
};

imbrex_status imbrex_plan_merge_states(imbrex_group *group, const imbrex_decode_desc *desc,
                                       imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_merge_states, desc, plan);
}
